//! Reading the facts that a decision needs: from the caches, and from the API server where being wrong would free
//! something. One file per kind; what they give is a [`Pass`].

mod catalogue;
mod instance;
mod lease;
mod node;

use std::sync::Arc;

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use macrack_api::MacNode;
use macrack_core::{
    plan::{Plan, Ref},
    seen::Seen,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use crate::{audit::Audit, cache::Key, clock::Clock, image_store::ImageStore, world::World};

pub use catalogue::{config, image, node_class, size};
pub use instance::instance;
pub use lease::lease;
pub use node::node;

/// How many goldens are looked up at once: a quarter of the workers, so that registries which do not answer keep no
/// chassis and no lease waiting.
pub const LOOKUPS: usize = 4;

/// What gathering works with.
#[derive(Clone)]
pub struct Sources {
    /// The caches.
    pub world: Arc<World>,
    /// For reads that must be consistent.
    pub client: Client,
    /// Time.
    pub clock: Clock,
    /// Where goldens are looked up.
    pub store: Arc<dyn ImageStore>,
    /// Who may ask `store` now ([`LOOKUPS`]).
    pub lookups: Arc<Semaphore>,
    /// Where it is told who leases what, and what was wiped.
    pub audit: Option<Arc<Audit>>,
    /// Held by the one pass that may ask for a reboot, or approve one.
    pub reboots: Arc<Mutex<()>>,
}

/// Held from reading to writing.
pub type Turn = OwnedMutexGuard<()>;

/// One decided pass over one object.
#[derive(Debug)]
pub struct Pass {
    /// The object.
    pub of: Ref,
    /// Its uid.
    pub uid: String,
    /// What was decided.
    pub plan: Plan,
    /// The operator's part of its status as it stands.
    pub status: Value,
    /// What the invariants say of the plan.
    pub verdict: Result<(), String>,
    /// For a pass that nothing else may be decided beside, until it is written.
    pub turn: Option<Turn>,
}

impl Sources {
    /// Looks again, at the API server itself, for what the cache says is absent: being wrong about it frees something.
    async fn confirmed<K>(&self, seen: Seen<Arc<K>>, key: &Key) -> Seen<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        match seen {
            Seen::Present(object) => Seen::Present(object.as_ref().clone()),
            Seen::Unknown(why) => Seen::Unknown(why),
            Seen::Absent => {
                let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
                match api.get_opt(&key.name).await {
                    Ok(object) => object.into(),
                    Err(error) => Seen::Unknown(error.to_string()),
                }
            }
        }
    }
}

impl Sources {
    /// The first chassis of which `is` says so by its status, from the API server itself. Raw, for one that cannot be
    /// decoded must neither hide the others nor be taken for one that holds nothing.
    async fn node_where(&self, is: impl Fn(&Value) -> bool) -> Seen<MacNode> {
        let nodes: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::erase::<MacNode>(&()));
        let found = match nodes.list(&ListParams::default()).await {
            Ok(list) => list.items.into_iter().find(|node| is(&node.data["status"])),
            Err(error) => return Seen::Unknown(error.to_string()),
        };
        let Some(found) = found else { return Seen::Absent };
        let name = found.name_any();
        match found.try_parse::<MacNode>() {
            Ok(node) => Seen::Present(node),
            Err(error) => Seen::Unknown(format!("stored MacNode {name} cannot be read: {error}")),
        }
    }
}

/// The operator's part of a status: without the keys that others write, or that contested writes hold.
fn own_part<S: serde::Serialize>(status: Option<&S>, others: &[&str]) -> Value {
    let mut value =
        status.and_then(|s| serde_json::to_value(s).ok()).unwrap_or_else(|| Value::Object(Default::default()));
    if let Value::Object(map) = &mut value {
        map.retain(|key, _| !others.contains(&key.as_str()));
    }
    value
}
