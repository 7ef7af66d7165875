//! Takes out of a cluster that was there before what the demo put into it.
//!
//! Invariant: objects before what watches over them, the operator among it; only what the demo is known to have made.

use anyhow::{Result, bail};

use crate::{cluster::Cluster, files, say};

/// Everything. Goes on past what fails, and says all of it.
pub(crate) async fn everything(cluster: &mut Cluster) -> Result<()> {
    if !cluster.entered {
        return Ok(());
    }
    say::line("Taking DockerIOS out of your cluster ...");
    let mut failed = Vec::new();
    if cluster.operator.is_some() {
        for kind in ["macclaim", "macpool", "macs"] {
            remove(cluster, &mut failed, &["delete", kind, "--all", "-A"]).await;
        }
        for kind in [
            "macosmachineclasses",
            "identitypools",
            "machineidentities",
            "macosimages",
            "platformconfigs",
        ] {
            remove(cluster, &mut failed, &["delete", kind, "--all"]).await;
        }
        for namespace in ["team-checkout", "team-signing", "team-trial"] {
            remove(cluster, &mut failed, &["delete", "namespace", namespace]).await;
        }
    }
    drop(cluster.operator.take());
    remove(
        cluster,
        &mut failed,
        &["delete", "validatingwebhookconfigurations", "dockerios"],
    )
    .await;
    for folder in ["policies", "rbac", "crds"] {
        let path = files::deploy().join(folder).display().to_string();
        remove(cluster, &mut failed, &["delete", "-f", &path]).await;
    }
    if cluster.sim.is_some() {
        unplay(cluster, &mut failed).await;
    }
    if !failed.is_empty() {
        bail!("some of it is still there:\n  {}", failed.join("\n  "));
    }
    say::line("Your cluster is as it was.");
    Ok(())
}

async fn unplay(cluster: &mut Cluster, failed: &mut Vec<String>) {
    for arguments in [
        &["delete", "nodes", "kvm-1", "kvm-2"] as &[&str],
        &[
            "delete",
            "validatingwebhookconfigurations,services",
            "dockerios-sim",
            "-n",
            "dockerios-sim",
        ],
        &["delete", "apiservices", "v1.subresources.kubevirt.io"],
        &["delete", "storageclasses", "fast"],
        &["delete", "csidrivers", "rbd.csi.ceph.com"],
        &["delete", "clusterroles,clusterrolebindings", "dockerios-demo-outside"],
    ] {
        remove(cluster, failed, arguments).await;
    }
    drop(cluster.sim.take());
    let Ok(told) = cluster.kubectl(&["get", "crd", "-o", "name"]).await else {
        failed.push("definitions of KubeVirt and CDI".to_owned());
        return;
    };
    // there were none before: crate::real looked
    for name in told.text.lines().filter(|name| name.ends_with(".kubevirt.io")) {
        remove(cluster, failed, &["delete", name]).await;
    }
    for namespace in ["dockerios-sim", "kubevirt"] {
        remove(cluster, failed, &["delete", "namespace", namespace]).await;
    }
}

async fn remove(cluster: &Cluster, failed: &mut Vec<String>, arguments: &[&str]) {
    let whole = [arguments, &["--ignore-not-found", "--timeout=120s"]].concat();
    match cluster.kubectl(&whole).await {
        Ok(told) if told.well => {}
        Ok(told) => failed.push(format!("kubectl {}: {}", arguments.join(" "), told.text.trim())),
        Err(error) => failed.push(format!("{error:#}")),
    }
}
