//! One pass over one object: gather its facts, have it decided, leave out what changes nothing.

use dockerios_api::config::platform_config::SecretKey;
use dockerios_core::{Id, Kind, Plan, decide};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::{
    gather,
    metrics::measure::{self, Measure},
    world::World,
};

/// What was decided, and on which very object.
pub struct Pass {
    /// Uid of the object.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// What to do.
    pub plan: Plan,
    /// Where the platform's SMC key is.
    pub osk: Option<SecretKey>,
    /// What is to be counted once that stands.
    pub measures: Vec<Measure>,
}

/// Decides about one object; `None` when it is not there (or cannot be read: then nothing is decided).
pub fn pass(world: &World, id: &Id, now: Timestamp) -> Option<Pass> {
    let Standing { uid, version, status } = standing(world, id)?;
    if id.kind == Kind::MacOSMachineClaim && world.promises.by_another(&uid, id) {
        // a machine is being made for it at this moment; what it is told comes when that was seen
        return None;
    }
    let mut plan = plan(world, id, now)?;
    world.promises.keep(id, &mut plan);
    if id.kind == Kind::MacOSMachine
        && let Some(Value::Object(status)) = &mut plan.status
    {
        status.remove(GUEST);
    }
    if plan.status.is_some() && plan.status == status {
        plan.status = None;
    }
    let measures = measure::of_plan(world, id, &plan, now);
    let platform = world.platform();
    let osk = platform
        .present()
        .and_then(|p| p.spec.smc.as_ref())
        .map(|smc| smc.osk_secret_ref.clone());
    Some(Pass {
        uid,
        version,
        plan,
        osk,
        measures,
    })
}

/// The collector's part of a machine's status.
const GUEST: &str = "guest";

fn plan(world: &World, id: &Id, now: Timestamp) -> Option<Plan> {
    Some(match id.kind {
        Kind::PlatformConfig => decide::platform::decide(&gather::platform::gather(world, id)?, now),
        Kind::MacOSImage => decide::image::decide(&gather::image::gather(world, id)?, now),
        Kind::IdentityPool => decide::identity_pool::decide(&gather::identity_pool::gather(world, id)?, now),
        Kind::MachineIdentity => decide::identity::decide(&gather::identity::gather(world, id)?, now),
        Kind::MacOSMachineClass => decide::class::decide(&gather::class::gather(world, id)?, now),
        Kind::MacOSMachine => decide::machine::decide(&gather::machine::gather(world, id)?, now),
        Kind::MacOSMachinePool => decide::pool::decide(&gather::pool::gather(world, id)?, now),
        Kind::MacOSMachineClaim => decide::claim::decide(&gather::claim::gather(world, id)?, now),
        Kind::VirtualMachine | Kind::DataVolume | Kind::ConfigMap => {
            decide::orphan::decide(&gather::orphan::gather(world, id)?)
        }
        _ => return None,
    })
}

/// What is there now.
struct Standing {
    uid: String,
    version: String,
    /// The operator's part.
    status: Option<Value>,
}

/// Of an object that is there and readable.
fn standing(world: &World, id: &Id) -> Option<Standing> {
    macro_rules! of {
        ($shelf:ident without status) => {{
            let seen = world.$shelf.get(&id.namespace, &id.name);
            let meta = &seen.present()?.metadata;
            Standing {
                uid: meta.uid.clone()?,
                version: meta.resource_version.clone()?,
                status: None,
            }
        }};
        ($shelf:ident) => {{
            let seen = world.$shelf.get(&id.namespace, &id.name);
            let object = seen.present()?;
            Standing {
                uid: object.metadata.uid.clone()?,
                version: object.metadata.resource_version.clone()?,
                status: object.status.as_ref().and_then(value),
            }
        }};
    }
    Some(match id.kind {
        Kind::PlatformConfig => of!(platforms),
        Kind::MacOSImage => of!(images),
        Kind::IdentityPool => of!(identity_pools),
        Kind::MachineIdentity => of!(identities),
        Kind::MacOSMachineClass => of!(classes),
        Kind::MacOSMachine => {
            let mut standing = of!(machines);
            if let Some(Value::Object(status)) = &mut standing.status {
                status.remove(GUEST);
            }
            standing
        }
        Kind::VirtualMachine => of!(vms without status),
        Kind::DataVolume => of!(data_volumes without status),
        Kind::ConfigMap => of!(hook_configs without status),
        Kind::MacOSMachinePool => of!(pools),
        Kind::MacOSMachineClaim => of!(claims),
        _ => return None,
    })
}

fn value(status: &impl Serialize) -> Option<Value> {
    serde_json::to_value(status).ok()
}
