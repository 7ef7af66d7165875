//! Every replica serves the webhook and the collector; the elected one decides.

use std::{io::IsTerminal as _, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use dockerios_collector::{Collector, Limits, ReportKey};
use dockerios_operator::{
    act::{Hands, Secrets},
    api::Api,
    collect,
    leader::{Candidate, Term},
    metrics::{Metrics, Question, serve},
    options::Options,
    run::Engine,
    world::World,
};
use dockerios_pki::Authority;
use dockerios_webhook as webhook;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};

/// A connection on which nothing came for so long was lost: longer than the API server keeps a watch open.
const LONGEST_ANSWER: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info,kube_runtime=warn".into()),
        )
        .with_writer(std::io::stderr)
        // a file or a journal shows colours as rubbish
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()))
        .init();
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dockerios-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<()> {
    // a second installation is only a second call of this function
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = client(&options).await?;
    let authority = Arc::new(Authority::open(client.clone(), &options.namespace, "dockerios-authority").await?);
    let reach = options
        .webhook_url
        .clone()
        .map_or(webhook::Reach::Service, webhook::Reach::Url);
    let webhook = webhook::bind(
        webhook::Options {
            listen: options.webhook_listen,
            reach,
            observe: None,
        },
        client.clone(),
        &authority,
    )
    .await?;
    let collector = collector(&options, &client, &authority).await?;
    let collector_url = options.collector_at(collector.address().port());
    let (metrics, questions) = Metrics::new(collector.counts());
    expose(&options, &metrics).await?;
    tracing::info!(webhook = %webhook.address(), collector = %collector.address(), collector_url, "serving");

    let keys = authority.clone();
    let mut servants = JoinSet::new();
    servants.spawn(async move {
        keys.keep().await;
    });
    servants.spawn(webhook.run(std::future::pending()));
    servants.spawn(collector.run(std::future::pending()));

    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be heard")?;
    let candidate = candidate(&options, &client);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        // a replica that serves only some of it would be sent requests that it does not answer
        Some(ended) = servants.join_next() =>
            return Err(ended.err().map_or_else(|| anyhow!("a server ended by itself"), |error| anyhow!("a server ended: {error}"))),
        outcome = lead(&options, client.clone(), authority, collector_url, candidate.as_ref(), (metrics, questions)) =>
            outcome?,
    }
    if let Some(candidate) = &candidate {
        candidate.resign().await;
    }
    Ok(())
}

/// Decides from the moment of election until the Lease may be lost. Losing it ends the process: what is under way
/// then ends too, and the next life starts from facts.
async fn lead(
    options: &Options,
    client: Client,
    authority: Arc<Authority>,
    collector_url: String,
    candidate: Option<&Candidate>,
    (metrics, questions): (Metrics, mpsc::Receiver<Question>),
) -> Result<()> {
    if let Some(candidate) = candidate {
        candidate.elected().await;
        tracing::info!("elected");
    }
    let hands = Hands {
        api: Api::new(client.clone()),
        secrets: Arc::new(Keys {
            authority,
            server_name: options.collector_service(),
        }),
        platform_namespace: options.namespace.clone(),
        term: candidate.map_or_else(Term::endless, Candidate::term),
    };
    let world = World::new(&options.namespace, &collector_url);
    let engine = Engine::start(client, hands, world, metrics, questions).run();
    match candidate {
        None => engine.await,
        Some(candidate) => tokio::select! {
            () = engine => {}
            () = candidate.hold() => return Err(anyhow!("the leader's Lease was lost; another operator may have it")),
        },
    }
    Err(anyhow!("the feeds ended"))
}

/// Serves metrics, unless they are off.
async fn expose(options: &Options, metrics: &Metrics) -> Result<()> {
    let serve::Listen::At(address) = options.metrics_listen else {
        tracing::info!("metrics are off");
        return Ok(());
    };
    let listener = serve::bind(address)
        .await
        .with_context(|| format!("metrics cannot be served at {address}; choose another --metrics-listen, or off"))?;
    tracing::info!(metrics = %listener.local_addr()?, "serving /metrics");
    tokio::spawn(serve::serve(listener, metrics.clone()));
    Ok(())
}

fn candidate(options: &Options, client: &Client) -> Option<Candidate> {
    let identity = format!("{}-{:08x}", std::process::id(), rand::random::<u32>());
    (!options.no_leader_election).then(|| Candidate::new(client.clone(), &options.namespace, identity))
}

async fn collector(options: &Options, client: &Client, authority: &Authority) -> Result<Collector> {
    let host = options.collector_host()?;
    let service = options.collector_service();
    let mut names = vec![service.clone(), format!("{service}.cluster.local")];
    if !names.contains(&host) {
        names.push(host);
    }
    let options = dockerios_collector::Options {
        listen: options.collector_listen,
        tls: authority.leaf(names)?,
        key: ReportKey::new(*authority.report_key()),
        machines: collect::machines(client, &options.namespace),
        limits: Limits::default(),
    };
    Collector::bind(options)
        .await
        .context("the collector cannot listen; choose another --collector-listen")
}

async fn client(options: &Options) -> Result<Client> {
    let mut config = match &options.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::infer()
            .await
            .context("no cluster: give --kubeconfig, or run in a pod")?,
    };
    // what has a deadline of its own has a shorter one; kube has none for all the rest
    config.read_timeout = Some(LONGEST_ANSWER);
    config.reset_reader_on_write = true;
    Ok(Client::try_from(config)?)
}

/// What no plan may hold.
struct Keys {
    authority: Arc<Authority>,
    server_name: String,
}

impl Secrets for Keys {
    fn token(&self, machine_uid: &str) -> String {
        ReportKey::new(*self.authority.report_key()).token(machine_uid)
    }

    fn authority(&self) -> String {
        self.authority.ca_pem()
    }

    fn server_name(&self) -> String {
        self.server_name.clone()
    }
}
