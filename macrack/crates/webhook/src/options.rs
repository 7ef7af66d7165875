//! How the webhook is run, and why it could not be.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use macrack_core::admit::Verdict;

/// How the webhook is run.
#[derive(Clone)]
pub struct WebhookOptions {
    /// Where it listens, e.g. `[::]:8443`; port 0 takes a free one.
    pub listen: SocketAddr,
    /// How the API server reaches it.
    pub reach: Reach,
    /// Which certificate it shows.
    pub certificate: Certificate,
    /// The operator's clock, by which a lease has ended.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Told of every answer (metrics, audit); it must not block.
    pub observer: Option<Observer>,
}

impl WebhookOptions {
    /// In the cluster: all addresses, port 8443, the Service, a certificate of its own.
    pub fn in_cluster() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], 8443)),
            reach: Reach::Service,
            certificate: Certificate::SelfMade,
            clock: Arc::new(Timestamp::now),
            observer: None,
        }
    }
}

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By the Service `macrack-webhook` in `macrack-system`.
    Service,
    /// By a URL without a path, e.g. `https://10.0.0.7:8443`: for an operator that runs outside the cluster.
    /// `{port}` in it stands for the port that was bound.
    Url(String),
}

/// Which certificate the webhook shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// One of its own CA, which a Secret in `macrack-system` keeps.
    SelfMade,
    /// `tls.crt` and `tls.key` of a folder, read again when they change. The caBundle is then set by whoever
    /// made them (cert-manager's injector, by the annotation that is put on the configuration).
    Dir(PathBuf),
}

/// Told of every answer.
pub type Observer = Arc<dyn Fn(&Answered<'_>) + Send + Sync>;

/// One answer, for metrics and audit.
#[derive(Debug)]
pub struct Answered<'a> {
    /// The kind, e.g. `MacOSInstance`.
    pub kind: &'a str,
    /// Its namespace, if it has one.
    pub namespace: Option<&'a str>,
    /// Its name.
    pub name: &'a str,
    /// Who asked.
    pub user: &'a str,
    /// Nothing was to be stored.
    pub dry_run: bool,
    /// The answer.
    pub verdict: &'a Verdict,
    /// How long it took.
    pub took: Duration,
}

/// Why the webhook does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken or not ours.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A certificate and its key cannot be used.
    #[error("cannot use {what}: {why}")]
    Certificate {
        /// Where they come from.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// The API server did not do what was asked.
    #[error("{what}: {why}")]
    Api {
        /// What was asked.
        what: &'static str,
        /// What it answered.
        #[source]
        why: kube::Error,
    },
    /// Other replicas changed the Secret each time it was to be written.
    #[error("Secret {0} changes under every write; is something else writing it?")]
    Contested(&'static str),
    /// The URL has no host.
    #[error("--webhook-url {0:?}: want https://HOST:PORT")]
    Url(String),
    /// A manifest that is built in does not read; a defect.
    #[error("a built-in manifest does not read: {0}")]
    Manifest(String),
}

pub(crate) fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |why| Error::Api { what, why }
}
