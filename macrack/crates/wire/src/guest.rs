//! What a VM process asks its guest, and what it believes of the answers.
//!
//! Invariant: a guest is untrusted. [`GuestReport::believe`] is the only way from bytes of a guest to
//! anything that is kept or passed on, and it refuses rather than trims.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::session::Session;

/// The vsock port on which a guest listens. Above those that need root, and in no list of known services;
/// a guest and the host's VM process must agree on it for ever.
pub const VSOCK_PORT: u32 = 19_794;
/// The vsock address of a host, `VMADDR_CID_HOST` in `sys/vsock.h`. A guest serves nobody else.
pub const HOST_CID: u32 = 2;
/// The longest version string of a guest, in bytes.
pub const MAX_VERSION: usize = 64;
/// The most addresses of a guest.
pub const MAX_ADDRESSES: usize = 16;
/// The longest explanation by a guest, in bytes.
pub const MAX_MESSAGE: usize = 256;
/// The longest first-boot script, in bytes (128 KiB): it fits one frame with every byte escaped.
pub const MAX_SCRIPT: usize = 128 * 1024;

/// How far a guest has come. "Booting" is what the host infers until the guest answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GuestStage {
    /// The guest agent runs.
    AgentStarting,
    /// The login window stands.
    LoginWindow,
    /// A user is logged in; a first-boot script runs in this stage.
    UserSession,
    /// Everything that the golden and the first-boot script wanted has succeeded.
    Ready,
}

/// What became of the first-boot script on this clone's own disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all_fields = "camelCase")]
pub enum FirstBoot {
    /// The host has not said yet whether there is one.
    NotAsked,
    /// The host said that there is none.
    NotNeeded,
    /// It was handed over and waits for a user session.
    Waiting,
    /// It runs.
    Running,
    /// It ended; 128 + n stands for signal n, as in a shell.
    Done {
        /// 0 is success; anything else keeps the guest from Ready.
        exit_code: i32,
    },
    /// The guest went down while it ran. It is not run again: half of it may have happened.
    Interrupted,
    /// It could not be started.
    Failed {
        /// Why, in the guest's words.
        message: String,
    },
}

impl FirstBoot {
    /// Whether nothing more happens and nothing went wrong.
    pub fn is_satisfied(&self) -> bool {
        matches!(self, FirstBoot::NotNeeded | FirstBoot::Done { exit_code: 0 })
    }
}

/// How the command stands by which a golden says that it is ready. It runs in a user session after the
/// first boot; a golden without one is ready then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// How it stands.
    pub state: ReadinessState,
    /// How its last run ended; 128 + n stands for signal n, as in a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The last line that it wrote, or why it could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a golden's readiness command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadinessState {
    /// It waits for a user session and for the first boot.
    Waiting,
    /// It runs for the first time in this session.
    Running,
    /// It ended with 0.
    Ready,
    /// It ended with something else; it is run again.
    NotReady,
    /// It took too long and was ended; it is run again.
    TimedOut,
    /// It is there and cannot be run; that is tried again.
    Failed,
}

/// What a guest says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestReport {
    /// The release of `macrack-guest` inside.
    pub agent_version: String,
    /// How far it has come.
    pub stage: GuestStage,
    /// The macOS version, as `SystemVersion.plist` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// The Xcode version, as `version.plist` of the newest Xcode has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xcode_version: Option<String>,
    /// Free bytes of the data volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<u64>,
    /// Addresses of the guest that are neither loopback nor link-local.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The first-boot script.
    pub first_boot: FirstBoot,
    /// The golden's readiness command; absent where the golden has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Readiness>,
    /// Whether Xcode's licence and first-launch packages were taken on (`xcodebuild
    /// -checkFirstLaunchStatus`); absent without Xcode and until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_launch_accepted: Option<bool>,
    /// Whether macOS runs from the volume that Apple sealed; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_sealed: Option<bool>,
}

impl GuestReport {
    /// A report that says no more than this.
    pub fn new(agent_version: impl Into<String>, stage: GuestStage, first_boot: FirstBoot) -> Self {
        GuestReport {
            agent_version: agent_version.into(),
            stage,
            os_version: None,
            xcode_version: None,
            disk_free_bytes: None,
            addresses: Vec::new(),
            first_boot,
            readiness: None,
            first_launch_accepted: None,
            system_sealed: None,
        }
    }

    /// The report, if it keeps within the bounds that are given to guests.
    pub fn believe(self) -> Result<Self, WireError> {
        bounded("agentVersion", &self.agent_version, MAX_VERSION)?;
        for (field, text) in [("osVersion", &self.os_version), ("xcodeVersion", &self.xcode_version)] {
            if let Some(text) = text {
                bounded(field, text, MAX_VERSION)?;
            }
        }
        if let FirstBoot::Failed { message } = &self.first_boot {
            bounded("firstBoot.message", message, MAX_MESSAGE)?;
        }
        if let Some(message) = self.readiness.as_ref().and_then(|readiness| readiness.message.as_ref()) {
            bounded("readiness.message", message, MAX_MESSAGE)?;
        }
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(WireError::OutOfBounds(format!(
                "addresses has {} entries, at most {MAX_ADDRESSES} are taken",
                self.addresses.len()
            )));
        }
        if self.stage == GuestStage::Ready && !self.first_boot.is_satisfied() {
            return Err(WireError::OutOfBounds(
                "stage is Ready while its first-boot script has not succeeded".to_owned(),
            ));
        }
        let ready = |readiness: &Readiness| readiness.state == ReadinessState::Ready;
        if self.stage == GuestStage::Ready && !self.readiness.as_ref().is_none_or(ready) {
            return Err(WireError::OutOfBounds(
                "stage is Ready while its readiness command has not succeeded".to_owned(),
            ));
        }
        Ok(self)
    }
}

/// What moves a terminal's cursor, or the text around it: control characters, and the invisible ones that
/// change the direction of writing (Unicode's bidirectional controls and their like).
pub(crate) fn unsayable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `text` as a guest may say it: on one line, without control characters, at most [`MAX_MESSAGE`] bytes.
pub fn printable(text: &str) -> String {
    let mut kept = String::new();
    for c in text.trim().chars().filter(|c| !unsayable(*c)) {
        if kept.len() + c.len_utf8() > MAX_MESSAGE {
            break;
        }
        kept.push(c);
    }
    kept
}

fn bounded(field: &str, text: &str, limit: usize) -> Result<(), WireError> {
    if text.len() > limit {
        return Err(WireError::OutOfBounds(format!("{field} is {} bytes long, at most {limit} are taken", text.len())));
    }
    if text.chars().any(unsayable) {
        return Err(WireError::OutOfBounds(format!("{field} holds control characters")));
    }
    Ok(())
}

/// What a VM process asks its guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all_fields = "camelCase")]
pub enum GuestVerb {
    /// The present [`GuestReport`]; also the sign of life.
    Describe,
    /// The present report and every later one.
    Watch,
    /// Run this script once in the life of this disk. Answered when the guest has put down that it was
    /// asked; asking again changes nothing and runs nothing.
    RunFirstBoot {
        /// The text of the script, run by its own `#!` line or by `/bin/sh`.
        script: String,
    },
    /// This clone has no first-boot script: go on to Ready.
    NoFirstBoot,
    /// Shut down.
    Shutdown,
    /// Open a session; after the report that answers, the connection carries its frames.
    Open(Session),
}
