//! Leader election on a coordination Lease: of several replicas one decides. Nothing rests on it but work not done
//! twice: every contested write is guarded by the API server itself.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use macrack_api::names::SYSTEM_NAMESPACE;
use tokio::time::Instant;

const NAME: &str = "macrack-operator";
/// A leader that has not renewed for so long may be replaced.
const TERM: Duration = Duration::from_secs(15);
/// A leader that could not renew for so long stops deciding.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Between renewals, and between looks at another's lease.
const RENEW: Duration = Duration::from_secs(2);

/// One candidate.
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    /// The other's record as last seen, and when it was seen to change by our own clock.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    /// A candidate of that identity, unique among the replicas.
    pub fn new(client: Client, identity: String) -> Self {
        Self { leases: Api::namespaced(client, SYSTEM_NAMESPACE), identity, seen: None }
    }

    /// Waits until this candidate leads.
    pub async fn lead(&mut self) {
        loop {
            match self.claim().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "leader election: the lease cannot be read or written"),
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    /// Renews until leadership is lost, then returns.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < GIVE_UP {
            tokio::time::sleep(RENEW).await;
            match tokio::time::timeout(RENEW, self.claim()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "leader election: not renewed"),
                Err(_) => tracing::warn!("leader election: not renewed in time"),
            }
        }
    }

    /// Gives the lease back, so that another need not wait out the term.
    pub async fn resign(&mut self) {
        if let Ok(Some(mut lease)) = self.leases.get_opt(NAME).await
            && let Some(spec) = lease.spec.as_mut().filter(|s| s.holder_identity.as_ref() == Some(&self.identity))
        {
            spec.holder_identity = None;
            if let Err(error) = self.leases.replace(NAME, &PostParams::default(), &lease).await {
                tracing::debug!(%error, "leader election: not resigned; the term runs out instead");
            }
        }
    }

    /// Takes or renews the lease if it is ours, free or run out. Every write is at the version that was read.
    async fn claim(&mut self) -> kube::Result<bool> {
        let now = MicroTime(Timestamp::now());
        let identity = self.identity.clone();
        let mine = |from: Option<&LeaseSpec>| LeaseSpec {
            holder_identity: Some(identity.clone()),
            lease_duration_seconds: Some(TERM.as_secs() as i32),
            renew_time: Some(now.clone()),
            acquire_time: from
                .filter(|s| s.holder_identity.as_ref() == Some(&identity))
                .and_then(|s| s.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            ..LeaseSpec::default()
        };
        let Some(mut lease) = self.leases.get_opt(NAME).await? else {
            let mut lease = Lease { spec: Some(mine(None)), ..Lease::default() };
            lease.metadata.name = Some(NAME.into());
            return won(self.leases.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let free = spec.holder_identity.as_ref().is_none_or(|h| h.is_empty() || *h == self.identity);
        if !free && !self.run_out(&spec) {
            return Ok(false);
        }
        lease.spec = Some(mine(Some(&spec)));
        won(self.leases.replace(NAME, &PostParams::default(), &lease).await)
    }

    /// Whether the other's record has not changed for a whole term by our own clock: theirs is not trusted.
    fn run_out(&mut self, spec: &LeaseSpec) -> bool {
        match &self.seen {
            Some((known, since)) if known == spec => since.elapsed() >= TERM,
            _ => {
                self.seen = Some((spec.clone(), Instant::now()));
                false
            }
        }
    }
}

fn won(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
