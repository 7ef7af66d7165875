//! The link to a guest with time paused: silence, distrust, and orders that find nobody.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use macrack_vm::guest_link::{FirstBootOrder, GuestLink, News};
use macrack_vm::hypervisor::GuestPort;
use macrack_wire::link::{Limits, Link};
use macrack_wire::{FirstBoot, GuestReport, GuestStage, Hello, Role};
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Hands the far end of each connection to the test; refuses while nobody takes them.
struct Port {
    connections: mpsc::Sender<DuplexStream>,
    tried: Arc<AtomicUsize>,
}

impl GuestPort for Port {
    type Stream = DuplexStream;

    async fn connect(&self) -> io::Result<DuplexStream> {
        self.tried.fetch_add(1, Ordering::SeqCst);
        let (near, far) = duplex(64 * 1024);
        self.connections.try_send(far).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(near)
    }
}

struct Host {
    connections: mpsc::Receiver<DuplexStream>,
    tried: Arc<AtomicUsize>,
    news: mpsc::Receiver<News>,
    shutdown: mpsc::Sender<()>,
}

fn host(first_boot: FirstBootOrder) -> Host {
    let (near, connections) = mpsc::channel(1);
    let tried = Arc::new(AtomicUsize::new(0));
    let (heard, news) = mpsc::channel(16);
    let (shutdown, shutdowns) = mpsc::channel(1);
    let port = Port { connections: near, tried: tried.clone() };
    tokio::spawn(GuestLink { port, first_boot, news: heard, shutdowns }.run());
    Host { connections, tried, news, shutdown }
}

fn report(stage: GuestStage) -> GuestReport {
    GuestReport::new("0.1.0", stage, FirstBoot::NotNeeded)
}

impl Host {
    async fn guest(&mut self) -> Link<DuplexStream> {
        let stream = self.connections.recv().await.unwrap();
        let mut link = Link::new(stream, Limits::VM.patient(Duration::from_secs(3_600)));
        link.send(&Hello::of(Role::Guest)).await.unwrap();
        let _: Hello = link.receive_due("hello").await.unwrap();
        link
    }

    async fn news(&mut self) -> News {
        self.news.recv().await.unwrap()
    }
}

async fn answer(link: &mut Link<DuplexStream>, verb: &str, stage: GuestStage) {
    let request: Value = link.receive_due("a request").await.unwrap();
    assert_eq!(request["verb"], verb);
    let kind = if verb == "Watch" { "event" } else { "report" };
    link.send(&json!({"id": request["id"], kind: report(stage)})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_falls_silent_is_asked_for_a_sign_of_life_and_then_counts_as_absent() {
    let mut host = host(FirstBootOrder::Handed);
    let mut guest = host.guest().await;
    answer(&mut guest, "Watch", GuestStage::Ready).await;
    assert_eq!(host.news().await, News::Heard(report(GuestStage::Ready)));
    for _ in 0..100 {
        answer(&mut guest, "Describe", GuestStage::Ready).await;
    }
    let silent_since = Instant::now();
    let News::NotHeard(why) = host.news().await else {
        panic!("an unchanged report is no news");
    };
    assert!(why.contains("nothing within"), "{why}");
    assert_eq!(silent_since.elapsed(), Duration::from_secs(15), "ten of quiet and five of patience");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_keeps_lying_is_tried_ever_more_rarely() {
    let mut host = host(FirstBootOrder::None);
    let tried = host.tried.clone();
    tokio::spawn(async move { while host.news.recv().await.is_some() {} });
    let lies = async {
        while let Some(mut stream) = host.connections.recv().await {
            stream.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        }
    };
    assert!(timeout(Duration::from_secs(3_600), lies).await.is_err());
    let tried = tried.load(Ordering::SeqCst);
    assert!((60..80).contains(&tried), "{tried} conversations in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_does_not_listen_yet_is_tried_every_second_and_is_no_problem() {
    let mut host = host(FirstBootOrder::None);
    host.connections.close();
    let quiet = timeout(Duration::from_secs(600), host.news.recv()).await;
    assert!(quiet.is_err(), "booting is not a problem: {quiet:?}");
    let tried = host.tried.load(Ordering::SeqCst);
    assert!((595..630).contains(&tried), "{tried} connects in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn an_order_to_shut_down_that_finds_no_guest_is_answered_at_once() {
    let mut host = host(FirstBootOrder::None);
    host.connections.close();
    host.shutdown.send(()).await.unwrap();
    let asked = Instant::now();
    assert_eq!(host.news().await, News::ShutdownAsked(false));
    assert!(asked.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn an_order_to_shut_down_that_the_guest_leaves_unanswered_counts_as_not_asked() {
    let mut host = host(FirstBootOrder::Handed);
    let mut guest = host.guest().await;
    answer(&mut guest, "Watch", GuestStage::Ready).await;
    host.news().await;
    host.shutdown.send(()).await.unwrap();
    let request: Value = guest.receive_due("the order").await.unwrap();
    assert_eq!(request["verb"], "Shutdown");
    assert_eq!(host.news().await, News::ShutdownAsked(false));
    assert!(matches!(host.news().await, News::NotHeard(_)));
}

#[tokio::test(start_paused = true)]
async fn an_order_is_put_before_what_else_waits_to_be_asked() {
    let mut host = host(FirstBootOrder::None);
    let mut guest = host.guest().await;
    host.shutdown.send(()).await.unwrap();
    answer(&mut guest, "Watch", GuestStage::UserSession).await;
    answer(&mut guest, "Shutdown", GuestStage::UserSession).await;
    assert_eq!(host.news().await, News::Heard(report(GuestStage::UserSession)));
    assert_eq!(host.news().await, News::ShutdownAsked(true));
}

#[tokio::test(start_paused = true)]
async fn a_script_is_handed_over_until_it_is_acknowledged_and_not_after_that() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("first-boot.sh");
    std::fs::write(&script, "true\n").unwrap();
    let mut host = host(FirstBootOrder::Script(script));

    let mut guest = host.guest().await;
    answer(&mut guest, "Watch", GuestStage::AgentStarting).await;
    host.news().await;
    let request: Value = guest.receive_due("the script").await.unwrap();
    assert_eq!((&request["verb"], &request["script"]), (&json!("RunFirstBoot"), &json!("true\n")));
    drop(guest);
    assert!(matches!(host.news().await, News::NotHeard(_)));

    let mut guest = host.guest().await;
    answer(&mut guest, "Watch", GuestStage::AgentStarting).await;
    answer(&mut guest, "RunFirstBoot", GuestStage::AgentStarting).await;
    assert_eq!(host.news().await, News::Heard(report(GuestStage::AgentStarting)));
    assert_eq!(host.news().await, News::FirstBootHanded);
    drop(guest);
    host.news().await;

    let mut guest = host.guest().await;
    answer(&mut guest, "Watch", GuestStage::AgentStarting).await;
    answer(&mut guest, "Describe", GuestStage::AgentStarting).await;
}

#[tokio::test(start_paused = true)]
async fn a_script_that_was_not_taken_is_offered_again_with_the_next_sign_of_life() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("first-boot.sh");
    std::fs::write(&script, "true\n").unwrap();
    let mut host = host(FirstBootOrder::Script(script));
    let mut guest = host.guest().await;
    answer(&mut guest, "Watch", GuestStage::UserSession).await;
    host.news().await;
    let request: Value = guest.receive_due("the script").await.unwrap();
    let refusal = json!({"kind": "Denied", "message": "the disk \u{1b}[2J\u{202e}is full"});
    guest.send(&json!({"id": request["id"], "error": refusal})).await.unwrap();
    assert_eq!(host.news().await, News::FirstBootNotHanded("the disk [2Jis full".to_owned()));

    answer(&mut guest, "Describe", GuestStage::UserSession).await;
    answer(&mut guest, "RunFirstBoot", GuestStage::UserSession).await;
    assert_eq!(host.news().await, News::FirstBootHanded);
    answer(&mut guest, "Describe", GuestStage::UserSession).await;
    answer(&mut guest, "Describe", GuestStage::UserSession).await;
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// A true frame with an event, spoiled in a few places: its length too.
fn spoiled(dice: &mut Dice) -> Vec<u8> {
    let event = json!({"id": 1, "event": report(GuestStage::Ready)}).to_string();
    let mut bytes = u32::try_from(event.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(event.bytes());
    for _ in 0..=dice.throw(6) {
        if bytes.is_empty() {
            break;
        }
        let at = dice.throw(bytes.len());
        match dice.throw(4) {
            0 => bytes[at] = u8::try_from(dice.throw(256)).unwrap(),
            1 => bytes.insert(at, b"\"{}[],:\\\x1b\xff"[dice.throw(10)]),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at + 1),
        }
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn whatever_a_guest_sends_ends_at_most_the_conversation_and_an_honest_one_is_heard_after_it() {
    let mut dice = Dice(7);
    let mut ended = 0;
    for _ in 0..300 {
        let mut host = host(FirstBootOrder::Handed);
        let bytes = spoiled(&mut dice);
        let mut guest = host.connections.recv().await.unwrap();
        let mut hello = Vec::new();
        let text = serde_json::to_vec(&Hello::of(Role::Guest)).unwrap();
        hello.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        hello.extend(text);
        hello.extend(&bytes);
        guest.write_all(&hello).await.unwrap();
        // what is spoiled may still be true, or wait to be whole: then the silence after it ends it
        loop {
            match host.news().await {
                News::Heard(report) => assert!(report.clone().believe().is_ok(), "{report:?} of {bytes:?}"),
                News::NotHeard(why) => {
                    assert!(why.chars().count() <= 256 && !why.chars().any(char::is_control), "{why:?}");
                    ended += 1;
                    break;
                }
                other => panic!("{other:?} of {bytes:?}"),
            }
        }
        drop(guest);
        let mut honest = host.guest().await;
        answer(&mut honest, "Watch", GuestStage::UserSession).await;
        assert_eq!(host.news().await, News::Heard(report(GuestStage::UserSession)), "after {bytes:?}");
    }
    assert_eq!(ended, 300);
}
