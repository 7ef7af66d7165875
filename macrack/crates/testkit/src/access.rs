//! Ways into a control plane: clients, kubeconfig files, kubectl.
//!
//! Clients belong to the runtime they are made in, so a test makes its own.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::io::AsyncWriteExt;

use crate::control_plane::ControlPlane;
use crate::pki::{Pair, write_private};

/// What a kubectl run gave.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error: warnings and refusals.
    pub stderr: String,
}

impl Output {
    /// The standard output of a run that must have succeeded.
    ///
    /// # Errors
    /// When it failed, with all of its output.
    pub fn success(self) -> Result<String> {
        if !self.status.success() {
            bail!("kubectl failed ({}):\n{}{}", self.status, self.stderr, self.stdout);
        }
        Ok(self.stdout)
    }
}

/// The admin's way in, and where further ones are written.
pub(crate) struct Access {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    dir: PathBuf,
    server: String,
    ca_pem: String,
    written: AtomicU64,
}

pub(crate) enum Identity<'a> {
    Pair(&'a Pair),
    Token(&'a str),
}

/// A client by a kubeconfig file.
///
/// # Errors
/// When the file is not a usable kubeconfig.
pub async fn client_from(kubeconfig: &Path) -> Result<Client> {
    Client::try_from(config_from(kubeconfig).await?).with_context(|| format!("a client by {}", kubeconfig.display()))
}

async fn config_from(kubeconfig: &Path) -> Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use {}", kubeconfig.display()))?;
    // a test wants the answer that was given, not the one after three retries
    config.default_retry = false;
    Ok(config)
}

impl Access {
    pub(crate) fn new(kubeconfig: PathBuf, kubectl: PathBuf, dir: PathBuf) -> Result<Access> {
        let cluster = current_cluster(&kubeconfig)?;
        let server = cluster.server.clone().ok_or_else(|| anyhow!("{} names no server", kubeconfig.display()))?;
        let ca_pem = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
            (Some(data), _) => {
                let pem = BASE64_STANDARD.decode(data).context("certificate-authority-data is not base64")?;
                String::from_utf8(pem).context("certificate-authority-data is not PEM")?
            }
            (None, Some(path)) => std::fs::read_to_string(path).with_context(|| format!("read {path}"))?,
            (None, None) => String::new(),
        };
        Ok(Access { kubeconfig, kubectl, dir, server, ca_pem, written: AtomicU64::new(0) })
    }

    pub(crate) async fn admin(&self) -> Result<Client> {
        client_from(&self.kubeconfig).await
    }

    fn fresh_path(&self, what: &str) -> PathBuf {
        self.dir.join(format!("{what}-{}.kubeconfig", self.written.fetch_add(1, Ordering::Relaxed)))
    }
}

impl ControlPlane {
    /// The admin's kubeconfig file (group system:masters).
    pub fn kubeconfig(&self) -> &Path {
        &self.access.kubeconfig
    }

    /// URL of the API server.
    pub fn server(&self) -> &str {
        &self.access.server
    }

    /// The cluster's CA, PEM; empty when an external kubeconfig names none.
    pub fn ca_pem(&self) -> &str {
        &self.access.ca_pem
    }

    /// A client as the admin.
    ///
    /// # Errors
    /// When the kubeconfig is not usable.
    pub async fn admin(&self) -> Result<Client> {
        self.access.admin().await
    }

    /// A client as `user` in `groups` (and `system:authenticated`), by impersonation. Nothing
    /// binds such a user to a role unless the test does.
    ///
    /// # Errors
    /// As for [`ControlPlane::admin`].
    pub async fn as_user(&self, user: &str, groups: &[&str]) -> Result<Client> {
        self.as_user_with(user, groups, HashMap::new()).await
    }

    /// Like [`ControlPlane::as_user`], with the extra claims that an authenticator would add, for
    /// instance `authentication.kubernetes.io/node-name`.
    ///
    /// # Errors
    /// As for [`ControlPlane::admin`].
    pub async fn as_user_with(
        &self,
        user: &str,
        groups: &[&str],
        extra: HashMap<String, Vec<String>>,
    ) -> Result<Client> {
        let mut config = config_from(self.kubeconfig()).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        let all = groups.iter().copied().chain(["system:authenticated"]);
        config.auth_info.impersonate_groups = Some(all.map(str::to_owned).collect());
        config.auth_info.impersonate_user_extra = Some(extra).filter(|e| !e.is_empty());
        Client::try_from(config).with_context(|| format!("a client as {user}"))
    }

    /// A client as a ServiceAccount, by a real token. The account must exist.
    ///
    /// # Errors
    /// When the API server refuses the token.
    pub async fn as_service_account(&self, namespace: &str, name: &str) -> Result<Client> {
        let token = self.token(namespace, name, None).await?;
        client_from(&self.kubeconfig_for(&token)?).await
    }

    /// A token of a ServiceAccount for an hour, bound to an object (a Node, a Pod, a Secret) when
    /// one is given.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn token(&self, namespace: &str, name: &str, bound: Option<BoundObjectReference>) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: bound,
                expiration_seconds: Some(3600),
                ..Default::default()
            }),
            ..Default::default()
        };
        let answer: TokenRequest = accounts
            .create_subresource("token", name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token of ServiceAccount {namespace}/{name}"))?;
        answer.status.and_then(|s| s.token).ok_or_else(|| anyhow!("the TokenRequest came back without a token"))
    }

    /// Writes a kubeconfig file (0600) that presents `token`, for a process.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig_for(&self, token: &str) -> Result<PathBuf> {
        let path = self.access.fresh_path("token");
        let cluster = current_cluster(self.kubeconfig())?;
        write(&path, cluster, "token", Identity::Token(token))?;
        Ok(path)
    }

    /// Runs kubectl as the admin.
    ///
    /// # Errors
    /// When it cannot be run; what it says and how it ends is in the [`Output`].
    pub async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        self.run_kubectl(self.kubeconfig(), args, "").await
    }

    /// Runs kubectl with another kubeconfig.
    ///
    /// # Errors
    /// As for [`ControlPlane::kubectl`].
    pub async fn kubectl_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<Output> {
        self.run_kubectl(kubeconfig, args, "").await
    }

    /// Runs kubectl as the admin with `input` on its standard input (`apply -f -`).
    ///
    /// # Errors
    /// As for [`ControlPlane::kubectl`].
    pub async fn kubectl_with(&self, args: &[&str], input: &str) -> Result<Output> {
        self.run_kubectl(self.kubeconfig(), args, input).await
    }

    /// The kubectl that belongs to this control plane.
    pub fn kubectl_path(&self) -> &Path {
        &self.access.kubectl
    }

    async fn run_kubectl(&self, kubeconfig: &Path, args: &[&str], input: &str) -> Result<Output> {
        let mut child = tokio::process::Command::new(&self.access.kubectl)
            .args(args)
            .env("KUBECONFIG", kubeconfig)
            // discovery is remembered per control plane, not per machine
            .env("KUBECACHEDIR", self.access.dir.join("kubectl-cache"))
            .env("PATH", path_with(self.access.kubectl.parent()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {}", self.access.kubectl.display()))?;
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // a kubectl that ends without reading is judged by its own words
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let (output, ()) = tokio::join!(child.wait_with_output(), feed);
        let output = output.context("read kubectl's output")?;
        Ok(Output {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// kubectl looks for its plugins on PATH: ours stand beside the test's binary.
fn path_with(kubectl: Option<&Path>) -> std::ffi::OsString {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let first = [kubectl.map(Path::to_owned), crate::child::bin_dir().ok()];
    let all = first.into_iter().flatten().chain(std::env::split_paths(&inherited));
    std::env::join_paths(all).unwrap_or_else(|_| AsRef::<OsStr>::as_ref(&inherited).to_owned())
}

fn current_cluster(kubeconfig: &Path) -> Result<Cluster> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let context = read.contexts.iter().find(|c| Some(&c.name) == read.current_context.as_ref());
    let name = context
        .and_then(|c| c.context.as_ref())
        .map(|c| c.cluster.as_str())
        .ok_or_else(|| anyhow!("{} has no current context", kubeconfig.display()))?;
    read.clusters
        .iter()
        .find(|c| c.name == name)
        .and_then(|c| c.cluster.clone())
        .ok_or_else(|| anyhow!("{} lacks the cluster {name} of its current context", kubeconfig.display()))
}

/// Writes the kubeconfig of a component or the admin, everything embedded.
pub(crate) fn write_kubeconfig(path: &Path, server: &str, ca: &Path, user: &str, identity: Identity<'_>) -> Result<()> {
    let cluster =
        Cluster { server: Some(server.to_owned()), certificate_authority_data: Some(embed(ca)?), ..Cluster::default() };
    write(path, cluster, user, identity)
}

fn write(path: &Path, cluster: Cluster, user: &str, identity: Identity<'_>) -> Result<()> {
    let identity = match identity {
        Identity::Token(token) => AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() },
        Identity::Pair(pair) => AuthInfo {
            client_certificate_data: Some(embed(&pair.cert)?),
            client_key_data: Some(embed(&pair.key)?.into()),
            ..AuthInfo::default()
        },
    };
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "macrack", "cluster": cluster}],
        "users": [{"name": user, "user": identity}],
        "contexts": [{"name": user, "context": {"cluster": "macrack", "user": user}}],
        "current-context": user,
    });
    let text = serde_yaml::to_string(&kubeconfig).context("write a kubeconfig as YAML")?;
    write_private(path, text.as_bytes())
}

fn embed(path: &Path) -> Result<String> {
    let content = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(BASE64_STANDARD.encode(content))
}
