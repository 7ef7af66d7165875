//! Reads what is judged, each list for itself: one that is forbidden hides no other.

use std::fmt::Debug;

use dockerios_api::{PlatformConfig, names};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::judge::Facts;
use crate::access::{Cluster, get};
use crate::answer::{is_kind_unserved, words};

/// All of a kind. Of a kind that the cluster does not serve there is none.
async fn all<K>(cluster: &Cluster) -> Result<Vec<K>, String>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match Api::<K>::all(cluster.client.clone()).list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_kind_unserved(&error) => Ok(Vec::new()),
        Err(error) => Err(words(&error)),
    }
}

/// Everything but what needs a pod.
pub(super) async fn facts(cluster: &Cluster) -> Facts {
    let platforms: Api<PlatformConfig> = cluster.all();
    let (platform, nodes, kubevirts, classes, images, storage) = tokio::join!(
        get(&platforms, names::PLATFORM),
        all(cluster),
        all(cluster),
        all(cluster),
        all(cluster),
        all(cluster),
    );
    let installed = !platform.as_ref().is_err_and(is_kind_unserved);
    Facts {
        installed,
        nodes,
        platform: platform.map_err(|error| words(&error)),
        kubevirts,
        classes,
        images,
        storage,
        msrs: None,
    }
}
