//! One pass over the platform.

use std::sync::Arc;

use dockerios_core::{
    Kind, Plan, Seen, Step,
    decide::platform::{Facts, decide, image_of},
};
use dockerios_kubevirt::KubeVirt;
use serde_json::{Value, json};

use crate::build::*;

const DIGEST: &str = "sha256:dd56de4137951d9c92681b03416ec15f886b4482a27e3a517d32f085244cbe5d";

fn kubevirt(image: &str) -> Value {
    let record = json!({"registry": "quay.io/kubevirt", "imagePrefix": "", "kubeVirtVersion": "v1.9.0",
        "virtLauncherImage": image});
    json!({"metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"developerConfiguration": {"featureGates": ["Sidecar", "CPUManager"]}}},
        "status": {"observedDeploymentConfig": record.to_string()}})
}

fn facts() -> Facts {
    let mut platform = platform();
    let launcher = json!({"digest": DIGEST, "nvme": "Native", "smc": true, "nicModels": ["e1000"]});
    platform.status = Some(typed(json!({"launchers": [launcher], "conditions": []})));
    Facts {
        platform: Arc::new(platform),
        kubevirts: Seen::Present(vec![Arc::new(typed(kubevirt(&format!("r/virt-launcher@{DIGEST}"))))]),
        plugins: Seen::Present(Vec::new()),
        cdi_gates: Seen::Present(vec!["HonorWaitForFirstConsumer".into()]),
        identity_pools: Seen::Present(true),
        jobs: Seen::Present(Vec::new()),
        pods: Seen::Present(Vec::new()),
        platform_namespace: HOME.into(),
        refusal: None,
    }
}

fn pass(facts: &Facts) -> (Plan, Value) {
    let plan = judged(decide(facts, now()));
    let status = plan.status.clone().expect("a status");
    (plan, status)
}

fn change(facts: &mut Facts, edit: impl FnOnce(&mut dockerios_api::PlatformConfig)) {
    edit(Arc::make_mut(&mut facts.platform));
}

#[test]
fn a_whole_platform_is_ready_and_says_that_its_path_has_an_end() {
    let (plan, status) = pass(&facts());
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!(said(&status, "Ready"), ("True".into(), "Ready".into()));
    assert_eq!(said(&status, "EndOfLife").1, "IntelSunset");
    let end = message(&status, "EndOfLife");
    assert!(end.contains("macOS 26") && end.contains("licence"), "{end}");
}

#[test]
fn the_first_thing_without_which_no_machine_is_made_is_the_reason() {
    type Edit = fn(&mut Facts);
    let cases: [(&str, Edit); 9] = [
        ("DomainHookMissing", |f| change(f, |p| p.spec.domain_hook = None)),
        ("OskMissing", |f| change(f, |p| p.spec.smc = None)),
        ("BuilderMissing", |f| change(f, |p| p.spec.boot_disk_builder = None)),
        ("KubeVirtNotFound", |f| f.kubevirts = Seen::Present(Vec::new())),
        ("Unreadable", |f| f.kubevirts = Seen::Unknown("the list failed".into())),
        ("CdiNotFound", |f| f.cdi_gates = Seen::Absent),
        ("SmcMissing", |f| {
            change(f, |p| p.status.as_mut().expect("a status").launchers[0].smc = false)
        }),
        ("NotProbed", |f| change(f, |p| p.status = None)),
        ("NotPermitted", |f| {
            change(f, |p| {
                p.spec.permitted_gpus = typed(json!([{"deviceName": "amd.com/navi23"}]))
            });
        }),
    ];
    for (reason, edit) in cases {
        let mut facts = facts();
        edit(&mut facts);
        assert_eq!(said(&pass(&facts).1, "Ready").1, reason);
    }
    let mut shared = facts();
    change(&mut shared, |p| p.spec.boot_disk_builder = None);
    shared.identity_pools = Seen::Present(false);
    assert_eq!(
        said(&pass(&shared).1, "Ready").1,
        "Ready",
        "Shared classes need no builder"
    );
}

#[test]
fn an_event_tells_the_nvme_mode_of_the_launcher_when_it_is_found_and_when_it_becomes_another() {
    let told = |facts: &Facts| -> Vec<String> {
        let news = pass(facts).0.news.into_iter();
        news.filter(|news| news.reason == "Capable")
            .map(|news| news.note)
            .collect()
    };
    let mut facts = facts();
    let first = told(&facts);
    assert!(first.len() == 1 && first[0].contains("nvme (Native)"), "{first:?}");
    let (_, status) = pass(&facts);
    change(&mut facts, |p| p.status = Some(typed(status)));
    assert_eq!(told(&facts), Vec::<String>::new(), "it is no news any more");
    // KubeVirt is set back to a launcher that was probed before
    let other = format!("sha256:{}", "a".repeat(64));
    change(&mut facts, |p| {
        let launchers = &mut p.status.as_mut().expect("a status").launchers;
        launchers.push(typed(
            json!({"digest": other, "nvme": "Override", "smc": true, "nicModels": []}),
        ));
    });
    facts.kubevirts = Seen::Present(vec![Arc::new(typed(kubevirt(&format!("r/virt-launcher@{other}"))))]);
    let again = told(&facts);
    assert!(again.len() == 1 && again[0].contains("nvme (Override)"), "{again:?}");
}

#[test]
fn a_gate_that_is_off_is_named_with_the_command_that_turns_it_on() {
    for (gates, disabled, off) in [
        (json!(["CPUManager"]), json!([]), "Sidecar"),
        (json!(["Sidecar", "CPUManager"]), json!(["CPUManager"]), "CPUManager"),
    ] {
        let mut object = kubevirt("r/l:v1");
        object["spec"]["configuration"]["developerConfiguration"] =
            json!({"featureGates": gates, "disabledFeatureGates": disabled});
        let mut facts = facts();
        facts.kubevirts = Seen::Present(vec![Arc::new(typed(object))]);
        let (_, status) = pass(&facts);
        assert_eq!(said(&status, "GatesEnabled").1, "GateDisabled");
        let told = message(&status, "GatesEnabled");
        assert!(
            told.contains("kubectl patch kubevirt kubevirt -n kubevirt") && told.contains(off),
            "{told}"
        );
    }
}

#[test]
fn a_plugin_and_early_binding_are_warned_of_and_stop_nothing() {
    let mut facts = facts();
    facts.plugins = Seen::Present(vec![Arc::new(typed(
        json!({"metadata": {"name": "tuner"}, "spec": {}}),
    ))]);
    facts.cdi_gates = Seen::Present(Vec::new());
    let (plan, status) = pass(&facts);
    assert_eq!(said(&status, "NoForeignPlugin").1, "PluginInstalled");
    assert_eq!(said(&status, "HonorsWaitForFirstConsumer").1, "NotHonored");
    assert_eq!(said(&status, "Ready").1, "Ready");
    assert!(
        plan.news.iter().any(|news| news.warning && news.note.contains("tuner")),
        "{:?}",
        plan.news
    );
}

#[test]
fn what_is_to_be_done_about_cdi_depends_on_whether_it_is_there() {
    for (gates, verdict, reason, told) in [
        (Seen::Absent, "False", "CdiNotFound", "install CDI"),
        (Seen::Present(Vec::new()), "False", "NotHonored", "of the CDI object"),
        (
            Seen::Unknown("the list failed".into()),
            "Unknown",
            "Unreadable",
            "the list failed",
        ),
    ] {
        let mut facts = facts();
        facts.cdi_gates = gates;
        let (_, status) = pass(&facts);
        let kind = "HonorsWaitForFirstConsumer";
        assert_eq!(said(&status, kind), (verdict.into(), reason.into()));
        assert!(message(&status, kind).contains(told), "{}", message(&status, kind));
    }
}

#[test]
fn the_launcher_is_the_one_that_virt_operator_recorded() {
    let of = |record: Value| {
        let object = json!({"metadata": {}, "spec": {}, "status": {"observedDeploymentConfig": record.to_string()}});
        image_of(&typed::<KubeVirt>(object))
    };
    assert_eq!(of(json!({"virtLauncherImage": "r/own:1"})).as_deref(), Some("r/own:1"));
    let record = json!({"registry": "quay.io/kubevirt", "imagePrefix": "x-", "kubeVirtVersion": "v1.9.0"});
    assert_eq!(of(record).as_deref(), Some("quay.io/kubevirt/x-virt-launcher:v1.9.0"));
    assert_eq!(of(json!({"registry": "quay.io/kubevirt"})), None);
    assert_eq!(image_of(&typed::<KubeVirt>(json!({"metadata": {}, "spec": {}}))), None);
}

/// The Job and the pod of a probe that ended.
fn probed(facts: &mut Facts, how: &str, exit_code: i32, words: &str) {
    let (plan, status) = pass(facts);
    assert_eq!(said(&status, "LauncherCapable"), ("Unknown".into(), "NotProbed".into()));
    let Some(Step::Create(object)) = plan.steps.iter().find(|step| step.id().kind == Kind::Job) else {
        panic!("no probe: {:?}", plan.steps)
    };
    let mut job = object.body.clone();
    job["metadata"]["uid"] = "job".into();
    job["status"] = json!({"conditions": [{"type": how, "status": "True",
        "lastTransitionTime": "2026-03-02T08:59:00Z"}]});
    let pod = json!({"metadata": {"name": "p", "labels": job["spec"]["template"]["metadata"]["labels"]},
        "status": {"containerStatuses": [{"name": "probe", "image": "", "ready": false, "restartCount": 0,
            "imageID": format!("quay.io/kubevirt/virt-launcher@{DIGEST}"),
            "state": {"terminated": {"exitCode": exit_code, "message": words}}}]}});
    facts.jobs = Seen::Present(vec![Arc::new(typed(job))]);
    facts.pods = Seen::Present(vec![Arc::new(typed(pod))]);
}

const WORDS: &str =
    "libvirt virtqemud (libvirt) 11.2.0\nqemu QEMU emulator version 10.1.0\ndevice nvme\ndevice isa-applesmc\n";

#[test]
fn an_unknown_launcher_is_probed_and_the_answer_kept_by_the_digest_that_was_pulled() {
    let mut facts = facts();
    change(&mut facts, |p| p.status = None);
    facts.kubevirts = Seen::Present(vec![Arc::new(typed(kubevirt("")))]);
    probed(&mut facts, "Complete", 0, WORDS);
    let (_, status) = pass(&facts);
    let launcher = &status["launchers"][0];
    assert_eq!(
        (&launcher["digest"], &launcher["nvme"], &launcher["smc"]),
        (&json!(DIGEST), &json!("Override"), &json!(true))
    );
    assert_eq!(said(&status, "LauncherCapable").1, "Capable");
}

#[test]
fn a_stock_launcher_is_a_condition_that_names_device_and_image() {
    let mut facts = facts();
    change(&mut facts, |p| p.status = None);
    probed(
        &mut facts,
        "Complete",
        0,
        "libvirt v 11.9.0\nqemu q\ndevice isa-applesmc",
    );
    let (_, status) = pass(&facts);
    assert_eq!(said(&status, "LauncherCapable"), ("False".into(), "NvmeMissing".into()));
    assert!(message(&status, "LauncherCapable").contains(DIGEST));
}

#[test]
fn a_probe_that_failed_says_why_and_is_repeated_later() {
    let mut facts = facts();
    change(&mut facts, |p| p.status = None);
    probed(&mut facts, "Failed", 1, "none of /usr/libexec/qemu-kvm");
    let (plan, status) = pass(&facts);
    assert!(
        message(&status, "LauncherCapable").contains("none of /usr/libexec/qemu-kvm"),
        "{status}"
    );
    assert!(plan.wake.is_some() && plan.steps.is_empty());
}

#[test]
fn launchers_are_kept_within_their_bound_the_current_one_first() {
    let mut facts = facts();
    change(&mut facts, |p| {
        let launchers = &mut p.status.as_mut().expect("a status").launchers;
        let known = launchers.remove(0);
        for n in 0..16 {
            let digest = format!("sha256:{n:064}");
            launchers.push(dockerios_api::config::platform_config::Launcher {
                digest,
                ..known.clone()
            });
        }
    });
    probed(&mut facts, "Complete", 0, WORDS);
    let (_, status) = pass(&facts);
    let launchers = status["launchers"].as_array().expect("a list");
    assert_eq!((launchers.len(), &launchers[0]["digest"]), (16, &json!(DIGEST)));
}
