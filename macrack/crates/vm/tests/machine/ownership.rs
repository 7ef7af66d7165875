//! Who owns a VM's directory, and who outlives whom.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use macrack_wire::client::connect;
use macrack_wire::{ErrorClass, StopCause, VmDescription, VmState};
use rustix::process::{Pid, Signal, kill_process_group};

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::rack::{PATIENCE, Rack, VM, stage};

#[tokio::test]
async fn a_second_process_on_one_directory_is_refused_and_leaves_the_first_alone() {
    let rack = Rack::new();
    let dir = rack.make("a");
    let pid = rack.start("a");
    let before = rack.ready("a").await;
    let state = fs::read(dir.state()).unwrap();

    let refused = macrack_vm::spawn(Path::new(VM), dir.path()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
    let log = fs::read_to_string(dir.log()).unwrap();
    assert!(log.contains("Failed to lock auxiliary storage"), "{log}");
    let status = Command::new(VM).args(["run", "--dir"]).arg(dir.path()).status().unwrap();
    assert_eq!(status.code(), Some(4));

    assert_eq!(fs::read(dir.state()).unwrap(), state);
    let after = rack.client("a").await.describe().await.unwrap();
    assert_eq!((after.pid, after.started_at, stage(&after)), (pid, before.started_at, stage(&before)));
    assert_eq!(rack.chassis.live().unwrap(), 1);
}

#[tokio::test]
async fn two_directories_that_share_one_aux_storage_do_not_both_run() {
    let rack = Rack::new();
    let first = rack.make("a");
    rack.start("a");
    rack.running("a").await;
    let second = rack.make("b");
    fs::remove_file(second.path().join("aux.img")).unwrap();
    fs::hard_link(first.path().join("aux.img"), second.path().join("aux.img")).unwrap();
    let refused = macrack_vm::spawn(Path::new(VM), second.path()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
    assert_eq!(rack.chassis.live().unwrap(), 1);
}

#[tokio::test]
async fn a_description_that_breaks_under_a_running_vm_changes_nothing_for_it() {
    let rack = Rack::new();
    let dir = rack.make("a");
    let pid = rack.start("a");
    rack.running("a").await;
    fs::write(dir.description(), "{").unwrap();
    let refused = macrack_vm::spawn(Path::new(VM), dir.path()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
    assert_eq!(rack.running("a").await.pid, pid);
    assert_eq!(dir.read_state().unwrap().unwrap().report.state, VmState::Running);
}

/// A parent in a process group of its own, which is killed whole.
struct Group(Child);

impl Group {
    fn kill(&mut self) {
        let group = Pid::from_raw(self.0.id().try_into().unwrap()).unwrap();
        kill_process_group(group, Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // where the test has not got as far; a child that was waited for is not signalled again
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

#[tokio::test]
async fn a_vm_process_outlives_the_sigkill_of_its_parents_whole_group() {
    let rack = Rack::new();
    let dir = rack.make("a");
    let parent = Command::new("/bin/sh")
        .args(["-c", r#""$0" launch --dir "$1" && echo started && exec sleep 600"#, VM])
        .arg(dir.path())
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn();
    let mut parent = Group(parent.unwrap());
    let lines = BufReader::new(parent.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "started"));
    let ready = rack.ready("a").await;
    parent.kill();

    let alive = rack.client("a").await.describe().await.unwrap();
    assert_eq!((alive.pid, alive.started_at), (ready.pid, ready.started_at));
    assert_eq!(stage(&alive), stage(&ready), "its guest did not notice");
}

#[tokio::test]
async fn a_guest_dies_with_its_vm_process() {
    let rack = Rack::new();
    let dir = rack.make("a");
    rack.start("a");
    rack.ready("a").await;
    let mut guest = connect(&dir.guest_socket(), PATIENCE).await.unwrap();
    rack.chassis.kill("a").unwrap();
    let rest = timeout(Duration::from_secs(4), guest.read_to_end(&mut Vec::new())).await;
    assert!(rest.is_ok(), "its connection ends with it, sooner than it would drop a silent peer");
    // a process that ends closes what it holds one by one: the socket it listens on may go a moment after the connection
    let refused = async {
        while connect(&dir.guest_socket(), PATIENCE).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(Duration::from_secs(4), refused).await.is_ok(), "nobody listens any more");
}

#[tokio::test]
async fn a_killed_vm_starts_again_over_what_it_left_behind() {
    let rack = Rack::new();
    let dir = rack.make("a");
    let first = rack.start("a");
    rack.ready("a").await;
    rack.chassis.kill("a").unwrap();
    assert!(dir.socket().exists(), "a killed process leaves its socket");
    let second = rack.start("a");
    assert_ne!(first, second);
    let ready = rack.ready("a").await;
    let guest = ready.guest.unwrap();
    assert_eq!(guest.os_version.as_deref(), Some("26.1"));
    assert_eq!(guest.xcode_version.as_deref(), Some("26.0.1"));
    assert_eq!(guest.addresses.len(), 1);
}

#[tokio::test]
async fn a_process_that_lingers_after_its_last_word_does_not_take_the_socket_of_the_next_one_along() {
    let rack = Rack::new();
    let dir = rack.make("a");
    let first = rack.start("a");
    rack.ready("a").await;
    // it never says who it is, and the process gives it time to read the last report
    let silent = connect(&dir.socket(), PATIENCE).await.unwrap();
    rack.stop("a", 20).await;
    let second = rack.start("a");
    let gone = async {
        while fs::read_to_string(format!("/proc/{first}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the first process stays");
    assert_eq!(rack.ready("a").await.pid, second);
    drop(silent);
}

#[tokio::test]
async fn what_the_process_leaves_on_disk_is_for_its_own_user() {
    let rack = Rack::new();
    let dir = rack.make("a");
    rack.start("a");
    rack.ready("a").await;
    for path in [dir.socket(), dir.log(), dir.state()] {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} {mode:o}", path.display());
    }
}

#[tokio::test]
async fn files_that_describe_no_vm_fail_the_start_and_name_the_file_and_the_field() {
    let rack = Rack::new();
    type Change = fn(&mut VmDescription);
    let changes: [(&str, &str, Change); 8] = [
        ("uid", "uid \"other\"", |vm| vm.uid = "other".into()),
        ("up", "disk \"../disk.img\"", |vm| vm.disk = "../disk.img".into()),
        ("root", "aux \"/etc/passwd\"", |vm| vm.aux = "/etc/passwd".into()),
        ("odd", "memoryBytes 1234567", |vm| vm.memory_bytes = 1_234_567),
        ("none", "cpuCores is 0", |vm| vm.cpu_cores = 0),
        ("many", "15 cores", |vm| vm.cpu_cores = 15),
        ("anonymous", "machineIdentifier", |vm| vm.machine_identifier = String::new()),
        ("script", "first-boot.sh", |vm| vm.first_boot = true),
    ];
    for (uid, words, change) in changes {
        let dir = rack.make(uid);
        let mut description = rack.description(uid);
        change(&mut description);
        dir.write_description(&description).unwrap();
        rack.start(uid);
        fails(&rack, uid, words).await;
    }
    for (uid, text) in [("empty", ""), ("cut", r#"{"uid": "cut", "#), ("list", "[]")] {
        let dir = rack.make(uid);
        fs::write(dir.description(), text).unwrap();
        rack.start(uid);
        fails(&rack, uid, "vm.json").await;
    }
    let dir = rack.make("huge");
    let description = VmDescription { first_boot: true, ..rack.description("huge") };
    dir.write_description(&description).unwrap();
    fs::write(dir.first_boot(), "#".repeat(200_000)).unwrap();
    rack.start("huge");
    fails(&rack, "huge", "200000 bytes").await;
    assert_eq!(rack.chassis.live().unwrap(), 0);
}

async fn fails(rack: &Rack, uid: &str, words: &str) {
    let report = rack.ended(uid).await;
    assert_eq!(report.state, VmState::Failed, "{uid}");
    assert_eq!(report.stop_cause, Some(StopCause::StartFailed), "{uid}");
    let error = report.error.unwrap();
    assert_eq!(error.class, ErrorClass::InvalidConfiguration, "{uid}: {error}");
    assert!(error.message.contains(words), "{uid}: {error}");
}

#[tokio::test]
async fn a_disk_that_is_none_fails_as_a_disk_image() {
    let rack = Rack::new();
    for (uid, bytes) in [("empty", 0), ("odd", 513)] {
        let dir = rack.make(uid);
        fs::write(dir.path().join("disk.img"), vec![0; bytes]).unwrap();
        rack.start(uid);
        assert_eq!(rack.ended(uid).await.error.unwrap().class, ErrorClass::DiskImage);
    }
}
