//! Names that the parts agree on: labels, annotations, finalizers, field managers, and how objects are named.

use uid::first_hex;

/// Namespace of the operator, golden images, master bootdisks and the keys, unless it is told another.
pub const PLATFORM_NAMESPACE: &str = "dockerios-system";
/// The name of the one PlatformConfig.
pub const PLATFORM: &str = "default";

/// Field manager of everything that the operator applies.
pub const OPERATOR: &str = "dockerios-operator";
/// Field manager of `MacOSMachine.status.guest`, and of nothing else.
pub const COLLECTOR: &str = "dockerios-collector";

/// Label: name of the MacOSMachine that an object belongs to.
pub const MACHINE: &str = "machine.dockerios.io/machine";
/// Label: uid of the MacOSMachine that an object belongs to. What decides; the name is for people.
pub const MACHINE_UID: &str = "machine.dockerios.io/uid";
/// Label: name (lower-case serial) of the MachineIdentity that a VirtualMachine, its VMI and its launcher pod carry.
/// An identity is free only when a consistent list shows none of them.
pub const IDENTITY: &str = "identity.dockerios.io/name";
/// Label of a machine: name of the pool that made it.
pub const POOL: &str = "machine.dockerios.io/pool";
/// Label of a machine: uid of the pool that made it.
pub const POOL_UID: &str = "machine.dockerios.io/pool-uid";
/// Label of a machine: `true` once a claim has taken it.
pub const CLAIMED: &str = "machine.dockerios.io/claimed";
/// Label of a machine: hash of the class and pool template that it was made from; unclaimed ones with another roll.
pub const TEMPLATE_HASH: &str = "machine.dockerios.io/template-hash";
/// Label of a machine made for a claim: the claim's uid.
pub const CLAIM_UID: &str = "machine.dockerios.io/claim-uid";
/// Label of a system disk whose class retains it, `Retain`: should the machine go without its teardown, and its class
/// too, the disk still says so.
pub const RECLAIM: &str = "machine.dockerios.io/reclaim-policy";
/// Value of [`RECLAIM`].
pub const RETAIN: &str = "Retain";
/// Label of a DataVolume and PVC of a machine that is gone: kept by the class's reclaimPolicy.
pub const RETAINED: &str = "machine.dockerios.io/retained";
/// Label of a DataVolume, PVC or snapshot: name of the MacOSImage it was imported for.
pub const IMAGE: &str = "image.dockerios.io/name";
/// Label of a Job or PVC: name of the MachineIdentity whose bootdisk it builds or holds.
pub const BOOTDISK_OF: &str = "identity.dockerios.io/bootdisk-of";

/// Annotation of a quarantined MachineIdentity: `"true"` gives it out again. Taken off when that was done.
pub const RELEASE: &str = "identity.dockerios.io/release";
/// Annotation of a builder's pod: the identity as JSON, which the pod reads as a file.
pub const IDENTITY_VALUES: &str = "identity.dockerios.io/values";

/// Label of Jobs, pods and volumes that the operator makes in the platform namespace, in Kubernetes' own vocabulary.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label of what probes a launcher image: a hash of the image's reference.
pub const PROBE_OF: &str = "config.dockerios.io/probe-of";

/// Annotation of the VM template that the domain hook reads: the volume that is the system disk.
pub const SYSTEM_DISK: &str = "dockerios.io/system-disk";
/// Annotation for the hook: the volume that is the bootdisk.
pub const BOOTDISK: &str = "dockerios.io/bootdisk";
/// Annotation for the hook: `native`, `override` or `off`.
pub const NVME: &str = "dockerios.io/nvme";
/// Annotation for the hook: NIC model that replaces `e1000`.
pub const NIC_MODEL: &str = "dockerios.io/nic-model";
/// Annotation for the hook: the vendor that a named CPU model says it is of.
pub const CPU_VENDOR: &str = "dockerios.io/cpu-vendor";
/// Value of [`CPU_VENDOR`]: the one that macOS knows.
pub const INTEL: &str = "GenuineIntel";

/// Finalizer of a MacOSMachine: removed by the operator alone, when nothing of the machine is left.
pub const TEARDOWN: &str = "machine.dockerios.io/teardown";
/// Finalizer of a MachineIdentity: kept while a machine may carry it.
pub const ALLOCATED: &str = "identity.dockerios.io/allocated";
/// Finalizer of an IdentityPool: kept until the identities that have no machine were told to go with it.
pub const MINTED: &str = "identity.dockerios.io/minted";
/// Finalizer of a MacOSImage: kept while a class names it or a clone of it runs.
pub const IN_USE: &str = "image.dockerios.io/in-use";

/// Name of an object that belongs to a machine: `macs-<machine>-<8 hex of its uid>-<part>`. A machine named `db`
/// therefore never meets a tenant's own `db-config`. Long machine names are cut; the uid keeps the name unique.
pub fn of_machine(machine: &str, uid: &str, part: &str) -> String {
    // 63: the longest name that a PVC's label, a Service or a host name can carry
    let room = 63 - "macs-".len() - "-12345678-".len() - part.len();
    let cut = machine.len().min(room);
    let stem = machine[..machine.floor_char_boundary(cut)].trim_end_matches(['-', '.']);
    format!("macs-{}-{}-{part}", stem.replace('.', "-"), first_hex(uid))
}

/// Name of the machine that is made for a claim: the same whenever it is tried again.
pub fn for_claim(claim_uid: &str) -> String {
    format!("mac-{}", first_hex(claim_uid))
}

mod uid {
    /// The first eight hexadecimal digits of a uid (a UUID's first group).
    pub(super) fn first_hex(uid: &str) -> String {
        uid.chars()
            .filter(char::is_ascii_hexdigit)
            .take(8)
            .collect::<String>()
            .to_ascii_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e3f";

    #[test]
    fn an_object_of_a_machine_is_named_by_machine_and_uid() {
        assert_eq!(of_machine("db", UID, "config"), "macs-db-2f0c9a51-config");
        assert_eq!(for_claim(UID), "mac-2f0c9a51");
    }

    #[test]
    fn a_long_or_dotted_machine_name_still_gives_a_label_sized_name() {
        let name = of_machine(&format!("{}.b", "a".repeat(70)), UID, "system");
        assert!(name.len() <= 63 && name.ends_with("-2f0c9a51-system"), "{name}");
        assert_eq!(of_machine("a.b", UID, "vm"), "macs-a-b-2f0c9a51-vm");
    }
}
