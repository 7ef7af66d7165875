//! A process is killed between two of its writes, exactly where the test said.

use std::process::Command;
use std::time::Duration;

use dockerios_testkit::{Answer, Cut, Proc, Scratch, WriteCutter, client_from, expect, shared};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{from_value, json};

const MINUTE: Duration = Duration::from_secs(60);
const WRITER: &str = "DOCKERIOS_TESTKIT_WRITER_NAMESPACE";

/// Not a test of its own: what the tests start and kill. Writes five ConfigMaps, telling of each before and after,
/// with a Lease and a dry run in between, which do not count.
#[tokio::test]
async fn writer() -> anyhow::Result<()> {
    let Ok(namespace) = std::env::var(WRITER) else {
        return Ok(());
    };
    let kubeconfig = std::env::var_os("KUBECONFIG").expect("who starts the writer names its kubeconfig");
    let client = client_from(kubeconfig.as_ref()).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let leases: Api<Lease> = Api::namespaced(client, &namespace);
    for n in 1..=5 {
        let map: ConfigMap = from_value(json!({"metadata": {"name": format!("map-{n}")}}))?;
        println!("asked {n}");
        maps.create(
            &PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            &map,
        )
        .await?;
        maps.create(&PostParams::default(), &map).await?;
        println!("answered {n}");
        leases
            .create(
                &PostParams::default(),
                &from_value(json!({"metadata": {"name": format!("lease-{n}")}}))?,
            )
            .await?;
    }
    Ok(())
}

fn start_writer(namespace: &str, cutter: &WriteCutter, dir: &std::path::Path) -> anyhow::Result<Proc> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "writer", "--nocapture"]);
    command.env(WRITER, namespace).env("KUBECONFIG", cutter.kubeconfig());
    Proc::spawn("writer", command, dir.join("writer.log"))
}

#[tokio::test]
async fn a_process_is_killed_after_its_nth_write_and_a_watch_survives() -> anyhow::Result<()> {
    let plane = shared().await?;
    let cutter = WriteCutter::start(plane.kubeconfig()).await?;
    for (after, answer) in [
        (1, Answer::Lost),
        (3, Answer::Lost),
        (0, Answer::Delivered),
        (2, Answer::Delivered),
    ] {
        let case = format!("{answer:?} after {after}");
        let scratch = Scratch::new(plane, "cut").await?;
        let direct: Api<ConfigMap> = Api::namespaced(scratch.client()?, scratch.name());
        let through: Api<ConfigMap> = Api::namespaced(client_from(cutter.kubeconfig()).await?, scratch.name());
        let from = direct
            .list(&ListParams::default())
            .await?
            .metadata
            .resource_version
            .unwrap_or_default();
        let mut events = through.watch(&WatchParams::default(), &from).await?.boxed();

        let dir = tempfile::tempdir()?;
        cutter.hold();
        let writer = start_writer(scratch.name(), &cutter, dir.path())?;
        // it has asked, and waits
        writer.until_logged("asked 1", MINUTE).await?;
        cutter.arm(Cut {
            after,
            answer,
            pid: writer.pid(),
        })?;
        cutter.until_cut(MINUTE).await?;
        let status = writer.wait(MINUTE).await?;
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{case}: {status}"
        );

        let maps = direct.list(&ListParams::default()).await?;
        let mut made: Vec<String> = maps
            .iter()
            .map(|map| map.name_any())
            .filter(|n| n.starts_with("map-"))
            .collect();
        made.sort();
        let wanted: Vec<String> = (1..=after).map(|n| format!("map-{n}")).collect();
        assert_eq!(made, wanted, "{case}");
        assert_eq!(cutter.writes().len(), after, "{case}: {:?}", cutter.writes());
        let answered = writer.log().matches("answered").count();
        assert_eq!(
            answered,
            if answer == Answer::Lost { after - 1 } else { after },
            "{case}: {}",
            writer.log()
        );

        // cut: reads pass, writes do not
        expect::accepted(through.list(&ListParams::default()).await)?;
        let map: ConfigMap = from_value(json!({"metadata": {"name": "map-late"}}))?;
        expect::refused(
            through.create(&PostParams::default(), &map).await,
            503,
            &["writes are cut"],
        )?;
        cutter.reset();
        expect::accepted(through.create(&PostParams::default(), &map).await)?;
        assert_eq!(cutter.writes().len(), 1, "{case}: counted from zero again");

        // the watch that was begun before the cut sees what was written after it
        let mut seen = Vec::new();
        let last = async {
            while let Some(event) = events.try_next().await? {
                if let WatchEvent::Added(map) = event {
                    seen.push(map.name_any());
                    if seen.last().is_some_and(|name| name == "map-late") {
                        return Ok(());
                    }
                }
            }
            anyhow::bail!("the watch ended")
        };
        tokio::time::timeout(MINUTE, last).await??;
        assert_eq!(
            seen.iter().filter(|name| name.starts_with("map-")).count(),
            after + 1,
            "{case}: {seen:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_refused_write_does_not_count_and_the_proxys_identity_is_the_one_it_was_given() -> anyhow::Result<()> {
    let plane = shared().await?;
    let scratch = Scratch::new(plane, "identity").await?;
    let cutter = WriteCutter::start(&plane.kubeconfig_for("eve", &["tenants"])?).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client_from(cutter.kubeconfig()).await?, scratch.name());
    let map: ConfigMap = from_value(json!({"metadata": {"name": "one"}}))?;
    expect::refused(
        maps.create(&PostParams::default(), &map).await,
        403,
        &["User \"eve\" cannot create"],
    )?;
    assert!(cutter.writes().is_empty() && !cutter.is_cut());
    let error = cutter
        .until_cut(Duration::from_millis(50))
        .await
        .expect_err("nothing is armed")
        .to_string();
    assert!(
        error.contains("not cut") && error.contains("the writes that passed"),
        "{error}"
    );

    // a process that had ended before was not killed by the cut, and the test is told so
    let admin = WriteCutter::start(plane.kubeconfig()).await?;
    let dir = tempfile::tempdir()?;
    let ended = Proc::spawn("ended", Command::new("true"), dir.path().join("log"))?;
    ended.wait(MINUTE).await?;
    admin.arm(Cut {
        after: 0,
        answer: Answer::Delivered,
        pid: ended.pid(),
    })?;
    let maps: Api<ConfigMap> = Api::namespaced(client_from(admin.kubeconfig()).await?, scratch.name());
    expect::refused(
        maps.create(&PostParams::default(), &map).await,
        503,
        &["writes are cut"],
    )?;
    let error = admin
        .until_cut(MINUTE)
        .await
        .expect_err("nothing was killed")
        .to_string();
    assert!(
        error.contains("the process was not killed: it had ended before"),
        "{error}"
    );

    let cut = Cut {
        after: 0,
        answer: Answer::Lost,
        pid: std::process::id(),
    };
    assert!(
        cutter
            .arm(cut)
            .expect_err("no write has an answer")
            .to_string()
            .contains("Answer::Delivered")
    );
    Ok(())
}

#[tokio::test]
async fn what_a_kind_has_not_is_refused_once_writes_are_held_to_schemas_whatever_way_it_is_written()
-> anyhow::Result<()> {
    let plane = shared().await?;
    let scratch = Scratch::new(plane, "strict").await?;
    let cutter = WriteCutter::start(plane.kubeconfig()).await?;
    let client = client_from(cutter.kubeconfig()).await?;
    let kind = kube::api::ApiResource::erase::<ConfigMap>(&());
    let maps: Api<DynamicObject> = Api::namespaced_with(client, scratch.name(), &kind);
    let map = |name: &str| from_value(json!({"metadata": {"name": name}, "invented": 1}));
    // the API server's own way: dropped without a word
    let stored = expect::accepted(maps.create(&PostParams::default(), &map("dropped")?).await)?;
    assert!(stored.data.get("invented").is_none(), "{stored:?}");

    cutter.hold_to_schemas();
    let unknown: &[&str] = &["unknown field \"invented\""];
    expect::refused(
        maps.create(&PostParams::default(), &map("refused")?).await,
        400,
        unknown,
    )?;
    let merge = Patch::Merge(json!({"invented": 1}));
    // with a query of its own already
    let named = PatchParams {
        field_manager: Some("test".to_owned()),
        ..PatchParams::default()
    };
    expect::refused(maps.patch("dropped", &named, &merge).await, 422, unknown)?;
    let known = Patch::Merge(json!({"data": {"a": "b"}}));
    expect::accepted(maps.patch("dropped", &named, &known).await)?;
    expect::accepted(maps.delete("dropped", &Default::default()).await)?;
    assert_eq!(cutter.writes().len(), 3, "{:?}", cutter.writes());
    Ok(())
}
