//! After all scenes: what the operator asked of the API server meanwhile.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::Request;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize as _;

use crate::stage;

/// The operator's own namespace.
const HOME: &str = "dockerios-system";

/// What `deploy/rbac/operator.yaml` gives and no scene asks for, and why it is given all the same: where, group,
/// resource, verbs.
const UNSEEN: &[(&str, &str, &str, &[&str], &str)] = &[
    (
        HOME,
        "coordination.k8s.io",
        "leases",
        &["create", "get", "update"],
        "one operator needs no election; tests/crash/leaders.rs has two",
    ),
    (
        HOME,
        "",
        "secrets",
        &["update"],
        "the keys are renewed after years; crates/pki tests it",
    ),
    (
        HOME,
        "cdi.kubevirt.io",
        "datavolumes/source",
        &["create"],
        "CDI asks whether the operator may; nobody requests it",
    ),
    (
        HOME,
        "snapshot.storage.k8s.io",
        "volumesnapshots",
        &["delete"],
        "an image that was published as a snapshot and is deleted",
    ),
    (
        "everywhere",
        "identity.dockerios.io",
        "machineidentities/finalizers",
        &["update"],
        OWNERS,
    ),
    (
        "everywhere",
        "image.dockerios.io",
        "macosimages/finalizers",
        &["update"],
        OWNERS,
    ),
    (
        "everywhere",
        "machine.dockerios.io",
        "macosmachinepools/finalizers",
        &["update"],
        OWNERS,
    ),
    (
        "everywhere",
        "machine.dockerios.io",
        "macosmachineclaims",
        &["delete"],
        "claims that ended are removed after a day",
    ),
    (
        "everywhere",
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        &["patch"],
        "the fleet's operator is outside the cluster and writes its registration whole",
    ),
    (
        "everywhere",
        "kubevirt.io",
        "virtualmachineinstances",
        &["delete"],
        "an instance whose VirtualMachine somebody took away",
    ),
];
const OWNERS: &str = "only where OwnerReferencesPermissionEnforcement is on";

pub(crate) async fn the_operator_lacked_no_right_and_wrote_no_secret_anywhere() -> Result<()> {
    let stage = stage().await?;
    let requests = stage.fleet.requests()?;
    ensure!(
        requests.len() > 50,
        "{} requests of the operator were written down: little is shown",
        requests.len()
    );
    let mut refused: HashMap<(String, String, String), usize> = HashMap::new();
    for request in requests.into_iter().filter(|request| request.unauthorized) {
        *refused
            .entry((request.verb, request.resource, request.namespace))
            .or_default() += 1;
    }
    ensure!(
        refused.is_empty(),
        "rights that deploy/rbac does not give: {refused:#?}"
    );
    ensure!(
        stage.operator.process.is_running(),
        "it ended: {:?}",
        stage.operator.process.exit()
    );
    let osk = stage.fleet.osk().await?;
    for (path, log) in stage.fleet.logs() {
        ensure!(!log.contains(&osk), "{} holds the SMC's key", path.display());
        ensure!(!log.contains("panicked at"), "{} tells of a panic", path.display());
        ensure!(
            !log.contains("breaks an invariant"),
            "{} tells of a plan that breaks an invariant",
            path.display()
        );
    }
    Ok(())
}

/// A status that is written again without a change wakes every watcher, us among them.
pub(crate) async fn no_object_was_written_over_and_over() -> Result<()> {
    /// A pool of fifty identities changes its counts with each of them, some five times; a loop does more in a minute.
    const MANY: usize = 400;
    let mut writes: HashMap<(String, String, String), usize> = HashMap::new();
    for request in stage().await?.fleet.requests()? {
        let aside = matches!(&*request.resource, "leases" | "events" | "machineidentities/status");
        if ["create", "update", "patch", "delete"].contains(&&*request.verb) && !aside && !request.name.is_empty() {
            *writes
                .entry((request.resource, request.namespace, request.name))
                .or_default() += 1;
        }
    }
    ensure!(!writes.is_empty(), "nothing was written");
    let many: Vec<_> = writes.into_iter().filter(|(_, count)| *count > MANY).collect();
    ensure!(many.is_empty(), "written over and over: {many:#?}");
    Ok(())
}

/// A right: where, group, resource, verb.
type Right = (&'static str, String, String, String);

/// The rights in the operator's roles; a subresource is known to the API server up to its first slash.
fn granted() -> Result<BTreeSet<Right>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/rbac/operator.yaml");
    let text = std::fs::read_to_string(path).context(path)?;
    let mut rights = BTreeSet::new();
    for document in serde_yaml::Deserializer::from_str(&text) {
        let object = serde_json::Value::deserialize(document)?;
        let place = match object["kind"].as_str() {
            Some("ClusterRole") => "everywhere",
            Some("Role") => HOME,
            _ => continue,
        };
        let rules: Vec<PolicyRule> = serde_json::from_value(object["rules"].clone())?;
        for rule in rules {
            for group in rule.api_groups.unwrap_or_default() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        let parts: Vec<&str> = resource.split('/').take(2).collect();
                        rights.insert((place, group.clone(), parts.join("/"), verb.clone()));
                    }
                }
            }
        }
    }
    ensure!(rights.len() > 50, "{} rights in {path}", rights.len());
    Ok(rights)
}

/// Whether the request needed this right: one that is given everywhere is needed outside the operator's namespace.
/// Who may patch may update, and who may list may get: there is no power in the one that is not in the other.
fn used(right: &Right, request: &Request) -> bool {
    let (place, group, resource, verb) = right;
    let at_home = request.namespace == HOME;
    (*place == HOME) == at_home
        && *group == request.group
        && *resource == request.resource
        && (*verb == request.verb
            || matches!(
                (verb.as_str(), request.verb.as_str()),
                ("update", "patch") | ("patch", "update") | ("get", "list")
            ))
        && !request.unauthorized
}

pub(crate) async fn every_right_of_the_operator_was_used_or_is_excused_by_name() -> Result<()> {
    let fleet = &stage().await?.fleet;
    let requests = fleet.requests()?;
    // on a cluster without VolumeSnapshots none is made
    let asked_of = |right: &Right| fleet.snapshots || right.1 != "snapshot.storage.k8s.io";
    let unseen: BTreeSet<Right> = granted()?
        .into_iter()
        .filter(|right| asked_of(right) && !requests.iter().any(|request| used(right, request)))
        .collect();
    ensure!(
        unseen.len() < granted()?.len() / 2,
        "few rights were used: were scenes left out?"
    );
    let excused: BTreeSet<Right> = UNSEEN
        .iter()
        .flat_map(|(place, group, resource, verbs, _)| {
            let verbs = verbs.iter();
            verbs.map(|verb| (*place, (*group).to_owned(), (*resource).to_owned(), (*verb).to_owned()))
        })
        .collect();
    let idle: Vec<_> = unseen.difference(&excused).collect();
    ensure!(idle.is_empty(), "given, never used, and not excused: {idle:#?}");
    let stale: Vec<_> = excused.difference(&granted()?).cloned().collect();
    ensure!(stale.is_empty(), "excused, and not given any more: {stale:#?}");
    Ok(())
}
