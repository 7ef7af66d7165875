//! MacRack on the cluster: kinds, roles, policies by kubectl; the operator as a process with the token of its own
//! ServiceAccount.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use macrack_api::names::{OPERATOR_ACCOUNT, SYSTEM_NAMESPACE};
use macrack_testkit::{Child, Program};
use serde_json::json;

use crate::cluster::{Cluster, Person};
use crate::seen::{DEADLINE, until};

/// The operator's process.
pub(crate) struct Operator {
    child: Child,
}

impl Operator {
    /// Its log.
    pub(crate) fn log_path(&self) -> &Path {
        self.child.log_path()
    }
}

/// Refuses a cluster in which MacRack is in use: the demo must neither meddle nor clean up there.
pub(crate) async fn refuse_if_in_use(cluster: &Cluster) -> Result<()> {
    let admin = cluster.admin_person();
    let known = cluster.kubectl(&admin, "api-resources --categories=macrack -o name").await?.worked()?;
    let known: Vec<&str> = known.split_whitespace().collect();
    if known.is_empty() {
        return Ok(());
    }
    let there = cluster.kubectl(&admin, &format!("get {} -A -o name", known.join(","))).await?.worked()?;
    if let Some(first) = there.lines().next() {
        bail!(
            "this cluster already uses MacRack ({} objects, among them {first}): the demo would change and remove them; \
             take another cluster, or none: without --kubeconfig the demo starts its own",
            there.lines().count()
        );
    }
    Ok(())
}

/// Kinds, roles and policies, in the order in which a person installs them.
pub(crate) async fn manifests(cluster: &Cluster) -> Result<usize> {
    let admin = cluster.admin_person();
    for part in ["crds", "rbac", "policies"] {
        let applied = cluster.kubectl(&admin, &format!("apply --server-side -f {part}")).await?;
        applied.worked().with_context(|| format!("installing deploy/{part}"))?;
    }
    let kinds = macrack_api::crds()?;
    let all: Api<CustomResourceDefinition> = Api::all(cluster.admin().await?);
    for kind in &kinds {
        let name = kind.metadata.name.clone().unwrap_or_default();
        until(&all, &name, "served", |crd: &CustomResourceDefinition| {
            let conditions = crd.status.as_ref().and_then(|s| s.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Established" && c.status == "True"))
        })
        .await?;
    }
    Ok(kinds.len())
}

/// Starts the operator and waits until it decides and its webhook is asked.
pub(crate) async fn operator(cluster: &Cluster, bin_dir: &Path, log: &Path, host: Option<&str>) -> Result<Operator> {
    let kubeconfig: PathBuf = cluster.account(SYSTEM_NAMESPACE, OPERATOR_ACCOUNT).await?;
    let host = match host {
        Some(host) => host.to_owned(),
        None => own_address(cluster.server())?,
    };
    let listen = if host == "127.0.0.1" { "127.0.0.1:0" } else { "0.0.0.0:0" };
    let child = Program::new(bin_dir.join("macrack-operator"))
        .env("KUBECONFIG", kubeconfig)
        .env("RUST_LOG", "info,macrack_operator=debug")
        .arg("--image-store=oci")
        .arg(format!("--webhook-listen={listen}"))
        .arg(format!("--webhook-url=https://{host}:{{port}}"))
        .start_logging_to("macrack-operator", log)?;
    child.until_logged("deciding begins", DEADLINE).await?;
    child.until_logged("the webhook is registered", DEADLINE).await?;
    asked(cluster, &cluster.admin_person(), true).await.context("the webhook answers the API server")?;
    Ok(Operator { child })
}

/// Waits until the API server asks the webhook (or no longer does): a lease of a class that does not exist is refused
/// by nobody else. When it takes a new configuration up, no watch tells.
pub(crate) async fn asked(cluster: &Cluster, person: &Person, wanted: bool) -> Result<()> {
    let probe = "apiVersion: rack.macrack.io/v1alpha1\nkind: MacNodeLease\nmetadata: {name: probe, namespace: default}\n\
                 spec: {nodeClassName: no-such-class}\n";
    let last = std::sync::Mutex::new(String::new());
    let turned = async {
        loop {
            let output = cluster.run(person, &["create", "--dry-run=server", "-f", "-"], probe).await?;
            let as_wanted = if wanted { output.stderr.contains("[class-exists]") } else { output.success };
            if as_wanted {
                return anyhow::Ok(());
            }
            *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = output.stderr;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, turned).await {
        Ok(done) => done,
        Err(_) => bail!(
            "the API server still answers a probe with: {}; can it reach this machine? --host names the address at which it does",
            last.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).trim()
        ),
    }
}

/// A tenant: a namespace, and a ServiceAccount that may edit in it.
pub(crate) async fn tenant(cluster: &Cluster, namespace: &str) -> Result<Person> {
    let admin = cluster.admin_person();
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } },
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "tenant", "namespace": namespace } },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
          "metadata": { "name": "tenant", "namespace": namespace },
          "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
          "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": namespace }] },
    ]});
    cluster.run(&admin, &["apply", "-f", "-"], &objects.to_string()).await?.worked()?;
    // without it no pod is admitted
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.admin().await?, namespace);
    until(&accounts, "default", "there", |_: &ServiceAccount| true).await?;
    cluster.tenant(namespace).await
}

/// The address of this machine on its way to the API server.
fn own_address(server: &str) -> Result<String> {
    let authority = server.split_once("://").map_or(server, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let target = if authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        authority.to_owned()
    } else {
        format!("{authority}:443")
    };
    let named = || format!("the way to the API server {server}; --host names this machine's address");
    // connecting a UDP socket sends nothing: it only asks the routing table
    let socket = UdpSocket::bind("0.0.0.0:0").with_context(named)?;
    socket.connect(&target).with_context(named)?;
    Ok(socket.local_addr().with_context(named)?.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_loopback_this_machine_is_loopback() {
        assert_eq!(own_address("https://127.0.0.1:6443").unwrap(), "127.0.0.1");
        assert_eq!(own_address("https://127.0.0.1").unwrap(), "127.0.0.1");
        assert!(own_address("https://no.such.host.invalid:1").unwrap_err().to_string().contains("--host"));
    }
}
