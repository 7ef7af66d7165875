use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str, labels: Value, allocatable: Value) -> Node {
    of(
        json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable,
        "conditions": [{"type": "Ready", "status": "True"}]}}),
    )
}

fn class(extra: Value) -> MacOSMachineClass {
    let mut class = json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClass", "metadata": {"name": "big"},
        "spec": {
            "imageName": "sequoia", "identity": {"type": "PerMachine", "perMachine": {"poolName": "p"}},
            "cpu": {"cores": 4, "model": "host-passthrough", "dedicated": true},
            "memory": {"size": "8Gi", "hugepages": "1Gi"},
            "systemDisk": {"size": "100Gi", "storageClassName": "rbd"},
        },
    });
    if let (Some(spec), Some(extra)) = (class["spec"].as_object_mut(), extra.as_object()) {
        spec.extend(extra.clone());
    }
    of(class)
}

fn facts() -> Facts {
    let able = json!({KVM: "1k", "hugepages-1Gi": "16Gi", "amd.com/polaris": "1", "amd.com/polaris-audio": "1"});
    Facts {
        installed: true,
        nodes: Ok(vec![node(
            "kvm-1",
            json!({AVX2: "true", "kubevirt.io/cpumanager": "true"}),
            able,
        )]),
        platform: Ok(Some(of(json!({
            "apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig", "metadata": {"name": "default"},
            "spec": {"permittedGPUs": [{"deviceName": "amd.com/polaris", "audioDeviceName": "amd.com/polaris-audio"}]},
            "status": {"conditions": [{"type": "GatesEnabled", "status": "True", "reason": "Enabled", "message": "on",
                "lastTransitionTime": "2026-03-01T12:00:00Z"}]},
        })))),
        kubevirts: Ok(vec![of(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
            "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": [
                {"pciVendorSelector": "1002:67df", "resourceName": "amd.com/polaris"},
                {"pciVendorSelector": "1002:aaf0", "resourceName": "amd.com/polaris-audio"}]}}},
        }))]),
        classes: Ok(vec![class(json!({}))]),
        images: Ok(vec![of(json!({
            "apiVersion": "image.dockerios.io/v1alpha1", "kind": "MacOSImage", "metadata": {"name": "sequoia"},
            "spec": {"osVersion": "15.6", "size": "100Gi", "storageClassName": "rbd",
                "source": {"pvc": {"namespace": "images", "name": "golden"}}},
        }))]),
        storage: Ok(vec![of(
            json!({"metadata": {"name": "rbd"}, "provisioner": "rook.rbd.csi.ceph.com"}),
        )]),
        msrs: asked(Ok(true)),
    }
}

fn asked(answer: Result<bool, String>) -> Option<Result<Msrs, String>> {
    Some(Ok(BTreeMap::from([("kvm-1".to_owned(), answer)])))
}

/// The findings that are not good.
fn bad(facts: &Facts) -> Vec<(&'static str, &'static str, String)> {
    judge(facts)
        .into_iter()
        .filter(|finding| finding.verdict != Verdict::Ok)
        .map(|finding| (finding.verdict.word(), finding.check, finding.message))
        .collect()
}

#[track_caller]
fn only(facts: &Facts, verdict: &str, check: &str, message: &str) {
    let bad = bad(facts);
    assert!(
        matches!(&bad[..], [(v, c, m)] if *v == verdict && *c == check && m.contains(message)),
        "{bad:#?}"
    );
}

#[test]
fn a_cluster_that_has_everything_has_nothing_missing() {
    assert_eq!(bad(&facts()), []);
}

#[test]
fn each_thing_that_nodes_lack_is_found_alone() {
    let with = |labels: Value, drop: &str| {
        let mut facts = facts();
        let mut able =
            json!({KVM: "1k", "hugepages-1Gi": "16Gi", "amd.com/polaris": "1", "amd.com/polaris-audio": "1"});
        able[drop] = json!("0");
        facts.nodes = Ok(vec![node("kvm-1", labels, able)]);
        facts
    };
    let both = json!({AVX2: "true", "kubevirt.io/cpumanager": "true"});
    only(
        &with(json!({"kubevirt.io/cpumanager": "true"}), "x"),
        "missing",
        "avx2",
        "image sequoia is of macOS 13 or newer",
    );
    only(
        &with(json!({AVX2: "true"}), "x"),
        "missing",
        "cpu-manager",
        "class big pins its CPUs",
    );
    only(
        &with(both.clone(), "hugepages-1Gi"),
        "missing",
        "hugepages",
        "wants hugepages-1Gi",
    );
    only(
        &with(both.clone(), "amd.com/polaris"),
        "missing",
        "gpus",
        "nodes that offer amd.com/polaris: none",
    );
    only(
        &with(both, KVM),
        "missing",
        "kvm",
        "none of 1 nodes offers devices.kubevirt.io/kvm",
    );
}

#[test]
fn a_card_that_kubevirt_does_not_permit_is_found() {
    let mut facts = facts();
    facts.kubevirts = Ok(vec![of(json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"name": "kubevirt"}, "spec": {}}))]);
    let found = bad(&facts);
    assert!(
        found.iter().all(|(v, c, _)| *v == "missing" && *c == "gpus"),
        "{found:?}"
    );
    assert_eq!(found.len(), 2, "the card and its audio function");
}

#[test]
fn a_host_that_does_not_ignore_msrs_is_missing_something_and_one_not_asked_is_a_warning() {
    let mut facts = facts();
    facts.msrs = asked(Ok(false));
    only(&facts, "missing", "ignore_msrs", "macOS panics there");
    facts.msrs = asked(Err("its pod did not end".to_owned()));
    only(&facts, "unseen", "ignore_msrs", "its pod did not end");
    facts.msrs = None;
    only(&facts, "warning", "ignore_msrs", "not asked");
    facts.msrs = Some(Err("KubeVirt has not recorded its launcher image".to_owned()));
    only(&facts, "unseen", "ignore_msrs", "no node was asked: KubeVirt has not");
}

#[test]
fn a_storage_class_that_keeps_what_is_discarded_is_a_warning_and_a_missing_one_a_fault() {
    let mut facts = facts();
    facts.storage = Ok(vec![of(
        json!({"metadata": {"name": "rbd"}, "provisioner": "nfs.csi.k8s.io"}),
    )]);
    only(&facts, "warning", "storage", "disks only grow");
    facts.storage = Ok(vec![of(
        json!({"metadata": {"name": "rbd", "annotations": {DISCARDS: "true"}},
        "provisioner": "nfs.csi.k8s.io"}),
    )]);
    assert_eq!(bad(&facts), []);
    facts.storage = Ok(Vec::new());
    only(&facts, "missing", "storage", "storage class rbd is not there");
}

#[test]
fn what_could_not_be_read_is_unseen_and_never_good_or_missing() {
    let denied = || "nodes is forbidden".to_owned();
    let facts = Facts {
        installed: true,
        nodes: Err(denied()),
        platform: Err(denied()),
        kubevirts: Err(denied()),
        classes: Err(denied()),
        images: Err(denied()),
        storage: Err(denied()),
        msrs: asked(Err(denied())),
    };
    let findings = judge(&facts);
    assert!(
        findings.iter().all(|finding| finding.verdict == Verdict::Unknown),
        "{findings:#?}"
    );
    assert!(findings.len() >= 5, "{findings:#?}");
}

#[test]
fn an_operator_that_does_not_run_is_found_before_anything_it_would_say() {
    let mut facts = facts();
    if let Ok(Some(platform)) = &mut facts.platform {
        platform.status = None;
    }
    only(&facts, "missing", "platform", "the operator does not run");
    facts.platform = Ok(None);
    let found = bad(&facts);
    assert_eq!(found[0].2, "there is no PlatformConfig default");
}

#[test]
fn a_kubevirt_that_cannot_be_read_is_unseen_though_no_card_is_asked_for() {
    let mut facts = facts();
    if let Ok(Some(platform)) = &mut facts.platform {
        platform.spec.permitted_gpus.clear();
    }
    assert_eq!(bad(&facts), []);
    facts.kubevirts = Err("kubevirts is forbidden".to_owned());
    only(
        &facts,
        "unseen",
        "kubevirt",
        "the KubeVirt object: kubevirts is forbidden",
    );
    facts.kubevirts = Ok(Vec::new());
    only(&facts, "missing", "kubevirt", "KubeVirt is not installed");
}

#[test]
fn a_cluster_without_the_definitions_is_told_to_get_them_first() {
    let mut facts = facts();
    facts.installed = false;
    facts.platform = Ok(None);
    (facts.classes, facts.images) = (Ok(Vec::new()), Ok(Vec::new()));
    only(&facts, "missing", "platform", "does not serve DockerIOS's kinds");
}

#[test]
fn a_node_that_takes_no_machine_is_no_capacity_and_is_said() {
    let able = json!({KVM: "1k", "hugepages-1Gi": "16Gi", "amd.com/polaris": "1", "amd.com/polaris-audio": "1"});
    let labels = json!({AVX2: "true", "kubevirt.io/cpumanager": "true"});
    let all = |change: &dyn Fn(&mut Node)| {
        let mut facts = facts();
        let mut other = node("kvm-2", labels.clone(), able.clone());
        change(&mut other);
        facts.nodes = Ok(vec![node("kvm-1", labels.clone(), able.clone()), other.clone()]);
        let beside = judge(&facts);
        facts.nodes = Ok(vec![other]);
        (beside, bad(&facts))
    };
    let cordon = |node: &mut Node| node.spec = Some(of(json!({"unschedulable": true})));
    let silence = |node: &mut Node| {
        if let Some(status) = &mut node.status {
            status.conditions = Some(of(json!([{"type": "Ready", "status": "Unknown"}])));
        }
    };
    let keep_off = |node: &mut Node| {
        node.labels_mut().insert(SCHEDULABLE.to_owned(), "false".to_owned());
    };
    type Change<'a> = &'a dyn Fn(&mut Node);
    let ways: [(Change<'_>, &str); 3] = [
        (&cordon, "kvm-2 (cordoned)"),
        (&silence, "kvm-2 (not Ready)"),
        (&keep_off, "kvm-2 (its virt-handler does not answer)"),
    ];
    for (change, said) in ways {
        let (beside, alone) = all(change);
        let told = |check: &str| {
            beside
                .iter()
                .filter(|one| one.check == check)
                .all(|one| one.message.ends_with(said))
        };
        for check in ["kvm", "cpu-manager", "hugepages", "gpus"] {
            assert!(told(check), "{check}: {beside:#?}");
        }
        assert!(beside.iter().all(|one| one.verdict == Verdict::Ok), "{beside:#?}");
        let missing: Vec<_> = alone
            .iter()
            .filter(|(verdict, ..)| *verdict == "missing")
            .map(|(_, check, _)| *check)
            .collect();
        assert_eq!(
            missing,
            ["kvm", "avx2", "cpu-manager", "hugepages", "gpus", "gpus"],
            "{alone:#?}"
        );
        assert!(
            alone[0].2.ends_with(&format!("none; not counted: {said}")),
            "{alone:#?}"
        );
    }
    let (_, well) = all(&|_| {});
    assert_eq!(well, []);
}

#[test]
fn the_cpu_managers_older_label_counts_too() {
    let mut facts = facts();
    let able = json!({KVM: "1k", "hugepages-1Gi": "16Gi", "amd.com/polaris": "1", "amd.com/polaris-audio": "1"});
    facts.nodes = Ok(vec![node("kvm-1", json!({AVX2: "true", "cpumanager": "true"}), able)]);
    assert_eq!(bad(&facts), []);
}
