//! A cluster that was there before: nothing is started, nothing is ended, namespaces are removed.

use std::process::Command;
use std::time::Duration;

use dockerios_testkit::{ControlPlane, KUBECONFIG, Options, Proc, Scratch, expect, shared};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};

const INNER: &str = "DOCKERIOS_TESTKIT_INNER";

/// Not a test of its own: what the next test runs with the variable set.
#[tokio::test]
async fn inside() -> anyhow::Result<()> {
    if std::env::var_os(INNER).is_none() {
        return Ok(());
    }
    let plane = ControlPlane::start(Options::default()).await?;
    assert!(plane.is_existing() && plane.parts().is_empty());
    let scratch = Scratch::new(&plane, "existing").await?;
    println!("namespace={}", scratch.name());

    let eve = plane.client_as("eve", &["tenants", "auditors"]).await?;
    let reviews: Api<SelfSubjectReview> = Api::all(eve.clone());
    let review = expect::accepted(
        reviews
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await,
    )?;
    let who = review
        .status
        .and_then(|status| status.user_info)
        .expect("a review says who asks");
    assert_eq!(who.username.as_deref(), Some("eve"));
    assert_eq!(
        who.groups.unwrap_or_default(),
        ["tenants", "auditors", "system:authenticated"]
    );
    let secrets: Api<Secret> = Api::namespaced(eve, scratch.name());
    expect::refused(
        secrets.list(&ListParams::default()).await,
        403,
        &["\"eve\" cannot list resource \"secrets\""],
    )?;

    let robot = plane.client_of_service_account(scratch.name(), "default").await?;
    let secrets: Api<Secret> = Api::namespaced(robot, scratch.name());
    let account = format!("system:serviceaccount:{}:default", scratch.name());
    expect::refused(secrets.list(&ListParams::default()).await, 403, &[&account])?;

    let refusal = plane
        .kubeconfig_for("eve", &[])
        .expect_err("the CA is not ours")
        .to_string();
    assert!(refusal.contains("use client_as"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn an_existing_cluster_is_used_left_running_and_its_namespaces_are_removed() -> anyhow::Result<()> {
    let plane = shared().await?;
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "inside", "--nocapture"])
        .env(INNER, "1")
        .env(KUBECONFIG, plane.kubeconfig());
    let inner = Proc::spawn("inside", command, dir.path().join("log"))?;
    let status = inner.wait(Duration::from_secs(120)).await?;
    assert!(status.success(), "{}", inner.tail(30));
    let log = inner.log();
    let name = log
        .lines()
        .find_map(|line| line.split_once("namespace="))
        .expect("the inner test names it")
        .1;
    let namespaces: Api<Namespace> = Api::all(plane.client().await?);
    expect::gone(namespaces, name).await?;

    // a cluster that does not answer is named
    let dead = dir.path().join("dead.kubeconfig");
    let text = std::fs::read_to_string(plane.kubeconfig())?;
    let server = text
        .split('"')
        .find(|part| part.starts_with("https://"))
        .expect("a server")
        .to_owned();
    std::fs::write(&dead, text.replace(&server, "https://127.0.0.1:1"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "inside", "--nocapture"])
        .env(INNER, "1")
        .env(KUBECONFIG, &dead);
    let inner = Proc::spawn("dead", command, dir.path().join("dead.log"))?;
    assert!(!inner.wait(Duration::from_secs(120)).await?.success());
    assert!(inner.log().contains("whose cluster does not answer"), "{}", inner.log());
    Ok(())
}
