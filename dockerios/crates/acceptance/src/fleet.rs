//! A cluster with everything in it: the control plane, what is played, the rules, the operator, a platform.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use dockerios_sim::{ClassShape, NodeShape, Options as SimOptions, Programs, Sim};
use dockerios_testkit::{ControlPlane, Options, Scratch, apply_file, apply_yaml, bin};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::json;

use crate::audit::{self, Request};
use crate::make;
use crate::operator::{Operator, Ports};
use crate::template::Template;

/// Where the operator lives, and its ServiceAccount.
pub(crate) const PLATFORM: &str = "dockerios-system";
const ACCOUNT: &str = "dockerios-operator";
/// A node that no scene uses unless it names it.
const SPARE: [&str; 7] = [
    "kvm-lost",
    "kvm-drained",
    "kvm-cancelled",
    "kvm-cordoned",
    "kvm-full",
    "kvm-pair-a",
    "kvm-pair-b",
];

/// What an operator outside the cluster needs beyond `deploy/rbac`: there is no Service in front of it, so it writes
/// its webhook's whole registration, with a URL.
const OUTSIDE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: dockerios-operator-outside}
rules:
- {apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], verbs: [get, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: dockerios-operator-outside}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dockerios-operator-outside}
subjects: [{kind: ServiceAccount, name: dockerios-operator, namespace: dockerios-system}]
";

/// The cluster. Its clients live in [`crate::runtime`].
pub struct Fleet {
    /// The control plane.
    pub plane: ControlPlane,
    /// As admin.
    pub client: Client,
    /// What is played.
    pub sim: Sim,
    /// Whose definitions of KubeVirt's and CDI's kinds are installed.
    pub definitions: &'static str,
    /// Whether there are VolumeSnapshots: their definition is at hand with the real ones alone.
    pub snapshots: bool,
    dir: PathBuf,
    ports: Ports,
    template: Template,
    gpu_template: Template,
    started: AtomicUsize,
    audited: bool,
}

impl Fleet {
    /// Everything but an operator and a platform.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start() -> Result<Fleet> {
        let programs = programs().await?;
        let dir = std::env::temp_dir().join(format!("dios-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let plane = ControlPlane::start(Options {
            api_server_args: audit::arguments(&dir)?,
            ..Options::default()
        })
        .await?;
        let client = plane.client().await?;
        let template = Template::write(&dir.join("template"), &programs.bootdisk, "-v")?;
        let gpu_template = Template::write(&dir.join("gpu-template"), &programs.bootdisk, "-v agdpmod=pikera")?;

        let mut options = SimOptions::new(dir.join("sim"), programs);
        options.nodes.extend(SPARE.map(NodeShape::large));
        options.nodes.extend(make::CARD_NODES.map(|name| {
            let mut node = NodeShape::large(name);
            let card = [make::CARD, make::CARD_AUDIO].map(|device| (device.to_owned(), "1".to_owned()));
            node.resources.extend(card);
            node
        }));
        let card = [(make::CARD, "1002:67DF"), (make::CARD_AUDIO, "1002:AAF0")];
        options
            .permitted_devices
            .extend(card.map(|(name, selector)| (name.to_owned(), selector.to_owned())));
        let thin = [make::THIN, make::COUNTED].map(|name| ClassShape::new(name, "topolvm.io", "copy"));
        options.classes.extend(thin);
        options
            .images
            .insert(make::TEMPLATE_IMAGE.to_owned(), template.folder.clone());
        options
            .images
            .insert(make::GPU_TEMPLATE_IMAGE.to_owned(), gpu_template.folder.clone());
        let real = root().join("../../shared/crds");
        let snapshots = real.join("kubevirt").is_dir() && real.join("snapshot").is_dir();
        let definitions = if real.join("kubevirt").is_dir() {
            options.crds = Some(real);
            "KubeVirt's and CDI's own"
        } else {
            "those of dockerios-kubevirt: the real ones are not at hand"
        };
        eprintln!("definitions of KubeVirt's and CDI's kinds: {definitions}");
        let sim = Sim::start(client.clone(), options).await.context("the simulation")?;

        for folder in ["crds", "rbac", "policies"] {
            for file in yaml(&root().join("deploy").join(folder))? {
                apply_file(&client, file).await?;
            }
        }
        apply_yaml(&client, OUTSIDE).await?;
        let osk = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "smc", "namespace": PLATFORM},
            // invented, of the right length
            "stringData": {"osk": "TESTOSK-".repeat(8)},
        });
        apply_yaml(&client, &osk.to_string()).await?;
        // spares are for who names them: nothing else is scheduled there
        for node in SPARE.into_iter().chain(make::CARD_NODES) {
            make::taint(&client, node).await?;
        }
        let audited = !plane.is_existing();
        let ports = free_ports()?;
        Ok(Fleet {
            plane,
            client,
            sim,
            definitions,
            snapshots,
            dir,
            ports,
            template,
            gpu_template,
            started: AtomicUsize::new(0),
            audited,
        })
    }

    /// The kubeconfig file of the operator's ServiceAccount.
    ///
    /// # Errors
    /// When no token is given.
    pub async fn operators_kubeconfig(&self) -> Result<PathBuf> {
        self.plane.kubeconfig_of_service_account(PLATFORM, ACCOUNT).await
    }

    /// Starts an operator with that kubeconfig; it answers when this returns, unless it is to be `elected`.
    ///
    /// # Errors
    /// When it ends at once.
    pub fn spawn_operator(&self, kubeconfig: &Path, elected: bool) -> Result<Operator> {
        self.spawn_operator_at(kubeconfig, elected, self.ports)
    }

    /// A second one, on ports of its own.
    ///
    /// # Errors
    /// When it ends at once.
    pub fn spawn_another_operator(&self, kubeconfig: &Path) -> Result<Operator> {
        self.spawn_operator_at(kubeconfig, true, free_ports()?)
    }

    fn spawn_operator_at(&self, kubeconfig: &Path, elected: bool, ports: Ports) -> Result<Operator> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let log = self.dir.join(format!("operator-{number}.log"));
        Operator::spawn(kubeconfig, ports, elected, &log)
    }

    /// The platform's configuration and a golden image, once the operator answers; returns when both are Ready.
    ///
    /// # Errors
    /// When they are refused or do not become Ready.
    pub async fn furnish(&self) -> Result<()> {
        let platform = make::platform(&self.template.sha256, &self.gpu_template.sha256);
        make::cluster::<dockerios_api::PlatformConfig>(&self.client, platform).await?;
        let image = make::image(make::IMAGE, make::STORAGE);
        make::cluster::<dockerios_api::MacOSImage>(&self.client, image).await?;
        let platforms: Api<dockerios_api::PlatformConfig> = Api::all(self.client.clone());
        crate::see::condition(&platforms, "default", "Ready", "True").await?;
        let images: Api<dockerios_api::MacOSImage> = Api::all(self.client.clone());
        crate::see::condition(&images, make::IMAGE, "Ready", "True").await?;
        Ok(())
    }

    /// Where the operator tells its metrics.
    pub fn metrics(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports.metrics))
    }

    /// A namespace for a scene.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn namespace(&self, stem: &str) -> Result<Scratch> {
        Scratch::new(&self.plane, stem).await
    }

    /// An API of a kind in a namespace, as admin.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// An API of a cluster-wide kind, as admin.
    pub fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Somebody who may do what the page on removal by force says, with every other right too.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub async fn break_glass(&self) -> Result<Client> {
        self.plane
            .client_as("breaker", &["system:masters", "dockerios:break-glass"])
            .await
    }

    /// The operators' requests so far, as the API server wrote them down.
    ///
    /// # Errors
    /// When the API server does not write them down (an existing cluster), or they cannot be read.
    pub fn requests(&self) -> Result<Vec<Request>> {
        if !self.audited {
            bail!("the API server of an existing cluster was not told to write down requests")
        }
        audit::requests(&self.dir)
    }

    /// The last lines of every operator's log that speak of `word`, for a failure's message.
    pub fn log_about(&self, word: &str) -> String {
        let mut lines = Vec::new();
        for number in 0..self.started.load(Ordering::Relaxed) {
            let text = std::fs::read_to_string(self.dir.join(format!("operator-{number}.log"))).unwrap_or_default();
            lines.extend(text.lines().filter(|line| line.contains(word)).map(str::to_owned));
        }
        let from = lines.len().saturating_sub(25);
        lines[from..].join("\n")
    }

    /// Every operator's whole log.
    pub fn logs(&self) -> Vec<(PathBuf, String)> {
        let numbers = 0..self.started.load(Ordering::Relaxed);
        let path = |number| self.dir.join(format!("operator-{number}.log"));
        numbers
            .map(|n| (path(n), std::fs::read_to_string(path(n)).unwrap_or_default()))
            .collect()
    }

    /// Stops the API server (SIGSTOP): connections stay, nobody answers.
    ///
    /// # Errors
    /// In an existing cluster, whose API server is not ours.
    pub async fn stop_api_server(&self) -> Result<()> {
        self.signal_api_server("-STOP").await
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// As [`Fleet::stop_api_server`].
    pub async fn continue_api_server(&self) -> Result<()> {
        self.signal_api_server("-CONT").await
    }

    async fn signal_api_server(&self, signal: &str) -> Result<()> {
        let part = self.plane.parts().iter().find(|part| part.name() == "kube-apiserver");
        let part = part.context("the API server of an existing cluster is not ours to stop")?;
        let command = std::process::Command::new("kill")
            .arg(signal)
            .arg(part.pid().to_string())
            .status();
        if !command.context("run kill")?.success() {
            bail!("kill {signal} {} failed", part.pid())
        }
        Ok(())
    }

    /// Removes the logs, unless somebody will want to read them. Statics are not dropped, so `main` says it.
    pub fn tidy(&self, well: bool) {
        if well {
            let _ = std::fs::remove_dir_all(&self.dir);
        } else {
            eprintln!(
                "logs of the operators and the API server's audit log: {}",
                self.dir.display()
            );
        }
    }

    /// The SMC's key, which may stand in no log, event or status.
    ///
    /// # Errors
    /// When the Secret cannot be read.
    pub async fn osk(&self) -> Result<String> {
        let secret = self.api::<Secret>(PLATFORM).get("smc").await?;
        let osk = secret
            .data
            .and_then(|mut data| data.remove("osk"))
            .context("the Secret smc has no key osk")?;
        Ok(String::from_utf8(osk.0)?)
    }
}

async fn programs() -> Result<Programs> {
    let built = tokio::task::spawn_blocking(|| {
        bin("dockerios-operator")?;
        anyhow::Ok(Programs {
            hook: bin("dockerios-domain-hook")?,
            guest: bin("dockerios-guest")?,
            bootdisk: bin("dockerios-bootdisk")?,
        })
    });
    built.await.context("the build was cut off")?
}

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn yaml(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut found: Vec<_> = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    // the namespace's file stands before those of what is in it: apply_yaml orders within a file only
    found.sort_by_key(|path| (path.file_stem().is_none_or(|stem| stem != "namespace"), path.clone()));
    Ok(found)
}

/// An operator's ports. All are held until the last is found: one that was let go may be found again.
fn free_ports() -> Result<Ports> {
    let find = || TcpListener::bind("127.0.0.1:0").context("find a free port on 127.0.0.1");
    let [webhook, collector, metrics] = [find()?, find()?, find()?];
    Ok(Ports {
        webhook: webhook.local_addr()?.port(),
        collector: collector.local_addr()?.port(),
        metrics: metrics.local_addr()?.port(),
    })
}

pub(crate) fn free_port() -> Result<u16> {
    let held = TcpListener::bind("127.0.0.1:0").context("find a free port on 127.0.0.1")?;
    Ok(held.local_addr()?.port())
}
