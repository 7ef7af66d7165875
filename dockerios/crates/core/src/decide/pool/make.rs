//! A machine for the stock.

use std::collections::BTreeMap;

use dockerios_api::{
    MacOSMachineClass, MacOSMachinePool, MacOSMachineSpec,
    machine::{macos_machine::PowerState, pool::MachinePoolReason},
    names::{POOL, POOL_UID, TEMPLATE_HASH},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{super::claim::new_machine, Facts, say::Word};
use crate::{Kind, Object, Seen};

/// Hash of what a machine of the class is made from: its name and its spec, without what only says who may use it and
/// how long is waited.
pub fn template_hash(class: &MacOSMachineClass) -> String {
    let mut spec = class.spec.clone();
    spec.allowed_namespaces = None;
    let mut spec = json!(spec);
    for waits in ["cloneTimeout", "readinessTimeout"] {
        spec.as_object_mut().and_then(|fields| fields.remove(waits));
    }
    let text = json!({"name": class.name_any(), "spec": spec}).to_string();
    let digest = Sha256::digest(text);
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The class that machines can be made of now, or why there is none.
pub(super) fn usable(facts: &Facts) -> Result<&MacOSMachineClass, Word> {
    let wanted = &facts.pool.spec.machine_class_name;
    let class = match &facts.class {
        Seen::Present(class) => class,
        Seen::Unknown(why) => return Err(Word::unseen(why)),
        Seen::Absent => {
            let message = format!("there is no MacOSMachineClass {wanted}; make it, or set spec.machineClassName");
            return Err(Word::new(MachinePoolReason::ClassNotFound, message));
        }
    };
    let Some(selector) = &class.spec.allowed_namespaces else {
        return Ok(class);
    };
    match &facts.namespace {
        Seen::Present(namespace) if selector.takes(namespace.labels()) => Ok(class),
        Seen::Unknown(why) => Err(Word::unseen(why)),
        Seen::Present(_) | Seen::Absent => {
            let namespace = facts.pool.namespace().unwrap_or_default();
            let message = format!(
                "class {wanted} is not for namespace {namespace}; name another, or ask the platform team to widen its \
                 allowedNamespaces"
            );
            Err(Word::new(MachinePoolReason::CreationRefused, message))
        }
    }
}

/// A machine that belongs to the pool until a claim takes it.
pub(super) fn warm(pool: &MacOSMachinePool, class: &MacOSMachineClass) -> Object {
    let address = Kind::MacOSMachinePool.address();
    let owner = OwnerReference {
        api_version: address.api_version(),
        kind: address.kind.to_owned(),
        name: pool.name_any(),
        uid: pool.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", pool.name_any())),
        namespace: pool.namespace(),
        labels: Some(BTreeMap::from([
            (POOL.to_owned(), pool.name_any()),
            (POOL_UID.to_owned(), pool.uid().unwrap_or_default()),
            (TEMPLATE_HASH.to_owned(), template_hash(class)),
        ])),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    let spec = MacOSMachineSpec {
        machine_class_name: pool.spec.machine_class_name.clone(),
        power_state: PowerState::Running,
        claim_ref: None,
    };
    new_machine(&metadata, &spec)
}
