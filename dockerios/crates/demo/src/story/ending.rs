//! The end of a machine, in the order in which the cluster showed it.

use std::pin::pin;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use futures::stream::select_all;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;

use super::{TEARDOWN, delete};
use crate::cluster::Cluster;
use crate::eye::{self, text};
use crate::say;

/// What was seen of it.
struct Seen {
    kind: &'static str,
    object: Value,
    gone: bool,
}

/// A machine with an identity, whose class keeps its disk.
pub(crate) async fn teardown(cluster: &Cluster) -> Result<()> {
    say::step(9, "A machine ends, in order; its disk is kept (reclaimPolicy Retain)");
    let team = "team-signing";
    let client = &cluster.client;
    let all = eye::list(client, eye::MACHINE, team).await?;
    let machine = all
        .iter()
        .find(|machine| eye::ready(machine))
        .context("a machine that is Ready")?;
    let (name, uid) = (
        text(machine, "/metadata/name").to_owned(),
        text(machine, "/metadata/uid").to_owned(),
    );
    let identity = text(machine, "/status/identityRef").to_owned();
    let labelled = watcher::Config::default().labels(&format!("machine.dockerios.io/uid={uid}"));
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let watches = [
        (eye::MACHINE, team, named(&name)),
        (eye::VM, team, labelled.clone()),
        (eye::VMI, team, labelled.clone()),
        (eye::VOLUME, team, labelled.clone()),
        (eye::DISK, team, labelled),
        (eye::IDENTITY, "", named(&identity)),
    ];
    let streams = watches.map(|(kind, namespace, config)| {
        watcher::watcher(eye::api(client, kind, namespace), config)
            .filter_map(move |event| {
                std::future::ready(match event {
                    Ok(Event::Apply(object)) => Some((kind.2, object, false)),
                    Ok(Event::Delete(object)) => Some((kind.2, object, true)),
                    _ => None,
                })
            })
            .boxed()
    });
    let mut streams = pin!(select_all(streams));
    delete(cluster, team, &name).await?;
    let began = Instant::now();
    let mut last = Vec::new();
    let follow = async {
        while let Some((kind, object, gone)) = streams.next().await {
            let object = serde_json::to_value(object)?;
            let seen = Seen { kind, object, gone };
            let ended = seen.kind == "MacOSMachine" && gone;
            if let Some(words) = words(&seen, &uid).filter(|words| !last.contains(words)) {
                say::line(format!("     {:>7}  {words}", say::seconds(began.elapsed())));
                last.push(words);
            }
            if ended {
                return Ok(());
            }
        }
        bail!("the watch of {name} ended")
    };
    match tokio::time::timeout(TEARDOWN, follow).await {
        Ok(done) => done?,
        Err(_) => bail!(
            "{name} is not gone after {} s: kubectl describe macs/{name} -n {team}",
            TEARDOWN.as_secs()
        ),
    }
    kept(cluster, team, &name).await
}

/// What stays, by the cluster's word.
async fn kept(cluster: &Cluster, team: &str, name: &str) -> Result<()> {
    let disks = eye::list(&cluster.client, eye::DISK, team).await?;
    let of = |disk: &&Value| text(disk, "/metadata/name").starts_with(&format!("macs-{name}-"));
    let Some(disk) = disks.iter().find(of) else {
        bail!("the disk of {name} is gone, and its class retains it: kubectl get pvc -n {team}");
    };
    say::note(format!(
        "kept: pvc/{}, {}",
        text(disk, "/metadata/name"),
        text(disk, "/spec/resources/requests/storage")
    ));
    let all = eye::all_until(
        &cluster.client,
        (eye::MACHINE, team),
        "a waiting machine with the identity",
        |all| {
            all.iter()
                .filter(|machine| !text(machine, "/status/identityRef").is_empty())
                .count()
                == 5
        },
    )
    .await?;
    say::note(format!(
        "{} machines are left; one that waited has the identity now",
        all.len()
    ));
    Ok(())
}

/// What an observation says, if it says something.
fn words(seen: &Seen, uid: &str) -> Option<String> {
    let object = &seen.object;
    let name = text(object, "/metadata/name");
    match (seen.kind, seen.gone) {
        ("MacOSMachine", true) => Some("the machine is gone".to_owned()),
        ("MacOSMachine", false) if text(object, "/metadata/deletionTimestamp").is_empty() => None,
        ("MacOSMachine", false) => {
            if object.pointer("/status/guest/cleanShutdown").and_then(Value::as_bool) == Some(true) {
                return Some("the guest reported a clean shutdown".to_owned());
            }
            let phase = text(object, "/status/phase");
            Some(format!("machine {phase}")).filter(|_| !phase.is_empty())
        }
        ("VirtualMachine", false) if text(object, "/spec/runStrategy") == "Halted" => {
            Some("KubeVirt is asked to stop the VM (runStrategy Halted)".to_owned())
        }
        ("VirtualMachine" | "VirtualMachineInstance", true) => Some(format!("{} is gone", seen.kind)),
        ("DataVolume" | "PersistentVolumeClaim", true) => Some(format!("{} {name} is gone", seen.kind)),
        ("PersistentVolumeClaim", false)
            if !text(object, "/metadata/labels/machine.dockerios.io~1retained").is_empty() =>
        {
            Some(format!("{name} is marked as retained"))
        }
        ("MachineIdentity", false) => {
            let (phase, holder) = (text(object, "/status/phase"), text(object, "/status/claimRef/name"));
            match text(object, "/status/claimRef/uid") {
                own if own == uid => None,
                "" => Some(format!("identity {name}: {phase}")),
                _ => Some(format!("identity {name}: {phase} to {holder}, which waited")),
            }
        }
        _ => None,
    }
}
