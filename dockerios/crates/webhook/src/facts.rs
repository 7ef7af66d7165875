//! What the rules ask for, read when they ask, from the API server itself: a person who makes two things one after the
//! other is judged by both, whichever replica answers. Invariant: absent is not unreadable; a read that fails, is
//! refused, or takes too long is `Unknown`.

use std::{fmt::Debug, time::Duration};

use dockerios_api::{IdentityPool, MacOSImage, MacOSMachineClass, MachineIdentity, PlatformConfig, names::PLATFORM};
use dockerios_core::seen::Seen;
use k8s_openapi::api::{core::v1::Namespace, storage::v1::StorageClass};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    core::{ApiResource, DynamicObject},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// How long one read may take. All reads of a review run side by side, and the API server waits five seconds for us.
const PATIENCE: Duration = Duration::from_millis(3500);

/// Before a read is tried again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Reads facts.
#[derive(Clone)]
pub(crate) struct Eyes {
    client: Client,
}

impl Eyes {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn platform(&self) -> Seen<PlatformConfig> {
        self.one(Some(PLATFORM)).await
    }

    pub(crate) async fn class(&self, name: Option<&str>) -> Seen<MacOSMachineClass> {
        self.one(name).await
    }

    pub(crate) async fn image(&self, name: &str) -> Seen<MacOSImage> {
        self.one(Some(name)).await
    }

    pub(crate) async fn pool(&self, name: Option<&str>) -> Seen<IdentityPool> {
        self.one(name).await
    }

    pub(crate) async fn storage(&self, name: &str) -> Seen<StorageClass> {
        self.one(Some(name)).await
    }

    pub(crate) async fn namespace(&self, name: Option<&str>) -> Seen<Namespace> {
        self.one(name).await
    }

    /// Classes, images and pools are looked through for advice: one that does not read is passed over.
    pub(crate) async fn classes(&self) -> Seen<Vec<MacOSMachineClass>> {
        self.all().await.map(|(read, _)| read)
    }

    pub(crate) async fn images(&self) -> Seen<Vec<MacOSImage>> {
        self.all().await.map(|(read, _)| read)
    }

    pub(crate) async fn pools(&self) -> Seen<Vec<IdentityPool>> {
        self.all().await.map(|(read, _)| read)
    }

    /// One identity that does not read could be the double that is looked for.
    pub(crate) async fn identities(&self) -> Seen<Vec<MachineIdentity>> {
        match self.all().await {
            Seen::Present((_, unread)) if !unread.is_empty() => Seen::Unknown(unread.join(", ")),
            seen => seen.map(|(read, _)| read),
        }
    }

    async fn one<K>(&self, name: Option<&str>) -> Seen<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        // names come from tenants and go into the path of a request
        let Some(name) = name.filter(|name| is_name(name)) else {
            return Seen::Absent;
        };
        let api: Api<K> = Api::all(self.client.clone());
        match in_time(|| api.get_opt(name)).await {
            Ok(Some(found)) => Seen::Present(found),
            Ok(None) => Seen::Absent,
            Err(why) => Seen::Unknown(why),
        }
    }

    /// All of a kind, and which of them do not read and why.
    async fn all<K>(&self) -> Seen<(Vec<K>, Vec<String>)>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        let params = ListParams::default();
        let list = match in_time(|| api.list(&params)).await {
            Ok(list) => list,
            Err(why) => return Seen::Unknown(why),
        };
        let (mut read, mut unread) = (Vec::new(), Vec::new());
        for object in list {
            let name = object.name_any();
            match object.try_parse() {
                Ok(one) => read.push(one),
                Err(why) => unread.push(format!("{} {name}: {why}", K::kind(&()).to_lowercase())),
            }
        }
        Seen::Present((read, unread))
    }
}

/// Reads, and reads again while the API server says that it cannot just now (a kind that was defined a moment ago, a
/// server that is busy or begins).
async fn in_time<T, R>(read: impl Fn() -> R) -> Result<T, String>
where
    R: Future<Output = kube::Result<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match tokio::time::timeout_at(deadline, read()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 429 | 500 | 503 | 504) => status.message.clone(),
            Ok(Err(kube::Error::Api(status))) => return Err(status.message.clone()),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no answer within {PATIENCE:?}")),
        };
        if Instant::now() + pause >= deadline {
            return Err(why);
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// Whether an object can have that name: a DNS subdomain.
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.starts_with(inner)
        && name.ends_with(inner)
        && name.chars().all(|c| inner(c) || matches!(c, '-' | '.'))
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_never_asked_for() {
        for name in ["build-8", "a", "a.b", "0"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "..",
            "../secrets/x",
            "a..b",
            "-a",
            "a-",
            "A",
            "a/b",
            "a?b",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
