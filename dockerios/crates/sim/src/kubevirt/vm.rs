//! VirtualMachine: makes and deletes the instance.
//!
//! Invariant: `Once` makes an instance where there is none and leaves a finished one as it ended; `Halted` deletes it,
//! with its grace; the VirtualMachine's finalizer stays until the instance has gone.

use std::sync::Arc;

use anyhow::Result;
use dockerios_kubevirt::{
    VirtualMachine, VirtualMachineInstance, is_true, names,
    vm::{RunStrategy, printable},
    vmi::VmiPhase,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::events::EventType,
};
use serde_json::json;

use crate::{
    queue::{Again, Key},
    world::{World, now, unless},
};

/// Works on one.
pub(crate) async fn machine(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(vm) = world.machine(&key) else {
        return Ok(None);
    };
    let vmi = world.instance(&key).filter(|vmi| {
        let owners = vmi.owner_references();
        owners.iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
    });
    let going = vm.metadata.deletion_timestamp.is_some();
    let has_finalizer = vm.finalizers().iter().any(|finalizer| finalizer == names::VM_FINALIZER);
    if going {
        return end(&world, &vm, vmi.as_deref(), has_finalizer).await;
    }
    if !has_finalizer {
        let mut finalizers = vm.finalizers().to_vec();
        finalizers.push(names::VM_FINALIZER.to_owned());
        let patch = json!({"metadata": {
            "resourceVersion": vm.resource_version(), "finalizers": finalizers,
            "annotations": {"kubevirt.io/latest-observed-api-version": "v1", "kubevirt.io/storage-observed-api-version": "v1"},
        }});
        let api = world.api::<VirtualMachine>(&key.namespace);
        api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        return Ok(None);
    }
    if writes_firmware(&world, &vm).await? {
        return Ok(None);
    }
    let strategy = vm.spec.run_strategy.unwrap_or(RunStrategy::Halted);
    let instance = vmi.as_deref();
    match (strategy, instance) {
        (RunStrategy::Once | RunStrategy::Always | RunStrategy::RerunOnFailure, None) => start(&world, &vm).await?,
        (RunStrategy::Halted, Some(vmi)) => stop(&world, vmi).await?,
        (RunStrategy::Always, Some(vmi)) if phase(vmi).is_final() => stop(&world, vmi).await?,
        (RunStrategy::RerunOnFailure, Some(vmi)) if phase(vmi) == VmiPhase::Failed => stop(&world, vmi).await?,
        _ => {}
    }
    say(&world, &vm, instance, strategy).await?;
    Ok(None)
}

fn phase(vmi: &VirtualMachineInstance) -> VmiPhase {
    vmi.status.as_ref().and_then(|status| status.phase).unwrap_or_default()
}

async fn end(world: &World, vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, held: bool) -> Result<Again> {
    if let Some(vmi) = vmi {
        stop(world, vmi).await?;
        say(world, vm, Some(vmi), RunStrategy::Halted).await?;
    } else if held {
        let rest: Vec<_> = vm
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != names::VM_FINALIZER)
            .collect();
        let patch = json!({"metadata": {"finalizers": rest, "resourceVersion": vm.resource_version()}});
        let api = world.api::<VirtualMachine>(&vm.namespace().unwrap_or_default());
        unless(
            api.patch(&vm.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                .await,
            404,
        )?;
    }
    Ok(None)
}

/// What virt-controller does to a VirtualMachine whose firmware has no uuid or serial: it writes them into the spec.
async fn writes_firmware(world: &World, vm: &VirtualMachine) -> Result<bool> {
    let firmware = vm.spec.template.spec.domain.firmware.clone().unwrap_or_default();
    if firmware.uuid.is_some() && firmware.serial.is_some() {
        return Ok(false);
    }
    let own = vm.uid().unwrap_or_default();
    let patch = json!({
        "metadata": {"resourceVersion": vm.resource_version()},
        "spec": {"template": {"spec": {"domain": {"firmware": {
            "uuid": firmware.uuid.unwrap_or_else(|| own.clone()), "serial": firmware.serial.unwrap_or(own),
        }}}}},
    });
    let api = world.api::<VirtualMachine>(&vm.namespace().unwrap_or_default());
    api.patch(&vm.name_any(), &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(true)
}

async fn start(world: &World, vm: &VirtualMachine) -> Result<()> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let template = vm.spec.template.metadata.clone().unwrap_or_default();
    let mut annotations = json!(template.annotations);
    annotations["kubevirt.io/latest-observed-api-version"] = json!("v1");
    annotations["kubevirt.io/pci-topology-version"] = json!("v3");
    annotations["kubevirt.io/vm-generation"] = json!(vm.metadata.generation.unwrap_or(1).to_string());
    let mut spec = json!(vm.spec.template.spec);
    spec["domain"]["devices"]
        .as_object_mut()
        .into_iter()
        .for_each(|devices| {
            devices.entry("autoattachGraphicsDevice").or_insert(json!(true));
        });
    let vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name,
            "labels": template.labels,
            "annotations": annotations,
            "finalizers": [names::VM_FINALIZER, names::VMI_FINALIZER],
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm.uid(),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    }))?;
    let api = world.api::<VirtualMachineInstance>(&namespace);
    if unless(api.create(&PostParams::default(), &vmi).await, 409)?.is_some() {
        let note = format!("Started the virtual machine by creating the new virtual machine instance {name}");
        world.tell(vm, EventType::Normal, "SuccessfulCreate", note).await;
    }
    Ok(())
}

async fn stop(world: &World, vmi: &VirtualMachineInstance) -> Result<()> {
    if vmi.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let only_this = DeleteParams::default().preconditions(Preconditions {
        uid: vmi.uid(),
        resource_version: None,
    });
    let api = world.api::<VirtualMachineInstance>(&vmi.namespace().unwrap_or_default());
    unless(api.delete(&vmi.name_any(), &only_this).await, 404)?;
    Ok(())
}

/// The word of the STATUS column.
fn word(
    world: &World,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
) -> &'static str {
    if vm.metadata.deletion_timestamp.is_some() {
        return printable::TERMINATING;
    }
    let Some(vmi) = vmi else {
        return if strategy == RunStrategy::Halted {
            printable::STOPPED
        } else {
            printable::STARTING
        };
    };
    if vmi.metadata.deletion_timestamp.is_some() {
        return printable::STOPPING;
    }
    let status = vmi.status.clone().unwrap_or_default();
    match phase(vmi) {
        VmiPhase::Succeeded | VmiPhase::Failed => printable::CRASH_LOOP_BACK_OFF,
        VmiPhase::Running if is_true(&status.conditions, names::PAUSED) => printable::PAUSED,
        VmiPhase::Running => printable::RUNNING,
        VmiPhase::Scheduling
            if dockerios_kubevirt::condition(&status.conditions, names::POD_SCHEDULED)
                .is_some_and(|condition| condition.reason.as_deref() == Some("Unschedulable")) =>
        {
            printable::UNSCHEDULABLE
        }
        VmiPhase::Pending | VmiPhase::Unset => waiting_for(world, vmi),
        _ => printable::STARTING,
    }
}

fn waiting_for(world: &World, vmi: &VirtualMachineInstance) -> &'static str {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut word = printable::STARTING;
    for named in vmi.spec.volumes.iter().filter_map(|volume| volume.data_volume.as_ref()) {
        let key = Key::new(&*namespace, &*named.name);
        match (world.volume(&key), world.claim(&key)) {
            (None, None) => return printable::PVC_NOT_FOUND,
            (Some(volume), _)
                if volume
                    .status
                    .as_ref()
                    .is_some_and(|s| s.progress.as_deref() != Some("100.0%")) =>
            {
                word = printable::PROVISIONING;
            }
            _ => {}
        }
    }
    word
}

async fn say(
    world: &World,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
) -> Result<()> {
    let before = vm.status.clone().unwrap_or_default();
    let state = vmi.and_then(|vmi| vmi.status.clone()).unwrap_or_default();
    let up = is_true(&state.conditions, names::READY);
    let why = if vmi.is_some() {
        "GuestNotRunning"
    } else {
        "VMINotExists"
    };
    let status = if up { "True" } else { "False" };
    let since = dockerios_kubevirt::condition(&before.conditions, names::READY)
        .filter(|old| old.status == status)
        .and_then(|old| serde_json::to_value(&old.last_transition_time).ok())
        .unwrap_or_else(|| json!(now()));
    let mut ready = json!({"type": "Ready", "status": status, "lastTransitionTime": since});
    if !up {
        ready["reason"] = json!(why);
    }
    let mut conditions = vec![ready];
    // what hinders the instance shows on the machine
    for type_ in [
        names::SYNCHRONIZED,
        names::POD_SCHEDULED,
        names::PAUSED,
        names::EVICTION_REQUESTED,
    ] {
        let found = dockerios_kubevirt::condition(&state.conditions, type_);
        conditions.extend(found.map(|condition| json!(condition)));
    }
    let mut wished = json!({
        "printableStatus": word(world, vm, vmi, strategy),
        "created": vmi.is_some(),
        "ready": up,
        "runStrategy": vm.spec.run_strategy,
        "observedGeneration": vm.metadata.generation,
        "desiredGeneration": vm.metadata.generation,
        "conditions": conditions,
    });
    if vm.spec.run_strategy.is_none() {
        wished.as_object_mut().and_then(|fields| fields.remove("runStrategy"));
    }
    if wished == json!(before) {
        return Ok(());
    }
    let api = world.api::<VirtualMachine>(&vm.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({"status": wished}));
    unless(
        api.patch_status(&vm.name_any(), &PatchParams::default(), &patch).await,
        404,
    )?;
    Ok(())
}
