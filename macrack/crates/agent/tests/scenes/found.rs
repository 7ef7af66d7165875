//! What a new agent finds.

use std::fs;
use std::io;
use std::sync::Arc;

use macrack_agent::host::{Host, HostFacts, VmProcess};
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

/// A host that says of a process that it serves a directory.
struct Claims {
    inner: Arc<dyn Host>,
    process: VmProcess,
}

impl Host for Claims {
    fn facts(&self) -> io::Result<HostFacts> {
        self.inner.facts()
    }
    fn disk_free(&self) -> io::Result<u64> {
        self.inner.disk_free()
    }
    fn vm_processes(&self) -> io::Result<Vec<VmProcess>> {
        Ok(vec![self.process.clone()])
    }
    fn machine_identifier(&self) -> io::Result<String> {
        self.inner.machine_identifier()
    }
    fn going_down(&self) -> io::Result<bool> {
        self.inner.going_down()
    }
}

#[tokio::test]
async fn a_process_whose_directory_cannot_be_looked_at_is_not_taken_for_one_that_outlived_it() {
    for gone in [false, true] {
        let mut bench = Bench::new().await;
        let dir = bench.state_dir.vm(&uid(1)).path().to_owned();
        if !gone {
            std::os::unix::fs::symlink(&dir, &dir).unwrap();
        }
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let claim = VmProcess { pid: process.id(), dir: Some(dir) };
        bench.around.host = Arc::new(Claims { inner: bench.around.host.clone(), process: claim });
        inventory::take(&bench.state_dir, &bench.around).await.unwrap();
        let killed = if gone { Some(process.wait().unwrap()) } else { process.try_wait().unwrap() };
        assert_eq!(killed.is_some(), gone, "its VM may be a tenant's that runs");
        if !gone {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

/// A program in the place of macrack-vm.
fn stand_in(bench: &mut Bench, does: &str) {
    let (real, fake) = (bench.around.vm_binary.clone(), bench.state_dir.path().join("launcher"));
    fs::write(&fake, format!("#!/bin/sh\nreal={}\ndir=\"$3\"\n{does}\n", real.display())).unwrap();
    fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    bench.around.vm_binary = fake;
}

#[tokio::test]
async fn a_vm_whose_launcher_fails_is_taken_up_all_the_same_where_its_process_came() {
    let mut bench = Bench::new().await;
    stand_in(
        &mut bench,
        "\"$real\" run --dir \"$dir\" >/dev/null 2>&1 &\nuntil [ -S \"$dir/vm.sock\" ]; do sleep 0.05; done\nexit 1",
    );
    let vm = bench.made(1).await;
    vm.order(Command::Start);
    let ready = until(&vm, "ready or failed", |f| f.guest_ready || matches!(f.life, Life::AtRest(_))).await;
    assert_eq!(ready.life, Life::Running, "it runs, and nobody counts it");
    vm.order(Command::Stop);
    until(&vm, "stopped", |facts| facts.life == Life::AtRest(Rest::Ready)).await;
}

#[tokio::test]
async fn a_launcher_that_never_ends_does_not_hold_up_the_orders_to_its_vm() {
    let mut bench = Bench::new().await;
    stand_in(&mut bench, "echo $$ > \"$dir/launcher.pid\"\nexec sleep 100");
    let vm = bench.made(1).await;
    vm.order(Command::Start);
    let file = bench.state_dir.vm(&uid(1)).path().join("launcher.pid");
    let pid = loop {
        match fs::read_to_string(&file).unwrap_or_default().trim().parse::<u32>() {
            Ok(pid) => break pid,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(91)).await;
    tokio::time::resume();
    let failed = until(&vm, "given up", |facts| matches!(facts.life, Life::AtRest(Rest::Failed(_)))).await;
    assert!(failed.life.to_string().contains("has not ended within 90s"), "{}", failed.life);
    crate::chassis::send(pid, Signal::KILL);
}
