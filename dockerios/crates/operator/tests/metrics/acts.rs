//! What is counted, and that it is counted once.

use dockerios_core::{Id, Kind, Plan, Step, Target};
use dockerios_operator::{
    metrics::measure::{Measure, Start, Strategy, of_plan},
    source::Source,
    world::World,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::world::{SIZE, UID, class, condition, disk, empty, list, machine};

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().expect("a time")
}

fn world_with(before: Value, disks: Vec<Value>) -> World {
    let mut world = empty();
    list(&mut world, Source::Classes, vec![class("mac")]);
    list(&mut world, Source::Machines, vec![machine("m", "mac", before)]);
    list(&mut world, Source::Volumes, disks);
    world
}

fn plan_of(status: Value) -> Plan {
    Plan {
        status: Some(status),
        ..Plan::default()
    }
}

fn counted(world: &World, after: Value) -> Vec<Measure> {
    of_plan(world, &Id::new(Kind::MacOSMachine, "team", "m"), &plan_of(after), now())
}

fn left(phase: &str, seconds: f64) -> Measure {
    Measure::PhaseLeft {
        class: "mac".into(),
        phase: phase.into(),
        seconds,
    }
}

#[test]
fn a_phase_is_observed_when_it_is_left_with_the_time_that_the_status_kept() {
    let starting = json!({"phase": "Starting", "phaseSince": "2026-01-01T00:08:00Z"});
    let world = world_with(starting.clone(), vec![]);
    assert_eq!(counted(&world, json!({"phase": "Ready"})), [left("Starting", 120.0)]);
    assert_eq!(counted(&world, starting), [], "it is in it still");
    let unknown = world_with(json!({"phase": "Starting"}), vec![]);
    assert_eq!(
        counted(&unknown, json!({"phase": "Ready"})),
        [],
        "since when is not known"
    );
    let fresh = world_with(Value::Null, vec![]);
    assert_eq!(
        counted(&fresh, json!({"phase": "Pending"})),
        [],
        "it was in none before"
    );
    let ahead = world_with(
        json!({"phase": "Pending", "phaseSince": "2026-01-01T00:11:00Z"}),
        vec![],
    );
    assert_eq!(
        counted(&ahead, json!({"phase": "Cloning"})),
        [left("Pending", 0.0)],
        "a clock that is ahead gives no negative time"
    );
}

#[test]
fn the_last_phase_is_left_when_the_machine_goes() {
    let world = world_with(
        json!({"phase": "Stopping", "phaseSince": "2026-01-01T00:09:30Z"}),
        vec![],
    );
    let id = Id::new(Kind::MacOSMachine, "team", "m");
    let target = Target {
        id: id.clone(),
        uid: UID.into(),
        resource_version: Some("1".into()),
    };
    let last = Plan {
        steps: vec![Step::RemoveFinalizer(target, dockerios_api::names::TEARDOWN, None)],
        ..Plan::default()
    };
    assert_eq!(of_plan(&world, &id, &last, now()), [left("Stopping", 30.0)]);
    assert_eq!(of_plan(&world, &id, &Plan::default(), now()), []);
}

#[test]
fn a_clone_is_counted_once_by_what_cdi_did_when_the_disk_is_there_for_the_first_time() {
    let after = || json!({"phase": "Starting", "conditions": [condition("DiskCloned", "True", "Cloned")]});
    let before = |status: &str, reason: &str| json!({"phase": "Starting", "conditions": [condition("DiskCloned", status, reason)]});
    for (told, strategy) in [
        (Some("copy"), Strategy::Copy),
        (Some("csi-clone"), Strategy::Csi),
        (Some("snapshot"), Strategy::Snapshot),
        (Some("a-word-of-tomorrow"), Strategy::Unknown),
        (None, Strategy::Unknown),
    ] {
        let world = world_with(before("False", "Cloning"), vec![disk(told)]);
        let clone = Measure::Cloned {
            storage_class: "fast".into(),
            strategy,
            bytes: SIZE,
        };
        assert_eq!(counted(&world, after()), [clone], "{told:?}");
    }
    for (status, reason) in [("True", "Cloned"), ("False", "VolumeLost")] {
        let world = world_with(before(status, reason), vec![disk(Some("copy"))]);
        assert_eq!(counted(&world, after()), [], "it was there before: {status} {reason}");
    }
    let mut foreign = disk(Some("copy"));
    foreign["metadata"]["namespace"] = json!("elsewhere");
    let world = world_with(before("False", "Cloning"), vec![foreign]);
    assert_eq!(counted(&world, after()), [], "a label elsewhere is nobody's proof");
    let mut tenants = disk(Some("copy"));
    tenants["metadata"]["name"] = json!("mine");
    tenants["spec"]["storageClassName"] = json!("any-word-1");
    let world = world_with(before("False", "Cloning"), vec![tenants]);
    assert_eq!(
        counted(&world, after()),
        [],
        "a label on a tenant's own volume makes no series"
    );
}

#[test]
fn a_failing_hook_is_counted_once_per_failure() {
    let status =
        |reason: &str| json!({"phase": "Starting", "conditions": [condition("InstanceRunning", "False", reason)]});
    let failed = Measure::HookFailed { class: "mac".into() };
    let world = world_with(status("Starting"), vec![]);
    assert_eq!(counted(&world, status("HookFailed")), [failed]);
    assert_eq!(counted(&world, status("Unschedulable")), []);
    let world = world_with(status("HookFailed"), vec![]);
    assert_eq!(counted(&world, status("HookFailed")), []);
}

#[test]
fn a_claims_wait_is_from_its_creation_to_its_machine_and_says_how_it_came_by_it() {
    let mut world = empty();
    list(&mut world, Source::Classes, vec![class("mac")]);
    let pool = json!({"kind": "MacOSMachinePool", "metadata": {"name": "ci", "namespace": "team"},
        "spec": {"machineClassName": "mac"}});
    list(&mut world, Source::MachinePools, vec![pool]);
    let id = Id::new(Kind::MacOSMachineClaim, "team", "c");
    let claim = |spec: Value, status: Value| {
        json!({"kind": "MacOSMachineClaim", "metadata": {"name": "c", "namespace": "team", "uid": UID,
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status})
    };
    let bound = |machine: &str| json!({"phase": "Bound", "boundAt": "2026-01-01T00:01:30Z", "machineRef": {"name": machine, "uid": "u"}});
    let waited = |pool: &str, class: &str, start: Start| Measure::ClaimBound {
        namespace: "team".into(),
        pool: pool.into(),
        class: class.into(),
        start,
        seconds: 90.0,
    };
    for (spec, machine, measure) in [
        (json!({"poolName": "ci"}), "ci-x", waited("ci", "mac", Start::Warm)),
        (
            json!({"poolName": "ci"}),
            "mac-2f0c9a51",
            waited("ci", "mac", Start::Cold),
        ),
        (
            json!({"machineClassName": "mac"}),
            "mac-2f0c9a51",
            waited("", "mac", Start::Cold),
        ),
        (
            json!({"machineClassName": "invented"}),
            "ci-x",
            waited("", "", Start::Warm),
        ),
    ] {
        list(&mut world, Source::Claims, vec![claim(spec.clone(), Value::Null)]);
        assert_eq!(
            of_plan(&world, &id, &plan_of(bound(machine)), now()),
            [measure],
            "{spec}"
        );
    }
    list(
        &mut world,
        Source::Claims,
        vec![claim(json!({"poolName": "ci"}), bound("ci-x"))],
    );
    assert_eq!(
        of_plan(&world, &id, &plan_of(bound("ci-x")), now()),
        [],
        "it was bound before"
    );
}

#[test]
fn an_image_that_is_cloned_from_a_volume_is_counted_and_an_import_is_not() {
    let image = json!({"kind": "MacOSImage", "metadata": {"name": "golden"}, "spec": {"osVersion": "15.6", "size": "20Gi",
        "storageClassName": "fast", "source": {"registry": {"url": "docker://r/g"}}}});
    let mut volume = disk(Some("copy"));
    volume["metadata"]["labels"] = json!({"image.dockerios.io/name": "golden"});
    let tenants = volume.clone();
    volume["metadata"]["namespace"] = json!("dockerios-system");
    let id = Id::new(Kind::MacOSImage, "", "golden");
    let published = plan_of(json!({"phase": "Ready", "published": {"pvc": "v"}}));
    let mut world = empty();
    list(&mut world, Source::Images, vec![image.clone()]);
    list(&mut world, Source::Volumes, vec![volume.clone(), tenants]);
    let clone = Measure::Cloned {
        storage_class: "fast".into(),
        strategy: Strategy::Copy,
        bytes: SIZE,
    };
    assert_eq!(of_plan(&world, &id, &published, now()), [clone]);
    let mut there = image;
    there["status"] = json!({"phase": "Ready", "published": {"kind": "PersistentVolumeClaim",
        "namespace": "dockerios-system", "name": "v"}});
    list(&mut world, Source::Images, vec![there.clone()]);
    assert_eq!(of_plan(&world, &id, &published, now()), [], "it was published before");
    there["status"] = Value::Null;
    list(&mut world, Source::Images, vec![there]);
    volume["metadata"]["annotations"] = json!({});
    list(&mut world, Source::Volumes, vec![volume]);
    assert_eq!(of_plan(&world, &id, &published, now()), []);
}
