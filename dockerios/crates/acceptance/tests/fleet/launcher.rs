//! Launchers whose QEMU lacks what macOS needs, as stock builds do.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Thing, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{MacOSMachine, MacOSMachineClass, MacOSMachinePool, PlatformConfig};
use dockerios_kubevirt::{KubeVirt, VirtualMachine, VirtualMachineInstance};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::fleet;

const PAGE: &str = "docs/launcher.md";
/// Pods that ask a launcher's image what it can do.
const PROBES: &str = "dockerios-system/probe-launcher-*";

/// No pool tries again before, docs/launcher.md says: another launcher does not come by waiting.
const HOPELESS: SignedDuration = SignedDuration::from_mins(30);

/// When the pool makes the next machine, by its own words.
fn next_try(told: &str) -> Option<Timestamp> {
    let (_, rest) = told.split_once("the next is tried at ")?;
    rest.split(',').next()?.parse().ok()
}

/// virt-operator records another launcher image.
async fn record(fleet: &Fleet, image: &str) -> Result<()> {
    let kubevirts: Api<KubeVirt> = fleet.api("kubevirt");
    let stored = kubevirts.get("kubevirt").await?;
    let record = stored.status.and_then(|status| status.observed_deployment_config);
    let mut record: Value = serde_json::from_str(&record.context("virt-operator's record")?)?;
    record["virtLauncherImage"] = image.into();
    let status = Patch::Merge(json!({"status": {"observedDeploymentConfig": record.to_string()}}));
    kubevirts
        .patch_status("kubevirt", &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// Another launcher image, of that invented digest.
fn image(digit: &str) -> String {
    format!("ghcr.io/example/virt-launcher@sha256:{}", digit.repeat(64))
}

fn message<K: serde::Serialize>(object: &K, kind: &str) -> String {
    let condition = see::condition_of(object, kind).unwrap_or_default();
    condition["message"].as_str().unwrap_or_default().to_owned()
}

/// Every machine says in condition and event which device is missing and where to read on.
async fn all_wait(fleet: &Fleet, ns: &str, device: &str) -> Result<HashSet<String>> {
    let machines = see::count(&fleet.api::<MacOSMachine>(ns), "machines that wait", |machines| {
        let waits = |machine: &MacOSMachine| {
            see::condition_of(machine, "Ready").is_some_and(|ready| ready["reason"] == "PlatformNotReady")
        };
        machines.len() == 3 && machines.iter().all(waits)
    })
    .await?;
    for machine in &machines {
        let told = message(machine, "Ready");
        let event = see::event(&fleet.client, ns, &machine.name_any(), "PlatformNotReady").await?;
        for words in [told, event] {
            ensure!(words.contains(device) && words.contains(PAGE), "{words}");
        }
    }
    Ok(machines.iter().map(|machine| machine.name_any()).collect())
}

pub(crate) async fn a_launcher_without_a_device_starts_nothing_and_all_say_which_and_where_to_read() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("incapable").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let platforms = fleet.all::<PlatformConfig>();
    let _: MacOSMachineClass = make::cluster(client, make::class("incapable")).await?;
    let sata = make::with(make::class("incapable-sata"), "systemDisk/bus", json!("sata"));
    let _: MacOSMachineClass = make::cluster(client, sata).await?;

    fleet.sim.fault(&format!("lacks-device {PROBES} nvme"))?;
    record(fleet, &image("b")).await?;
    let platform = see::reason(&platforms, "default", "LauncherCapable", "NvmeMissing").await?;
    let told = message(&platform, "LauncherCapable");
    ensure!(told.contains("has no nvme device") && told.contains(PAGE), "{told}");
    ensure!(message(&platform, "Ready").contains(PAGE), "{platform:?}");

    let chronicle = Chronicle::start(client, ns).await?;
    let _: MacOSMachinePool = make::within(client, ns, make::pool("p", "incapable", 3, 5)).await?;
    let waiting = all_wait(fleet, ns, "has no nvme device").await?;
    // nothing of a SATA disk is missing
    let elsewhere = fleet.namespace("incapable-sata").await?;
    let _: MacOSMachine = make::within(client, elsewhere.name(), make::machine("sata", "incapable-sata")).await?;
    see::machine(&fleet.api(elsewhere.name()), "sata", MachinePhase::Ready).await?;

    fleet.sim.fault(&format!("lacks-device {PROBES} isa-applesmc"))?;
    record(fleet, &image("c")).await?;
    see::reason(&platforms, "default", "LauncherCapable", "SmcMissing").await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    for name in &waiting {
        see::until(&machines, name, "the other device", |machine| {
            message(machine, "Ready").contains("has no isa-applesmc device")
        })
        .await?;
    }
    let _: MacOSMachine = make::within(client, elsewhere.name(), make::machine("none", "incapable-sata")).await?;
    let none = see::reason(
        &fleet.api::<MacOSMachine>(elsewhere.name()),
        "none",
        "Ready",
        "PlatformNotReady",
    )
    .await?;
    ensure!(
        message(&none, "Ready").contains("has no isa-applesmc device"),
        "{none:?}"
    );
    ensure!(
        fleet
            .api::<VirtualMachine>(ns)
            .list(&Default::default())
            .await?
            .items
            .is_empty(),
        "a VirtualMachine was made in vain"
    );

    // a launcher that can: the very machines that waited go on
    fleet.sim.clear(&format!("lacks-device {PROBES}"))?;
    record(fleet, &fleet.sim.options().launcher_image).await?;
    see::condition(&platforms, "default", "LauncherCapable", "True").await?;
    for name in &waiting {
        see::machine(&machines, name, MachinePhase::Ready).await?;
    }
    let made: HashSet<String> = chronicle
        .moments()
        .await?
        .into_iter()
        .filter(|moment| moment.thing == Thing::Machine)
        .map(|moment| moment.name)
        .collect();
    ensure!(made == waiting, "the pool made {made:?}, and {waiting:?} waited");
    Ok(())
}

pub(crate) async fn a_device_that_qemu_lacks_in_spite_of_the_probe_fails_each_machine_once_and_the_pool_stops()
-> Result<()> {
    let fleet = fleet().await?;
    let client = &fleet.client;
    for (device, class) in [("nvme", "no-nvme"), ("isa-applesmc", "no-smc")] {
        let scratch = fleet.namespace(class).await?;
        let ns = scratch.name();
        let _: MacOSMachineClass = make::cluster(client, make::class(class)).await?;
        // the image that was probed has it: this node holds another
        fleet.sim.fault(&format!("lacks-device {ns}/* {device}"))?;
        let chronicle = Chronicle::start(client, ns).await?;
        let _: MacOSMachinePool = make::within(client, ns, make::pool("p", class, 3, 6)).await?;
        let machines = see::count(&fleet.api::<MacOSMachine>(ns), "three that failed", |machines| {
            let failed = |machine: &MacOSMachine| see::machine_phase(machine) == Some(MachinePhase::Failed);
            machines.len() == 3 && machines.iter().all(failed)
        })
        .await?;
        let lacks = format!("has no {device} device");
        for machine in &machines {
            let failure = machine.status.as_ref().and_then(|status| status.failure.as_ref());
            let failure = failure.context("status.failure")?;
            ensure!(failure.reason == "DeviceMissing", "{failure:?}");
            let event = see::event(client, ns, &machine.name_any(), "DeviceMissing").await?;
            for words in [&failure.message, &event, &message(machine, "InstanceRunning")] {
                ensure!(words.contains(&lacks) && words.contains(PAGE), "{words}");
            }
        }
        let pools = fleet.api::<MacOSMachinePool>(ns);
        let pool = see::reason(&pools, "p", "Ready", "MachinesFailing").await?;
        let told = message(&pool, "Ready");
        ensure!(told.contains(&lacks), "{told}");
        // and that is all for a while, reckoned from the last of them
        let failed = machines
            .iter()
            .filter_map(|machine| machine.status.as_ref()?.failure.as_ref());
        let last = failed.map(|failure| failure.at.0).max().context("a failure")?;
        see::until(&pools, "p", "that no other is tried for half an hour", |pool| {
            next_try(&message(pool, "Ready")).is_some_and(|next| next.duration_since(last) >= HOPELESS)
        })
        .await?;
        see::none_left(&fleet.api::<VirtualMachineInstance>(ns)).await?;
        let moments = chronicle.moments().await?;
        let made = |thing: Thing| {
            let uids = moments
                .iter()
                .filter(|moment| moment.thing == thing)
                .map(|moment| &moment.uid);
            uids.collect::<HashSet<_>>().len()
        };
        ensure!(made(Thing::Machine) == 3, "{} machines were made", made(Thing::Machine));
        ensure!(
            made(Thing::Instance) == 3,
            "{} instances were started",
            made(Thing::Instance)
        );
        // mended, and the evidence deleted: the pool goes on at once
        fleet.sim.clear(&format!("lacks-device {ns}/*"))?;
        for machine in &machines {
            let name = machine.name_any();
            fleet.api::<MacOSMachine>(ns).delete(&name, &Default::default()).await?;
        }
        see::condition(&pools, "p", "Ready", "True").await?;
    }
    Ok(())
}
