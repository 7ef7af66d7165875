//! What a new agent finds.

use std::fs;

use macrack_agent::inventory;
use macrack_agent::life::{Life, Rest};
use macrack_agent::vms::Command;
use macrack_testkit::child::is_alive;
use macrack_vm::sim::Fault;
use rustix::process::Signal;

use crate::chassis::{Bench, uid, until, until_ready};

#[tokio::test]
async fn what_runs_is_adopted_what_crashed_is_told_from_what_was_stopped() {
    let bench = Bench::new().await;
    let running = bench.running(1).await;
    let stopped = bench.running(2).await;
    stopped.order(Command::Stop);
    until(&stopped, "stopped", |facts| facts.life == Life::AtRest(Rest::Ready)).await;
    let crashed = bench.running(3).await;
    bench.signal(3, Signal::KILL);
    until(&crashed, "crashed", |facts| matches!(facts.life, Life::AtRest(Rest::Failed(_)))).await;
    let (started, pid) = (running.facts().report.unwrap().started_at, bench.pid(1));
    drop((running, stopped, crashed));

    let (found, _) = inventory::take(&bench.state_dir, &bench.around).await.unwrap();
    let one = until_ready(&found[&uid(1)]).await;
    let report = one.report.unwrap();
    assert_eq!((report.started_at, report.pid, one.starts), (started, pid, 1), "it was started again");
    assert_eq!(found[&uid(2)].facts().life, Life::AtRest(Rest::Ready));
    assert!(matches!(found[&uid(3)].facts().life, Life::AtRest(Rest::Failed(_))), "{:?}", found[&uid(3)].facts());
    assert_eq!(bench.chassis.live().unwrap(), 1);
}

#[tokio::test]
async fn a_process_that_lives_and_does_not_answer_is_unknown_and_never_killed_unordered() {
    let bench = Bench::new().await;
    drop(bench.running(1).await);
    let pid = bench.pid(1);
    bench.signal(1, Signal::STOP);
    let (found, _) = inventory::take(&bench.state_dir, &bench.around).await.unwrap();
    let vm = &found[&uid(1)];
    let unknown = until(vm, "unknown", |facts| matches!(facts.life, Life::Unknown(_))).await;
    assert!(unknown.life.to_string().contains(&format!("its process {pid} lives")), "{}", unknown.life);
    assert!(is_alive(i32::try_from(pid).unwrap()));
    // it comes to itself: attached again, the same VM
    bench.signal(1, Signal::CONT);
    until_ready(vm).await;
    assert_eq!(bench.pid(1), pid);
}

#[tokio::test]
async fn a_clone_that_a_crash_cut_off_is_made_anew_from_nothing() {
    let bench = Bench::new().await;
    let dir = bench.state_dir.vm(&uid(1));
    fs::create_dir(dir.path()).unwrap();
    fs::write(dir.path().join("disk.img"), "half").unwrap();
    let (found, _) = inventory::take(&bench.state_dir, &bench.around).await.unwrap();
    let vm = &found[&uid(1)];
    assert!(matches!(vm.facts().life, Life::Partial { .. }), "{:?}", vm.facts());
    vm.order(Command::Make(Box::new(bench.making(1, None))));
    until(vm, "made", |facts| facts.life == Life::AtRest(Rest::Ready)).await;
    assert_eq!(fs::metadata(dir.path().join("disk.img")).unwrap().len(), 8 << 20);
}

#[tokio::test]
async fn a_vm_that_went_down_with_its_host_is_told_from_one_that_crashed() {
    let mut bench = Bench::new().await;
    drop(bench.running(1).await);
    bench.chassis.reboot().unwrap();
    bench.around.boot_id = bench.chassis.boot_id().unwrap();
    let vm = bench.adopted(1);
    until(&vm, "found after the reboot", |facts| facts.life == Life::AtRest(Rest::HostRestarted)).await;
    vm.order(Command::Start);
    until_ready(&vm).await;
}

#[tokio::test]
async fn a_wipe_that_was_begun_goes_on_without_an_order_also_where_nothing_but_a_lease_is_left() {
    let bench = Bench::new().await;
    drop(bench.made(1).await);
    // killed: of one VM before the first file went, of another after the last
    for n in [1, 2] {
        let begun = format!(
            "{{\"startedAt\":\"2026-01-01T00:00:00Z\",\"agentVersion\":\"0.0.9\",\"macAddresses\":[\"02:00:5e:10:00:0{n}\"]}}"
        );
        fs::write(bench.state_dir.wipes().join(format!("{}.json", uid(n))), begun).unwrap();
    }
    let leases = bench.state_dir.path().join("chassis/dhcpd_leases");
    fs::write(&leases, "{\n\thw_address=1,2:0:5e:10:0:1\n}\n{\n\thw_address=1,2:0:5e:10:0:2\n}\n").unwrap();
    let (found, _) = inventory::take(&bench.state_dir, &bench.around).await.unwrap();
    for n in [1, 2] {
        let end = until(&found[&uid(n)], "gone", |facts| facts.gone).await;
        assert_eq!(end.receipt.unwrap().started_at.0.to_string(), "2026-01-01T00:00:00Z", "{n}");
    }
    assert_eq!(fs::read_to_string(leases).unwrap(), "");
    assert_eq!(fs::read_dir(bench.state_dir.vms()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_no_vm_of_ours_is_left_alone() {
    let bench = Bench::new().await;
    let strange = bench.state_dir.vms().join(".DS_Store");
    fs::write(&strange, "").unwrap();
    assert!(inventory::take(&bench.state_dir, &bench.around).await.unwrap().0.is_empty());
    assert!(strange.exists());
}

#[tokio::test]
async fn a_start_that_the_kernel_refuses_says_so_and_leaves_the_disk() {
    let bench = Bench::new().await;
    let vm = bench.made(1).await;
    bench.chassis.set_fault(Fault::FailStartWith(Some(6))).unwrap();
    vm.order(Command::Start);
    until(&vm, "refused", |facts| matches!(facts.life, Life::AtRest(Rest::Refused(_)))).await;
    bench.chassis.set_fault(Fault::FailStartWith(Some(2))).unwrap();
    vm.order(Command::Pardon);
    vm.order(Command::Start);
    until(&vm, "failed", |facts| matches!(facts.life, Life::AtRest(Rest::Failed(_)))).await;
    assert!(bench.state_dir.vm(&uid(1)).path().join("disk.img").exists());
}
