//! The endpoint itself.

use std::sync::Arc;

use dockerios_collector::Counts;
use dockerios_operator::{
    act::Outcome,
    metrics::{
        Metrics, Unanswered,
        serve::{Listen, bind, serve},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::world::text;

fn metrics() -> (
    Metrics,
    tokio::sync::mpsc::Receiver<dockerios_operator::metrics::Question>,
) {
    Metrics::new(Arc::new(Counts::default()))
}

/// What is answered to a request.
async fn ask(at: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).await.expect("it listens");
    let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}

#[tokio::test]
async fn metrics_are_got_at_their_path_and_all_else_is_refused_with_the_reason() {
    let (metrics, _questions) = metrics();
    let listener = bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let serving = tokio::spawn(serve(listener, metrics));
    let answer = ask(at, "GET /metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    assert!(answer.contains("\ndockerios_leader 0\n"), "{answer}");
    let answer = ask(at, "GET /").await;
    assert!(
        answer.starts_with("HTTP/1.1 404") && answer.contains("only /metrics"),
        "{answer}"
    );
    let answer = ask(at, "POST /metrics").await;
    assert!(
        answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET"),
        "{answer}"
    );
    serving.abort();
}

#[tokio::test]
async fn who_does_not_lead_tells_of_itself_and_nothing_of_the_fleet() {
    let (metrics, _questions) = metrics();
    metrics.acts().passed("MacOSMachine", &Outcome::default());
    let told = metrics.render().await.expect("nobody need be asked");
    let types = told
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut names: Vec<&str> = types.collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["dockerios_build", "dockerios_guest_reports", "dockerios_leader"]
    );
}

#[tokio::test]
async fn a_leader_that_has_not_seen_all_yet_tells_no_empty_fleet() {
    let (metrics, questions) = metrics();
    let text = text(&metrics, questions, None).await;
    assert!(text.contains("dockerios_leader 1"), "{text}");
    assert!(!text.contains("dockerios_machines"), "{text}");
}

#[tokio::test]
async fn a_leader_whose_deciding_task_has_ended_fails_the_scrape() {
    let (metrics, questions) = metrics();
    metrics.elected();
    drop(questions);
    assert_eq!(metrics.render().await, Err(Unanswered::Stuck));
}

#[test]
fn where_to_listen_is_an_address_or_off() {
    assert_eq!("off".parse(), Ok(Listen::Off));
    assert_eq!("127.0.0.1:9".parse(), Ok(Listen::At(([127, 0, 0, 1], 9).into())));
    for wrong in ["", "8080", "localhost:8080", "none", "0.0.0.0:99999"] {
        let refused = wrong.parse::<Listen>().expect_err("neither");
        assert!(
            refused.contains("0.0.0.0:8080") && refused.contains("the word off"),
            "{refused}"
        );
    }
}
