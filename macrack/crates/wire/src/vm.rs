//! What the agent says to a VM process, and what that process answers.

use std::fmt;
use std::io;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::classify::ErrorClass;
use crate::classify::{INVALID_DESCRIPTION, MACRACK_DOMAIN, POSIX_DOMAIN, classify};
use crate::guest::GuestReport;
use crate::session::Session;

/// What one VM is made of: written by the agent as `vm.json` before `macrack-vm` starts, and never
/// changed afterwards, so that a restarted VM is the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmDescription {
    /// The instance's uid; also the name of the VM's directory.
    pub uid: String,
    /// The instance's namespace, for logs.
    pub namespace: String,
    /// The instance's name, for logs.
    pub name: String,
    /// Virtual cores.
    pub cpu_cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// File name of the disk inside the VM's directory.
    pub disk: String,
    /// File name of the auxiliary storage inside the VM's directory.
    pub aux: String,
    /// `VZMacHardwareModel.dataRepresentation` of the golden, base64: the aux storage is of this model. Absent for
    /// a golden of a simulated Mac; Virtualization.framework cannot do without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_model: Option<String>,
    /// Opaque; new per instance, stable over restarts (two running VMs must not share one).
    pub machine_identifier: String,
    /// New per instance, unique on the chassis.
    pub mac_address: MacAddress,
    /// A screen, if the instance class asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
    /// Whether a first-boot script is to run; it lies beside this file as `first-boot.sh`.
    #[serde(default)]
    pub first_boot: bool,
}

/// A screen in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Display {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

/// A locally administered unicast MAC address, written `02:00:5e:10:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress([u8; 6]);

/// Why a text is no MAC address for a VM.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MacAddressError {
    /// Not six pairs of hexadecimal digits.
    #[error("{0:?} is no MAC address: six pairs of hexadecimal digits with colons are expected")]
    Form(String),
    /// Belongs to a manufacturer, or addresses a group.
    #[error("{0} cannot be given to a VM: the first byte must say unicast and locally administered (as 02 does)")]
    NotLocal(String),
}

impl MacAddress {
    /// Six random bytes made into an address: the two bits that say "unicast, locally administered"
    /// are set, the others are kept.
    pub fn locally_administered(mut bytes: [u8; 6]) -> Self {
        bytes[0] = (bytes[0] & 0b1111_1100) | 0b10;
        MacAddress(bytes)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = MacAddressError;

    fn from_str(text: &str) -> Result<Self, MacAddressError> {
        let form = || MacAddressError::Form(text.chars().take(32).collect());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(form)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(form());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| form())?;
        }
        if parts.next().is_some() {
            return Err(form());
        }
        if bytes[0] & 0b11 != 0b10 {
            return Err(MacAddressError::NotLocal(text.to_owned()));
        }
        Ok(MacAddress(bytes))
    }
}

impl TryFrom<String> for MacAddress {
    type Error = MacAddressError;

    fn try_from(text: String) -> Result<Self, MacAddressError> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(address: MacAddress) -> String {
        address.to_string()
    }
}

/// What the agent asks of a VM process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all_fields = "camelCase")]
pub enum VmVerb {
    /// The present [`VmReport`].
    Describe,
    /// Stop: the guest is asked first, then the hypervisor; after the grace the VM is forced. Answered
    /// at once with the report of a stopping VM; the end is seen by watching. Repeating it is harmless
    /// and can only shorten the grace.
    Stop {
        /// Seconds from now until force; 0 forces at once.
        grace_seconds: u32,
    },
    /// The present report and every later one, until the process ends.
    Watch,
    /// Open a session with the guest; after the report that answers, the connection carries its frames.
    Open(Session),
    /// The journal from byte `from` on, as output of a session, and what is added to it until the process ends.
    FollowJournal {
        /// Bytes that are known already; more than there are means that the journal was begun anew.
        from: u64,
    },
}

/// The state of a VM, as its own process sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VmState {
    /// The hypervisor was asked to start it.
    Starting,
    /// It runs; what the guest says stands in `guest`.
    Running,
    /// A stop is under way.
    Stopping,
    /// It has ended as `stopCause` says. Final.
    Stopped,
    /// It could not start, or it crashed; `error` says why. Final.
    Failed,
}

impl VmState {
    /// Whether no other state follows.
    pub fn is_final(self) -> bool {
        matches!(self, VmState::Stopped | VmState::Failed)
    }
}

/// Why a VM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// The guest shut itself down unasked.
    GuestShutdown,
    /// The agent asked, and the guest obeyed within the grace.
    Requested,
    /// The agent asked, and the guest had to be forced.
    Forced,
    /// The hypervisor reported that the running VM broke.
    Crashed,
    /// It never ran.
    StartFailed,
}

/// A failure in the hypervisor's own terms, and its class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmError {
    /// For example `VZErrorDomain`.
    pub domain: String,
    /// The code within the domain.
    pub code: i64,
    /// What can be done about it.
    pub class: ErrorClass,
    /// The hypervisor's words.
    pub message: String,
}

impl VmError {
    /// An error with its class derived from the rest.
    pub fn new(domain: &str, code: i64, message: impl Into<String>) -> Self {
        let message = message.into();
        VmError { domain: domain.to_owned(), code, class: classify(domain, code, &message), message }
    }

    /// Something that was asked for is wrong, and nobody but whoever wrote it can mend that.
    pub fn invalid(message: impl Into<String>) -> Self {
        VmError::new(MACRACK_DOMAIN, INVALID_DESCRIPTION, message)
    }

    /// The operating system refused something of `what`; code 0 where the refusal has no number.
    pub fn os(what: impl fmt::Display, error: &io::Error) -> Self {
        VmError::new(POSIX_DOMAIN, error.raw_os_error().unwrap_or(0).into(), format!("{what}: {error}"))
    }

    /// The error and what gets out of it, in one line for the person who must act.
    pub fn with_way_out(&self) -> String {
        format!("{self}; {}", self.class.way_out())
    }
}

impl fmt::Display for VmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} code {})", self.message, self.domain, self.code)
    }
}

/// What a VM process says of its VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmReport {
    /// The instance's uid.
    pub uid: String,
    /// The process id of `macrack-vm`.
    pub pid: u32,
    /// The state.
    pub state: VmState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<VmError>,
    /// When this process began; a VM's uptime is unbroken while this stays the same.
    pub started_at: Timestamp,
    /// What the guest last said. Absent until it answers, and again when it no longer does or is not
    /// believed: the guest is then booting, or `guestProblem` says what is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestReport>,
    /// Why the guest is not heard, or has not taken its first-boot script; bounded. Absent while neither is so, and while
    /// it is merely booting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_problem: Option<String>,
    /// Why it ended; present exactly in the final states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_cause: Option<StopCause>,
}

/// The content of `state.json`: the last report that the process wrote, with what it must remember
/// over its own end. Reads as a plain [`VmReport`] too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastState {
    /// The report. A state that is not final, and no process: the process crashed.
    #[serde(flatten)]
    pub report: VmReport,
    /// The guest has acknowledged the first-boot script, which was then deleted here.
    #[serde(default)]
    pub first_boot_handed: bool,
}
