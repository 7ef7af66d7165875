//! What is kept of a wipe when the VM's slot is given on.
//!
//! Invariant: a receipt is kept before the slot that shows it is emptied: the agent reports it only while the uid has a
//! slot.

use macrack_api::rack::node::{AgentStatus, Slot, VmState, WipeReceipt, WipeRecord};
use sha2::{Digest, Sha256};

use super::Facts;
use crate::plan::{Plan, Step};
use kube::ResourceExt;

/// Wipes that a MacNode keeps, as its schema says.
const KEPT: usize = 8;

/// `sha256:…` of a receipt as JSON.
pub fn digest(receipt: &WipeReceipt) -> String {
    let json = serde_json::to_vec(receipt).unwrap_or_default();
    let hex: String = Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A wipe in a sentence.
pub fn in_words(record: &WipeRecord, receipt: &WipeReceipt) -> String {
    let there = receipt.items.iter().filter(|item| item.count > 0);
    let items: Vec<String> = there.map(|item| format!("{} {}", item.count, item.what)).collect();
    let bytes: i64 = receipt.items.iter().fold(0, |sum, item| sum.saturating_add(item.bytes));
    format!(
        "{}/{} ({}) was wiped and looked for again: {}; {} MB, receipt {}",
        record.namespace,
        record.name,
        record.uid,
        if items.is_empty() { "nothing was there".to_owned() } else { items.join(", ") },
        bytes / 1_000_000,
        record.digest
    )
}

/// Keeps the receipts that the agent reports of VMs in slots and that are not kept yet.
pub(super) fn keep(facts: &Facts, plan: &mut Plan) {
    let from = facts.status().map_or(&[][..], |status| &status.wipes);
    let known = |record: &WipeRecord| from.iter().any(|old| old.uid == record.uid && old.digest == record.digest);
    let new: Vec<(WipeRecord, WipeReceipt)> =
        facts.slots().iter().filter_map(|slot| record(facts, slot)).filter(|(record, _)| !known(record)).collect();
    if new.is_empty() {
        return;
    }
    // a uid that was wiped twice is told of once, by its last receipt
    let mut to: Vec<WipeRecord> =
        from.iter().filter(|old| new.iter().all(|(record, _)| record.uid != old.uid)).cloned().collect();
    to.extend(new.iter().map(|(record, _)| record.clone()));
    to.drain(..to.len().saturating_sub(KEPT));
    plan.steps.push(Step::KeepWipes {
        mac_node: facts.node.name_any(),
        mac_node_uid: facts.node.uid().unwrap_or_default(),
        from: from.to_vec(),
        to,
        new,
    });
}

/// The receipt of the VM in this slot, once the agent reports it Wiped.
pub fn wiped<'a>(agent: &'a AgentStatus, slot: &Slot) -> Option<&'a WipeReceipt> {
    agent.vms.iter().find(|vm| vm.uid == slot.uid && vm.state == VmState::Wiped)?.wipe.as_ref()
}

fn record(facts: &Facts, slot: &Slot) -> Option<(WipeRecord, WipeReceipt)> {
    let receipt = wiped(facts.agent()?, slot)?;
    let record = WipeRecord {
        uid: slot.uid.clone(),
        namespace: slot.namespace.clone(),
        name: slot.name.clone(),
        lease_uid: facts.lease_ref().map(|lease| lease.uid.clone()),
        wiped_at: receipt.finished_at.clone(),
        digest: digest(receipt),
    };
    Some((record, receipt.clone()))
}
