//! One operator decides at a time: a Lease in the platform namespace.
//!
//! Invariant: whoever may have lost the Lease stops before anybody else can have taken it. The holder measures by its
//! own monotonic clock from *before* the renewal was sent; the challenger from when it saw the record change. No clock
//! of one machine is compared with that of another.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

/// How long a Lease holds without renewal (client-go's usual numbers: 15, 10 and 2 seconds).
const HOLDS: Duration = Duration::from_secs(15);
/// The holder gives up this long after its last successful renewal.
const GIVES_UP: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(2);

/// Name of the Lease.
pub const LEASE: &str = "dockerios-operator";

/// The time for which this process may act as the leader. Asked before every write: a process that was stopped and goes
/// on must not carry out what it decided before somebody else was elected.
#[derive(Clone, Debug, Default)]
pub struct Term(Arc<Mutex<Option<Instant>>>);

impl Term {
    /// Whether the Lease is still held, by this machine's monotonic clock.
    pub fn holds(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Of a process that no other can compete with.
    pub fn endless() -> Self {
        Self(Arc::new(Mutex::new(
            Instant::now().checked_add(Duration::from_secs(u64::from(u32::MAX))),
        )))
    }

    /// Held since `renewed`, the moment before the renewal was sent.
    fn renewed(&self, renewed: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewed + GIVES_UP);
    }
}

/// A candidate.
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    term: Term,
}

impl Candidate {
    /// With an identity that no other process has.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            identity,
            term: Term::default(),
        }
    }

    /// For how long it may act.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Waits until the Lease is held.
    pub async fn elected(&self) {
        let mut seen: Option<(String, Instant)> = None;
        loop {
            let before = Instant::now();
            match self.leases.get_opt(LEASE).await {
                Ok(None) => {
                    if self.create().await {
                        return self.term.renewed(before);
                    }
                }
                Ok(Some(lease)) => {
                    let version = lease.metadata.resource_version.clone().unwrap_or_default();
                    let since = match &seen {
                        Some((known, since)) if *known == version => *since,
                        _ => {
                            let now = Instant::now();
                            seen = Some((version, now));
                            now
                        }
                    };
                    let holder = lease
                        .spec
                        .as_ref()
                        .and_then(|s| s.holder_identity.clone())
                        .unwrap_or_default();
                    let free = holder.is_empty() || holder == self.identity || since.elapsed() > HOLDS;
                    if free && self.take(lease).await {
                        return self.term.renewed(before);
                    }
                }
                Err(error) => tracing::warn!(%error, "the leader's Lease cannot be read"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Renews for as long as it goes; returns when the Lease may be lost.
    pub async fn hold(&self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < GIVES_UP {
            tokio::time::sleep(PAUSE).await;
            let before = Instant::now();
            let renewal = tokio::time::timeout(GIVES_UP.saturating_sub(renewed.elapsed()), self.renew()).await;
            match renewal {
                Ok(Ok(true)) => {
                    renewed = before;
                    self.term.renewed(before);
                }
                Ok(Ok(false)) => return tracing::error!("another operator holds the Lease"),
                Ok(Err(error)) => tracing::warn!(%error, "the Lease could not be renewed"),
                Err(_) => tracing::warn!("the renewal of the Lease got no answer"),
            }
        }
    }

    /// Gives the Lease back, so that the next one need not wait.
    pub async fn resign(&self) {
        if let Ok(Some(mut lease)) = self.leases.get_opt(LEASE).await
            && lease
                .spec
                .as_ref()
                .is_some_and(|s| s.holder_identity.as_deref() == Some(&self.identity))
        {
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some(String::new());
            }
            // whoever comes next waits out the Lease if this fails
            self.leases.replace(LEASE, &PostParams::default(), &lease).await.ok();
        }
    }

    async fn create(&self) -> bool {
        let metadata = ObjectMeta {
            name: Some(LEASE.into()),
            ..ObjectMeta::default()
        };
        let lease = Lease {
            metadata,
            spec: Some(self.spec(0)),
        };
        self.leases.create(&PostParams::default(), &lease).await.is_ok()
    }

    /// At the version that was seen: of two that try, one succeeds.
    async fn take(&self, mut lease: Lease) -> bool {
        let transitions = lease
            .spec
            .as_ref()
            .and_then(|s| s.lease_transitions)
            .unwrap_or_default();
        lease.spec = Some(self.spec(transitions.saturating_add(1)));
        self.leases.replace(LEASE, &PostParams::default(), &lease).await.is_ok()
    }

    async fn renew(&self) -> kube::Result<bool> {
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            return Ok(self.create().await);
        };
        let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|s| s.holder_identity.as_deref() == Some(&self.identity))
        else {
            return Ok(false);
        };
        spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
        // a conflict is an error like others: it is read again at the next attempt
        self.leases
            .replace(LEASE, &PostParams::default(), &lease)
            .await
            .map(|_| true)
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(HOLDS.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_ends_by_itself_when_it_is_not_renewed() {
        let term = Term::default();
        assert!(!term.holds(), "nobody was elected");
        term.renewed(Instant::now());
        assert!(term.clone().holds());
        let stopped_for = GIVES_UP + Duration::from_secs(1);
        if let Some(long_ago) = Instant::now().checked_sub(stopped_for) {
            term.renewed(long_ago);
            assert!(
                !term.holds(),
                "a process that was stopped meanwhile writes nothing more"
            );
        }
        assert!(Term::endless().holds());
    }
}
