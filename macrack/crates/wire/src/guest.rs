//! What a VM process asks its guest, and what it believes of the answers.
//!
//! Invariant: a guest is untrusted. [`GuestReport::believe`] is the only way from bytes of a guest to
//! anything that is kept or passed on, and it refuses rather than trims.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::WireError;

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
}

impl GuestReport {
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
        Ok(self)
    }
}

fn bounded(field: &str, text: &str, limit: usize) -> Result<(), WireError> {
    if text.len() > limit {
        return Err(WireError::OutOfBounds(format!("{field} is {} bytes long, at most {limit} are taken", text.len())));
    }
    if text.chars().any(char::is_control) {
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
}
