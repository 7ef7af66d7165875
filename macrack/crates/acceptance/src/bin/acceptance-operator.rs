//! The operator with clocks that are off and a death after so many writes. For the acceptance tests alone: the
//! product's binary has no such flags.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use anyhow::Result;
use clap::Parser;
use http::{Method, Request};
use k8s_openapi::jiff::SignedDuration;
use kube::{Config, client::ClientBuilder};
use macrack_operator::{Options, admission, clock::Clock, decide, image_store::StoreArgs, serving::api_server_host};
use tower::{Layer, Service};

#[derive(Parser)]
struct Args {
    /// As the operator's.
    #[arg(long)]
    audit_log: Option<std::path::PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[arg(long)]
    identity: String,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    operator_hours: i64,
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    server_hours: i64,
    #[arg(long)]
    kill_after: Option<usize>,
    #[arg(long)]
    no_webhook: bool,
    #[command(flatten)]
    webhook: admission::AdmissionArgs,
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let args = Args::parse();
    let config = Config::infer().await?;
    let api_server = api_server_host(&config);
    let plain = macrack_thin::connect(config)?;
    let client = match args.kill_after {
        None => plain.clone(),
        Some(writes) => {
            let deadly = Deadly { left: Arc::new(AtomicUsize::new(writes)) };
            ClientBuilder::try_from(Config::infer().await?)?
                .with_layer(&deadly)
                .with_layer(&macrack_thin::thin())
                .build()
        }
    };
    let hours = SignedDuration::from_hours;
    let clock = Clock::shifted(plain.clone(), hours(args.operator_hours), hours(args.server_hours));
    let serve = async {
        if args.no_webhook {
            std::future::pending::<()>().await;
        }
        admission::serve(plain.clone(), args.webhook, admission::terminated()).await
    };
    let store = args.store.open(plain.clone())?;
    let options = Options { client, clock, store, identity: None, api_server, audit_log: args.audit_log };
    let _ = args.identity;
    tokio::select! {
        served = serve => served,
        () = decide(options, admission::terminated()) => Ok(()),
    }
}

/// Kills this process with SIGKILL once the API server has answered the n-th write.
#[derive(Clone)]
struct Deadly {
    left: Arc<AtomicUsize>,
}

impl<S> Layer<S> for Deadly {
    type Service = Counting<S>;
    fn layer(&self, inner: S) -> Counting<S> {
        Counting { inner, left: self.left.clone() }
    }
}

#[derive(Clone)]
struct Counting<S> {
    inner: S,
    left: Arc<AtomicUsize>,
}

impl<S, B> Service<Request<B>> for Counting<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let counts =
            request.method() != Method::GET && !path.contains("/events") && !path.contains("selfsubjectreviews");
        let answer = self.inner.call(request);
        let left = self.left.clone();
        Box::pin(async move {
            let answer = answer.await;
            if counts && left.fetch_sub(1, Ordering::SeqCst) == 1 {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            answer
        })
    }
}
