//! The master bootdisk of an identity: a volume, and the Job that writes it.
//!
//! Invariants: the Job's name says from which builder and template it builds, so a Job of other ones is never taken
//! for it; the pod gets the identity as a file (its own annotation through the downward API) and no token; neither
//! belongs to the identity by owner reference, since a foreground delete would take the disk from under a clone.

use std::collections::BTreeMap;

use dockerios_api::{
    MachineIdentity, PinnedImage,
    config::platform_config::{BootDiskBuilder, Template},
    identity::pool::IdentityPoolSpec,
    names::{BOOTDISK_OF, IDENTITY_VALUES, MANAGED_BY, OPERATOR},
};
use dockerios_identity::Fields;
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{
            Capabilities, Container, DownwardAPIVolumeFile, DownwardAPIVolumeSource, ImageVolumeSource,
            ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource,
            PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements, SeccompProfile, SecurityContext,
            Volume, VolumeDevice, VolumeMount, VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{ResourceExt, core::ObjectMeta};
use sha2::{Digest, Sha256};

/// Size of a bootdisk: what `dockerios-bootdisk` writes, to the byte.
pub const SIZE: &str = "384Mi";
/// Seconds that a finished Job stays for people to read; a failed one is tried again before.
pub const KEPT_SECONDS: i32 = 3600;
/// Seconds that a build may take, pulling the images and binding the volume included.
pub const DEADLINE_SECONDS: i64 = 1800;
/// The user as which CDI's importers run, too: container runtimes hand block devices to the user of the pod (their
/// setting device_ownership_from_security_context, which CDI asks for).
const USER: i64 = 107;

const DEVICE: &str = "/dev/bootdisk";
const TEMPLATE: &str = "/template";
const IDENTITY_FOLDER: &str = "/identity";
const IDENTITY_FILE: &str = "identity.json";
/// Where kubelet reads a container's last words.
const LAST_WORDS: &str = "/dev/termination-log";

/// Name of the volume.
pub fn volume_name(identity: &str) -> String {
    format!("bootdisk-{identity}")
}

/// What the bootdisks of a pool are built with.
#[derive(Clone, Copy, Debug)]
pub struct Recipe<'p> {
    /// The builder.
    pub builder: &'p PinnedImage,
    /// The template that the pool names.
    pub template: &'p Template,
}

impl<'p> Recipe<'p> {
    /// None while the platform has no such template.
    pub fn of(builder: &'p BootDiskBuilder, pool: &IdentityPoolSpec) -> Option<Self> {
        builder.template(pool.boot_disk.template).map(|template| Self {
            builder: &builder.image,
            template,
        })
    }
}

/// Name of the Job that builds it with that builder and template.
pub fn job_name(identity: &str, recipe: Recipe) -> String {
    let of = [&**recipe.builder, &*recipe.template.image, &recipe.template.sha256];
    format!("bootdisk-{identity}-{}", fingerprint(&of))
}

/// The identity's values as the builder and the rules know them.
pub fn fields(identity: &MachineIdentity) -> Fields {
    let spec = &identity.spec;
    Fields {
        model: spec.model.clone(),
        serial: spec.serial.clone(),
        mlb: spec.mlb.clone(),
        rom: spec.rom.clone(),
        system_uuid: spec.system_uuid.clone(),
        mac_address: spec.mac_address.clone(),
    }
}

/// The volume, empty.
pub fn volume(identity: &MachineIdentity, pool: &IdentityPoolSpec, namespace: &str) -> PersistentVolumeClaim {
    let name = identity.name_any();
    let size = [("storage".to_owned(), Quantity(SIZE.to_owned()))];
    PersistentVolumeClaim {
        metadata: meta(&name, volume_name(&name), namespace),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            volume_mode: Some("Block".to_owned()),
            storage_class_name: Some(pool.boot_disk.storage_class_name.0.clone()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from(size)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        status: None,
    }
}

/// The Job that writes it.
///
/// # Errors
/// The identity is no JSON: a defect of its type.
pub fn job(identity: &MachineIdentity, recipe: Recipe, namespace: &str) -> Result<Job, serde_json::Error> {
    let name = identity.name_any();
    let values = serde_json::to_string(&fields(identity))?;
    let metadata = meta(&name, job_name(&name, recipe), namespace);
    let pod = ObjectMeta {
        labels: metadata.labels.clone(),
        annotations: Some(BTreeMap::from([(IDENTITY_VALUES.to_owned(), values)])),
        ..Default::default()
    };
    Ok(Job {
        metadata,
        spec: Some(JobSpec {
            backoff_limit: Some(2),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            ttl_seconds_after_finished: Some(KEPT_SECONDS),
            template: PodTemplateSpec {
                metadata: Some(pod),
                spec: Some(PodSpec {
                    volumes: Some(volumes(&name, &recipe.template.image)),
                    containers: vec![container(recipe)],
                    ..unprivileged_pod()
                }),
            },
            ..Default::default()
        }),
        status: None,
    })
}

/// Eight hexadecimal digits that say whether two lists of texts are the same.
pub(super) fn fingerprint(texts: &[&str]) -> String {
    let digest = Sha256::digest(texts.join("\n"));
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn meta(identity: &str, name: String, namespace: &str) -> ObjectMeta {
    let labels = [(BOOTDISK_OF, identity), (MANAGED_BY, OPERATOR)];
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..Default::default()
    }
}

/// A pod that ends by itself, without a token, fit for a namespace with Pod Security `restricted`.
pub(super) fn unprivileged_pod() -> PodSpec {
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// What such a pod's container may do: nothing.
pub(super) fn powerless() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Requests and the memory limit of a short pod.
pub(super) fn modest(memory: &str, memory_limit: &str) -> ResourceRequirements {
    let quantity = |text: &str| Quantity(text.to_owned());
    ResourceRequirements {
        requests: Some(BTreeMap::from([
            ("cpu".to_owned(), quantity("100m")),
            ("memory".to_owned(), quantity(memory)),
        ])),
        limits: Some(BTreeMap::from([("memory".to_owned(), quantity(memory_limit))])),
        ..Default::default()
    }
}

fn container(recipe: Recipe) -> Container {
    let identity = format!("{IDENTITY_FOLDER}/{IDENTITY_FILE}");
    let args = [
        "build",
        "--template",
        TEMPLATE,
        "--template-sha256",
        &recipe.template.sha256,
        "--identity",
        &identity,
        "--output",
        DEVICE,
        "--report",
        LAST_WORDS,
    ];
    let mount = |name: &str, at: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: at.to_owned(),
        read_only: Some(true),
        ..Default::default()
    };
    Container {
        name: "builder".to_owned(),
        image: Some(recipe.builder.0.clone()),
        args: Some(args.map(str::to_owned).to_vec()),
        termination_message_path: Some(LAST_WORDS.to_owned()),
        // a success reports the sha256; a failure says why on standard error
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![mount("template", TEMPLATE), mount("identity", IDENTITY_FOLDER)]),
        volume_devices: Some(vec![VolumeDevice {
            name: "bootdisk".to_owned(),
            device_path: DEVICE.to_owned(),
        }]),
        security_context: Some(powerless()),
        // the whole image is laid out in memory
        resources: Some(modest("256Mi", "1Gi")),
        ..Default::default()
    }
}

fn volumes(identity: &str, template: &PinnedImage) -> Vec<Volume> {
    let named = |name: &str| Volume {
        name: name.to_owned(),
        ..Default::default()
    };
    vec![
        Volume {
            image: Some(ImageVolumeSource {
                reference: Some(template.0.clone()),
                pull_policy: Some("IfNotPresent".to_owned()),
            }),
            ..named("template")
        },
        Volume {
            downward_api: Some(DownwardAPIVolumeSource {
                items: Some(vec![DownwardAPIVolumeFile {
                    path: IDENTITY_FILE.to_owned(),
                    field_ref: Some(ObjectFieldSelector {
                        field_path: format!("metadata.annotations['{IDENTITY_VALUES}']"),
                        api_version: None,
                    }),
                    ..Default::default()
                }]),
                ..Default::default()
            }),
            ..named("identity")
        },
        Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: volume_name(identity),
                read_only: None,
            }),
            ..named("bootdisk")
        },
    ]
}
