//! What is found on the host when something does not add up.

use std::fs;

use macrack_api::rack::node::{Order, VmState};
use macrack_testkit::child::is_alive;
use rustix::process::{Pid, Signal, kill_process};

use crate::by_hand::{Rack, SOON};

fn pid(rack: &Rack, uid: &str) -> i32 {
    i32::try_from(rack.vm_dir(uid).read_state().unwrap().unwrap().report.pid).unwrap()
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_vm_that_cannot_be_reached_is_unknown_is_not_killed_and_nothing_starts_beside_it() {
    let mut rack = Rack::leased("silent").await;
    let first = rack.instance("one", None).await;
    let second = rack.instance("two", None).await;
    rack.order(&[("one", &first, Order::Run)]).await;
    rack.placeholder("one", &first).await;
    rack.until_ready(&first).await;
    let silent = pid(&rack, &first);

    rack.agent.kill9().unwrap();
    send(silent, Signal::STOP);
    rack.agent.restart().unwrap();
    rack.order(&[("one", &first, Order::Run), ("two", &second, Order::Run)]).await;
    rack.placeholder("two", &second).await;
    rack.until_vm(&first, "unknown", |vm| vm.state == VmState::Unknown).await;
    let waits = rack.until_vm(&second, "held back", |vm| {
        vm.state == VmState::Waiting && vm.message.as_deref().is_some_and(|why| why.contains("cannot be reached"))
    });
    assert!(waits.await.message.unwrap().contains(&first), "the message names the VM");
    assert!(is_alive(silent));

    // once it answers again everything goes on
    send(silent, Signal::CONT);
    rack.until_ready(&first).await;
    rack.until_ready(&second).await;
    assert_eq!(pid(&rack, &first), silent);
}

#[tokio::test]
async fn an_orphaned_process_is_ended_before_wiped_is_said_and_never_called_a_stuck_counter() {
    let mut rack = Rack::leased("orphan").await;
    let [kept, lost, next] =
        [rack.instance("kept", None).await, rack.instance("lost", None).await, rack.instance("next", None).await];
    rack.order(&[("kept", &kept, Order::Run), ("lost", &lost, Order::Run)]).await;
    rack.placeholder("kept", &kept).await;
    rack.placeholder("lost", &lost).await;
    rack.until_ready(&kept).await;
    rack.until_ready(&lost).await;
    let orphan = pid(&rack, &lost);

    // its directory went, by a hand that did not know better; the process lives on
    rack.agent.kill9().unwrap();
    fs::remove_dir_all(rack.vm_dir(&lost).path()).unwrap();
    rack.agent.restart().unwrap();
    rack.agent.until_logged("inventory: 1 VMs", SOON).await.unwrap();
    rack.order(&[("kept", &kept, Order::Run), ("lost", &lost, Order::Wipe)]).await;
    rack.until_vm(&lost, "wiped", |vm| vm.state == VmState::Wiped).await;
    assert!(!is_alive(orphan), "it was called wiped while its process lived");
    rack.unplace("lost").await;
    rack.order(&[("kept", &kept, Order::Run), ("next", &next, Order::Run)]).await;
    rack.placeholder("next", &next).await;
    rack.until_ready(&next).await;
    rack.until_ready(&kept).await;
    rack.until_quota("not stuck", |quota| !quota.stuck && quota.running == 2).await;
}

#[tokio::test]
async fn an_agent_whose_cluster_is_away_adopts_what_runs_and_leaves_it_running_when_it_ends() {
    let mut rack = Rack::leased("away").await;
    let uid = rack.instance("one", None).await;
    rack.order(&[("one", &uid, Order::Run)]).await;
    rack.placeholder("one", &uid).await;
    rack.until_ready(&uid).await;
    let vm = pid(&rack, &uid);
    rack.agent.kill9().unwrap();
    rack.cut_off();
    rack.agent.restart().unwrap();
    rack.agent.until_logged(&format!("found running vm={uid}"), SOON).await.unwrap();
    let ended = rack.agent.terminate(SOON).await.unwrap();
    assert!(ended.success(), "{ended}");
    assert!(is_alive(vm), "the VM ended with its agent");
    // the lock is free again
    rack.reconnect();
    rack.agent.restart().unwrap();
    rack.until_ready(&uid).await;
    assert_eq!(pid(&rack, &uid), vm);
}
