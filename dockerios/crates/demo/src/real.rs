//! A cluster that is there already: what is asked of it before anything is put into it.

use anyhow::{Context as _, Result, bail};

use crate::{cluster::Cluster, files, say};

/// What the demo makes outside namespaces, or as one; in the cluster before, it is not the demo's to remove.
const OURS: &str = "namespace/dockerios-system namespace/dockerios-sim namespace/kubevirt namespace/team-checkout \
                    namespace/team-signing namespace/team-trial storageclass/fast csidriver/rbd.csi.ceph.com node/kvm-1 \
                    node/kvm-2 apiservice/v1.subresources.kubevirt.io";

/// Refuses a cluster in which the product is in use; true when KubeVirt or CDI is there.
pub(crate) async fn look(cluster: &Cluster) -> Result<bool> {
    let told = cluster.done(&["get", "crd", "-o", "name"]).await?;
    if let Some(found) = told.text.lines().find(|line| line.ends_with(".dockerios.io")) {
        bail!(
            "{found} is in this cluster: DockerIOS is in use there, and the demo takes out at its end what it puts in. Use \
             another cluster, or remove those definitions first"
        );
    }
    Ok(told.text.lines().any(|line| line.ends_with("kubevirt.io")))
}

/// Refuses a cluster that holds what the demo would make, and remove.
pub(crate) async fn free(cluster: &Cluster) -> Result<()> {
    let mut arguments = vec!["get", "--ignore-not-found", "-o", "name"];
    arguments.extend(OURS.split_whitespace());
    let told = cluster.done(&arguments).await?;
    if let Some(found) = told.text.lines().find(|line| !line.trim().is_empty()) {
        bail!("{found} is in this cluster, and the demo would make and remove one of that name: use another cluster");
    }
    Ok(())
}

/// Refuses a cluster whose API server is elsewhere: it could reach neither the simulator nor the operator's webhook.
pub(crate) async fn loopback(cluster: &Cluster) -> Result<()> {
    let told = cluster
        .kubectl(&[
            "config",
            "view",
            "--minify",
            "-o",
            "jsonpath={.clusters[0].cluster.server}",
        ])
        .await?;
    let server = told.text.trim();
    if !["https://127.0.0.1:", "https://localhost:", "https://[::1]:"]
        .iter()
        .any(|start| server.starts_with(start))
    {
        bail!(
            "the API server {server} is on another machine. KubeVirt would be played by this one, on loopback, where \
             that API server reaches nothing: leave --kubeconfig out to get a control plane here, or give one of this machine"
        );
    }
    say::note(
        "Goes into your cluster, and out of it at the end: DockerIOS' definitions, roles, policies and operator; \
         definitions, storage class fast, two nodes and webhooks of what plays KubeVirt and CDI; namespaces \
         dockerios-system, dockerios-sim, kubevirt, team-checkout, team-signing, team-trial.",
    );
    Ok(())
}

/// KubeVirt works there, and would fight the simulator: shows what needs no node and says what does.
pub(crate) async fn beside_kubevirt(cluster: &mut Cluster) -> Result<()> {
    say::note(
        "KubeVirt or CDI is in this cluster. The simulator would fight it, so nothing is played and no operator is started. \
         The definitions and policies go in, the samples are tried against them, and they go out again.",
    );
    cluster.entered = true;
    cluster.install().await?;
    for file in files::installed("samples")? {
        let path = file.display().to_string();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let told = cluster.kubectl(&["apply", "--dry-run=server", "-f", &path]).await?;
        say::command(&format!("kubectl apply --dry-run=server -f deploy/samples/{name}"));
        say::output(told.text.trim_end());
    }
    let docs = files::deploy().join("../docs").canonicalize().context("find docs/")?;
    say::note(format!(
        "What needs real nodes: a launcher with nvme and isa-applesmc, KVM, a golden image of yours, an SMC key of yours. \
         {}/launcher.md and host-preparation.md say how.",
        docs.display()
    ));
    Ok(())
}
