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
    /// For an attempt to be elected, and to give the Lease back.
    patience: Duration,
}

impl Candidate {
    /// With an identity that no other process has.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            identity,
            term: Term::default(),
            patience: GIVES_UP,
        }
    }

    /// For how long it may act.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Waits until the Lease is held. An attempt that gets no answer is given up: the next may reach another API server.
    pub async fn elected(&self) {
        let mut seen = None;
        loop {
            let before = Instant::now();
            match tokio::time::timeout(self.patience, self.attempt(&mut seen)).await {
                Ok(Ok(true)) => return self.term.renewed(before),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the leader's Lease cannot be read or taken"),
                Err(_) => tracing::warn!("the leader's Lease cannot be read or taken: no answer"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One attempt to take the Lease: whether it is ours now. `seen`: the version that was seen last, and since when.
    async fn attempt(&self, seen: &mut Option<(String, Instant)>) -> kube::Result<bool> {
        let Some(lease) = self.leases.get_opt(LEASE).await? else {
            return self.create().await;
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &*seen {
            Some((known, since)) if *known == version => *since,
            _ => seen.insert((version, Instant::now())).1,
        };
        let spec = lease.spec.as_ref();
        let holder = spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default();
        if holder.is_empty() || holder == self.identity || since.elapsed() > HOLDS {
            return self.take(lease).await;
        }
        Ok(false)
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
        // whoever comes next waits out the Lease if this fails
        tokio::time::timeout(self.patience, self.give_back()).await.ok();
    }

    async fn give_back(&self) {
        if let Ok(Some(mut lease)) = self.leases.get_opt(LEASE).await
            && let Some(spec) = &mut lease.spec
            && spec.holder_identity.as_deref() == Some(&self.identity)
        {
            spec.holder_identity = Some(String::new());
            self.leases.replace(LEASE, &PostParams::default(), &lease).await.ok();
        }
    }

    async fn create(&self) -> kube::Result<bool> {
        let metadata = ObjectMeta {
            name: Some(LEASE.into()),
            ..ObjectMeta::default()
        };
        let lease = Lease {
            metadata,
            spec: Some(self.spec(0)),
        };
        won(self.leases.create(&PostParams::default(), &lease).await)
    }

    /// At the version that was seen: of two that try, one succeeds.
    async fn take(&self, mut lease: Lease) -> kube::Result<bool> {
        let transitions = lease
            .spec
            .as_ref()
            .and_then(|s| s.lease_transitions)
            .unwrap_or_default();
        lease.spec = Some(self.spec(transitions.saturating_add(1)));
        won(self.leases.replace(LEASE, &PostParams::default(), &lease).await)
    }

    async fn renew(&self) -> kube::Result<bool> {
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            return self.create().await;
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

/// Whether a write was the first of those that were tried at once.
fn won(written: kube::Result<Lease>) -> kube::Result<bool> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::peer::{Answer, answering};

    #[tokio::test]
    async fn a_candidate_whose_question_is_never_answered_asks_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let client = answering(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Never,
            // nobody holds it; and whoever takes it is told that it is taken
            _ => Answer::Json(json!({"metadata": {"name": LEASE, "resourceVersion": "7"}, "spec": {}})),
        });
        let mut candidate = Candidate::new(client.await, "dockerios-system", "me".into());
        candidate.patience = Duration::from_millis(200);
        let elected = tokio::time::timeout(Duration::from_secs(60), candidate.elected()).await;
        elected.expect("it does not wait without end");
    }

    #[test]
    fn a_lease_that_may_not_be_written_is_an_error_and_one_that_another_took_is_not() {
        let error = |code: u16| {
            let status = kube::core::Status::failure("no", "Forbidden").with_code(code);
            Err(kube::Error::Api(Box::new(status)))
        };
        assert!(matches!(won(error(409)), Ok(false)));
        assert!(matches!(won(error(403)), Err(kube::Error::Api(status)) if status.code == 403));
        assert!(matches!(won(Ok(Lease::default())), Ok(true)));
    }

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
