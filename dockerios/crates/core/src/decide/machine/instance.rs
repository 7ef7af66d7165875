//! Where the instance stands: VMI, launcher pods and their node, taken together.
//!
//! ```text
//! Down ─▶ Coming ─▶ Running ─▶ Leaving ─▶ Down        (any of them ─▶ Lost while the node does not answer)
//! ```
//!
//! Invariant: it is Down only when the launcher pod is absent or terminal *and* the VMI is absent, Succeeded or
//! Failed. KubeVirt calls instances of a silent node Failed while their guests may still run.

use dockerios_kubevirt::{VirtualMachineInstance, condition, names, vmi::VmiPhase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::facts::{Facts, Objects, terminal};
use crate::Seen;

/// Where the instance stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Nothing runs; how the last instance ended, while KubeVirt still shows it.
    Down(Option<VmiPhase>),
    /// On its way: the phase it is in.
    Coming(VmiPhase),
    /// The domain runs.
    Running,
    /// Being stopped, or ended while its launcher still clears up.
    Leaving,
    /// The node does not answer: whether the guest runs is not known. The text says which node and why.
    Lost(String),
}

impl Life {
    pub(super) fn of(facts: &Facts, objects: &Objects) -> Self {
        let phase = objects.vmi.map(phase);
        let live_pod = objects.pods.iter().any(|pod| !terminal(pod));
        if !live_pod && phase.is_none_or(VmiPhase::is_final) {
            return Self::Down(phase);
        }
        if let Some(why) = lost(facts, objects) {
            return Self::Lost(why);
        }
        match (objects.vmi, phase) {
            (Some(vmi), _) if vmi.metadata.deletion_timestamp.is_some() => Self::Leaving,
            (_, Some(VmiPhase::Running)) => Self::Running,
            (_, Some(phase)) if !phase.is_final() => Self::Coming(phase),
            _ => Self::Leaving,
        }
    }
}

/// Its phase; unset when KubeVirt has not looked at it yet.
pub(super) fn phase(vmi: &VirtualMachineInstance) -> VmiPhase {
    vmi.status.as_ref().and_then(|status| status.phase).unwrap_or_default()
}

/// Since when it is in that phase; its creation when KubeVirt does not say.
pub(super) fn since(vmi: &VirtualMachineInstance, phase: VmiPhase) -> Option<Timestamp> {
    let told = vmi.status.as_ref().and_then(|status| status.since(phase));
    told.or(vmi.metadata.creation_timestamp.as_ref()).map(|time| time.0)
}

/// What KubeVirt says of it: reason and message of a condition.
pub(super) fn says(vmi: &VirtualMachineInstance, kind: &str, status: &str) -> Option<String> {
    let condition = condition(&vmi.status.as_ref()?.conditions, kind).filter(|c| c.status == status)?;
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let said = match (text(&condition.reason), text(&condition.message)) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (one, other) => one.or(other).unwrap_or_else(|| format!("{kind} is {status}")),
    };
    Some(said)
}

/// Why the node cannot be asked, if it cannot.
fn lost(facts: &Facts, objects: &Objects) -> Option<String> {
    if objects.vmi.map(phase) == Some(VmiPhase::Unknown) {
        return Some("KubeVirt does not reach the node".into());
    }
    let name = super::facts::node_of(
        facts.vmis.present().map_or(&[], Vec::as_slice),
        facts.pods.present().map_or(&[], Vec::as_slice),
    )?;
    match &facts.node {
        Seen::Absent => Some(format!("node {name} is gone from the cluster")),
        Seen::Present(node) if node.name_any() == name && !answers(node) => Some(format!("node {name} is not ready")),
        Seen::Present(_) | Seen::Unknown(_) => None,
    }
}

/// Whether the node's kubelet reports. A node that never said anything is new, not lost.
fn answers(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == names::READY));
    ready.is_none_or(|ready| ready.status != "Unknown" && ready.status != "False")
}

/// Whether the node takes no new pods.
pub(super) fn cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}
