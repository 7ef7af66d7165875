//! What is known of the guest at a moment, and who finds it out. Invariant: what cannot be read is left out or kept
//! as it was, and said as a trouble; it is never made up.

use dockerios_wire::{Software, Stage};

/// What is known of the guest. None is "not known".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// How far it has come.
    pub stage: Stage,
    /// Version of the system.
    pub os_version: Option<String>,
    /// Programs that were asked for and are there.
    pub software: Vec<Software>,
    /// Bytes free on the data volume.
    pub disk_free: Option<u64>,
    /// Bytes of the data volume.
    pub disk_total: Option<u64>,
    /// Serial number that the firmware shows.
    pub serial: Option<String>,
    /// UUID that the firmware shows.
    pub system_uuid: Option<String>,
    /// Differs between two boots.
    pub boot_id: Option<String>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            stage: Stage::AgentStarting,
            os_version: None,
            software: Vec::new(),
            disk_free: None,
            disk_total: None,
            serial: None,
            system_uuid: None,
            boot_id: None,
        }
    }
}

impl Facts {
    /// Whether the difference to `told` is one that others wait for. Disk space is not: it changes all the time.
    #[must_use]
    pub fn news_since(&self, told: &Self) -> bool {
        let calm = |facts: &Self| Self {
            disk_free: None,
            disk_total: None,
            ..facts.clone()
        };
        calm(self) != calm(told)
    }
}

/// One look: what is known, and what could not be found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// What is known. Its stage is Ready only where something else than the agent's own checks says so.
    pub facts: Facts,
    /// For the log: what could not be read, and why.
    pub troubles: Vec<String>,
}

/// Finds out about the guest.
pub trait Probe: Send + 'static {
    /// Looks now. Called about once a second: what is costly is looked at less often.
    fn look(&mut self) -> impl Future<Output = Seen> + Send;
}

/// What the protocol takes: at most 64 bytes without control characters.
pub(crate) fn cut(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    plain[..plain.floor_char_boundary(64)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_prints_is_cut_to_what_the_protocol_takes() {
        assert_eq!(cut("15.6\n\u{7}"), "15.6");
        assert_eq!(cut(&"é".repeat(50)).len(), 64);
    }
}
