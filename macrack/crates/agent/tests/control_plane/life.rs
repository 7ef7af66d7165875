//! Orders, one after the other, to real VM processes.

use std::fs;

use macrack_api::rack::node::{Order, VmState};
use macrack_testkit::child::is_alive;

use crate::by_hand::Rack;

#[tokio::test]
async fn a_vm_is_stopped_started_again_on_the_same_disk_and_wiped_to_nothing() {
    let rack = Rack::leased("life").await;
    let script = "#!/bin/sh\necho once >> \"$HOME/ran\"\n";
    let uid = rack.instance("build-1", Some(script)).await;
    let never = "99999999-0000-4000-8000-000000000000";
    rack.order(&[("build-1", &uid, Order::Run), ("gone", never, Order::Wipe)]).await;
    rack.until_vm(never, "wiped, for it never was here", |vm| vm.state == VmState::Wiped).await;
    rack.placeholder("build-1", &uid).await;
    rack.until_ready(&uid).await;
    let dir = rack.vm_dir(&uid);
    assert!(!dir.first_boot().exists(), "the script, which may hold secrets, stays on the host");
    let ran = || fs::read_to_string(dir.guest_root().join("ran")).unwrap();
    assert_eq!(ran(), "once\n");
    let first = dir.read_description().unwrap();
    fs::write(dir.path().join("tenant"), "kept").unwrap();

    let report = rack.report().await;
    assert_eq!((report.goldens.len(), report.goldens[0].clones), (1, 1), "{:?}", report.goldens);
    let floor = report.last_lease.unwrap().earliest_release_at.0.to_string();
    assert_eq!(floor, "2026-01-02T00:00:00Z", "the floor is remembered on the Mac itself");

    rack.order(&[("build-1", &uid, Order::Stop)]).await;
    rack.until_vm(&uid, "stopped", |vm| vm.state == VmState::Stopped).await;
    assert_eq!(rack.chassis.live().unwrap(), 0);
    rack.order(&[("build-1", &uid, Order::Run)]).await;
    rack.until_ready(&uid).await;
    assert_eq!(ran(), "once\n", "the script ran again");
    assert!(dir.path().join("tenant").exists(), "the disk was cloned again");
    assert_eq!(dir.read_description().unwrap(), first, "it is another machine now");

    let pid = dir.read_state().unwrap().unwrap().report.pid;
    rack.order(&[("build-1", &uid, Order::Wipe)]).await;
    rack.until_vm(&uid, "wiped", |vm| vm.state == VmState::Wiped).await;
    assert!(!dir.path().exists() && !is_alive(i32::try_from(pid).unwrap()));
    rack.order(&[]).await;
    rack.until_unreported(&uid).await;
}

#[tokio::test]
async fn a_third_vm_never_starts_although_a_slot_says_run() {
    let rack = Rack::leased("third").await;
    let mut uids = Vec::new();
    for name in ["one", "two", "three"] {
        let uid = rack.instance(name, None).await;
        uids.push(uid);
    }
    rack.order(&[("one", &uids[0], Order::Run), ("two", &uids[1], Order::Run)]).await;
    rack.placeholder("one", &uids[0]).await;
    rack.placeholder("two", &uids[1]).await;
    rack.until_ready(&uids[0]).await;
    rack.until_ready(&uids[1]).await;
    let addresses = [0, 1].map(|n| rack.vm_dir(&uids[n]).read_description().unwrap().mac_address);
    assert_ne!(addresses[0], addresses[1]);
    assert_eq!(rack.chassis.live().unwrap(), 2);

    // the cluster was restored from a backup: the slot says something else than what runs
    rack.restore(&[("one", &uids[0], Order::Run), ("three", &uids[2], Order::Run)]).await;
    // and the scheduler was asked to forget one, too
    rack.unplace("two").await;
    rack.placeholder("three", &uids[2]).await;
    let refused = rack.until_vm(&uids[2], "refused", |vm| {
        vm.state == VmState::Waiting && vm.message.as_deref().is_some_and(|why| why.contains("two VMs live"))
    });
    refused.await;
    assert!(!rack.vm_dir(&uids[2]).path().exists(), "its disk was cloned");
    let orphan = rack.until_vm(&uids[1], "reported as the orphan that it is", |vm| vm.state == VmState::Running);
    orphan.await;
    assert_eq!(rack.chassis.live().unwrap(), 2);
}

#[tokio::test]
async fn a_stuck_counter_is_found_out_and_nothing_is_tried_again_in_this_boot() {
    use macrack_vm::sim::Fault;
    let rack = Rack::leased("stuck").await;
    let uid = rack.instance("one", None).await;
    rack.order(&[("one", &uid, Order::Run)]).await;
    rack.placeholder("one", &uid).await;
    rack.until_ready(&uid).await;
    // every end leaves its count behind
    rack.chassis.set_fault(Fault::StickCounter(true)).unwrap();
    for _ in 0..2 {
        rack.order(&[("one", &uid, Order::Stop)]).await;
        rack.until_vm(&uid, "stopped", |vm| vm.state == VmState::Stopped).await;
        rack.order(&[("one", &uid, Order::Run)]).await;
        let on = rack.until_vm(&uid, "started or refused", |vm| match vm.state {
            VmState::Running => vm.guest_ready,
            VmState::Waiting => vm.message.as_deref().is_some_and(|why| why.contains("counter is stuck")),
            _ => false,
        });
        if on.await.state == VmState::Waiting {
            break;
        }
    }
    let quota = rack.until_quota("stuck", |quota| quota.stuck).await;
    assert_eq!(quota.running, 0);
    let starts = rack.starts(&uid);

    // a new agent of the same boot remembers; a new boot forgets
    let mut rack = rack;
    assert!(rack.next_life().await.quota.stuck, "an agent's restart ends it");
    rack.until_vm(&uid, "held back by the next agent", |vm| {
        vm.state == VmState::Waiting && vm.message.as_deref().is_some_and(|why| why.contains("counter is stuck"))
    })
    .await;
    assert_eq!(rack.starts(&uid), starts, "it was tried again");
    rack.agent.kill9().unwrap();
    rack.chassis.set_fault(Fault::StickCounter(false)).unwrap();
    rack.chassis.reboot().unwrap();
    rack.agent.restart().unwrap();
    rack.until_ready(&uid).await;
    let boot = rack.chassis.boot_id().unwrap();
    rack.until_quota("checked in the new boot", |quota| {
        !quota.stuck && quota.checked_boot_id.as_deref() == Some(boot.as_str())
    })
    .await;
}
