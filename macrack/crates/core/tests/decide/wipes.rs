//! What is kept of a wipe.

use macrack_api::rack::node::{Order::*, VmState, VmState::*, WipeReceipt, WipedItem};
use macrack_core::{
    decide::node::{digest, in_words},
    plan::Step,
};

use super::rack::{Rack, time, uid};

fn receipt(bytes: i64) -> WipeReceipt {
    let item = |what: &str, count| WipedItem {
        what: what.into(),
        count,
        bytes,
        verified_by: "listing of the VM's directory".into(),
    };
    WipeReceipt {
        started_at: time("+2h"),
        finished_at: time("+2h1m"),
        items: vec![item("process", 0), item("disks", 2)],
        agent_version: "0.1.0".into(),
    }
}

fn wiped(rack: Rack, name: &str, state: VmState, receipt: Option<WipeReceipt>) -> Rack {
    let mut rack = rack.vm(name, state);
    rack.agent().vms.last_mut().unwrap().wipe = receipt;
    rack
}

fn kept(rack: &Rack) -> Vec<macrack_api::rack::node::WipeRecord> {
    let plan = rack.node_pass().plan;
    let kept = plan.steps.iter().find_map(|s| if let Step::KeepWipes { to, .. } = s { Some(to.clone()) } else { None });
    kept.unwrap_or_default()
}

#[test]
fn a_receipt_is_kept_before_the_slot_that_shows_it_is_emptied_and_only_once() {
    let rack = Rack::leased().slot("i1", Wipe).at("+3h");
    let rack = wiped(rack, "i1", Wiped, Some(receipt(7)));
    let steps = rack.node_pass().steps();
    assert_eq!(steps, ["keep wipes [i1]", "slots []"], "a crash between the two loses nothing");
    let records = kept(&rack);
    assert_eq!((records[0].uid.as_str(), records[0].name.as_str()), (uid("i1").as_str(), "i1"));
    assert_eq!(records[0].lease_uid, rack.node.status.as_ref().unwrap().lease_ref.as_ref().map(|r| r.uid.clone()));
    assert_eq!((&records[0].wiped_at, &records[0].digest), (&time("+2h1m"), &digest(&receipt(7))));
    let again = rack.with(|r| r.status().wipes = records);
    assert_eq!(again.node_pass().steps(), ["slots []"], "the crash came between: it is kept already");
}

#[test]
fn nothing_is_kept_of_a_vm_that_never_was_there_or_is_not_wiped_yet() {
    let never = wiped(Rack::leased().slot("i1", Wipe).at("+3h"), "i1", Wiped, None);
    assert_eq!(never.node_pass().steps(), ["slots []"]);
    let early = wiped(Rack::leased().slot("i1", Wipe).at("+3h"), "i1", WipeFailed, Some(receipt(7)));
    assert!(kept(&early).is_empty());
}

#[test]
fn the_last_eight_are_kept_the_newest_last() {
    let old = wiped(Rack::leased().slot("i1", Wipe).at("+3h"), "i1", Wiped, Some(receipt(7)));
    let one = kept(&old).remove(0);
    let full = old.with(|r| {
        r.status().wipes =
            (0..8).map(|n| macrack_api::rack::node::WipeRecord { uid: uid(&format!("o{n}")), ..one.clone() }).collect();
    });
    let records = kept(&full);
    assert_eq!((records.len(), &records[0].uid, &records[7].uid), (8, &uid("o1"), &uid("i1")));
}

#[test]
fn a_digest_is_of_every_field_and_the_words_name_what_was_there() {
    assert_ne!(digest(&receipt(7)), digest(&receipt(8)));
    let rack = wiped(Rack::leased().slot("i1", Wipe).at("+3h"), "i1", Wiped, Some(receipt(7_000_000)));
    let words = in_words(&kept(&rack)[0], &receipt(7_000_000));
    for part in ["/i1", "2 disks; 14 MB", "sha256:"] {
        assert!(words.contains(part), "{part} is missing in: {words}");
    }
    assert!(!words.contains("process"), "{words}");
}
