//! Requests that no agent of ours sends: what the collector answers, and that it records nothing by them.

mod world;

use std::{sync::Arc, time::Duration};

use dockerios_collector::Limits;
use dockerios_wire::{Problem, Reason, Reply};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use world::{Desk, ONE, Pki, Serving, TWO, key, long_held, serve, shutdown};

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn reason(&self) -> Reason {
        serde_json::from_str::<Problem>(&self.body)
            .expect("every refusal has one shape")
            .reason
    }
}

async fn connect(pki: &Pki, to: &Serving) -> TlsStream<TcpStream> {
    let config = dockerios_guest::trust::pinned(&pki.ca).expect("an authority");
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").expect("a name");
    let stream = TcpStream::connect(to.address).await.expect("it listens");
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("TLS")
}

/// Sends bytes and reads until the collector closes or has answered.
async fn say(pki: &Pki, to: &Serving, request: &[u8]) -> Answer {
    let mut stream = connect(pki, to).await;
    // the collector may refuse and close before it has read all
    let _ = stream.write_all(request).await;
    let _ = stream.flush().await;
    answer(&mut stream).await.expect("an answer")
}

async fn answer(stream: &mut TlsStream<TcpStream>) -> Option<Answer> {
    let read = async {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let n = stream.read(&mut piece).await.unwrap_or(0);
            all.extend_from_slice(&piece[..n]);
            let text = String::from_utf8_lossy(&all).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head
                    .to_lowercase()
                    .split_once("content-length: ")
                    .and_then(|(_, rest)| {
                        rest.split("\r\n")
                            .next()
                            .and_then(|digits| digits.parse::<usize>().ok())
                    });
                if length.is_some_and(|length| body.len() >= length) {
                    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok())?;
                    return Some(Answer {
                        status,
                        head: head.to_lowercase(),
                        body: body.to_owned(),
                    });
                }
            }
            if n == 0 {
                return None;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(25), read)
        .await
        .expect("an answer or an end")
}

fn report(sequence: u64) -> Value {
    json!({"stage": "LoginWindow", "agentVersion": "1", "run": "r", "sequence": sequence, "ready": false})
}

fn post(uid: &str, token: &str, body: &str) -> Vec<u8> {
    let n = body.len();
    format!("POST /v1/machines/{uid}/report HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {token}\r\nContent-Length: {n}\r\n\r\n{body}")
        .into_bytes()
}

fn own(body: &Value) -> Vec<u8> {
    post(ONE, &key().token(ONE), &body.to_string())
}

async fn begin(uids: &[&str], limits: Limits) -> (Pki, Arc<Desk>, Serving) {
    let (pki, desk) = (Pki::plain(), Desk::with(uids));
    let collector = serve(&pki, &desk, 0, limits).await;
    (pki, desk, collector)
}

#[tokio::test]
async fn without_the_machine_s_token_nothing_is_said_about_the_machine() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    let body = report(1).to_string();
    let absent = "6f0c1d1e-0000-4000-8000-00000000ffff";
    let mut said = Vec::new();
    for uid in [ONE, absent] {
        for token in ["", "00", &"0a".repeat(32), &key().token(ONE).to_uppercase()] {
            let answer = say(&pki, &collector, &post(uid, token, &body)).await;
            assert_eq!((answer.status, answer.reason()), (401, Reason::Unauthorized));
            said.push((uid, answer.body));
        }
    }
    let of = |uid| {
        said.iter()
            .filter(|(u, _)| *u == uid)
            .map(|(_, body)| body)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(ONE), of(absent), "the two can be told apart");
    let none = format!("POST /v1/machines/{ONE}/report HTTP/1.1\r\nHost: c\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(say(&pki, &collector, none.as_bytes()).await.status, 401);
    assert_eq!(collector.counts.unauthorized.get(), 9);
    assert!(desk.records(ONE).is_empty());
}

#[tokio::test]
async fn a_guest_cannot_speak_for_another_nor_learn_whether_it_exists() {
    let (pki, desk, collector) = begin(&[ONE, TWO], long_held()).await;
    let absent = "6f0c1d1e-0000-4000-8000-00000000ffff";
    let mut bodies = Vec::new();
    for uid in [ONE, absent] {
        let answer = say(&pki, &collector, &post(uid, &key().token(TWO), &report(1).to_string())).await;
        assert_eq!((answer.status, answer.reason()), (403, Reason::TokenOfAnotherMachine));
        bodies.push(answer.body);
    }
    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(collector.counts.foreign_token.get(), 2);
    assert!(desk.records(ONE).is_empty() && desk.records(TWO).is_empty());
}

#[tokio::test]
async fn a_machine_that_is_gone_is_told_so_and_one_that_cannot_be_read_is_told_to_wait() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    desk.break_down(Some("unreadable"));
    let answer = say(&pki, &collector, &own(&report(1))).await;
    assert_eq!((answer.status, answer.reason()), (503, Reason::Unavailable));
    assert!(answer.head.contains("retry-after: 5"), "{}", answer.head);
    desk.break_down(None);
    desk.remove(ONE);
    let answer = say(&pki, &collector, &own(&report(2))).await;
    assert_eq!((answer.status, answer.reason()), (404, Reason::NotFound));
    assert_eq!((collector.counts.unreadable.get(), collector.counts.gone.get()), (1, 1));
}

#[tokio::test]
async fn paths_and_methods_that_are_not_the_protocol_s() {
    let (pki, _desk, collector) = begin(&[ONE], long_held()).await;
    for (request, status) in [
        (format!("GET /v1/machines/{ONE}/report"), 405),
        ("POST /".to_owned(), 404),
        ("POST /v1/machines//report".to_owned(), 404),
        ("POST /v1/machines/a%2Fb/report".to_owned(), 404),
        (format!("POST /v2/machines/{ONE}/report"), 404),
        (format!("POST /v1/machines/{}/report", "a".repeat(65)), 404),
    ] {
        let answer = say(
            &pki,
            &collector,
            format!("{request} HTTP/1.1\r\nHost: c\r\nContent-Length: 0\r\n\r\n").as_bytes(),
        )
        .await;
        assert_eq!(answer.status, status, "{request}");
        answer.reason();
    }
}

#[tokio::test]
async fn malformed_reports_are_refused_by_field() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    let with = |field: &str, value: Value| {
        let mut report = report(1);
        report[field] = value;
        report.to_string()
    };
    for (body, words) in [
        (String::new(), "not a v1 report"),
        ("[1]".to_owned(), "not a v1 report"),
        (with("stage", json!("Booted")), "the stages are AgentStarting"),
        (
            with("ready", json!(true)),
            "ready: true does not go with stage LoginWindow",
        ),
    ] {
        let answer = say(&pki, &collector, &post(ONE, &key().token(ONE), &body)).await;
        assert_eq!((answer.status, answer.reason()), (400, Reason::Malformed), "{body}");
        assert!(answer.body.contains(words), "{}", answer.body);
    }
    assert_eq!(collector.counts.malformed.get(), 4);
    assert!(desk.records(ONE).is_empty());
}

#[tokio::test]
async fn a_huge_body_is_refused_whether_or_not_its_length_is_said() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    let token = key().token(ONE);
    let said = format!(
        "POST /v1/machines/{ONE}/report HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {token}\r\nContent-Length: 99999999999\r\n\r\n"
    );
    let answer = say(&pki, &collector, said.as_bytes()).await;
    assert_eq!((answer.status, answer.reason()), (413, Reason::TooLarge));
    let mut unsaid = format!(
        "POST /v1/machines/{ONE}/report HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for _ in 0..17 {
        unsaid.push_str(&format!("1000\r\n{}\r\n", " ".repeat(4096)));
    }
    let answer = say(&pki, &collector, unsaid.as_bytes()).await;
    assert_eq!((answer.status, answer.reason()), (413, Reason::TooLarge));
    assert_eq!(collector.counts.too_large.get(), 2);
    assert!(desk.records(ONE).is_empty());
}

#[tokio::test]
async fn the_slow_lose_their_place_and_the_others_are_served() {
    // long enough for whoever is not slow on a busy machine
    let short = Duration::from_secs(2);
    let limits = Limits {
        handshake: short,
        head: short,
        body: short,
        connections: 3,
        ..long_held()
    };
    let (pki, desk, collector) = begin(&[ONE], limits).await;
    // one that never begins TLS, one that never ends its head, one that never ends its body
    let mut silent = TcpStream::connect(collector.address).await.expect("it listens");
    let mut headless = connect(&pki, &collector).await;
    headless.write_all(b"POST /v1/mach").await.expect("sent");
    let mut slow = connect(&pki, &collector).await;
    let whole = own(&report(1));
    slow.write_all(&whole[..whole.len() - 3]).await.expect("sent");
    let late = answer(&mut slow).await.expect("an answer");
    assert_eq!((late.status, late.reason()), (408, Reason::TooSlow));
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap_or(0), 0, "closed");
    let end = answer(&mut headless).await;
    assert!(end.is_none_or(|answer| answer.status == 408), "closed");
    let answer = say(&pki, &collector, &own(&report(2))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        (collector.counts.too_slow.get(), collector.counts.handshake.get()),
        (1, 1)
    );
    assert_eq!(desk.records(ONE).len(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_records_nothing() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    let mut stream = connect(&pki, &collector).await;
    let whole = own(&report(1));
    stream.write_all(&whole[..whole.len() - 3]).await.expect("sent");
    stream.shutdown().await.expect("closed");
    // either an answer or an end
    let _ = answer(&mut stream).await;
    let mut raw = TcpStream::connect(collector.address).await.expect("it listens");
    raw.write_all(b"GET / HTTP/1.1\r\nHost: c\r\n\r\n").await.expect("sent");
    let _ = raw.read(&mut [0; 64]).await;
    assert_eq!(
        say(&pki, &collector, &own(&report(2))).await.status,
        200,
        "it still serves"
    );
    assert_eq!(desk.records(ONE).len(), 1, "the second only");
}

#[tokio::test]
async fn repeated_and_overtaken_reports_are_answered_and_not_recorded() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    let staged = |sequence, stage| {
        let mut report = report(sequence);
        report["stage"] = json!(stage);
        own(&report)
    };
    for request in [
        staged(5, "UserSession"),
        staged(5, "UserSession"),
        staged(4, "LoginWindow"),
    ] {
        let answer = say(&pki, &collector, &request).await;
        assert_eq!(answer.status, 200);
        serde_json::from_str::<Reply>(&answer.body).expect("an order");
    }
    let records = desk.records(ONE);
    assert_eq!(records.len(), 1);
    assert_eq!(format!("{:?}", records[0].stage), "Some(UserSession)");
    assert_eq!(collector.counts.accepted.get(), 1);
}

#[tokio::test]
async fn whoever_reports_too_often_is_told_to_wait_and_others_are_not() {
    let (pki, desk, collector) = begin(&[ONE, TWO], long_held()).await;
    let mut refused = 0;
    for n in 1..=12 {
        let answer = say(&pki, &collector, &own(&report(n))).await;
        if answer.status == 429 {
            assert_eq!(answer.reason(), Reason::TooOften);
            assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
            refused += 1;
        }
    }
    assert!(refused >= 1, "twelve at once are more than five");
    assert_eq!(collector.counts.too_often.get(), refused);
    assert_eq!(
        say(&pki, &collector, &post(TWO, &key().token(TWO), &report(1).to_string()))
            .await
            .status,
        200
    );
    assert_eq!(desk.records(TWO).len(), 1);
}

#[tokio::test]
async fn a_report_that_cannot_be_written_is_asked_for_again_and_then_written() {
    let (pki, desk, collector) = begin(&[ONE], long_held()).await;
    desk.break_down(Some("unwritable"));
    let answer = say(&pki, &collector, &own(&report(1))).await;
    assert_eq!((answer.status, answer.reason()), (503, Reason::Unavailable));
    assert!(
        !answer.body.contains("desk"),
        "what is wrong inside is for the operator's log: {}",
        answer.body
    );
    desk.break_down(None);
    assert_eq!(
        say(&pki, &collector, &own(&report(1))).await.status,
        200,
        "the very same report"
    );
    assert_eq!(desk.records(ONE).len(), 1);
    assert_eq!(
        (collector.counts.not_written.get(), collector.counts.written.get()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_held_answer_comes_when_the_order_changes_or_the_machine_or_the_collector_goes() {
    let (pki, desk, collector) = begin(&[ONE, TWO], long_held()).await;
    let mut held = report(1);
    held["seenRevision"] = json!("run");
    let request = own(&held);
    let (a, ()) = tokio::join!(say(&pki, &collector, &request), async {
        desk.until(ONE, "a record", |records| !records.is_empty()).await;
        desk.change(ONE, |machine| machine.order = shutdown("s1"));
    });
    assert_eq!(
        serde_json::from_str::<Reply>(&a.body).expect("an order"),
        shutdown("s1")
    );

    held["seenRevision"] = json!("s1");
    held["stage"] = json!("UserSession");
    held["sequence"] = json!(2);
    let request = own(&held);
    let (a, ()) = tokio::join!(say(&pki, &collector, &request), async {
        desk.until(ONE, "a second record", |records| records.len() == 2).await;
        desk.remove(ONE);
    });
    assert_eq!((a.status, a.reason()), (404, Reason::NotFound));

    held["seenRevision"] = json!("run");
    let request = post(TWO, &key().token(TWO), &held.to_string());
    let mut stream = connect(&pki, &collector).await;
    stream.write_all(&request).await.expect("sent");
    desk.until(TWO, "a record", |records| !records.is_empty()).await;
    collector.stop().await;
    let last = answer(&mut stream).await.expect("an answer at the end");
    assert_eq!(last.status, 200);
}
