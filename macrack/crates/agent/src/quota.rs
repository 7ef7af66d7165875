//! What the kernel's VM counter is known to be, and what a refused start means: pure.
//!
//! Invariants: only "code 6 with fewer than two alive, twice" makes a stuck counter, and only a new boot
//! ends one. Whether it stuck in this boot is never forgotten: where the note of it cannot be read, nothing starts
//! either. The quota is never worked around.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use macrack_api::names::VMS_PER_MAC;
use serde::{Deserialize, Serialize};

use crate::host::VmProcess;
use crate::life::Life;

/// Between a refused start and its one retry: the kernel may be a moment late in counting down.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(3);
/// Between looks at what else holds the counter up.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// The longest that a refused start holds others up.
pub const LONGEST_PAUSE: SignedDuration = LOOK_AGAIN;

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
    /// Why it is not known whether the counter stuck in this boot, with the way out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
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
    /// VM processes that serve a directory of ours of which no VM is known: it is gone.
    pub orphans: Vec<u32>,
    /// Virtualization processes of others.
    pub foreign: usize,
}

impl Alive {
    /// What lives among `processes`, with `lives` of the VMs in the directory `vms`, when the start of `refused` was
    /// refused.
    pub fn of(processes: &[VmProcess], vms: &Path, lives: &BTreeMap<String, Life>, refused: &str) -> Alive {
        let serves = |process: &VmProcess, uid: &str| process.dir.as_deref() == Some(&*vms.join(uid));
        let held = |uid: &str| processes.iter().any(|process| serves(process, uid));
        let ours = lives.iter().filter(|(uid, life)| *uid != refused && (life.is_alive() || held(uid)));
        let known = |process: &&VmProcess| lives.keys().any(|uid| serves(process, uid));
        let own = processes.iter().filter(|process| !is_foreign(process, vms));
        Alive {
            ours: ours.count(),
            orphans: own.filter(|process| !known(process)).map(|process| process.pid).collect(),
            foreign: foreign(processes, vms),
        }
    }
}

/// How many of `processes` are not of this chassis, whose VMs lie in `vms`. They count towards two, and are not ours to
/// end, though their program may be ours: somebody's by hand, or of another state directory.
pub fn foreign(processes: &[VmProcess], vms: &Path) -> usize {
    processes.iter().filter(|process| is_foreign(process, vms)).count()
}

fn is_foreign(process: &VmProcess, vms: &Path) -> bool {
    process.dir.as_deref().is_none_or(|dir| !dir.starts_with(vms))
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

    /// What is known in boot `boot_id` from a note that may not be readable. One that is not is taken to be of this boot.
    pub fn noted(note: io::Result<Option<Quota>>, boot_id: &str) -> Quota {
        match note {
            Ok(kept) => Quota::in_boot(kept, boot_id),
            Err(error) => Quota {
                unread: Some(format!(
                    "whether the kernel's VM counter is stuck in this boot is not known, so no VM starts: reboot this Mac \
                     ({error})"
                )),
                ..Quota::in_boot(None, boot_id)
            },
        }
    }

    /// A start of `uid` succeeded.
    pub fn started(&mut self, uid: &str) {
        // a VM that an earlier life started says nothing of a counter that may have stuck since
        if self.unread.is_none() {
            self.checked_boot_id = Some(self.boot_id.clone());
        }
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
    fn only_what_serves_a_lost_directory_of_this_chassis_is_an_orphan_and_other_programs_vms_are_foreign() {
        let process = |pid, dir: Option<&str>| VmProcess { pid, dir: dir.map(Into::into) };
        let lives = [
            ("running".to_owned(), Life::Running),
            ("silent".to_owned(), Life::WipeFailed("busy".to_owned())),
            ("refused".to_owned(), Life::AtRest(crate::life::Rest::Ready)),
        ];
        let processes = [
            process(1, Some("/s/vms/running")),
            process(2, Some("/s/vms/silent")),
            process(3, Some("/s/vms/lost")),
            process(4, Some("/home/admin/vms/running")),
            process(5, None),
        ];
        let found = Alive::of(&processes, Path::new("/s/vms"), &lives.into(), "refused");
        assert_eq!(found, alive(2, &[3], 2), "an admin's own VM would be ended by force");
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
    fn a_note_that_cannot_be_read_is_no_healthy_counter_until_the_next_boot() {
        let spoiled = || Err(io::Error::new(io::ErrorKind::InvalidData, "quota.json: expected value"));
        let unknown = Quota::noted(spoiled(), "boot-1");
        let why = unknown.unread.clone().unwrap();
        assert!(why.contains("reboot this Mac (quota.json: expected value)"), "{why}");
        assert!(!unknown.stuck, "nobody has seen that");
        // kept in the place of what could not be read, it holds over an agent's restart and ends with the boot
        let mut running = unknown.clone();
        running.started("i1");
        assert_eq!(running.checked_boot_id, None, "one that runs is no proof that the next would");
        let kept: Quota = serde_json::from_str(&serde_json::to_string(&unknown).unwrap()).unwrap();
        assert_eq!(Quota::noted(Ok(Some(kept.clone())), "boot-1").unread, Some(why));
        assert_eq!(Quota::noted(Ok(Some(kept)), "boot-2").unread, None);
        assert_eq!(Quota::noted(Ok(None), "boot-1").unread, None, "never noted is another matter");
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
