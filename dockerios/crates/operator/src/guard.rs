//! Proofs made right before a write, by consistent lists. A list that fails proves nothing.

use dockerios_api::names::{IDENTITY, MACHINE_UID, RETAINED};
use dockerios_core::{Guard, Id, Kind};
use serde_json::Value;

use crate::api::{Api, Fault};

/// Why the write is not made.
#[derive(Debug)]
pub enum Unproven {
    /// The opposite was found.
    Found(String),
    /// A list failed.
    Fault(Fault),
}

impl From<Fault> for Unproven {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Makes the proof.
///
/// # Errors
/// What was found instead, or which list failed.
pub async fn prove(api: &Api, guard: &Guard) -> Result<(), Unproven> {
    match guard {
        // by label alone: whatever is made with the identity has it, and nothing else may (deploy/policies/instances.yaml).
        // A firmware UUID without the label is looked for by the pass itself, in what was seen.
        Guard::IdentityUnused { identity, .. } => {
            for kind in [Kind::VirtualMachine, Kind::VirtualMachineInstance, Kind::Pod] {
                none(api, kind, "", &format!("{IDENTITY}={identity}")).await?;
            }
            Ok(())
        }
        Guard::IdentityUnique { identity } => unique(api, identity).await,
        Guard::MachineGone { namespace, name, uid } => {
            let id = Id::new(Kind::MacOSMachine, namespace, name);
            let there = if name.is_empty() { None } else { api.get(&id).await? };
            match there {
                Some(machine) if machine["metadata"]["uid"] == uid.as_str() => {
                    Err(Unproven::Found(format!("{id} is still there")))
                }
                _ if name.is_empty() => Err(Unproven::Found(format!("nobody knows the name of machine {uid}"))),
                _ => Ok(()),
            }
        }
        Guard::NothingLeftOf {
            namespace,
            uid,
            retained,
        } => {
            let ours = format!("{MACHINE_UID}={uid}");
            for kind in [Kind::VirtualMachine, Kind::VirtualMachineInstance, Kind::Pod] {
                none(api, kind, namespace, &ours).await?;
            }
            let volumes = if *retained { format!("{ours},!{RETAINED}") } else { ours };
            for kind in [Kind::DataVolume, Kind::PersistentVolumeClaim] {
                none(api, kind, namespace, &volumes).await?;
            }
            Ok(())
        }
    }
}

async fn none(api: &Api, kind: Kind, namespace: &str, labels: &str) -> Result<(), Unproven> {
    match api.any(kind, namespace, labels).await? {
        None => Ok(()),
        Some(object) => {
            let (space, name) = crate::shelf::place(&object);
            Err(Unproven::Found(format!(
                "{} is still there",
                Id::new(kind, space, name)
            )))
        }
    }
}

/// The values that no two identities may share.
const KEYS: [&str; 5] = ["serial", "mlb", "rom", "systemUUID", "macAddress"];

async fn unique(api: &Api, identity: &str) -> Result<(), Unproven> {
    let all = api.all(Kind::MachineIdentity).await?;
    let named = |object: &Value| object["metadata"]["name"] == identity;
    let Some(own) = all.iter().find(|object| named(object)) else {
        return Err(Unproven::Fault(Fault::Conflict(format!("{identity} is gone"))));
    };
    for other in all.iter().filter(|object| !named(object)) {
        for key in KEYS {
            let (a, b) = (&own["spec"][key], &other["spec"][key]);
            let same = a
                .as_str()
                .zip(b.as_str())
                .is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
            if same {
                let name = other["metadata"]["name"].as_str().unwrap_or_default();
                return Err(Unproven::Found(format!("MachineIdentity/{name} has the same {key}")));
            }
        }
    }
    Ok(())
}
