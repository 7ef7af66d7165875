//! Other people's finalizers: ours comes off by its name and never by its place in a list, theirs stay, and none of ours is
//! put on what is already going.

use anyhow::Result;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::watcher,
};
use macrack_acceptance::{Operator, Rack, SOON, objects};
use macrack_api::{MacNodeLease, names::FINALIZER_LEASE};
use macrack_testkit::{Namespace, expect};
use serde_json::json;

const THEIRS: [&str; 2] = ["a.example/x", "b.example/y"];

fn finalizers(lease: &MacNodeLease) -> Vec<String> {
    lease.metadata.finalizers.clone().unwrap_or_default()
}

#[tokio::test]
async fn ours_comes_off_by_name_and_is_never_put_on_what_is_going() -> Result<()> {
    let rack = Rack::bare();
    let operator = Operator { no_webhook: true, ..Operator::default() };
    rack.start(&operator).await?;
    let admin = rack.plane.admin().await?;
    let ns = Namespace::fresh(rack.plane, "fin").await?;
    let leases: Api<MacNodeLease> = Api::namespaced(admin.clone(), ns.name());
    let with_theirs = |name: &str| {
        let mut lease = objects::lease(name, "no-such-class");
        lease.metadata.finalizers = Some(THEIRS.map(str::to_owned).to_vec());
        lease
    };
    // one that MacRack has taken up, between two of theirs
    objects::make_in(&admin, ns.name(), &with_theirs("taken")).await?;
    expect::until_seen(&leases, "taken", "ours too", SOON, |l| finalizers(l).iter().any(|f| f == FINALIZER_LEASE))
        .await;
    // one that goes while nobody looks
    rack.kill_operator()?;
    objects::make_in(&admin, ns.name(), &with_theirs("going")).await?;
    for name in ["going", "taken"] {
        leases.delete(name, &DeleteParams::default()).await?;
    }
    let never_ours = |all: &expect::Objects<MacNodeLease>| {
        let going =
            all.iter().find(|(name, _)| name.ends_with("going")).map(|(_, l)| finalizers(l)).unwrap_or_default();
        if going.iter().any(|f| f == FINALIZER_LEASE) {
            Err("ours was put on a lease that is going".into())
        } else {
            Ok(())
        }
    };
    let ended = async {
        rack.start(&operator).await?;
        expect::until_seen(&leases, "taken", "without ours, with theirs", SOON, |l| finalizers(l) == THEIRS).await;
        // somebody else changes the list meanwhile: the rest goes as they please
        for name in ["taken", "going"] {
            let gone = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            leases.patch(name, &PatchParams::default(), &gone).await?;
            expect::until_gone(&leases, name, SOON).await;
        }
        anyhow::Ok(())
    };
    expect::always(&leases, watcher::Config::default(), "not taken up", never_ours, ended).await
}
