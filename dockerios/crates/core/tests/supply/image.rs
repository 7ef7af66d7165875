//! One pass over one image.

use std::sync::Arc;

use dockerios_core::{
    Id, Kind, Plan, Seen, Step,
    decide::image::{Facts, Snapshot, decide},
    plan::{Refusal, RefusalCause},
};
use serde_json::{Value, json};

use crate::build::*;

const SHA: &str = "9f2c5d0a7be1f4d3a1c0e8b6f7d2c4a5b3e1908f6a7d5c3b2e1f0a9b8c7d6e5f";

fn image(source: Value) -> Value {
    json!({"apiVersion": "image.dockerios.io/v1alpha1", "kind": "MacOSImage",
        "metadata": {"name": "sequoia", "uid": "img", "resourceVersion": "4", "generation": 1,
            "finalizers": ["image.dockerios.io/in-use"]},
        "spec": {"osVersion": "15.6", "size": "200Gi", "storageClassName": "rbd", "source": source}})
}

fn http() -> Value {
    json!({"http": {"url": "https://images.example.com/sequoia.raw", "sha256": SHA}})
}

fn foreign() -> Value {
    json!({"pvc": {"namespace": "golden", "name": "sequoia"}})
}

fn facts(image: Value) -> Facts {
    Facts {
        image: Arc::new(typed(image)),
        data_volume: Seen::Absent,
        volume: Seen::Absent,
        snapshot: Seen::Absent,
        profile: Seen::Absent,
        storage_class: Seen::Present(Arc::new(typed(
            json!({"metadata": {"name": "rbd"}, "provisioner": "p"}),
        ))),
        source: Seen::Present(()),
        clone_right: Seen::Present(true),
        classes: Seen::Present(Vec::new()),
        clones: Seen::Present(Vec::new()),
        platform_namespace: HOME.into(),
        refusal: None,
    }
}

fn pass(facts: &Facts) -> (Plan, Value) {
    let plan = judged(decide(facts, now()));
    let status = plan.status.clone().unwrap_or_default();
    (plan, status)
}

fn created(plan: &Plan, kind: Kind) -> Option<Value> {
    plan.steps.iter().find_map(|step| match step {
        Step::Create(object) if object.kind == kind => Some(object.body.clone()),
        _ => None,
    })
}

fn deleted(plan: &Plan) -> Vec<Kind> {
    let all = plan.steps.iter().filter_map(|step| match step {
        Step::Delete(target) => Some(target.id.kind),
        _ => None,
    });
    all.collect()
}

/// The image's DataVolume as it was made, in that state.
fn imported(facts: &Facts, status: Value) -> Seen<Arc<dockerios_kubevirt::DataVolume>> {
    let mut body = created(
        &pass(&Facts {
            data_volume: Seen::Absent,
            volume: Seen::Absent,
            ..facts.clone()
        })
        .0,
        Kind::DataVolume,
    )
    .expect("a DataVolume");
    body["status"] = status;
    body["metadata"]["uid"] = "dv".into();
    body["metadata"]["creationTimestamp"] = "2026-03-02T08:50:00Z".into();
    Seen::Present(Arc::new(typed(body)))
}

fn golden(annotations: Value) -> Seen<Arc<k8s_openapi::api::core::v1::PersistentVolumeClaim>> {
    Seen::Present(Arc::new(typed(
        json!({"metadata": {"name": "img-sequoia", "namespace": HOME, "uid": "pvc",
        "labels": {"image.dockerios.io/name": "sequoia"}, "annotations": annotations}, "status": {"phase": "Bound"}}),
    )))
}

#[test]
fn the_finalizer_comes_before_the_import() {
    let mut image = image(http());
    image["metadata"]["finalizers"] = json!([]);
    let (plan, _) = pass(&facts(image));
    assert!(
        matches!(plan.steps.as_slice(), [Step::AddFinalizer(..)]),
        "{:?}",
        plan.steps
    );
}

#[test]
fn it_is_imported_once_by_a_data_volume_that_it_owns() {
    let (plan, status) = pass(&facts(image(http())));
    let made = created(&plan, Kind::DataVolume).expect("a DataVolume");
    assert_eq!(
        (&made["metadata"]["name"], &made["metadata"]["namespace"]),
        (&json!("img-sequoia"), &json!(HOME))
    );
    assert_eq!(made["spec"]["source"]["http"]["checksum"], format!("sha256:{SHA}"));
    assert_eq!(made["spec"]["storage"]["resources"]["requests"]["storage"], "200Gi");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "img");
    let annotations = &made["metadata"]["annotations"];
    assert_eq!(annotations["cdi.kubevirt.io/storage.deleteAfterCompletion"], "false");
    assert_eq!(annotations["cdi.kubevirt.io/storage.bind.immediate.requested"], "true");
    assert_eq!(
        (&status["phase"], said(&status, "Ready").1.as_str()),
        (&json!("Importing"), "Importing")
    );
}

#[test]
fn progress_is_shown_in_whole_percent_and_what_is_no_number_is_not() {
    for (told, shown) in [
        ("42.13%", json!("42%")),
        ("100%", json!("100%")),
        ("N/A", Value::Null),
        ("9999%", Value::Null),
    ] {
        let mut facts = facts(image(http()));
        facts.data_volume = imported(&facts, json!({"phase": "ImportInProgress", "progress": told}));
        assert_eq!(pass(&facts).1["progress"], shown, "{told}");
    }
}

#[test]
fn an_import_that_ended_is_published_as_what_the_storage_clones_best() {
    let mut facts = facts(image(http()));
    facts.data_volume = imported(&facts, json!({"phase": "Succeeded", "progress": "100.0%"}));
    facts.volume = golden(json!({}));
    let (_, status) = pass(&facts);
    assert_eq!(
        (&status["phase"], &status["published"]["kind"]),
        (&json!("Ready"), &json!("PersistentVolumeClaim"))
    );

    facts.profile = Seen::Present(Arc::new(typed(json!({"metadata": {"name": "rbd"}, "spec": {},
        "status": {"cloneStrategy": "snapshot", "snapshotClass": "rbd-snap"}}))));
    let (plan, status) = pass(&facts);
    let made = created(&plan, Kind::VolumeSnapshot).expect("a snapshot");
    assert_eq!(made["spec"]["volumeSnapshotClassName"], "rbd-snap");
    assert!(status["published"].is_null(), "not before it can be used");

    let metadata = typed(
        json!({"name": "img-sequoia", "labels": {"image.dockerios.io/name": "sequoia"},
        "creationTimestamp": "2026-03-02T08:59:00Z"}),
    );
    facts.snapshot = Seen::Present(Snapshot {
        metadata,
        ready: true,
        error: None,
    });
    assert_eq!(pass(&facts).1["published"]["kind"], "VolumeSnapshot");
}

/// Imported, and to be published as a snapshot.
fn to_be_snapshotted() -> Facts {
    let mut facts = facts(image(http()));
    facts.data_volume = imported(&facts, json!({"phase": "Succeeded"}));
    facts.volume = golden(json!({}));
    facts.profile = Seen::Present(Arc::new(typed(json!({"metadata": {"name": "rbd"}, "spec": {},
        "status": {"cloneStrategy": "snapshot"}}))));
    facts
}

#[test]
fn a_snapshot_that_is_refused_is_said_in_the_words_of_who_refused_and_tried_again() {
    let mut facts = to_be_snapshotted();
    facts.refusal = Some(Refusal {
        of: Id::new(Kind::VolumeSnapshot, HOME, "img-sequoia"),
        cause: RefusalCause::Forbidden,
        message: "exceeded quota: snapshots (test text)".to_owned(),
    });
    let (plan, status) = pass(&facts);
    assert_eq!(said(&status, "Ready").1, "ImportFailing");
    assert!(
        message(&status, "Ready").contains("exceeded quota: snapshots (test text)"),
        "{status}"
    );
    assert!(created(&plan, Kind::VolumeSnapshot).is_some() && plan.wake.is_some());
    assert!(status["published"].is_null());
}

#[test]
fn a_snapshot_that_nobody_takes_is_told_of_after_half_an_hour() {
    let mut facts = to_be_snapshotted();
    for (made, reason) in [
        ("2026-03-02T08:30:01Z", "Importing"),
        ("2026-03-02T08:29:59Z", "CloneStuck"),
    ] {
        facts.snapshot = Seen::Present(Snapshot {
            metadata: typed(
                json!({"name": "img-sequoia", "labels": {"image.dockerios.io/name": "sequoia"},
                "creationTimestamp": made}),
            ),
            ready: false,
            error: None,
        });
        let (plan, status) = pass(&facts);
        assert_eq!(said(&status, "Ready").1, reason);
        assert_eq!(
            plan.wake.is_some(),
            reason == "Importing",
            "it is looked at when its time is over"
        );
        assert!(plan.steps.is_empty() && status["published"].is_null());
    }
    let told = message(&pass(&facts).1, "Ready");
    assert!(
        told.contains("VolumeSnapshot dockerios-system/img-sequoia") && told.contains("delete it"),
        "{told}"
    );
}

/// The words that grant the right to clone from `golden`.
fn prints_the_grant(told: &str) {
    for part in [
        "kind: Role\nmetadata: {name: dockerios-clone, namespace: golden}",
        "resources: [datavolumes/source]",
        "kind: RoleBinding\n",
        "name: dockerios-operator, namespace: dockerios-system}",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_right_to_clone_is_looked_at_before_a_data_volume_is_made() {
    let snapshot = json!({"snapshot": {"namespace": "golden", "name": "sequoia"}});
    for source in [foreign(), snapshot] {
        let mut facts = facts(image(source));
        facts.source = Seen::Unknown("not watched".into());
        facts.clone_right = Seen::Present(false);
        let (plan, status) = pass(&facts);
        assert!(created(&plan, Kind::DataVolume).is_none(), "nothing is tried in vain");
        assert_eq!(
            (&status["phase"], said(&status, "Ready").1.as_str()),
            (&json!("Pending"), "CloneNotPermitted")
        );
        prints_the_grant(&message(&status, "Ready"));
        facts.clone_right = Seen::Unknown("the API server timed out".into());
        let (plan, status) = pass(&facts);
        assert!(created(&plan, Kind::DataVolume).is_none());
        assert_eq!(
            said(&status, "Ready"),
            ("Unknown".into(), "Unreadable".into()),
            "not known is not denied"
        );
        facts.clone_right = Seen::Present(true);
        assert!(created(&pass(&facts).0, Kind::DataVolume).is_some());
    }
    // within the platform namespace nobody needs a right
    let mut own = facts(image(json!({"pvc": {"namespace": HOME, "name": "sequoia"}})));
    own.clone_right = Seen::Present(false);
    assert!(created(&pass(&own).0, Kind::DataVolume).is_some());
}

#[test]
fn a_refused_clone_prints_the_right_that_is_missing_and_is_tried_again_without_hurry() {
    let mut facts = facts(image(foreign()));
    let refuse = |message: &str| {
        Some(Refusal {
            of: Id::new(Kind::DataVolume, HOME, "img-sequoia"),
            cause: RefusalCause::Forbidden,
            message: message.to_owned(),
        })
    };
    facts.refusal = refuse("User has insufficient permissions in clone source namespace golden (test text)");
    let (plan, status) = pass(&facts);
    assert_eq!(
        (&status["phase"], said(&status, "Ready").1.as_str()),
        (&json!("Pending"), "CloneNotPermitted")
    );
    let told = message(&status, "Ready");
    prints_the_grant(&told);
    assert!(told.contains("test text"), "{told}");
    let wait = plan.wake.expect("it is tried again").duration_since(now()).as_secs();
    assert!(
        (80..=240).contains(&wait),
        "at most 15 tries in 20 minutes, and soon after the grant: {wait}"
    );
    facts.refusal = refuse("exceeded quota: disks");
    let (_, status) = pass(&facts);
    assert_eq!(said(&status, "Ready").1, "ImportFailed", "a quota is no missing right");
}

#[test]
fn an_import_in_trouble_has_a_reason_of_its_own_and_cdis_words_leave_room_for_the_way_out() {
    let long = "x".repeat(5000);
    for (phase, words, reason) in [
        (
            "ImportInProgress",
            "checksum mismatch: expected a, got b",
            "ImportFailing",
        ),
        ("ImportInProgress", long.as_str(), "ImportFailing"),
        ("Failed", long.as_str(), "ImportFailed"),
    ] {
        let mut facts = facts(image(http()));
        let running = json!({"type": "Running", "status": "False", "reason": "Error", "message": words});
        facts.data_volume = imported(&facts, json!({"phase": phase, "conditions": [running]}));
        let (plan, status) = pass(&facts);
        assert_eq!(said(&status, "Ready").1, reason);
        let told = message(&status, "Ready");
        assert!(told.contains(&words[..20]), "{told}");
        assert!(reason != "ImportFailed" || told.contains("mend spec.source"), "{told}");
        assert!(
            plan.news.iter().any(|news| news.warning && news.reason == reason),
            "{:?}",
            plan.news
        );
    }
}

#[test]
fn a_clone_that_neither_ends_nor_fails_is_told_of_and_left_alone() {
    let mut facts = facts(image(foreign()));
    facts.data_volume = imported(&facts, json!({"phase": "CloneInProgress"}));
    let (plan, status) = pass(&facts);
    assert_eq!(said(&status, "Ready").1, "Importing", "ten minutes are nothing");
    assert!(plan.wake.is_some(), "it is looked at when its time is over");
    let made = "2026-03-02T08:29:59Z";
    if let Seen::Present(volume) = &mut facts.data_volume {
        Arc::make_mut(volume).metadata.creation_timestamp = typed(json!(made));
    }
    let (plan, status) = pass(&facts);
    assert_eq!(
        (&status["phase"], said(&status, "Ready").1.as_str()),
        (&json!("Importing"), "CloneStuck")
    );
    assert!(plan.news.iter().any(|news| news.warning && news.reason == "CloneStuck"));
    assert!(
        plan.steps.is_empty(),
        "a slow copy is not thrown away: {:?}",
        plan.steps
    );
}

#[test]
fn a_clone_that_fails_for_minutes_is_begun_anew_since_cdi_never_gives_up_on_one() {
    let mut facts = facts(image(foreign()));
    let broken = json!({"phase": "CloneScheduled", "conditions": [
        {"type": "Running", "status": "False", "reason": "Error", "message": "token is expired (test text)"}]});
    facts.data_volume = imported(&facts, broken);
    let (plan, status) = pass(&facts);
    assert_eq!(deleted(&plan), [Kind::DataVolume]);
    assert!(message(&status, "Ready").contains("token is expired"));
}

#[test]
fn a_data_volume_that_was_garbage_collected_leaves_a_ready_image() {
    let mut unpublished = facts(image(http()));
    unpublished.volume = golden(json!({"cdi.kubevirt.io/garbageCollected": "true"}));
    assert_eq!(pass(&unpublished).1["phase"], "Ready");

    let mut published = image(http());
    published["status"] = pass(&unpublished).1;
    let mut published = facts(published);
    published.volume = golden(json!({}));
    let (plan, status) = pass(&published);
    assert!(plan.steps.is_empty(), "nothing is imported again: {:?}", plan.steps);
    assert_eq!(said(&status, "Ready"), ("True".into(), "Published".into()));
}

#[test]
fn a_volume_of_which_nobody_knows_whether_it_is_whole_is_not_published() {
    let mut facts = facts(image(http()));
    facts.volume = golden(json!({}));
    let (plan, status) = pass(&facts);
    assert_eq!(said(&status, "Ready").1, "ImportFailed");
    assert!(status["published"].is_null() && plan.steps.is_empty());
}

#[test]
fn what_was_published_and_is_gone_is_lost_and_not_imported_again() {
    let mut lost = image(http());
    lost["status"] = json!({"published": {"kind": "PersistentVolumeClaim", "namespace": HOME, "name": "img-sequoia"}});
    let (plan, status) = pass(&facts(lost.clone()));
    assert_eq!(
        (&status["phase"], said(&status, "Ready").1.as_str()),
        (&json!("Failed"), "VolumeLost")
    );
    assert!(plan.steps.is_empty() && status["published"].is_object());
    let mut blind = facts(lost);
    blind.volume = Seen::Unknown("the list failed".into());
    assert_eq!(said(&pass(&blind).1, "Ready").1, "Unreadable");
}

#[test]
fn what_is_missing_is_named() {
    let mut no_class = facts(image(http()));
    no_class.storage_class = Seen::Absent;
    let mut no_source = facts(image(foreign()));
    no_source.source = Seen::Absent;
    let mut taken = facts(image(http()));
    taken.volume = Seen::Present(Arc::new(typed(json!({"metadata": {"name": "img-sequoia"}}))));
    for (facts, reason) in [
        (no_class, "StorageClassNotFound"),
        (no_source, "SourceNotFound"),
        (taken, "NameTaken"),
    ] {
        let (plan, status) = pass(&facts);
        assert_eq!(
            (said(&status, "Ready").1.as_str(), &status["phase"]),
            (reason, &json!("Pending"))
        );
        assert!(created(&plan, Kind::DataVolume).is_none(), "{reason}");
    }
}

#[test]
fn a_mended_source_is_imported_anew() {
    let mut facts = facts(image(http()));
    facts.data_volume = imported(&facts, json!({"phase": "Failed"}));
    assert_eq!(said(&pass(&facts).1, "Ready").1, "ImportFailed");
    let mut mended = http();
    mended["http"]["url"] = "https://images.example.com/better.raw".into();
    facts.image = Arc::new(typed(image(mended)));
    assert_eq!(deleted(&pass(&facts).0), [Kind::DataVolume]);
}

#[test]
fn it_is_kept_while_a_class_names_it_or_a_clone_runs_or_nobody_can_tell() {
    let mut going = image(http());
    going["metadata"]["deletionTimestamp"] = "2026-03-02T08:00:00Z".into();
    let clone = |phase: &str| {
        let clone = json!({"metadata": {"name": "c", "namespace": "team-a"}, "spec": {}, "status": {"phase": phase}});
        Seen::Present(vec![Arc::new(typed(clone))])
    };
    let base = facts(going);
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = base.clone();
        change(&mut facts);
        pass(&facts)
    };
    for (facts, reason) in [
        (
            with(&|f| f.classes = Seen::Present(vec!["build-8".into()])),
            "NamedByClass",
        ),
        (with(&|f| f.clones = clone("CSICloneInProgress")), "ClonesInFlight"),
        (
            with(&|f| f.classes = Seen::Unknown("the list failed".into())),
            "Unreadable",
        ),
    ] {
        let (plan, status) = facts;
        assert!(plan.steps.is_empty(), "{reason}: {:?}", plan.steps);
        assert_eq!(said(&status, "InUse").1, reason);
    }
    let (plan, _) = with(&|f| f.volume = golden(json!({})));
    assert_eq!(deleted(&plan), [Kind::PersistentVolumeClaim], "its volume first");
    let (plan, _) = with(&|f| f.clones = clone("Succeeded"));
    assert!(
        matches!(plan.steps.as_slice(), [Step::RemoveFinalizer(..)]),
        "{:?}",
        plan.steps
    );
}

#[test]
fn a_status_stays_small_whatever_cdi_says() {
    let mut facts = facts(image(http()));
    let long = "ü".repeat(20_000);
    facts.data_volume = imported(
        &facts,
        json!({"phase": "ImportInProgress", "conditions": [
        {"type": "Running", "status": "False", "reason": "Error", "message": long}]}),
    );
    facts.classes = Seen::Present((0..20_000).map(|n| format!("class-{n}")).collect());
    let status = pass(&facts).1.to_string();
    assert!(status.len() < 4096, "{}", status.len());
}
