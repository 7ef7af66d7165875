//! What the decision about one machine reads.

use std::{collections::BTreeMap, sync::Arc};

use dockerios_api::{
    IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MachineIdentity, PlatformConfig,
    names::MACHINE_UID,
};
use dockerios_kubevirt::{DataVolume, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::line::Line;
use crate::{Seen, plan::Refusal, render::machine as render};

/// What the decision about one machine reads. Lists hold what carries the machine's uid label.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The machine.
    pub machine: Arc<MacOSMachine>,
    /// Its class.
    pub class: Seen<Arc<MacOSMachineClass>>,
    /// Its namespace, for its labels.
    pub namespace: Seen<Arc<Namespace>>,
    /// The image that the class names.
    pub image: Seen<Arc<MacOSImage>>,
    /// PlatformConfig `default`.
    pub platform: Seen<Arc<PlatformConfig>>,
    /// Whether the operator may clone from the platform namespace into the machine's.
    pub clone_right: Seen<bool>,
    /// The identity pool that the class names; absent too for a Shared class.
    pub pool: Seen<Arc<IdentityPool>>,
    /// The claim that spec.claimRef names, whatever its uid; absent too when none is named.
    pub claim: Seen<Arc<MacOSMachineClaim>>,
    /// Identities whose claimRef has the machine's uid. One at most, if all is well.
    pub held: Seen<Vec<Arc<MachineIdentity>>>,
    /// Pool of the identity that it holds; absent too when it holds none.
    pub home: Seen<Arc<IdentityPool>>,
    /// Who waits for what; looked at only while the machine has nothing yet.
    pub line: Line,
    /// Its VirtualMachine.
    pub vms: Seen<Vec<Arc<VirtualMachine>>>,
    /// Its instance.
    pub vmis: Seen<Vec<Arc<VirtualMachineInstance>>>,
    /// Its launcher pods.
    pub pods: Seen<Vec<Arc<Pod>>>,
    /// Its DataVolumes.
    pub data_volumes: Seen<Vec<Arc<DataVolume>>>,
    /// Its PersistentVolumeClaims.
    pub volumes: Seen<Vec<Arc<PersistentVolumeClaim>>>,
    /// The node of [`node_of`]; absent too when it has none.
    pub node: Seen<Arc<Node>>,
    /// Where guests report to when the platform says nothing else.
    pub collector_url: String,
    /// Where golden images and master bootdisks are.
    pub platform_namespace: String,
    /// Why the last pass could not do what it decided.
    pub refusal: Option<Refusal>,
}

/// The node that holds a machine's instance, or its launcher pod while the instance has none yet.
pub fn node_of(vmis: &[Arc<VirtualMachineInstance>], pods: &[Arc<Pod>]) -> Option<String> {
    let placed = vmis.iter().find_map(|vmi| vmi.status.as_ref()?.node_name.clone());
    let of_pod = || {
        let mut live = pods.iter().filter(|pod| !terminal(pod));
        live.find_map(|pod| pod.spec.as_ref()?.node_name.clone())
    };
    placed.filter(|name| !name.is_empty()).or_else(of_pod)
}

/// Whether nothing of the pod runs any more.
pub(super) fn terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The machine's objects, all of them readable.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects<'f> {
    pub(super) vms: Vec<&'f VirtualMachine>,
    /// The one that was rendered for it.
    pub(super) vm: Option<&'f VirtualMachine>,
    pub(super) vmi: Option<&'f VirtualMachineInstance>,
    pub(super) pods: Vec<&'f Pod>,
    pub(super) data_volumes: BTreeMap<String, &'f DataVolume>,
    pub(super) volumes: BTreeMap<String, &'f PersistentVolumeClaim>,
}

impl<'f> Objects<'f> {
    /// All of them, or why one kind cannot be read.
    pub(super) fn of(facts: &'f Facts) -> Result<Self, String> {
        let name = render::vm_name(&facts.machine);
        let vms = all(&facts.vms)?;
        let vmis = all(&facts.vmis)?;
        let named = |vmi: &&VirtualMachineInstance| vmi.name_any() == name;
        Ok(Self {
            vm: vms.iter().copied().find(|vm| vm.name_any() == name),
            vmi: vmis.iter().copied().find(named).or_else(|| vmis.first().copied()),
            vms,
            pods: all(&facts.pods)?,
            data_volumes: by_name(all(&facts.data_volumes)?),
            volumes: by_name(all(&facts.volumes)?),
        })
    }

    /// Whether anything was made for the machine.
    pub(super) fn none(&self) -> bool {
        self.vms.is_empty()
            && self.vmi.is_none()
            && self.pods.is_empty()
            && self.data_volumes.is_empty()
            && self.volumes.is_empty()
    }
}

fn by_name<K: ResourceExt>(objects: Vec<&K>) -> BTreeMap<String, &K> {
    objects.into_iter().map(|object| (object.name_any(), object)).collect()
}

fn all<K>(seen: &Seen<Vec<Arc<K>>>) -> Result<Vec<&K>, String> {
    match seen {
        Seen::Present(objects) => Ok(objects.iter().map(AsRef::as_ref).collect()),
        Seen::Absent => Ok(Vec::new()),
        Seen::Unknown(why) => Err(why.clone()),
    }
}

/// The label by which everything of the machine is found.
pub(super) fn uid_label(machine: &MacOSMachine) -> (&'static str, String) {
    (MACHINE_UID, machine.uid().unwrap_or_default())
}
