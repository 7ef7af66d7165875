//! The operator: gathers facts, lets `macrack-core` decide, carries out the plans.
//!
//! ```text
//! watches ─▶ world (caches) ─▶ route ─▶ queue ─▶ run: gather ─▶ core::decide ─▶ check ─▶ act ─▶ report
//! ```
//!
//! Nothing is decided here: what to do is in `core`, this crate reads and writes. It may be killed between any two
//! writes; the next pass starts from facts again.

pub mod act;
pub mod admission;
pub mod audit;
pub mod cache;
pub mod clock;
pub mod feed;
mod foreign;
pub mod gather;
pub mod image_store;
pub mod leader;
pub mod queue;
pub mod route;
pub mod run;
pub mod serving;
pub mod world;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::Notify;

use clock::Clock;
use image_store::ImageStore;

/// What deciding needs.
pub struct Options {
    /// The API server, as the operator's ServiceAccount.
    pub client: Client,
    /// Time.
    pub clock: Clock,
    /// Where goldens are looked up.
    pub store: Arc<dyn ImageStore>,
    /// Unique among the replicas, e.g. the pod's name. `None` decides without an election, for a sole process.
    pub identity: Option<String>,
    /// Host by which `client` reaches the API server ([`serving::api_server_host`]): no Mac gets a certificate for it.
    pub api_server: Option<String>,
    /// Where the audit trail is written, if it is: a file on a volume that whoever leads next has as well.
    pub audit_log: Option<PathBuf>,
}

/// How long one half of the operator waits for the other, once both are to end: longer than the webhook's own grace.
const LAST: Duration = Duration::from_secs(10);

/// Runs both until one of them ends, and lets the other finish what is under way: the webhook its requests, who decides
/// its leadership. `over` tells the webhook that nothing is decided any more; a webhook that fails ends both.
///
/// # Errors
/// Those of `serving`.
pub async fn both<E>(
    serving: impl Future<Output = Result<(), E>>,
    deciding: impl Future<Output = ()>,
    over: &Notify,
) -> Result<(), E> {
    tokio::pin!(serving, deciding);
    tokio::select! {
        served = &mut serving => {
            if served.is_ok() && tokio::time::timeout(LAST, deciding).await.is_err() {
                tracing::warn!("deciding did not end in time; another replica leads once the term is over");
            }
            served
        }
        () = &mut deciding => {
            over.notify_one();
            tokio::time::timeout(LAST, serving).await.unwrap_or(Ok(()))
        }
    }
}

/// Leads and decides until leadership is lost or `stop` resolves. Then the process should end: whoever leads next
/// starts from facts.
pub async fn decide(options: Options, stop: impl Future<Output = ()>) {
    let world = Arc::new(world::World::new());
    let queue = Arc::new(queue::Queue::default());
    let mut candidate = options.identity.map(|id| leader::Candidate::new(options.client.clone(), id));
    tokio::pin!(stop);
    let feed = feed::feed(options.client.clone(), world.clone(), queue.clone());
    tokio::pin!(feed);
    if let Some(candidate) = &mut candidate {
        // the caches fill while another leads, so that taking over is quick
        tokio::select! {
            () = candidate.lead() => tracing::info!("leading"),
            () = &mut feed => return,
            () = &mut stop => return,
        }
    }
    // not before it leads: the trail has one writer
    let audit = match options.audit_log.map(|path| audit::Audit::open(&path)).transpose() {
        Ok(audit) => audit.map(Arc::new),
        Err(error) => return tracing::error!(%error, "nothing is decided without its audit log, ending"),
    };
    let approving = serving::approve(options.client.clone(), world.clone(), options.api_server);
    let sources = gather::Sources {
        audit,
        world,
        client: options.client,
        clock: options.clock,
        store: options.store,
        lookups: Arc::new(tokio::sync::Semaphore::new(gather::LOOKUPS)),
        reboots: Arc::default(),
    };
    let working = run::work(sources, queue);
    let kept = async {
        match &mut candidate {
            Some(candidate) => candidate.keep().await,
            None => std::future::pending().await,
        }
    };
    let stopped = tokio::select! {
        () = working => false,
        () = approving => false,
        () = &mut feed => false,
        () = kept => { tracing::error!("leadership lost, ending"); false }
        () = &mut stop => true,
    };
    if let (true, Some(candidate)) = (stopped, &mut candidate) {
        candidate.resign().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_under_way_are_answered_when_nothing_is_decided_any_more() {
        let (over, began) = (Notify::new(), Instant::now());
        let serving = async {
            over.notified().await;
            sleep(Duration::from_secs(5)).await; // its grace
            Ok::<_, &str>(())
        };
        assert_eq!(both(serving, sleep(Duration::from_secs(1)), &over).await, Ok(()));
        assert_eq!(began.elapsed(), Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_is_given_back_also_when_the_webhook_has_nothing_under_way() {
        let (over, began) = (Notify::new(), Instant::now());
        let resigns = sleep(Duration::from_secs(2));
        assert_eq!(both(async { Ok::<_, &str>(()) }, resigns, &over).await, Ok(()));
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        // and who never ends is not waited for
        assert_eq!(both(async { Ok::<_, &str>(()) }, std::future::pending(), &over).await, Ok(()));
        assert_eq!(began.elapsed(), Duration::from_secs(2) + LAST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_that_cannot_serve_ends_the_operator_at_once() {
        let began = Instant::now();
        let failed = both(async { Err("address in use") }, std::future::pending(), &Notify::new()).await;
        assert_eq!((failed, began.elapsed()), (Err("address in use"), Duration::ZERO));
    }
}
