//! The whole Mac under its agent: it shuts down, its clock is off, a pod that is not MacRack's sits on it. Operator, agent,
//! VM processes and guests are the product's own; only the Mac is simulated.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use macrack_acceptance::{Mac, Rack, SOON, mac, objects};
use macrack_api::{
    MacNode, MacNodeLease, MacOSInstance, condition, instance::macos_instance::MacOSInstancePhase as Phase,
    rack::node::MacNodeStatus,
};
use macrack_testkit::{Namespace, child::is_alive, expect};
use macrack_vm::sim::Fault;
use serde_json::json;

/// A VM's whole way from its order to Ready, on a machine that others use too.
const START: Duration = Duration::from_secs(90);
/// What launchd leaves its jobs, and something for the machine.
const LAUNCHD: Duration = Duration::from_secs(30);

struct Stage {
    admin: Client,
    ns: Namespace,
    mac: Mac,
    name: String,
}

impl Stage {
    async fn set(name: &str, serial: &str, minor: u32) -> Result<Stage> {
        let rack = Rack::shared();
        let admin = rack.plane.admin().await?;
        objects::make(&admin, &objects::node_class(name)).await?;
        objects::make(&admin, &objects::instance_class(name)).await?;
        mac::golden_of(rack, name, minor).await?;
        let ns = Namespace::fresh(rack.plane, name).await?;
        let mac = Mac::enrol(rack, serial, name).await?;
        Ok(Stage { admin, ns, mac, name: name.to_owned() })
    }

    /// The uid of an instance that is Ready on this Mac.
    async fn runs(&self, instance: &str) -> Result<String> {
        objects::make_in(&self.admin, self.ns.name(), &objects::lease("ci", &self.name)).await?;
        let leases: Api<MacNodeLease> = Api::namespaced(self.admin.clone(), self.ns.name());
        let bound = |l: &MacNodeLease| l.status.as_ref().is_some_and(|s| s.bound_at.is_some());
        expect::until_seen(&leases, "ci", "bound", SOON, bound).await;
        let wanted = objects::instance(instance, "ci", &self.name, &self.name);
        objects::make_in(&self.admin, self.ns.name(), &wanted).await?;
        self.until(instance, "Ready", |i| phase(i) == Some(Phase::Ready)).await.uid().context("no uid")
    }

    async fn until(&self, name: &str, what: &str, is: impl Fn(&MacOSInstance) -> bool + Sync) -> MacOSInstance {
        let instances: Api<MacOSInstance> = Api::namespaced(self.admin.clone(), self.ns.name());
        expect::until_seen(&instances, name, what, START, is).await
    }

    async fn until_mac(&self, what: &str, is: impl Fn(&MacNodeStatus) -> bool + Sync) -> MacNodeStatus {
        let nodes: Api<MacNode> = Api::all(self.admin.clone());
        let is = |n: &MacNode| n.status.as_ref().is_some_and(&is);
        let node = expect::until_seen(&nodes, &self.mac.serial.to_lowercase(), what, START, is).await;
        node.status.unwrap_or_default()
    }

    async fn until_node(&self, what: &str, is: impl Fn(&NodeCondition) -> bool + Sync) {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let name = format!("macrack-{}", self.mac.serial.to_lowercase());
        expect::until_seen(&nodes, &name, what, START, |node| ready(node).is_some_and(&is)).await;
    }

    /// The notes of the events of one reason about this Mac.
    async fn events(&self, reason: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::all(self.admin.clone());
        let of = format!("involvedObject.name={},reason={reason}", self.mac.serial.to_lowercase());
        let found = events.list(&ListParams::default().fields(&of)).await?.items;
        Ok(found.into_iter().map(|event| event.message.unwrap_or_default()).collect())
    }

    async fn until_told(&self, reason: &str, within: Duration) -> Vec<String> {
        let told = async || self.events(reason).await.is_ok_and(|events| !events.is_empty());
        expect::until_effective(&format!("an event {reason}"), within, told).await;
        self.events(reason).await.unwrap_or_default()
    }

    fn process(&self, uid: &str) -> Result<i32> {
        let running = self.mac.chassis.running()?;
        let (pid, _) = running.into_iter().find(|(_, of)| of == uid).context("no process holds that VM")?;
        Ok(i32::try_from(pid)?)
    }
}

fn phase(instance: &MacOSInstance) -> Option<Phase> {
    instance.status.as_ref()?.phase
}

fn starts(instance: &MacOSInstance) -> i64 {
    let vm = instance.status.as_ref().and_then(|status| status.vm.as_ref());
    vm.map_or(0, |vm| i64::from(vm.starts))
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == "Ready")
}

fn says(status: &MacNodeStatus, type_: &str) -> (bool, String) {
    let found = condition::find(&status.conditions, type_).map(|c| c.reason.clone());
    (condition::is_true(&status.conditions, type_), found.unwrap_or_default())
}

#[tokio::test]
async fn a_restart_of_the_agent_stops_nothing_and_a_restart_of_the_mac_stops_its_vms_cleanly_and_says_so() -> Result<()>
{
    let mut stage = Stage::set("downs", "DOWNS00001", 51).await?;
    let uid = stage.runs("vm").await?;
    let process = stage.process(&uid)?;

    // launchctl kickstart, an upgrade
    stage.mac.agent.terminate(SOON).await?;
    assert!(stage.mac.agent.log().contains("the VMs live on"), "{}", stage.mac.agent.log());
    assert!(is_alive(process), "the VM goes with its agent");
    let nodes: Api<Node> = Api::all(stage.admin.clone());
    let node = nodes.get("macrack-downs00001").await?;
    assert_eq!(ready(&node).map(|c| c.status.as_str()), Some("True"), "{node:?}");
    stage.mac.agent.restart()?;
    stage.mac.agent.until_logged("inventory: 1 VMs on this Mac", SOON).await?;
    assert!(is_alive(process));
    assert_eq!(starts(&stage.until("vm", "Ready", |i| phase(i) == Some(Phase::Ready)).await), 1);

    // shutdown -r now
    let (chassis, boots) = (stage.mac.chassis.clone(), stage.mac.chassis.read()?.boots);
    let goes_down = tokio::task::spawn_blocking(move || chassis.restart_in_order(LAUNCHD));
    let down = |c: &NodeCondition| c.status == "False" && c.reason.as_deref() == Some("NodeShutdown");
    stage.until_node("Ready=False, NodeShutdown", down).await;
    assert!(goes_down.await??, "something was still there when launchd's patience ended:\n{}", stage.mac.agent.log());
    stage.mac.goes_down(boots, SOON).await?;
    let log = stage.mac.agent.log();
    assert!(log.contains("the API server knows that this Mac goes down"), "{log}");
    let last = stage.mac.vm(&uid).read_state()?.context("its last state")?;
    assert_eq!(last.report.stop_cause, Some(macrack_wire::StopCause::Requested), "{last:?}");
    let said = stage.until_mac("not Ready for its shutdown", |s| {
        condition::find(&s.conditions, "AgentReady").is_some_and(|c| c.message.contains("is being shut down"))
    });
    let agent = said.await.agent.context("no report")?;
    assert!(agent.vms.iter().all(|vm| vm.state.at_rest()), "{:?}", agent.vms);

    stage.mac.comes_up()?;
    stage.until_node("Ready", |c| c.status == "True").await;
    stage.until("vm", "Ready again", |i| phase(i) == Some(Phase::Ready) && starts(i) == 2).await;
    Ok(())
}

#[tokio::test]
async fn a_clock_that_is_off_is_told_and_leases_nothing_and_touches_no_vm() -> Result<()> {
    let stage = Stage::set("clocks", "CLOCKS0001", 52).await?;
    let uid = stage.runs("vm").await?;
    let process = stage.process(&uid)?;
    assert_eq!(stage.events("InStep").await?, Vec::<String>::new(), "a clock that was never off is no news");

    stage.mac.chassis.set_fault(Fault::ClockOffsetSeconds(-4000))?;
    let skewed = |s: &MacNodeStatus| says(s, "ClockInStep") == (false, "ClockSkewed".into());
    stage.until_mac("its clock off", skewed).await;
    let told = stage.until_told("ClockSkewed", SOON).await;
    assert!(told.iter().all(|note| note.contains("behind the API server's")), "{told:?}");
    assert!(is_alive(process), "a VM was touched for a clock");
    assert_eq!(starts(&stage.until("vm", "Ready", |i| phase(i) == Some(Phase::Ready)).await), 1);

    stage.mac.chassis.set_fault(Fault::ClockOffsetSeconds(0))?;
    stage.until_mac("its clock right", |s| says(s, "ClockInStep") == (true, "InStep".into())).await;
    stage.until_told("InStep", SOON).await;

    // a Mac without a lease
    objects::make(&stage.admin, &objects::node_class("clockb")).await?;
    let free = Mac::enrol(Rack::shared(), "CLOCKB0001", "clockb").await?;
    let nodes: Api<MacNode> = Api::all(stage.admin.clone());
    for (seconds, leasable, reason) in
        [(200, true, "Available"), (400, false, "ClockSkewed"), (-400, false, "ClockSkewed"), (0, true, "Available")]
    {
        free.chassis.set_fault(Fault::ClockOffsetSeconds(seconds))?;
        let in_step = seconds == 0;
        let seen = |n: &MacNode| {
            let status = n.status.clone().unwrap_or_default();
            says(&status, "Leasable") == (leasable, reason.into()) && says(&status, "ClockInStep").0 == in_step
        };
        expect::until_seen(&nodes, "clockb0001", &format!("{seconds}s off"), START, seen).await;
    }
    assert!(is_alive(process));
    Ok(())
}

#[tokio::test]
async fn a_pod_that_was_bound_to_a_mac_while_the_policies_were_away_is_told_with_the_way_out_that_works() -> Result<()>
{
    let stage = Stage::set("foreign", "FOREIGN001", 53).await?;
    let plane = Rack::shared().plane;
    let policies = macrack_acceptance::rack::deploy().join("policies/pods.yaml").display().to_string();
    plane.kubectl(&["delete", "-f", &policies, "--ignore-not-found"]).await?.success()?;
    let pods: Api<Pod> = Api::namespaced(stage.admin.clone(), stage.ns.name());
    let stray: Pod = objects::object(json!({
        "metadata": { "name": "stray" },
        "spec": { "nodeName": "macrack-foreign001", "containers": [{ "name": "c", "image": "none" }] },
    }));
    let bound = async || pods.create(&Default::default(), &stray).await.is_ok() || pods.get("stray").await.is_ok();
    expect::until_effective("the policies are gone", SOON, bound).await;
    plane.kubectl(&["apply", "--server-side", "-f", &policies]).await?.success()?;

    let told = stage.until_told("ForeignPod", Duration::from_secs(150)).await;
    let way = format!("kubectl delete pod -n {} stray --force --grace-period=0", stage.ns.name());
    assert!(told.iter().any(|note| note.contains(&way) && note.contains("never starts")), "{told:?}");
    // the slower way hangs, as is said
    pods.delete("stray", &DeleteParams::default()).await?;
    assert!(pods.get("stray").await?.metadata.deletion_timestamp.is_some());
    let arguments: Vec<&str> = way.split(' ').skip(1).collect();
    plane.kubectl(&arguments).await?.success()?;
    expect::until_gone(&pods, "stray", SOON).await;
    Ok(())
}
