//! The first frame in each direction: who speaks, and which protocol.
//!
//! Invariant: no request is read before both sides have seen that they speak the same major protocol.
//! A side that does not gets one frame, `{"turnedAway": "…"}`, that names both, and the connection ends.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::WireError;
use crate::guest::{printable, unsayable};
use crate::link::Link;

/// The major protocol that this build speaks. It changes only when an old peer would misunderstand.
pub const PROTOCOL: u32 = 1;

/// The longest version string that is taken from a peer, in bytes.
const MAX_VERSION: usize = 64;

/// Which program stands at one end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// `macrack-agent`, the client of `vm.sock`.
    Agent,
    /// `macrack-vm`: the server of `vm.sock`, the client of the guest's port.
    Vm,
    /// `macrack-guest`, the server of the guest's port.
    Guest,
    /// `macrack-hostd`, the server of `hostd.sock`.
    Hostd,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Agent => "macrack-agent",
            Role::Vm => "macrack-vm",
            Role::Guest => "macrack-guest",
            Role::Hostd => "macrack-hostd",
        })
    }
}

/// The first frame in each direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The major protocol, [`PROTOCOL`] for this build.
    pub protocol: u32,
    /// Which program speaks.
    pub role: Role,
    /// Its release, for people; never compared.
    pub version: String,
}

impl Hello {
    /// What this build says of itself.
    pub fn of(role: Role) -> Self {
        Hello { protocol: PROTOCOL, role, version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (protocol {})", self.role, self.version, self.protocol)
    }
}

/// The only frame that a side sends instead of serving a peer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TurnedAway {
    /// For the log of the side that is turned away.
    pub turned_away: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum First {
    Hello(Hello),
    TurnedAway(TurnedAway),
}

/// Exchanges the first frames and returns the peer's. Both sides send before they read, so neither
/// waits for the other to begin.
pub async fn greet<S>(link: &mut Link<S>, ours: Role, expected: Role) -> Result<Hello, WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ours = Hello::of(ours);
    link.send(&ours).await?;
    let theirs = match link.receive_due("the peer's hello").await? {
        First::Hello(hello) => hello,
        // the words of whoever stands there, a guest perhaps
        First::TurnedAway(turned) => return Err(WireError::TurnedAway(printable(&turned.turned_away))),
    };
    if let Err(refusal) = judge(&ours, theirs.clone(), expected) {
        // the peer learns why; that it may already be gone changes nothing
        let told = TurnedAway { turned_away: refusal.to_string() };
        if let Err(error) = link.send(&told).await {
            tracing::debug!(%error, "the peer left before it was told why");
        }
        return Err(refusal);
    }
    Ok(theirs)
}

fn judge(ours: &Hello, theirs: Hello, expected: Role) -> Result<(), WireError> {
    if theirs.version.chars().any(unsayable) {
        return Err(WireError::OutOfBounds("its version holds control characters".to_owned()));
    }
    if theirs.version.len() > MAX_VERSION {
        return Err(WireError::OutOfBounds(format!(
            "its version is {} bytes long, at most {MAX_VERSION} are taken",
            theirs.version.len()
        )));
    }
    if theirs.protocol != ours.protocol {
        return Err(WireError::Protocol { ours: ours.clone(), theirs });
    }
    if theirs.role != expected {
        return Err(WireError::WrongRole { expected, found: theirs });
    }
    Ok(())
}
