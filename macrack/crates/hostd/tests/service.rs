//! `macrack-hostd` as a process, on a simulated chassis.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use macrack_hostd::client::{self, HostdError};
use macrack_vm::sim::{Chassis, ChassisSpec, HostPrepared};
use macrack_wire::client::{Client, connect};
use macrack_wire::link::Limits;
use macrack_wire::{HostReport, HostVerb, Role, WireError};
use tempfile::TempDir;

const UID: &str = "0a1b2c3d-0000-4000-8000-00000000b002";
const PATIENCE: Duration = Duration::from_secs(10);

/// A chassis with its `macrack-hostd`, which ends with it.
struct Mac {
    _keep: TempDir,
    state_dir: PathBuf,
    chassis: Chassis,
    child: Child,
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Mac {
    fn new() -> Self {
        Self::heard_by(me())
    }

    fn heard_by(agent_uid: u32) -> Self {
        let keep = tempfile::tempdir().unwrap();
        let state_dir = keep.path().canonicalize().unwrap();
        fs::create_dir(state_dir.join("vms")).unwrap();
        let spec = ChassisSpec {
            serial: "H4XK29Q0LW".into(),
            chip: "Apple M4 Pro".into(),
            model: "Mac16,11".into(),
            cpu_cores: 14,
            memory_bytes: 64 << 30,
            disk_bytes: 1_000_000_000_000,
            link_bits_per_second: 10_000_000_000,
            host_version: "26.1".into(),
            host_prepared: HostPrepared::default(),
        };
        let chassis = Chassis::create(&state_dir, spec).unwrap();
        let child = start(&state_dir, agent_uid);
        Mac { _keep: keep, state_dir, chassis, child }
    }

    fn socket(&self) -> PathBuf {
        macrack_hostd::socket(&self.state_dir)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.state_dir.join("hostd/hostd.log")).unwrap_or_default()
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = start(&self.state_dir, me());
    }
}

impl Drop for Mac {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn command(state_dir: &Path, agent_uid: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_macrack-hostd"));
    command.args(["serve", "--agent-uid", &agent_uid.to_string(), "--state-dir"]).arg(state_dir);
    command.arg("--dhcp-leases").arg(state_dir.join("dhcpd_leases"));
    command
}

/// Starts it and returns once it serves.
fn start(state_dir: &Path, agent_uid: u32) -> Child {
    let mut child = command(state_dir, agent_uid).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let serves = log.by_ref().map(Result::unwrap).any(|line| line.contains("serves"));
    assert!(serves, "it ended before it served");
    std::thread::spawn(move || log.for_each(drop));
    child
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[tokio::test]
async fn an_approval_reboots_once_also_after_a_restart_and_both_calls_are_logged() {
    let mut mac = Mac::new();
    let boot = mac.chassis.boot_id().unwrap();
    client::reboot(&mac.socket(), at(1000), "QuotaStuck").await.unwrap();
    let next = mac.chassis.boot_id().unwrap();
    assert_ne!(next, boot, "it did not reboot");
    mac.restart();
    let again = client::reboot(&mac.socket(), at(1000), "QuotaStuck").await.unwrap_err();
    assert!(
        matches!(&again, HostdError::Repeated(why) if why.contains("another reboot needs another request")),
        "{again}"
    );
    assert_eq!(mac.chassis.boot_id().unwrap(), next, "one approval gave two reboots");
    client::reboot(&mac.socket(), at(1001), "QuotaStuck").await.unwrap();
    assert_ne!(mac.chassis.boot_id().unwrap(), next);
    let log = mac.log();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 6, "{log}");
    assert!(lines.iter().all(|line| line["peer"]["uid"] == me() && line["at"].is_string()), "{log}");
    assert!(lines[3]["outcome"].as_str().unwrap().starts_with("refused: the approval"), "{log}");
    assert_eq!(fs::metadata(mac.state_dir.join("hostd/hostd.log")).unwrap().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_wipe_takes_the_lease_and_the_leftovers_of_one_vm_and_says_so() {
    let mac = Mac::new();
    let leases = "{\n\tname=payroll\n\thw_address=1,2:0:5e:10:0:1\n}\n{\n\thw_address=1,2:0:5e:10:0:2\n}\n";
    fs::write(mac.state_dir.join("dhcpd_leases"), leases).unwrap();
    let vm = mac.state_dir.join("vms").join(UID);
    fs::create_dir(&vm).unwrap();
    fs::write(vm.join("disk.img"), "secret").unwrap();
    let receipt = client::wipe(&mac.socket(), UID, &["02:00:5e:10:00:01".parse().unwrap()]).await.unwrap();
    assert_eq!((receipt.dhcp_leases, receipt.leftovers), (1, 2));
    assert!(!vm.exists());
    let left = fs::read_to_string(mac.state_dir.join("dhcpd_leases")).unwrap();
    assert!(!left.contains("payroll") && left.contains("2:0:5e:10:0:2"), "{left}");
    let again = client::wipe(&mac.socket(), UID, &["02:00:5e:10:00:01".parse().unwrap()]).await.unwrap();
    assert_eq!((again.dhcp_leases, again.leftovers), (0, 0));
}

#[tokio::test]
async fn a_uid_that_is_a_path_and_a_directory_that_is_a_link_are_refused_in_words() {
    let mac = Mac::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "x").unwrap();
    // the table of `macrack_wire::layout::is_uid`, by which the agent makes directories, is that of root too
    for uid in ["", "..", "../../../../../../../../../../../etc", "/etc/passwd", &UID.to_uppercase(), &"-".repeat(36)] {
        let refused = client::wipe(&mac.socket(), uid, &[]).await.unwrap_err();
        assert!(matches!(&refused, HostdError::Refused(why) if why.contains("is no uid")), "{refused}");
    }
    std::os::unix::fs::symlink(outside.path(), mac.state_dir.join("vms").join(UID)).unwrap();
    let refused = client::wipe(&mac.socket(), UID, &[]).await.unwrap_err();
    assert!(matches!(&refused, HostdError::Refused(why) if why.contains("symbolic link")), "{refused}");
    assert!(outside.path().join("kept").exists());
    assert!(mac.log().contains("symbolic link"), "{}", mac.log());
}

#[tokio::test]
async fn a_user_that_is_not_the_agents_is_not_heard_even_if_it_can_open_the_socket() {
    let mac = Mac::heard_by(me() + 1);
    let socket = mac.socket();
    let about = fs::metadata(&socket).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (me() + 1, 0o600));
    let refused = client::reboot(&socket, at(1000), "mine").await.unwrap_err();
    assert!(matches!(refused, HostdError::NotThere(_)), "{refused}");
    assert_eq!(mac.log(), "", "it came as far as the log");
}

#[tokio::test]
async fn a_verb_that_it_has_not_and_a_peer_that_is_no_agent_are_turned_away() {
    let mac = Mac::new();
    let limits = Limits::VM.patient(PATIENCE);
    let stream = connect(&mac.socket(), PATIENCE).await.unwrap();
    let mut odd: Client<_, serde_json::Value, HostReport> =
        Client::greet(stream, limits, Role::Agent, Role::Hostd).await.unwrap();
    let refused = odd.ask(serde_json::json!({ "verb": "Exec", "command": "id" })).await.unwrap_err().to_string();
    assert!(refused.contains("Exec") && refused.contains("unknown variant"), "{refused}");
    let stream = connect(&mac.socket(), PATIENCE).await.unwrap();
    let guest: Result<Client<_, HostVerb, HostReport>, _> =
        Client::greet(stream, limits, Role::Guest, Role::Hostd).await;
    let mut guest = guest.unwrap();
    let turned = guest.ask(HostVerb::Wipe { uid: UID.into(), mac_addresses: Vec::new() }).await.unwrap_err();
    assert!(!matches!(turned, WireError::Refused(_)), "{turned}");
}

#[tokio::test]
async fn what_cannot_be_logged_is_not_done() {
    let mac = Mac::new();
    fs::create_dir(mac.state_dir.join("hostd/hostd.log")).unwrap();
    let boot = mac.chassis.boot_id().unwrap();
    let refused = client::reboot(&mac.socket(), at(1000), "QuotaStuck").await.unwrap_err();
    assert!(matches!(&refused, HostdError::Refused(why) if why.contains("hostd.log")), "{refused}");
    assert_eq!(mac.chassis.boot_id().unwrap(), boot);
}

#[test]
fn a_second_one_and_a_directory_that_others_may_write_are_refused() {
    let mac = Mac::new();
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let second = said(&mut command(&mac.state_dir, me()));
    assert!(second.contains("another macrack-hostd works on"), "{second}");
    let open = mac.state_dir.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = said(command(&mac.state_dir, me()).arg("--dir").arg(&open));
    assert!(refused.contains("only its user may write"), "{refused}");
}
