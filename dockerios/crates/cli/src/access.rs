//! The way into the cluster: the user's own kubeconfig, chosen as kubectl chooses it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::{ClusterResourceScope, DynamicObject, NamespaceResourceScope};
use kube::discovery::ApiResource;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use crate::answer::{CannotBegin, chain, is_unserved, said, words};

/// kubectl's own flags for the same things.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Options as kubectl's")]
pub(crate) struct Access {
    /// The kubeconfig file; by default $KUBECONFIG, then ~/.kube/config, then the account of the pod that this runs in
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in it; by default the current one
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The cluster in it; by default that of the context
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// The user in it; by default that of the context
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// The namespace; by default that of the context
    #[arg(short, long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// Act as this user; you need the right to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    as_user: Option<String>,
    /// Act as a member of this group; may be given more than once
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "as_user")]
    as_groups: Vec<String>,
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
        let mut config = self.config().await.map_err(CannotBegin)?;
        // a person waits: the first answer counts
        config.default_retry = false;
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        if !is_name(&namespace) {
            return Err(CannotBegin(format!("{namespace:?} is no name of a namespace")).into());
        }
        let client = Client::try_from(config).map_err(|error| {
            CannotBegin(format!(
                "the credentials of the kubeconfig are not usable: {}",
                words(&error)
            ))
        })?;
        Ok(Cluster { client, namespace })
    }

    async fn config(&self) -> Result<Config, String> {
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let mut read = match read {
            Ok(read) => read,
            Err(error) => {
                return match self.none_meant(&error) {
                    Some(path) => self.of_the_pod(&path),
                    None => Err(unusable(&error)),
                };
            }
        };
        if self.as_user.is_some() {
            for named in &mut read.auth_infos {
                let user = named.auth_info.get_or_insert_default();
                self.impersonate(&mut user.impersonate, &mut user.impersonate_groups);
            }
        }
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let config = Config::from_custom_kubeconfig(read, &options).await;
        config.map_err(|error| unusable(&error))
    }

    /// The default file, when it is not there and nobody named another.
    fn none_meant(&self, error: &KubeconfigError) -> Option<String> {
        let named = self.kubeconfig.is_some() || std::env::var_os("KUBECONFIG").is_some_and(|set| !set.is_empty());
        match error {
            _ if named => None,
            KubeconfigError::FindPath => Some("~/.kube/config".to_owned()),
            KubeconfigError::ReadConfig(error, path) if error.kind() == std::io::ErrorKind::NotFound => {
                Some(path.display().to_string())
            }
            _ => None,
        }
    }

    /// As kubectl does in a pod: its own account. That one has no contexts to choose from.
    fn of_the_pod(&self, path: &str) -> Result<Config, String> {
        let chosen = [&self.context, &self.cluster, &self.user]
            .into_iter()
            .any(Option::is_some);
        let pod = Config::incluster().ok().filter(|_| !chosen);
        let Some(mut config) = pod else {
            return Err(format!(
                "no kubeconfig: KUBECONFIG is not set, and there is no {path}; set KUBECONFIG, or give --kubeconfig FILE"
            ));
        };
        let user = &mut config.auth_info;
        self.impersonate(&mut user.impersonate, &mut user.impersonate_groups);
        Ok(config)
    }

    /// What the file itself asks for is replaced as a whole, as kubectl does.
    fn impersonate(&self, user: &mut Option<String>, groups: &mut Option<Vec<String>>) {
        if let Some(named) = &self.as_user {
            *user = Some(named.clone());
            *groups = (!self.as_groups.is_empty()).then(|| self.as_groups.clone());
        }
    }
}

/// What is wrong with a kubeconfig, and the way out.
fn unusable(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, path) => {
            format!(
                "kubeconfig {}: {error}; give --kubeconfig FILE, or set KUBECONFIG",
                path.display()
            )
        }
        KubeconfigError::CurrentContextNotSet => {
            "the kubeconfig has no current context; kubectl config use-context NAME, or give --context NAME".to_owned()
        }
        KubeconfigError::LoadContext(name) => {
            format!("the kubeconfig has no context {name}; kubectl config get-contexts lists them")
        }
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("the kubeconfig has no cluster {name}; kubectl config get-clusters lists them")
        }
        other => format!("the kubeconfig is not usable: {}", chain(other)),
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

/// The object; `None` only when its kind is served and it is not there.
///
/// # Errors
/// When it could not be read.
pub(crate) async fn get<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.get(name).await {
        Ok(object) => Ok(Some(object)),
        // kube's get_opt takes a kind that is not served for an object that is not there
        Err(kube::Error::Api(status)) if status.code == 404 && !is_unserved(&status) => Ok(None),
        Err(error) => Err(error),
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
    let there = get(api, name)
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

/// Whether Kubernetes could have an object of that name: anything else would mean something in a URL or a selector.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| plain(*byte));
    let bytes = text.as_bytes();
    bytes.len() <= 253
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| plain(*byte) || b"-.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_a_url_is_no_name() {
        for name in ["m", "b-6", "c02.example", "0"] {
            assert!(is_name(name), "{name}");
        }
        for text in [
            "",
            "m?watch=true",
            "m#x",
            "../../x",
            "a=b,c",
            "M",
            "é",
            "-m",
            "m.",
            &"m".repeat(254),
        ] {
            assert!(!is_name(text), "{text}");
        }
    }
}
