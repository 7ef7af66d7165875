//! A real Prometheus, Debian's, and something for it to scrape.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use axum::{Router, extract::State, routing::get};
use dockerios_testkit::Proc;
use kube::{Client, Config};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::see::PATIENCE;

/// Names the root with the program, as for the tests with libvirt and QEMU.
const VARIABLE: &str = "DOCKERIOS_SUBSTRATE_ROOT";
/// How often an awaited answer is looked for; as often as is scraped.
const LOOK: Duration = Duration::from_millis(500);

/// A running Prometheus. Dropped, it is killed, and then its data is removed: fields go in their order.
pub struct Prometheus {
    process: Proc,
    client: Client,
    url: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes those every second, and waits until it answers.
    ///
    /// # Errors
    /// When the root with the program is not there, or it does not start.
    pub async fn start(targets: &[(&str, SocketAddr)]) -> Result<Prometheus> {
        let root = root()?;
        let kept = tempfile::Builder::new().prefix("dios-prometheus-").tempdir()?;
        let folder = kept.path();
        let configuration = folder.join("prometheus.yml");
        std::fs::write(&configuration, configure(targets)).context("write Prometheus' configuration")?;
        let port = crate::fleet::free_port()?;
        // by the root's own loader and libraries: no chroot, so no right of root is needed
        let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(root.join("usr/lib/x86_64-linux-gnu"))
            .arg(root.join("usr/bin/prometheus"))
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(folder);
        let process = Proc::spawn("prometheus", command, folder.join("log"))?;
        let ready = process.until_logged("Server is ready to receive web requests", PATIENCE);
        ready.await?;
        let url = format!("http://127.0.0.1:{port}");
        let client = Client::try_from(Config::new(url.parse()?))?;
        Ok(Prometheus {
            process,
            client,
            url,
            _folder: kept,
        })
    }

    /// Its base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What an instant query gives, as Prometheus says it; the error is its own too.
    ///
    /// # Errors
    /// When the query fails or nobody answers.
    pub async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let path = format!("/api/v1/query?query={}", encoded(query));
        let request = http::Request::get(path).body(Vec::new())?;
        let answer = self.client.request_text(request).await;
        let answer = answer.with_context(|| format!("Prometheus, {query}"))?;
        let mut answer: Value = serde_json::from_str(&answer)?;
        ensure!(answer["status"] == "success", "Prometheus, {query}: {answer}");
        match answer["data"]["result"].take() {
            Value::Array(series) => Ok(series),
            other => bail!("Prometheus, {query}: no list of series but {other}"),
        }
    }

    /// Waits until the one series of a query has a value that will do.
    ///
    /// # Errors
    /// After [`PATIENCE`]; with what it gave last.
    pub async fn until(&self, query: &str, holds: impl Fn(f64) -> bool) -> Result<f64> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let series = self.query(query).await?;
            if let [one] = series.as_slice()
                && let Some(value) = one["value"][1].as_str().and_then(|text| text.parse().ok())
                && holds(value)
            {
                return Ok(value);
            }
            ensure!(
                tokio::time::Instant::now() < deadline,
                "no good answer to {query} in {PATIENCE:.0?}; the last: {series:?}"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends it: nobody answers at its URL any more.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(&self) -> Result<()> {
        self.process.terminate(Duration::from_secs(30)).await.map(drop)
    }
}

fn configure(targets: &[(&str, SocketAddr)]) -> String {
    let mut text = String::from("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n");
    for (job, at) in targets {
        // honor_labels: namespaces are those of the machines, not of what is scraped
        text.push_str(&format!(
            "- {{job_name: {job}, honor_labels: true, static_configs: [{{targets: [\"{at}\"]}}]}}\n"
        ));
    }
    text
}

/// The folder of the root that `ci/substrate-root.sh` makes.
fn root() -> Result<PathBuf> {
    let root = std::env::var_os(VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.build/substrate"),
        PathBuf::from,
    );
    let there = root.join(".recipe").is_file() && root.join("usr/bin/prometheus").is_file();
    ensure!(
        there,
        "{}: no root with a Prometheus is there ({VARIABLE} names another place); run dockerios/ci/substrate-root.sh \
         as root: it makes the root once, in one or two minutes",
        root.display()
    );
    std::fs::canonicalize(&root).with_context(|| root.display().to_string())
}

/// A query as it stands in a URL.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Something that is scraped: a text, whatever the test makes it say. Dropped, it answers no more.
pub struct Exporter {
    address: SocketAddr,
    text: Arc<Mutex<String>>,
    serves: JoinHandle<()>,
}

impl Exporter {
    /// Begins to answer with that text.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(text: &str) -> Result<Exporter> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let text = Arc::new(Mutex::new(text.to_owned()));
        let say = |State(text): State<Arc<Mutex<String>>>| async move {
            text.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        let router = Router::new().route("/metrics", get(say)).with_state(Arc::clone(&text));
        let serves = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the exporter ended: {error}");
            }
        });
        Ok(Exporter { address, text, serves })
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it says from now on.
    pub fn say(&self, text: &str) {
        text.clone_into(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.serves.abort();
    }
}
