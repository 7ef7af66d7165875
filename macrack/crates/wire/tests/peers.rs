//! Both ends of a link against peers that are silent, slow, lying, truncated, repeated, reordered, or of
//! another version. Time is paused: a test that would wait for ever fails at once.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::time::Duration;

use macrack_wire::client::Client;
use macrack_wire::frame::MAX_FRAME;
use macrack_wire::link::{Limits, Link};
use macrack_wire::message::{Body, Reply};
use macrack_wire::{
    Answer, FirstBoot, GuestReport, GuestStage, GuestVerb, Hello, PROTOCOL, Refusal, Role, Service, WireError,
    serve_connection,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const LIMITS: Limits = Limits::GUEST;
const ROOM: usize = 256 * 1024;

type GuestClient = Client<DuplexStream, GuestVerb, GuestReport>;

fn report(stage: GuestStage) -> GuestReport {
    GuestReport::new("0.1.0", stage, FirstBoot::NotNeeded)
}

struct Steady(watch::Sender<GuestReport>);

impl Service for Steady {
    const ROLE: Role = Role::Guest;
    const PEER: Role = Role::Vm;
    type Verb = GuestVerb;
    type Report = GuestReport;

    fn reports(&self) -> watch::Receiver<GuestReport> {
        self.0.subscribe()
    }

    async fn call(&self, verb: GuestVerb) -> Result<Answer, Refusal> {
        match verb {
            GuestVerb::Watch => Ok(Answer::Watch),
            GuestVerb::Shutdown => Err(Refusal::denied("not now")),
            _ => Ok(Answer::Report),
        }
    }
}

/// The server under test, and the raw stream of its peer.
fn server() -> (DuplexStream, JoinHandle<Result<(), WireError>>) {
    let (ours, peer) = duplex(ROOM);
    let service = Steady(watch::Sender::new(report(GuestStage::AgentStarting)));
    let served = tokio::spawn(async move { serve_connection(ours, &service, LIMITS).await });
    (peer, served)
}

async fn greeted_server() -> (Link<DuplexStream>, JoinHandle<Result<(), WireError>>) {
    let (peer, served) = server();
    let mut link = Link::new(peer, LIMITS);
    link.send(&Hello::of(Role::Vm)).await.unwrap();
    let _: Hello = link.receive_due("hello").await.unwrap();
    (link, served)
}

/// The client under test, greeted, and the link of its peer.
async fn greeted_client() -> (GuestClient, Link<DuplexStream>) {
    let (ours, peer) = duplex(ROOM);
    let mut link = Link::new(peer, LIMITS);
    link.send(&Hello::of(Role::Guest)).await.unwrap();
    let client = Client::greet(ours, LIMITS, Role::Vm, Role::Guest).await.unwrap();
    let _: Hello = link.receive_due("hello").await.unwrap();
    (client, link)
}

async fn ask_and_answer<T: Serialize>(answers: &[T]) -> Result<GuestReport, WireError> {
    let (mut client, mut peer) = greeted_client().await;
    for answer in answers {
        peer.send(answer).await.unwrap();
    }
    client.ask(GuestVerb::Describe).await
}

fn answer(id: u64, stage: GuestStage) -> Reply<GuestReport> {
    Reply { id: Some(id), body: Body::Report(report(stage)) }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_dropped_after_the_patience_of_the_link() {
    let (_peer, served) = server();
    let began = Instant::now();
    let error = served.await.unwrap().unwrap_err();
    assert!(matches!(error, WireError::Timeout { .. }), "{error}");
    assert_eq!(began.elapsed(), LIMITS.patience);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_makes_greeting_and_asking_fail_in_time() {
    let (ours, _peer) = duplex(ROOM);
    let greeted = GuestClient::greet(ours, LIMITS, Role::Vm, Role::Guest).await;
    assert!(matches!(greeted, Err(WireError::Timeout { .. })), "{greeted:?}");

    let (mut client, _peer) = greeted_client().await;
    let asked = client.ask(GuestVerb::Describe).await;
    assert!(matches!(asked, Err(WireError::Timeout { .. })), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_kept_for_a_day_and_a_drip_feeding_one_is_not() {
    let (mut link, served) = greeted_server().await;
    tokio::time::advance(Duration::from_secs(86_400)).await;
    link.send(&json!({"id": 1, "verb": "Describe"})).await.unwrap();
    let _: Reply<GuestReport> = link.receive_due("a reply").await.unwrap();
    assert!(!served.is_finished());

    let (mut peer, served) = server();
    let drip = tokio::spawn(async move {
        let hello = serde_json::to_vec(&Hello::of(Role::Vm)).unwrap();
        peer.write_all(&u32::try_from(hello.len()).unwrap().to_be_bytes()).await.unwrap();
        for byte in hello {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if peer.write_all(&[byte]).await.is_err() {
                return;
            }
        }
        panic!("a hello took a minute and was taken");
    });
    let error = served.await.unwrap().unwrap_err();
    assert!(matches!(error, WireError::Timeout { .. }), "{error}");
    drip.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_begun_and_not_finished_ends_the_connection_in_time() {
    let (mut peer, served) = server();
    let hello = serde_json::to_vec(&Hello::of(Role::Vm)).unwrap();
    peer.write_all(&u32::try_from(hello.len()).unwrap().to_be_bytes()).await.unwrap();
    peer.write_all(&hello).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    peer.write_all(&[0, 0, 0, 30, b'{']).await.unwrap();
    let begun = Instant::now();
    let served = tokio::time::timeout(Duration::from_secs(3_600), served).await;
    let error = served.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().starts_with("the rest of a begun frame"), "{error}");
    assert_eq!(begun.elapsed(), LIMITS.patience);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_dropped_and_holds_up_nobody() {
    let (ours, mut peer) = duplex(512);
    let service = Steady(watch::Sender::new(report(GuestStage::AgentStarting)));
    let served = tokio::spawn(async move { serve_connection(ours, &service, LIMITS).await });
    let mut wire = Vec::new();
    for message in std::iter::once(serde_json::to_vec(&Hello::of(Role::Vm)).unwrap())
        .chain((0..64).map(|id| serde_json::to_vec(&json!({"id": id, "verb": "Describe"})).unwrap()))
    {
        wire.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        wire.extend(message);
    }
    // the server stops reading when it cannot write, so this may fail, and that is the point
    let _ = peer.write_all(&wire).await;
    let error = served.await.unwrap().unwrap_err();
    assert!(matches!(error, WireError::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn another_major_protocol_is_turned_away_with_both_named_on_both_sides() {
    let (peer, served) = server();
    let mut link = Link::new(peer, LIMITS);
    let newer = Hello { protocol: PROTOCOL + 1, role: Role::Vm, version: "9.9.9".into() };
    link.send(&newer).await.unwrap();
    let theirs: Hello = link.receive_due("hello").await.unwrap();
    assert_eq!(theirs.protocol, PROTOCOL);
    let told: Value = link.receive_due("the refusal").await.unwrap();
    let error = served.await.unwrap().unwrap_err();
    for words in [told["turnedAway"].as_str().unwrap(), &error.to_string()] {
        assert!(words.contains("macrack-vm 9.9.9 (protocol 2)"), "{words}");
        assert!(words.contains("(protocol 1)"), "{words}");
    }
}

#[tokio::test]
async fn a_client_that_is_turned_away_says_why_in_the_servers_words() {
    let (ours, peer) = duplex(ROOM);
    let mut link = Link::new(peer, LIMITS);
    link.send(&json!({"turnedAway": "protocol 7 is spoken here"})).await.unwrap();
    let error = GuestClient::greet(ours, LIMITS, Role::Vm, Role::Guest).await.unwrap_err();
    assert!(error.to_string().contains("protocol 7 is spoken here"), "{error}");

    let (ours, peer) = duplex(ROOM);
    let mut link = Link::new(peer, LIMITS);
    link.send(&json!({"turnedAway": format!("\u{1b}[2J{}", "no ".repeat(1_000))})).await.unwrap();
    let error = GuestClient::greet(ours, LIMITS, Role::Vm, Role::Guest).await.unwrap_err().to_string();
    assert!(error.len() < 300 && !error.chars().any(char::is_control), "{error:?}");
}

#[tokio::test]
async fn who_does_not_belong_at_the_other_end_is_turned_away() {
    let (peer, served) = server();
    let mut link = Link::new(peer, LIMITS);
    link.send(&Hello::of(Role::Agent)).await.unwrap();
    let error = served.await.unwrap().unwrap_err();
    assert!(matches!(error, WireError::WrongRole { expected: Role::Vm, .. }), "{error}");

    let (peer, served) = server();
    let mut link = Link::new(peer, LIMITS);
    link.send(&json!({"protocol": 1, "role": "vm", "version": "x".repeat(65)})).await.unwrap();
    let error = served.await.unwrap().unwrap_err();
    assert!(matches!(error, WireError::OutOfBounds(_)), "{error}");

    let (peer, served) = server();
    let mut link = Link::new(peer, LIMITS);
    link.send(&json!({"protocol": 7, "role": "vm", "version": "\u{1b}[2J"})).await.unwrap();
    let error = served.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("its version holds control characters"), "{error:?}");
}

#[tokio::test]
async fn requests_before_the_hello_are_not_read() {
    let (peer, served) = server();
    let mut link = Link::new(peer, LIMITS);
    link.send(&json!({"id": 1, "verb": "Describe"})).await.unwrap();
    let error = served.await.unwrap().unwrap_err();
    assert!(matches!(error, WireError::Malformed { what: "the peer's hello", .. }), "{error}");
}

#[tokio::test]
async fn an_overlong_frame_is_answered_with_the_limit_and_ends_the_connection() {
    let (ours, mut peer) = duplex(ROOM);
    let service = Steady(watch::Sender::new(report(GuestStage::AgentStarting)));
    let served = tokio::spawn(async move { serve_connection(ours, &service, LIMITS).await });
    let hello = serde_json::to_vec(&Hello::of(Role::Vm)).unwrap();
    peer.write_all(&u32::try_from(hello.len()).unwrap().to_be_bytes()).await.unwrap();
    peer.write_all(&hello).await.unwrap();
    peer.write_all(&(1_u32 << 30).to_be_bytes()).await.unwrap();
    let mut said = Vec::new();
    peer.read_to_end(&mut said).await.unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("1073741824 bytes was announced"), "{said}");
    assert!(matches!(served.await.unwrap(), Err(WireError::Frame(_))));
}

#[tokio::test]
async fn a_frame_cut_short_by_either_side_is_told_from_a_clean_end() {
    let (mut peer, served) = server();
    peer.write_all(&[0, 0, 0, 9, b'{']).await.unwrap();
    peer.shutdown().await.unwrap();
    let error = served.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("8 bytes short"), "{error}");

    let (link, served) = greeted_server().await;
    drop(link);
    served.await.unwrap().unwrap();

    let (mut client, peer) = greeted_client().await;
    drop(peer);
    assert!(client.next().await.unwrap().is_none());
    let asked = client.ask(GuestVerb::Describe).await;
    assert!(matches!(asked, Err(WireError::Closed(_) | WireError::Io(_))), "{asked:?}");
}

#[tokio::test]
async fn garbage_is_answered_with_an_error_and_the_next_request_is_served() {
    let (mut link, _served) = greeted_server().await;
    for (sent, id) in [
        (json!("garbage"), None),
        (json!({"id": 3, "verb": "Fly"}), Some(3)),
        (json!({"id": 4, "verb": "Shutdown"}), Some(4)),
    ] {
        link.send(&sent).await.unwrap();
        let reply: Reply<Value> = link.receive_due("a reply").await.unwrap();
        assert_eq!(reply.id, id);
        assert!(matches!(reply.body, Body::Error(_)), "{reply:?}");
    }
    link.send(&json!({"id": 5, "verb": "Describe"})).await.unwrap();
    let reply: Reply<GuestReport> = link.receive_due("a reply").await.unwrap();
    assert_eq!(reply, answer(5, GuestStage::AgentStarting));
}

#[tokio::test]
async fn endless_garbage_ends_the_connection_after_a_bounded_number_of_answers() {
    let (mut link, served) = greeted_server().await;
    let mut answers = 0;
    for _ in 0..100 {
        if link.send(&json!("garbage")).await.is_err() {
            break;
        }
    }
    let all = async {
        while let Ok(Some(_)) = link.receive().await {
            answers += 1;
        }
    };
    let closed = tokio::time::timeout(LIMITS.patience, all).await;
    assert!(closed.is_ok(), "the connection is closed");
    assert_eq!(answers, 18, "seventeen mistakes and the last word");
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_repeated_request_is_answered_each_time_and_a_repeated_answer_is_not_believed() {
    let (mut link, _served) = greeted_server().await;
    for _ in 0..3 {
        link.send(&json!({"id": 9, "verb": "Describe"})).await.unwrap();
        let reply: Reply<GuestReport> = link.receive_due("a reply").await.unwrap();
        assert_eq!(reply.id, Some(9));
    }

    let (mut client, mut peer) = greeted_client().await;
    for stage in [GuestStage::LoginWindow, GuestStage::Ready] {
        peer.send(&answer(1, stage)).await.unwrap();
    }
    let first = client.ask(GuestVerb::Describe).await.unwrap();
    assert_eq!(first.stage, GuestStage::LoginWindow);
    let second = client.ask(GuestVerb::Describe).await;
    let expected = matches!(second, Err(WireError::OutOfOrder { expected: 2, found: Some(1) }));
    assert!(expected, "{second:?}");
}

#[tokio::test]
async fn answers_to_what_was_not_asked_are_not_taken_for_an_answer() {
    for id in [0, 2, u64::MAX] {
        let reordered = ask_and_answer(&[answer(id, GuestStage::Ready)]).await;
        assert!(matches!(reordered, Err(WireError::OutOfOrder { .. })), "{id}: {reordered:?}");
    }
    let unasked = ask_and_answer(&[json!({"report": report(GuestStage::Ready)})]).await;
    assert!(matches!(unasked, Err(WireError::OutOfOrder { found: None, .. })), "{unasked:?}");
}

#[tokio::test]
async fn lies_about_types_are_malformed_and_never_a_panic() {
    for lie in [
        json!(null),
        json!([]),
        json!({"id": 1}),
        json!({"id": "1", "report": report(GuestStage::Ready)}),
        json!({"id": 1, "report": {"stage": "Ready"}}),
        json!({"id": 1, "report": {"agentVersion": "1", "stage": "Flying", "firstBoot": {"state": "NotNeeded"}}}),
        json!({"id": 1, "error": "no"}),
    ] {
        let asked = ask_and_answer(&[&lie]).await;
        assert!(matches!(asked, Err(WireError::Malformed { .. })), "{lie}: {asked:?}");
    }
}

#[tokio::test]
async fn a_refusal_reaches_the_asking_side_in_its_own_words_and_the_link_lives_on() {
    let (ours, peer) = duplex(ROOM);
    let service = Steady(watch::Sender::new(report(GuestStage::Ready)));
    tokio::spawn(async move { serve_connection(peer, &service, LIMITS).await });
    let mut client = GuestClient::greet(ours, LIMITS, Role::Vm, Role::Guest).await.unwrap();
    let refused = client.ask(GuestVerb::Shutdown).await.unwrap_err();
    assert_eq!(refused.to_string(), "refused: not now");
    assert_eq!(client.ask(GuestVerb::Describe).await.unwrap().stage, GuestStage::Ready);
}

#[tokio::test]
async fn a_watch_shows_the_present_the_changes_and_the_last_state_before_the_end() {
    let (ours, peer) = duplex(ROOM);
    let service = Steady(watch::Sender::new(report(GuestStage::AgentStarting)));
    let states = service.0.clone();
    let served = tokio::spawn(async move { serve_connection(peer, &service, LIMITS).await });
    let mut client = GuestClient::greet(ours, LIMITS, Role::Vm, Role::Guest).await.unwrap();
    let id = client.send(GuestVerb::Watch).await.unwrap();
    for stage in [GuestStage::AgentStarting, GuestStage::LoginWindow, GuestStage::Ready] {
        if stage != GuestStage::AgentStarting {
            states.send_replace(report(stage));
        }
        let event = client.next().await.unwrap().unwrap();
        assert_eq!((event.id, event.body), (Some(id), Body::Event(report(stage))));
    }
    served.abort();
    assert!(client.next().await.unwrap().is_none());
}

#[test]
fn the_largest_first_boot_script_fits_a_frame_however_it_is_escaped() {
    let script = "\u{1}".repeat(macrack_wire::guest::MAX_SCRIPT);
    let frame = serde_json::to_vec(&json!({"id": u64::MAX, "verb": "RunFirstBoot", "script": script}));
    assert!(frame.unwrap().len() <= MAX_FRAME);
}
