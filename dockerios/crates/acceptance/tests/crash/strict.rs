//! What the operator sends, held against the schemas of those who own the kinds.
//!
//! An API server drops what a schema has not, so what is stored never shows it: each request itself has to be held
//! against the schema.

use anyhow::{Result, ensure};
use dockerios_acceptance::{make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClass};
use dockerios_testkit::{WriteCutter, client_from, expect};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::fleet;

/// Classes whose machines are rendered differently.
fn classes() -> [(&'static str, Value); 5] {
    let class = make::class;
    let card = make::with(class("strict-card"), "gpu", json!({"deviceName": make::CARD}));
    [
        ("strict", class("strict")),
        ("strict-own", make::class_of("strict-own", "strict")),
        (
            "strict-sata",
            make::with(class("strict-sata"), "systemDisk/bus", json!("sata")),
        ),
        (
            "strict-nic",
            make::with(class("strict-nic"), "network/model", json!("e1000-82545em")),
        ),
        ("strict-card", make::on_spares(card)),
    ]
}

pub(crate) async fn what_the_operator_writes_is_accepted_by_kubevirts_and_cdis_schemas_with_strict_validation()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("strict").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let cutter = WriteCutter::start(&fleet.operators_kubeconfig().await?).await?;
    cutter.hold_to_schemas();
    let operator = fleet.spawn_operator(cutter.kubeconfig(), false)?;
    let done = async {
        // an import, and a snapshot of what was imported; bootdisks and who builds them
        let mut stores = vec![make::STORAGE];
        stores.extend(fleet.snapshots.then_some("mac-snapshot"));
        for store in stores {
            let name = format!("strict-{store}");
            let _: MacOSImage = make::cluster(client, make::image(&name, store)).await?;
            see::condition(&fleet.all::<MacOSImage>(), &name, "Ready", "True").await?;
        }
        let _: IdentityPool = make::cluster(client, make::identities("strict", 1, "Recycle")).await?;
        let machines = fleet.api::<MacOSMachine>(ns);
        for (name, class) in classes() {
            let _: MacOSMachineClass = make::cluster(client, class).await?;
            let _: MacOSMachine = make::within(client, ns, make::machine(name, name)).await?;
            see::machine(&machines, name, MachinePhase::Ready).await?;
        }
        machines
            .delete_collection(&Default::default(), &Default::default())
            .await?;
        see::none_left(&machines).await
    };
    if let Err(error) = done.await {
        return Err(error.context(format!("the operator's log ends:\n{}", operator.process.tail(20))));
    }
    for kind in [
        "virtualmachines",
        "datavolumes",
        "persistentvolumeclaims",
        "jobs",
        "status",
    ] {
        let written = cutter.writes().iter().any(|write| write.path.ends_with(kind));
        ensure!(written, "no write of {kind} was held against its schema");
    }
    // and it would be refused: the product's own definitions keep what they do not know, the real ones do not
    if fleet.definitions.starts_with("KubeVirt's") {
        let kind = ApiResource::erase::<dockerios_kubevirt::VirtualMachine>(&());
        let through: Api<DynamicObject> = Api::namespaced_with(client_from(cutter.kubeconfig()).await?, ns, &kind);
        let invented = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "invented"},
            "spec": {"inventedField": 1, "template": {"spec": {}}},
        });
        let refused = through
            .create(&PostParams::default(), &serde_json::from_value(invented)?)
            .await;
        expect::refused(refused, 400, &["unknown field \"spec.inventedField\""])?;
    }
    eprintln!("strictly validated against {}", fleet.definitions);
    operator.process.kill9().await?;
    Ok(())
}
