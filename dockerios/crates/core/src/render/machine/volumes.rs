//! Disks of a machine: how each is filled, and how the guest sees it.
//!
//! Invariant: the bootdisk is booted first (with no order the firmware boots the system disk's own loader and
//! bypasses it), and no serial has more than [`SERIAL_LIMIT`] characters.

use std::collections::BTreeMap;

use dockerios_api::{
    MachineIdentity, Size,
    image::macos_image::PublishedKind,
    machine::class::{DiskReclaimPolicy, IdentityKind},
    names::{RECLAIM, RETAIN},
};
use dockerios_kubevirt::{
    DataVolume,
    datavolume::{DataVolumeSpec, Origin, Source, Storage, StorageResources},
    domain::{ContainerDisk, DataVolumeRef, Disk, DiskTarget, SecretVolume, Volume},
    names::DELETE_AFTER_COMPLETION,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    CONFIG_LABEL, Input, Rendered, Unrenderable, Who, boot_disk_name, class_field, defect, guest_config_name, identity,
    metadata, system_disk_name,
};
use crate::{Kind, Object};

/// Volume name of the bootdisk.
pub(super) const BOOTDISK: &str = "bootdisk";
/// Volume name of the system disk.
pub(super) const SYSTEM: &str = "system";
/// Volume name of the config disk.
const CONFIG: &str = "config";

/// QEMU's NVMe and libvirt's schema take no longer serial of a disk.
const SERIAL_LIMIT: usize = 20;
/// Size of every master bootdisk, in MiB; the builder writes images of this size.
const BOOTDISK_MIB: u32 = 384;

pub(super) fn data_volumes(input: &Input) -> Rendered<Vec<Object>> {
    let mut all = vec![system(input)?];
    if let Some(identity) = identity(input)? {
        all.push(boot(input, identity)?);
    }
    Ok(all)
}

fn system(input: &Input) -> Rendered<Object> {
    let disk = &input.class.system_disk;
    let wanted = bytes(&disk.size, "MacOSMachineClass spec.systemDisk.size")?;
    let golden = bytes(&input.image.size, "MacOSImage spec.size")?;
    if wanted < golden {
        return Err(class_field(
            "systemDisk.size",
            format!(
                "{} is less than the {} of the image, which no clone can shrink",
                disk.size, input.image.size
            ),
            format!("use {}", input.image.size),
        ));
    }
    let origin = Origin {
        namespace: input.published.namespace.to_string(),
        name: input.published.name.to_string(),
    };
    let source = match input.published.kind {
        PublishedKind::PersistentVolumeClaim => Source {
            pvc: Some(origin),
            ..Source::default()
        },
        PublishedKind::VolumeSnapshot => Source {
            snapshot: Some(origin),
            ..Source::default()
        },
    };
    let mut object = clone(
        input,
        system_disk_name(input.machine),
        false,
        source,
        &disk.storage_class_name,
        &disk.size.0,
    )?;
    if disk.reclaim_policy == DiskReclaimPolicy::Retain {
        object.body["metadata"]["labels"][RECLAIM] = RETAIN.into();
    }
    Ok(object)
}

fn boot(input: &Input, identity: &MachineIdentity) -> Rendered<Object> {
    let built = identity.status.as_ref().and_then(|status| status.boot_disk.as_ref());
    let master = built.ok_or_else(|| {
        let field = format!(
            "MachineIdentity {} status.bootDisk",
            identity.spec.serial.to_lowercase()
        );
        Unrenderable::new(field, "it has no bootdisk yet", "wait until it is built")
    })?;
    let source = Source {
        pvc: Some(Origin {
            namespace: input.platform_namespace.to_owned(),
            name: master.pvc.to_string(),
        }),
        ..Source::default()
    };
    // within the pool's own storage class the master would clone fastest; the machine's is where the node can reach
    let class = &input.class.system_disk.storage_class_name;
    clone(
        input,
        boot_disk_name(input.machine),
        true,
        source,
        class,
        &format!("{BOOTDISK_MIB}Mi"),
    )
}

/// A DataVolume that is ours: one of a template would die with the VM and be authorised as the VM's ServiceAccount.
fn clone(input: &Input, name: String, identified: bool, source: Source, class: &str, size: &str) -> Rendered<Object> {
    let mut metadata = metadata(input, name, identified);
    // CDI before 1.62 removes DataVolumes that are done
    metadata.annotations = Some(BTreeMap::from([(
        DELETE_AFTER_COMPLETION.to_owned(),
        "false".to_owned(),
    )]));
    let volume = DataVolume {
        metadata,
        spec: DataVolumeSpec {
            source: Some(source),
            storage: Some(Storage {
                access_modes: vec!["ReadWriteOnce".to_owned()],
                volume_mode: Some("Block".to_owned()),
                storage_class_name: Some(class.to_owned()),
                resources: Some(StorageResources {
                    requests: BTreeMap::from([("storage".to_owned(), Quantity(size.to_owned()))]),
                }),
            }),
            ..DataVolumeSpec::default()
        },
        status: None,
    };
    Object::of(Kind::DataVolume, &volume).map_err(defect)
}

fn bytes(size: &Size, field: &str) -> Rendered<u64> {
    size.bytes()
        .map_err(|why| Unrenderable::new(field, why.to_string(), "correct it"))
}

/// How the guest sees them.
pub(super) fn disks(who: &Who) -> Vec<Disk> {
    let sata = |readonly: Option<bool>| {
        Some(DiskTarget {
            bus: Some("sata".to_owned()),
            readonly,
        })
    };
    let serial: String = who.serial.to_lowercase().chars().take(SERIAL_LIMIT).collect();
    vec![
        Disk {
            name: BOOTDISK.to_owned(),
            boot_order: Some(1),
            disk: sata(Some(false)),
            ..Disk::default()
        },
        // sata also for a class that wants nvme, a bus that KubeVirt refuses: the hook rewrites it
        Disk {
            name: SYSTEM.to_owned(),
            boot_order: Some(2),
            serial: Some(serial),
            disk: sata(None),
            cache: Some("none".to_owned()),
            io: Some("native".to_owned()),
            error_policy: Some("stop".to_owned()),
            ..Disk::default()
        },
        Disk {
            name: CONFIG.to_owned(),
            cdrom: sata(Some(true)),
            ..Disk::default()
        },
    ]
}

/// What they are made of.
pub(super) fn volumes(input: &Input) -> Rendered<Vec<Volume>> {
    let named = |name: String| Some(DataVolumeRef { name });
    let mut boot = Volume {
        name: BOOTDISK.to_owned(),
        ..Volume::default()
    };
    match input.class.identity.kind {
        IdentityKind::PerMachine => boot.data_volume = named(boot_disk_name(input.machine)),
        IdentityKind::Shared => {
            let shared = input.class.identity.shared.as_ref().ok_or_else(|| {
                class_field(
                    "identity.shared",
                    "type Shared without a bootdisk",
                    "set identity.shared.bootDiskImage",
                )
            })?;
            boot.container_disk = Some(ContainerDisk {
                image: shared.boot_disk_image.to_string(),
                image_pull_policy: Some("IfNotPresent".to_owned()),
                image_pull_secret: None,
            });
        }
    }
    Ok(vec![
        boot,
        Volume {
            name: SYSTEM.to_owned(),
            data_volume: named(system_disk_name(input.machine)),
            ..Volume::default()
        },
        Volume {
            name: CONFIG.to_owned(),
            secret: Some(SecretVolume {
                secret_name: Some(guest_config_name(input.machine)),
                volume_label: Some(CONFIG_LABEL.to_owned()),
                optional: None,
            }),
            ..Volume::default()
        },
    ])
}
