//! A DataVolume from Pending to Succeeded.
//!
//! ```text
//! Pending > (PendingPopulation until a pod uses the claim) > import:   ImportScheduled > ImportInProgress
//!                                                            driver:   CSICloneInProgress
//!                                                            snapshot: SnapshotForSmartClone… > CloneFromSnapshotSource…
//!                                                            copy:     CloneScheduled > CloneInProgress
//!         > (ExpansionInProgress) > PVCBound > Succeeded;  Failed after an import only
//! ```
//! Invariant: a clone never becomes Failed, whatever happens to it.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use dockerios_kubevirt::{
    DataVolume,
    datavolume::{DataVolumePhase, Origin},
    names,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::{events::EventType, reflector::ObjectRef},
};
use serde_json::{Value, json};

use super::{
    claim::{self, Made},
    download,
};
use crate::{
    csi,
    faults::Fault,
    queue::{Again, Key},
    world::{World, now, unless},
};

const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How a claim is filled.
enum Way {
    Import,
    Driver,
    Snapshot,
    Copy,
}

impl Way {
    fn word(&self) -> Option<&'static str> {
        match self {
            Self::Import => None,
            Self::Driver => Some("csi-clone"),
            Self::Snapshot => Some("snapshot"),
            Self::Copy => Some("copy"),
        }
    }
}

/// What the DataVolume says next.
struct Said<'a> {
    phase: &'a str,
    progress: Option<String>,
    bound: (bool, &'a str, String),
    running: (bool, &'a str, String),
}

impl<'a> Said<'a> {
    fn new(phase: &'a str) -> Self {
        Self {
            phase,
            progress: None,
            bound: (false, "Pending", String::new()),
            running: (false, "", String::new()),
        }
    }
}

/// Works on one.
pub(crate) async fn volume(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(volume) = world.volume(&key) else {
        return Ok(None);
    };
    let Some(uid) = volume.uid() else { return Ok(None) };
    if volume.metadata.deletion_timestamp.is_some() {
        world.forget(&uid);
        return Ok(None);
    }
    match volume
        .status
        .as_ref()
        .and_then(|status| status.phase)
        .unwrap_or_default()
    {
        DataVolumePhase::Succeeded => return collect(&world, &volume).await,
        DataVolumePhase::Failed => return Ok(None),
        _ => {}
    }
    let way = match way(&world, &volume) {
        Ok(way) => way,
        Err(why) => {
            return say(
                &world,
                &volume,
                Said {
                    running: (false, "Pending", why),
                    ..Said::new("Pending")
                },
            )
            .await;
        }
    };
    let Some(claim) = world.claim(&key) else {
        return match claim::make(&world, &volume, way.word()).await? {
            Made::Yes => Ok(None),
            Made::Refused(why) => {
                let mut said = Said::new("Pending");
                said.bound = (false, "ErrExceededQuota", why);
                say(&world, &volume, said).await?;
                Ok(Some(LOOK_AGAIN))
            }
        };
    };
    if !claim::is_ours(&claim, &volume) {
        let note = format!(
            "Resource {:?} already exists and is not managed by DataVolume",
            key.name
        );
        world
            .tell(&*volume, EventType::Warning, "ErrResourceExists", note)
            .await;
        return Ok(Some(LOOK_AGAIN));
    }
    let filled = claim
        .annotations()
        .get(csi::FILLED)
        .is_some_and(|phase| phase == "Succeeded");
    match (filled, csi::is_bound(&claim)) {
        (_, true) => finish(&world, &volume).await,
        (true, false) => say(&world, &volume, Said::new("PVCBound")).await,
        (false, false) => fill(&world, &volume, &claim, &way, &uid).await,
    }
}

/// The source and the class decide; a source that is not there is waited for.
fn way(world: &World, volume: &DataVolume) -> Result<Way, String> {
    let source = volume.spec.source.clone().unwrap_or_default();
    if source.snapshot.is_some() {
        return Ok(Way::Snapshot);
    }
    let Some(Origin { namespace, name }) = source.pvc else {
        return Ok(Way::Import);
    };
    let origin = world
        .claim(&Key::new(&*namespace, &*name))
        .ok_or_else(|| format!("Source PVC {namespace}/{name} doesn't exist"))?;
    let storage = volume.spec.storage.clone().unwrap_or_default();
    let class = csi::class_of(world, storage.storage_class_name.as_deref())
        .ok_or_else(|| "no storage class: neither named nor default".to_owned())?;
    let of = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let profile = world.stores.profiles.get(&ObjectRef::new(&class.name_any()));
    let strategy = profile.as_ref().and_then(|profile| {
        let status = profile
            .status
            .as_ref()
            .and_then(|status| status.clone_strategy.as_deref());
        profile.spec.clone_strategy.as_deref().or(status)
    });
    let same_driver = of(&origin)
        .and_then(|name| csi::class_of(world, Some(&name)))
        .is_some_and(|from| from.provisioner == class.provisioner);
    Ok(match strategy {
        Some("csi-clone") if same_driver => Way::Driver,
        Some("snapshot") if same_driver => Way::Snapshot,
        _ => Way::Copy,
    })
}

async fn fill(
    world: &World,
    volume: &DataVolume,
    claim: &PersistentVolumeClaim,
    way: &Way,
    uid: &str,
) -> Result<Again> {
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let Some(class) = csi::class_of(world, class) else {
        return Ok(Some(LOOK_AGAIN));
    };
    if csi::waits_for_consumer(&class) && !csi::has_consumer(claim) && !csi::binds_at_once(volume) {
        let old = world.fault(Fault::FirstConsumer, &volume.metadata).is_some();
        let mut said = Said::new(if old {
            "WaitForFirstConsumer"
        } else {
            "PendingPopulation"
        });
        said.bound.2 = format!("PVC {} Pending", claim.name_any());
        return say(world, volume, said).await;
    }
    if !source_is_usable(world, volume) {
        return say(world, volume, Said::new("Pending")).await.map(|_| Some(LOOK_AGAIN));
    }
    let timings = &world.options.timings;
    let total = match way {
        Way::Import => timings.import,
        Way::Driver | Way::Snapshot => timings.clone,
        Way::Copy => timings.copy,
    };
    if let Some(why) = world.fault(Fault::ImportFails, &volume.metadata)
        && matches!(way, Way::Import)
    {
        let why = if why.is_empty() {
            "Unable to process data: the server answers 404".to_owned()
        } else {
            why
        };
        world.tell(volume, EventType::Warning, "Error", why.clone()).await;
        let said = Said {
            running: (false, "Error", why),
            ..Said::new("Failed")
        };
        return say(world, volume, said).await;
    }
    if let Some(why) = world.fault(Fault::CloneError, &volume.metadata)
        && !matches!(way, Way::Import)
    {
        let why = if why.is_empty() {
            "clone source is gone".to_owned()
        } else {
            why
        };
        annotate(
            world,
            claim,
            json!({names::CLONE_ERROR: why, names::CLONE_PHASE: "Error"}),
        )
        .await?;
        return say(
            world,
            volume,
            Said {
                running: (false, "Error", why),
                ..Said::new(phase(way, 0.5))
            },
        )
        .await;
    }
    let stuck = world.fault(Fault::Stuck, &volume.metadata).is_some();
    let left = world.left(uid, "fill", total);
    let share = match left {
        _ if stuck => 0.5,
        Some(left) => 1.0 - left.as_secs_f64() / total.as_secs_f64().max(0.001),
        None => 1.0,
    };
    if share < 1.0 {
        let mut said = Said::new(phase(way, share));
        said.running = (true, "Pod is running", String::new());
        said.progress = matches!(way, Way::Import | Way::Copy).then(|| format!("{:.2}%", share * 100.0));
        say(world, volume, said).await?;
        // ten steps that can be followed
        return Ok((!stuck).then(|| left.unwrap_or_default().min(total / 10)));
    }
    if let Some(url) = download::within_reach(volume)
        && let Err(why) = download::checked(&url).await
    {
        // the importer is started again and again, and the DataVolume never fails for it
        let said = Said {
            running: (false, "Error", format!("Unable to process data: {why}")),
            ..Said::new(phase(way, 0.5))
        };
        say(world, volume, said).await?;
        return Ok(Some(LOOK_AGAIN));
    }
    annotate(
        world,
        claim,
        json!({csi::FILLED: "Succeeded", names::CLONE_PHASE: "Succeeded"}),
    )
    .await?;
    Ok(None)
}

fn phase(way: &Way, share: f64) -> &'static str {
    let late = share > 0.2;
    match way {
        Way::Import if late => "ImportInProgress",
        Way::Import => "ImportScheduled",
        Way::Driver => "CSICloneInProgress",
        Way::Snapshot if late => "CloneFromSnapshotSourceInProgress",
        Way::Snapshot => "SnapshotForSmartCloneInProgress",
        Way::Copy if late => "CloneInProgress",
        Way::Copy => "CloneScheduled",
    }
}

fn source_is_usable(world: &World, volume: &DataVolume) -> bool {
    let source = volume.spec.source.clone().unwrap_or_default();
    if let Some(origin) = source.pvc {
        let claim = world.claim(&Key::new(origin.namespace, origin.name));
        return claim.is_some_and(|claim| csi::is_bound(&claim));
    }
    if let Some(origin) = source.snapshot {
        let reference = ObjectRef::new_with(&origin.name, csi::snapshot_kind()).within(&origin.namespace);
        return world
            .stores
            .snapshots
            .get(&reference)
            .is_some_and(|snapshot| csi::is_taken(&snapshot));
    }
    true
}

async fn annotate(world: &World, claim: &PersistentVolumeClaim, annotations: Value) -> Result<()> {
    let known = claim.annotations();
    let same = annotations.as_object().is_some_and(|wished| {
        wished
            .iter()
            .all(|(key, value)| known.get(key).map(String::as_str) == value.as_str())
    });
    if !same {
        let api = world.api::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        unless(api.patch(&claim.name_any(), &PatchParams::default(), &patch).await, 404)?;
    }
    Ok(())
}

async fn finish(world: &World, volume: &DataVolume) -> Result<Again> {
    let mut said = Said::new("Succeeded");
    said.progress = Some("100.0%".to_owned());
    said.bound = (true, "Bound", format!("PVC {} Bound", volume.name_any()));
    said.running.1 = "Completed";
    if let Some(strategy) = world
        .claim(&Key::of(volume))
        .and_then(|c| c.annotations().get(names::CLONE_TYPE).cloned())
    {
        let api = world.api::<DataVolume>(&volume.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {names::CLONE_TYPE: strategy}}}));
        unless(
            api.patch(&volume.name_any(), &PatchParams::default(), &patch).await,
            404,
        )?;
    }
    say(world, volume, said).await
}

/// What CDI before 1.62 did with a DataVolume that was done: the claim loses its owner, the DataVolume goes.
async fn collect(world: &World, volume: &DataVolume) -> Result<Again> {
    let kept = volume
        .annotations()
        .get(names::DELETE_AFTER_COMPLETION)
        .is_some_and(|value| value == "false");
    if kept || world.fault(Fault::Collected, &volume.metadata).is_none() {
        return Ok(None);
    }
    let (namespace, name) = (volume.namespace().unwrap_or_default(), volume.name_any());
    let orphan = Patch::Merge(json!({"metadata": {"ownerReferences": []}}));
    let claims = world.api::<PersistentVolumeClaim>(&namespace);
    unless(claims.patch(&name, &PatchParams::default(), &orphan).await, 404)?;
    unless(
        world
            .api::<DataVolume>(&namespace)
            .delete(&name, &DeleteParams::orphan())
            .await,
        404,
    )?;
    Ok(None)
}

/// Writes the status, when it changes.
async fn say(world: &World, volume: &DataVolume, said: Said<'_>) -> Result<Again> {
    let before = volume.status.clone().unwrap_or_default();
    let ready = said.phase == "Succeeded";
    let condition = |type_: &str, (status, reason, message): (bool, &str, String)| {
        let status = if status { "True" } else { "False" };
        let old = dockerios_kubevirt::condition(&before.conditions, type_);
        let since = old
            .filter(|old| old.status == status)
            .and_then(|old| serde_json::to_value(&old.last_transition_time).ok())
            .unwrap_or_else(|| json!(now()));
        json!({"type": type_, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": since, "lastHeartbeatTime": since})
    };
    let status = json!({
        "phase": said.phase,
        "claimName": volume.name_any(),
        "progress": said.progress.unwrap_or_else(|| "N/A".to_owned()),
        "conditions": [
            condition("Ready", (ready, "", String::new())),
            condition("Bound", said.bound),
            condition("Running", said.running),
        ],
    });
    if json!(before) == status {
        return Ok(None);
    }
    let api = world.api::<DataVolume>(&volume.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({"status": status}));
    unless(
        api.patch_status(&volume.name_any(), &PatchParams::default(), &patch)
            .await,
        404,
    )?;
    Ok(None)
}
