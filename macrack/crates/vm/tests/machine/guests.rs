//! Guests that lie, and what a VM makes of them: it runs, and the guest counts as absent.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use macrack_wire::link::{Limits, Link};
use macrack_wire::{GuestStage, Hello, Role, StopCause, VmDir, VmState};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

use crate::rack::{Rack, VM, stage};

fn honest(stage: &str) -> Value {
    json!({"agentVersion": "0.1.0", "stage": stage, "addresses": [], "firstBoot": {"state": "NotNeeded"}})
}

/// A VM whose guest does nothing, and the listener at the guest's port, for the test to speak as it.
async fn impersonate(dir: &VmDir) -> (Child, UnixListener) {
    let idle = dir.path().join("idle-guest");
    fs::write(&idle, "#!/bin/sh\nexec sleep 60\n").unwrap();
    fs::set_permissions(&idle, Permissions::from_mode(0o700)).unwrap();
    let listener = UnixListener::bind(dir.guest_socket()).unwrap();
    let mut vm = Command::new(VM)
        .args(["run", "--dir"])
        .arg(dir.path())
        .arg("--guest")
        .arg(&idle)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(dir.log()).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(vm.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    assert_eq!(line, "listening\n");
    (vm, listener)
}

async fn greeted(listener: &UnixListener) -> Link<UnixStream> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut link = Link::new(stream, Limits::VM);
    link.send(&Hello::of(Role::Guest)).await.unwrap();
    let _: Hello = link.receive_due("hello").await.unwrap();
    link
}

/// Runs one lie; the VM must run on, say `words`, believe the guest again once it is honest, and stop.
async fn a_lie<F>(words: &str, lie: impl FnOnce(UnixListener) -> F)
where
    F: Future<Output = UnixListener>,
{
    let rack = Rack::new();
    let (mut vm, listener) = impersonate(&rack.make("a")).await;
    let (listener, report) = tokio::join!(lie(listener), rack.until("a", |report| report.guest_problem.is_some()));
    assert_eq!((report.state, &report.guest, &report.error), (VmState::Running, &None, &None));
    let problem = report.guest_problem.unwrap();
    assert!(problem.contains(words), "{problem}");
    assert!(problem.chars().count() <= 256);

    let truth = tokio::spawn(async move {
        loop {
            let mut link = greeted(&listener).await;
            while let Ok(Some(request)) = link.receive().await {
                let request: Value = serde_json::from_slice(&request).unwrap();
                let kind = if request["verb"] == "Watch" { "event" } else { "report" };
                link.send(&json!({"id": request["id"], kind: honest("Ready")})).await.unwrap();
            }
        }
    });
    let report = rack.ready("a").await;
    assert_eq!(report.guest_problem, None);
    assert_eq!(rack.stop("a", 4).await.stop_cause, Some(StopCause::Requested));
    truth.abort();
    assert!(vm.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_guest_that_announces_a_gigabyte_is_not_read() {
    a_lie("1073741824 bytes was announced", async |listener: UnixListener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&(1_u32 << 30).to_be_bytes()).await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_speaks_garbage_is_not_understood() {
    a_lie("hello is not understood", async |listener: UnixListener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"\0\0\0\x05\xff\xfe{[\"").await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_never_stops_changing_its_stage_says_too_much() {
    a_lie("it says too much", async |listener: UnixListener| {
        let mut link = greeted(&listener).await;
        let request: Value = link.receive_due("the watch").await.unwrap();
        for stage in ["LoginWindow", "UserSession"].iter().cycle() {
            let event = json!({"id": request["id"], "event": honest(stage)});
            if link.send(&event).await.is_err() {
                break;
            }
        }
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_of_another_protocol_is_named_with_its_version() {
    a_lie("macrack-guest 7.0.0 (protocol 7)", async |listener: UnixListener| {
        let (stream, _) = listener.accept().await.unwrap();
        let mut link = Link::new(stream, Limits::VM);
        link.send(&json!({"protocol": 7, "role": "guest", "version": "7.0.0"})).await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_pads_its_report_is_not_believed() {
    a_lie("osVersion is 40000 bytes long", async |listener: UnixListener| {
        let mut link = greeted(&listener).await;
        let request: Value = link.receive_due("the watch").await.unwrap();
        let mut report = honest("Ready");
        report["osVersion"] = json!("9".repeat(40_000));
        link.send(&json!({"id": request["id"], "event": report})).await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_answers_what_was_not_asked_is_out_of_order() {
    a_lie("an answer to request Some(99)", async |listener: UnixListener| {
        let mut link = greeted(&listener).await;
        link.send(&json!({"id": 99, "report": honest("Ready")})).await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_whose_last_words_are_cut_is_told_from_one_that_left() {
    a_lie("inside a frame", async |listener: UnixListener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&[0, 0, 0, 200, b'{']).await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_turns_its_host_away_at_length_fills_no_report() {
    a_lie("turned away", async |listener: UnixListener| {
        let (stream, _) = listener.accept().await.unwrap();
        let mut link = Link::new(stream, Limits::VM);
        link.send(&json!({"turnedAway": "\u{7}no ".repeat(5_000)})).await.unwrap();
        listener
    })
    .await;
}

#[tokio::test]
async fn a_script_that_a_guest_does_not_take_stays_its_problem_whatever_else_it_says() {
    let rack = Rack::new();
    let (_vm, listener) = impersonate(&rack.make_with_script("a", "true\n")).await;
    let guest = tokio::spawn(async move {
        let mut link = greeted(&listener).await;
        let watch: Value = link.receive_due("the watch").await.unwrap();
        let mut report = honest("UserSession");
        report["firstBoot"] = json!({"state": "NotAsked"});
        link.send(&json!({"id": watch["id"], "event": report})).await.unwrap();
        let script: Value = link.receive_due("the script").await.unwrap();
        let refusal = json!({"kind": "Denied", "message": "the disk is full"});
        link.send(&json!({"id": script["id"], "error": refusal})).await.unwrap();
        report["diskFreeBytes"] = json!(7);
        link.send(&json!({"id": watch["id"], "event": report})).await.unwrap();
        link
    });
    let told =
        rack.until("a", |report| report.guest.as_ref().is_some_and(|guest| guest.disk_free_bytes == Some(7))).await;
    assert_eq!(told.guest_problem.as_deref(), Some("the first-boot script was not taken: the disk is full"));
    drop(guest.await.unwrap());
}

#[tokio::test]
async fn stages_come_in_their_order_and_a_held_guest_is_seen_where_it_stands() {
    let rack = Rack::new();
    let dir = rack.make("a");
    fs::create_dir_all(dir.guest_root()).unwrap();
    let slow = json!({"loginWindowAfterMillis": 300, "userSessionAfterMillis": 300});
    fs::write(dir.guest_root().join("simulation.json"), slow.to_string()).unwrap();
    rack.start("a");
    let mut seen = Vec::new();
    let mut reports = rack.client("a").await.watch().await.unwrap();
    while seen.last() != Some(&GuestStage::Ready) {
        let report = reports.next().await.unwrap().unwrap();
        seen.extend(stage(&report));
        seen.dedup();
    }
    // a user session without a script is ready at once, so UserSession is not seen here
    assert_eq!(seen, [GuestStage::AgentStarting, GuestStage::LoginWindow, GuestStage::Ready]);

    let dir = rack.make("b");
    fs::create_dir_all(dir.guest_root()).unwrap();
    fs::write(dir.guest_root().join("simulation.json"), json!({"holdAt": "LoginWindow"}).to_string()).unwrap();
    rack.start("b");
    rack.until("b", |report| stage(report) == Some(GuestStage::LoginWindow)).await;
}
