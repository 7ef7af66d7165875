//! What of the free disk is promised: pure.
//!
//! Invariant: a disk that may grow to the size of its class finds the room to do so, whatever is cloned or pulled
//! beside it.

use macrack_api::rack::node::Slot;

use crate::life::Facts;

/// Bytes that the host itself needs free: macOS swaps and updates on the same volume.
pub const HOST_RESERVE: u64 = 10_000_000_000;

/// Bytes that must stay free for the host and for those disks that may grow: of VMs that live, or have a slot. The
/// remains of another wait to be wiped and take nothing more.
pub fn reserve<'a>(vms: impl IntoIterator<Item = (&'a String, &'a Facts)>, slots: &[Slot]) -> u64 {
    let grows = |uid: &str, facts: &Facts| facts.life.is_alive() || slots.iter().any(|slot| slot.uid == uid);
    let growing = vms.into_iter().filter(|(uid, facts)| grows(uid, facts));
    growing.fold(HOST_RESERVE, |sum, (_, facts)| sum.saturating_add(facts.growth))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use macrack_api::rack::node::Order;

    use super::*;
    use crate::life::{Life, Rest};

    #[test]
    fn what_lives_or_has_a_slot_may_grow_and_remains_that_nobody_starts_may_not() {
        let facts = |life, growth| Facts { growth, ..Facts::new(life, Timestamp::UNIX_EPOCH) };
        let at_rest = || Life::AtRest(Rest::Ready);
        let vms: BTreeMap<String, Facts> = [
            ("slotted".to_owned(), facts(at_rest(), 1)),
            ("remains".to_owned(), facts(at_rest(), 1000)),
            ("orphan-that-runs".to_owned(), facts(Life::Running, 10)),
            ("unknown".to_owned(), facts(Life::Unknown("silent".to_owned()), 100)),
        ]
        .into();
        let slot = Slot {
            slot: 0,
            uid: "slotted".to_owned(),
            namespace: "t".to_owned(),
            name: "i".to_owned(),
            order: Order::Stop,
        };
        assert_eq!(reserve(&vms, &[slot]), HOST_RESERVE + 111);
        assert_eq!(reserve(&vms, &[]), HOST_RESERVE + 110);
        let endless: BTreeMap<String, Facts> = [("a".to_owned(), facts(Life::Running, u64::MAX))].into();
        assert_eq!(reserve(&endless, &[]), u64::MAX, "saturated, not wrapped");
    }
}
