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

use kube::Client;

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
    /// Where the audit trail is written, if it is: a file on a volume that whoever leads next has as well.
    pub audit_log: Option<PathBuf>,
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
    let approving = serving::approve(options.client.clone(), world.clone());
    let sources = gather::Sources {
        audit,
        world,
        client: options.client,
        clock: options.clock,
        store: options.store,
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
