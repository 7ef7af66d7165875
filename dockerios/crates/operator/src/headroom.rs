//! Free space per storage class: what a Prometheus last told, and what drivers tell (CSIStorageCapacity).
//!
//! Invariants: no answer, a late one, no number, or more than one is unknown capacity, never plenty; a number counts for
//! the queries that gave it, and for no rule that asks otherwise.

use std::{collections::HashMap, time::Duration};

use dockerios_api::{
    Size,
    config::platform_config::{Headroom, Prometheus},
};
use dockerios_core::Seen;
pub use dockerios_core::decide::machine::Capacity;
use futures::future::join_all;
use http::{Request, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::CSIStorageCapacity};
use kube::{Client, Config, client::Body};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

/// What a source told about one storage class.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The storage class.
    pub storage_class: String,
    /// What was asked.
    pub asked: Prometheus,
    /// Its room, or why it is not known.
    pub room: Seen<Capacity>,
}

/// The last reading of every storage class.
#[derive(Debug, Default)]
pub struct Capacities(HashMap<String, (Prometheus, Seen<Capacity>)>);

impl Capacities {
    /// Room of a storage class as those queries tell; Unknown before their first reading.
    pub fn of(&self, storage_class: &str, asked: &Prometheus) -> Seen<Capacity> {
        match self.0.get(storage_class) {
            Some((of, room)) if of == asked => room.clone(),
            _ => Seen::Unknown(format!("nobody has told yet how much room {storage_class} has")),
        }
    }

    /// Keeps a reading; whether it is news.
    pub fn take(&mut self, reading: Reading) -> bool {
        let told = (reading.asked, reading.room);
        let known = self.0.get(&reading.storage_class) == Some(&told);
        if !known {
            self.0.insert(reading.storage_class, told);
        }
        !known
    }
}

/// Pause between two rounds of queries.
const EVERY: Duration = Duration::from_secs(15);
/// A Prometheus that takes longer has not answered.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read: one number with its labels takes less than a thousandth of them.
const LARGEST: usize = 1 << 20;

/// Asks every Prometheus that the rules name, round after round, and at once when the rules change.
pub async fn watch(mut rules: watch::Receiver<Vec<Headroom>>, tell: mpsc::Sender<Reading>) {
    loop {
        let current = rules.borrow_and_update().clone();
        let asked = current.iter().filter_map(|rule| {
            let prometheus = rule.source.prometheus.as_ref()?;
            Some(async {
                Reading {
                    storage_class: rule.storage_class_name.0.clone(),
                    asked: prometheus.clone(),
                    room: ask(prometheus, PATIENCE).await,
                }
            })
        });
        for reading in join_all(asked).await {
            if tell.send(reading).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = rules.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Both numbers of one Prometheus.
async fn ask(prometheus: &Prometheus, patience: Duration) -> Seen<Capacity> {
    let both = async {
        let (free, total) = futures::try_join!(
            query(&prometheus.url, "freeQuery", &prometheus.free_query),
            query(&prometheus.url, "capacityQuery", &prometheus.capacity_query),
        )?;
        Ok(Capacity { free, total })
    };
    match tokio::time::timeout(patience, both).await {
        Ok(Ok(capacity)) => Seen::Present(capacity),
        Ok(Err(why)) => Seen::Unknown(why),
        Err(_) => Seen::Unknown(format!(
            "{} did not answer within {} ms",
            prometheus.url,
            patience.as_millis()
        )),
    }
}

/// The one number of an instant query.
async fn query(url: &str, field: &str, query: &str) -> Result<u64, String> {
    let at = |why: String| format!("{url}, {field}: {why}");
    let base: Uri = url.parse().map_err(|error| at(format!("no URL: {error}")))?;
    let mut config = Config::new(base);
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = Some(PATIENCE);
    let client = Client::try_from(config).map_err(|error| at(error.to_string()))?;
    let request = Request::get(format!("/api/v1/query?query={}", encoded(query)))
        .body(Body::empty())
        .map_err(|error| at(error.to_string()))?;
    let answer = client.send(request).await;
    let answer = answer.map_err(|error| at(dockerios_pki::words(&error)))?;
    let status = answer.status();
    let text = text(answer.into_body()).await.map_err(at)?;
    match number(&text) {
        // what Prometheus itself says of a query that it refuses comes with a 400
        Err(_) if !status.is_success() && failure(&text).is_none() => Err(at(format!("answered {status}"))),
        told => told.map_err(at),
    }
}

/// The text of an answer that is not longer than one may be.
async fn text(body: Body) -> Result<String, String> {
    let bytes = match Limited::new(body, LARGEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(format!(
                "the answer has more than {LARGEST} bytes; the query must give exactly one number: use sum(…)"
            ));
        }
        Err(error) => return Err(format!("the answer broke off: {error}")),
    };
    String::from_utf8(bytes.into()).map_err(|_| "the answer is no text".to_owned())
}

/// A query as it stands in a URL (RFC 3986: unreserved characters stay, all else is percent-encoded).
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Why Prometheus did not do what it was asked, if it says so.
fn failure(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    if answer["status"] == "success" {
        return None;
    }
    let told = answer["error"].as_str().unwrap_or("no reason is given");
    let told: String = told.chars().take(200).collect();
    Some(format!("the query failed: {told}"))
}

/// The one number in a Prometheus' answer (prometheus.io/docs/prometheus/latest/querying/api, instant queries).
fn number(answer: &str) -> Result<u64, String> {
    if let Some(failure) = failure(answer) {
        return Err(failure);
    }
    let answer: Value = serde_json::from_str(answer).map_err(|error| format!("the answer is no JSON: {error}"))?;
    let data = &answer["data"];
    let result = data["result"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sample = match (data["resultType"].as_str(), result) {
        (Some("scalar"), [_, value]) => value,
        (Some("vector"), [one]) => &one["value"][1],
        (Some("vector"), []) => return Err("the query gives no series; it must give exactly one".into()),
        (Some("vector"), more) => {
            return Err(format!(
                "the query gives {} series; it must give exactly one: use sum(…)",
                more.len()
            ));
        }
        (kind, _) => {
            return Err(format!(
                "the query gives a {}; it must give one number",
                kind.unwrap_or("thing without a type")
            ));
        }
    };
    let bytes: f64 = sample
        .as_str()
        .and_then(|text| text.parse().ok())
        .ok_or("the value is no number")?;
    // 2^63: more than any storage has, and exact as a float
    if !(0.0..9_223_372_036_854_775_808.0).contains(&bytes) {
        return Err(format!("{bytes} is no number of bytes"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = bytes as u64;
    Ok(whole)
}

/// What drivers tell of a storage class, over all its segments. They tell what is free and not the whole, which is
/// taken to be that and all that was asked for in claims of the class: too much where clones share blocks, so the
/// threshold is then higher than it need be.
pub fn of_driver(told: &[&CSIStorageCapacity], claims: &[&PersistentVolumeClaim]) -> Seen<Capacity> {
    if told.is_empty() {
        return Seen::Absent;
    }
    let mut free = 0u64;
    for segment in told {
        // a segment without a number is one that the driver could not look at
        let Some(capacity) = &segment.capacity else {
            return Seen::Unknown("the driver gives no capacity for one of its segments".into());
        };
        match bytes(&capacity.0) {
            Some(bytes) => free = free.saturating_add(bytes),
            None => return Seen::Unknown(format!("the driver gives {:?} as a capacity", capacity.0)),
        }
    }
    let mut total = free;
    for claim in claims {
        let held = claim
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref()?.get("storage"));
        if let Some(bytes) = held.and_then(|held| bytes(&held.0)) {
            total = total.saturating_add(bytes);
        }
    }
    Seen::Present(Capacity { free, total })
}

/// Whole bytes of a quantity; drivers write no other.
pub(crate) fn bytes(quantity: &str) -> Option<u64> {
    if quantity == "0" {
        Some(0)
    } else {
        Size::from(quantity).bytes().ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn vector(values: &[&str]) -> String {
        let series: Vec<String> = values
            .iter()
            .map(|v| format!(r#"{{"metric":{{}},"value":[1.5,"{v}"]}}"#))
            .collect();
        format!(
            r#"{{"status":"success","data":{{"resultType":"vector","result":[{}]}}}}"#,
            series.join(",")
        )
    }

    #[test]
    fn exactly_one_number_of_bytes_is_a_capacity_and_all_else_is_refused_with_the_reason() {
        assert_eq!(number(&vector(&["1.5e3"])), Ok(1500));
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1.5,"7"]}}"#;
        assert_eq!(number(scalar), Ok(7));
        for (answer, why) in [
            (vector(&[]), "no series"),
            (vector(&["1", "2"]), "2 series"),
            (vector(&["NaN"]), "no number of bytes"),
            (vector(&["-1"]), "no number of bytes"),
            (vector(&["+Inf"]), "no number of bytes"),
            (vector(&["many"]), "no number"),
            (r#"{"status":"error","error":"parse error"}"#.into(), "parse error"),
            (
                r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#.into(),
                "matrix",
            ),
            ("<html>".into(), "no JSON"),
        ] {
            let refused = number(&answer).expect_err("it is no one number");
            assert!(refused.contains(why), "{answer}: {refused}");
        }
    }

    #[test]
    fn a_query_keeps_its_meaning_in_a_url() {
        assert_eq!(encoded(r#"sum(a{b="ü &"})"#), "sum%28a%7Bb%3D%22%C3%BC%20%26%22%7D%29");
    }

    #[test]
    fn a_driver_that_gives_no_number_tells_nothing() {
        let segment = |capacity: Option<&str>| {
            let capacity = capacity.map(|c| k8s_openapi::apimachinery::pkg::api::resource::Quantity(c.into()));
            CSIStorageCapacity {
                capacity,
                ..CSIStorageCapacity::default()
            }
        };
        assert_eq!(of_driver(&[], &[]), Seen::Absent);
        let (one, other, none, odd) = (
            segment(Some("10Gi")),
            segment(Some("0")),
            segment(None),
            segment(Some("1e3")),
        );
        assert_eq!(
            of_driver(&[&one, &other], &[]),
            Seen::Present(Capacity {
                free: 10 << 30,
                total: 10 << 30
            })
        );
        for bad in [&none, &odd] {
            assert!(of_driver(&[&one, bad], &[]).unreadable().is_some(), "{bad:?}");
        }
    }

    /// A server that answers every request with that text; none: never.
    async fn prometheus(answer: Option<String>) -> Prometheus {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    let _ = stream.read(&mut request).await;
                    match answer {
                        Some(body) => {
                            let length = body.len();
                            let text = format!(
                                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                            );
                            let _ = stream.write_all(text.as_bytes()).await;
                        }
                        None => std::future::pending().await,
                    }
                });
            }
        });
        Prometheus {
            url: format!("http://127.0.0.1:{port}"),
            free_query: "free".into(),
            capacity_query: "all".into(),
        }
    }

    #[tokio::test]
    async fn a_prometheus_is_asked_over_the_wire() {
        let room = ask(&prometheus(Some(vector(&["42"]))).await, PATIENCE).await;
        assert_eq!(room, Seen::Present(Capacity { free: 42, total: 42 }));
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_not_read_to_its_end() {
        let long = format!("{}{}", vector(&["42"]), " ".repeat(LARGEST));
        let room = ask(&prometheus(Some(long)).await, PATIENCE).await;
        let why = room.unreadable();
        assert!(
            why.is_some_and(|why| why.contains("more than 1048576 bytes")),
            "{room:?}"
        );
    }

    #[test]
    fn a_number_counts_for_the_queries_that_gave_it_alone() {
        let asked = |query: &str| Prometheus {
            url: "http://p:9090".into(),
            free_query: query.into(),
            capacity_query: "all".into(),
        };
        let plenty = Seen::Present(Capacity { free: 9, total: 9 });
        let reading = Reading {
            storage_class: "fast".into(),
            asked: asked("free"),
            room: plenty.clone(),
        };
        let mut known = Capacities::default();
        assert!(known.take(reading.clone()), "it is news");
        assert!(!known.take(reading), "and the same again is none");
        assert_eq!(known.of("fast", &asked("free")), plenty);
        let other = known.of("fast", &asked("free_of_another_pool"));
        assert!(other.unreadable().is_some(), "the rule asks otherwise now: {other:?}");
    }

    #[tokio::test]
    async fn one_that_does_not_answer_tells_nothing() {
        let room = ask(&prometheus(None).await, Duration::from_millis(50)).await;
        assert!(
            room.unreadable().is_some_and(|why| why.contains("did not answer")),
            "{room:?}"
        );
    }
}
