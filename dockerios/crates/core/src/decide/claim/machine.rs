//! The machine of a claim: taken from a pool, or made for it.

use std::collections::BTreeMap;

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachinePool, MacOSMachineSpec,
    machine::macos_machine::{MachineClaimRef, PowerState},
    names::{CLAIM_UID, CLAIMED, POOL, POOL_UID, for_claim},
};
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;

use crate::{Kind, Object, Step};

fn reference(claim: &MacOSMachineClaim) -> MachineClaimRef {
    MachineClaimRef {
        name: claim.name_any().into(),
        uid: claim.uid().unwrap_or_default(),
    }
}

/// One PUT of the main resource in the version seen: claimRef, label, and the pool lets go of it. (A PUT of the status
/// silently drops metadata.) None when the object has no version, which no stored one lacks.
pub(super) fn bound(machine: &MacOSMachine, claim: &MacOSMachineClaim) -> Option<Step> {
    machine.metadata.resource_version.as_ref()?;
    let mut taken = machine.clone();
    taken.status = None;
    taken.metadata.managed_fields = None;
    taken.spec.claim_ref = Some(reference(claim));
    let labels = taken.metadata.labels.get_or_insert_default();
    labels.insert(CLAIMED.to_owned(), "true".to_owned());
    if let Some(owners) = taken.metadata.owner_references.take() {
        let pool = Kind::MacOSMachinePool.address().kind;
        taken.metadata.owner_references = Some(owners.into_iter().filter(|owner| owner.kind != pool).collect());
    }
    Object::of(Kind::MacOSMachine, &taken).ok().map(Step::Replace)
}

/// A machine that is this claim's from its first moment. Its name comes from the claim's uid, so that a pass that is
/// repeated makes no second one.
pub(crate) fn made_for(claim: &MacOSMachineClaim, class: &str, pool: Option<&MacOSMachinePool>) -> Object {
    let uid = claim.uid().unwrap_or_default();
    let mut labels = BTreeMap::from([
        (CLAIM_UID.to_owned(), uid.clone()),
        (CLAIMED.to_owned(), "true".to_owned()),
    ]);
    if let Some(pool) = pool {
        labels.insert(POOL.to_owned(), pool.name_any());
        labels.insert(POOL_UID.to_owned(), pool.uid().unwrap_or_default());
    }
    let spec = MacOSMachineSpec {
        machine_class_name: class.into(),
        power_state: PowerState::Running,
        claim_ref: Some(reference(claim)),
    };
    let metadata = ObjectMeta {
        name: Some(for_claim(&uid)),
        namespace: claim.namespace(),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    new_machine(&metadata, &spec)
}

/// A machine that is to be stored.
pub(crate) fn new_machine(metadata: &ObjectMeta, spec: &MacOSMachineSpec) -> Object {
    let address = Kind::MacOSMachine.address();
    let body = json!({
        "apiVersion": address.api_version(),
        "kind": address.kind,
        "metadata": metadata,
        "spec": spec,
    });
    Object {
        kind: Kind::MacOSMachine,
        body,
    }
}

/// Whether it is the machine that was made for that claim.
pub(super) fn named_for(machine: &MacOSMachine, claim: &MacOSMachineClaim) -> bool {
    let uid = claim.uid().unwrap_or_default();
    machine.name_any() == for_claim(&uid) && machine.labels().get(CLAIM_UID) == Some(&uid)
}
