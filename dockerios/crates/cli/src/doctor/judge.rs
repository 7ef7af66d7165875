//! What is missing, from facts alone.
//!
//! Invariant: what could not be read is Unknown and never passes for good or for bad.

use std::collections::{BTreeMap, BTreeSet};

use dockerios_api::condition::{self, Wanted};
use dockerios_api::config::platform_config::{PermittedGpu, PlatformCondition};
use dockerios_api::machine::class::Hugepages;
use dockerios_api::{MacOSImage, MacOSMachineClass, PlatformConfig};
use dockerios_core::admit::{
    storage::{DISCARDS, discards},
    version,
};
use dockerios_kubevirt::names::KVM_RESOURCE as KVM;
use dockerios_kubevirt::{KubeVirt, platform::PermittedHostDevices};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;

use crate::table::Named;

/// Label that KubeVirt's node labeller sets on a node whose CPU has AVX2.
const AVX2: &str = "cpu-feature.node.kubevirt.io/avx2";
/// Labels that virt-handler sets on a node whose kubelet runs the static CPU manager: its present one, and the one that
/// KubeVirt's older releases select by.
const CPU_MANAGER: [&str; 2] = ["kubevirt.io/cpumanager", "cpumanager"];
/// Label by which KubeVirt keeps machines off a node whose virt-handler does not answer.
const SCHEDULABLE: &str = "kubevirt.io/schedulable";

/// What was read; a reason instead of what could not be.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Whether the cluster serves DockerIOS's kinds.
    pub(crate) installed: bool,
    pub(crate) nodes: Result<Vec<Node>, String>,
    pub(crate) platform: Result<Option<PlatformConfig>, String>,
    pub(crate) kubevirts: Result<Vec<KubeVirt>, String>,
    pub(crate) classes: Result<Vec<MacOSMachineClass>, String>,
    pub(crate) images: Result<Vec<MacOSImage>, String>,
    pub(crate) storage: Result<Vec<StorageClass>, String>,
    /// `None` when nobody asked.
    pub(crate) msrs: Option<Result<Msrs, String>>,
}

/// Per node: whether KVM ignores unknown MSRs.
pub(crate) type Msrs = BTreeMap<String, Result<bool, String>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    Warn,
    Fail,
    Unknown,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warning",
            Verdict::Fail => "missing",
            Verdict::Unknown => "unseen",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    pub(crate) check: &'static str,
    pub(crate) message: String,
    pub(crate) way_out: String,
}

impl Finding {
    fn of(verdict: Verdict, check: &'static str, message: impl Into<String>, way_out: impl Into<String>) -> Self {
        let (message, way_out) = (message.into(), way_out.into());
        Finding {
            verdict,
            check,
            message,
            way_out,
        }
    }
    pub(crate) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self::of(Verdict::Ok, check, message, "")
    }
    pub(crate) fn fail(check: &'static str, message: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self::of(Verdict::Fail, check, message, way_out)
    }
    pub(crate) fn warn(check: &'static str, message: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self::of(Verdict::Warn, check, message, way_out)
    }
    pub(crate) fn unknown(check: &'static str, message: impl Into<String>) -> Self {
        Self::of(Verdict::Unknown, check, message, "")
    }
}

/// Everything, in the order in which it is put right.
pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kubevirt(facts)];
    findings.extend(platform(facts));
    findings.extend(nodes(facts));
    findings.extend(msrs(facts));
    findings.extend(gpus(facts));
    findings.extend(storage(facts));
    findings
}

/// KubeVirt itself: without it nothing else can be good, and what cannot be read of it is not good either.
fn kubevirt(facts: &Facts) -> Finding {
    const CHECK: &str = "kubevirt";
    match facts.kubevirts.as_deref() {
        Ok([one, ..]) => {
            let place = one.namespace().unwrap_or_default();
            Finding::ok(CHECK, format!("KubeVirt is installed ({place}/{})", one.name_any()))
        }
        Ok([]) => Finding::fail(
            CHECK,
            "there is no KubeVirt object: KubeVirt is not installed",
            "install KubeVirt; see docs/host-preparation.md for what it needs",
        ),
        Err(why) => Finding::unknown(CHECK, format!("the KubeVirt object: {why}")),
    }
}

/// The operator's own judgement, condition by condition: gates, launcher, plugins, CDI.
fn platform(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "platform";
    if !facts.installed {
        let message = "the cluster does not serve DockerIOS's kinds";
        return vec![Finding::fail(CHECK, message, "kubectl apply -f deploy/crds")];
    }
    let platform = match &facts.platform {
        Ok(Some(platform)) => platform,
        Ok(None) => {
            let way_out = "kubectl apply the sample deploy/samples/01-platformconfig.yaml, edited";
            return vec![Finding::fail(CHECK, "there is no PlatformConfig default", way_out)];
        }
        Err(why) => return vec![Finding::unknown(CHECK, format!("PlatformConfig: {why}"))],
    };
    let conditions = platform.status.as_ref().map_or(&[][..], |status| &status.conditions);
    if conditions.is_empty() {
        let way_out = "kubectl get pods -n dockerios-system";
        return vec![Finding::fail(
            CHECK,
            "nobody has looked at the PlatformConfig: the operator does not run",
            way_out,
        )];
    }
    let judged = |condition: &dockerios_api::Condition| {
        let message = format!("{} ({}): {}", condition.kind, condition.reason, condition.message);
        match condition.status {
            // reckoned in the rest
            _ if condition.kind == PlatformCondition::Ready.word() => None,
            dockerios_api::Verdict::Unknown => Some(Finding::unknown(CHECK, message)),
            _ if condition::is_wrong(condition) => Some(Finding::fail(CHECK, message, "")),
            // a fact that is to be known
            _ if condition::wanted(&condition.kind) == Wanted::Either => Some(Finding::warn(CHECK, message, "")),
            _ => Some(Finding::ok(CHECK, message)),
        }
    };
    conditions.iter().filter_map(judged).collect()
}

fn label(node: &Node, key: &str) -> bool {
    node.labels().get(key).is_some_and(|value| value == "true")
}

/// Whether a node has any of a resource for pods.
pub(super) fn offers(node: &Node, resource: &str) -> bool {
    let found = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref()?.get(resource));
    found.is_some_and(|quantity| !matches!(quantity.0.trim(), "" | "0"))
}

/// Why a node that is there takes no machine; `None` when it does.
pub(super) fn away(node: &Node) -> Option<&'static str> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        return Some("not Ready");
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        return Some("cordoned");
    }
    let kept_off = node.labels().get(SCHEDULABLE).is_some_and(|value| value == "false");
    kept_off.then_some("its virt-handler does not answer")
}

/// Nodes that have what is asked for: those that take machines, and those that do not, with the reason.
struct Able {
    names: Vec<String>,
    away: Vec<String>,
}

impl Able {
    fn of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let mut able = Able {
            names: Vec::new(),
            away: Vec::new(),
        };
        for node in nodes {
            match away(node) {
                None => able.names.push(node.name_any()),
                Some(why) => able.away.push(format!("{} ({why})", node.name_any())),
            }
        }
        able
    }

    /// `a, b; not counted: c (cordoned)`.
    fn words(&self) -> String {
        let names = if self.names.is_empty() {
            "none".to_owned()
        } else {
            self.names.join(", ")
        };
        if self.away.is_empty() {
            names
        } else {
            format!("{names}; not counted: {}", self.away.join(", "))
        }
    }
}

fn nodes(facts: &Facts) -> Vec<Finding> {
    let all = match &facts.nodes {
        Ok(all) => all,
        Err(why) => return vec![Finding::unknown("nodes", format!("nodes: {why}"))],
    };
    let kvm: Vec<&Node> = all.iter().filter(|node| offers(node, KVM)).collect();
    let able = Able::of(kvm.iter().copied());
    let what = format!("nodes that offer {KVM} and take machines, of {}", all.len());
    let mut findings = match (kvm.is_empty(), able.names.is_empty()) {
        (true, _) => {
            let message = format!(
                "none of {} nodes offers {KVM}: no machine can ever be scheduled",
                all.len()
            );
            let way_out = "nodes need /dev/kvm and a running virt-handler; see docs/host-preparation.md";
            return vec![Finding::fail("kvm", message, way_out)];
        }
        (false, true) => {
            let way_out = "kubectl uncordon NODE, kubectl describe node NODE";
            vec![Finding::fail("kvm", format!("{what}: {}", able.words()), way_out)]
        }
        (false, false) => vec![Finding::ok("kvm", format!("{what}: {}", able.words()))],
    };
    let (classes, images) = match (&facts.classes, &facts.images) {
        (Ok(classes), Ok(images)) => (classes, images),
        (Err(why), _) | (_, Err(why)) => {
            findings.push(Finding::unknown("classes", format!("classes and images: {why}")));
            return findings;
        }
    };
    findings.push(avx2(&kvm, images));
    findings.extend(wanted(classes, |class| class.spec.cpu.dedicated).map(|wanting| {
        let pins = |node: &&Node| CPU_MANAGER.iter().any(|key| label(node, key));
        let able = Able::of(kvm.iter().copied().filter(pins));
        either(
            "cpu-manager",
            &able,
            &format!(
                "{}; nodes with the static CPU manager",
                wanting.say("pins its CPUs", "pin their CPUs")
            ),
            "set kubelet's cpuManagerPolicy: static; see docs/host-preparation.md",
        )
    }));
    for size in [Hugepages::TwoMi, Hugepages::OneGi] {
        let resource = format!("hugepages-{}", size.text());
        findings.extend(
            wanted(classes, |class| class.spec.memory.hugepages == Some(size)).map(|wanting| {
                let able = Able::of(kvm.iter().copied().filter(|node| offers(node, &resource)));
                either(
                    "hugepages",
                    &able,
                    &format!(
                        "{}; nodes that have some",
                        wanting.say(&format!("wants {resource}"), &format!("want {resource}"))
                    ),
                    "reserve them on the kernel's command line; see docs/host-preparation.md",
                )
            }),
        );
    }
    findings
}

/// Names of the classes that want it, when there are some.
fn wanted(classes: &[MacOSMachineClass], wants: impl Fn(&MacOSMachineClass) -> bool) -> Option<Named> {
    let names: Vec<_> = classes
        .iter()
        .filter(|class| wants(class))
        .map(|class| class.name_any())
        .collect();
    Named::of("class", "classes", &names)
}

fn either(check: &'static str, able: &Able, what: &str, way_out: &str) -> Finding {
    let message = format!("{what}: {}", able.words());
    if able.names.is_empty() {
        Finding::fail(check, message, way_out)
    } else {
        Finding::ok(check, message)
    }
}

fn avx2(kvm: &[&Node], images: &[MacOSImage]) -> Finding {
    let modern: Vec<_> = images
        .iter()
        .filter(|image| {
            // what is not a number is taken for the newest
            version::major(&image.spec.os_version).is_none_or(|major| major >= version::FIRST_WITH_AVX2)
        })
        .map(|image| image.name_any())
        .collect();
    let able = Able::of(kvm.iter().copied().filter(|node| label(node, AVX2)));
    let what = format!(
        "nodes whose CPU has AVX2 (by KubeVirt's node labeller): {}",
        able.words()
    );
    match (Named::of("image", "images", &modern), able.names.is_empty()) {
        (_, false) => Finding::ok("avx2", what),
        (None, true) => Finding::warn("avx2", format!("{what}; macOS 13 and newer need it"), ""),
        (Some(modern), true) => Finding::fail(
            "avx2",
            format!(
                "{what}; {}",
                modern.say(
                    "is of macOS 13 or newer and needs it",
                    "are of macOS 13 or newer and need it"
                )
            ),
            "use hosts since Haswell or Zen, and see that KubeVirt's node labeller runs",
        ),
    }
}

fn msrs(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "ignore_msrs";
    let asked = match &facts.msrs {
        None => {
            let message = "not asked: the API does not show kvm.ignore_msrs of the hosts";
            return vec![Finding::warn(
                CHECK,
                message,
                "kubectl dockerios doctor --probe-nodes asks them",
            )];
        }
        Some(Err(why)) => return vec![Finding::unknown(CHECK, format!("no node was asked: {why}"))],
        Some(Ok(asked)) => asked,
    };
    let one = |(node, found): (&String, &Result<bool, String>)| match found {
        Ok(true) => Finding::ok(CHECK, format!("{node} ignores unknown MSRs")),
        Ok(false) => Finding::fail(
            CHECK,
            format!("{node} does not ignore unknown MSRs: macOS panics there"),
            "options kvm ignore_msrs=1 in /etc/modprobe.d/kvm.conf of the host",
        ),
        Err(why) => Finding::unknown(CHECK, format!("{node}: {why}")),
    };
    asked.iter().map(one).collect()
}

/// PlatformConfig's cards against KubeVirt's list and the nodes' resources.
fn gpus(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "gpus";
    let Ok(Some(platform)) = &facts.platform else {
        return Vec::new();
    };
    let wanted: BTreeSet<&str> = platform
        .spec
        .permitted_gpus
        .iter()
        .flat_map(PermittedGpu::devices)
        .collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let (kubevirts, nodes) = match (&facts.kubevirts, &facts.nodes) {
        (Ok(kubevirts), Ok(nodes)) => (kubevirts, nodes),
        (Err(why), _) | (_, Err(why)) => return vec![Finding::unknown(CHECK, format!("KubeVirt and nodes: {why}"))],
    };
    let permitted: BTreeSet<&str> = kubevirts
        .iter()
        .filter_map(|kubevirt| kubevirt.spec.configuration.as_ref()?.permitted_host_devices.as_ref())
        .flat_map(PermittedHostDevices::resources)
        .collect();
    let one = |device: &str| {
        if !permitted.contains(device) {
            let way_out = format!("add {device} to spec.configuration.permittedHostDevices of the KubeVirt object");
            return Finding::fail(
                CHECK,
                format!("KubeVirt does not permit {device}, the PlatformConfig does"),
                way_out,
            );
        }
        let able = Able::of(nodes.iter().filter(|node| offers(node, device)));
        let way_out = "bind the card to vfio-pci on its host; see docs/host-preparation.md";
        either(CHECK, &able, &format!("nodes that offer {device}"), way_out)
    };
    wanted.into_iter().map(one).collect()
}

/// The storage classes that machines' disks live on: whether what a guest trims comes back.
fn storage(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "storage";
    let (classes, storage) = match (&facts.classes, &facts.storage) {
        (Ok(classes), Ok(storage)) => (classes, storage),
        (Err(why), _) | (_, Err(why)) => return vec![Finding::unknown(CHECK, format!("storage classes: {why}"))],
    };
    let used: BTreeSet<String> = classes
        .iter()
        .map(|class| class.spec.system_disk.storage_class_name.to_string())
        .collect();
    let one = |name: String| match storage.iter().find(|class| class.name_any() == name) {
        None => Finding::fail(
            CHECK,
            format!("storage class {name} is not there, and classes name it"),
            "make it, or correct the classes",
        ),
        Some(class) if discards(class) => Finding::ok(
            CHECK,
            format!("{name} ({}) gives discarded blocks back", class.provisioner),
        ),
        Some(class) => Finding::warn(
            CHECK,
            format!(
                "{name} ({}) is not known to give discarded blocks back: disks only grow",
                class.provisioner
            ),
            format!("if it does: kubectl annotate storageclass {name} {DISCARDS}=true"),
        ),
    };
    used.into_iter().map(one).collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
