//! `snapshot`: a machine's state at a point in time, by KubeVirt's own VirtualMachineSnapshot.
//!
//! It is the admin's tool: the object belongs to the machine's VM and goes when that goes, unless its deletionPolicy
//! says otherwise. The disk of a machine that is gone is a plain PVC: of that the CSI driver's VolumeSnapshot is made.

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::names::{MACHINE, RETAINED};
use dockerios_api::{MacOSMachine, names};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ListParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::access::{Access, Cluster, said};
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
        let name = Target::machine(&self.machine).map_err(|why| anyhow!(why))?;
        let cluster = access.open().await?;
        let machine = cluster
            .here::<MacOSMachine>()
            .get_opt(&name)
            .await
            .map_err(|error| said(error, &format!("reading MacOSMachine {name}")))?;
        let (resource, spec) = match &machine {
            Some(machine) => {
                if let Some(why) = not_at_rest(machine) {
                    bail!("{why}");
                }
                (of_vm(), vm_spec(machine))
            }
            None => (of_volume(), self.volume_spec(&retained(&cluster, &name).await?)),
        };
        let made = make(&cluster, &resource, self.object(&name, &resource, spec)).await?;
        println!(
            "{} {}/{} made; kubectl get {} -n {1} shows when it is readyToUse",
            resource.kind, cluster.namespace, made, resource.plural
        );
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

fn not_at_rest(machine: &MacOSMachine) -> Option<String> {
    let phase = machine.status.as_ref().and_then(|status| status.phase);
    (phase != Some(MachinePhase::Stopped)).then(|| {
        let name = machine.name_any();
        let now = phase.map_or_else(|| "not looked at yet".to_owned(), |phase| format!("{phase:?}"));
        format!(
            "machine {name} is {now}; stop it first, or its file system is caught in the middle of writing: kubectl \
             patch macs {name} -n {} --type=merge -p '{{\"spec\":{{\"powerState\":\"Stopped\"}}}}'",
            machine.namespace().unwrap_or_default()
        )
    })
}

async fn retained(cluster: &Cluster, machine: &str) -> Result<String> {
    let labels = ListParams::default().labels(&format!("{RETAINED},{MACHINE}={machine}"));
    let claims = cluster
        .here::<PersistentVolumeClaim>()
        .list(&labels)
        .await
        .map_err(|error| said(error, "listing retained disks"))?;
    match &claims.items[..] {
        [one] => Ok(one.name_any()),
        [] => bail!(
            "namespace {} has no MacOSMachine {machine}, and no disk retained of one; kubectl get macs,pvc -n {0} lists \
             what is there",
            cluster.namespace
        ),
        several => {
            let names: Vec<_> = several.iter().map(|claim| claim.name_any()).collect();
            bail!(
                "there are {} disks retained of machines {machine}: {}; make a VolumeSnapshot of the one you mean",
                names.len(),
                names.join(", ")
            )
        }
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
        assert!(refused.contains("machine db is Ready; stop it first"), "{refused}");
        assert!(refused.contains("kubectl patch macs db -n team-a"), "{refused}");
        assert_eq!(not_at_rest(&machine("Stopped")), None);
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
