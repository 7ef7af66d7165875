//! The facts of one chassis.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node},
        rbac::v1::{Role, RoleBinding},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use macrack_api::{
    MacNode, MacNodeLease, MacNodeStatus, MacOSInstance, RackConfigSpec,
    names::{self, FINALIZER_LEASE},
    rack::node::{LeaseRef, VmState},
};
use macrack_core::{
    check,
    clock::Clocks,
    decide,
    plan::{Kind, Ref},
    render::access::HASH,
    seen::Seen,
};

use super::{Pass, Sources, Turn, own_part};
use crate::{
    cache::{Cache, Key},
    world::World,
};

/// Gathers and decides one chassis; `None` when there is nothing of that name to look at.
pub async fn node(sources: &Sources, key: &Key) -> Option<Pass> {
    let world = &sources.world;
    let node = match world.nodes.get(key) {
        Seen::Present(node) => node,
        Seen::Absent => return gone(sources, key).await,
        Seen::Unknown(why) => {
            tracing::warn!(name = key.name, why, "this MacNode is left as it is");
            return None;
        }
    };
    let mut node = node.as_ref().clone();
    let mut reboots = Reboots { turn: None, of_others: Seen::Absent };
    if decide::node::settles_reboot(&node, sources.clock.now()) {
        reboots = take_turn(sources, &mut node).await;
    }
    let facts = facts(sources, &node, reboots.of_others).await;
    let plan = decide::node::decide(&facts);
    Some(Pass {
        turn: reboots.turn,
        of: Ref::cluster(Kind::MacNode, &key.name),
        uid: node.uid().unwrap_or_default(),
        verdict: check::node(&facts, &plan),
        plan,
        status: own_part(node.status.as_ref(), &["agent", "leaseRef", "slots", "wipes"]),
    })
}

/// A MacNode that is gone leaves its Node and its access behind; they go once the API server itself says so too.
async fn gone(sources: &Sources, key: &Key) -> Option<Pass> {
    let kube_node = sources.world.kube_nodes.get(&Key::cluster(names::node(&key.name)));
    let existing = kept(sources, &key.name);
    if kube_node.is_absent() && existing.is_empty() {
        return None;
    }
    let api: Api<MacNode> = Api::all(sources.client.clone());
    if !matches!(api.get_opt(&key.name).await, Ok(None)) {
        return None;
    }
    let plan = decide::node::gone(&key.name, &kube_node.map(|n| n.as_ref().clone()), &existing);
    Some(Pass {
        turn: None,
        of: Ref::cluster(Kind::MacNode, &key.name),
        uid: String::new(),
        plan,
        status: serde_json::json!({}),
        verdict: Ok(()),
    })
}

/// What a pass that may ask for a reboot or approve one is decided on.
struct Reboots {
    turn: Option<Turn>,
    of_others: Seen<Vec<Timestamp>>,
}

/// One pass after the other asks for reboots and approves them, each on what the API server itself says: two that did
/// not know of each other would spend the budget twice, and one on a cache that is behind would ask a second time.
async fn take_turn(sources: &Sources, node: &mut MacNode) -> Reboots {
    let turn = sources.reboots.clone().lock_owned().await;
    let nodes: Api<DynamicObject> = Api::all_with(sources.client.clone(), &ApiResource::erase::<MacNode>(&()));
    let of_others = match nodes.list(&ListParams::default()).await {
        Ok(list) => reboots(list.items, node),
        Err(error) => Seen::Unknown(error.to_string()),
    };
    Reboots { turn: Some(turn), of_others }
}

/// When the policy approved a reboot of each chassis but this one; this one as it is there.
fn reboots(items: Vec<DynamicObject>, node: &mut MacNode) -> Seen<Vec<Timestamp>> {
    let (own, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.uid() == node.uid());
    match own.into_iter().next().map(DynamicObject::try_parse) {
        Some(Ok(fresh)) => *node = fresh,
        Some(Err(error)) => return Seen::Unknown(format!("it cannot be read: {error}")),
        None => return Seen::Unknown("it is gone".into()),
    }
    let mut found = Vec::new();
    for other in others {
        let Some(text) = other.data["status"]["policyRebootAt"].as_str() else { continue };
        match text.parse() {
            Ok(moment) => found.push(moment),
            Err(error) => return Seen::Unknown(format!("policyRebootAt of MacNode {}: {error}", other.name_any())),
        }
    }
    Seen::Present(found)
}

async fn facts(sources: &Sources, node: &MacNode, policy_reboots: Seen<Vec<Timestamp>>) -> decide::node::Facts {
    let world = &sources.world;
    let status = node.status.clone().unwrap_or_default();
    let name = node.name_any();
    let lease = match &status.lease_ref {
        Some(r) => {
            let key = Key::new(&r.namespace, &r.name);
            // a cache that has another lease of that name may be behind too
            let cached = world.leases.get(&key);
            let other = cached.present().is_some_and(|l| l.uid().as_deref() != Some(&r.uid));
            sources.confirmed(if other { Seen::Absent } else { cached }, &key).await
        }
        None => Seen::Absent,
    };
    let mut holders = BTreeMap::new();
    for slot in &status.slots {
        let key = Key::new(&slot.namespace, &slot.name);
        let cached = world.instances.get(&key);
        let other = cached.present().is_some_and(|i| i.uid().as_deref() != Some(&slot.uid));
        let seen: Seen<MacOSInstance> = sources.confirmed(if other { Seen::Absent } else { cached }, &key).await;
        holders.insert(slot.uid.clone(), seen);
    }
    let clocks = clocks(sources, status.lease_ref.as_ref(), &lease).await;
    let claim = claim(world, node, &clocks);
    let mut existing = kept(sources, &name);
    if let Some(lease_ref) =
        status.lease_ref.as_ref().filter(|r| status.slots.is_empty() && clocks.both_past(r.earliest_release_at.0))
    {
        confirm_access(sources, &name, lease_ref, &mut existing).await;
    }
    let instances = instances(world, &status);
    let holding = || holders.values().filter_map(Seen::present);
    let made = instances.present().into_iter().flatten();
    let sizes = made.chain(holding()).map(|instance| &instance.spec.instance_class_name);
    let images = status.prefetch_image_names.iter().chain(holding().map(|instance| &instance.spec.image_name));
    decide::node::Facts {
        class: world.node_classes.get(&Key::cluster(&node.spec.node_class_name)).map(|c| c.as_ref().clone()),
        namespace_ending: match &status.lease_ref {
            Some(r) => ending(&world.namespaces.get(&Key::cluster(&r.namespace)).map(|n| n.as_ref().clone())),
            None => Seen::Present(false),
        },
        pull_secrets: named(&world.images, images, |image| {
            image.spec.source.oci.pull_secret_ref.as_ref().map(|secret| secret.name.clone())
        }),
        sizes: named(&world.sizes, sizes, |size| Some(size.spec.clone())),
        instances,
        holders,
        kube_node: kube_node(sources, &name).await,
        existing,
        claim,
        config: config(sources),
        policy_reboots,
        node: node.clone(),
        lease,
        clocks,
    }
}

/// What `of` takes from the objects of these names, by name: of a catalogue of hundreds a pass copies the few that it
/// can need.
fn named<'a, K: Resource, T>(
    catalogue: &Cache<K>,
    names: impl Iterator<Item = &'a String>,
    of: impl Fn(&K) -> Option<T>,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for name in names {
        if !all.contains_key(name)
            && let Seen::Present(object) = catalogue.get(&Key::cluster(name))
            && let Some(part) = of(&object)
        {
            all.insert(name.clone(), part);
        }
    }
    all
}

/// Its Node. Nodes are watched by the label that names their Mac: one that is not there by that may have lost the label,
/// which the operator then puts back.
async fn kube_node(sources: &Sources, mac_node: &str) -> Seen<Node> {
    let name = names::node(mac_node);
    let seen = sources.world.kube_nodes.get(&Key::cluster(&name)).map(|n| n.as_ref().clone());
    if !seen.is_absent() {
        return seen;
    }
    match Api::<Node>::all(sources.client.clone()).get_opt(&name).await {
        Ok(node) => node.into(),
        Err(error) => Seen::Unknown(error.to_string()),
    }
}

/// Both clocks where a moment of the lease seems to have come, else the operator's alone.
async fn clocks(sources: &Sources, lease_ref: Option<&LeaseRef>, lease: &Seen<MacNodeLease>) -> Clocks {
    let now = sources.clock.now();
    let Some(lease_ref) = lease_ref else { return sources.clock.operator() };
    let due = match lease.present() {
        Some(lease) => decide::lease::needs_server_clock(lease, Some(lease_ref), false, now),
        None => now >= lease_ref.earliest_release_at.0,
    };
    if due { sources.clock.both().await } else { sources.clock.operator() }
}

/// What the agent may do in the tenant's namespace, from the API server itself: a Role that was applied a moment ago
/// must not outlive the lease because a watch is behind.
async fn confirm_access(sources: &Sources, mac_node: &str, lease_ref: &LeaseRef, existing: &mut BTreeMap<Ref, String>) {
    let account = names::agent_account(mac_node);
    let roles: Api<Role> = Api::namespaced(sources.client.clone(), &lease_ref.namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(sources.client.clone(), &lease_ref.namespace);
    let there = [
        (Kind::Role, roles.get_metadata_opt(&account).await.map(|m| m.is_some())),
        (Kind::RoleBinding, bindings.get_metadata_opt(&account).await.map(|m| m.is_some())),
    ];
    for (kind, there) in there {
        let object = Ref::namespaced(kind, &lease_ref.namespace, &account);
        if there.unwrap_or(true) {
            existing.entry(object).or_default();
        } else {
            existing.remove(&object);
        }
    }
}

/// The instances of the lease that holds the chassis. Not known while one that cannot be read has a VM here: it is in no
/// index, and its VM would be taken for nobody's.
fn instances(world: &World, status: &MacNodeStatus) -> Seen<Vec<MacOSInstance>> {
    let vms = status.agent.iter().flat_map(|agent| &agent.vms).filter(|vm| vm.state != VmState::Wiped);
    if let Some(bad) = vms.filter_map(|vm| world.instances.unreadable(&vm.uid)).next() {
        return Seen::Unknown(format!("a stored MacOSInstance cannot be read: {}", bad.error));
    }
    let of_lease = status.lease_ref.as_ref().map(|held| world.instances.by("lease", &held.uid));
    Seen::Present(of_lease.into_iter().flatten().map(|instance| instance.as_ref().clone()).collect())
}

/// A bound lease that names this chassis while the chassis knows of none.
fn claim(world: &World, node: &MacNode, clocks: &Clocks) -> Seen<MacNodeLease> {
    if node.status.as_ref().is_some_and(|s| s.lease_ref.is_some()) {
        return Seen::Absent;
    }
    let leases = world.leases.by("serial", &node.spec.serial);
    let held_elsewhere = |l: &MacNodeLease| l.uid().is_some_and(|uid| !world.nodes.by("lease", &uid).is_empty());
    let found = leases.iter().find(|l| decide::lease::claims(l, clocks) && !held_elsewhere(l));
    match (found, unreadable_claim(world, node)) {
        (Some(lease), _) => Seen::Present(lease.as_ref().clone()),
        (None, Some(why)) => Seen::Unknown(why),
        (None, None) => Seen::Absent,
    }
}

/// Why it is not known whether the last lease that the Mac itself remembers still has it: that lease is there, has not
/// let go, and cannot be read.
pub(super) fn unreadable_claim(world: &World, node: &MacNode) -> Option<String> {
    let last = node.status.as_ref()?.agent.as_ref()?.last_lease.as_ref()?;
    let lease = world.leases.unreadable(&last.uid)?;
    let holds = lease.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER_LEASE);
    holds.then(|| format!("the stored MacNodeLease that it remembers cannot be read: {}", lease.error))
}

/// Whether a namespace is being deleted or gone.
pub(super) fn ending(namespace: &Seen<Namespace>) -> Seen<bool> {
    match namespace {
        Seen::Present(ns) => Seen::Present(ns.metadata.deletion_timestamp.is_some()),
        Seen::Absent => Seen::Present(true),
        Seen::Unknown(why) => Seen::Unknown(why.clone()),
    }
}

/// The settings, or the defaults.
pub(super) fn config(sources: &Sources) -> RackConfigSpec {
    sources.world.configs.get(&Key::cluster("default")).present().map(|c| c.spec.clone()).unwrap_or_default()
}

/// What exists for a chassis, with the hash of what was applied.
fn kept(sources: &Sources, mac_node: &str) -> BTreeMap<Ref, String> {
    let mut all = BTreeMap::new();
    for (kind, cache) in &sources.world.kept {
        for meta in cache.by("serial", mac_node) {
            let object = Ref { kind: *kind, namespace: meta.namespace().unwrap_or_default(), name: meta.name_any() };
            all.insert(object, meta.annotations().get(HASH).cloned().unwrap_or_default());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::{
        core::{DeserializeGuard, error_boundary::InvalidObject},
        runtime::watcher::Event,
    };
    use macrack_api::InstanceClass;
    use serde_json::json;

    use super::*;

    const UID: &str = "11111111-2222-4333-8444-555555555555";

    /// One that is stored, has that uid and cannot be decoded.
    fn bad<K>(finalizers: &[&str]) -> Event<DeserializeGuard<K>> {
        let finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
        let metadata =
            ObjectMeta { name: Some("bad".into()), uid: Some(UID.into()), finalizers, ..ObjectMeta::default() };
        Event::Apply(DeserializeGuard(Err(InvalidObject { error: "unknown variant".into(), metadata })))
    }

    fn mac_node(agent: serde_json::Value) -> MacNode {
        let mut agent = agent;
        (agent["version"], agent["bootID"]) = ("0.1.0".into(), "b".into());
        serde_json::from_value(json!({
            "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": "h4xk29q0lw" },
            "spec": { "serial": "H4XK29Q0LW", "nodeClassName": "mini" }, "status": { "agent": agent },
        }))
        .unwrap()
    }

    #[test]
    fn the_vm_of_an_instance_that_cannot_be_read_is_not_taken_for_nobodys() {
        let world = World::new();
        let vm = |state: &str| mac_node(json!({ "vms": [{ "uid": UID, "state": state }] })).status.unwrap();
        assert_eq!(instances(&world, &vm("Running")), Seen::Present(Vec::new()));
        world.instances.take_in(bad(&[]));
        assert!(instances(&world, &vm("Running")).is_unknown());
        assert_eq!(instances(&world, &vm("Wiped")), Seen::Present(Vec::new()), "nothing of it is here");
    }

    #[test]
    fn a_mac_that_remembers_a_lease_which_cannot_be_read_is_not_known_to_be_free() {
        let world = World::new();
        let clocks = Clocks { operator: Timestamp::UNIX_EPOCH, server: Seen::Absent };
        let floor = "2026-03-03T09:00:00Z";
        let node = mac_node(json!({ "lastLease": { "uid": UID, "earliestReleaseAt": floor } }));
        assert!(claim(&world, &node, &clocks).is_absent());
        world.leases.take_in(bad(&["example.com/other"]));
        assert!(claim(&world, &node, &clocks).is_absent(), "it has let go");
        world.leases.take_in(bad(&[FINALIZER_LEASE]));
        assert!(claim(&world, &node, &clocks).is_unknown());
        assert!(claim(&world, &mac_node(json!({})), &clocks).is_absent(), "another Mac");
    }

    #[test]
    fn a_pass_copies_the_sizes_that_its_instances_name_and_no_other() {
        let cache: Cache<InstanceClass> = Cache::new(|_| Vec::new());
        cache.take_in(Event::Init);
        for name in ["small", "large", "huge"] {
            let class = json!({ "apiVersion": "instance.macrack.io/v1alpha1", "kind": "InstanceClass",
                "metadata": { "name": name }, "spec": { "cpuCores": 4, "memory": "8Gi", "disk": "60G" } });
            cache.take_in(Event::InitApply(DeserializeGuard(Ok(serde_json::from_value(class).unwrap()))));
        }
        cache.take_in(Event::InitDone);
        let of = |class: &str| -> MacOSInstance {
            let spec = json!({ "leaseName": "l", "instanceClassName": class, "imageName": "i" });
            serde_json::from_value(json!({ "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
                "metadata": { "name": "x" }, "spec": spec }))
            .unwrap()
        };
        let instances = [of("small"), of("small"), of("gone"), of("huge")];
        let names = instances.iter().map(|instance| &instance.spec.instance_class_name);
        let sizes = named(&cache, names, |size| Some(size.spec.clone()));
        assert_eq!(sizes.into_keys().collect::<Vec<_>>(), ["huge", "small"]);
    }
}
