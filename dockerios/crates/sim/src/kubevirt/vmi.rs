//! VirtualMachineInstance: from a wish to a launcher pod to a domain to an end.
//!
//! ```text
//! Pending (volumes; a pod that makes them bind) > Scheduling (launcher pod) > Scheduled (pod runs; hook, define)
//!   > Running > Succeeded (guest shut down, power button) | Failed (killed, crashed, could not be defined)
//! ```
//! Invariant: an instance keeps its finalizers until no launcher pod of it is left; on a node that does not answer
//! it stays as it was last seen, deleted or not.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use dockerios_kubevirt::{
    VirtualMachineInstance, condition,
    datavolume::DataVolumePhase,
    names,
    vmi::{VirtualMachineInstanceStatus, VmiPhase},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::events::EventType,
};
use serde_json::{Value, json};

use super::launcher;
use crate::{
    domains::State,
    faults::Fault,
    queue::{Again, Key},
    world::{World, now, unless},
};

const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A new status in the making.
struct Draft<'a> {
    vmi: &'a VirtualMachineInstance,
    status: VirtualMachineInstanceStatus,
    label: Option<String>,
}

impl<'a> Draft<'a> {
    fn of(vmi: &'a VirtualMachineInstance) -> Self {
        Self {
            vmi,
            status: vmi.status.clone().unwrap_or_default(),
            label: None,
        }
    }

    fn phase(&mut self, phase: VmiPhase) {
        if self.status.phase != Some(phase) {
            self.status.phase = Some(phase);
            let transition = json!({"phase": phase, "phaseTransitionTimestamp": now()});
            self.status
                .phase_transition_timestamps
                .extend(serde_json::from_value(transition).ok());
        }
    }

    fn condition(&mut self, type_: &str, status: bool, reason: &str, message: &str) {
        let word = if status { "True" } else { "False" };
        let wished =
            json!({"type": type_, "status": word, "reason": reason, "message": message, "lastTransitionTime": now()});
        let Ok(mut wished) = serde_json::from_value::<dockerios_kubevirt::Condition>(wished) else {
            return;
        };
        match self.status.conditions.iter_mut().find(|known| known.type_ == type_) {
            Some(known) => {
                if known.status == wished.status {
                    wished.last_transition_time = known.last_transition_time.clone();
                }
                *known = wished;
            }
            None => self.status.conditions.push(wished),
        }
    }

    fn drop_condition(&mut self, type_: &str) {
        self.status.conditions.retain(|known| known.type_ != type_);
    }

    async fn write(self, world: &World) -> Result<()> {
        let before = json!(self.vmi.status.clone().unwrap_or_default());
        let wished = json!(self.status);
        if before == wished && self.label.is_none() {
            return Ok(());
        }
        let mut status = wished;
        // a merge keeps what is not named
        for (key, _) in before.as_object().into_iter().flatten() {
            if status.get(key).is_none() {
                status[key] = Value::Null;
            }
        }
        let mut patch = json!({"metadata": {"resourceVersion": self.vmi.resource_version()}, "status": status});
        if let Some(node) = self.label {
            patch["metadata"]["labels"] = json!({names::NODE_NAME: node});
        }
        let api = world.api::<VirtualMachineInstance>(&self.vmi.namespace().unwrap_or_default());
        unless(
            api.patch(&self.vmi.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                .await,
            404,
        )?;
        Ok(())
    }
}

/// Works on one.
pub(crate) async fn instance(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(vmi) = world.instance(&key) else {
        return Ok(None);
    };
    let Some(uid) = vmi.uid() else { return Ok(None) };
    let phase = vmi.status.as_ref().and_then(|status| status.phase).unwrap_or_default();
    let pods = world.launchers(&key.namespace, &uid);
    let node = vmi.status.as_ref().and_then(|status| status.node_name.clone());
    if node.is_some_and(|node| world.node_is_lost(&node)) || world.instance_fault(Fault::Stranded, &vmi).is_some() {
        return Ok(None);
    }
    if vmi.metadata.deletion_timestamp.is_some() && phase != VmiPhase::Running {
        return end(&world, &vmi, &pods, &uid, phase).await;
    }
    match phase {
        VmiPhase::Unset => {
            let mut draft = Draft::of(&vmi);
            draft.phase(VmiPhase::Pending);
            draft.write(&world).await?;
            Ok(None)
        }
        VmiPhase::Pending => pending(&world, &vmi, &pods).await,
        VmiPhase::Scheduling => scheduling(&world, &vmi, &pods).await,
        VmiPhase::Scheduled => scheduled(&world, &vmi, &pods).await,
        VmiPhase::Running => running(&world, &vmi, &pods, &uid).await,
        _ => Ok(None),
    }
}

/// Launcher pods go, then the finalizers.
async fn end(
    world: &World,
    vmi: &VirtualMachineInstance,
    pods: &[Arc<Pod>],
    uid: &str,
    phase: VmiPhase,
) -> Result<Again> {
    let namespace = vmi.namespace().unwrap_or_default();
    if !phase.is_final() {
        world.domains.end(uid, State::Killed);
    }
    if !pods.is_empty() {
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            let api = world.api::<Pod>(&namespace);
            unless(api.delete(&pod.name_any(), &DeleteParams::default()).await, 404)?;
        }
        return Ok(None);
    }
    let ours = [names::VM_FINALIZER, names::VMI_FINALIZER];
    let rest: Vec<_> = vmi
        .finalizers()
        .iter()
        .filter(|finalizer| !ours.contains(&finalizer.as_str()))
        .collect();
    if rest.len() < vmi.finalizers().len() {
        let patch = json!({"metadata": {"finalizers": rest, "resourceVersion": vmi.resource_version()}});
        let api = world.api::<VirtualMachineInstance>(&namespace);
        unless(
            api.patch(&vmi.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                .await,
            404,
        )?;
    }
    world.domains.forget(uid);
    world.forget(uid);
    Ok(None)
}

/// What hinders the launcher pod, before it is made.
enum Volumes {
    Ready,
    /// All that are not ready wait for a pod that uses them.
    WaitForPod,
    NotReady(String),
}

fn volumes(world: &World, vmi: &VirtualMachineInstance) -> Volumes {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut answer = Volumes::Ready;
    for name in vmi.spec.volumes.iter().filter_map(launcher::claim_of) {
        let key = Key::new(&*namespace, name);
        let volume = world.volume(&key);
        match volume
            .as_ref()
            .map(|volume| volume.status.as_ref().and_then(|s| s.phase).unwrap_or_default())
        {
            Some(DataVolumePhase::Succeeded) => {}
            Some(DataVolumePhase::WaitForFirstConsumer | DataVolumePhase::PendingPopulation) => {
                answer = Volumes::WaitForPod
            }
            Some(_) if under_way(world, vmi, &key) => answer = Volumes::WaitForPod,
            Some(phase) => return Volumes::NotReady(format!("DataVolume {name} is {phase:?}")),
            None => {}
        }
        if world.claim(&key).is_none() {
            return Volumes::NotReady(format!("didn't find PVC {name}"));
        }
    }
    answer
}

/// A DataVolume whose claim got its node from the pod that waits for it.
fn under_way(world: &World, vmi: &VirtualMachineInstance, key: &Key) -> bool {
    let pod = Key::new(&*key.namespace, launcher::name(vmi, true));
    let has_node = world.claim(key).is_some_and(|claim| crate::csi::has_consumer(&claim));
    world.pod(&pod).is_some() && has_node
}

async fn pending(world: &World, vmi: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> Result<Again> {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut draft = Draft::of(vmi);
    let provisioning = launcher::name(vmi, true);
    if pods.iter().any(|pod| pod.name_any() == launcher::name(vmi, false)) {
        draft.phase(VmiPhase::Scheduling);
        draft.drop_condition("Provisioning");
        draft.write(world).await?;
        return Ok(None);
    }
    let api = world.api::<Pod>(&namespace);
    match volumes(world, vmi) {
        Volumes::NotReady(why) => {
            draft.condition(names::DATA_VOLUMES_READY, false, "NotAllDVsReady", &why);
            draft.condition(
                names::READY,
                false,
                "GuestNotRunning",
                "Guest VM is not reported as running",
            );
            draft.write(world).await?;
            return Ok(None);
        }
        Volumes::WaitForPod => {
            draft.condition("Provisioning", true, "", "");
            unschedulable(&mut draft, pods);
            draft.write(world).await?;
            if pods.is_empty() {
                let pod = launcher::render(vmi, &world.options.launcher_image, true).map_err(anyhow::Error::msg)?;
                unless(api.create(&PostParams::default(), &pod).await, 409)?;
            }
            return Ok(None);
        }
        Volumes::Ready => {}
    }
    if pods.iter().any(|pod| pod.name_any() == provisioning) {
        unless(
            api.delete(&provisioning, &DeleteParams::default().grace_period(0))
                .await,
            404,
        )?;
        return Ok(None);
    }
    if let Some(why) = cannot_render(world, vmi, &namespace).await? {
        draft.condition(names::SYNCHRONIZED, false, "FailedCreate", &why);
        draft.write(world).await?;
        world.tell(vmi, EventType::Warning, "FailedCreate", why).await;
        return Ok(Some(LOOK_AGAIN));
    }
    draft.condition(
        names::DATA_VOLUMES_READY,
        true,
        "AllDVsReady",
        "All of the VMI's DVs are bound and ready",
    );
    draft.drop_condition(names::SYNCHRONIZED);
    draft.drop_condition("Provisioning");
    draft.write(world).await?;
    let pod = launcher::render(vmi, &world.options.launcher_image, false).map_err(anyhow::Error::msg)?;
    match api.create(&PostParams::default(), &pod).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            let mut draft = Draft::of(vmi);
            let why = format!("failed to create virtual machine pod: {}", status.message);
            draft.condition(names::SYNCHRONIZED, false, "FailedCreate", &why);
            draft.write(world).await?;
            Ok(Some(LOOK_AGAIN))
        }
        other => {
            unless(other, 409)?;
            Ok(None)
        }
    }
}

/// The hooks' annotation is read, and their ConfigMaps are looked for, when the pod is rendered.
async fn cannot_render(world: &World, vmi: &VirtualMachineInstance, namespace: &str) -> Result<Option<String>> {
    let sidecars = match launcher::sidecars(vmi) {
        Ok(sidecars) => sidecars,
        Err(error) => return Ok(Some(format!("failed to render launch manifest: {error}"))),
    };
    for file in sidecars.iter().filter_map(|sidecar| sidecar.config_map.as_ref()) {
        if world
            .api::<ConfigMap>(namespace)
            .get_metadata_opt(&file.name)
            .await?
            .is_none()
        {
            let name = &file.name;
            return Ok(Some(format!(
                "failed to render launch manifest: configmaps {name:?} not found"
            )));
        }
    }
    Ok(None)
}

/// The scheduler's words, on the instance.
fn unschedulable(draft: &mut Draft<'_>, pods: &[Arc<Pod>]) {
    let words = pods.iter().find_map(|pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
    });
    match words {
        Some(words) => {
            let reason = words.reason.as_deref().unwrap_or("Unschedulable");
            draft.condition(
                names::POD_SCHEDULED,
                false,
                reason,
                words.message.as_deref().unwrap_or(""),
            );
        }
        None => draft.drop_condition(names::POD_SCHEDULED),
    }
}

fn launcher_of<'a>(vmi: &VirtualMachineInstance, pods: &'a [Arc<Pod>]) -> Option<&'a Arc<Pod>> {
    let name = launcher::name(vmi, false);
    pods.iter().find(|pod| pod.name_any() == name)
}

fn pod_phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

fn fail(draft: &mut Draft<'_>, reason: &str) {
    draft.phase(VmiPhase::Failed);
    draft.condition(names::READY, false, "PodTerminating", reason);
}

async fn scheduling(world: &World, vmi: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> Result<Again> {
    let mut draft = Draft::of(vmi);
    match launcher_of(vmi, pods) {
        None => fail(&mut draft, "the launcher pod is gone"),
        Some(pod) if matches!(pod_phase(pod), "Failed" | "Succeeded") => fail(&mut draft, "the launcher pod ended"),
        Some(pod) => {
            unschedulable(&mut draft, pods);
            let node = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default();
            draft
                .status
                .active_pods
                .insert(pod.uid().unwrap_or_default(), node.clone());
            draft.condition(
                names::READY,
                false,
                "GuestNotRunning",
                "Guest VM is not reported as running",
            );
            if pod_phase(pod) == "Running" && !node.is_empty() {
                draft.phase(VmiPhase::Scheduled);
                draft.status.node_name = Some(node.clone());
                draft.status.launcher_container_image_version = Some(world.options.launcher_image.clone());
                draft.status.runtime_user = Some(107);
                draft.label = Some(node);
            }
        }
    }
    draft.write(world).await?;
    Ok(None)
}

async fn scheduled(world: &Arc<World>, vmi: &Arc<VirtualMachineInstance>, pods: &[Arc<Pod>]) -> Result<Again> {
    let uid = vmi.uid().unwrap_or_default();
    let mut draft = Draft::of(vmi);
    let Some(pod) = launcher_of(vmi, pods).filter(|pod| pod_phase(pod) == "Running") else {
        fail(&mut draft, "the launcher pod is gone");
        world.domains.end(&uid, State::Killed);
        draft.write(world).await?;
        return Ok(None);
    };
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    match world.domains.state(&uid) {
        None => {
            world.domains.define(world, vmi);
            return Ok(None);
        }
        Some(State::Refused(why)) => {
            let message = format!("server error. command SyncVMI failed: {why:?}");
            draft.condition(
                names::SYNCHRONIZED,
                false,
                "Synchronizing with the Domain failed.",
                &message,
            );
            let told = condition(&vmi.status.clone().unwrap_or_default().conditions, names::SYNCHRONIZED)
                .is_some_and(|known| known.message.as_deref() == Some(&message));
            draft.write(world).await?;
            if !told {
                world.tell(&**vmi, EventType::Warning, "SyncFailed", message).await;
            }
            return Ok(None);
        }
        Some(State::Defining) => return Ok(None),
        Some(State::Up) => {
            draft.phase(VmiPhase::Running);
            draft.drop_condition(names::SYNCHRONIZED);
            draft.condition(names::READY, true, "", "");
            draft.condition(
                "LiveMigratable",
                false,
                "HostDeviceNotLiveMigratable",
                "the machine has devices of its node",
            );
            let interfaces =
                vmi.spec
                    .networks
                    .iter()
                    .zip(&vmi.spec.domain.devices.interfaces)
                    .map(|(network, interface)| {
                        let address = network.pod.and(ip.clone());
                        json!({"name": network.name, "mac": interface.mac_address, "ipAddress": address,
                       "ipAddresses": address.iter().collect::<Vec<_>>()})
                    });
            let interfaces: Vec<_> = interfaces.filter_map(|one| serde_json::from_value(one).ok()).collect();
            draft.status.interfaces = interfaces;
            world
                .tell(
                    &**vmi,
                    EventType::Normal,
                    "Started",
                    "VirtualMachineInstance started.".to_owned(),
                )
                .await;
        }
        Some(_) => fail(&mut draft, "the domain could not be started"),
    }
    draft.write(world).await?;
    Ok(None)
}

async fn running(world: &Arc<World>, vmi: &Arc<VirtualMachineInstance>, pods: &[Arc<Pod>], uid: &str) -> Result<Again> {
    let mut draft = Draft::of(vmi);
    let state = match world.domains.state(uid) {
        Some(state) => state,
        // a simulator that was restarted finds the domain as it left it
        None if launcher_of(vmi, pods).is_some_and(|pod| pod_phase(pod) == "Running") => {
            world.domains.adopt(world, vmi);
            State::Up
        }
        None => State::Killed,
    };
    if launcher_of(vmi, pods).is_none() {
        world.domains.end(uid, State::Killed);
    }
    match state {
        State::Ended => {
            draft.phase(VmiPhase::Succeeded);
            draft.condition(names::READY, false, "PodTerminating", "the guest was shut down");
        }
        State::Killed | State::Crashed | State::Refused(_) => fail(&mut draft, "the domain ended"),
        State::Up | State::Defining => {
            if world.instance_fault(Fault::Crash, vmi).is_some() {
                world.domains.end(uid, State::Crashed);
            } else if world.instance_fault(Fault::Poweroff, vmi).is_some() {
                world.domains.power_off(uid);
            }
            if vmi.metadata.deletion_timestamp.is_some() {
                let grace = vmi.spec.termination_grace_period_seconds.unwrap_or(30);
                world.domains.press_power_button(uid, u32::try_from(grace).unwrap_or(0));
            }
            match world.instance_fault(Fault::IoError, vmi) {
                Some(_) => draft.condition(
                    names::PAUSED,
                    true,
                    "PausedIOError",
                    "VMI was paused, low-level IO error detected",
                ),
                None => draft.drop_condition(names::PAUSED),
            }
            match draft.status.evacuation_node_name.clone() {
                Some(node) => {
                    let message = format!("VMI was asked to leave node {node}");
                    draft.condition(names::EVICTION_REQUESTED, true, "EvictionRequested", &message);
                }
                None => draft.drop_condition(names::EVICTION_REQUESTED),
            }
        }
    }
    draft.write(world).await?;
    Ok(None)
}
