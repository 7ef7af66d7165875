//! Takes MacRack out of somebody's cluster again, in the one order that works: what refuses first, then what waits,
//! then the kinds. No lease of the demo is anybody's, so their floors need not be waited for.

use anyhow::{Context, Result};
use macrack_api::names::serving_request;

use crate::cluster::Cluster;

const KINDS: &str = "macosinstances,macnodeleases,macnodes,macosimages,instanceclasses,macnodeclasses,rackconfigs";
/// The objects that the operator keeps, by the label that it gives them.
const KEPT: &str =
    "nodes,roles,rolebindings,clusterroles,clusterrolebindings,serviceaccounts,leases.coordination.k8s.io";

/// Everything that the demo and the operator made.
pub(crate) async fn everything(cluster: &Cluster) -> Result<()> {
    let admin = cluster.admin_person();
    let run = async |arguments: &str| -> Result<String> {
        let output = cluster.kubectl(&admin, arguments).await?;
        output.worked().with_context(|| format!("kubectl {arguments}"))
    };
    run("delete validatingwebhookconfiguration macrack --ignore-not-found").await?;
    run("delete -f policies --ignore-not-found").await?;
    for kinds in [KINDS, "pods -l app.kubernetes.io/managed-by=macrack"] {
        let there = run(&format!("get {kinds} -A --ignore-not-found -o jsonpath={{range.items[*]}}{{.kind}}/{{.metadata.name}}/{{.metadata.namespace}}{{\"\\n\"}}{{end}}")).await;
        // a cluster in which the kinds were never installed has none of them
        for line in there.unwrap_or_default().lines() {
            let mut parts = line.splitn(3, '/');
            let (Some(kind), Some(name)) = (parts.next(), parts.next()) else { continue };
            let namespace = parts.next().filter(|n| !n.is_empty()).map(|n| format!(" -n {n}")).unwrap_or_default();
            let free =
                format!("patch {kind} {name}{namespace} --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}");
            run(&free).await?;
            if kind == "MacNode" {
                // its agent made it, and nothing owns it
                run(&format!("delete csr {} --ignore-not-found", serving_request(name))).await?;
            }
            // a pod on a Mac whose agent is gone is confirmed by nobody
            let at_once = if kind == "Pod" { " --grace-period=0 --force" } else { "" };
            run(&format!("delete {kind} {name}{namespace} --ignore-not-found --wait=false{at_once}")).await?;
        }
    }
    run("delete namespace team-a team-b --ignore-not-found").await?;
    run(&format!("delete {KEPT} -A -l macrack.io/serial --ignore-not-found")).await?;
    run("delete -f crds --ignore-not-found").await?;
    run("delete -f rbac --ignore-not-found").await?;
    Ok(())
}
