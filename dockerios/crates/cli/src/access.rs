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
        if !is_name(&namespace) {
            bail!("{namespace:?} is no name of a namespace");
        }
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
        kube::Error::Api(_) => anyhow!("{doing}: {}", words(&error)),
        other => anyhow!("{doing}: {other}; is the cluster of your kubeconfig reachable?"),
    }
}

/// The same in short, where what was done is said beside it.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => plain(&status.message),
        other => other.to_string(),
    }
}

/// `text` as a terminal may show it: what others wrote moves no cursor, begins no line and turns no text round.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
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

/// Ends when somebody ends this program: Ctrl-C, or a signal to terminate or hang up.
pub(crate) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let heard = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            // what cannot be heard ends the program by itself
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = heard(SignalKind::interrupt()) => {}
        () = heard(SignalKind::terminate()) => {}
        () = heard(SignalKind::hangup()) => {}
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

    #[test]
    fn what_others_wrote_does_nothing_to_a_terminal() {
        assert_eq!(
            plain("a\u{1b}[2J\r\nRun: b\u{202e}c\u{7}"),
            "a\u{fffd}[2J  Run: b\u{fffd}c\u{fffd}"
        );
        assert_eq!(plain("ü 200 GiB"), "ü 200 GiB");
    }

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
