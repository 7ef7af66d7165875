use std::sync::Mutex;

use axum::{body::Body, http::Request};
use macrack_core::{
    admit::{class, image, instance, lease},
    seen::Seen,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;

/// Facts that cannot be read, or never come.
#[derive(Clone, Copy, Default)]
struct Blind {
    silent: bool,
}

fn blind<T>() -> Seen<T> {
    Seen::Unknown("etcd is away".to_owned())
}

impl FactSource for Blind {
    async fn instance(&self, instance: MacOSInstance, now: Timestamp) -> instance::Facts {
        if self.silent {
            std::future::pending::<()>().await;
        }
        let classes = [(instance.spec.instance_class_name.clone(), blind())].into();
        instance::Facts {
            instance,
            now,
            lease: blind(),
            others: blind(),
            classes,
            node_class: blind(),
            image: blind(),
            host_version: blind(),
        }
    }
    async fn lease(&self, lease: MacNodeLease, old: Option<MacNodeLease>) -> lease::Facts {
        lease::Facts { lease, old, class: blind(), chassis: blind(), images: vec![] }
    }
    async fn image(&self, image: MacOSImage, old: Option<MacOSImage>) -> image::Facts {
        image::Facts { image, old, others: blind(), tenants: blind() }
    }
    async fn instance_class(&self, class: InstanceClass) -> class::InstanceFacts {
        class::InstanceFacts { class, node_classes: blind() }
    }
    async fn node_class(&self, class: MacNodeClass) -> class::NodeFacts {
        class::NodeFacts { class, instance_classes: blind() }
    }
}

async fn ask(facts: Blind, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    let router = router(Context { facts: Arc::new(facts), clock: Arc::new(|| Timestamp::UNIX_EPOCH), observer: None });
    let request = Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn review(change: impl Fn(&mut Value)) -> Value {
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "0c9a8d74-9cb7-44dd-b98e-09fd62def2f4",
            "kind": {"group": "instance.macrack.io", "version": "v1alpha1", "kind": "MacOSInstance"},
            "resource": {"group": "instance.macrack.io", "version": "v1alpha1", "resource": "macosinstances"},
            "name": "build-1", "namespace": "team-a", "operation": "CREATE",
            "userInfo": {"username": "eve"}, "dryRun": false,
            "object": {
                "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
                "metadata": {"name": "build-1", "namespace": "team-a"},
                "spec": {"leaseName": "ios-ci", "instanceClassName": "half", "imageName": "tahoe"},
            },
            "oldObject": null,
        },
    });
    change(&mut review);
    review
}

const INSTANCES: &str = "/validate/macosinstances";

async fn answer(facts: Blind, review: Value) -> Value {
    let (status, body) = ask(facts, INSTANCES, review.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let review: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (review["apiVersion"].as_str(), review["kind"].as_str()),
        (Some("admission.k8s.io/v1"), Some("AdmissionReview"))
    );
    review["response"].clone()
}

#[tokio::test]
async fn facts_that_cannot_be_read_refuse_and_ask_to_try_again() {
    let response = answer(Blind::default(), review(|_| {})).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["uid"], "0c9a8d74-9cb7-44dd-b98e-09fd62def2f4");
    assert_eq!(response["status"]["code"], 503);
    assert_eq!(response["status"]["reason"], "ServiceUnavailable");
    assert_eq!(response["status"]["details"]["retryAfterSeconds"], 1);
    assert_eq!(
        response["status"]["message"],
        "[try-again] macosinstance team-a/build-1: lease ios-ci could not be read (etcd is away); nothing was changed, try again"
    );
}

#[tokio::test(start_paused = true)]
async fn facts_that_never_come_refuse_before_the_api_server_gives_up() {
    let began = tokio::time::Instant::now();
    let response = answer(Blind { silent: true }, review(|_| {})).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(response["allowed"], false);
    assert!(response["status"]["message"].as_str().unwrap().starts_with("[try-again] macosinstance team-a/build-1"));
}

#[tokio::test]
async fn a_body_that_is_no_review_gets_a_400_and_no_verdict() {
    let mut deep = "[".repeat(100_000);
    deep.push_str(&"]".repeat(100_000));
    let lease = |r: &mut Value| r["request"]["kind"]["kind"] = json!("MacNodeLease");
    for (case, body) in [
        ("empty", String::new()),
        ("not JSON", "allowed: true".to_owned()),
        ("not UTF-8, nearly", "\u{0}\u{fffd}".to_owned()),
        ("another type", "[1, 2]".to_owned()),
        ("another object", "{}".to_owned()),
        ("no request", json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).to_string()),
        ("cut off", review(|_| {}).to_string()[..200].to_owned()),
        ("deep", deep),
        ("another kind", review(lease).to_string()),
        ("no object", review(|r| r["request"]["object"] = Value::Null).to_string()),
        ("no operation", review(|r| r["request"]["operation"] = json!("CONQUER")).to_string()),
    ] {
        let (status, body) = ask(Blind::default(), INSTANCES, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{case}: {body}");
        assert!(!body.contains("allowed") && body.len() < 400, "{case}: {body}");
    }
    let (status, _) = ask(Blind::default(), INSTANCES, vec![b' '; BODY + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, _) = ask(Blind::default(), "/validate/pods", "{}").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_object_that_this_version_cannot_read_is_refused_by_field() {
    let odd = |r: &mut Value| r["request"]["object"]["spec"]["powerState"] = json!("Hibernating");
    let response = answer(Blind::default(), review(odd)).await;
    assert_eq!((response["allowed"].as_bool(), response["status"]["code"].as_u64()), (Some(false), Some(422)));
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("[readable] macosinstance team-a/build-1: ") && message.contains("Hibernating"),
        "{message}"
    );
}

#[tokio::test]
async fn advice_is_given_as_a_warning_and_every_answer_is_observed() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let observed = seen.clone();
    let observer: Observer = Arc::new(move |a| {
        let rule = match a.verdict {
            Verdict::Allow { warnings } => format!("allowed, {} warning", warnings.len()),
            Verdict::Deny(refusal) => refusal.rule.to_owned(),
        };
        observed.lock().unwrap().push(format!("{} {} by {}: {rule}", a.kind, a.name, a.user));
    });
    let context = Context {
        facts: Arc::new(Blind::default()),
        clock: Arc::new(|| Timestamp::UNIX_EPOCH),
        observer: Some(observer),
    };
    let router = router(context);
    let class = json!({"group": "instance.macrack.io", "version": "v1alpha1", "kind": "InstanceClass"});
    let body = review(|r| {
        r["request"]["kind"] = class.clone();
        r["request"]["name"] = json!("half");
        r["request"]["namespace"] = Value::Null;
        r["request"]["object"] = json!({"apiVersion": "instance.macrack.io/v1alpha1", "kind": "InstanceClass",
            "metadata": {"name": "half"}, "spec": {"cpuCores": 6, "memory": "28Gi", "disk": "250G"}});
    });
    let post = |path: &str, body: &Value| {
        Request::post(path).header("content-type", "application/json").body(Body::from(body.to_string())).unwrap()
    };
    let response = router.clone().oneshot(post("/validate/instanceclasses", &body)).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let answered: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answered["response"]["allowed"], true);
    assert!(answered["response"]["warnings"][0].as_str().unwrap().contains("could not be read"), "{answered}");
    router.oneshot(post(INSTANCES, &review(|_| {}))).await.unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        ["InstanceClass half by eve: allowed, 1 warning", "MacOSInstance build-1 by eve: try-again"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let began = tokio::time::Instant::now();
    let silence = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let (status, said) = ask(Blind::default(), "/validate/macosinstances", silence).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{said}");
    assert_eq!(began.elapsed(), WHOLE);
}
