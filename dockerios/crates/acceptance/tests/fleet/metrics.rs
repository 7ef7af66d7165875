//! A real Prometheus on both sides of the operator: it is asked for free space, and it scrapes.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Exporter, Fleet, Prometheus, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{MacOSMachine, MacOSMachineClass, PlatformConfig, names};
use dockerios_kubevirt::VirtualMachineInstance;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::fleet;

/// Bytes of the thin pool.
const POOL: u64 = 200 << 30;
const FREE: &str = r#"sum(topolvm_thinpool_size_bytes{device_class="mac"} * (1 - topolvm_thinpool_data_percent{device_class="mac"} / 100))"#;
const CAPACITY: &str = r#"sum(topolvm_thinpool_size_bytes{device_class="mac"})"#;

/// What TopoLVM exports of a thin pool that is so full.
fn thin_pool(percent: f64) -> String {
    let labels = r#"{device_class="mac",node="kvm-0"}"#;
    format!(
        "# TYPE topolvm_thinpool_size_bytes gauge\ntopolvm_thinpool_size_bytes{labels} {POOL}\n\
         # TYPE topolvm_thinpool_data_percent gauge\ntopolvm_thinpool_data_percent{labels} {percent}\n"
    )
}

/// The rule about the thin pool, or none; no other scene sets any.
async fn rule(fleet: &Fleet, url: Option<&str>) -> Result<()> {
    let one = |url: &str| {
        json!([{"storageClassName": make::THIN, "minFreePercent": 20, "source":
            {"prometheus": {"url": url, "freeQuery": FREE, "capacityQuery": CAPACITY}}}])
    };
    let rules = url.map_or(Value::Null, one);
    let patch = Patch::Merge(json!({"spec": {"storage": {"headroom": rules}}}));
    let platforms = fleet.all::<PlatformConfig>();
    platforms.patch("default", &PatchParams::default(), &patch).await?;
    Ok(())
}

pub(crate) async fn headroom_by_a_real_prometheus_holds_new_machines_back_and_touches_nothing_that_runs() -> Result<()>
{
    let fleet = fleet().await?;
    let held = held_back(fleet).await;
    // whatever came of it, others are not to wait for a Prometheus that is gone
    let restored = rule(fleet, None).await;
    held.and(restored)
}

async fn held_back(fleet: &Fleet) -> Result<()> {
    let scratch = fleet.namespace("headroom").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let class = make::with(make::class("thin"), "systemDisk/storageClassName", json!(make::THIN));
    let _: MacOSMachineClass = make::cluster(client, class).await?;
    // 50 GiB are free; 20 % must stay, a machine's copy takes 20 GiB
    let exporter = Exporter::start(&thin_pool(75.0)).await?;
    let targets = [("topolvm", exporter.address()), ("dockerios", fleet.metrics())];
    let prometheus = Prometheus::start(&targets).await?;
    prometheus.until(FREE, |free| free > 0.0).await?;
    rule(fleet, Some(prometheus.url())).await?;
    let of_thin = |name: &str| format!("{name}{{storage_class=\"{}\"}}", make::THIN);
    prometheus
        .until(&of_thin("dockerios_headroom_known"), |known| known > 0.5)
        .await?;

    let machines = fleet.api::<MacOSMachine>(ns);
    let _: MacOSMachine = make::within(client, ns, make::machine("first", "thin")).await?;
    see::reason(&machines, "first", "StorageHeadroom", "BelowThreshold").await?;
    let told = see::event(client, ns, "first", "BelowThreshold").await?;
    for words in [
        "50.0 GiB free less 20.0 GiB reserved",
        "below the 40.0 GiB (20 %) that must stay free; it opens again at 44.0 GiB (22 %)",
    ] {
        ensure!(told.contains(words), "the event lacks {words:?}: {told}");
    }
    ensure!(see::machine_phase(&machines.get("first").await?) == Some(MachinePhase::Pending));
    prometheus
        .until(&of_thin("dockerios_headroom_waiting_machines"), |waiting| waiting > 0.5)
        .await?;

    // 62.5 GiB are free: above the threshold, below where a class that was closed opens
    exporter.say(&thin_pool(68.75));
    let between = see::until(&machines, "first", "the second reading", |machine| {
        headroom(machine).is_some_and(|told| told.contains("62.5 GiB free"))
    });
    let between = between.await?;
    let told = headroom(&between).unwrap_or_default();
    ensure!(
        told.contains("below the 44.0 GiB (22 %) at which it opens again"),
        "{told}"
    );
    ensure!(see::machine_phase(&between) == Some(MachinePhase::Pending));

    exporter.say(&thin_pool(65.625));
    let ready = see::machine(&machines, "first", MachinePhase::Ready).await?;
    let runs = instance(fleet, ns, &ready).await?;

    // a source that says nothing any more: what is not known is not plenty
    exporter.say("");
    // told by the operator, through the Prometheus that it asks
    prometheus
        .until(&of_thin("dockerios_headroom_known"), |known| known < 0.5)
        .await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("second", "thin")).await?;
    see::until(&machines, "second", "a source without series", |machine| {
        headroom(machine).is_some_and(|told| told.contains("the query gives no series"))
    })
    .await?;
    prometheus.stop().await?;
    let blind = see::until(&machines, "second", "a Prometheus that is gone", |machine| {
        headroom(machine).is_some_and(|told| told.contains(prometheus.url()) && !told.contains("no series"))
    });
    let blind = blind.await?;
    let unknown = see::condition_of(&blind, "StorageHeadroom").unwrap_or_default();
    ensure!(
        unknown["status"] == "Unknown" && unknown["reason"] == "CapacityUnknown",
        "{unknown}"
    );
    ensure!(see::machine_phase(&blind) == Some(MachinePhase::Pending));
    see::event(client, ns, "second", "CapacityUnknown").await?;
    // what ran runs on, the same instance
    let after = machines.get("first").await?;
    ensure!(
        see::machine_phase(&after) == Some(MachinePhase::Ready),
        "{:?}",
        after.status
    );
    ensure!(instance(fleet, ns, &after).await? == runs, "it was started anew");

    rule(fleet, None).await?;
    see::machine(&machines, "second", MachinePhase::Ready).await?;
    Ok(())
}

/// What the machine says of room.
fn headroom(machine: &MacOSMachine) -> Option<String> {
    let said = see::condition_of(machine, "StorageHeadroom")?;
    Some(said["message"].as_str()?.to_owned())
}

/// Uid of the machine's instance.
async fn instance(fleet: &Fleet, ns: &str, machine: &MacOSMachine) -> Result<Option<String>> {
    let name = names::of_machine(&machine.name_any(), &machine.uid().context("uid")?, "vm");
    Ok(fleet.api::<VirtualMachineInstance>(ns).get(&name).await?.uid())
}

pub(crate) async fn a_real_prometheus_scrapes_the_operator_and_its_numbers_are_the_fleets() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("scraped").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    // another storage class than the image's, of another driver: CDI has a pod copy it, and says nothing
    let class = make::with(
        make::class("scraped"),
        "systemDisk/storageClassName",
        json!(make::COUNTED),
    );
    let _: MacOSMachineClass = make::cluster(client, class).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    for name in ["one", "two"] {
        let _: MacOSMachine = make::within(client, ns, make::machine(name, "scraped")).await?;
    }
    let mut instances = Vec::new();
    for name in ["one", "two"] {
        let machine = see::machine(&machines, name, MachinePhase::Ready).await?;
        instances.push(names::of_machine(name, &machine.uid().context("uid")?, "vm"));
    }
    let off = Patch::Merge(json!({"spec": {"powerState": "Stopped"}}));
    machines.patch("two", &PatchParams::default(), &off).await?;
    see::machine(&machines, "two", MachinePhase::Stopped).await?;

    // as virt-handler tells it: by namespace and name of the instance
    let kubevirt = |name: &String| {
        format!("kubevirt_vmi_memory_resident_bytes{{namespace=\"{ns}\",name=\"{name}\",node=\"kvm-0\"}} 1000\n")
    };
    let told: String = instances.iter().map(kubevirt).collect();
    let exporter = Exporter::start(&told).await?;
    let targets = [("dockerios", fleet.metrics()), ("kubevirt", exporter.address())];
    let prometheus = Prometheus::start(&targets).await?;
    let at = |query: &str, truth: f64| {
        let (prometheus, query) = (&prometheus, query.to_owned());
        async move { prometheus.until(&query, |value| (value - truth).abs() < 0.001).await }
    };
    at(r#"up{job="dockerios"}"#, 1.0).await?;
    at("dockerios_leader", 1.0).await?;
    for (phase, truth) in [("Ready", 1.0), ("Stopped", 1.0), ("Failed", 0.0)] {
        at(
            &format!(r#"dockerios_machines{{class="scraped",phase="{phase}"}}"#),
            truth,
        )
        .await?;
    }
    // two left Starting and Ready by now, one left Starting alone
    at(
        r#"dockerios_machine_phase_seconds_count{class="scraped",phase="Starting"}"#,
        2.0,
    )
    .await?;
    at(
        r#"dockerios_machine_phase_seconds_count{class="scraped",phase="Ready"}"#,
        1.0,
    )
    .await?;
    // the silent copies are seen, with their bytes
    let copies = format!(
        r#"dockerios_clones_total{{storage_class="{}",strategy="copy"}}"#,
        make::COUNTED
    );
    at(&copies, 2.0).await?;
    let bytes = format!(
        r#"dockerios_cloned_bytes_total{{storage_class="{}",strategy="copy"}}"#,
        make::COUNTED
    );
    at(&bytes, 2.0 * 20.0 * f64::from(1 << 30)).await?;
    at(
        r#"count(dockerios_launcher_nvme_mode{current="true",mode="Native"})"#,
        1.0,
    )
    .await?;
    // KubeVirt's numbers by the words of ours
    at(
        "sum by (class) (kubevirt_vmi_memory_resident_bytes * on (namespace, name) group_left (class) \
         dockerios_machine_info{class=\"scraped\"})",
        2000.0,
    )
    .await?;
    every_example_is_a_query(&prometheus).await
}

/// The queries of the page on metrics are PromQL that a Prometheus takes.
async fn every_example_is_a_query(prometheus: &Prometheus) -> Result<()> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let examples: Vec<&str> = page
        .split("```promql\n")
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next())
        .flat_map(|block| block.split("\n\n"))
        .collect();
    ensure!(examples.len() >= 8, "the page has {} queries", examples.len());
    for example in examples {
        let query: String = example
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect::<Vec<_>>()
            .join("\n");
        prometheus.query(&query).await?;
    }
    Ok(())
}
