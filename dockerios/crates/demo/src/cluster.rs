//! The cluster that the account is given on: a control plane of our own, or one that is there.
//!
//! Invariant: dropped, every process that was started here has ended. What was put into a cluster that is there is
//! taken out by [`crate::leave`], since that takes time and can fail.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dockerios_sim::{ClassShape, NodeShape, Options as SimOptions, Programs, Sim, Timings};
use dockerios_testkit::{ControlPlane, Options, Proc, apply_file, apply_yaml};
use kube::Client;
use serde_json::json;
use tokio::process::Command;

use crate::{Arguments, files, say};

/// Where the operator lives, and its ServiceAccount.
pub(crate) const PLATFORM: &str = "dockerios-system";
const ACCOUNT: &str = "dockerios-operator";

/// The cluster and what runs beside it. Fields end in this order.
pub(crate) struct Cluster {
    pub(crate) operator: Option<Proc>,
    pub(crate) sim: Option<Sim>,
    pub(crate) client: Client,
    /// Something was put into a cluster that was there before.
    pub(crate) entered: bool,
    /// Where the operator serves its metrics.
    pub(crate) metrics: Option<String>,
    plane: ControlPlane,
    pub(crate) dir: PathBuf,
    assets: PathBuf,
}

impl Cluster {
    /// A control plane that answers.
    pub(crate) async fn start(arguments: &Arguments, dir: &Path) -> Result<Cluster> {
        let began = Instant::now();
        let plane = ControlPlane::start(Options {
            dir: Some(dir.join("plane")),
            ..Options::default()
        })
        .await?;
        let client = plane.client().await?;
        let version = client.apiserver_version().await.context("ask for the version")?;
        let whose = if plane.is_existing() { "yours, " } else { "" };
        say::part(
            "control plane",
            &format!("{whose}Kubernetes {}", version.git_version),
            began.elapsed(),
        );
        Ok(Cluster {
            operator: None,
            sim: None,
            client,
            entered: false,
            metrics: None,
            plane,
            dir: dir.to_owned(),
            assets: arguments.assets.clone(),
        })
    }

    /// The admin's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        self.plane.kubeconfig()
    }

    /// Whether it was there before.
    pub(crate) fn is_yours(&self) -> bool {
        self.plane.is_existing()
    }

    /// KubeVirt and CDI, played.
    pub(crate) async fn play(&mut self, bin_dir: &Path, template: &Path) -> Result<()> {
        let began = Instant::now();
        let mut options = SimOptions::new(self.dir.join("sim"), Programs::of(bin_dir));
        options.timings = Timings::demo();
        options.classes = vec![ClassShape::new("fast", "rbd.csi.ceph.com", "csi-clone")];
        options.nodes = vec![NodeShape::large("kvm-1"), NodeShape::large("kvm-2")];
        options.images.insert(files::TEMPLATE.to_owned(), template.to_owned());
        self.sim = Some(
            Sim::start(self.client.clone(), options)
                .await
                .context("start what plays KubeVirt and CDI")?,
        );
        say::part("simulator", "KubeVirt, CDI, a CSI driver, two nodes", began.elapsed());
        Ok(())
    }

    /// Definitions, rights and policies.
    pub(crate) async fn install(&self) -> Result<()> {
        let began = Instant::now();
        for folder in ["crds", "rbac", "policies"] {
            for file in files::installed(folder)? {
                apply_file(&self.client, file).await?;
            }
        }
        say::part("definitions", "kinds, roles, policies of deploy/", began.elapsed());
        Ok(())
    }

    /// The operator, with the rights of its ServiceAccount and no more.
    pub(crate) async fn operate(&mut self, bin_dir: &Path) -> Result<()> {
        let began = Instant::now();
        let files = self.dir.join("manifests");
        apply_file(&self.client, files.join("outside.yaml")).await?;
        let osk = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "smc", "namespace": PLATFORM},
            // invented, of the right length: nothing here asks an SMC
            "stringData": {"osk": "INVENTED".repeat(8)},
        });
        apply_yaml(&self.client, &osk.to_string()).await?;
        let account = self.plane.kubeconfig_of_service_account(PLATFORM, ACCOUNT).await?;
        let mut command = Program::new(bin_dir.join("dockerios-operator"));
        command.arg("--kubeconfig").arg(account).args(["--namespace", PLATFORM]);
        let [webhook, collector, metrics] = free_ports()?;
        command.args(["--webhook-listen", &format!("127.0.0.1:{webhook}")]);
        command.args(["--webhook-url", "https://127.0.0.1:{port}"]);
        command.args(["--collector-listen", &format!("127.0.0.1:{collector}")]);
        command.args(["--collector-url", "https://127.0.0.1:{port}", "--no-leader-election"]);
        let metrics = format!("127.0.0.1:{metrics}");
        command.args(["--metrics-listen", &metrics]);
        self.metrics = Some(format!("http://{metrics}/metrics"));
        command.env("RUST_BACKTRACE", "0");
        let log = self.dir.join("logs/operator.log");
        let process = Proc::spawn("dockerios-operator", command, &log)?;
        let answers = self.until_admitted(&process).await;
        self.operator = Some(process);
        answers?;
        say::part("operator", "as the ServiceAccount of deploy/rbac", began.elapsed());
        Ok(())
    }

    /// Its webhook is registered and answers.
    async fn until_admitted(&self, process: &Proc) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(90);
        let probe = self.dir.join("manifests/class.yaml");
        loop {
            if let Some(status) = process.exit() {
                bail!(
                    "the operator ended ({status}); its log: {}",
                    process.log_path().display()
                );
            }
            let hooks = self
                .kubectl(&["get", "validatingwebhookconfigurations", "-o", "name"])
                .await?;
            let tried = self
                .kubectl(&["apply", "--dry-run=server", "-f", &probe.display().to_string()])
                .await?;
            if hooks.text.contains("dockerios") && tried.well {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the operator's webhook does not answer after 90 s; the API server says: {}; log: {}",
                    tried.text.trim(),
                    process.log_path().display()
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Runs kubectl.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<Told> {
        let output = Command::new(self.assets.join("kubectl"))
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", &self.dir)
            .current_dir(place(&self.dir))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("run kubectl {}", arguments.join(" ")))?;
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Told {
            well: output.status.success(),
            text: words(&output.stdout) + &words(&output.stderr),
            aside: words(&output.stderr),
        })
    }

    /// Runs kubectl, which has to succeed.
    pub(crate) async fn done(&self, arguments: &[&str]) -> Result<Told> {
        let told = self.kubectl(arguments).await?;
        if !told.well {
            bail!("kubectl {}: {}", arguments.join(" "), told.text.trim());
        }
        Ok(told)
    }

    /// Applies a file as a person would; gives kubectl's warnings.
    pub(crate) async fn apply(&self, file: &str) -> Result<String> {
        say::command(&format!("kubectl apply -f {file}"));
        Ok(self.done(&["apply", "-f", file]).await?.aside)
    }

    /// A table as kubectl prints it.
    pub(crate) async fn table(&self, arguments: &[&str]) -> Result<()> {
        say::output(&self.done(arguments).await?.text);
        Ok(())
    }
}

/// What kubectl answered.
pub(crate) struct Told {
    pub(crate) well: bool,
    /// Both of its outputs.
    pub(crate) text: String,
    /// What it said beside its output: warnings.
    pub(crate) aside: String,
}

/// Where kubectl runs: beside the manifests. The folder may be taken away while the demo is up, and whatever was put into
/// a cluster has to come out all the same.
fn place(dir: &Path) -> PathBuf {
    let manifests = dir.join("manifests");
    if manifests.is_dir() {
        manifests
    } else {
        PathBuf::from("/")
    }
}

/// Three ports that are free now. All are held until the last is found: one that was let go may be found again.
fn free_ports() -> Result<[u16; 3]> {
    let find = || TcpListener::bind("127.0.0.1:0").context("find a free port on 127.0.0.1");
    let held = [find()?, find()?, find()?];
    let port = |held: &TcpListener| Ok::<u16, anyhow::Error>(held.local_addr()?.port());
    Ok([port(&held[0])?, port(&held[1])?, port(&held[2])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_runs_beside_the_manifests_and_still_runs_when_the_folder_was_taken_away() -> Result<()> {
        let outer = tempfile::tempdir()?;
        let dir = outer.path().join("state");
        let lists = |place: PathBuf| Program::new("ls").current_dir(place).output();
        std::fs::create_dir_all(dir.join("manifests"))?;
        std::fs::write(dir.join("manifests/cold.yaml"), "")?;
        assert_eq!(lists(place(&dir))?.stdout, b"cold.yaml\n");
        std::fs::remove_dir_all(&dir)?;
        assert!(lists(place(&dir))?.status.success());
        Ok(())
    }
}
