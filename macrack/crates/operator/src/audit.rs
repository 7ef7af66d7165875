//! The audit trail: who leased which Mac from when to when, and what was wiped of whom. JSON lines, only ever appended
//! to, each with the sha256 of the one before.
//!
//! Invariants:
//! - what is written follows from what is seen, compared with what the trail says already: an operator that was killed
//!   writes what it had not come to, and nothing twice;
//! - it is written before the plan of the same pass is carried out, and a pass whose lines cannot be written carries
//!   out nothing: a slot is not emptied before its receipt is in the trail;
//! - a trail whose chain is broken is not appended to.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use macrack_api::MacNode;
use macrack_api::rack::node::{LeaseRef, Order};
use macrack_core::decide::node::{digest, wiped};
use macrack_oci::digest::of as sha256;
use serde_json::{Value, json};

/// What the first line has in the place of a digest.
const BEGINNING: &str = "sha256:0";
/// Wipes that are remembered for each Mac; a MacNode shows eight.
const REMEMBERED: usize = 32;

/// Why a trail cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The operating system's answer.
    #[error("the audit log {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was changed, or is no trail.
    #[error(
        "the audit log {}: line {line} {why}. Keep the file as evidence and give --audit-log another",
        path.display()
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

/// What the trail says of one Mac.
#[derive(Debug, Clone, Default, PartialEq)]
struct Known {
    /// The lease that holds it, as it was written.
    lease: Option<Value>,
    /// Wipes, by the digests of their receipts.
    wipes: VecDeque<String>,
}

impl Known {
    fn take_in(&mut self, line: &Value) {
        match line["what"].as_str() {
            Some("LeaseBound") => self.lease = Some(line["lease"].clone()),
            Some("LeaseReleased") => self.lease = None,
            Some("Wiped") => {
                self.wipes.extend(line["digest"].as_str().map(str::to_owned));
                self.wipes.drain(..self.wipes.len().saturating_sub(REMEMBERED));
            }
            _ => {}
        }
    }
}

/// What is to be written about a Mac, given what was written: pure.
fn news(known: &Known, node: &MacNode, now: Timestamp) -> Vec<Value> {
    let status = node.status.clone().unwrap_or_default();
    let serial = &node.spec.serial;
    let mut lines = Vec::new();
    let uid = |lease: &Value| lease["uid"].as_str().map(str::to_owned);
    let written = known.lease.as_ref().and_then(uid);
    // wipes first: they are of the lease that ends
    for slot in status.slots.iter().filter(|slot| slot.order == Order::Wipe) {
        let Some(receipt) = status.agent.as_ref().and_then(|agent| wiped(agent, slot)) else { continue };
        let digest = digest(receipt);
        if !known.wipes.contains(&digest) {
            lines.push(json!({
                "at": now, "what": "Wiped", "serial": serial, "digest": digest, "receipt": receipt,
                "instance": { "namespace": slot.namespace, "name": slot.name, "uid": slot.uid },
                "lease": status.lease_ref.as_ref().map(|lease| of_lease(node, lease)),
            }));
        }
    }
    // the lease that is written here and is there no more; a MacNode that was made again has not been told of it yet
    let made_again = |lease: &Value| status.lease_ref.is_none() && lease["macNode"].as_str() != node.uid().as_deref();
    let over = |lease: &&Value| written != status.lease_ref.as_ref().map(|r| r.uid.clone()) && !made_again(lease);
    if let Some(lease) = known.lease.as_ref().filter(over) {
        lines.push(json!({ "at": now, "what": "LeaseReleased", "serial": serial, "lease": lease, "seenAt": now }));
    }
    if let Some(lease_ref) = status.lease_ref.as_ref().filter(|lease_ref| written.as_ref() != Some(&lease_ref.uid)) {
        lines.push(json!({ "at": now, "what": "LeaseBound", "serial": serial, "lease": of_lease(node, lease_ref) }));
    }
    lines
}

fn of_lease(node: &MacNode, lease: &LeaseRef) -> Value {
    json!({
        "macNode": node.uid(),
        "namespace": lease.namespace, "name": lease.name, "uid": lease.uid,
        "boundAt": lease.bound_at, "earliestReleaseAt": lease.earliest_release_at,
    })
}

/// The trail.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Digest of the last line.
    last: String,
    /// By serial.
    known: BTreeMap<String, Known>,
}

impl Audit {
    /// The trail in `path`, which is made when it is not there; its whole chain is checked.
    ///
    /// # Errors
    /// When it cannot be read or written, or was changed.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        let named = |source| AuditError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path).map_err(named)?;
        let mut state = State { file, last: BEGINNING.to_owned(), known: BTreeMap::new() };
        let mut reader = BufReader::new(File::open(path).map_err(named)?);
        let (mut line, mut number, mut torn, mut cut) = (Vec::new(), 0, false, false);
        while reader.read_until(b'\n', &mut line).map_err(named)? > 0 {
            number += 1;
            let whole = line.pop_if(|byte| *byte == b'\n').is_some();
            let entry = serde_json::from_slice::<Value>(&line).ok();
            let broken = |why: String| AuditError::Broken { path: path.to_owned(), line: number, why };
            match &entry {
                Some(entry) if entry["previous"] == state.last.as_str() => {
                    if torn && entry["what"] != "TornLine" {
                        return Err(broken("follows one that is no JSON".to_owned()));
                    }
                    if let Some(serial) = entry["serial"].as_str() {
                        state.known.entry(serial.to_owned()).or_default().take_in(entry);
                    }
                    torn = false;
                }
                Some(entry) => {
                    let said = entry["previous"].as_str().unwrap_or("nothing").to_owned();
                    return Err(broken(format!("says that it follows {said}, the line before it is {}", state.last)));
                }
                // cut by a crash while it was written; the next one says so
                None if !torn => torn = true,
                None => return Err(broken("is no JSON, nor is the one before it".to_owned())),
            }
            state.last = sha256(&line);
            cut = !whole;
            line.clear();
        }
        if cut {
            state.file.write_all(b"\n").map_err(named)?;
        }
        if torn {
            tracing::warn!(path = %path.display(), line = number, "the last line of the audit log was cut by a crash");
            let cut = json!({ "at": Timestamp::now(), "what": "TornLine", "line": number });
            append(&mut state, cut).map_err(named)?;
        }
        Ok(Audit { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Writes what is new about a Mac, and sees it on the disk.
    ///
    /// # Errors
    /// When it cannot be written; nothing may then be done that it would have told of.
    pub fn observe(&self, node: &MacNode, now: Timestamp) -> Result<(), AuditError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let none = Known::default();
        let lines = news(state.known.get(&node.spec.serial).unwrap_or(&none), node, now);
        for line in lines {
            append(&mut state, line).map_err(|source| AuditError::Io { path: self.path.clone(), source })?;
        }
        Ok(())
    }
}

fn append(state: &mut State, mut line: Value) -> io::Result<()> {
    line["previous"] = json!(state.last);
    let mut bytes = serde_json::to_vec(&line)?;
    let digest = sha256(&bytes);
    bytes.push(b'\n');
    let length = state.file.metadata()?.len();
    let written = state.file.write_all(&bytes).and_then(|()| state.file.sync_data());
    if let Err(error) = written {
        // a half line would break the chain for the next one
        state.file.set_len(length)?;
        return Err(error);
    }
    state.last = digest;
    if let Some(serial) = line["serial"].as_str() {
        state.known.entry(serial.to_owned()).or_default().take_in(&line);
    }
    Ok(())
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
