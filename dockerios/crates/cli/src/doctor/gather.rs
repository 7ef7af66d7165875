//! Reads what is judged, each list for itself: one that is forbidden hides no other.

use std::collections::BTreeMap;
use std::fmt::Debug;

use dockerios_api::names;
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::judge::Facts;
use crate::access::{Cluster, words};

async fn all<K>(cluster: &Cluster) -> Result<Vec<K>, String>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = Api::<K>::all(cluster.client.clone()).list(&ListParams::default()).await;
    list.map(|list| list.items).map_err(|error| words(&error))
}

/// Everything but what needs a pod.
pub(super) async fn facts(cluster: &Cluster) -> Facts {
    let platform = Api::all(cluster.client.clone()).get_opt(names::PLATFORM).await;
    Facts {
        nodes: all(cluster).await,
        platform: platform.map_err(|error| words(&error)),
        kubevirts: all(cluster).await,
        classes: all(cluster).await,
        images: all(cluster).await,
        storage: all(cluster).await,
        msrs: BTreeMap::new(),
    }
}
