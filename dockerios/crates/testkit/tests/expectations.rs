//! A failed expectation says who expected, what for, and what was there instead.

use std::time::Duration;

use dockerios_testkit::{History, Scratch, apply_yaml, expect, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

/// Long enough for a list, short enough to wait for in vain.
const SHORT: Duration = Duration::from_secs(10);

fn holds(key: &str, value: &str) -> impl Fn(&ConfigMap) -> bool {
    move |map| {
        map.data
            .as_ref()
            .and_then(|data| data.get(key))
            .is_some_and(|found| found == value)
    }
}

#[tokio::test]
async fn an_unmet_wait_shows_the_object_as_last_seen_or_that_there_is_none() -> anyhow::Result<()> {
    let scratch = Scratch::new(shared().await?, "unmet").await?;
    apply_yaml(
        &scratch.client()?,
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {color: red}}",
    )
    .await?;
    let maps: Api<ConfigMap> = Api::namespaced(scratch.client()?, scratch.name());
    let wait = |name: &'static str, color: &'static str| {
        expect::until_within(maps.clone(), name, "the right colour", SHORT, holds("color", color))
    };
    assert_eq!(wait("one", "red").await?.name_any(), "one");
    let stranger: Api<ConfigMap> = Api::namespaced(shared().await?.client_as("eve", &[]).await?, scratch.name());
    let table = [
        (
            wait("one", "blue").await.map(drop),
            vec![
                "configmaps/one: no sign of the right colour",
                "color: red",
                "expectations.rs",
            ],
        ),
        (
            wait("two", "red").await.map(drop),
            vec!["configmaps/two: no sign of the right colour", "there is no such object"],
        ),
        (
            expect::gone_within(maps.clone(), "one", SHORT).await,
            vec!["no sign of its end", "color: red"],
        ),
        (
            expect::gone_within(stranger, "one", SHORT).await,
            vec!["it could not be read", "the watch failed", "\"eve\" cannot list"],
        ),
    ];
    for (result, fragments) in table {
        let Err(error) = result else {
            panic!("{fragments:?}: it should not have been met")
        };
        let text = format!("{error:#}");
        for fragment in fragments {
            assert!(text.contains(fragment), "{fragment:?} is not in: {text}");
        }
        assert!(!text.contains("managedFields"), "{text}");
    }
    expect::gone(maps, "two").await
}

#[tokio::test]
async fn a_crowd_is_met_when_all_of_it_is_so_and_an_unmet_one_is_named() -> anyhow::Result<()> {
    let scratch = Scratch::new(shared().await?, "crowd").await?;
    let maps: Api<ConfigMap> = Api::namespaced(scratch.client()?, scratch.name());
    let named = |maps: &[ConfigMap]| -> Vec<String> {
        let names = maps.iter().map(|map| map.name_any());
        names.filter(|name| name != "kube-root-ca.crt").collect()
    };
    let wait = |wanted: &'static [&'static str], limit| {
        expect::all_within(maps.clone(), "those maps", limit, move |all| named(all) == wanted)
    };
    // none is met by an empty list, and not before there is one
    assert!(named(&wait(&[], expect::DEADLINE).await?).is_empty());
    let made = async {
        for name in ["b", "a", "c"] {
            let map = json!({"metadata": {"name": name}});
            maps.create(&PostParams::default(), &serde_json::from_value(map)?)
                .await?;
        }
        maps.delete("b", &DeleteParams::default()).await?;
        anyhow::Ok(())
    };
    // by what happens after the list, in the order of names
    let (met, made) = tokio::join!(wait(&["a", "c"], expect::DEADLINE), made);
    made?;
    assert_eq!(named(&met?), ["a", "c"]);
    let Err(error) = wait(&["a"], SHORT).await else {
        panic!("there are two")
    };
    let text = format!("{error:#}");
    for part in ["no sign of those maps", "\"a\", \"c\"", "expectations.rs"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let stranger: Api<ConfigMap> = Api::namespaced(shared().await?.client_as("eve", &[]).await?, scratch.name());
    let Err(error) = expect::all_within(stranger, "none", SHORT, |all| all.is_empty()).await else {
        panic!("what cannot be read is not empty")
    };
    let text = format!("{error:#}");
    assert!(
        text.contains("they could not be read") && text.contains("\"eve\" cannot list"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn a_refusal_counts_only_with_its_code_and_its_reason() -> anyhow::Result<()> {
    let scratch = Scratch::new(shared().await?, "refused").await?;
    let maps: Api<ConfigMap> = Api::namespaced(scratch.client()?, scratch.name());
    let table: [(u16, &[&str], &str); 4] = [
        (404, &["configmaps \"absent\" not found"], ""),
        (403, &["not found"], "should be refused with 403"),
        (404, &["is forbidden"], "missing: [\"is forbidden\"]"),
        (404, &[], "name what its message must contain"),
    ];
    for (code, fragments, complaint) in table {
        match expect::refused(maps.get("absent").await, code, fragments) {
            Ok(message) => assert!(complaint.is_empty(), "{message}"),
            Err(error) => {
                let text = error.to_string();
                assert!(
                    !complaint.is_empty() && text.contains(complaint) && text.contains("expectations.rs"),
                    "{text}"
                );
            }
        }
    }
    expect::until(
        maps.clone(),
        "kube-root-ca.crt",
        "the root CA that a controller writes",
        |_| true,
    )
    .await?;
    let accepted = expect::refused(maps.get("kube-root-ca.crt").await, 404, &["not found"]).expect_err("it is there");
    assert!(
        accepted
            .to_string()
            .contains("should be refused with 404 (not found), but was accepted"),
        "{accepted}"
    );
    let refused = expect::accepted(maps.get("absent").await).expect_err("it is not there");
    assert!(
        refused
            .to_string()
            .contains("404 NotFound: configmaps \"absent\" not found"),
        "{refused}"
    );
    Ok(())
}

#[tokio::test]
async fn a_history_knows_every_version_and_finds_the_one_that_broke_a_rule() -> anyhow::Result<()> {
    let scratch = Scratch::new(shared().await?, "history").await?;
    let maps: Api<ConfigMap> = Api::namespaced(scratch.client()?, scratch.name());
    expect::until(
        maps.clone(),
        "kube-root-ca.crt",
        "the root CA, so that nothing else is written",
        |_| true,
    )
    .await?;
    let history = History::start(maps.clone()).await?;
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(json!({"metadata": {"name": "one"}, "data": {"n": "0"}}))?,
    )
    .await?;
    for n in ["1", "2", "9", "3"] {
        maps.patch("one", &PatchParams::default(), &Patch::Merge(json!({"data": {"n": n}})))
            .await?;
    }
    maps.delete("one", &DeleteParams::default()).await?;
    history.catch_up().await?;
    let seen: Vec<String> = history
        .versions_of("one")
        .iter()
        .filter_map(|v| v.object.data.as_ref()?.get("n").cloned())
        .collect();
    assert_eq!(seen, ["0", "1", "2", "9", "3", "3"]);
    assert!(history.versions_of("one").last().is_some_and(|version| version.deleted));

    history
        .assert_always("one exists", |map| !map.name_any().is_empty())
        .await?;
    let broken = history
        .assert_always("n is small", |map| !holds("n", "9")(map))
        .await
        .expect_err("9 was written");
    let text = broken.to_string();
    assert!(
        text.starts_with("n is small: broken by version") && text.contains("\"n\":\"9\""),
        "{text}"
    );
    assert!(text.contains("before it") && text.contains("\"n\":\"2\""), "{text}");

    let empty: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(scratch.client()?, scratch.name());
    let nothing = History::start(empty)
        .await?
        .assert_always("secrets are good", |_| true)
        .await;
    assert!(
        nothing
            .expect_err("there are no secrets")
            .to_string()
            .contains("nothing shown")
    );
    Ok(())
}
