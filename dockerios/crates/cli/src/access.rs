//! The way into the cluster: the user's own kubeconfig, chosen as kubectl chooses it.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ClusterResourceScope, DynamicObject, NamespaceResourceScope};
use kube::discovery::ApiResource;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

/// kubectl's own flags for the same things.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct Access {
    /// The kubeconfig file; by default $KUBECONFIG, then ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in it; by default the current one
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The namespace; by default that of the context
    #[arg(short, long, global = true, value_name = "NAME")]
    namespace: Option<String>,
}

/// A client, and the namespace that is meant when none is named.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Access {
    /// Opens the way.
    ///
    /// # Errors
    /// When there is no kubeconfig, or it cannot be used; the message says which file and what to do.
    pub(crate) async fn open(&self) -> Result<Cluster> {
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display())),
            None => Kubeconfig::read().context("no kubeconfig: set KUBECONFIG, or give --kubeconfig FILE"),
        }?;
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = Config::from_custom_kubeconfig(read, &options)
            .await
            .context("the kubeconfig is not usable")?;
        // a person waits: the first answer counts
        config.default_retry = false;
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("the credentials of the kubeconfig are not usable")?;
        Ok(Cluster { client, namespace })
    }
}

impl Cluster {
    /// The API of a kind in the namespace.
    pub(crate) fn here<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The API of a cluster-wide kind.
    pub(crate) fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
    {
        Api::all(self.client.clone())
    }

    /// A kind that this program has no type of.
    pub(crate) fn untyped(&self, namespace: Option<&str>, kind: &ApiResource) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
            None => Api::all_with(self.client.clone(), kind),
        }
    }
}

/// The object, or a refusal that says what there is instead.
///
/// # Errors
/// When it is not there or could not be read.
pub(crate) async fn found<K>(api: &Api<K>, kind: &str, plural: &str, namespace: Option<&str>, name: &str) -> Result<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let there = api
        .get_opt(name)
        .await
        .map_err(|error| said(error, &format!("reading {kind} {name}")))?;
    match (there, namespace) {
        (Some(object), _) => Ok(object),
        (None, Some(namespace)) => bail!(
            "namespace {namespace} has no {kind} {name}; `kubectl get {plural} -n {namespace}` lists those that are \
             there, -n chooses another namespace"
        ),
        (None, None) => bail!("there is no {kind} {name}; `kubectl get {plural}` lists those that are there"),
    }
}

/// What the API server or the network said, for the person who asked.
pub(crate) fn said(error: kube::Error, doing: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("{doing}: {}", status.message),
        other => anyhow!("{doing}: {other}; is the cluster of your kubeconfig reachable?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_repeated_and_silence_is_explained() {
        let refusal = kube::Error::Api(Box::new(kube::core::Status::failure("macs is forbidden", "Forbidden")));
        assert_eq!(said(refusal, "reading it").to_string(), "reading it: macs is forbidden");
    }
}
