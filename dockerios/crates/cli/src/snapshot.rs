//! `snapshot`: a machine's state at a point in time, by KubeVirt's own VirtualMachineSnapshot.
//!
//! It is the admin's tool: the object belongs to the machine's VM and goes when that goes, unless its deletionPolicy
//! says otherwise. The disk of a machine that is gone is a plain PVC: of that the CSI driver's VolumeSnapshot is made.

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::names::{MACHINE, MACHINE_UID, RETAINED};
use dockerios_api::{MacOSMachine, names};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ListParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::access::{Access, Cluster, get};
use crate::answer::{said, words, wrong_words};
use crate::out;
use crate::target::Target;

/// Snapshot a stopped machine, or the retained disk of one that is gone
///
/// Of a running machine macOS would not be asked to write everything out: stop it first (powerState Stopped).
#[derive(clap::Args, Debug)]
pub(crate) struct Snapshot {
    /// The machine, or the one that the retained disk was of
    #[arg(value_name = "macs/NAME")]
    machine: String,
    /// Name of the snapshot; one is made up when left out
    #[arg(long)]
    name: Option<String>,
    /// The VolumeSnapshotClass for a retained disk; the driver's default when left out
    #[arg(long, value_name = "NAME")]
    snapshot_class: Option<String>,
}

fn of_vm() -> ApiResource {
    let gvk = GroupVersionKind::gvk("snapshot.kubevirt.io", "v1beta1", "VirtualMachineSnapshot");
    ApiResource::from_gvk_with_plural(&gvk, "virtualmachinesnapshots")
}

fn of_volume() -> ApiResource {
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    ApiResource::from_gvk_with_plural(&gvk, "volumesnapshots")
}

impl Snapshot {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let name = Target::machine(&self.machine).map_err(wrong_words)?;
        let cluster = access.open().await?;
        let machine = get(&cluster.here::<MacOSMachine>(), &name)
            .await
            .map_err(|error| said(error, &format!("reading MacOSMachine {name}")))?;
        let (resource, spec) = match &machine {
            Some(machine) if !gave_back(machine) => {
                if let Some(why) = not_at_rest(machine) {
                    bail!("{why}");
                }
                (of_vm(), vm_spec(machine))
            }
            gone => {
                let claim = retained(&cluster, &name, gone.as_ref()).await?;
                (of_volume(), self.volume_spec(&claim))
            }
        };
        let made = make(&cluster, &resource, self.object(&name, &resource, spec)).await?;
        out::line(&format!(
            "{} {}/{} made; kubectl get {} -n {1} shows when it is readyToUse",
            resource.kind, cluster.namespace, made, resource.plural
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    fn object(&self, machine: &str, resource: &ApiResource, spec: Value) -> Value {
        let mut metadata = json!({"labels": {MACHINE: machine}});
        match &self.name {
            Some(name) => metadata["name"] = json!(name),
            None => metadata["generateName"] = json!(format!("{machine}-")),
        }
        json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec})
    }

    fn volume_spec(&self, claim: &str) -> Value {
        let mut spec = json!({"source": {"persistentVolumeClaimName": claim}});
        if let Some(class) = &self.snapshot_class {
            spec["volumeSnapshotClassName"] = json!(class);
        }
        spec
    }
}

fn vm_spec(machine: &MacOSMachine) -> Value {
    let vm = names::of_machine(&machine.name_any(), &machine.uid().unwrap_or_default(), "vm");
    json!({"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": vm}})
}

/// Whether it is Failed: it has no VM any more, at most a disk that its class retains.
fn gave_back(machine: &MacOSMachine) -> bool {
    machine.status.as_ref().and_then(|status| status.phase) == Some(MachinePhase::Failed)
}

fn not_at_rest(machine: &MacOSMachine) -> Option<String> {
    let (name, namespace) = (machine.name_any(), machine.namespace().unwrap_or_default());
    if machine.metadata.deletion_timestamp.is_some() {
        return Some(format!(
            "machine {name} is being deleted; when it is gone, a disk that its class retains can be snapshotted"
        ));
    }
    let wait = format!("kubectl wait -n {namespace} macs/{name} --for=jsonpath='{{.status.phase}}'=");
    let phase = machine.status.as_ref().and_then(|status| status.phase);
    let out = match phase {
        Some(MachinePhase::Stopped) => return None,
        Some(MachinePhase::Ready) => format!(
            "stop it first, or its file system is caught in the middle of writing: kubectl patch macs {name} -n \
             {namespace} --type=merge -p '{{\"spec\":{{\"powerState\":\"Stopped\"}}}}'"
        ),
        Some(MachinePhase::Stopping) => format!("wait until it is off: {wait}Stopped"),
        Some(MachinePhase::Unknown) => {
            format!("whether its guest still writes is not known: kubectl dockerios why macs/{name} -n {namespace}")
        }
        Some(MachinePhase::Failed) => "it has no VM any more".to_owned(),
        Some(
            MachinePhase::Pending | MachinePhase::AllocatingIdentity | MachinePhase::Cloning | MachinePhase::Starting,
        )
        | None => format!("it has written nothing yet that is worth keeping; wait for {wait}Ready, then stop it"),
    };
    let now = phase.map_or_else(|| "not looked at yet".to_owned(), |phase| format!("{phase:?}"));
    Some(format!("machine {name} is {now}: {out}"))
}

/// The claim of the one disk that was retained of a machine that is gone, or has failed.
async fn retained(cluster: &Cluster, name: &str, failed: Option<&MacOSMachine>) -> Result<String> {
    let which = match failed.and_then(|machine| machine.uid()) {
        Some(uid) => format!("{RETAINED},{MACHINE_UID}={uid}"),
        None => format!("{RETAINED},{MACHINE}={name}"),
    };
    let listed = cluster
        .here::<PersistentVolumeClaim>()
        .list(&ListParams::default().labels(&which))
        .await;
    let listed = listed.map(|list| list.items.iter().map(|claim| claim.name_any()).collect());
    one_of(listed, &cluster.namespace, name, failed.is_some()).map_err(|why| anyhow!(why))
}

/// The one disk, or why there is none to take.
fn one_of(disks: kube::Result<Vec<String>>, namespace: &str, name: &str, failed: bool) -> Result<String, String> {
    let of = if failed {
        format!("machine {name} is Failed and has no VM any more")
    } else {
        format!("namespace {namespace} has no MacOSMachine {name}")
    };
    match disks.as_deref() {
        Ok([one]) => Ok(one.clone()),
        Ok([]) => Err(format!(
            "{of}, and no disk was retained of it: there is nothing to make a snapshot of; kubectl get macs,pvc -n \
             {namespace} lists what is there"
        )),
        Ok(several) => Err(format!(
            "{of}, and {} disks are retained of machines of that name: {}; make a VolumeSnapshot of the one you mean",
            several.len(),
            several.join(", ")
        )),
        Err(error) => Err(format!(
            "{of}; whether a disk was retained of it could not be seen: {}; an admin can look: kubectl get pvc -n \
             {namespace} -l {RETAINED}",
            words(error)
        )),
    }
}

async fn make(cluster: &Cluster, resource: &ApiResource, object: Value) -> Result<String> {
    let api: Api<DynamicObject> = cluster.untyped(Some(&cluster.namespace), resource);
    let object: DynamicObject = serde_json::from_value(object)?;
    match api.create(&PostParams::default(), &object).await {
        Ok(made) => Ok(made.name_any()),
        // the kind itself is not served
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason != "AlreadyExists" => bail!(
            "this cluster serves no {} ({}): {}",
            resource.kind,
            resource.api_version,
            if resource.group == "snapshot.kubevirt.io" {
                "turn on KubeVirt's feature gate Snapshot, and use a storage class whose driver takes snapshots"
            } else {
                "install the CSI snapshot controller, and use a storage class whose driver takes snapshots"
            }
        ),
        Err(error) => Err(said(error, &format!("making a {}", resource.kind))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(phase: &str) -> MacOSMachine {
        serde_json::from_value(json!({
            "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
            "metadata": {"name": "db", "namespace": "team-a", "uid": "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e3f"},
            "spec": {"machineClassName": "ci"}, "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn only_a_machine_at_rest_is_caught() {
        let refused = not_at_rest(&machine("Ready")).unwrap();
        assert!(refused.contains("machine db is Ready: stop it first"), "{refused}");
        assert!(refused.contains("kubectl patch macs db -n team-a"), "{refused}");
        assert_eq!(not_at_rest(&machine("Stopped")), None);
        for (phase, way_out) in [
            ("Pending", "has written nothing yet"),
            (
                "Cloning",
                "kubectl wait -n team-a macs/db --for=jsonpath='{.status.phase}'=Ready, then stop it",
            ),
            ("Stopping", "wait until it is off: kubectl wait -n team-a macs/db"),
            ("Unknown", "kubectl dockerios why macs/db -n team-a"),
        ] {
            let refused = not_at_rest(&machine(phase)).unwrap();
            assert!(refused.starts_with(&format!("machine db is {phase}: ")), "{refused}");
            assert!(refused.contains(way_out), "{refused}");
            assert!(!refused.contains("stop it first"), "nothing runs: {refused}");
        }
        let mut going = machine("Stopped");
        going.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-03-01T12:00:00Z")).unwrap());
        assert!(not_at_rest(&going).unwrap().contains("is being deleted"));
    }

    #[test]
    fn of_a_machine_that_failed_the_retained_disk_is_taken_or_it_is_said_that_none_is_there() {
        assert!(gave_back(&machine("Failed")) && !gave_back(&machine("Stopped")));
        let one = |disks: &[&str], failed| {
            let disks = disks.iter().map(|&name| name.to_owned()).collect();
            one_of(Ok(disks), "team-a", "db", failed)
        };
        assert_eq!(
            one(&["macs-db-2f0c9a51-system"], true).unwrap(),
            "macs-db-2f0c9a51-system"
        );
        let none = one(&[], true).unwrap_err();
        assert!(
            none.starts_with("machine db is Failed and has no VM any more, and no disk was retained"),
            "{none}"
        );
        let none = one(&[], false).unwrap_err();
        assert!(
            none.starts_with("namespace team-a has no MacOSMachine db, and no disk"),
            "{none}"
        );
        let several = one(&["a", "b"], false).unwrap_err();
        assert!(
            several.contains("2 disks are retained of machines of that name: a, b"),
            "{several}"
        );
    }

    #[test]
    fn disks_that_may_not_be_listed_are_not_disks_that_are_not_there() {
        let status = kube::core::Status::failure("persistentvolumeclaims is forbidden: User \"eve\"", "Forbidden");
        let error = kube::Error::Api(Box::new(status.with_code(403)));
        let why = one_of(Err(error), "team-a", "db", false).unwrap_err();
        assert!(
            why.contains("whether a disk was retained of it could not be seen: persistentvolumeclaims is forbidden"),
            "{why}"
        );
        assert!(
            why.contains("kubectl get pvc -n team-a -l machine.dockerios.io/retained"),
            "{why}"
        );
        assert!(!why.contains("no disk was retained"), "{why}");
    }

    #[test]
    fn the_snapshot_is_of_the_machines_vm_or_of_the_kept_claim() {
        assert_eq!(vm_spec(&machine("Stopped"))["source"]["name"], "macs-db-2f0c9a51-vm");
        let snapshot = Snapshot {
            machine: "db".to_owned(),
            name: None,
            snapshot_class: Some("fast".to_owned()),
        };
        let object = snapshot.object("db", &of_volume(), snapshot.volume_spec("macs-db-2f0c9a51-system"));
        assert_eq!(object["metadata"]["generateName"], "db-");
        assert_eq!(
            object["spec"]["source"]["persistentVolumeClaimName"],
            "macs-db-2f0c9a51-system"
        );
        assert_eq!(object["spec"]["volumeSnapshotClassName"], "fast");
    }
}
