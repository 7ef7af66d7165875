use axum::body::Body;
use http_body_util::BodyExt as _;
use kube::{Client, Config};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;

/// A desk whose API server nobody answers for.
fn blind() -> Router {
    desk("http://127.0.0.1:1", PATIENCE)
}

fn desk(api_server: &str, patience: Duration) -> Router {
    let url = api_server.parse().expect("a URL");
    let client = Client::try_from(Config::new(url)).expect("a client");
    router(Desk {
        eyes: Eyes::new(client),
        observe: None,
        patience,
    })
}

fn review(resource: &str, kind: &str, object: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "7", "operation": "CREATE", "name": "x", "namespace": "team-a",
            "kind": {"group": "machine.dockerios.io", "version": "v1alpha1", "kind": kind},
            "resource": {"group": "machine.dockerios.io", "version": "v1alpha1", "resource": resource},
            "userInfo": {"username": "dev"}, "dryRun": true, "object": object,
        },
    })
}

async fn ask(body: impl Into<Body>) -> (StatusCode, Value) {
    let request = http::Request::post(PATH)
        .header("content-type", "application/json")
        .body(body.into())
        .expect("a request");
    let response = blind().oneshot(request).await.expect("an answer");
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (
        status,
        serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()),
    )
}

fn claim(spec: Value) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
        "metadata": {"name": "x", "namespace": "team-a"}, "spec": spec,
    })
}

#[tokio::test]
async fn what_cannot_be_seen_is_answered_503_with_the_advice_to_try_again() {
    let asked = review(
        "macosmachineclaims",
        "MacOSMachineClaim",
        claim(json!({"poolName": "ci", "ttl": "2h"})),
    );
    let (status, answer) = ask(asked.to_string()).await;
    assert_eq!(status, StatusCode::OK);
    let response = &answer["response"];
    assert_eq!(
        (&response["allowed"], &response["uid"]),
        (&json!(false), &json!("7")),
        "{answer}"
    );
    assert_eq!(response["status"]["code"], 503, "{answer}");
    assert_eq!(response["status"]["details"]["retryAfterSeconds"], 1, "{answer}");
    let message = response["status"]["message"].as_str().unwrap_or_default();
    let said = [
        "[cannot-see]",
        "macosmachineclaim team-a/x spec.ttl",
        "PlatformConfig default",
        "try again",
    ];
    assert!(said.iter().all(|part| message.contains(part)), "{message}");
}

#[tokio::test]
async fn a_fault_is_answered_422_invalid_with_the_causes_that_kubectl_prints() {
    let asked = review("macosmachineclaims", "MacOSMachineClaim", claim(json!({"poolName": 7})));
    let (_, answer) = ask(asked.to_string()).await;
    assert_eq!(answer["response"]["status"]["code"], 422, "{answer}");
    assert_eq!(answer["response"]["status"]["reason"], "Invalid", "{answer}");
    let message = answer["response"]["status"]["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("[readable] macosmachineclaim team-a/x"),
        "{message}"
    );
    let causes = &answer["response"]["status"]["details"]["causes"];
    assert_eq!(causes.as_array().map(Vec::len), Some(1), "{answer}");
    let cause = causes[0]["message"].as_str().unwrap_or_default();
    assert!(cause.starts_with("[readable] ") && cause.contains("; "), "{answer}");
    assert_eq!(causes[0]["reason"], "FieldValueInvalid", "{answer}");
}

#[tokio::test]
async fn a_claim_that_needs_no_fact_is_let_in_even_blind() {
    let asked = review(
        "macosmachineclaims",
        "MacOSMachineClaim",
        claim(json!({"poolName": "ci"})),
    );
    let (_, answer) = ask(asked.to_string()).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
}

#[tokio::test]
async fn a_kind_that_has_no_rules_here_is_refused_and_not_waved_through() {
    let asked = review("pods", "Pod", claim(json!({})));
    let (_, answer) = ask(asked.to_string()).await;
    let message = answer["response"]["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("[registered]") && message.contains("pods"), "{answer}");
}

#[tokio::test]
async fn what_is_no_review_is_a_bad_request_and_what_is_too_large_is_said() {
    for body in ["", "{", "[]", "null", "{\"kind\":\"AdmissionReview\"}", "\u{0}\u{1}"] {
        let (status, why) = ask(body.to_owned()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body:?}: {why}");
    }
    let empty = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
    let (status, why) = ask(empty.to_string()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(why.as_str().is_some_and(|why| why.contains("no request")), "{why}");
    let (status, _) = ask(vec![b' '; LARGEST + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_deletion_that_was_registered_by_mistake_is_refused_with_the_mistake() {
    let mut asked = review("macosmachineclaims", "MacOSMachineClaim", Value::Null);
    asked["request"]["operation"] = json!("DELETE");
    let (_, answer) = ask(asked.to_string()).await;
    let message = answer["response"]["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("register CREATE and UPDATE only"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_end_is_not_waited_for() {
    let part = futures::stream::once(async { Ok::<_, std::convert::Infallible>("{".to_owned()) });
    let body = Body::from_stream(futures::StreamExt::chain(part, futures::stream::pending()));
    let request = http::Request::post(PATH).body(body).expect("a request");
    let answered = desk("http://127.0.0.1:1", Duration::from_millis(50)).oneshot(request);
    let answered = tokio::time::timeout(Duration::from_secs(60), answered).await;
    let response = answered.expect("it does not wait without end").expect("an answer");
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    let why = response.into_body().collect().await.expect("a body").to_bytes();
    assert!(why.starts_with(b"the body did not arrive within 50ms"), "{why:?}");
}

#[tokio::test]
async fn an_update_that_leaves_the_spec_asks_the_api_server_nothing() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", server.local_addr().expect("it is bound"));
    let spec = json!({"poolName": "ci", "ttl": "2h"});
    let mut asked = review("macosmachineclaims", "MacOSMachineClaim", claim(spec.clone()));
    asked["request"]["operation"] = json!("UPDATE");
    asked["request"]["oldObject"] = claim(spec);
    asked["request"]["object"]["metadata"]["labels"] = json!({"mine": "x"});
    let request = http::Request::post(PATH)
        .body(Body::from(asked.to_string()))
        .expect("a request");
    let response = desk(&url, PATIENCE).oneshot(request).await.expect("an answer");
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    let reached = futures::FutureExt::now_or_never(server.accept());
    assert!(reached.is_none(), "it was asked");
}
