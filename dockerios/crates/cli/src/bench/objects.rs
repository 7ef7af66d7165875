//! Making and removing what a run consists of.
//!
//! Invariant: a request that is on its way is waited for, by Ctrl-C too, so that what is removed afterwards is all that
//! was made.

use std::time::Duration;

use anyhow::{Error, Result, bail};
use dockerios_kubevirt::{DataVolume, VirtualMachine};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::render::{LABEL, Run};
use crate::access::Cluster;
use crate::answer::said;
use crate::follow::{self, Met};
use crate::interrupt::{Interrupt, Interrupted};
use crate::out;

/// For the guest's grace, the launcher pod's end and the driver's deletion of the disk.
const PATIENCE: Duration = Duration::from_secs(180);

/// Why not all of a run was made.
pub(super) enum Unmade {
    /// Nothing is there that is this run's: what bears its name, if anything does, is somebody else's.
    Nothing(Error),
    /// Part of it may be there.
    InPart(Error),
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Unmade::InPart(error)
    }
}

/// Makes all of it.
///
/// # Errors
/// What was refused, and [`Interrupted`].
pub(super) async fn make(cluster: &Cluster, run: &Run, interrupt: &mut Interrupt) -> Result<(), Unmade> {
    let made = async {
        let post = PostParams::default();
        // made first: what bears the run's name from here on is this run's
        let maps: Api<ConfigMap> = cluster.here();
        if let Err(error) = maps.create(&post, &run.key()?).await {
            // a server that fails, or does not answer, may have made it all the same
            let refused = matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code));
            let error = said(error, "making the ConfigMap");
            return Err(if refused {
                Unmade::Nothing(error)
            } else {
                Unmade::InPart(error)
            });
        }
        let here = Some(&*cluster.namespace);
        let disks = cluster.untyped(here, &ApiResource::erase::<DataVolume>(&()));
        let disk = disks.create(&post, &run.disk()?).await;
        disk.map_err(|error| said(error, "making the disk"))?;
        let machines = cluster.untyped(here, &ApiResource::erase::<VirtualMachine>(&()));
        let machine = machines.create(&post, &run.machine()?).await;
        machine.map_err(|error| said(error, "making the VM"))?;
        Ok(())
    };
    tokio::pin!(made);
    tokio::select! {
        made = &mut made => return made,
        () = interrupt.happened() => {}
    }
    // what is being asked for is waited for; whoever insists need not
    tokio::select! {
        made = made => made.and(Err(Unmade::InPart(Interrupted.into()))),
        () = interrupt.happened() => Err(Unmade::InPart(Interrupted.into())),
    }
}

/// Removes what a run made and waits until its disk is gone, so that the next run does not share the storage with it.
/// What cannot be removed is named.
pub(super) async fn remove(cluster: &Cluster, run: &Run, interrupt: &mut Interrupt) {
    let name = run.name();
    let by_hand = format!("kubectl delete vm,dv,cm -n {} -l {LABEL}={name}", cluster.namespace);
    let removed = async {
        delete(cluster.here::<VirtualMachine>(), &name).await?;
        delete(cluster.here::<DataVolume>(), &name).await?;
        delete(cluster.here::<ConfigMap>(), &name).await?;
        gone(cluster.here::<PersistentVolumeClaim>(), &name).await
    };
    tokio::select! {
        removed = removed => match removed {
            Ok(()) => {}
            Err(error) => out::note(&format!("not all that {name} made is known to be gone: {error:#}; {by_hand}")),
        },
        () = interrupt.happened() => out::note(&format!("not all that {name} made is removed: {by_hand}")),
    }
}

async fn delete<K>(api: Api<K>, name: &str) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, &DeleteParams::background()).await {
        Ok(_) => Ok(()),
        // it never came to be
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(said(error, &format!("removing {} {name}", K::kind(&())))),
    }
}

async fn gone(claims: Api<PersistentVolumeClaim>, name: &str) -> Result<()> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut there = false;
    let met = follow::until(claims, only, "the disk", PATIENCE, |event| {
        match event {
            Event::Init => there = false,
            Event::InitApply(_) | Event::Apply(_) => there = true,
            Event::Delete(_) => return Ok(Some(())),
            Event::InitDone => return Ok((!there).then_some(())),
        }
        Ok(None)
    })
    .await?;
    match met {
        Met::Seen(()) => Ok(()),
        Met::TooLate(trouble) => bail!("its disk is still there after {} s{trouble}", PATIENCE.as_secs()),
    }
}
