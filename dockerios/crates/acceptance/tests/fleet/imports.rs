//! Images from each source, and what is said of those that do not come.

use anyhow::{Context as _, Result, ensure};
use axum::{Router, http::StatusCode, routing::get};
use dockerios_acceptance::{Fleet, make, see};
use dockerios_api::image::macos_image::PublishedKind;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{MacOSImage, MacOSMachine, MacOSMachineClass};
use dockerios_kubevirt::DataVolume;
use dockerios_testkit::apply_yaml;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::fleet;

/// What the web server serves as a golden disk.
const DISK: &[u8] = b"as much of a golden disk as this needs";

fn sum(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// A web server of this machine; gives its address.
async fn serve() -> Result<String> {
    let router = Router::new()
        .route("/golden.raw", get(|| async { DISK }))
        .route("/gone.raw", get(|| async { StatusCode::NOT_FOUND }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let at = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(at)
}

fn ready(image: &MacOSImage) -> String {
    let ready = see::condition_of(image, "Ready").unwrap_or_default();
    ready["message"].as_str().unwrap_or_default().to_owned()
}

/// An image of that source.
async fn image(fleet: &Fleet, name: &str, storage: &str, source: Value) -> Result<MacOSImage> {
    make::cluster(&fleet.client, make::with(make::image(name, storage), "source", source)).await
}

/// What CDI was told of an image's source.
async fn asked(fleet: &Fleet, name: &str) -> Result<Value> {
    let volumes = fleet.api::<DataVolume>("dockerios-system");
    Ok(json!(volumes.get(&format!("img-{name}")).await?.spec.source))
}

pub(crate) async fn a_disk_from_a_web_server_is_held_against_its_checksum_and_one_that_differs_is_told_until_mended()
-> Result<()> {
    let fleet = fleet().await?;
    let server = serve().await?;
    let images = fleet.all::<MacOSImage>();
    let source = |path: &str, sha256: &str| json!({"http": {"url": format!("{server}/{path}"), "sha256": sha256}});
    let _ = image(fleet, "web", make::STORAGE, source("golden.raw", &sum(DISK))).await?;
    see::condition(&images, "web", "Ready", "True").await?;
    let told = asked(fleet, "web").await?;
    ensure!(told["http"]["checksum"] == format!("sha256:{}", sum(DISK)), "{told}");

    let _ = image(
        fleet,
        "web-other",
        make::STORAGE,
        source("golden.raw", &sum(b"another")),
    )
    .await?;
    let _ = image(fleet, "web-gone", make::STORAGE, source("gone.raw", &sum(DISK))).await?;
    for (name, words) in [("web-other", sum(DISK)), ("web-gone", "got 404".to_owned())] {
        let failing = see::reason(&images, name, "Ready", "ImportFailing").await?;
        ensure!(ready(&failing).contains(&words), "{}", ready(&failing));
        let event = see::event(&fleet.client, "default", name, "ImportFailing").await?;
        ensure!(event.contains(&words), "{event}");
        ensure!(
            failing.status.is_some_and(|status| status.published.is_none()),
            "{name} was published"
        );
        // not Ready yet, so its source can be mended
        let mended = Patch::Merge(json!({"spec": {"source": source("golden.raw", &sum(DISK))}}));
        images.patch(name, &PatchParams::default(), &mended).await?;
        see::condition(&images, name, "Ready", "True").await?;
    }
    Ok(())
}

pub(crate) async fn an_import_that_cdi_gives_up_says_cdis_words_within_bounds_and_the_way_out() -> Result<()> {
    let fleet = fleet().await?;
    let long = format!("no space left on device {}", "ü".repeat(10_000));
    fleet
        .sim
        .fault(&format!("import-fails dockerios-system/img-full {long}"))?;
    let _: MacOSImage = make::cluster(&fleet.client, make::image("full", make::STORAGE)).await?;
    let images = fleet.all::<MacOSImage>();
    let failed = see::reason(&images, "full", "Ready", "ImportFailed").await?;
    let told = ready(&failed);
    for part in ["no space left on device", "mend spec.source"] {
        ensure!(told.contains(part), "{told}");
    }
    ensure!(told.len() <= 1024, "{} bytes", told.len());
    // the other way out
    fleet.sim.clear("import-fails dockerios-system/img-full")?;
    let volumes = fleet.api::<DataVolume>("dockerios-system");
    volumes.delete("img-full", &Default::default()).await?;
    see::condition(&images, "full", "Ready", "True").await?;
    Ok(())
}

/// A volume in a tenant's namespace, bound.
async fn disk(fleet: &Fleet, ns: &str, name: &str, storage: &str) -> Result<()> {
    let disk = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": storage,
            "resources": {"requests": {"storage": "20Gi"}},
        },
    });
    let _: PersistentVolumeClaim = make::within(&fleet.client, ns, disk).await?;
    see::until(&fleet.api::<PersistentVolumeClaim>(ns), name, "Bound", |claim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
    .await?;
    Ok(())
}

/// Everything to the machine: from a snapshot in another namespace to an image that is a snapshot to a machine whose disk
/// is made of one.
pub(crate) async fn a_snapshot_of_another_namespace_becomes_an_image_and_machines_are_made_of_snapshots() -> Result<()>
{
    let fleet = fleet().await?;
    if !fleet.snapshots {
        eprintln!("the definition of VolumeSnapshots is not at hand: no image is made of one");
        return Ok(());
    }
    let scratch = fleet.namespace("snapped").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    disk(fleet, ns, "mine", "mac-snapshot").await?;
    let snapshot = format!(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: mine, namespace: {ns}}}\n\
         spec: {{source: {{persistentVolumeClaimName: mine}}}}\n"
    );
    apply_yaml(client, &snapshot).await?;
    let source = json!({"snapshot": {"namespace": ns, "name": "mine"}});
    let _ = image(fleet, "snapped", "mac-snapshot", source.clone()).await?;
    let images = fleet.all::<MacOSImage>();
    see::reason(&images, "snapped", "Ready", "CloneNotPermitted").await?;
    crate::clones::permit(fleet, ns).await?;
    let image = see::condition(&images, "snapped", "Ready", "True").await?;
    ensure!(
        asked(fleet, "snapped").await? == source,
        "{}",
        asked(fleet, "snapped").await?
    );
    let published = image.status.and_then(|status| status.published).context("published")?;
    ensure!(published.kind == PublishedKind::VolumeSnapshot, "{published:?}");

    let class = make::with(make::class("snapped"), "imageName", json!("snapped"));
    let class = make::with(class, "systemDisk/storageClassName", json!("mac-snapshot"));
    let _: MacOSMachineClass = make::cluster(client, class).await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("m", "snapped")).await?;
    let machine = see::machine(&fleet.api(ns), "m", MachinePhase::Ready).await?;
    let disks = machine.status.map(|status| status.disks).unwrap_or_default();
    ensure!(
        disks.len() == 1 && disks[0].strategy == "snapshot",
        "made of a snapshot, and it says so: {disks:?}"
    );
    Ok(())
}
