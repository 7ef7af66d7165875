//! How VMs end: at the guest's own wish, by order, by force, for good.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;

use macrack_agent::life::{Life, Rest};
use macrack_agent::vms::{Command, Vm, wipes};
use macrack_testkit::child::is_alive;
use macrack_wire::VmClient;
use rustix::process::Signal;

use crate::chassis::{Bench, uid, until, until_ready};

#[tokio::test]
async fn a_wipe_stops_the_vm_first_and_leaves_nothing() {
    let bench = Bench::new().await;
    let vm = bench.running(1).await;
    let pid = bench.pid(1);
    let address = bench.state_dir.vm(&uid(1)).read_description().unwrap().mac_address.to_string();
    let leases = bench.state_dir.path().join("chassis/dhcpd_leases");
    fs::write(&leases, format!("{{\n\tname=payroll\n\thw_address=1,{address}\n}}\n")).unwrap();
    vm.order(Command::Wipe);
    let end = until(&vm, "gone", |facts| facts.gone).await;
    assert!(!is_alive(i32::try_from(pid).unwrap()));
    assert_eq!(fs::read_dir(bench.state_dir.vms()).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(leases).unwrap(), "", "the host still knows the guest's name");
    let receipt = end.receipt.unwrap();
    let count = |what: &str| receipt.items.iter().find(|item| item.what == what).map(|item| item.count);
    assert_eq!((count("disks"), count("process"), count("dhcp-leases")), (Some(2), Some(0), Some(1)), "{receipt:?}");
    assert!(count("logs") >= Some(1) && count("state") >= Some(3), "{receipt:?}");
    assert_eq!(wipes(&bench.state_dir.wipes()).unwrap().done[&uid(1)], receipt);
}

#[tokio::test]
async fn a_wipe_that_cannot_be_told_to_be_complete_is_no_success_and_is_tried_again() {
    let mut bench = Bench::new().await;
    let blind = bench.blindfold();
    let vm = bench.made(1).await;
    let dir = bench.state_dir.vm(&uid(1));
    blind.store(true, Ordering::SeqCst);
    vm.order(Command::Wipe);
    let failed = until(&vm, "not wiped", |facts| matches!(facts.life, Life::WipeFailed(_)) || facts.gone).await;
    assert!(!failed.gone && dir.path().exists(), "files went although a process might hold them");
    assert!(failed.life.to_string().contains("the processes are hidden"), "{}", failed.life);
    blind.store(false, Ordering::SeqCst);
    until(&vm, "gone after another try", |facts| facts.gone).await;
    assert!(!dir.path().exists());
}

#[tokio::test]
async fn a_process_that_came_unseen_is_stopped_before_its_vm_is_wiped() {
    let bench = Bench::new().await;
    let vm = bench.made(1).await;
    let (binary, dir) = (bench.around.vm_binary.clone(), bench.state_dir.vm(&uid(1)));
    let pid = macrack_vm::spawn(&binary, dir.path()).unwrap();
    vm.order(Command::Wipe);
    until(&vm, "gone", |facts| facts.gone).await;
    assert!(!is_alive(i32::try_from(pid).unwrap()) && !dir.path().exists());
}

#[tokio::test]
async fn a_wipe_that_comes_while_the_disk_is_cloned_ends_the_clone() {
    let bench = Bench::new().await;
    let dir = bench.state_dir.vm(&uid(1));
    let vm = Vm::make(dir.clone(), bench.around.clone(), bench.making(1, None));
    vm.order(Command::Wipe);
    until(&vm, "gone", |facts| facts.gone).await;
    assert!(!dir.path().exists());
}

#[tokio::test]
async fn a_guest_that_shuts_itself_down_is_told_from_one_that_was_stopped() {
    let bench = Bench::new().await;
    let vm = bench.running(1).await;
    bench.power_button(1);
    until(&vm, "down", |facts| matches!(facts.life, Life::AtRest(Rest::GuestShutdown { .. }))).await;
    vm.order(Command::Start);
    until_ready(&vm).await;
}

#[tokio::test]
async fn a_silent_process_is_ended_by_force_only_under_an_order_and_after_the_grace() {
    let bench = Bench::new().await;
    let vm = bench.running(1).await;
    let pid = i32::try_from(bench.pid(1)).unwrap();
    bench.signal(1, Signal::STOP);
    tokio::time::pause();
    vm.order(Command::Stop);
    // virtual time passes while nothing else can happen: 60 s of grace and 20 s beyond it
    let began = tokio::time::Instant::now();
    until_paused(&vm).await;
    assert!(began.elapsed().as_secs() >= 79, "ended after {:?}", began.elapsed());
    // killed is not gone: the kernel clears it up when it comes to it
    tokio::time::resume();
    let gone = async {
        while is_alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), gone).await.expect("the process is ended by force");
}

async fn until_paused(vm: &Vm) {
    let mut facts = vm.watch();
    facts.wait_for(|facts| facts.life == Life::AtRest(Rest::Ready)).await.unwrap();
}

#[tokio::test]
async fn the_script_is_on_the_host_only_until_the_guest_has_it() {
    let bench = Bench::new().await;
    let dir = bench.state_dir.vm(&uid(1));
    let script = Some(Ok("#!/bin/sh\ntrue\n".to_owned()));
    let vm = Vm::make(dir.clone(), bench.around.clone(), bench.making(1, script));
    until(&vm, "made", |facts| facts.life == Life::AtRest(Rest::Ready)).await;
    assert_eq!(fs::metadata(dir.first_boot()).unwrap().permissions().mode() & 0o777, 0o600);
    vm.order(Command::Start);
    until_ready(&vm).await;
    assert!(!dir.first_boot().exists());
}

#[tokio::test]
async fn a_script_that_cannot_be_fetched_keeps_the_vm_from_being_made_and_says_why() {
    let bench = Bench::new().await;
    let script = Some(Err("Secret tenant/boot does not exist; make it".to_owned()));
    let vm = Vm::make(bench.state_dir.vm(&uid(1)), bench.around.clone(), bench.making(1, script));
    let partial = until(&vm, "not made", |facts| matches!(facts.life, Life::Partial { .. })).await;
    assert!(partial.life.to_string().contains("Secret tenant/boot"), "{}", partial.life);
}

#[tokio::test]
async fn a_vm_answers_on_its_socket_to_its_user_alone() {
    let bench = Bench::new().await;
    let _vm = bench.running(1).await;
    let socket = bench.state_dir.vm(&uid(1)).socket();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o077, 0);
    let patience = std::time::Duration::from_secs(5);
    let report = VmClient::connect(&socket, patience).await.unwrap().describe().await.unwrap();
    assert_eq!(report.pid, bench.pid(1));
}
