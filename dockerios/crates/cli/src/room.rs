//! What could be let go where storage is short, in the order that docs/storage.md gives. Nobody else evicts anything.
//!
//! Invariant: only what lies on the storage that is short is named; what could not be seen is said, and not left out.

use std::collections::BTreeSet;

use dockerios_api::names::RETAINED;
use dockerios_api::{IdentityPool, MacOSImage, MacOSMachineClass, MacOSMachinePool};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::access::Cluster;
use crate::answer::words;
use crate::table::listed;

/// A list, or why it was not seen.
type Part<T> = Result<Vec<T>, String>;

/// What is in the cluster.
struct Stored {
    classes: Part<MacOSMachineClass>,
    identities: Part<IdentityPool>,
    pools: Part<MacOSMachinePool>,
    retained: Part<PersistentVolumeClaim>,
    images: Part<MacOSImage>,
}

/// The order and what there is of each, for a machine of that class.
pub(crate) async fn look(cluster: &Cluster, class: &str) -> String {
    let kept = ListParams::default().labels(RETAINED);
    let all = ListParams::default();
    let (pools, retained) = (Api::all(cluster.client.clone()), Api::all(cluster.client.clone()));
    let (classes, identities, images) = (cluster.all(), cluster.all(), cluster.all());
    let (classes, identities, pools, retained, images) = tokio::join!(
        classes.list(&all),
        identities.list(&all),
        pools.list(&all),
        retained.list(&kept),
        images.list(&all),
    );
    fn part<T: Clone>(list: kube::Result<kube::core::ObjectList<T>>) -> Part<T> {
        list.map(|list| list.items).map_err(|error| words(&error))
    }
    let stored = Stored {
        classes: part(classes),
        identities: part(identities),
        pools: part(pools),
        retained: part(retained),
        images: part(images),
    };
    stored.goes_first(class)
}

impl Stored {
    fn class(&self, name: &str) -> Option<&MacOSMachineClass> {
        self.classes
            .as_ref()
            .ok()?
            .iter()
            .find(|class| class.name_any() == name)
    }

    /// The storage classes on which a machine of that class takes room; `None` when its class was not seen.
    fn storage_of(&self, class: &str) -> Option<BTreeSet<String>> {
        let class = self.class(class)?;
        let mut storage = BTreeSet::from([class.spec.system_disk.storage_class_name.to_string()]);
        if let Some(own) = &class.spec.identity.per_machine {
            let known = self.identities.iter().flatten();
            let mut mine = known.filter(|pool| *pool.name_any() == *own.pool_name);
            storage.extend(
                mine.next()
                    .map(|pool| pool.spec.boot_disk.storage_class_name.to_string()),
            );
        }
        Some(storage)
    }

    fn goes_first(&self, class: &str) -> String {
        let short = self.storage_of(class);
        // what lies where is not known counts as lying there
        let there = |storage: Option<&str>| match (&short, storage) {
            (Some(short), Some(storage)) => short.contains(storage),
            _ => true,
        };
        let warm = shown(&self.pools, |pool| {
            let count = pool.status.as_ref().map_or(0, |status| status.replicas);
            let disk = self.class(&pool.spec.machine_class_name);
            let storage = disk.map(|class| &*class.spec.system_disk.storage_class_name);
            let name = format!("{}/{} ({count})", pool.namespace().unwrap_or_default(), pool.name_any());
            (count > 0 && there(storage)).then_some(name)
        });
        let retained = shown(&self.retained, |claim| {
            let storage = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
            let name = format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
            there(storage).then_some(name)
        });
        let unused = match &self.classes {
            Err(why) => format!("not seen ({why})"),
            Ok(classes) => shown(&self.images, |image| {
                let name = image.name_any();
                let named = classes.iter().any(|class| *class.spec.image_name == *name);
                (!named && there(Some(&*image.spec.storage_class_name))).then_some(name)
            }),
        };
        let place = short.map_or_else(
            || " (of every storage class: that of its class was not seen)".to_owned(),
            |short| format!(" on {}", short.into_iter().collect::<Vec<_>>().join(", ")),
        );
        format!(
            "Nothing that runs is evicted. What you can let go first{place}:\n  1. warm machines nobody has claimed \
             (kubectl scale macpool/NAME --replicas=…): {warm}\n  2. disks kept of machines that are gone (kubectl \
             delete pvc): {retained}\n  3. images that no class names (kubectl delete mimg): {unused}"
        )
    }
}

/// Names of those that count, or why they were not seen.
fn shown<T>(part: &Part<T>, name: impl Fn(&T) -> Option<String>) -> String {
    match part {
        Ok(all) => listed(all.iter().filter_map(name)),
        Err(why) => format!("not seen ({why})"),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<T: DeserializeOwned>(kind: &str, name: &str, more: Value) -> T {
        let mut object =
            json!({"kind": kind, "apiVersion": "x/v1alpha1", "metadata": {"name": name, "namespace": "team-a"}});
        if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
            object.extend(more.clone());
        }
        serde_json::from_value(object).unwrap()
    }

    fn class(name: &str, storage: &str, image: &str) -> MacOSMachineClass {
        of(
            "MacOSMachineClass",
            name,
            json!({"spec": {
                "imageName": image, "identity": {"type": "PerMachine", "perMachine": {"poolName": "ids"}},
                "cpu": {"cores": 4, "model": "host-passthrough"}, "memory": {"size": "8Gi"},
                "systemDisk": {"size": "100Gi", "storageClassName": storage},
            }}),
        )
    }

    fn stored() -> Stored {
        let pool = |name: &str, class: &str, replicas: u32| {
            of(
                "MacOSMachinePool",
                name,
                json!({"spec": {"machineClassName": class, "replicas": 2, "maxMachines": 4},
                "status": {"replicas": replicas}}),
            )
        };
        let claim = |name: &str, storage: &str| {
            of(
                "PersistentVolumeClaim",
                name,
                json!({"apiVersion": "v1",
            "spec": {"storageClassName": storage}}),
            )
        };
        let image = |name: &str, storage: &str| {
            of(
                "MacOSImage",
                name,
                json!({"spec": {"osVersion": "15.6", "size": "100Gi", "storageClassName": storage,
                "source": {"pvc": {"namespace": "images", "name": "golden"}}}}),
            )
        };
        Stored {
            classes: Ok(vec![class("ci", "thin", "sequoia"), class("other", "fat", "sonoma")]),
            identities: Ok(vec![of(
                "IdentityPool",
                "ids",
                json!({"spec": {"model": "iMacPro1,1", "minAvailable": 1,
                "maxSize": 2, "bootDisk": {"storageClassName": "boot"}}}),
            )]),
            pools: Ok(vec![
                pool("warm", "ci", 2),
                pool("cold", "ci", 0),
                pool("elsewhere", "other", 2),
            ]),
            retained: Ok(vec![claim("kept", "thin"), claim("boots", "boot"), claim("far", "fat")]),
            images: Ok(vec![
                image("sequoia", "thin"),
                image("ventura", "thin"),
                image("monterey", "fat"),
            ]),
        }
    }

    #[test]
    fn what_goes_first_is_told_in_the_documented_order_of_the_storage_that_is_short_alone() {
        assert_eq!(
            stored().goes_first("ci"),
            "Nothing that runs is evicted. What you can let go first on boot, thin:\n  1. warm machines nobody has \
             claimed (kubectl scale macpool/NAME --replicas=…): team-a/warm (2)\n  2. disks kept of machines that are \
             gone (kubectl delete pvc): team-a/kept, team-a/boots\n  3. images that no class names (kubectl delete \
             mimg): ventura"
        );
        let page = include_str!("../../../docs/storage.md").replace('\n', " ");
        let order = [
            "warm machines that nobody has claimed",
            "disks retained of machines that are gone",
            "images that no class names",
        ];
        let places: Vec<_> = order.iter().map(|&words| page.find(words)).collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "docs/storage.md: {places:?}"
        );
    }

    #[test]
    fn what_was_not_seen_is_said_and_a_class_that_was_not_seen_hides_nothing() {
        let mut stored = stored();
        stored.retained = Err("persistentvolumeclaims is forbidden".to_owned());
        let told = stored.goes_first("ci");
        assert!(
            told.contains(
                "2. disks kept of machines that are gone (kubectl delete pvc): not seen (persistentvolumeclaims is"
            ),
            "{told}"
        );
        stored.classes = Err("macosmachineclasses is forbidden".to_owned());
        let told = stored.goes_first("ci");
        assert!(
            told.contains("of every storage class: that of its class was not seen"),
            "{told}"
        );
        assert!(told.contains("team-a/warm (2), team-a/elsewhere (2)"), "{told}");
        assert!(
            told.contains("3. images that no class names (kubectl delete mimg): not seen ("),
            "{told}"
        );
    }
}
