//! What stops a third VM: the webhook, and behind it each further stop by itself.

use std::os::unix::fs::symlink;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use macrack_api::names::{self, OPERATOR_ACCOUNT, SYSTEM_NAMESPACE};
use macrack_api::{MacNode, MacNodeLease, MacOSInstance};
use macrack_testkit::Program;
use macrack_wire::VmDir;
use serde_json::{Value, json};

use super::{Stage, ready};
use crate::install::asked;
use crate::say::Tone;
use crate::seen::{DEADLINE, until, until_gone};

/// A third VM on the Mac.
pub(super) async fn a_third(stage: &mut Stage) -> Result<()> {
    let command = "apply -n team-a -f samples/third.yaml";
    stage.say.step(3, "a third", &format!("kubectl {command}"));
    let refusal = stage.cluster.kubectl(&stage.team_a, command).await?.refused()?;
    ensure!(refusal.contains("[two-per-lease]"), "denied for another reason: {refusal}");
    stage.say.quote(format!("{} {refusal}", stage.say.paint(Tone::No, "denied")));
    stage.say.quote("Each of the stops behind the webhook, with those before it out of the way:");
    let leases: Api<MacNodeLease> = Api::namespaced(stage.cluster.admin().await?, "team-a");
    let lease = leases.get("ios-ci").await?;
    let serial = lease.status.and_then(|status| status.serial).context("lease ios-ci names its Mac")?;
    slots(stage, command).await.context("the operator's own stop")?;
    schema(stage, &serial).await.context("the schema's stop")?;
    scheduler(stage).await.context("the scheduler's stop")?;
    kernel(stage, &serial).await.context("the kernel's stop")
}

fn tell(stage: &Stage, who: &str, how: &str, what: &str) {
    stage.say.entry(who, format!("{how}: {}", what.trim()));
}

/// Without the webhook the instance is made, and never gets a slot.
async fn slots(stage: &Stage, command: &str) -> Result<()> {
    let (cluster, admin) = (&stage.cluster, stage.cluster.admin_person());
    let what = "validatingwebhookconfiguration macrack";
    let saved = cluster.kubectl(&admin, &format!("get {what} -o json")).await?.worked()?;
    let saved: Value = serde_json::from_str(&saved)?;
    let again = json!({
        "apiVersion": saved["apiVersion"], "kind": saved["kind"], "webhooks": saved["webhooks"],
        "metadata": { "name": saved["metadata"]["name"], "annotations": saved["metadata"]["annotations"] },
    });
    cluster.kubectl(&admin, &format!("delete {what}")).await?.worked()?;
    let without = async {
        asked(cluster, &admin, false).await?;
        cluster.kubectl(&stage.team_a, command).await?.worked()?;
        let instances: Api<MacOSInstance> = Api::namespaced(cluster.admin().await?, "team-a");
        let failed = until(&instances, "build-3", "Failed (LeaseFull)", |i: &MacOSInstance| {
            i.status.as_ref().is_some_and(|status| ready(&status.conditions).0 == "LeaseFull")
        })
        .await?;
        cluster.kubectl(&stage.team_a, "delete -n team-a mi build-3 --wait=false").await?.worked()?;
        until_gone(&instances, "build-3").await?;
        anyhow::Ok(failed)
    };
    let failed = without.await;
    // whatever came of it, the webhook comes back
    cluster.run(&admin, &["create", "-f", "-"], &again.to_string()).await?.worked()?;
    asked(cluster, &admin, true).await?;
    let (reason, message) = failed?.status.map(|status| ready(&status.conditions)).unwrap_or_default();
    tell(
        stage,
        "operator",
        "webhook removed for a moment, so build-3 is made",
        &format!("Failed ({reason}), {message}"),
    );
    Ok(())
}

/// A slot for a third VM, written with the operator's own rights.
async fn schema(stage: &Stage, serial: &str) -> Result<()> {
    let slot = json!([{ "op": "add", "path": "/status/slots/-", "value": {
        "slot": 1, "uid": "00000000-0000-4000-8000-000000000003", "namespace": "team-a", "name": "build-3", "order": "Run",
    }}]);
    let (admin, name, account) = (stage.cluster.admin_person(), names::mac_node(serial), operator_account());
    let patch = ["patch", "mn", &name, "--subresource=status", "--type=json", "-p", &slot.to_string(), &account];
    let refusal = stage.cluster.run(&admin, &patch, "").await?.refused()?;
    let nodes: Api<MacNode> = Api::all(stage.cluster.admin().await?);
    let slots = nodes.get(&name).await?.status.map_or(0, |status| status.slots.len());
    ensure!(slots == 2, "MacNode {name} has {slots} slots");
    let said = refusal.find("status.slots: Too many").map_or(refusal.as_str(), |at| &refusal[at..]);
    let said = said.lines().next().unwrap_or(said);
    tell(stage, "schema", "a third slot, written as the operator itself", said);
    Ok(())
}

/// A pod like the two placeholders, made with the operator's own rights.
async fn scheduler(stage: &Stage) -> Result<()> {
    let (cluster, admin) = (&stage.cluster, stage.cluster.admin_person());
    let pods: Api<Pod> = Api::namespaced(cluster.admin().await?, "team-a");
    let placeholder = serde_json::to_value(pods.get(&names::placeholder("build-1")).await?)?;
    let kept = ["nodeSelector", "tolerations", "priorityClassName", "automountServiceAccountToken", "securityContext"];
    let mut spec: serde_json::Map<String, Value> =
        kept.into_iter().map(|field| (field.to_owned(), placeholder["spec"][field].clone())).collect();
    let container = &placeholder["spec"]["containers"][0];
    spec.insert(
        "containers".to_owned(),
        json!([{ "name": "vm", "image": container["image"], "resources": container["resources"],
                 "securityContext": container["securityContext"] }]),
    );
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "third", "namespace": "team-a" }, "spec": spec });
    let account = operator_account();
    cluster.run(&admin, &["create", "-f", "-", &account], &pod.to_string()).await?.worked()?;
    let verdict =
        until(&pods, "third", "Pending, as the scheduler says", |pod: &Pod| unschedulable(pod).is_some()).await;
    let away = ["delete", "pod", "third", "-n", "team-a", "--grace-period=0", "--force", &account];
    cluster.run(&admin, &away, "").await?.worked()?;
    let said = unschedulable(&verdict?).unwrap_or_default();
    tell(stage, "scheduler", "a third pod, made as the operator itself", &format!("Pending, {said}"));
    Ok(())
}

fn unschedulable(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    let message = scheduled.message.clone()?;
    Some(message.split(". ").next().unwrap_or(&message).trim_end_matches('.').to_owned())
}

/// A VM process beside the agent, on the same simulated kernel.
async fn kernel(stage: &mut Stage, serial: &str) -> Result<()> {
    const UID: &str = "00000000-0000-4000-8000-000000000003";
    let instances: Api<MacOSInstance> = Api::namespaced(stage.cluster.admin().await?, "team-a");
    let first = instances.get("build-1").await?.uid().context("build-1 has a uid")?;
    let binary = stage.bin_dir.join("macrack-vm");
    let mac = stage.mac(serial)?;
    let mut description = mac.vm(&first).read_description()?;
    // a state directory of its own, on the same Mac: the agent knows nothing of it
    let beside = mac.state_dir.with_file_name("hand");
    let dir = VmDir::new(beside.join("vms").join(UID));
    std::fs::create_dir_all(dir.path())?;
    symlink(mac.state_dir.join("chassis"), beside.join("chassis"))?;
    description.uid = UID.to_owned();
    description.machine_identifier = UID.to_owned();
    description.first_boot = false;
    for image in [&description.disk, &description.aux] {
        std::fs::write(dir.path().join(image), [0; 4096])?;
    }
    dir.write_description(&description)?;
    let process = Program::new(binary).args(["run", "--dir"]).arg(dir.path()).start("third-vm")?;
    let began = Instant::now();
    process.wait(DEADLINE).await?;
    let state = dir.read_state()?.context("the third VM process wrote how it ended")?;
    let error = state.report.error.with_context(|| format!("a third VM runs, after {:.1?}", began.elapsed()))?;
    std::fs::remove_dir_all(&beside)?;
    ensure!(error.domain == "VZErrorDomain" && error.code == 6, "refused for another reason: {error}");
    tell(
        stage,
        "kernel",
        "a third VM process, started by hand beside the agent (on the simulated kernel)",
        &error.to_string(),
    );
    Ok(())
}

fn operator_account() -> String {
    format!("--as=system:serviceaccount:{SYSTEM_NAMESPACE}:{OPERATOR_ACCOUNT}")
}
