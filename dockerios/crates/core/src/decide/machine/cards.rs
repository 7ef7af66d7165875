//! Cards of one device in the whole cluster: arithmetic alone.
//!
//! Invariant: a card counts as free only where the scheduler would put a machine. One on a node that is cordoned, not
//! ready or going is neither offered nor, when a machine of that node has it, in use elsewhere; and a count that cannot
//! be read is not known, which is not none.

use std::{collections::BTreeSet, sync::Arc};

use dockerios_api::Size;
use dockerios_kubevirt::VirtualMachine;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// A card is one machine's as long as that machine has a VirtualMachine: a stopped one keeps it, as it keeps disk and
/// identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cards {
    /// That nodes offer which take machines.
    pub total: u64,
    /// Of machines' VirtualMachines, running or not, and of others' that run; but for those on a node that takes none.
    pub used: u64,
    /// On nodes that take no machine: cordoned, not ready, or going.
    pub shut: u64,
}

/// A VirtualMachine with cards, a machine's, or anybody's that runs, and the node of its instance; none while it has none.
pub type Holder = (Arc<VirtualMachine>, Option<String>);

impl Cards {
    /// Counts the cards of that device; with the audio function that is handed over beside each, if it has one: a card
    /// whose audio function the node does not offer is none that a machine gets.
    ///
    /// # Errors
    /// A node says a number that is none.
    pub fn count(device: &str, audio: Option<&str>, nodes: &[Arc<Node>], holders: &[Holder]) -> Result<Self, String> {
        let mut cards = Self::default();
        let mut closed = BTreeSet::new();
        for node in nodes {
            let beside = audio.map_or(Ok(u64::MAX), |audio| offered(node, audio))?;
            let offered = offered(node, device)?.min(beside);
            if takes_machines(node) {
                cards.total = cards.total.saturating_add(offered);
            } else {
                cards.shut = cards.shut.saturating_add(offered);
                closed.insert(node.name_any());
            }
        }
        let elsewhere = |(_, node): &&Holder| node.as_ref().is_none_or(|node| !closed.contains(node));
        cards.used = holders.iter().filter(elsewhere).map(|(vm, _)| held(vm, device)).sum();
        Ok(cards)
    }
}

/// Whether the scheduler puts machines there.
fn takes_machines(node: &Node) -> bool {
    let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    ready && !cordoned && node.metadata.deletion_timestamp.is_none()
}

/// Kubernetes keeps counts as quantities: 2000 is stored as `2k`.
fn offered(node: &Node, device: &str) -> Result<u64, String> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let Some(count) = allocatable.and_then(|all| all.get(device)) else {
        return Ok(0);
    };
    match count.0.trim() {
        "0" => Ok(0),
        text => Size::from(text).bytes().map_err(|_| {
            format!(
                "Node {} offers {text:?} of {device}, which is no whole number",
                node.name_any()
            )
        }),
    }
}

/// KubeVirt hands over the same devices under either name.
fn held(vm: &VirtualMachine, device: &str) -> u64 {
    let devices = &vm.spec.template.spec.domain.devices;
    let all = devices.gpus.iter().chain(&devices.host_devices);
    all.filter(|one| one.device_name == device).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const DEVICE: &str = "amd.com/polaris";

    fn node(name: &str, count: &str, change: Value) -> Arc<Node> {
        let mut node = json!({"metadata": {"name": name}, "spec": {}, "status": {
            "allocatable": {DEVICE: count, "cpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        for (pointer, value) in change.as_object().into_iter().flatten() {
            *node.pointer_mut(pointer).expect("a place") = value.clone();
        }
        Arc::new(serde_json::from_value(node).expect("a node"))
    }

    fn holder(field: &str, devices: &[&str], node: Option<&str>) -> Holder {
        let named = devices
            .iter()
            .map(|device| json!({"name": "card", "deviceName": device}));
        let named: Vec<Value> = named.collect();
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"runStrategy": "Once", "template": {"spec": {"domain": {"devices": {field: named}}}}}});
        let vm = serde_json::from_value(vm).expect("a VirtualMachine");
        (Arc::new(vm), node.map(str::to_owned))
    }

    #[test]
    fn cards_on_nodes_that_take_no_machine_are_neither_free_nor_used() {
        let counted = |nodes: &[Arc<Node>], holders: &[Holder]| {
            let cards = Cards::count(DEVICE, None, nodes, holders).expect("counted");
            (cards.total, cards.used, cards.shut)
        };
        let open = || node("open", "2", json!({}));
        let cordoned = node("shut", "3", json!({"/spec": {"unschedulable": true}}));
        let silent = node("shut", "3", json!({"/status/conditions/0/status": "Unknown"}));
        let no_word = node("shut", "3", json!({"/status/conditions": []}));
        let going = node(
            "shut",
            "3",
            json!({"/metadata": {"name": "shut", "deletionTimestamp": "2026-03-02T09:00:00Z"}}),
        );
        assert_eq!(counted(&[open()], &[]), (2, 0, 0));
        for shut in [cordoned, silent, no_word, going] {
            let nodes = [open(), shut];
            assert_eq!(counted(&nodes, &[]), (2, 0, 3), "{nodes:?}");
            // the machine on the shut node has a card of that node, not one of those that are left
            let one = |at| [holder("gpus", &[DEVICE], at)];
            assert_eq!(counted(&nodes, &one(Some("shut"))), (2, 0, 3));
            assert_eq!(counted(&nodes, &one(Some("open"))), (2, 1, 3));
            assert_eq!(counted(&nodes, &one(None)), (2, 1, 3), "a stopped one keeps its card");
        }
    }

    #[test]
    fn a_card_counts_under_either_of_kubevirts_names_and_each_time_it_is_named() {
        let nodes = [node("open", "8", json!({}))];
        let holders = [
            holder("gpus", &[DEVICE, DEVICE, "amd.com/audio"], None),
            holder("hostDevices", &[DEVICE], None),
            holder("hostDevices", &["amd.com/audio"], None),
        ];
        assert_eq!(
            Cards::count(DEVICE, None, &nodes, &holders).map(|cards| cards.used),
            Ok(3)
        );
    }

    #[test]
    fn a_card_without_its_audio_function_beside_it_on_the_same_node_is_none() {
        let with = |name: &str, count: &str, audio: &str| {
            node(
                name,
                count,
                json!({"/status/allocatable": {DEVICE: count, "amd.com/audio": audio}}),
            )
        };
        let nodes = [
            with("both", "2", "2"),
            with("one", "2", "1"),
            node("none", "2", json!({})),
        ];
        for (audio, total) in [(None, 6), (Some("amd.com/audio"), 3)] {
            let cards = Cards::count(DEVICE, audio, &nodes, &[]);
            assert_eq!(cards.map(|cards| cards.total), Ok(total), "{audio:?}");
        }
    }

    #[test]
    fn counts_are_read_as_kubernetes_writes_them_and_what_is_no_number_is_said_with_its_node() {
        for (text, count) in [("0", 0), ("7", 7), ("2k", 2000), ("1Ki", 1024)] {
            let cards = Cards::count(DEVICE, None, &[node("n", text, json!({}))], &[]);
            assert_eq!(cards.map(|cards| cards.total), Ok(count), "{text}");
        }
        let unread = Cards::count(DEVICE, None, &[node("n", "many", json!({}))], &[]);
        assert_eq!(
            unread,
            Err("Node n offers \"many\" of amd.com/polaris, which is no whole number".to_owned())
        );
    }
}
