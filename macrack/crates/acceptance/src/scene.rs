//! A stage that most tests need: a class, some chassis with puppets, an image, a size.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{Api, Client};
use macrack_api::{
    MacNode, MacNodeLease, MacOSInstance, condition, instance::macos_instance::MacOSInstancePhase,
    rack::lease::MacNodeLeasePhase,
};
use macrack_testkit::expect;

use crate::{Puppet, Rack, objects};

/// How long something may take that takes a moment.
pub const SOON: Duration = Duration::from_secs(30);

/// A class of its own with chassis.
pub struct Scene {
    /// The rack.
    pub rack: &'static Rack,
    /// As the admin.
    pub admin: Client,
    /// Name of the class, the size and the image alike.
    pub name: String,
    /// Serials of the chassis.
    pub serials: Vec<String>,
    /// Their agents.
    pub puppets: Vec<Puppet>,
}

impl Scene {
    /// `name` is lower-case letters, unique in the test binary, at most 8 long; `minor` makes its image its own.
    pub async fn set(rack: &'static Rack, name: &str, chassis: usize, minor: u32) -> Result<Scene> {
        let admin = rack.plane.admin().await?;
        objects::make(&admin, &objects::node_class(name)).await?;
        objects::make(&admin, &objects::instance_class(name)).await?;
        let serials: Vec<String> = (0..chassis).map(|n| format!("{}{n:06}", name.to_uppercase())).collect();
        for serial in &serials {
            objects::make(&admin, &objects::mac_node(serial, name)).await?;
        }
        rack.image(name, minor).await?;
        let puppets = try_join_all(serials.iter().map(|s| Puppet::start(rack.plane, s))).await?;
        let scene = Scene { rack, admin, name: name.into(), serials, puppets };
        for serial in &scene.serials {
            let leasable =
                |n: &MacNode| condition::is_true(&n.status.clone().unwrap_or_default().conditions, "Leasable");
            expect::until_seen(&scene.nodes(), &serial.to_lowercase(), "Leasable", SOON, leasable).await;
        }
        Ok(scene)
    }

    /// The MacNodes.
    pub fn nodes(&self) -> Api<MacNode> {
        Api::all(self.admin.clone())
    }
    /// The leases of a namespace.
    pub fn leases(&self, namespace: &str) -> Api<MacNodeLease> {
        Api::namespaced(self.admin.clone(), namespace)
    }
    /// The instances of a namespace.
    pub fn instances(&self, namespace: &str) -> Api<MacOSInstance> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// Makes a lease and waits until it is bound.
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<MacNodeLease> {
        objects::make_in(&self.admin, namespace, &objects::lease(name, &self.name)).await?;
        Ok(self.until_lease(namespace, name, MacNodeLeasePhase::Bound).await)
    }

    /// Waits until a lease is in that phase.
    pub async fn until_lease(&self, namespace: &str, name: &str, phase: MacNodeLeasePhase) -> MacNodeLease {
        let is = |l: &MacNodeLease| l.status.as_ref().is_some_and(|s| s.phase == Some(phase));
        expect::until_seen(&self.leases(namespace), name, &format!("{phase:?}"), SOON, is).await
    }

    /// Makes an instance and waits until it is Ready.
    pub async fn instance(&self, namespace: &str, name: &str, lease: &str) -> Result<MacOSInstance> {
        self.create(namespace, name, lease).await?;
        Ok(self.until_instance(namespace, name, MacOSInstancePhase::Ready).await)
    }

    /// Makes an instance.
    pub async fn create(&self, namespace: &str, name: &str, lease: &str) -> kube::Result<MacOSInstance> {
        objects::make_in(&self.admin, namespace, &objects::instance(name, lease, &self.name, &self.name)).await
    }

    /// Waits until an instance is in that phase.
    pub async fn until_instance(&self, namespace: &str, name: &str, phase: MacOSInstancePhase) -> MacOSInstance {
        let is = |i: &MacOSInstance| i.status.as_ref().is_some_and(|s| s.phase == Some(phase));
        expect::until_seen(&self.instances(namespace), name, &format!("{phase:?}"), SOON, is).await
    }

    /// Waits until the second of that moment is over: timestamps of objects have no parts of seconds, and what is made
    /// in the second of a deletion counts as older.
    pub async fn after(&self, moment: Option<Time>) {
        let Some(moment) = moment else { return };
        let over = moment.0 + Duration::from_secs(1);
        let wait = over.duration_since(Timestamp::now());
        tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
    }

    /// Waits until nobody holds a chassis and it can be leased again.
    pub async fn until_free(&self, serial: &str) -> MacNode {
        let free = |n: &MacNode| {
            let status = n.status.clone().unwrap_or_default();
            status.lease_ref.is_none() && condition::is_true(&status.conditions, "Leasable")
        };
        expect::until_seen(&self.nodes(), &serial.to_lowercase(), "free", SOON, free).await
    }
}

/// The reason of an object's summary.
pub fn reason(conditions: &[condition::Condition]) -> String {
    condition::find(conditions, "Ready").map(|c| c.reason.clone()).unwrap_or_default()
}
