use dockerios_api::{
    identity::pool::BootDiskTemplate,
    machine::class::{Bus, FeaturePolicy, Hugepages, NicModel, Numa},
};
use dockerios_core::{
    Seen,
    admit::class::{Facts, judge},
};
use serde_json::json;

use crate::things::{blind, broken, class, image, platform, pool, read, storage, unseen};

fn facts() -> Facts {
    Facts {
        class: class(),
        platform: Seen::Present(platform()),
        image: Seen::Present(image("14.5")),
        pool: Seen::Absent,
        storage: Seen::Present(storage("rbd.csi.ceph.com")),
    }
}

fn per_machine(facts: &mut Facts, model: &str) {
    facts.class.spec.identity = read(json!({"type": "PerMachine", "perMachine": {"poolName": "macs"}}));
    facts.pool = Seen::Present(pool(model));
}

type Change = fn(&mut Facts);

#[test]
fn each_combination_that_cannot_work_is_refused_by_its_rule_and_its_neighbour_admitted() {
    let table: &[(&str, Change, Change)] = &[
        (
            "cpu-runs-macos",
            |f| f.class.spec.cpu.model = "Penryn".into(),
            |f| f.class.spec.cpu.model = "Broadwell".into(),
        ),
        (
            "cpu-runs-macos",
            |f| f.class.spec.cpu.model = "Nehalem-IBRS".into(),
            |f| {
                f.class.spec.cpu.model = "Nehalem-IBRS".into();
                f.image = Seen::Present(image("12.7"));
            },
        ),
        (
            "cpu-runs-macos",
            |f| f.class.spec.cpu.model = "SandyBridge".into(),
            |f| {
                f.class.spec.cpu.model = "SandyBridge".into();
                f.class.spec.cpu.features = read(json!([{"name": "avx2"}]));
            },
        ),
        (
            "cpu-runs-macos",
            |f| f.class.spec.cpu.features = read(json!([{"name": "avx2", "policy": "disable"}])),
            |f| f.class.spec.cpu.features = read(json!([{"name": "avx512f", "policy": "disable"}])),
        ),
        (
            "cpu-vendor-intel",
            |f| f.class.spec.cpu.model = "EPYC-Rome".into(),
            |f| f.class.spec.cpu.model = "Skylake-Client-noTSX-IBRS".into(),
        ),
        (
            "cpu-vendor-node",
            |f| {
                f.class.spec.cpu.model = "host-passthrough".into();
                nodes(f, "cpu-vendor.node.kubevirt.io/AMD", "true");
            },
            |f| nodes(f, "cpu-vendor.node.kubevirt.io/AMD", "true"),
        ),
        (
            "cpu-vendor-node",
            |f| {
                f.class.spec.cpu.model = "host-model".into();
                nodes(f, "cpu-vendor.node.kubevirt.io/Intel", "false");
            },
            |f| {
                f.class.spec.cpu.model = "host-model".into();
                nodes(f, "cpu-vendor.node.kubevirt.io/Intel", "true");
            },
        ),
        (
            "cpu-vendor-node",
            |f| {
                hookless(f);
                f.class.spec.system_disk.bus = Bus::Sata;
                nodes(f, "cpu-vendor.node.kubevirt.io/AMD", "true");
            },
            |f| {
                hookless(f);
                f.class.spec.system_disk.bus = Bus::Sata;
            },
        ),
        (
            "class-memory",
            |f| f.class.spec.memory.size = "8".into(),
            |f| f.class.spec.memory.size = "2Gi".into(),
        ),
        (
            "class-memory",
            |f| f.class.spec.memory.size = "2097151Ki".into(),
            |f| f.class.spec.memory.size = "2147483648".into(),
        ),
        (
            "hugepages-divide-memory",
            |f| (f.class.spec.memory.size, f.class.spec.memory.hugepages) = ("8191Mi".into(), Some(Hugepages::TwoMi)),
            |f| (f.class.spec.memory.size, f.class.spec.memory.hugepages) = ("8190Mi".into(), Some(Hugepages::TwoMi)),
        ),
        (
            "numa-needs-hugepages",
            |f| f.class.spec.cpu.numa = Some(Numa::Passthrough),
            |f| {
                f.class.spec.cpu.numa = Some(Numa::Passthrough);
                f.class.spec.memory.hugepages = Some(Hugepages::OneGi);
            },
        ),
        (
            "nic-without-driver",
            |f| f.class.spec.network.model = NicModel::Virtio,
            |f| f.class.spec.network.model = NicModel::E1000_82545em,
        ),
        (
            "nvme-needs-hook",
            |f| hookless(f),
            |f| {
                hookless(f);
                f.class.spec.system_disk.bus = Bus::Sata;
            },
        ),
        (
            "nic-needs-hook",
            |f| {
                hookless(f);
                f.class.spec.system_disk.bus = Bus::Sata;
                f.class.spec.network.model = NicModel::E1000_82545em;
            },
            |f| {
                hookless(f);
                f.class.spec.system_disk.bus = Bus::Sata;
            },
        ),
        (
            "gpu-permitted",
            |f| f.class.spec.gpu = read(json!({"deviceName": "amd.com/w6600"})),
            |f| f.class.spec.gpu = read(json!({"deviceName": "amd.com/rx580"})),
        ),
        (
            "gpu-vendor-reset",
            |f| f.class.spec.gpu = read(json!({"deviceName": "amd.com/vega64"})),
            |f| f.class.spec.gpu = read(json!({"deviceName": "amd.com/rx580"})),
        ),
        (
            "gpu-own-template",
            |f| {
                per_machine(f, "iMacPro1,1");
                f.class.spec.gpu = read(json!({"deviceName": "amd.com/rx580"}));
            },
            |f| {
                per_machine(f, "iMacPro1,1");
                f.class.spec.gpu = read(json!({"deviceName": "amd.com/rx580"}));
                f.pool = Seen::Present(gpu_pool());
            },
        ),
        (
            "gpu-own-template",
            |f| {
                per_machine(f, "iMacPro1,1");
                f.class.spec.gpu = read(json!({"deviceName": "amd.com/rx580"}));
            },
            // a Shared class names its own bootdisk, with whatever boot-args that has
            |f| f.class.spec.gpu = read(json!({"deviceName": "amd.com/rx580"})),
        ),
        (
            "disk-holds-image",
            |f| f.class.spec.system_disk.size = "107374182399".into(),
            |f| f.class.spec.system_disk.size = "107374182400".into(),
        ),
        (
            "identity-runs-macos",
            |f| {
                per_machine(f, "iMacPro1,1");
                f.image = Seen::Present(image("26.0"));
            },
            |f| per_machine(f, "iMacPro1,1"),
        ),
        (
            "identity-runs-macos",
            |f| {
                per_machine(f, "iMac18,3");
                f.image = Seen::Present(image("14.0"));
            },
            |f| {
                per_machine(f, "iMac18,3");
                f.image = Seen::Present(image("13.7"));
            },
        ),
    ];
    for (rule, bad, good) in table {
        let (mut wrong, mut right) = (facts(), facts());
        bad(&mut wrong);
        good(&mut right);
        assert_eq!(broken(&judge(&wrong)), [*rule]);
        let admitted = judge(&right);
        assert!(admitted.admits(), "neighbour of {rule}: {}", admitted.reason());
    }
}

fn gpu_pool() -> dockerios_api::IdentityPool {
    let mut pool = pool("iMacPro1,1");
    pool.spec.boot_disk.template = BootDiskTemplate::GPU;
    pool
}

#[test]
fn a_class_without_a_card_on_a_pool_for_cards_is_admitted_with_a_warning() {
    let mut asked = facts();
    per_machine(&mut asked, "iMacPro1,1");
    asked.pool = Seen::Present(gpu_pool());
    let verdict = judge(&asked);
    assert!(verdict.admits(), "{verdict:?}");
    assert!(
        verdict.warnings[0].contains("bootdisks of pool macs have the boot-args of a card"),
        "{verdict:?}"
    );
}

fn nodes(facts: &mut Facts, key: &str, value: &str) {
    facts.class.spec.placement = read(json!({"nodeSelector": {key: value}}));
}

fn hookless(facts: &mut Facts) {
    let mut without = platform();
    without.spec.domain_hook = None;
    facts.platform = Seen::Present(without);
}

#[test]
fn a_class_that_fits_says_nothing() {
    let verdict = judge(&facts());
    assert!(verdict.admits() && verdict.warnings.is_empty(), "{verdict:?}");
}

#[test]
fn what_is_not_there_yet_is_no_contradiction() {
    let mut early = facts();
    per_machine(&mut early, "iMacPro1,1");
    early.class.spec.cpu.model = "Penryn".into();
    early.class.spec.gpu = read(json!({"deviceName": "amd.com/w6600"}));
    (early.platform, early.image, early.pool, early.storage) = (Seen::Absent, Seen::Absent, Seen::Absent, Seen::Absent);
    let verdict = judge(&early);
    assert!(verdict.admits(), "{}", verdict.reason());
}

#[test]
fn each_fact_that_cannot_be_seen_refuses_for_now() {
    let table: &[(&str, Change)] = &[
        ("PlatformConfig default", |f| f.platform = unseen()),
        ("MacOSImage golden", |f| f.image = unseen()),
        ("StorageClass fast", |f| f.storage = unseen()),
        ("IdentityPool macs", |f| {
            per_machine(f, "iMacPro1,1");
            f.pool = unseen();
        }),
    ];
    for (what, change) in table {
        let mut blinded = facts();
        change(&mut blinded);
        blind(&judge(&blinded), what);
    }
}

#[test]
fn a_fault_and_a_blind_spot_together_are_refused_for_good() {
    let mut both = facts();
    both.platform = unseen();
    both.class.spec.network.model = NicModel::Virtio;
    let verdict = judge(&both);
    assert!(!verdict.only_for_now() && !verdict.admits(), "{verdict:?}");
    assert_eq!(broken(&verdict), ["nic-without-driver", "cannot-see"]);
}

#[test]
fn storage_that_is_not_known_to_discard_is_admitted_with_a_warning_unless_the_admin_says_it_does() {
    for (provisioner, word, warned) in [
        ("rancher.io/local-path", None, true),
        ("rancher.io/local-path", Some("true"), false),
        ("rook-ceph.rbd.csi.ceph.com", None, false),
        ("rook-ceph.rbd.csi.ceph.com", Some("false"), true),
        ("notrbd.csi.ceph.com", None, true),
        ("topolvm.io", None, false),
        ("nfs.csi.k8s.io", Some("yes"), true),
    ] {
        let mut asked = facts();
        let mut class = storage(provisioner);
        if let Some(word) = word {
            class.metadata.annotations = Some([("dockerios.io/discards".to_owned(), word.to_owned())].into());
        }
        asked.storage = Seen::Present(class);
        let verdict = judge(&asked);
        assert!(verdict.admits());
        let said = verdict.warnings.iter().any(|one| one.contains("not known to discard"));
        assert_eq!(said, warned, "{provisioner} {word:?}: {:?}", verdict.warnings);
    }
}

#[test]
fn feature_policies_are_the_two_that_kubevirt_needs() {
    let cpu: dockerios_api::machine::class::Cpu =
        read(json!({"cores": 4, "model": "Haswell", "features": [{"name": "avx2"}]}));
    assert_eq!(
        cpu.features[0].policy,
        FeaturePolicy::Require,
        "left out, it is demanded"
    );
}
