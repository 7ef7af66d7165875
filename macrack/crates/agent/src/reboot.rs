//! One reboot of the host per approval.
//!
//! ```text
//!   approved, for this boot, nothing runs ──▶ reboot.json ──▶ macrack-hostd ──▶ begun ──▶ (a new boot)
//!                                                  ▲              │ nothing was done, or nobody knows
//!                                                  └──────────────┘ a while later, with the same approval
//! ```
//!
//! Invariants: what is asked stands on the disk before it is asked; an approval is for the boot that it names, so a
//! later boot does nothing with it; nothing is asked while a VM lives. Asking again with one approval is harmless, for
//! `macrack-hostd` uses each once, so a crash anywhere between gives neither two reboots nor none.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use macrack_api::rack::node::{Reboot, RebootFacts};
use macrack_hostd::client::{self, HostdError};
use macrack_wire::layout::{read_json, write_json};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::backoff::waits;
use crate::bell::Bell;
use crate::life::Life;
use crate::report::bounded;

/// Between two askings with one approval.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(15);
/// Longest problem in the report, as the schema says.
const PROBLEM: usize = 256;

/// Who reboots the host.
pub trait Power: Send + Sync + 'static {
    /// Reboots the host with the approval that `requested_at` names, once however often it is asked.
    fn reboot(&self, requested_at: Timestamp, reason: String) -> BoxFuture<'static, Result<(), HostdError>>;
}

/// `macrack-hostd` behind its socket.
#[derive(Debug, Clone)]
pub struct Hostd(pub PathBuf);

impl Power for Hostd {
    fn reboot(&self, requested_at: Timestamp, reason: String) -> BoxFuture<'static, Result<(), HostdError>> {
        let socket = self.0.clone();
        async move { client::reboot(&socket, requested_at, &reason).await }.boxed()
    }
}

/// What was asked last; kept in `reboot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// The approval, by the request that it echoes.
    pub requested_at: Timestamp,
    /// When the host was asked last.
    pub asked_at: Timestamp,
    /// The host said that the reboot has begun, or that this approval was used before.
    #[serde(default)]
    pub begun: bool,
    /// Why it has not.
    #[serde(default)]
    pub problem: Option<String>,
}

/// What is to be done about a reboot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Ask the host.
    Ask,
    /// Look again then.
    Wait(Timestamp),
}

/// Whether a reboot would cut off what a VM with this life is at.
pub fn is_busy(life: &Life) -> bool {
    life.is_alive() || matches!(life, Life::Cloning | Life::Wiping)
}

/// Decides, in boot `boot_id`, with `asked` on the disk; `busy`: [`is_busy`] of any VM.
pub fn decide(reboot: &Reboot, boot_id: &str, asked: Option<&Asked>, busy: bool, now: Timestamp) -> Step {
    let approved = reboot.approved_at.is_some() && reboot.done_boot_id.is_none();
    if !approved || reboot.boot_id.as_deref() != Some(boot_id) {
        return Step::Nothing;
    }
    if busy {
        return Step::Nothing; // its end rings
    }
    match asked {
        // another admin's clock, or a MacNode restored from a backup: never an older request than one that was carried out
        Some(asked) if asked.requested_at > reboot.requested_at.0 => Step::Nothing,
        Some(asked) if asked.requested_at == reboot.requested_at.0 && asked.begun => Step::Nothing,
        Some(asked) if asked.requested_at == reboot.requested_at.0 => match asked.asked_at.checked_add(ASK_AGAIN) {
            Ok(again) if waits(again, now, ASK_AGAIN) => Step::Wait(again),
            _ => Step::Ask,
        },
        _ => Step::Ask,
    }
}

/// What the answer to an asking says.
pub fn answered(asked: &Asked, answer: &Result<(), HostdError>) -> Asked {
    let (begun, problem) = match answer {
        Ok(()) => (true, None),
        Err(HostdError::Repeated(why)) => (true, Some(why.clone())),
        Err(error) => (false, Some(error.to_string())),
    };
    Asked { begun, problem: problem.map(|problem| bounded(&problem, PROBLEM)), ..asked.clone() }
}

/// Carries out what is decided.
pub struct Rebooter {
    file: PathBuf,
    power: Arc<dyn Power>,
    bell: Bell,
    /// What stands on the disk; without being able to read that, nothing is asked.
    asked: Result<Option<Asked>, String>,
    asking: Option<oneshot::Receiver<Result<(), HostdError>>>,
}

impl fmt::Debug for Rebooter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rebooter").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Rebooter {
    /// With what `file` holds.
    pub fn new(file: PathBuf, power: Arc<dyn Power>, bell: Bell) -> Self {
        let asked = match read_json(&file) {
            Ok(asked) => Ok(Some(asked)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(format!("whether an approval was used cannot be read: {error}; remove the file on the Mac"))
            }
        };
        Rebooter { file, power, bell, asked, asking: None }
    }

    /// One step; when to look again at the latest. `busy`: [`is_busy`] of any VM.
    pub fn step(&mut self, reboot: Option<&Reboot>, boot_id: &str, busy: bool) -> Option<Timestamp> {
        self.hear();
        if self.asking.is_some() {
            return None;
        }
        let (Some(reboot), Ok(asked)) = (reboot, &self.asked) else { return None };
        let now = Timestamp::now();
        match decide(reboot, boot_id, asked.as_ref(), busy, now) {
            Step::Nothing => None,
            Step::Wait(until) => Some(until),
            Step::Ask => self.ask(reboot, now),
        }
    }

    fn ask(&mut self, reboot: &Reboot, now: Timestamp) -> Option<Timestamp> {
        let requested_at = reboot.requested_at.0;
        if !self.keep(Asked { requested_at, asked_at: now, begun: false, problem: None }) {
            return Some(now + ASK_AGAIN); // what cannot be kept is not done
        }
        tracing::warn!(%requested_at, reason = reboot.reason, "asks for the approved reboot of this Mac");
        let (answer, bell) = (self.power.reboot(requested_at, reboot.reason.clone()), self.bell.clone());
        let (say, asking) = oneshot::channel();
        self.asking = Some(asking);
        tokio::spawn(async move {
            // an agent that ends meanwhile hears of it in its next life
            let _unheard = say.send(answer.await);
            bell.ring();
        });
        None
    }

    /// Takes in the answer, once it is there.
    fn hear(&mut self) {
        let Some(asking) = &mut self.asking else { return };
        let answer = match asking.try_recv() {
            Err(TryRecvError::Empty) => return,
            answer => answer,
        };
        self.asking = None;
        let (Ok(answer), Ok(Some(asked))) = (answer, &self.asked) else { return };
        let now = answered(asked, &answer);
        match &now.problem {
            Some(problem) => tracing::error!(problem, begun = now.begun, "the reboot of this Mac"),
            None => tracing::warn!("the reboot of this Mac has begun"),
        }
        self.keep(now);
    }

    fn keep(&mut self, asked: Asked) -> bool {
        match write_json(&self.file, &asked) {
            Ok(()) => {
                self.asked = Ok(Some(asked));
                true
            }
            Err(error) => {
                tracing::error!(%error, "what is asked of this Mac cannot be kept, and so is not asked");
                false
            }
        }
    }

    /// What is reported of the request that stands in the MacNode.
    pub fn facts(&self, reboot: Option<&Reboot>) -> Option<RebootFacts> {
        let requested_at = reboot?.requested_at.clone();
        match &self.asked {
            Ok(asked) => {
                let asked = asked.as_ref().filter(|asked| asked.requested_at == requested_at.0)?;
                let asked_at = Timestamp::from_second(asked.asked_at.as_second()).unwrap_or(asked.asked_at);
                let problem = asked.problem.clone().filter(|_| !asked.begun);
                Some(RebootFacts { requested_at, asked_at: Some(Time(asked_at)), problem })
            }
            Err(why) => Some(RebootFacts { requested_at, asked_at: None, problem: Some(bounded(why, PROBLEM)) }),
        }
    }
}

#[cfg(test)]
#[path = "reboot_tests.rs"]
mod tests;
