//! What the rules ask for, read when they ask.
//!
//! Reads are consistent (no `resourceVersion`: the API server answers from its cache only once that has caught up),
//! so that a person who creates two instances and then a third is refused the third whoever serves them. What can
//! run side by side does; what cannot change, or only in a way that costs nothing, may come from a [`Catalogue`].
//! A read that fails or takes too long is [`Seen::Unknown`], and the rule that asked refuses.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope, jiff::Timestamp};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use macrack_api::{
    InstanceClass, MacNode, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance, image::macos_image::MacOSImagePhase,
    names,
};
use macrack_core::{
    admit::{class, image, instance, lease},
    seen::Seen,
};
use serde::de::DeserializeOwned;

/// Where facts come from.
pub trait FactSource: Send + Sync + 'static {
    /// For the creation of a MacOSInstance.
    fn instance(&self, instance: MacOSInstance, now: Timestamp) -> impl Future<Output = instance::Facts> + Send;
    /// For the creation or change of a MacNodeLease.
    fn lease(&self, lease: MacNodeLease, old: Option<MacNodeLease>) -> impl Future<Output = lease::Facts> + Send;
    /// For the creation or change of a MacOSImage.
    fn image(&self, image: MacOSImage, old: Option<MacOSImage>) -> impl Future<Output = image::Facts> + Send;
    /// For the creation of an InstanceClass.
    fn instance_class(&self, class: InstanceClass) -> impl Future<Output = class::InstanceFacts> + Send;
    /// For the creation or change of a MacNodeClass.
    fn node_class(&self, class: MacNodeClass) -> impl Future<Output = class::NodeFacts> + Send;
}

/// Looks one up by name in a cache; None sends the question to the API server.
pub type Lookup<K> = Arc<dyn Fn(&str) -> Option<Arc<K>> + Send + Sync>;

/// Caches of what an admin writes, if the operator has them anyway: they save the API server three reads of five.
///
/// A stale answer is harmless: an InstanceClass is immutable, an image counts only when it is Ready (and is
/// immutable from then on), and of a MacNodeClass the operator asks again before it gives a slot.
#[derive(Clone, Default)]
pub struct Catalogue {
    /// By name.
    pub instance_class: Option<Lookup<InstanceClass>>,
    /// By name.
    pub node_class: Option<Lookup<MacNodeClass>>,
    /// By name.
    pub image: Option<Lookup<MacOSImage>>,
}

/// Facts from the API server.
#[derive(Clone)]
pub struct ApiFacts {
    client: Client,
    catalogue: Catalogue,
}

/// How long one read may take: two in a row still leave the API server time to hear our refusal before its own
/// five seconds are over.
const READ: Duration = Duration::from_millis(1800);

/// Before a busy API server is asked again; doubled each time.
const PAUSE: Duration = Duration::from_millis(40);

impl ApiFacts {
    /// By this client, which needs to read MacRack's kinds.
    pub fn new(client: Client) -> Self {
        Self { client, catalogue: Catalogue::default() }
    }

    /// With caches at hand.
    #[must_use]
    pub fn with_catalogue(mut self, catalogue: Catalogue) -> Self {
        self.catalogue = catalogue;
        self
    }

    fn cluster<K: Resource<DynamicType = (), Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn within<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn instance_class(&self, name: &str) -> Seen<InstanceClass> {
        match self.catalogue.instance_class.as_ref().and_then(|lookup| lookup(name)) {
            Some(class) => Seen::Present((*class).clone()),
            None => get(&self.cluster(), name).await,
        }
    }

    async fn node_class(&self, name: &str) -> Seen<MacNodeClass> {
        match self.catalogue.node_class.as_ref().and_then(|lookup| lookup(name)) {
            Some(class) => Seen::Present((*class).clone()),
            None => get(&self.cluster(), name).await,
        }
    }

    /// What the agent of the leased Mac says of its macOS.
    async fn host_version(&self, lease: &Seen<MacNodeLease>) -> Seen<String> {
        let serial = lease.present().and_then(|lease| lease.status.as_ref()?.serial.as_ref());
        let Some(serial) = serial else { return Seen::Absent };
        match get::<MacNode>(&self.cluster(), &names::mac_node(serial)).await {
            Seen::Present(node) => node.status.and_then(|status| status.agent?.host_version).into(),
            Seen::Absent => Seen::Absent,
            Seen::Unknown(why) => Seen::Unknown(why),
        }
    }

    async fn image_of(&self, name: &str) -> Seen<MacOSImage> {
        let cached = self.catalogue.image.as_ref().and_then(|lookup| lookup(name));
        let ready = |image: &MacOSImage| {
            image.status.as_ref().and_then(|s| s.phase) == Some(MacOSImagePhase::Ready)
                && image.metadata.deletion_timestamp.is_none()
        };
        match cached.filter(|image| ready(image)) {
            Some(image) => Seen::Present((*image).clone()),
            None => get(&self.cluster(), name).await,
        }
    }
}

impl FactSource for ApiFacts {
    async fn instance(&self, instance: MacOSInstance, now: Timestamp) -> instance::Facts {
        let namespace = instance.namespace().unwrap_or_default();
        let spec = &instance.spec;
        let leases: Api<MacNodeLease> = self.within(&namespace);
        let instances: Api<MacOSInstance> = self.within(&namespace);
        let others = async {
            if !is_name(&spec.lease_name) {
                return Seen::Present(Vec::new());
            }
            list(&instances, ListParams::default().fields(&format!("spec.leaseName={}", spec.lease_name))).await
        };
        let (lease, others, class, image) = tokio::join!(
            get(&leases, &spec.lease_name),
            others,
            self.instance_class(&spec.instance_class_name),
            self.image_of(&spec.image_name),
        );
        let node_class = async {
            match &lease {
                Seen::Present(lease) => self.node_class(&lease.spec.node_class_name).await,
                Seen::Absent => Seen::Absent,
                Seen::Unknown(why) => Seen::Unknown(why.clone()),
            }
        };
        let mut classes = BTreeMap::from([(spec.instance_class_name.clone(), class)]);
        let mut wanted: Vec<String> =
            others.present().into_iter().flatten().map(|i| i.spec.instance_class_name.clone()).collect();
        wanted.sort();
        wanted.dedup();
        wanted.retain(|name| !classes.contains_key(name));
        let of_others = join_all(wanted.iter().map(|name| self.instance_class(name)));
        let (node_class, of_others, host_version) = tokio::join!(node_class, of_others, self.host_version(&lease));
        classes.extend(wanted.iter().cloned().zip(of_others));
        instance::Facts { instance, now, lease, others, classes, node_class, image, host_version }
    }

    async fn lease(&self, lease: MacNodeLease, old: Option<MacNodeLease>) -> lease::Facts {
        let spec = &lease.spec;
        let chassis = async {
            match &spec.serial {
                Some(serial) => get::<MacNode>(&self.cluster(), &names::mac_node(serial)).await,
                None => Seen::Absent,
            }
        };
        let images = join_all(
            spec.prefetch_image_names
                .iter()
                .map(|name| async move { (name.clone(), self.image_of(name).await.map(|_| ())) }),
        );
        let (class, chassis, images) = tokio::join!(self.node_class(&spec.node_class_name), chassis, images);
        lease::Facts { lease, old, class, chassis, images }
    }

    async fn image(&self, image: MacOSImage, old: Option<MacOSImage>) -> image::Facts {
        let images: Api<MacOSImage> = self.cluster();
        let leases: Api<MacNodeLease> = Api::all(self.client.clone());
        let all = ListParams::default();
        let (others, leases) = tokio::join!(list(&images, all.clone()), in_time(|| leases.list_metadata(&all)));
        let tenants = match leases {
            Ok(leases) => Seen::Present(leases.items.iter().filter_map(ResourceExt::namespace).collect()),
            Err(why) => Seen::Unknown(why),
        };
        image::Facts { image, old, others, tenants }
    }

    async fn instance_class(&self, class: InstanceClass) -> class::InstanceFacts {
        let node_classes = list(&self.cluster(), ListParams::default()).await;
        class::InstanceFacts { class, node_classes }
    }

    async fn node_class(&self, class: MacNodeClass) -> class::NodeFacts {
        let instance_classes = list(&self.cluster(), ListParams::default()).await;
        class::NodeFacts { class, instance_classes }
    }
}

async fn get<K>(api: &Api<K>, name: &str) -> Seen<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    if !is_name(name) {
        return Seen::Absent;
    }
    match in_time(|| api.get_opt(name)).await {
        Ok(found) => found.into(),
        Err(why) => Seen::Unknown(why),
    }
}

/// Whether an object can have this name: a DNS subdomain. Names come from tenants and go into the path of a request
/// that has the operator's rights, where `../..` would lead to another namespace. (The schema refuses it too.)
fn is_name(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        label.bytes().all(|b| alphanumeric(b) || b == b'-')
            && label.bytes().next().is_some_and(alphanumeric)
            && label.bytes().next_back().is_some_and(alphanumeric)
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Without a limit: the API server then answers from its cache, once that has caught up.
async fn list<K>(api: &Api<K>, params: ListParams) -> Seen<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match in_time(|| api.list(&params)).await {
        Ok(list) => Seen::Present(list.items),
        Err(why) => Seen::Unknown(why),
    }
}

/// The answer, or why there is none, in words that a tenant may read: no addresses, no names of other objects.
///
/// An API server that is busy for a moment (429 while it fills its cache of a kind, 503) is asked again.
async fn in_time<T, F>(read: impl Fn() -> F) -> Result<T, String>
where
    F: Future<Output = kube::Result<T>>,
{
    let answered = async {
        let mut pause = PAUSE;
        loop {
            match read().await {
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
    };
    match tokio::time::timeout(READ, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(e)) => {
            tracing::warn!(error = %e, "a fact for admission could not be read");
            Err(match &e {
                kube::Error::Api(status) => {
                    format!("the API server answered {} {}", status.code, status.reason)
                }
                kube::Error::SerdeError(_) => "what is stored does not read".to_owned(),
                _ => "the API server did not answer".to_owned(),
            })
        }
        Err(_) => Err(format!("no answer within {:.1} s", READ.as_secs_f32())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::core::Status;

    use super::*;

    fn busy(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("storage is (re)initializing", reason).with_code(code).boxed())
    }

    #[tokio::test]
    async fn a_name_that_no_object_can_have_is_not_asked_for() {
        for name in ["ios-ci", "a", "a.b-c.d1"] {
            assert!(is_name(name), "{name}");
        }
        let unasked = tower::service_fn(|request: axum::http::Request<kube::client::Body>| async move {
            Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other(request.uri().to_string()))
        });
        let facts = ApiFacts::new(Client::new(unasked, "default"));
        for name in
            ["../../team-b/macnodeleases/ios-ci", "a/b", "..", ".", "", "a,metadata.name=b", "A", "-a", "a%2fb", "a?b"]
        {
            let instance = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "vm", "namespace": "team-a"},
                "spec": {"leaseName": name, "instanceClassName": name, "imageName": name},
            }));
            let facts = FactSource::instance(&facts, instance.unwrap(), Timestamp::UNIX_EPOCH).await;
            assert!(facts.lease.is_absent() && facts.image.is_absent(), "{name}: {:?} {:?}", facts.lease, facts.image);
            assert!(facts.classes[name].is_absent() && facts.others == Seen::Present(vec![]), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_busy_for_a_moment_is_asked_again() {
        let asked = AtomicUsize::new(0);
        let read = || {
            let n = asked.fetch_add(1, Ordering::Relaxed);
            async move { if n < 3 { Err(busy(429, "TooManyRequests")) } else { Ok(n) } }
        };
        assert_eq!(in_time(read).await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stays_busy_or_refuses_is_not_known_in_time() {
        let began = tokio::time::Instant::now();
        let read = || async { Err::<(), _>(busy(503, "ServiceUnavailable")) };
        assert_eq!(in_time(read).await, Err("no answer within 1.8 s".to_owned()));
        assert!(began.elapsed() <= READ + PAUSE);
        let refused = || async { Err::<(), _>(busy(403, "Forbidden")) };
        assert_eq!(in_time(refused).await, Err("the API server answered 403 Forbidden".to_owned()));
    }
}
