//! `why`: fetches what the sentence is made from.

use anyhow::{Result, anyhow, bail};
use k8s_openapi::jiff::Timestamp;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use macrack_api::{MacNode, MacNodeLease, MacOSImage, MacOSInstance, condition};
use serde::de::DeserializeOwned;

use crate::cluster::{self, Access, said};
use crate::sentence;
use crate::target::{Kind, Target};

/// Say in a sentence what an object waits for, since when, and the way out
#[derive(clap::Args, Debug)]
// of the two words that are taken clap would make "KIND/NAME...", several objects
#[command(override_usage = "kubectl macrack why [OPTIONS] KIND/NAME | KIND NAME")]
pub(crate) struct Why {
    /// mn/NAME (a Mac), mnl/NAME (a lease), mi/NAME (an instance), macimg/NAME (an image)
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    object: Vec<String>,
    /// The namespace of a lease or an instance; by default that of your context
    #[arg(short, long)]
    namespace: Option<String>,
}

impl Why {
    pub(crate) async fn run(&self, access: &Access) -> Result<()> {
        let target = Target::read(&self.object).map_err(|wrong| anyhow!(wrong))?;
        let config = access.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = cluster::client(config)?;
        let now = Timestamp::now;
        let name = &target.name;
        let words = match target.kind {
            Kind::Node => sentence::mac_node(&of_cluster::<MacNode>(client, name).await?, now()),
            Kind::Image => sentence::image(&of_cluster::<MacOSImage>(client, name).await?, now()),
            Kind::Lease => sentence::lease(&of_namespace::<MacNodeLease>(client, &namespace, name).await?, now()),
            Kind::Instance => {
                let instance = of_namespace::<MacOSInstance>(client.clone(), &namespace, name).await?;
                let leases: Api<MacNodeLease> = Api::namespaced(client, &namespace);
                // the lease only adds words: without the right to read it the instance still has its own
                let lease = leases.get_opt(&instance.spec.lease_name).await.ok().flatten();
                sentence::instance(&instance, lease.as_ref(), now())
            }
        };
        // an agent's own words are in it
        println!("{}", condition::plain(&words));
        Ok(())
    }
}

async fn of_cluster<K>(client: Client, name: &str) -> Result<K>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (kind, plural) = (K::kind(&()), K::plural(&()));
    let found = Api::<K>::all(client).get_opt(name).await.map_err(|e| said(e, &format!("reading {kind} {name}")))?;
    match found {
        Some(object) => Ok(object),
        None => bail!("there is no {kind} {name}; `kubectl get {plural}` lists those that are there"),
    }
}

async fn of_namespace<K>(client: Client, namespace: &str, name: &str) -> Result<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (kind, plural) = (K::kind(&()), K::plural(&()));
    let api = Api::<K>::namespaced(client, namespace);
    let found = api.get_opt(name).await.map_err(|e| said(e, &format!("reading {kind} {namespace}/{name}")))?;
    match found {
        Some(object) => Ok(object),
        None => bail!(
            "namespace {namespace} has no {kind} {name}; `kubectl get {plural} -n {namespace}` lists those that are there, -n chooses another namespace"
        ),
    }
}
