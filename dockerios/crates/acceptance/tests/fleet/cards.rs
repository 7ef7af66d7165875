//! Machines with a card: two nodes have one each, and nobody else is scheduled there.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Fleet, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::names::{MACHINE, MACHINE_UID};
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, PlatformConfig};
use dockerios_kubevirt::VirtualMachine;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::fleet;

async fn cordon(fleet: &Fleet, node: &str, cordoned: bool) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    fleet.all::<Node>().patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until that machine waits for a card, in those words, with nothing taken.
async fn waits(fleet: &Fleet, ns: &str, name: &str, words: &'static str) -> Result<()> {
    let machines = fleet.api::<MacOSMachine>(ns);
    let waiting = see::until(&machines, name, format!("that it waits: {words}"), move |machine| {
        see::condition_of(machine, "Ready").is_some_and(|ready| {
            let said = ready["message"].as_str().unwrap_or_default();
            ready["reason"] == "NoCardFree" && said.contains(words)
        })
    })
    .await?;
    ensure!(
        see::machine_phase(&waiting) == Some(MachinePhase::Pending),
        "{waiting:?}"
    );
    let uid = waiting.uid().context("uid")?;
    ensure!(
        see::identity_of(&fleet.client, &uid).await?.is_none(),
        "it took an identity and waits"
    );
    let vms = fleet
        .api::<VirtualMachine>(ns)
        .list(&ListParams::default())
        .await?
        .items;
    ensure!(
        vms.iter().all(|vm| !vm.name_any().contains(&format!("-{name}-"))),
        "it has a VirtualMachine and waits"
    );
    Ok(())
}

pub(crate) async fn machines_with_a_card_wait_with_the_count_and_boot_from_the_template_for_cards() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("cards").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let pool = make::with(
        make::identities("cards", 3, "Recycle"),
        "bootDisk/template",
        json!("GPU"),
    );
    let _: IdentityPool = make::cluster(client, pool).await?;
    let class = make::with(
        make::class_of("cards", "cards"),
        "gpu",
        json!({"deviceName": make::CARD}),
    );
    let _: MacOSMachineClass = make::cluster(client, make::on_spares(class)).await?;
    let machines = fleet.api::<MacOSMachine>(ns);

    // what a tenant's own VirtualMachine might have some day keeps nobody waiting, whatever its labels say
    let tenants = fleet.namespace("cards-tenants").await?;
    let halted = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "halted", "labels": {MACHINE: "one", MACHINE_UID: "1f2e3d4c-0000-4000-8000-000000000000"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {
            "domain": {"devices": {"gpus": [{"name": "card", "deviceName": make::CARD}]},
                "resources": {"requests": {"memory": "1Gi"}}}}}}});
    let _: VirtualMachine = make::within(client, tenants.name(), halted).await?;

    let _: MacOSMachine = make::within(client, ns, make::machine("one", "cards")).await?;
    let one = see::machine(&machines, "one", MachinePhase::Ready).await?;
    let used = one
        .status
        .as_ref()
        .and_then(|status| status.node_name.clone())
        .context("a node")?;
    let other = make::CARD_NODES
        .into_iter()
        .find(|node| *node != used.to_string())
        .context("two nodes")?;

    // card and audio function were handed over, and the bootdisk is of the template for cards
    let vms = fleet
        .api::<VirtualMachine>(ns)
        .list(&ListParams::default())
        .await?
        .items;
    let devices = &vms
        .first()
        .context("a VirtualMachine")?
        .spec
        .template
        .spec
        .domain
        .devices;
    let names: Vec<&str> = devices.gpus.iter().map(|gpu| &*gpu.device_name).collect();
    ensure!(names == [make::CARD, make::CARD_AUDIO], "{names:?}");
    let identity = see::identity_of(client, &one.uid().context("uid")?)
        .await?
        .context("an identity")?;
    let built = identity
        .status
        .and_then(|status| status.boot_disk)
        .context("a bootdisk")?;
    let platform = fleet.all::<PlatformConfig>().get("default").await?;
    let builder = platform.spec.boot_disk_builder.context("a builder")?;
    let of_cards = builder.gpu_template.context("a template for cards")?;
    ensure!(
        built.template_sha256 == of_cards.sha256 && of_cards.sha256 != builder.template.sha256,
        "{built:?}"
    );

    // the other card is on a node that takes no machine: it does not count, and is told
    cordon(fleet, other, true).await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("two", "cards")).await?;
    waits(
        fleet,
        ns,
        "two",
        "0 of 1 cards amd.com/rx580 are free, 1 are other machines' (1 more are on nodes that are cordoned or not ready",
    )
    .await?;
    cordon(fleet, other, false).await?;
    see::machine(&machines, "two", MachinePhase::Ready).await?;

    let _: MacOSMachine = make::within(client, ns, make::machine("three", "cards")).await?;
    waits(
        fleet,
        ns,
        "three",
        "0 of 2 cards amd.com/rx580 are free, 2 are other machines'",
    )
    .await?;
    machines.delete("one", &DeleteParams::default()).await?;
    see::gone(&machines, "one").await?;
    let three = see::machine(&machines, "three", MachinePhase::Ready).await?;
    let node = three.status.and_then(|status| status.node_name).context("a node")?;
    ensure!(
        node.to_string() == used.to_string(),
        "the card of {used} was free, and it is on {node}"
    );
    Ok(())
}
