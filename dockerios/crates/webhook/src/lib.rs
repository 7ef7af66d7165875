//! The admission webhook: TLS in, an AdmissionReview read, facts fetched, `dockerios_core::admit` asked, an answer out.
//!
//! Invariants: it is asked about creations and changed specs of our own kinds only, so that nothing else stops with it
//! and deletions never wait for it ([`lint`]); a fact that cannot be read refuses for now (503, try again) and admits
//! nothing; it writes nothing but its own registration, so a dry run is a run like any other.

mod facts;
mod judge;
pub mod lint;
mod registration;
mod review;
mod server;

use std::net::SocketAddr;

use dockerios_core::admit::Verdict;
use kube::Client;

pub use registration::{CONFIGURATION, Reach, configuration, register};
pub use server::{Bound, bind};

/// How the webhook is served.
#[derive(Clone)]
pub struct Options {
    /// Where it listens, on every replica.
    pub listen: SocketAddr,
    /// How the API server reaches it.
    pub reach: Reach,
    /// Told of each answer, for metrics.
    pub observe: Option<Observe>,
}

/// Is told of each answer.
pub type Observe = std::sync::Arc<dyn Fn(&Answer<'_>) + Send + Sync>;

/// One answer.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The plural of the kind.
    pub resource: &'a str,
    /// Who asked.
    pub user: &'a str,
    /// Whether nothing would have been stored anyway.
    pub dry_run: bool,
    /// What was answered.
    pub verdict: &'a Verdict,
    /// From the request's last byte to the answer.
    pub took: std::time::Duration,
}

/// Why the webhook cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, or not ours.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// TLS.
    #[error("cannot serve TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The certificate.
    #[error(transparent)]
    Pki(#[from] dockerios_pki::Error),
    /// The API server did not take the registration.
    #[error("cannot register the webhook in ValidatingWebhookConfiguration {CONFIGURATION}: {why}. {1}", why = dockerios_pki::words(.0))]
    Register(Box<kube::Error>, &'static str),
    /// The address by which the API server is to call is none.
    #[error("{0:?} is no https URL with a host")]
    Url(String),
    /// The manifest in this program does not read.
    #[error("the webhook's own manifest does not read: {0}")]
    Manifest(String),
}

/// Serves until `shutdown`, then finishes what is under way.
///
/// # Errors
/// When it cannot begin; trouble with single connections is theirs.
pub async fn serve(
    options: Options,
    client: Client,
    authority: &dockerios_pki::Authority,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    bind(options, client, authority).await?.run(shutdown).await;
    Ok(())
}
