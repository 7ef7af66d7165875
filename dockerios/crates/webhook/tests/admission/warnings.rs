//! What is admitted with advice. kubectl prints it; here it is read from the answer's `Warning` headers.

use anyhow::Result;
use http::{Method, Request};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::cluster::{api, class, cluster, image, platform, pool, with};

/// The warnings of a dry-run create or, of what is there already, of a dry-run patch.
async fn warnings(client: &Client, object: &Value, method: Method) -> Result<Vec<String>> {
    let url = api(client, object).resource_url().to_owned();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let (uri, content) = match method {
        Method::POST => (format!("{url}?dryRun=All"), "application/json"),
        _ => (format!("{url}/{name}?dryRun=All"), "application/merge-patch+json"),
    };
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", content);
    let response = client
        .send(request.body(Body::from(serde_json::to_vec(object)?))?)
        .await?;
    anyhow::ensure!(response.status().is_success(), "{object}: {}", response.status());
    let said = response.headers().get_all("warning").iter();
    Ok(said
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect())
}

async fn said(client: &Client, object: &Value, fragments: &[&str]) -> Result<()> {
    let all = warnings(client, object, Method::POST).await?;
    let found = all
        .iter()
        .any(|one| fragments.iter().all(|fragment| one.contains(fragment)));
    anyhow::ensure!(found, "{fragments:?} not in {all:?}");
    Ok(())
}

#[tokio::test]
async fn the_platform_is_told_of_apples_licence_and_of_the_end_of_intel_each_time() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let changed = with(
        platform(),
        &json!({"spec": {"drainDeadline": "45m", "domainHook": null}}),
    );
    let all = warnings(&admin, &changed, Method::PATCH).await?;
    let licence = all
        .iter()
        .any(|one| one.contains("Apple's software licence") && one.contains("docs/licence.md"));
    assert!(licence, "{all:?}");
    assert!(
        all.iter()
            .any(|one| one.contains("macOS 26 is Apple's last macOS for Intel")),
        "{all:?}"
    );
    Ok(())
}

#[tokio::test]
async fn what_works_but_costs_is_admitted_with_the_cost() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let spec = |spec: Value| with(class("c"), &json!({"spec": spec}));
    said(
        &admin,
        &spec(json!({"systemDisk": {"storageClassName": "slow"}})),
        &["not known to discard", "kubectl annotate"],
    )
    .await?;
    said(
        &admin,
        &spec(json!({"systemDisk": {"storageClassName": "slow"}})),
        &["full copies"],
    )
    .await?;
    said(
        &admin,
        &spec(json!({"systemDisk": {"size": "200Gi"}})),
        &["spec.systemDisk.size", "pod in the platform"],
    )
    .await?;
    said(
        &admin,
        &spec(json!({"cpu": {"model": "FutureCPU"}})),
        &["FutureCPU", "not known here", "avx2"],
    )
    .await?;
    let plain = json!({"spec": {"source": {"registry": null, "http": {"url": "http://example.com/i", "sha256": "a".repeat(64)}}}});
    said(&admin, &with(image("i"), &plain), &["plain http"]).await?;
    assert_eq!(
        warnings(&admin, &class("c"), Method::POST).await?,
        Vec::<String>::new(),
        "nothing to say, nothing said"
    );
    assert_eq!(warnings(&admin, &pool("p"), Method::POST).await?, Vec::<String>::new());
    Ok(())
}
