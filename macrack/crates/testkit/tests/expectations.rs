//! The words of [`macrack_testkit::expect`] fail when they must, and say why.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use macrack_testkit::expect::Objects;
use macrack_testkit::{Namespace, expect, shared};
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);

async fn maps(ns: &Namespace) -> Api<ConfigMap> {
    Api::namespaced(shared().admin().await.expect("the admin"), ns.name())
}

fn map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() }, ..Default::default() }
}

/// The message of the panic that `future` must end with.
async fn panic_of<T>(future: impl Future<Output = T>) -> String {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(_) => panic!("the expectation held, though it must not"),
        Err(payload) => match payload.downcast::<String>() {
            Ok(message) => *message,
            Err(payload) => payload.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
        },
    }
}

#[tokio::test]
async fn a_refusal_for_another_reason_is_a_failure_that_shows_the_whole_message() {
    let ns = Namespace::fresh(shared(), "rejects").await.unwrap();
    let maps = maps(&ns).await;
    let refused = maps.create(&PostParams::default(), &map("Not A Name")).await;
    let said = panic_of(async { expect::rejects(refused, ["[third-instance]"]) }).await;
    assert!(said.contains("without [\"[third-instance]\"] it was refused (422 Invalid)"), "{said}");
    assert!(said.contains("a lowercase RFC 1123 subdomain must consist of"), "{said}");

    let accepted = maps.create(&PostParams::default(), &map("a")).await;
    let said = panic_of(async { expect::rejects(accepted, "anything") }).await;
    assert!(said.contains("but was accepted"), "{said}");

    let missing = maps.get("b").await;
    let said = panic_of(async { expect::rejects(missing, "") }).await;
    assert!(said.contains("must say for which reason"), "{said}");
}

#[tokio::test]
async fn until_sees_every_state_and_shows_the_last_one_when_time_is_up() {
    let ns = Namespace::fresh(shared(), "until").await.unwrap();
    let maps = maps(&ns).await;
    let mut states = Vec::new();
    let watching = tokio::sync::Notify::new();
    let watch = expect::until(&maps, "a", "gone again", SOON, |object| {
        states.push(object.is_some());
        watching.notify_one();
        states.ends_with(&[true, false])
    });
    let change = async {
        watching.notified().await;
        maps.create(&PostParams::default(), &map("a")).await.unwrap();
        maps.delete("a", &DeleteParams::default()).await.unwrap();
    };
    tokio::join!(watch, change);
    assert_eq!(states, [false, true, false]);

    let patch = Patch::Merge(json!({"data": {"phase": "Waiting"}}));
    maps.create(&PostParams::default(), &map("b")).await.unwrap();
    maps.patch("b", &PatchParams::default(), &patch).await.unwrap();
    let short = Duration::from_millis(300);
    let ready = |o: Option<&ConfigMap>| o.is_none();
    let said = panic_of(expect::until(&maps, "b", "gone", short, ready)).await;
    assert!(said.contains("ConfigMap b is still not gone; it is:"), "{said}");
    assert!(said.contains("phase: Waiting") && !said.contains("managedFields"), "{said}");
}

fn at_most_two(objects: &Objects<ConfigMap>) -> Result<(), String> {
    let live = objects.keys().filter(|k| k.contains("/slot-")).count();
    if live <= 2 { Ok(()) } else { Err(format!("{live} live at once")) }
}

#[tokio::test]
async fn always_fails_at_a_violation_that_lasted_a_moment_only() {
    let ns = Namespace::fresh(shared(), "always").await.unwrap();
    let maps = maps(&ns).await;
    let all = watcher::Config::default;
    let three = async {
        for name in ["slot-a", "slot-b", "slot-c"] {
            maps.create(&PostParams::default(), &map(name)).await.unwrap();
        }
        for name in ["slot-a", "slot-b", "slot-c"] {
            maps.delete(name, &DeleteParams::default()).await.unwrap();
        }
    };
    let said = panic_of(expect::always(&maps, all(), "two at most", at_most_two, three)).await;
    assert!(said.contains("not always two at most: 3 live at once"), "{said}");
    assert!(said.contains("name: slot-c"), "{said}");
}

#[tokio::test]
async fn always_judges_the_last_write_too_and_hands_on_what_the_future_gave() {
    let ns = Namespace::fresh(shared(), "always").await.unwrap();
    let maps = maps(&ns).await;
    let all = watcher::Config::default;
    let two = async {
        for name in ["slot-a", "slot-b"] {
            maps.create(&PostParams::default(), &map(name)).await.unwrap();
        }
        "done"
    };
    assert_eq!(expect::always(&maps, all(), "two at most", at_most_two, two).await, "done");
    let third = async {
        maps.create(&PostParams::default(), &map("slot-c")).await.unwrap();
    };
    let said = panic_of(expect::always(&maps, all(), "two at most", at_most_two, third)).await;
    assert!(said.contains("3 live at once"), "{said}");
}
