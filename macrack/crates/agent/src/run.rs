//! The agent's life: lock, inventory, then everything else at once, until it is told to end.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use macrack_api::MacNode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bell::Bell;
use crate::bootstrap::Bootstrap;
use crate::chassis::Chassis;
use crate::gather::{Catalogue, Seen, follow};
use crate::host::Host;
use crate::identity::{Credential, Identity, Told, client};
use crate::images::{Cache, ImageStore, Puller, Wishes};
use crate::inventory;
use crate::kubelet;
use crate::node::{self, NodeFacts};
use crate::notes;
use crate::quota::Quota;
use crate::reboot::{Hostd, Rebooter};
use crate::report::agent::AgentReport;
use crate::shutdown;
use crate::state_dir::StateDir;
use crate::status::tell_mac_node;
use crate::vms::Surroundings;
use crate::writer::keep_written;

/// What an agent is started with.
pub struct Options {
    /// The bootstrap file.
    pub bootstrap: PathBuf,
    /// The state directory.
    pub state_dir: StateDir,
    /// The Mac.
    pub host: Arc<dyn Host>,
    /// Where goldens come from.
    pub store: Arc<dyn ImageStore>,
    /// The program `macrack-vm`.
    pub vm_binary: PathBuf,
    /// The port for `kubectl exec` and `logs`; 0 takes a free one.
    pub kubelet_port: u16,
}

/// Runs an agent until SIGTERM or SIGINT; the VMs live on, unless the whole Mac goes down. The caller holds the lock.
///
/// # Errors
/// When it cannot begin: nothing was then touched but the state directory's own files.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut tasks = JoinSet::new();
    let (host, bell) = (options.host.clone(), Bell::default());
    let Begun { mut chassis, node, mac_node } = begin(options, bell.clone(), &mut tasks).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = &mut chassis => bail!("the agent's loop ended: {ended:?}"),
    }
    if shutdown::goes_down(&*host) {
        tracing::info!("this Mac goes down: no VM is started any more, and those that run are stopped");
        bell.ring();
        shutdown::told(node, mac_node).await;
    } else {
        tracing::info!("ends; the VMs live on");
    }
    chassis.abort();
    Ok(())
}

/// An agent that has begun.
struct Begun {
    chassis: tokio::task::JoinHandle<()>,
    node: watch::Receiver<Seen<Node>>,
    mac_node: watch::Receiver<Seen<MacNode>>,
}

async fn begin(options: Options, bell: Bell, tasks: &mut JoinSet<()>) -> Result<Begun> {
    let Options { bootstrap: bootstrap_file, state_dir, host, store, vm_binary, kubelet_port } = options;
    let bootstrap = Bootstrap::read(&bootstrap_file)?;
    let facts = host.facts().context("the facts of this Mac cannot be read")?;
    if facts.serial != bootstrap.serial {
        tracing::error!(
            hardware = facts.serial,
            enrolled = bootstrap.serial,
            "this Mac is not the one that the bootstrap file was made for; its MacNode will be quarantined"
        );
    }
    let around = Surroundings { host: host.clone(), vm_binary, boot_id: facts.boot_id.clone(), bell: bell.clone() };
    let (vms, receipts) = inventory::take(&state_dir, &around).await.context("the VMs on this Mac cannot be listed")?;

    let cache = Cache::open(state_dir.images()).context("the goldens on this Mac cannot be listed")?;
    let (wishes, wished) = watch::channel(none());
    let measured = host.clone();
    let free = Arc::new(move || measured.disk_free());
    let asked = store.clone();
    let (puller, situation) = Puller::new(cache.clone(), store, free, wished, bell.clone())?;
    tasks.spawn(puller.run());

    let config = bootstrap.config().await.context("the bootstrap file is of no use")?;
    let credential = Arc::new(Credential::default());
    let server_clock = credential.server_clock();
    let clock = host.clone();
    let client = client(config, credential.clone(), move || clock.clock())?;
    asked.use_api(&client);
    let (mac_node_name, node_name) = (bootstrap.mac_node(), bootstrap.node());
    let (see_node, node) = watch::channel(Seen::default());
    let (see_mac_node, mac_node) = watch::channel(Seen::default());
    let (report, reported) = watch::channel(None);
    let callers = bootstrap.callers().context("the client CA in the bootstrap file is no base64")?;
    let (identity, Told { ready: mut has_token, nobody }) =
        Identity::new(bootstrap_file, bootstrap, state_dir.token(), credential, client.clone(), bell.clone());
    tasks.spawn(identity.keep(node.clone()));
    let wish = kubelet::Wish::new(&mac_node_name, state_dir.path());
    let serving = (client.clone(), wish, node_name.clone());
    let address = kubelet::listen_on(&facts.addresses, kubelet_port);
    let kubelet = kubelet::start(address, callers, serving, has_token.clone(), tasks).await?;
    let (node_facts, node_wanted) = watch::channel(NodeFacts {
        host: facts.clone(),
        disk_pressure: false,
        kubelet_port: kubelet.port(),
        going_down: shutdown::goes_down(&*host),
    });
    let seen = (node.clone(), mac_node.clone());

    // without any token every request would be in vain
    let (talker, name, to) = (client.clone(), node_name.clone(), bell.clone());
    let mut talks = JoinSet::new();
    let catalogue = Catalogue::follow(&client, &has_token, &bell, &mut talks);
    tasks.spawn(async move {
        if has_token.wait_for(|has| *has).await.is_err() {
            return;
        }
        talks.spawn(follow(Api::all(talker.clone()), name.clone(), see_node, to.clone()));
        talks.spawn(follow(Api::all(talker.clone()), mac_node_name.clone(), see_mac_node, to));
        talks.spawn(node::keep_status(talker.clone(), name.clone(), node.clone(), node_wanted));
        talks.spawn(node::keep_lease(talker.clone(), name, node));
        talks.spawn(write_report(talker, mac_node_name, reported));
        while talks.join_next().await.is_some() {}
    });

    let quota = Quota::noted(notes::read(&state_dir.quota()), &facts.boot_id);
    let (last_lease, lease_problem) = match notes::read(&state_dir.last_lease()) {
        Ok(last) => (last, None),
        Err(error) => (None, Some(notes::lease_problem(&error))),
    };
    let power = Arc::new(Hostd(macrack_hostd::socket(state_dir.path())));
    let rebooter = Rebooter::new(state_dir.reboot(), power, bell.clone());
    let chassis = Chassis {
        last_lease,
        lease_problem,
        // of an earlier boot, or in the place of what cannot be read
        quota_kept: false,
        state_dir,
        host,
        facts,
        around,
        vms,
        receipts,
        quota,
        rebooter,
        cache,
        wishes,
        situation,
        client,
        node: node_name,
        kubelet,
        server_clock,
        mac_node,
        nobody,
        held: None,
        catalogue,
        links: Default::default(),
        report,
        node_facts,
        bell,
        reported: (false, 0),
        looks: 0,
        untested: None,
    };
    let (node, mac_node) = seen;
    Ok(Begun { chassis: tokio::spawn(chassis.run()), node, mac_node })
}

fn none() -> Wishes {
    Wishes {
        known: false,
        wants: Vec::new(),
        cloned: Default::default(),
        reserve: 0,
        max_goldens: usize::MAX,
        evict_after: SignedDuration::MAX,
    }
}

async fn write_report(client: Client, name: String, reported: watch::Receiver<Option<AgentReport>>) {
    let api: Api<MacNode> = Api::all(client);
    keep_written(format!("status.agent of MacNode {name}"), reported, |report: AgentReport| {
        let (api, name) = (api.clone(), name.clone());
        async move { tell_mac_node(&api, &name, &report).await }
    })
    .await;
}
