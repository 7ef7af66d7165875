//! Quarantine: entered on what the agent reports, left only by what each reason demands.
//!
//! The operator alone writes the list; an agent's restart, a heartbeat or a VM that starts well clears nothing.

use k8s_openapi::jiff::Timestamp;
use macrack_api::{
    MacNode,
    rack::node::{AgentStatus, Quarantine, QuarantineReason, VmState},
};

use crate::clock::time;

/// The list as it should be now.
pub(super) fn decide(node: &MacNode, now: Timestamp) -> Vec<Quarantine> {
    let Some(status) = &node.status else {
        return Vec::new();
    };
    let Some(agent) = &status.agent else {
        return status.quarantine.clone();
    };
    let mut list: Vec<Quarantine> = status
        .quarantine
        .iter()
        .filter(|entry| !cleared_by_hand(node, entry) && !earned(entry, agent))
        .cloned()
        .collect();
    for reason in seen(node, agent) {
        let entry = Quarantine { reason: reason.into(), since: time(now), boot_id: agent.boot_id.clone() };
        let known = list.iter_mut().find(|e| e.reason == reason.as_str());
        // what an admin cleared in this very pass is not entered again from the same report
        let just_cleared = status.quarantine.iter().any(|e| e.reason == reason.as_str() && cleared_by_hand(node, e));
        match known {
            // a counter that sticks in a new boot too is that boot's: it takes another one to end it
            Some(known) => known.boot_id = entry.boot_id,
            None if !just_cleared => list.push(entry),
            None => {}
        }
    }
    list
}

fn cleared_by_hand(node: &MacNode, entry: &Quarantine) -> bool {
    node.spec.cleared_quarantine.as_deref() == Some(entry.token().as_str())
}

/// Whether what the agent reports ends an entry by itself.
fn earned(entry: &Quarantine, agent: &AgentStatus) -> bool {
    let is = |reason: QuarantineReason| entry.reason == reason.as_str();
    if is(QuarantineReason::QuotaStuck) {
        let tested = agent.quota.checked_boot_id.as_deref() == Some(agent.boot_id.as_str());
        return agent.boot_id != entry.boot_id && tested && !agent.quota.stuck;
    }
    if is(QuarantineReason::ReattachFailed) {
        return agent.vms.iter().all(|vm| vm.state != VmState::Unknown);
    }
    if is(QuarantineReason::ForeignVM) {
        return agent.quota.foreign == 0;
    }
    false // SerialMismatch and WipeFailed need a person
}

/// What the report gives reason for.
fn seen(node: &MacNode, agent: &AgentStatus) -> Vec<QuarantineReason> {
    let mut reasons = Vec::new();
    if agent.quota.stuck {
        reasons.push(QuarantineReason::QuotaStuck);
    }
    if agent.vms.iter().any(|vm| vm.state == VmState::Unknown) {
        reasons.push(QuarantineReason::ReattachFailed);
    }
    if agent.hardware.as_ref().is_some_and(|h| h.serial != node.spec.serial) {
        reasons.push(QuarantineReason::SerialMismatch);
    }
    if agent.vms.iter().any(|vm| vm.state == VmState::WipeFailed) {
        reasons.push(QuarantineReason::WipeFailed);
    }
    if agent.quota.foreign > 0 {
        reasons.push(QuarantineReason::ForeignVM);
    }
    reasons
}

#[cfg(test)]
mod tests {
    use macrack_api::{
        MacNodeSpec, MacNodeStatus,
        rack::node::{QuotaFacts, Vm},
    };

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn node(reasons: &[QuarantineReason], agent: AgentStatus) -> MacNode {
        let mut node = MacNode::new(
            "h4xk29q0lw",
            MacNodeSpec {
                serial: "H4XK29Q0LW".into(),
                node_class_name: "mini".into(),
                unschedulable: false,
                drain: false,
                retirement: None,
                approved_reboot: None,
                cleared_quarantine: None,
            },
        );
        let quarantine = reasons
            .iter()
            .map(|r| Quarantine { reason: (*r).into(), since: time(at("2026-03-02T09:00:00Z")), boot_id: "one".into() })
            .collect();
        node.status = Some(MacNodeStatus { quarantine, agent: Some(agent), ..Default::default() });
        node
    }

    fn boot(id: &str, tested: bool) -> AgentStatus {
        let quota = QuotaFacts { checked_boot_id: tested.then(|| id.into()), ..Default::default() };
        AgentStatus { boot_id: id.into(), quota, ..Default::default() }
    }

    fn left(node: &MacNode) -> Vec<String> {
        decide(node, at("2026-03-02T10:00:00Z")).into_iter().map(|e| e.reason).collect()
    }

    #[test]
    fn each_reason_ends_only_as_it_must() {
        use QuarantineReason::{QuotaStuck, ReattachFailed, SerialMismatch, WipeFailed};
        let stays = |r: &[QuarantineReason]| r.iter().map(|r| r.to_string()).collect::<Vec<_>>();
        for (what, reasons, agent, expect) in [
            ("agent restart, same boot", vec![QuotaStuck], boot("one", true), stays(&[QuotaStuck])),
            ("new boot, self test passed", vec![QuotaStuck], boot("two", true), vec![]),
            ("new boot, no self test", vec![QuotaStuck], boot("two", false), stays(&[QuotaStuck])),
            ("new boot for a wrong serial", vec![SerialMismatch], boot("two", true), stays(&[SerialMismatch])),
            ("restart with a failed wipe", vec![WipeFailed], boot("two", true), stays(&[WipeFailed])),
            ("all attached again", vec![ReattachFailed], boot("one", false), vec![]),
            ("two reasons", vec![QuotaStuck, WipeFailed], boot("two", true), stays(&[WipeFailed])),
        ] {
            assert_eq!(left(&node(&reasons, agent)), expect, "{what}");
        }
    }

    #[test]
    fn an_admin_clears_exactly_the_entry_that_was_echoed() {
        let mut n = node(&[QuarantineReason::SerialMismatch], boot("one", false));
        n.spec.cleared_quarantine = Some("SerialMismatch@2026-03-01T00:00:00Z".into());
        assert_eq!(left(&n), ["SerialMismatch"], "an older entry's echo clears nothing");
        n.spec.cleared_quarantine = Some("SerialMismatch@2026-03-02T09:00:00Z".into());
        assert!(left(&n).is_empty());
    }

    #[test]
    fn an_unknown_vm_quarantines_and_no_report_changes_nothing() {
        let vm = Vm {
            uid: "a".into(),
            state: VmState::Unknown,
            guest_ready: false,
            message: None,
            since: None,
            cloned_by: None,
            wipe: None,
        };
        let n = node(&[], AgentStatus { boot_id: "one".into(), vms: vec![vm], ..Default::default() });
        assert_eq!(left(&n), ["ReattachFailed"]);
        let mut silent = node(&[QuarantineReason::WipeFailed], AgentStatus::default());
        silent.status.as_mut().unwrap().agent = None;
        assert_eq!(left(&silent), ["WipeFailed"]);
    }
}
