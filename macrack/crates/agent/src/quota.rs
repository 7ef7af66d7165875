//! What the kernel's VM counter is known to be, and what a refused start means: pure.
//!
//! Invariants: only "code 6 with fewer than two alive, twice" makes a stuck counter, and only a new boot
//! ends one. The quota is never worked around.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use macrack_api::names::VMS_PER_MAC;
use serde::{Deserialize, Serialize};

/// Between a refused start and its one retry: the kernel may be a moment late in counting down.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(3);
/// Between looks at what else holds the counter up.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// What is known of the counter in this boot; kept in `quota.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// The boot that all of this is about.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// The counter did not go down.
    #[serde(default)]
    pub stuck: bool,
    /// The boot in which a start last succeeded.
    #[serde(default, rename = "checkedBootID")]
    pub checked_boot_id: Option<String>,
    /// Virtualization processes that are not MacRack's, when last looked.
    #[serde(skip)]
    pub foreign: usize,
    /// Per uid: starts refused with fewer than two alive.
    #[serde(skip)]
    pub refusals: BTreeMap<String, u32>,
    /// No start before this.
    #[serde(skip)]
    pub not_before: Option<Timestamp>,
}

/// What lives on the host at the moment of a refusal, the refused VM not among it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alive {
    /// VMs of ours that are known: running, starting, stopping.
    pub ours: usize,
    /// VM processes of ours whose VM is unknown: its directory is gone.
    pub orphans: Vec<u32>,
    /// Virtualization processes of others.
    pub foreign: usize,
}

/// What a refused start means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// End these processes, then try once more.
    Reap(Vec<u32>),
    /// Two of ours live: the kernel is right.
    Full,
    /// Somebody else's VMs are counted.
    Foreign,
    /// Try once more.
    Retry,
    /// The counter is stuck; nothing starts until the next boot.
    Stuck,
}

impl Quota {
    /// What is known in boot `boot_id`, given what was `kept`: nothing of another boot.
    pub fn in_boot(kept: Option<Quota>, boot_id: &str) -> Quota {
        match kept {
            Some(quota) if quota.boot_id == boot_id => quota,
            kept => Quota {
                boot_id: boot_id.to_owned(),
                checked_boot_id: kept.and_then(|quota| quota.checked_boot_id),
                ..Quota::default()
            },
        }
    }

    /// A start of `uid` succeeded.
    pub fn started(&mut self, uid: &str) {
        self.checked_boot_id = Some(self.boot_id.clone());
        self.refusals.remove(uid);
    }

    /// A start of `uid` was refused with code 6 while `alive` lived.
    pub fn refused(&mut self, uid: &str, alive: &Alive, now: Timestamp) -> Verdict {
        self.foreign = alive.foreign;
        let verdict = if !alive.orphans.is_empty() {
            Verdict::Reap(alive.orphans.clone())
        } else if alive.ours >= VMS_PER_MAC {
            Verdict::Full
        } else if alive.foreign > 0 {
            Verdict::Foreign
        } else {
            let refusals = self.refusals.entry(uid.to_owned()).or_default();
            *refusals += 1;
            if *refusals > 1 { Verdict::Stuck } else { Verdict::Retry }
        };
        self.stuck |= verdict == Verdict::Stuck;
        let pause = match verdict {
            Verdict::Full | Verdict::Foreign => LOOK_AGAIN,
            _ => RETRY_AFTER,
        };
        self.not_before = Some(now + pause);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn alive(ours: usize, orphans: &[u32], foreign: usize) -> Alive {
        Alive { ours, orphans: orphans.to_vec(), foreign }
    }

    fn quota() -> Quota {
        Quota::in_boot(None, "boot-1")
    }

    #[test]
    fn code_6_with_fewer_than_two_alive_is_retried_once_and_then_stuck() {
        let mut quota = quota();
        assert_eq!(quota.refused("i2", &alive(1, &[], 0), NOW), Verdict::Retry);
        assert!(!quota.stuck, "one refusal is no proof");
        assert!(quota.not_before > Some(NOW), "the retry comes at once");
        assert_eq!(quota.refused("i2", &alive(1, &[], 0), NOW), Verdict::Stuck);
        assert!(quota.stuck);
    }

    #[test]
    fn an_orphan_of_ours_is_reaped_and_never_called_a_stuck_counter() {
        let mut quota = quota();
        assert_eq!(quota.refused("i2", &alive(1, &[501], 0), NOW), Verdict::Reap(vec![501]));
        assert!(!quota.stuck);
        assert_eq!(quota.refused("i2", &alive(1, &[], 0), NOW), Verdict::Retry, "the reaping was not the retry");
    }

    #[test]
    fn two_of_ours_or_a_foreign_one_is_no_stuck_counter_however_often() {
        let mut quota = quota();
        for _ in 0..5 {
            assert_eq!(quota.refused("i3", &alive(2, &[], 0), NOW), Verdict::Full);
            assert_eq!(quota.refused("i2", &alive(1, &[], 1), NOW), Verdict::Foreign);
        }
        assert!(!quota.stuck);
        assert_eq!(quota.foreign, 1);
    }

    #[test]
    fn only_a_new_boot_ends_a_stuck_counter() {
        let mut stuck = quota();
        stuck.started("i1");
        stuck.stuck = true;
        assert!(Quota::in_boot(Some(stuck.clone()), "boot-1").stuck, "an agent's restart cleared it");
        let next = Quota::in_boot(Some(stuck), "boot-2");
        assert!(!next.stuck);
        assert_eq!(next.checked_boot_id.as_deref(), Some("boot-1"), "not checked in this boot yet");
    }

    #[test]
    fn a_start_that_succeeds_forgives_earlier_refusals() {
        let mut quota = quota();
        quota.refused("i2", &alive(0, &[], 0), NOW);
        quota.started("i2");
        assert_eq!(quota.refused("i2", &alive(0, &[], 0), NOW), Verdict::Retry);
        assert_eq!(quota.checked_boot_id.as_deref(), Some("boot-1"));
    }
}
