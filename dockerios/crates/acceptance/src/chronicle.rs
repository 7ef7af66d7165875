//! Every version of every kind that matters, in one order.
//!
//! The resourceVersions of all kinds of an etcd-backed API server come from one counter, and the event of a deletion
//! carries the counter's value at the deletion. So "at any moment" and "before" are judged over what was really
//! written, not over what a test happened to look at.

use anyhow::{Context as _, Result, bail, ensure};
use dockerios_api::{MacOSMachine, MacOSMachineClaim, MachineIdentity};
use dockerios_kubevirt::{DataVolume, VirtualMachine, VirtualMachineInstance};
use dockerios_testkit::History;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::Value;

/// The kinds that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Thing {
    Identity,
    Machine,
    Claim,
    VirtualMachine,
    Instance,
    Pod,
    DataVolume,
    Volume,
    ConfigMap,
}

/// One version of one object.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Its place in the order of all writes.
    pub at: u64,
    /// Its kind.
    pub thing: Thing,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// True when this is its end; the object is then as it last was.
    pub gone: bool,
    /// The object.
    pub object: Value,
}

impl Moment {
    /// A text in it, by JSON pointer; empty when absent.
    pub fn text(&self, pointer: &str) -> &str {
        self.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// A label.
    pub fn label(&self, key: &str) -> &str {
        self.object["metadata"]["labels"][key].as_str().unwrap_or_default()
    }

    /// Whether the object was told to go, or has gone.
    pub fn goes(&self) -> bool {
        self.gone || !self.text("/metadata/deletionTimestamp").is_empty()
    }
}

/// Watches a namespace, and all identities.
pub struct Chronicle {
    kept: Vec<(Thing, History<DynamicObject>)>,
}

impl Chronicle {
    /// Begins to watch.
    ///
    /// # Errors
    /// When a kind cannot be read.
    pub async fn start(client: &Client, namespace: &str) -> Result<Chronicle> {
        let mut kept = vec![(Thing::Identity, cluster::<MachineIdentity>(client).await?)];
        kept.push((Thing::Machine, within::<MacOSMachine>(client, namespace).await?));
        kept.push((Thing::Claim, within::<MacOSMachineClaim>(client, namespace).await?));
        kept.push((
            Thing::VirtualMachine,
            within::<VirtualMachine>(client, namespace).await?,
        ));
        kept.push((
            Thing::Instance,
            within::<VirtualMachineInstance>(client, namespace).await?,
        ));
        kept.push((Thing::Pod, within::<Pod>(client, namespace).await?));
        kept.push((Thing::DataVolume, within::<DataVolume>(client, namespace).await?));
        kept.push((Thing::Volume, within::<PersistentVolumeClaim>(client, namespace).await?));
        kept.push((Thing::ConfigMap, within::<ConfigMap>(client, namespace).await?));
        Ok(Chronicle { kept })
    }

    /// Everything up to now, in the order in which it was written.
    ///
    /// # Errors
    /// When versions were missed: nothing is shown then.
    pub async fn moments(&self) -> Result<Vec<Moment>> {
        let mut moments = Vec::new();
        for (thing, history) in &self.kept {
            history.catch_up().await?;
            history.assert_whole()?;
            for version in history.versions() {
                let object = serde_json::to_value(&version.object)?;
                let at = version.object.resource_version().unwrap_or_default();
                moments.push(Moment {
                    at: at
                        .parse()
                        .with_context(|| format!("resourceVersion {at:?} is no number"))?,
                    thing: *thing,
                    name: version.object.name_any(),
                    uid: version.object.uid().unwrap_or_default(),
                    gone: version.deleted,
                    object,
                });
            }
        }
        moments.sort_by_key(|moment| moment.at);
        Ok(moments)
    }

    /// Holds `holds` against the world after each single write; the world is every object's newest version until then.
    ///
    /// # Errors
    /// With the first write after which it did not hold.
    pub async fn always(&self, what: &str, mut holds: impl FnMut(&[&Moment]) -> bool) -> Result<()> {
        let moments = self.moments().await?;
        ensure!(!moments.is_empty(), "{what}: nothing was written, so nothing is shown");
        let mut world: Vec<&Moment> = Vec::new();
        for moment in &moments {
            world.retain(|known| known.uid != moment.uid);
            if !moment.gone {
                world.push(moment);
            }
            if !holds(&world) {
                bail!(
                    "{what}: broken by version {} of {:?} {}: {}",
                    moment.at,
                    moment.thing,
                    moment.name,
                    moment.object
                );
            }
        }
        Ok(())
    }

    /// When an object of that kind first was so.
    ///
    /// # Errors
    /// When it never was.
    pub async fn first(&self, thing: Thing, what: &str, so: impl Fn(&Moment) -> bool) -> Result<u64> {
        let moments = self.moments().await?;
        let found = moments.iter().find(|moment| moment.thing == thing && so(moment));
        found
            .map(|moment| moment.at)
            .with_context(|| format!("no {thing:?} ever: {what}"))
    }

    /// When the last of the objects of that kind that `which` selects had gone.
    ///
    /// # Errors
    /// When there was none, or one is still there.
    pub async fn last_gone(&self, thing: Thing, what: &str, which: impl Fn(&Moment) -> bool) -> Result<u64> {
        let moments = self.moments().await?;
        let chosen: Vec<&Moment> = moments.iter().filter(|m| m.thing == thing && which(m)).collect();
        ensure!(!chosen.is_empty(), "there never was a {thing:?}: {what}");
        let mut last = 0;
        for moment in &chosen {
            let end = chosen.iter().find(|other| other.uid == moment.uid && other.gone);
            let end = end.with_context(|| format!("{thing:?} {} is still there: {what}", moment.name))?;
            last = last.max(end.at);
        }
        Ok(last)
    }
}

async fn cluster<K: Resource<DynamicType = ()>>(client: &Client) -> Result<History<DynamicObject>> {
    History::start(Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))).await
}

async fn within<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Result<History<DynamicObject>> {
    History::start(Api::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::erase::<K>(&()),
    ))
    .await
}
