//! A guest's report. Invariant: bounded; `ready` stands with stage Ready and with no other; names of software are
//! unique.

use serde::{Deserialize, Serialize};

use crate::refusal::{Refusal, shown};

/// How far a guest has come. (Booting, before the agent runs, is seen from outside only.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Stage {
    /// The agent runs; nothing more is known.
    AgentStarting,
    /// The login window owns the screen.
    LoginWindow,
    /// A person's session owns the screen.
    UserSession,
    /// Everything that the image asks for before work may begin is there.
    Ready,
    /// The system is on its way down.
    ShuttingDown,
}

impl Stage {
    /// All of them, in the order in which a guest passes through.
    pub const ALL: [Self; 5] = [
        Self::AgentStarting,
        Self::LoginWindow,
        Self::UserSession,
        Self::Ready,
        Self::ShuttingDown,
    ];

    /// The word on the wire and in `kubectl get`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentStarting => "AgentStarting",
            Self::LoginWindow => "LoginWindow",
            Self::UserSession => "UserSession",
            Self::Ready => "Ready",
            Self::ShuttingDown => "ShuttingDown",
        }
    }
}

impl From<Stage> for &'static str {
    fn from(stage: Stage) -> Self {
        stage.as_str()
    }
}

impl TryFrom<String> for Stage {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        Self::ALL.into_iter().find(|s| s.as_str() == word).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("stage {} is unknown; the stages are {all}", shown(&word))
        })
    }
}

/// A program of the guest and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Software {
    /// 1 to 64 bytes, unique in its list.
    pub name: String,
    /// 1 to 64 bytes.
    pub version: String,
}

/// What a guest says about itself. Unknown fields are ignored, so that older collectors understand newer agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How far the guest has come.
    pub stage: Stage,
    /// 1 to 64 bytes.
    pub agent_version: String,
    /// Random per start of the agent, 1 to 64 bytes: `sequence` counts within it.
    pub run: String,
    /// Grows with each report of one run; a report that is overtaken by a later one is not recorded.
    pub sequence: u64,
    /// Whether work may begin: true with stage Ready, false with every other.
    pub ready: bool,
    /// At most 64 bytes, such as `15.6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// At most [`Report::MOST_SOFTWARE`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub software: Vec<Software>,
    /// Bytes that are free on the data volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free: Option<u64>,
    /// Size of the data volume in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_total: Option<u64>,
    /// The serial number that the guest's firmware shows. At most 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The UUID that the guest's firmware shows (`system-id`; not the hardware UUID that macOS computes). At most 64
    /// bytes.
    #[serde(default, rename = "systemUUID", skip_serializing_if = "Option::is_none")]
    pub system_uuid: Option<String>,
    /// While shutting down: true when the system was asked to end in order, false when it refused to. Otherwise how this
    /// machine's run before ended: true when the system ended it in order, absent when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_shutdown: Option<bool>,
    /// Differs between two boots of a guest. At most 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The revision of the last order that arrived. At most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_revision: Option<String>,
}

impl Report {
    /// Longer lists are refused; the status that they end in is bounded alike.
    pub const MOST_SOFTWARE: usize = 32;

    /// Reads and checks the body of a request.
    ///
    /// # Errors
    /// When it is not a report of this protocol: the field, the rule and the way out.
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let report: Self = serde_json::from_slice(body).map_err(|e| {
            let what = e.to_string();
            let what: String = what.chars().take(400).collect();
            Refusal::of(
                "body",
                format!("not a v1 report: {what}; send the JSON object of protocol v1"),
            )
        })?;
        report.check()?;
        Ok(report)
    }

    /// Holds this report against the protocol's bounds; an agent does so before it sends.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        bounded("agentVersion", &self.agent_version, 1, 64)?;
        bounded("run", &self.run, 1, 64)?;
        let optional = [
            ("osVersion", &self.os_version, 64),
            ("serial", &self.serial, 64),
            ("systemUUID", &self.system_uuid, 64),
            ("bootId", &self.boot_id, 64),
            ("seenRevision", &self.seen_revision, 128),
        ];
        for (field, text, most) in optional {
            if let Some(text) = text {
                bounded(field, text, 0, most)?;
            }
        }
        self.check_software()?;
        self.check_disk()?;
        if self.ready != (self.stage == Stage::Ready) {
            return Err(Refusal::of(
                "ready",
                format!(
                    "{} does not go with stage {}: true stands with stage Ready and with no other; send both alike",
                    self.ready,
                    self.stage.as_str()
                ),
            ));
        }
        Ok(())
    }

    fn check_software(&self) -> Result<(), Refusal> {
        let n = self.software.len();
        if n > Self::MOST_SOFTWARE {
            return Err(Refusal::of(
                "software",
                format!("{n} entries; at most {}: report fewer programs", Self::MOST_SOFTWARE),
            ));
        }
        for (i, item) in self.software.iter().enumerate() {
            bounded(&format!("software[{i}].name"), &item.name, 1, 64)?;
            bounded(&format!("software[{i}].version"), &item.version, 1, 64)?;
            if self.software[..i].iter().any(|other| other.name == item.name) {
                return Err(Refusal::of(
                    format!("software[{i}].name"),
                    format!(
                        "{} stands there twice; names are unique: report it once",
                        shown(&item.name)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The status keeps byte counts as signed 64-bit numbers, as all of Kubernetes does.
    fn check_disk(&self) -> Result<(), Refusal> {
        for (field, bytes) in [("diskFree", self.disk_free), ("diskTotal", self.disk_total)] {
            if bytes.is_some_and(|b| i64::try_from(b).is_err()) {
                return Err(Refusal::of(
                    field,
                    "more than 2^63 − 1 bytes; send the volume's size in bytes",
                ));
            }
        }
        match (self.disk_free, self.disk_total) {
            (Some(free), Some(total)) if free > total => Err(Refusal::of(
                "diskFree",
                format!("{free} bytes are free of {total}; free space is not more than the volume"),
            )),
            _ => Ok(()),
        }
    }
}

fn bounded(field: &str, text: &str, least: usize, most: usize) -> Result<(), Refusal> {
    let n = text.len();
    if n < least {
        return Err(Refusal::of(field, "empty; it needs at least one character"));
    }
    if n > most {
        return Err(Refusal::of(field, format!("{n} bytes; at most {most}: shorten it")));
    }
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return Err(Refusal::of(
            field,
            format!(
                "holds the control character {}; send printable text",
                c.escape_unicode()
            ),
        ));
    }
    Ok(())
}
