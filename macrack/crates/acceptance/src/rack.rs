//! MacRack installed on the control plane of this test binary, once.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, ServiceAccount};
use kube::{Api, Client, api::PostParams};
use macrack_api::{MacNodeLease, names};
use macrack_testkit::{Child, ControlPlane, Program, bin, expect, shared};
use serde_json::json;

/// How the operator is run.
#[derive(Clone, Debug, Default)]
pub struct Operator {
    /// Hours that its own clock is off.
    pub operator_hours: i64,
    /// Hours that its view of the API server's clock is off.
    pub server_hours: i64,
    /// Kill it with SIGKILL right after so many writes.
    pub kill_after: Option<usize>,
    /// Without its webhook (the schema, the policies and the operator itself must hold alone).
    pub no_webhook: bool,
}

/// An installed MacRack.
pub struct Rack {
    /// The control plane.
    pub plane: &'static ControlPlane,
    store: tempfile::TempDir,
    operator: Mutex<Option<Child>>,
    started: Mutex<usize>,
}

static RACK: OnceLock<Rack> = OnceLock::new();

/// The folder of the workspace's manifests.
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

impl Rack {
    /// The one of this test binary, with the operator of the product running.
    pub fn shared() -> &'static Rack {
        RACK.get_or_init(|| blocking(|| Rack::install(Some(Operator::default()))))
    }

    /// Where the product's operator writes its audit trail.
    pub fn audit_log(&self) -> PathBuf {
        self.store.path().join("audit.jsonl")
    }

    /// The one of this test binary, without an operator yet: the test starts those it needs.
    pub fn bare() -> &'static Rack {
        RACK.get_or_init(|| blocking(|| Rack::install(None)))
    }

    async fn install(operator: Option<Operator>) -> Result<Rack> {
        let plane = shared();
        let dir = deploy();
        for part in ["crds", "rbac", "policies"] {
            let path = dir.join(part);
            plane
                .kubectl(&["apply", "--server-side", "-f", &path.display().to_string()])
                .await?
                .success()
                .with_context(|| format!("installing deploy/{part}"))?;
        }
        plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]).await?.success()?;
        let store = tempfile::tempdir()?;
        let rack = Rack { plane, store, operator: Mutex::new(None), started: Mutex::new(0) };
        if let Some(operator) = operator {
            rack.start(&operator).await?;
            rack.admission_serves().await?;
        }
        Ok(rack)
    }

    fn operator(&self) -> MutexGuard<'_, Option<Child>> {
        self.operator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an operator in place of the one that runs, and waits until it decides.
    pub async fn start(&self, how: &Operator) -> Result<()> {
        self.start_without_waiting(how).await?;
        let (log, limit) = ("deciding begins", Duration::from_secs(30));
        loop {
            let (running, text) =
                self.operator().as_ref().map_or((false, String::new()), |c| (c.is_running(), c.log()));
            if text.contains(log) {
                return Ok(());
            }
            anyhow::ensure!(running, "the operator ended early:\n{text}");
            let child_log = self.operator().as_ref().map(|c| c.log_path().to_owned());
            tokio::time::timeout(limit, grown(child_log, text.len()))
                .await
                .context("the operator does not begin to decide")?;
        }
    }

    /// Starts an operator in place of the one that runs.
    pub async fn start_without_waiting(&self, how: &Operator) -> Result<()> {
        self.operator().take();
        let child = self.another(how).await?;
        *self.operator() = Some(child);
        Ok(())
    }

    /// Starts an operator beside the one that runs.
    pub async fn another(&self, how: &Operator) -> Result<Child> {
        let token = self.plane.token(names::SYSTEM_NAMESPACE, names::OPERATOR_ACCOUNT, None).await?;
        let plain = how.operator_hours == 0 && how.server_hours == 0 && how.kill_after.is_none() && !how.no_webhook;
        let number = {
            let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
            *started += 1;
            *started
        };
        let mut program = Program::new(bin(if plain { "macrack-operator" } else { "acceptance-operator" })?)
            .env("KUBECONFIG", self.plane.kubeconfig_for(&token)?)
            .env("RUST_LOG", "info,macrack_operator=debug")
            .arg(format!("--image-store=dir:{}", self.store.path().display()))
            .arg("--webhook-listen=127.0.0.1:0")
            .arg("--webhook-url=https://127.0.0.1:{port}")
            .arg(format!("--identity=operator-{number}"));
        if plain {
            program = program.arg(format!("--audit-log={}", self.audit_log().display()));
        }
        if !plain {
            program = program
                .arg(format!("--operator-hours={}", how.operator_hours))
                .arg(format!("--server-hours={}", how.server_hours));
            if how.no_webhook {
                program = program.arg("--no-webhook");
            }
            if let Some(writes) = how.kill_after {
                program = program.arg(format!("--kill-after={writes}"));
            }
        }
        program.start(&format!("operator-{number}"))
    }

    /// Kills the operator with SIGKILL.
    pub fn kill_operator(&self) -> Result<()> {
        if let Some(child) = self.operator().as_ref() {
            child.kill9()?;
        }
        Ok(())
    }

    /// Whether the operator's process lives.
    pub fn operator_lives(&self) -> bool {
        self.operator().as_ref().is_some_and(Child::is_running)
    }

    /// What the operator logged.
    pub fn operator_log(&self) -> String {
        self.operator().as_ref().map(Child::log).unwrap_or_default()
    }

    /// The folder of goldens.
    pub fn store(&self) -> &Path {
        self.store.path()
    }

    /// Puts a golden of which only the manifest exists into the store (puppets pull nothing), and makes it Ready.
    pub async fn image(&self, name: &str, minor: u32) -> Result<()> {
        use sha2::{Digest, Sha256};
        let hex: String = Sha256::digest(name).iter().map(|b| format!("{b:02x}")).collect();
        let folder = self.store.path().join("registry.example.com/golden").join(name).join(format!("sha256-{hex}"));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("manifest.json"), json!({ "diskBytes": 64u64 << 30 }).to_string())?;
        let reference = format!("registry.example.com/golden/{name}@sha256:{hex}");
        let admin = self.plane.admin().await?;
        crate::objects::make(&admin, &crate::objects::image(name, &reference, minor)).await?;
        let images: Api<macrack_api::MacOSImage> = Api::all(admin);
        expect::until_seen(&images, name, "Ready", Duration::from_secs(20), |i| {
            i.status.as_ref().is_some_and(|s| macrack_api::condition::is_true(&s.conditions, "Ready"))
        })
        .await;
        Ok(())
    }

    /// Waits until the API server asks the webhook: a lease of a class that does not exist is refused by it.
    pub async fn admission_serves(&self) -> Result<()> {
        let leases: Api<MacNodeLease> = Api::namespaced(self.plane.admin().await?, "default");
        let probe: MacNodeLease = serde_json::from_value(json!({
            "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
            "metadata": { "name": "probe" }, "spec": { "nodeClassName": "no-such-class", "minimumDuration": "24h" },
        }))?;
        expect::until_effective("the webhook", Duration::from_secs(30), async || {
            let params = PostParams { dry_run: true, ..PostParams::default() };
            leases.create(&params, &probe).await.is_err()
        })
        .await;
        Ok(())
    }

    /// A tenant of a namespace: a ServiceAccount with the aggregated edit role there, by a real token.
    pub async fn tenant(&self, namespace: &str) -> Result<Client> {
        let admin = self.plane.admin().await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
        let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": "tenant" } }))?;
        accounts.create(&PostParams::default(), &account).await?;
        let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> = Api::namespaced(admin, namespace);
        let binding = serde_json::from_value(json!({
            "metadata": { "name": "tenant" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
            "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": namespace }],
        }))?;
        bindings.create(&PostParams::default(), &binding).await?;
        self.plane.as_service_account(namespace, "tenant").await
    }

    /// Makes a namespace that the test deletes itself.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let all: Api<KubeNamespace> = Api::all(self.plane.admin().await?);
        all.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
        Ok(())
    }
}

/// Waits until a log has grown. A file has no watch without inotify; this is a test's own log.
async fn grown(path: Option<PathBuf>, from: usize) {
    let Some(path) = path else { return };
    while std::fs::metadata(&path).map_or(0, |m| m.len()) as usize <= from {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs a future to its end on a thread and runtime of its own: the caller may be inside another.
fn blocking<T: Send + 'static, F: Future<Output = Result<T>>>(make: impl FnOnce() -> F + Send + 'static) -> T {
    let run = || {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(anyhow::Error::from)?.block_on(make())
    };
    match std::thread::spawn(run).join() {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => panic!("MacRack could not be installed: {error:?}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
