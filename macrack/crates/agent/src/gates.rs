//! What keeps any VM from being made or started on this Mac, whoever's it is: pure.
//!
//! Invariant: whoever makes or starts a VM asks [`Gates::shut`], an order of the API and the self test alike, so that
//! no gate holds for the one and not for the other.

use std::collections::BTreeMap;

use jiff::Timestamp;
use macrack_api::names::VMS_PER_MAC;

use crate::backoff::waits;
use crate::life::Life;
use crate::quota::{LONGEST_PAUSE, Quota};

/// The chassis as it is.
#[derive(Debug, Clone, Copy)]
pub struct Gates<'a> {
    /// Now.
    pub now: Timestamp,
    /// Every VM on this disk, by uid.
    pub vms: &'a BTreeMap<String, Life>,
    /// The kernel's counter.
    pub quota: &'a Quota,
    /// By uid: why there is no room for a disk that is to be cloned.
    pub crowded_out: &'a BTreeMap<String, String>,
    /// The Mac is being shut down.
    pub going_down: bool,
}

/// A gate that is shut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shut {
    /// Why, and the way out, for whoever waits.
    pub why: String,
    /// It is opened by time alone.
    pub until: Option<Timestamp>,
}

impl<'a> Gates<'a> {
    /// The VMs that live.
    pub fn alive(&self) -> Vec<&'a str> {
        self.vms.iter().filter(|(_, life)| life.is_alive()).map(|(uid, _)| uid.as_str()).collect()
    }

    /// The first gate that is shut for `uid`; `alive` are the VMs that live, or are to before it does.
    pub fn shut(&self, uid: &str, alive: &[&str]) -> Option<Shut> {
        if self.going_down {
            return shut("this Mac is shutting down; it starts again by itself once the Mac is up");
        }
        if let Some((unknown, _)) = self.vms.iter().find(|(_, life)| matches!(life, Life::Unknown(_))) {
            return shut(format!("VM {unknown} on this Mac cannot be reached; nothing starts until it can"));
        }
        if self.quota.stuck {
            return shut(
                "the kernel refuses VMs although fewer than two run (its counter is stuck); nothing starts until this Mac was rebooted",
            );
        }
        if let Some(why) = &self.quota.unread {
            return shut(why.clone());
        }
        self.full(alive).or_else(|| self.crowded(uid)).or_else(|| self.paused())
    }

    /// Two live here, or would with what is being cloned and what is not ours.
    fn full(&self, alive: &[&str]) -> Option<Shut> {
        // a disk is being cloned for each of these: they start as soon as it is
        let cloning = self.vms.values().filter(|life| **life == Life::Cloning).count();
        let (ours, foreign) = (alive.len() + cloning, self.quota.foreign);
        if ours >= VMS_PER_MAC {
            return shut(format!(
                "two VMs live on this Mac already ({}); a third never starts, whatever the API says",
                alive.join(", ")
            ));
        }
        if foreign > 0 && ours + foreign >= VMS_PER_MAC {
            return shut(format!(
                "{foreign} virtualization process(es) that are not MacRack's run on this Mac and count towards two; end them"
            ));
        }
        None
    }

    /// There is no room for its disk, which is not there yet.
    fn crowded(&self, uid: &str) -> Option<Shut> {
        let unmade = matches!(self.vms.get(uid), None | Some(Life::Partial { .. }));
        self.crowded_out.get(uid).filter(|_| unmade).and_then(shut)
    }

    fn paused(&self) -> Option<Shut> {
        let until = self.quota.not_before.filter(|until| waits(*until, self.now, LONGEST_PAUSE))?;
        Some(Shut { why: "the kernel refused a start; it is tried again in a moment".to_owned(), until: Some(until) })
    }
}

fn shut(why: impl Into<String>) -> Option<Shut> {
    Some(Shut { why: why.into(), until: None })
}
