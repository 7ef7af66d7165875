//! What goes with a MacNode that is gone, and what does not.

use std::collections::BTreeMap;

use macrack_core::{
    decide::node::gone,
    plan::{Kind, Ref, Step},
    render::access,
    seen::Seen,
};

#[test]
fn what_a_tenant_labelled_does_not_keep_the_access_of_a_mac_that_is_gone() {
    let account = macrack_api::names::agent_account("h4xk29q0lw");
    let mut ours = access::chassis_refs("h4xk29q0lw");
    ours.extend([Kind::Role, Kind::RoleBinding].map(|kind| Ref::namespaced(kind, "team-a", &account)));
    // the operator may delete none of these, and they come first in the order
    let theirs = [
        Ref::namespaced(Kind::ServiceAccount, "a-tenant", "kept"),
        Ref::namespaced(Kind::ServiceAccount, "a-tenant", &account),
        Ref::namespaced(Kind::Lease, "a-tenant", "macrack-h4xk29q0lw"),
    ];
    let existing: BTreeMap<Ref, String> =
        ours.iter().chain(&theirs).map(|object| (object.clone(), String::new())).collect();
    let plan = gone("h4xk29q0lw", &Seen::Absent, &existing);
    let mut deleted: Vec<&Ref> = plan
        .steps
        .iter()
        .filter_map(|step| if let Step::Delete { object, .. } = step { Some(object) } else { None })
        .collect();
    let mut wanted: Vec<&Ref> = ours.iter().collect();
    deleted.sort();
    wanted.sort();
    assert_eq!(deleted, wanted, "only what the operator made");
}
