//! Starts and ends a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//!
//! Invariant: a [`ControlPlane`] that [`ControlPlane::start`] returned answers requests, has its
//! controllers running (the `default` namespace has its `default` ServiceAccount) and accepts the
//! admin kubeconfig; a start that fails ends everything it started and says which component
//! failed, with the end of its log.
//!
//! As in a real cluster: RBAC decides (the Node authorizer is left off, because MacRack's agents
//! are ServiceAccounts with Node-bound tokens and must not lean on rights that kubelets have),
//! ServiceAccount tokens are real, controllers run as their own ServiceAccounts, kubelets are
//! reached with a client certificate and must show a serving certificate of the cluster's CA.
//! Unlike one: etcd does not fsync, and the two clients' own request limits are lifted; neither
//! changes what the API answers.

use std::ffi::OsString;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::access::{Access, client_from};
use crate::pki::{Pair, Pki};
use crate::spawn::Process;
use crate::{assets, run};

/// A kubeconfig of a cluster to use instead of starting one.
pub const KUBECONFIG: &str = "MACRACK_TEST_KUBECONFIG";

/// The name in the certificate that the API server shows to kubelets.
pub use crate::pki::KUBELET_CLIENT;

/// How long a component may take to become ready, on a busy machine.
const READY: Duration = Duration::from_secs(120);

/// How to start a control plane.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder of the binaries; found by [`assets::find`] when absent.
    pub assets: Option<PathBuf>,
    /// The folder of its state, logs and kubeconfig; a fresh one under the run's folder, removed
    /// with it, when absent. A given folder is made when it is not there; the state of an earlier
    /// control plane in it is dropped, and refused while that one runs.
    pub dir: Option<PathBuf>,
}

/// A running control plane, or the cluster that `MACRACK_TEST_KUBECONFIG` names.
pub struct ControlPlane {
    pub(crate) access: Access,
    dir: PathBuf,
    parts: Vec<Process>,
    _lock: Option<File>,
}

/// The control plane of this test binary: started by whoever asks first, ended at process exit.
///
/// It blocks its caller while it starts (four to ten seconds), and is tied to no runtime: each
/// test makes its own clients from it.
///
/// # Panics
/// When it cannot be started, with the reason: no test could run.
pub fn shared() -> &'static ControlPlane {
    static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
    let started = SHARED.get_or_init(|| {
        match std::env::var_os(KUBECONFIG).filter(|path| !path.is_empty()) {
            Some(path) => ControlPlane::external(Path::new(&path)),
            None => ControlPlane::start(Options::default()),
        }
        .map_err(|e| format!("{e:#}"))
    });
    match started {
        Ok(plane) => plane,
        Err(e) => panic!("no control plane for the tests: {e}"),
    }
}

impl ControlPlane {
    /// Starts one. Blocks until it is ready; may be called inside a runtime.
    ///
    /// # Errors
    /// When the binaries are missing, or a component fails or is not ready in time.
    pub fn start(options: Options) -> Result<ControlPlane> {
        // a thread of its own: the caller may be inside a runtime, where another may not block
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .context("start a runtime")?
                        .block_on(start(options))
                })
                .join()
                .map_err(|_| anyhow!("the thread that starts the control plane panicked"))?
        })
    }

    /// A cluster that is there already, by its kubeconfig. Nothing is started or ended.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub fn external(kubeconfig: &Path) -> Result<ControlPlane> {
        let dir = run::current()?.dir().join(format!("external-{}", run::random_word()));
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let kubectl = assets::find().map_or_else(|_| PathBuf::from("kubectl"), |dir| dir.join("kubectl"));
        let access = Access::new(kubeconfig.to_owned(), kubectl, dir.clone())
            .with_context(|| format!("{KUBECONFIG}={}", kubeconfig.display()))?;
        Ok(ControlPlane { access, dir, parts: Vec::new(), _lock: None })
    }

    /// True when this is a cluster that outlives the tests.
    pub fn is_external(&self) -> bool {
        self.parts.is_empty()
    }

    /// The folder of its state, logs (`*.log`) and kubeconfigs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        end(&self.parts);
    }
}

/// Ends the parts in the reverse order of their start, so that none logs the loss of another.
fn end(parts: &[Process]) {
    for part in parts.iter().rev() {
        part.signal(rustix::process::Signal::KILL);
        part.wait_blocking(Duration::from_secs(5));
    }
}

/// A start under way: what runs so far is ended unless the start comes through.
struct Starting {
    assets: PathBuf,
    dir: PathBuf,
    lock: Option<File>,
    pki: Pki,
    parts: Vec<Process>,
}

impl Drop for Starting {
    fn drop(&mut self) {
        end(&self.parts);
    }
}

async fn start(options: Options) -> Result<ControlPlane> {
    let assets = options.assets.map_or_else(assets::find, Ok)?;
    let dir = match options.dir {
        Some(dir) => dir,
        None => run::current()?.dir().join(format!("control-plane-{}", run::random_word())),
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let dir = dir.canonicalize().with_context(|| format!("look at {}", dir.display()))?;
    let lock = Some(own(&dir)?);
    let pki = Pki::make(&dir.join("pki"))?;
    let mut starting = Starting { assets, dir, lock, pki, parts: Vec::new() };
    let mut tries = 0;
    let server = loop {
        tries += 1;
        match starting.api_server().await {
            Ok(server) => break server,
            // another process took a port between our choice and our bind
            Err(e) if tries < 5 && starting.lost_a_port() => {
                eprintln!("testkit: {e}; trying other ports");
                end(&starting.parts);
                starting.parts.clear();
            }
            Err(e) => return Err(e),
        }
    };
    let admin = starting.kubeconfig("admin", &server, &starting.pki.admin)?;
    starting.controllers(&server)?;
    let access = Access::new(admin, starting.assets.join("kubectl"), starting.dir.clone())?;
    starting.first_service_account(&access).await?;
    Ok(ControlPlane {
        access,
        dir: starting.dir.clone(),
        parts: std::mem::take(&mut starting.parts),
        _lock: starting.lock.take(),
    })
}

/// Takes the folder for this process, until it ends or the control plane is dropped.
fn own(dir: &Path) -> Result<File> {
    let path = dir.join("control-plane.lock");
    let lock = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => {
            bail!("another control plane runs in {}: end it first, or choose another folder", dir.display())
        }
        Err(e) => Err(e).with_context(|| format!("lock {}", path.display())),
    }
}

impl Starting {
    /// etcd and the API server, ready to answer; returns its URL.
    async fn api_server(&mut self) -> Result<String> {
        // three sockets bound at once, so that the ports differ
        let held = [bind()?, bind()?, bind()?];
        let [etcd, peer, secure] = [port(&held[0])?, port(&held[1])?, port(&held[2])?];
        drop(held);
        let data = self.dir.join("etcd");
        if data.exists() {
            std::fs::remove_dir_all(&data).with_context(|| format!("empty {}", data.display()))?;
        }
        let etcd = format!("http://127.0.0.1:{etcd}");
        let peer = format!("http://127.0.0.1:{peer}");
        self.run(
            "etcd",
            Flags::new()
                .path("data-dir", &data)
                .set("listen-client-urls", &etcd)
                .set("advertise-client-urls", &etcd)
                .set("listen-peer-urls", &peer)
                .set("initial-advertise-peer-urls", &peer)
                .set("initial-cluster", format!("default={peer}"))
                // a test's data is not worth an fsync
                .set("unsafe-no-fsync", "true")
                .set("log-level", "warn"),
        )?;
        self.run("kube-apiserver", self.api_server_flags(&etcd, secure))?;
        let server = format!("https://127.0.0.1:{secure}");
        let admin = self.kubeconfig("admin", &server, &self.pki.admin)?;
        self.ready(&admin).await?;
        Ok(server)
    }

    fn api_server_flags(&self, etcd: &str, port: u16) -> Flags {
        let Pki { ca, apiserver, kubelet_client, service_accounts, .. } = &self.pki;
        Flags::new()
            .set("etcd-servers", etcd)
            .set("bind-address", "127.0.0.1")
            // else it looks for a default route, which a laptop on a train has not
            .set("advertise-address", "127.0.0.1")
            .set("secure-port", port.to_string())
            .path("tls-cert-file", &apiserver.cert)
            .path("tls-private-key-file", &apiserver.key)
            .path("client-ca-file", &ca.cert)
            .set("authorization-mode", "RBAC")
            .set("allow-privileged", "true")
            .set("service-cluster-ip-range", "10.96.0.0/16")
            // its own address is loopback, which no Endpoints object may hold
            .set("endpoint-reconciler-type", "none")
            .set("service-account-issuer", "https://kubernetes.default.svc")
            .path("service-account-key-file", &service_accounts.cert)
            .path("service-account-signing-key-file", &service_accounts.key)
            .path("kubelet-client-certificate", &kubelet_client.cert)
            .path("kubelet-client-key", &kubelet_client.key)
            .path("kubelet-certificate-authority", &ca.cert)
            .set("kubelet-preferred-address-types", "InternalIP,Hostname")
    }

    fn controllers(&mut self, server: &str) -> Result<()> {
        let Pki { ca, service_accounts, controller_manager, scheduler, .. } = &self.pki;
        let manager = Flags::new()
            .path("kubeconfig", &self.kubeconfig("controller-manager", server, controller_manager)?)
            .set("leader-elect", "false")
            .set("use-service-account-credentials", "true")
            .path("service-account-private-key-file", &service_accounts.key)
            .path("root-ca-file", &ca.cert)
            .path("cluster-signing-cert-file", &ca.cert)
            .path("cluster-signing-key-file", &ca.key)
            .set("kube-api-qps", "500")
            .set("kube-api-burst", "1000")
            // nobody asks for its health or metrics
            .set("secure-port", "0");
        let scheduler = Flags::new()
            .path("kubeconfig", &self.kubeconfig("scheduler", server, scheduler)?)
            .set("leader-elect", "false")
            .set("kube-api-qps", "500")
            .set("kube-api-burst", "1000")
            .set("secure-port", "0");
        self.run("kube-controller-manager", manager)?;
        self.run("kube-scheduler", scheduler)
    }

    fn run(&mut self, name: &str, flags: Flags) -> Result<()> {
        let log = self.dir.join(format!("{name}.log"));
        // a log of an earlier start would be taken for this one's
        let _ = std::fs::remove_file(&log);
        let mut command = Command::new(self.assets.join(name));
        command.args(flags.0).current_dir(&self.dir);
        self.parts.push(Process::start(command, &run::current()?.child_mark(), &log)?);
        Ok(())
    }

    /// The one poll in this crate: an API server that does not answer yet has no watch to offer.
    async fn ready(&self, admin: &Path) -> Result<()> {
        let client = client_from(admin).await?;
        let answer = async {
            loop {
                let request = http::Request::get("/readyz").body(Vec::new())?;
                if client.request_text(request).await.is_ok() {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        self.or_failure("an answer of kube-apiserver's /readyz", answer).await
    }

    /// The controllers run when the first of them has done its work.
    async fn first_service_account(&self, access: &Access) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(access.admin().await?, "default");
        let made = async {
            let only = watcher::Config::default().fields("metadata.name=default");
            let mut seen = std::pin::pin!(watcher(accounts, only).default_backoff().touched_objects());
            while let Some(event) = seen.next().await {
                if event.is_ok() {
                    return anyhow::Ok(());
                }
            }
            bail!("the watch of ServiceAccounts ended")
        };
        self.or_failure("the first ServiceAccount, which kube-controller-manager makes", made).await
    }

    /// `wanted`, unless a component ends or the time does.
    async fn or_failure(&self, what: &str, wanted: impl Future<Output = Result<()>>) -> Result<()> {
        let began = Instant::now();
        let ends = self.parts.iter().map(|part| Box::pin(part.ended()));
        tokio::select! {
            done = wanted => done,
            (exit, index, _) = futures::future::select_all(ends) => {
                let part = &self.parts[index];
                let exit = exit.map_or_else(|| "ended".to_owned(), |e| e.to_string());
                bail!("{} failed ({exit}); its log ends:\n{}", name(part), part.log_tail(25))
            }
            () = tokio::time::sleep(READY) => {
                let logs: String = self.parts.iter().map(|p| format!("  {}:\n{}", name(p), p.log_tail(10))).collect();
                bail!("after {:.0?} there is still not {what}; the logs end:\n{logs}", began.elapsed())
            }
        }
    }

    fn lost_a_port(&self) -> bool {
        self.parts.iter().any(|part| part.log_text().contains("address already in use"))
    }

    fn kubeconfig(&self, user: &str, server: &str, identity: &Pair) -> Result<PathBuf> {
        let path = self.dir.join(format!("{user}.kubeconfig"));
        crate::access::write_kubeconfig(
            &path,
            server,
            &self.pki.ca.cert,
            user,
            crate::access::Identity::Pair(identity),
        )?;
        Ok(path)
    }
}

fn name(part: &Process) -> String {
    part.log.file_stem().map_or_else(|| "a component".to_owned(), |s| s.to_string_lossy().into_owned())
}

fn bind() -> Result<TcpListener> {
    TcpListener::bind("127.0.0.1:0").context("find a free port on 127.0.0.1")
}

fn port(socket: &TcpListener) -> Result<u16> {
    Ok(socket.local_addr().context("find a free port on 127.0.0.1")?.port())
}

/// `--name=value` arguments.
struct Flags(Vec<OsString>);

impl Flags {
    fn new() -> Flags {
        Flags(Vec::new())
    }

    fn set(self, name: &str, value: impl AsRef<str>) -> Flags {
        self.path(name, Path::new(value.as_ref()))
    }

    fn path(mut self, name: &str, value: &Path) -> Flags {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(value);
        self.0.push(flag);
        self
    }
}
