//! What stands behind `hostd.sock`.
//!
//! Invariant: one request at a time is carried out, whoever asks; it is in the log before it is done, and its
//! outcome after.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use macrack_wire::host::{MAX_MACS, MAX_REASON};
use macrack_wire::layout::is_uid;
use macrack_wire::link::Limits;
use macrack_wire::{Answer, HostReceipt, HostReport, HostVerb, Refusal, Role, Service, WireError, serve_connection};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use crate::journal::{Journal, Peer};
use crate::power::Power;
use crate::reboots::Reboots;
use crate::{dhcp, leftovers};

/// Connections served at once: the agent needs one, the doctor another.
const MAX_CONNECTIONS: usize = 4;
/// How long accepting rests after the operating system refused it.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The longest frame that is read, in bytes: a request is short.
const MAX_REQUEST: usize = 8 * 1024;
/// The bounds of a connection.
const LIMITS: Limits = Limits { frame: MAX_REQUEST, patience: Duration::from_secs(10) };

/// What `macrack-hostd` works with.
pub struct Host {
    /// The only user that is heard.
    pub agent_uid: u32,
    /// The state directory of the agent, without symbolic links in its path.
    pub state_dir: PathBuf,
    /// `bootpd`'s leases.
    pub dhcp_leases: PathBuf,
    /// The log.
    pub journal: Journal,
    /// The used approvals.
    pub reboots: Reboots,
    /// The machine.
    pub power: Box<dyn Power>,
}

impl Host {
    /// Carries out `verb` for `peer`.
    fn carry_out(&self, peer: Peer, verb: &HostVerb) -> Result<HostReport, Refusal> {
        let asked = asked(verb);
        let note = |outcome: &str| {
            let unwritten = |error: io::Error| {
                Refusal::denied(format!("the log cannot be written, and what is not logged is not done: {error}"))
            };
            self.journal.note(peer, &asked, outcome).map_err(unwritten)
        };
        note("asked")?;
        let done = match verb {
            HostVerb::Reboot { requested_at, reason } => self.reboot(*requested_at, reason),
            HostVerb::Wipe { uid, mac_addresses } => self.wipe(uid, mac_addresses),
        };
        let outcome = match &done {
            Ok(report) => serde_json::to_string(report).unwrap_or_else(|error| error.to_string()),
            Err(refusal) => format!("refused: {refusal}"),
        };
        // it is done: that its outcome could not be written changes nothing for the peer
        if let Err(error) = note(&outcome) {
            tracing::error!(%error, outcome, "an outcome is not in the log");
        }
        done
    }

    fn reboot(&self, requested_at: Timestamp, reason: &str) -> Result<HostReport, Refusal> {
        let length = reason.chars().count();
        if length > MAX_REASON {
            return Err(Refusal::denied(format!("the reason has {length} characters, at most {MAX_REASON} are taken")));
        }
        self.reboots.once(requested_at, Timestamp::now(), || self.power.reboot())?;
        Ok(HostReport::Rebooting { requested_at })
    }

    fn wipe(&self, uid: &str, macs: &[macrack_wire::MacAddress]) -> Result<HostReport, Refusal> {
        if !is_uid(uid) {
            let uid: String = uid.chars().take(64).collect();
            return Err(Refusal::denied(format!("{uid:?} is no uid of an instance; nothing else is wiped")));
        }
        if macs.len() > MAX_MACS {
            return Err(Refusal::denied(format!("{} MAC addresses; a VM has at most {MAX_MACS}", macs.len())));
        }
        let failed = |error: io::Error| Refusal::denied(error.to_string());
        let leftovers = leftovers::remove(&self.state_dir, uid).map_err(failed)?;
        let dhcp_leases = dhcp::strike_file(&self.dhcp_leases, macs).map_err(failed)?;
        Ok(HostReport::Wiped(HostReceipt { uid: uid.to_owned(), at: Timestamp::now(), dhcp_leases, leftovers }))
    }
}

/// What the log says of a request.
fn asked(verb: &HostVerb) -> Value {
    let mut asked = serde_json::to_value(verb).unwrap_or_else(|error| json!(error.to_string()));
    // judged by its length only after it is logged
    if let Some(Value::String(reason)) = asked.get_mut("reason") {
        *reason = reason.chars().take(MAX_REASON).collect();
    }
    asked
}

/// One connection; its reports are its own, so that nobody reads the answer to another's request.
struct Connection {
    host: Arc<Host>,
    peer: Peer,
    turn: Arc<Mutex<()>>,
    report: watch::Sender<HostReport>,
}

impl Service for Connection {
    const ROLE: Role = Role::Hostd;
    const PEER: Role = Role::Agent;
    type Verb = HostVerb;
    type Report = HostReport;

    fn reports(&self) -> watch::Receiver<HostReport> {
        self.report.subscribe()
    }

    async fn call(&self, verb: HostVerb) -> Result<Answer, Refusal> {
        let (host, peer, turn) = (self.host.clone(), self.peer, self.turn.clone());
        let carried = tokio::task::spawn_blocking(move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            host.carry_out(peer, &verb)
        });
        let report = carried.await.map_err(|ended| Refusal::denied(format!("it broke off: {ended}")))??;
        self.report.send_replace(report);
        Ok(Answer::Report)
    }
}

/// Serves `listener` for as long as it is polled.
pub async fn serve(listener: UnixListener, host: Host) {
    let (host, turn) = (Arc::new(host), Arc::new(Mutex::new(())));
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // out of descriptors, most likely, and nothing tells when there are some again
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let Ok(seat) = room.clone().try_acquire_owned() else { continue };
        let Some(peer) = admitted(&stream, host.agent_uid) else { continue };
        let connection = Connection {
            host: host.clone(),
            peer,
            turn: turn.clone(),
            report: watch::Sender::new(HostReport::Nothing),
        };
        tokio::spawn(async move {
            let _seat = seat;
            match serve_connection(stream, &connection, LIMITS).await {
                // the agent looks now and then whether somebody listens, and goes before it is greeted
                Ok(()) | Err(WireError::Closed(_)) => {}
                Err(WireError::Io(error))
                    if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
                Err(error) => tracing::warn!(%error, uid = peer.uid, "a connection was closed"),
            }
        });
    }
}

/// The peer, if it is the agent's user; the kernel says who it is (SO_PEERCRED, LOCAL_PEERCRED).
fn admitted(stream: &UnixStream, agent_uid: u32) -> Option<Peer> {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == agent_uid => Some(Peer { uid: peer.uid(), pid: peer.pid() }),
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), agent_uid, "turned away: not the agent's user");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "turned away: the kernel does not say who it is");
            None
        }
    }
}
