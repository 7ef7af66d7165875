//! `macrack-guest` as a process, asked over its socket.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use macrack_wire::client::{Client, connect};
use macrack_wire::guest::MAX_SCRIPT;
use macrack_wire::link::Limits;
use macrack_wire::session::Session;
use macrack_wire::{FirstBoot, GuestReport, GuestStage, GuestVerb, ReadinessState, Role, WireError};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);
const RECORD: &str = "Library/Application Support/MacRack/first-boot.json";

type Host = Client<UnixStream, GuestVerb, GuestReport>;

struct Mac {
    directory: TempDir,
    process: Option<Child>,
}

impl Mac {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        Mac { directory, process: None }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("guest.sock")
    }

    fn hold_at(&self, stage: Option<&str>) {
        fs::write(self.root().join("simulation.json"), json!({"holdAt": stage}).to_string()).unwrap();
    }

    fn boot(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_macrack-guest"));
        command.arg("--root").arg(self.root()).arg("--listen").arg(self.socket());
        self.process = Some(command.spawn().unwrap());
    }

    fn cut_the_power(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        let _ = fs::remove_file(self.socket());
    }

    /// Connects as the host does: again and again, for nothing tells when a guest begins to listen.
    async fn host(&self) -> Host {
        let connected = timeout(PATIENCE, async {
            loop {
                if let Ok(stream) = connect(&self.socket(), PATIENCE).await {
                    break stream;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let stream = connected.await.unwrap();
        Client::greet(stream, Limits::GUEST, Role::Vm, Role::Guest).await.unwrap()
    }

    fn runs(&self) -> String {
        fs::read_to_string(self.root().join("runs")).unwrap_or_default()
    }
}

impl Drop for Mac {
    fn drop(&mut self) {
        self.cut_the_power();
    }
}

async fn until(host: &mut Host, wanted: impl Fn(&GuestReport) -> bool) -> GuestReport {
    use macrack_wire::message::Body;
    host.send(GuestVerb::Watch).await.unwrap();
    let watched = timeout(PATIENCE, async {
        loop {
            if let Body::Event(report) = host.next().await.unwrap().unwrap().body
                && wanted(&report)
            {
                return report;
            }
        }
    });
    watched.await.unwrap()
}

fn script(text: &str) -> GuestVerb {
    GuestVerb::RunFirstBoot { script: text.to_owned() }
}

#[tokio::test]
async fn a_guest_is_not_ready_until_its_host_has_said_whether_there_is_a_script() {
    let mut mac = Mac::new();
    mac.boot();
    let mut host = mac.host().await;
    let waiting = until(&mut host, |report| report.stage == GuestStage::UserSession).await;
    assert_eq!(waiting.first_boot, FirstBoot::NotAsked);
    let mut host = mac.host().await;
    let told = host.ask(GuestVerb::NoFirstBoot).await.unwrap();
    assert_eq!((told.stage, told.first_boot), (GuestStage::Ready, FirstBoot::NotNeeded));
    let late = host.ask(script("echo ran >> runs")).await.unwrap_err();
    assert!(late.to_string().contains("no script"), "{late}");
}

#[tokio::test]
async fn a_script_waits_for_the_user_session_over_a_power_cut_and_then_runs_once() {
    let mut mac = Mac::new();
    mac.hold_at(Some("LoginWindow"));
    mac.boot();
    let mut host = mac.host().await;
    let taken = host.ask(script("echo ran >> runs")).await.unwrap();
    assert_eq!(taken.first_boot, FirstBoot::Waiting);
    mac.cut_the_power();
    assert_eq!(mac.runs(), "");

    mac.hold_at(None);
    mac.boot();
    let mut host = mac.host().await;
    let ready = until(&mut host, |report| report.stage == GuestStage::Ready).await;
    assert_eq!(ready.first_boot, FirstBoot::Done { exit_code: 0 });
    assert_eq!(mac.runs(), "ran\n");
}

#[tokio::test]
async fn a_script_that_is_asked_for_again_and_again_runs_once_and_is_the_first_one() {
    let mut mac = Mac::new();
    mac.boot();
    let mut host = mac.host().await;
    for text in ["echo first >> runs", "echo second >> runs", "echo third >> runs"] {
        host.ask(script(text)).await.unwrap();
    }
    until(&mut host, |report| report.stage == GuestStage::Ready).await;
    assert_eq!(mac.runs(), "first\n");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_counts_as_a_script_that_may_have_run() {
    let mut mac = Mac::new();
    let record = mac.root().join(RECORD);
    fs::create_dir_all(record.parent().unwrap()).unwrap();
    fs::write(&record, r#"{"state": "Runn"#).unwrap();
    mac.boot();
    let mut host = mac.host().await;
    host.ask(script("echo ran >> runs")).await.unwrap();
    let told = until(&mut host, |report| report.stage == GuestStage::UserSession).await;
    let FirstBoot::Failed { message } = told.first_boot else {
        panic!("{:?}", told.first_boot);
    };
    assert!(message.contains("record is unreadable"), "{message}");
    assert_eq!(mac.runs(), "");
}

#[tokio::test]
async fn a_golden_that_brings_a_readiness_command_is_ready_when_that_agrees_after_first_boot() {
    let mut mac = Mac::new();
    let ready = mac.root().join("Library/Application Support/MacRack/ready");
    fs::create_dir_all(ready.parent().unwrap()).unwrap();
    fs::write(&ready, "#!/bin/sh\necho asked >> runs\n[ -e licensed ] || { echo no licence yet; exit 7; }\n").unwrap();
    fs::set_permissions(&ready, fs::Permissions::from_mode(0o755)).unwrap();
    mac.boot();
    let mut host = mac.host().await;
    let waiting = until(&mut host, |report| report.stage == GuestStage::UserSession).await;
    assert_eq!(waiting.readiness.map(|said| said.state), Some(ReadinessState::Waiting));
    assert_eq!(mac.runs(), "", "not before the first boot");

    let mut host = mac.host().await;
    host.ask(script("echo first boot >> runs")).await.unwrap();
    let state = |report: &GuestReport| report.readiness.as_ref().map(|said| said.state);
    let refused = until(&mut host, |report| state(report) == Some(ReadinessState::NotReady)).await;
    assert_eq!(refused.stage, GuestStage::UserSession);
    let said = refused.readiness.unwrap();
    assert_eq!((said.exit_code, said.message.as_deref()), (Some(7), Some("no licence yet")));
    assert!(mac.runs().starts_with("first boot\nasked\n"), "{}", mac.runs());

    fs::write(mac.root().join("licensed"), "").unwrap();
    let mut host = mac.host().await;
    let ready = until(&mut host, |report| report.stage == GuestStage::Ready).await;
    assert_eq!(state(&ready), Some(ReadinessState::Ready));
}

#[tokio::test]
async fn a_script_that_is_too_long_is_refused_with_the_limit() {
    let mut mac = Mac::new();
    mac.boot();
    let mut host = mac.host().await;
    let refused = host.ask(script(&"#".repeat(MAX_SCRIPT + 1))).await.unwrap_err();
    assert!(refused.to_string().contains("at most 131072"), "{refused}");
    assert!(matches!(refused, WireError::Refused(_)));
    let still = host.ask(GuestVerb::Describe).await.unwrap();
    assert_eq!(still.first_boot, FirstBoot::NotAsked);
}

#[tokio::test]
async fn only_a_vm_process_is_served_and_a_silent_peer_keeps_nobody_out() {
    let mut mac = Mac::new();
    mac.boot();
    let mut host = mac.host().await;
    let silent = UnixStream::connect(mac.socket()).await.unwrap();
    let stream = UnixStream::connect(mac.socket()).await.unwrap();
    let agent = Host::greet(stream, Limits::GUEST, Role::Agent, Role::Guest).await;
    let turned_away = match agent {
        // both hellos cross, so the refusal may come as the next frame
        Ok(mut agent) => agent.ask(GuestVerb::Describe).await.map(|_| ()).unwrap_err(),
        Err(error) => error,
    };
    assert!(!matches!(turned_away, WireError::Timeout { .. }), "{turned_away}");
    host.ask(GuestVerb::Describe).await.unwrap();
    drop(silent);
}

#[tokio::test]
async fn a_guest_goes_down_when_it_is_asked_to() {
    let mut mac = Mac::new();
    mac.boot();
    let mut host = mac.host().await;
    host.send(GuestVerb::Shutdown).await.unwrap();
    while let Ok(Some(_)) = host.next().await {}
    assert!(mac.process.take().unwrap().wait().unwrap().success());
}

/// Whether a process is there, and not dead and waiting to be reaped by whoever got it.
fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[tokio::test]
async fn a_session_that_is_dropped_in_the_middle_leaves_nothing_of_its_command_behind() {
    let mut mac = Mac::new();
    mac.boot();
    until(&mut mac.host().await, |report| report.stage == GuestStage::UserSession).await;
    let command = ["sh", "-c", "sleep 1000 & echo $! $$ > pids; wait"].map(str::to_owned).to_vec();
    let session = GuestVerb::Open(Session::Exec { command, stdin: false, tty: false });
    let (_, _open) = mac.host().await.open(session).await.unwrap();
    let pids = timeout(PATIENCE, async {
        loop {
            match fs::read_to_string(mac.root().join("pids")) {
                Ok(pids) if pids.ends_with('\n') => return pids,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let pids = pids.await.unwrap();
    let pids: Vec<&str> = pids.split_whitespace().collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| lives(pid)), "{pids:?}");
    // the guest goes down while the session is open: nobody ends it, it is dropped where it stands
    mac.host().await.send(GuestVerb::Shutdown).await.unwrap();
    assert!(mac.process.take().unwrap().wait().unwrap().success());
    let gone = async {
        while pids.iter().any(|pid| lives(pid)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("one of {pids:?} outlived its session"));
}

#[test]
fn a_guest_whose_vm_has_gone_does_not_start() {
    let root = tempfile::tempdir().unwrap();
    let listen: &Path = &root.path().join("guest.sock");
    let status = Command::new(env!("CARGO_BIN_EXE_macrack-guest"))
        .args(["--root".as_ref(), root.path(), "--listen".as_ref(), listen])
        .args(["--dies-with", "1"])
        .status()
        .unwrap();
    assert!(!status.success());
    assert!(!listen.exists());
}

#[test]
fn a_report_for_the_person_at_a_golden_says_what_is_to_be_mended_and_fails() {
    let root = tempfile::tempdir().unwrap();
    let shown = Command::new(env!("CARGO_BIN_EXE_macrack-guest"))
        .arg("report")
        .arg("--root")
        .arg(root.path())
        .output()
        .unwrap();
    let (text, error) = (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
    assert!(!shown.status.success());
    assert!(text.contains("to be mended: there is no /Applications/Xcode*.app"), "{text}");
    assert!(error.contains("3 thing(s) are to be mended"), "{error}");
}
