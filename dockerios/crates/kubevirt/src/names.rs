//! Labels, annotations, finalizers, taints and condition types, as KubeVirt and CDI write them.

/// Label of launcher pods: [`LAUNCHER`].
pub const APP_LABEL: &str = "kubevirt.io";
/// Value of [`APP_LABEL`] on launcher pods.
pub const LAUNCHER: &str = "virt-launcher";
/// Label of launcher pods: UID of the VirtualMachineInstance.
pub const CREATED_BY: &str = "kubevirt.io/created-by";
/// Label of a VirtualMachineInstance and its launcher pod: the node it was given to.
pub const NODE_NAME: &str = "kubevirt.io/nodeName";
/// Annotation of launcher pods: name of the VirtualMachineInstance.
pub const DOMAIN: &str = "kubevirt.io/domain";
/// Label of launcher pods: name of the VirtualMachine.
pub const VM_NAME: &str = "vm.kubevirt.io/name";
/// Label of launcher pods: name of the VirtualMachineInstance.
pub const VMI_ID: &str = "vmi.kubevirt.io/id";
/// Annotation of the template: PCI devices on bus 0, where macOS looks.
pub const PLACE_PCI_ON_ROOT: &str = "kubevirt.io/placePCIDevicesOnRootComplex";
/// Annotation of the template: the hook sidecars, as JSON.
pub const HOOK_SIDECARS: &str = "hooks.kubevirt.io/hookSidecars";
/// Finalizer of a VirtualMachine, removed by virt-controller when the instance has gone.
pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Finalizer of a VirtualMachineInstance, removed when its launcher has gone.
pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
/// Label of a node, by KubeVirt's node labeller: the vendor of its processors is Intel.
pub const CPU_VENDOR_INTEL: &str = "cpu-vendor.node.kubevirt.io/Intel";
/// The same for AMD.
pub const CPU_VENDOR_AMD: &str = "cpu-vendor.node.kubevirt.io/AMD";
/// Resource of a node: it can run KVM guests.
pub const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";

/// Annotation on DataVolume and PVC: how CDI cloned (`copy`, `snapshot`, `csi-clone`).
pub const CLONE_TYPE: &str = "cdi.kubevirt.io/cloneType";
/// Annotation on the PVC: why CDI fell back to a copy.
pub const CLONE_FALLBACK_REASON: &str = "cdi.kubevirt.io/cloneFallbackReason";
/// Annotation on the PVC: where the clone stands.
pub const CLONE_PHASE: &str = "cdi.kubevirt.io/clonePhase";
/// Annotation on the PVC: what the clone failed with. The phase stays as it is.
pub const CLONE_ERROR: &str = "cdi.kubevirt.io/cloneError";
/// Annotation on a DataVolume: `"false"` keeps CDI before 1.62 from removing it after success.
pub const DELETE_AFTER_COMPLETION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// Annotation on a PVC that holds a disk image: `kubevirt`.
pub const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
/// Annotation on a DataVolume: bind without waiting for a consumer.
pub const IMMEDIATE_BINDING: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";

/// Condition of both: usable now.
pub const READY: &str = "Ready";
/// Condition of a DataVolume: its PVC is bound.
pub const BOUND: &str = "Bound";
/// Condition of a DataVolume: a transfer is going on.
pub const RUNNING: &str = "Running";
/// Condition of a VirtualMachineInstance: what was asked is what is; `False` carries the reason it is not.
pub const SYNCHRONIZED: &str = "Synchronized";
/// Condition of a VirtualMachineInstance: its processors stand still, by request or on an I/O error.
pub const PAUSED: &str = "Paused";
/// Condition of a VirtualMachineInstance: the scheduler's message when `False`.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// Condition of a VirtualMachineInstance: its pod was asked to leave the node.
pub const EVICTION_REQUESTED: &str = "EvictionRequested";
/// Condition of a VirtualMachineInstance: all its DataVolumes are done.
pub const DATA_VOLUMES_READY: &str = "DataVolumesReady";
/// Condition of a VirtualMachine: it failed to do what was asked.
pub const FAILURE: &str = "Failure";
