//! One pass over one identity whose bootdisk is to be built.

use std::sync::Arc;

use dockerios_api::{PinnedImage, config::platform_config::Template, identity::pool::BootDiskTemplate};
use dockerios_core::{
    Kind, Plan, Seen, Step,
    decide::identity::{Facts, MOST_BUILDS},
};
use serde_json::{Value, json};

use crate::{
    build::*,
    identity::{pass, written},
};

/// Unique, finalizer set, nothing built.
fn unbuilt() -> Facts {
    let mut identity = available(1);
    identity["status"]["bootDisk"] = Value::Null;
    identity["status"]["conditions"][1] = condition("Ready", "False", "Building");
    let mut facts = facts(identity);
    facts.volume = Seen::Absent;
    facts
}

#[test]
fn a_bootdisk_is_a_block_volume_and_an_unprivileged_job_that_is_told_the_identity_as_a_file() {
    let plan = pass(&unbuilt());
    let created: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Create(object) => Some(object.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        created.iter().map(|object| object.kind).collect::<Vec<_>>(),
        [Kind::PersistentVolumeClaim, Kind::Job]
    );
    let (volume, job) = (&created[0].body, &created[1].body);
    assert_eq!(
        (&volume["spec"]["volumeMode"], &volume["metadata"]["namespace"]),
        (&json!("Block"), &json!(HOME))
    );
    assert_eq!(volume["spec"]["resources"]["requests"]["storage"], "384Mi");
    let template = &job["spec"]["template"];
    let identity: dockerios_identity::Fields = serde_json::from_str(
        template["metadata"]["annotations"]["identity.dockerios.io/values"]
            .as_str()
            .expect("the file"),
    )
    .expect("what the builder reads");
    assert!(dockerios_identity::Identity::try_from(identity).is_ok());
    let container = &template["spec"]["containers"][0];
    let args = container["args"].as_array().expect("arguments");
    assert!(
        args.contains(&json!(TEMPLATE)) && args.contains(&json!("/dev/termination-log")),
        "{args:?}"
    );
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(template["spec"]["automountServiceAccountToken"], false);
    for object in &created {
        let labels = &object.body["metadata"]["labels"];
        assert_eq!(
            labels["app.kubernetes.io/managed-by"], "dockerios-operator",
            "else it is not watched"
        );
        assert!(
            object.body["metadata"]["ownerReferences"].is_null(),
            "a foreground delete would take it at once"
        );
    }
}

fn job_of(plan: &Plan) -> Value {
    plan.steps
        .iter()
        .find_map(|step| match step {
            Step::Create(object) if object.kind == Kind::Job => Some(object.body.clone()),
            _ => None,
        })
        .expect("a Job")
}

/// The Job of that build, ended so, and its pod with those last words.
fn ended(how: &str, exit_code: i32, words: &str, at: &str) -> Facts {
    let mut facts = unbuilt();
    let name = facts.identity.metadata.name.clone().expect("a name");
    let mut job = job_of(&pass(&facts));
    job["metadata"]["uid"] = "job".into();
    job["status"] = json!({"conditions": [{"type": how, "status": "True", "lastTransitionTime": at,
        "message": "Job has reached the specified backoff limit"}]});
    let pod = json!({"metadata": {"name": "p", "labels":
            {"batch.kubernetes.io/job-name": job["metadata"]["name"].clone()}},
        "status": {"phase": if exit_code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [{
            "name": "builder", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": exit_code, "message": words}}}]}});
    facts.jobs = Seen::Present(vec![Arc::new(typed(job))]);
    facts.pods = Seen::Present(vec![Arc::new(typed(pod))]);
    facts.volume = Seen::Present(Arc::new(typed(volume(&name, "Bound"))));
    facts
}

#[test]
fn a_built_bootdisk_makes_it_available_with_the_sha256_that_the_builder_reported() {
    let sha256 = "cd".repeat(32);
    let facts = ended("Complete", 0, &format!("{sha256}\n"), "2026-03-02T08:59:00Z");
    let (status, _) = written(&pass(&facts));
    assert_eq!(
        (&status["phase"], &status["bootDisk"]["sha256"]),
        (&json!("Available"), &json!(sha256))
    );
    assert_eq!(status["bootDisk"]["templateSha256"], TEMPLATE);
}

#[test]
fn a_failed_build_says_the_builder_s_own_words_and_is_tried_again_later() {
    let words = "dockerios-bootdisk: template \"/template\": mount the template whole";
    let plan = pass(&ended("Failed", 1, words, "2026-03-02T08:55:00Z"));
    let (status, _) = written(&plan);
    assert_eq!(
        (said(&status, "Ready").1.as_str(), &status["phase"]),
        ("BuildFailed", &json!("Failed"))
    );
    assert!(message(&status, "Ready").contains(words), "{status}");
    assert_eq!(plan.wake, Some("2026-03-02T09:05:00Z".parse().expect("a time")));
    let plan = pass(&ended("Failed", 1, words, "2026-03-02T08:49:00Z"));
    assert!(
        plan.steps
            .iter()
            .any(|s| matches!(s, Step::Delete(t) if t.id.kind == Kind::Job)),
        "{:?}",
        plan.steps
    );
}

#[test]
fn a_builder_that_reports_no_sha256_has_built_nothing() {
    let (status, _) = written(&pass(&ended("Complete", 0, "done", "2026-03-02T08:59:00Z")));
    assert_eq!(said(&status, "Ready").1, "BuildFailed");
    assert!(status["bootDisk"].is_null());
}

#[test]
fn the_success_of_a_job_whose_volume_is_gone_counts_for_nothing() {
    let mut facts = ended("Complete", 0, &"cd".repeat(32), "2026-03-02T08:59:00Z");
    facts.volume = Seen::Absent;
    let plan = pass(&facts);
    assert!(
        !plan.steps.iter().any(|step| matches!(step, Step::Create(_))),
        "{:?}",
        plan.steps
    );
    assert!(
        plan.steps
            .iter()
            .any(|s| matches!(s, Step::Delete(t) if t.id.kind == Kind::Job)),
        "{:?}",
        plan.steps
    );
}

#[test]
fn a_new_template_takes_the_old_disk_out_of_the_status_before_anything_is_written_over() {
    let mut platform = platform();
    platform
        .spec
        .boot_disk_builder
        .as_mut()
        .expect("a builder")
        .template
        .sha256 = "1".repeat(64);
    let mut changed = facts(available(1));
    changed.platform = Seen::Present(Arc::new(platform.clone()));
    let plan = pass(&changed);
    let (status, _) = written(&plan);
    assert!(
        status["bootDisk"].is_null() && plan.steps.len() == 1,
        "{:?}",
        plan.steps
    );
    assert_eq!(said(&status, "Ready").1, "Building");
    // never while a machine has it
    let mut held = facts(allocated(1, "A", true));
    held.machine = Seen::Present(Arc::new(machine("A")));
    held.platform = Seen::Present(Arc::new(platform));
    assert!(
        pass(&held)
            .steps
            .iter()
            .all(|step| matches!(step, Step::ReplaceStatus(..)))
    );
}

/// With a pool for cards, and that sum of the template for them, if there is one.
fn for_cards(mut facts: Facts, sha256: Option<&str>) -> Facts {
    let mut pool = pool("Recycle");
    pool.spec.boot_disk.template = BootDiskTemplate::GPU;
    let mut platform = platform();
    let builder = platform.spec.boot_disk_builder.as_mut().expect("a builder");
    builder.gpu_template = sha256.map(|sha256| Template {
        image: PinnedImage(format!("r/gpu@sha256:{}", "7".repeat(64))),
        sha256: sha256.to_owned(),
    });
    (facts.pool, facts.platform) = (Seen::Present(Arc::new(pool)), Seen::Present(Arc::new(platform)));
    facts
}

#[test]
fn identities_of_a_pool_for_cards_are_built_from_the_template_for_cards_and_rebuilt_when_that_one_changes() {
    let of_gpu = "3".repeat(64);
    let job = job_of(&pass(&for_cards(unbuilt(), Some(&of_gpu))));
    let pod = &job["spec"]["template"]["spec"];
    let args = pod["containers"][0]["args"].as_array().expect("arguments");
    assert!(
        args.contains(&json!(of_gpu)) && !args.contains(&json!(TEMPLATE)),
        "{args:?}"
    );
    assert_eq!(
        pod["volumes"][0]["image"]["reference"],
        format!("r/gpu@sha256:{}", "7".repeat(64))
    );
    assert_ne!(job["metadata"]["name"], job_of(&pass(&unbuilt()))["metadata"]["name"]);

    let built_from = |sha256: &str| {
        let mut identity = available(1);
        identity["status"]["bootDisk"]["templateSha256"] = sha256.into();
        facts(identity)
    };
    let (status, _) = written(&pass(&for_cards(built_from(TEMPLATE), Some(&of_gpu))));
    assert!(
        status["bootDisk"].is_null(),
        "one of the other template is not given out: {status}"
    );
    // its own is that of the platform: it stays, whatever the other one is
    let plan = pass(&for_cards(built_from(&of_gpu), Some(&of_gpu)));
    let (status, _) = written(&plan);
    assert_eq!(status["bootDisk"]["templateSha256"], of_gpu);
    assert!(
        !plan.steps.iter().any(|step| matches!(step, Step::Create(_))),
        "{:?}",
        plan.steps
    );
}

#[test]
fn without_a_template_for_cards_no_bootdisk_is_built_or_given_out_and_the_field_is_named() {
    for facts in [unbuilt(), facts(available(1))] {
        let plan = pass(&for_cards(facts, None));
        assert!(
            !plan.steps.iter().any(|step| matches!(step, Step::Create(_))),
            "{:?}",
            plan.steps
        );
        let (status, _) = written(&plan);
        assert_eq!(
            (said(&status, "Ready").1.as_str(), &status["bootDisk"]),
            ("TemplateMissing", &Value::Null)
        );
        assert!(
            message(&status, "Ready").contains("spec.bootDiskBuilder.gpuTemplate"),
            "{status}"
        );
    }
}

#[test]
fn without_a_builder_a_bootdisk_stays_as_long_as_its_pool_names_the_template_that_it_is_of() {
    let builderless = |mut facts: Facts| {
        let mut bare = facts.platform.present().expect("a platform").as_ref().clone();
        bare.spec.boot_disk_builder = None;
        facts.platform = Seen::Present(Arc::new(bare));
        facts
    };
    let built_for = |template: &str| {
        let mut identity = available(1);
        identity["status"]["bootDisk"]["template"] = template.into();
        facts(identity)
    };
    for (of, cards, reason) in [
        ("Default", false, "Available"),
        ("GPU", true, "Available"),
        // its pool was switched: what is built is of the other template, and there is nothing to build the right one with
        ("Default", true, "BuilderMissing"),
        ("GPU", false, "BuilderMissing"),
    ] {
        let facts = built_for(of);
        let facts = builderless(if cards { for_cards(facts, None) } else { facts });
        let (status, _) = written(&pass(&facts));
        assert_eq!(said(&status, "Ready").1, reason, "{of}, cards: {cards}");
        let told = message(&status, "BootDiskBuilt");
        assert!(told.contains("names no bootDiskBuilder"), "{told}");
        assert_eq!(status["bootDisk"].is_object(), reason == "Available", "{status}");
    }
}

#[test]
fn a_bootdisk_says_of_which_template_it_is() {
    let cards = for_cards(ended("Complete", 0, &"cd".repeat(32), "2026-03-02T08:59:00Z"), None);
    assert!(
        written(&pass(&cards)).0["bootDisk"].is_null(),
        "there is no such template"
    );
    let (status, _) = written(&pass(&ended("Complete", 0, &"cd".repeat(32), "2026-03-02T08:59:00Z")));
    assert_eq!(status["bootDisk"]["template"], "Default");
    // one that was built before this was kept, of the template that both fields of the platform name
    let (status, _) = written(&pass(&for_cards(facts(available(1)), Some(TEMPLATE))));
    assert_eq!(status["bootDisk"]["template"], "GPU");
}

#[test]
fn a_bootdisk_whose_volume_is_gone_is_not_given_out() {
    for lost in [Seen::Absent, Seen::Present(Arc::new(typed(volume("x", "Lost"))))] {
        let mut facts = facts(available(1));
        facts.volume = lost;
        let (status, _) = written(&pass(&facts));
        assert_eq!(
            (said(&status, "Ready").1.as_str(), &status["bootDisk"]),
            ("BootDiskLost", &Value::Null)
        );
    }
}

#[test]
fn not_more_bootdisks_are_built_at_once_than_the_bound() {
    let mut facts = unbuilt();
    facts.builds = Seen::Present(MOST_BUILDS);
    let plan = pass(&facts);
    assert!(
        plan.wake.is_some() && !plan.steps.iter().any(|s| matches!(s, Step::Create(_))),
        "{:?}",
        plan.steps
    );
}
