//! The cluster, and people who use it by kubectl.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use macrack_testkit::{ControlPlane, Options};
use tokio::io::AsyncWriteExt;

/// How long the demo's tokens live: who plays with it all day is not locked out.
const TOKEN_SECONDS: i64 = 7 * 24 * 3600;

/// What a command gave.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// The standard output of a command that must have worked.
    pub(crate) fn worked(self) -> Result<String> {
        if !self.success {
            bail!("{}{}", self.stderr, self.stdout);
        }
        Ok(self.stdout)
    }

    /// What was said about a command that must have been refused.
    pub(crate) fn refused(self) -> Result<String> {
        if self.success {
            bail!("this must be refused, but was accepted: {}", self.stdout);
        }
        let said = self.stderr.trim();
        // kubectl's own words around the API server's message
        let message = said.split_once("denied the request: ").map_or(said, |(_, message)| message);
        Ok(message.to_owned())
    }
}

/// Somebody with a kubeconfig.
#[derive(Clone, Debug)]
pub(crate) struct Person {
    kubeconfig: PathBuf,
}

/// A control plane of our own, or somebody's cluster.
pub(crate) struct Cluster {
    plane: ControlPlane,
    kubectl: PathBuf,
    /// Where kubectl finds its plugin.
    path: OsString,
    /// Where it runs: so that `-f samples/lease.yaml` is what is typed.
    deploy: PathBuf,
    dir: PathBuf,
}

impl Cluster {
    /// Starts a control plane, or takes the cluster of `kubeconfig`.
    pub(crate) async fn new(assets: &Path, bin_dir: &Path, dir: &Path, kubeconfig: Option<&Path>) -> Result<Cluster> {
        let plane = match kubeconfig {
            Some(path) => ControlPlane::external(path)?,
            None => {
                let options = Options { assets: Some(assets.to_owned()), dir: Some(dir.join("control-plane")) };
                tokio::task::spawn_blocking(|| ControlPlane::start(options)).await??
            }
        };
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(
            [bin_dir.to_owned(), assets.to_owned()].into_iter().chain(std::env::split_paths(&inherited)),
        )?;
        let deploy = deploy()?;
        Ok(Cluster { plane, kubectl: assets.join("kubectl"), path, deploy, dir: dir.to_owned() })
    }

    /// True when it outlives the demo.
    pub(crate) fn is_external(&self) -> bool {
        self.plane.is_external()
    }

    /// URL of its API server.
    pub(crate) fn server(&self) -> &str {
        self.plane.server()
    }

    /// The admin's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        self.plane.kubeconfig()
    }

    /// The folder of the manifests.
    pub(crate) fn deploy(&self) -> &Path {
        &self.deploy
    }

    /// A client as the admin.
    pub(crate) async fn admin(&self) -> Result<Client> {
        self.plane.admin().await
    }

    /// The admin, by kubectl.
    pub(crate) fn admin_person(&self) -> Person {
        Person { kubeconfig: self.plane.kubeconfig().to_owned() }
    }

    /// A kubeconfig for a ServiceAccount, in the demo's folder.
    pub(crate) async fn account(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let answer: TokenRequest = accounts
            .create_subresource("token", account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token of ServiceAccount {namespace}/{account}"))?;
        let token = answer.status.and_then(|status| status.token).ok_or_else(|| anyhow!("no token was granted"))?;
        let written = self.plane.kubeconfig_for(&token)?;
        let kept = self.dir.join(format!("{namespace}.kubeconfig"));
        std::fs::rename(&written, &kept).with_context(|| format!("write {}", kept.display()))?;
        Ok(kept)
    }

    /// A tenant, by kubectl.
    pub(crate) async fn tenant(&self, namespace: &str) -> Result<Person> {
        Ok(Person { kubeconfig: self.account(namespace, "tenant").await? })
    }

    /// Runs kubectl; the arguments are separated by blanks, as they are printed.
    pub(crate) async fn kubectl(&self, person: &Person, arguments: &str) -> Result<Output> {
        self.run(person, &arguments.split_whitespace().collect::<Vec<_>>(), "").await
    }

    /// Runs kubectl with these arguments and this input.
    pub(crate) async fn run(&self, person: &Person, arguments: &[&str], input: &str) -> Result<Output> {
        let mut child = tokio::process::Command::new(&self.kubectl)
            .args(arguments)
            .env("KUBECONFIG", &person.kubeconfig)
            .env("KUBECACHEDIR", self.dir.join("kubectl-cache"))
            .env("PATH", &self.path)
            .current_dir(&self.deploy)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {}", self.kubectl.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // a kubectl that ends without reading is judged by its own words
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let output = child.wait_with_output().await.context("read kubectl's output")?;
        Ok(Output {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// The workspace's manifests.
fn deploy() -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    path.canonicalize().with_context(|| format!("the manifests in {}; run ./demo in the checkout", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_servers_message_without_the_words_around_it() {
        let refused =
            |stderr: &str, success| Output { success, stdout: String::new(), stderr: stderr.into() }.refused();
        let said = "Error from server: error when creating \"x\": admission webhook \"w\" denied the request: [rule] x: y; z\n";
        assert_eq!(refused(said, false).unwrap(), "[rule] x: y; z");
        assert_eq!(refused("error: no such file\n", false).unwrap(), "error: no such file");
        assert!(refused("", true).unwrap_err().to_string().contains("must be refused"));
    }
}
