//! The agent dies, the Node dies: the VMs do not notice.

use macrack_api::instance::macos_instance::GuestStage;
use macrack_api::names;
use macrack_api::rack::node::{Order, VmState};
use macrack_testkit::child::is_alive;
use macrack_testkit::expect;

use crate::by_hand::{Rack, SOON};

/// The process and its start, as the process itself wrote them.
fn life_of(rack: &Rack, uid: &str) -> (u32, String) {
    let report = rack.vm_dir(uid).read_state().unwrap().unwrap().report;
    (report.pid, report.started_at.to_string())
}

#[tokio::test]
async fn a_vm_becomes_ready_and_outlives_its_agent_and_its_node() {
    let mut rack = Rack::leased("restart").await;
    let node = rack.until_node_ready().await;
    let capacity = node.status.as_ref().unwrap().capacity.as_ref().unwrap();
    assert_eq!(capacity[names::MACOS_VM].0, "2");
    assert_eq!(node.spec.as_ref().unwrap().taints.as_ref().unwrap()[0].key, names::TAINT_LEASE);

    let uid = rack.instance("build-1", None).await;
    rack.order(&[("build-1", &uid, Order::Run)]).await;
    let waiting = rack.until_vm(&uid, "waiting", |vm| vm.state == VmState::Waiting).await;
    assert!(waiting.message.unwrap().contains("placeholder"), "nothing starts without its pod");
    rack.placeholder("build-1", &uid).await;
    rack.until_ready(&uid).await;
    let instances = rack.instances();
    let instance = expect::until_seen(&instances, "build-1", "ready", SOON, |instance| {
        let guest = instance.status.as_ref().and_then(|status| status.guest.as_ref());
        guest.is_some_and(|guest| guest.stage == Some(GuestStage::Ready))
    });
    let guest = instance.await.status.unwrap().guest.unwrap();
    assert_eq!(guest.os_version.as_deref(), Some("26.1"), "as the golden's manifest says");
    let pod = names::placeholder("build-1");
    expect::until_seen(&rack.pods(), &pod, "Running", SOON, |pod| {
        pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
    })
    .await;

    // the agent dies, and another takes its place
    let before = life_of(&rack, &uid);
    rack.agent.kill9().unwrap();
    assert!(is_alive(i32::try_from(before.0).unwrap()), "the VM died with its agent");
    rack.agent.restart().unwrap();
    let log = format!("found running vm={uid}");
    rack.agent.until_logged(&log, SOON).await.unwrap();
    rack.until_ready(&uid).await;
    assert_eq!(life_of(&rack, &uid), before, "the VM was started again");

    // the Node is deleted, and made again as the operator does: its old tokens are dead
    rack.delete_node().await;
    rack.make_node().await;
    rack.until_node_ready().await;
    rack.agent.until_logged("has a token bound to its Node", SOON).await.unwrap();
    rack.until_ready(&uid).await;
    assert_eq!(life_of(&rack, &uid), before, "the VM was started again");
    assert!(rack.agent.is_running());
}

#[tokio::test]
async fn rights_that_are_lost_stop_no_vm_and_hinder_no_wipe() {
    let rack = Rack::leased("rights").await;
    let uid = rack.instance("build-1", None).await;
    rack.order(&[("build-1", &uid, Order::Run)]).await;
    rack.placeholder("build-1", &uid).await;
    rack.until_ready(&uid).await;
    let before = life_of(&rack, &uid);
    rack.revoke().await;
    // a restarted agent has no watch left over from before
    rack.agent.kill9().unwrap();
    let mut rack = rack;
    rack.agent.restart().unwrap();
    rack.agent.until_logged("inventory", SOON).await.unwrap();
    rack.until_ready(&uid).await;
    assert_eq!(life_of(&rack, &uid), before);
    rack.order(&[("build-1", &uid, Order::Wipe)]).await;
    rack.until_vm(&uid, "wiped", |vm| vm.state == VmState::Wiped).await;
    assert!(!rack.vm_dir(&uid).path().exists());
}
