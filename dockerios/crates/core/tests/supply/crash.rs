//! The protocols, with the operator dying before every single write, from the empty pool to the deleted one.

use std::collections::BTreeSet;

use dockerios_api::MachineIdentity;
use dockerios_core::{
    Id, Kind, Step,
    decide::identity::{Standing, give_back, standing, take, used},
};
use serde_json::{Value, json};

use crate::{build::*, cluster::Cluster};

fn pool_id() -> Id {
    Id::new(Kind::IdentityPool, "", "imacpro")
}

fn fresh() -> Cluster {
    let mut cluster = Cluster::default();
    let mut pool = serde_json::to_value(pool("Quarantine")).expect("JSON");
    pool["metadata"]["finalizers"] = json!([]);
    cluster.put(pool_id(), pool);
    cluster
}

fn identities(cluster: &Cluster) -> Vec<MachineIdentity> {
    cluster
        .of(Kind::MachineIdentity)
        .into_iter()
        .map(|one| typed(one.clone()))
        .collect()
}

/// What holds at every moment.
fn sound(cluster: &Cluster) {
    let all = identities(cluster);
    assert!(all.len() <= 8, "maxSize");
    let mlbs: BTreeSet<_> = all.iter().map(|one| one.spec.mlb.to_uppercase()).collect();
    assert_eq!(mlbs.len(), all.len(), "each value once");
    for identity in all.iter().filter(|one| standing(one) == Standing::Available) {
        let name = identity.metadata.name.as_deref().expect("a name");
        let job = |job: &&Value| job["metadata"]["labels"]["identity.dockerios.io/bootdisk-of"] == name;
        let done = cluster
            .of(Kind::Job)
            .into_iter()
            .filter(job)
            .all(|job| !job["status"].is_null());
        let disk =
            cluster
                .objects
                .contains_key(&Id::new(Kind::PersistentVolumeClaim, HOME, format!("bootdisk-{name}")));
        assert!(done && disk, "{name} is given out without a whole bootdisk");
    }
}

/// Runs `cluster` to rest with a crash before write 0, 1, 2, … until a run has no crash left in it.
fn crashed_everywhere(cluster: &Cluster, rest: impl Fn(&Cluster)) {
    for crash in 0.. {
        let mut cluster = cluster.clone();
        let mut budget = crash;
        let mut seed = 0;
        loop {
            seed += 1;
            let changed = cluster.round(seed, &mut budget);
            sound(&cluster);
            if budget == 0 || !changed {
                break;
            }
        }
        let whole = budget > 0;
        cluster.settle();
        sound(&cluster);
        rest(&cluster);
        if whole {
            assert!(crash > 0, "nothing was ever written");
            return;
        }
    }
}

#[test]
fn an_empty_pool_comes_to_rest_full_wherever_the_operator_dies() {
    crashed_everywhere(&fresh(), |cluster| {
        let all = identities(cluster);
        assert_eq!(all.iter().filter(|one| standing(one) == Standing::Available).count(), 5);
        assert_eq!(all.len(), 5, "a crash mints nothing twice");
    });
}

#[test]
fn a_deleted_pool_takes_its_free_identities_and_their_disks_with_it_and_leaves_a_machine_s() {
    let mut cluster = fresh();
    cluster.settle();
    let taken = identities(&cluster).remove(0);
    cluster.put(
        Id::new(Kind::MacOSMachine, "team-a", "mac-1"),
        serde_json::to_value(machine("A")).expect("JSON"),
    );
    assert!(cluster.apply(&pool_id(), &take(&taken, &machine("A"), now()).expect("free")));
    cluster.settle();
    cluster.delete(&pool_id());
    crashed_everywhere(&cluster, |cluster| {
        let left = identities(cluster);
        assert_eq!((left.len(), &left[0].metadata.name), (1, &taken.metadata.name));
        assert_eq!(cluster.of(Kind::PersistentVolumeClaim).len(), 1);
        assert!(cluster.of(Kind::IdentityPool).is_empty());
    });
}

fn vm(identity: &str, uid: &str) -> Value {
    json!({"metadata": {"name": "vm", "namespace": "team-a", "labels": {"identity.dockerios.io/name": identity,
        "machine.dockerios.io/machine": "mac-1", "machine.dockerios.io/uid": uid}}})
}

#[test]
fn a_machine_that_vanished_keeps_its_identity_until_its_virtual_machine_is_gone() {
    let mut cluster = fresh();
    cluster.settle();
    let one = identities(&cluster).remove(0);
    let id = Id::new(Kind::MachineIdentity, "", one.metadata.name.as_deref().expect("a name"));
    let machine_id = Id::new(Kind::MacOSMachine, "team-a", "mac-1");
    cluster.put(machine_id.clone(), serde_json::to_value(machine("A")).expect("JSON"));
    assert!(cluster.apply(&id, &take(&one, &machine("A"), now()).expect("free")));
    let one = typed(cluster.objects[&id].clone());
    assert!(cluster.apply(&id, &used(&one, now())));
    let vm_id = Id::new(Kind::VirtualMachine, "team-a", "vm");
    cluster.put(vm_id.clone(), vm(&id.name, "A"));
    // the finalizer was stripped: A is gone at once, and B has its name
    cluster.put(machine_id, serde_json::to_value(machine("B")).expect("JSON"));
    cluster.settle();
    assert_eq!(cluster.objects[&id]["status"]["claimRef"]["uid"], "A");
    assert_eq!(said(&cluster.objects[&id]["status"], "Ready").1, "StillRunning");
    let again = take(&typed(cluster.objects[&id].clone()), &machine("B"), now());
    assert!(again.is_err(), "B does not get what A may still run with");
    cluster.objects.remove(&vm_id);
    crashed_everywhere(&cluster, |cluster| {
        let status = &cluster.objects[&id]["status"];
        assert_eq!(
            (said(status, "Ready").1.as_str(), &status["claimRef"]),
            ("QuarantinedByPolicy", &Value::Null)
        );
    });
}

#[test]
fn a_virtual_machine_that_only_the_consistent_list_shows_keeps_the_identity() {
    let mut cluster = fresh();
    cluster.settle();
    let free = identities(&cluster).remove(0);
    let name = free.metadata.name.clone().expect("a name");
    let id = Id::new(Kind::MachineIdentity, "", &name);
    assert!(cluster.apply(&id, &take(&free, &machine("A"), now()).expect("free")));
    let held: MachineIdentity = typed(cluster.objects[&id].clone());
    let step: Step = give_back(
        &held,
        dockerios_api::identity::pool::IdentityReclaimPolicy::Recycle,
        now(),
    );
    cluster.put(Id::new(Kind::VirtualMachine, "team-a", "vm"), vm(&name, "A"));
    assert!(!cluster.apply(&id, &step), "the proof fails");
    assert_eq!(cluster.objects[&id]["status"]["claimRef"]["uid"], "A");
}
