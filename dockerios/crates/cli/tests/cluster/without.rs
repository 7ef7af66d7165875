//! Without a kubeconfig, a server, a right, a definition, a reader.

use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Result, ensure};
use dockerios_testkit::{ControlPlane, Options, shared};

use crate::{plugin, run};

/// Words of a verb that reads, and of each other that asks before it does anything.
const VERBS: &[&[&str]] = &[
    &["status"],
    &["doctor"],
    &["why", "macs/b-6"],
    &["identities"],
    &["screenshot", "macs/b-6", "-o", "never.png"],
    &["snapshot", "macs/b-6"],
    &["claim", "--pool", "ci"],
];

#[tokio::test]
async fn without_a_usable_kubeconfig_each_verb_says_which_file_and_the_way_out() -> Result<()> {
    let home = tempfile::tempdir()?;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(b"apiVersion: v1\nkind: Config\ncontexts: []\n")?;
    let absent = home.path().join("absent");
    for words in VERBS {
        let mut none = plugin(None, words);
        none.env("HOME", home.path());
        run(none).await?.expect(
            2,
            &["error: no kubeconfig: KUBECONFIG is not set", "give --kubeconfig FILE"],
        )?;
        let missing = [words, &["--kubeconfig", absent.to_str().unwrap_or_default()][..]].concat();
        run(plugin(None, &missing))
            .await?
            .expect(2, &["/absent: No such file", "give --kubeconfig FILE"])?;
        let empty = run(plugin(Some(file.path()), words)).await?;
        empty.expect(2, &["has no current context", "kubectl config use-context NAME"])?;
        let other = [words, &["--context", "prod"][..]].concat();
        let other = run(plugin(Some(file.path()), &other)).await?;
        other.expect(2, &["has no context prod; kubectl config get-contexts"])?;
    }
    let mut broken = tempfile::NamedTempFile::new()?;
    broken.write_all(b"{not: [yaml")?;
    run(plugin(Some(broken.path()), &["status"]))
        .await?
        .expect(2, &["the kubeconfig is not usable"])?;
    let wrong = run(plugin(Some(file.path()), &["why"])).await?;
    ensure!(wrong.code == 2 && wrong.err.contains("Usage: "), "{wrong:?}");
    Ok(())
}

#[tokio::test]
async fn words_that_mean_nothing_end_with_2_before_anything_is_asked() -> Result<()> {
    let pinned = format!("quay.io/fedora@sha256:{}", "a".repeat(64));
    for (words, why) in [
        (&["why", "pod/x"][..], "\"pod\" is not asked about"),
        (&["why", "macs/a?watch=true"], "is no name; write KIND/NAME"),
        (&["screenshot", "macpool/ci"], "is no machine; write macs/NAME"),
        (&["screenshot", "m", "-o", "/dev/null"], "/dev/null is there already"),
        (&["snapshot", "macpool/ci"], "is no machine; write macs/NAME"),
        (&["claim", "--pool", "ci", "--timeout", "1d"], "\"1d\" is no duration"),
        (
            &["bench", "--storage-class", "fast", "--image", "fedora:40"],
            "is not pinned by digest",
        ),
        (
            &["bench", "--storage-class", "fast?watch=true", "--image", &pinned],
            "\"fast?watch=true\" is no name of a StorageClass",
        ),
    ] {
        let mut wrong = plugin(None, words);
        wrong.env("HOME", "/nowhere");
        run(wrong).await?.expect(2, &[why])?;
    }
    Ok(())
}

#[tokio::test]
async fn without_a_server_it_says_that_nobody_answers() -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    // a port that was free a moment ago
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    write!(
        file,
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}'}}}}], users: [{{name: u, user: {{}}}}]}}"
    )?;
    for words in VERBS {
        // doctor tells what it did not see as findings
        let said = run(plugin(Some(file.path()), words)).await?;
        said.expect(2, &["Connection refused"])?;
    }
    let why = run(plugin(Some(file.path()), &["why", "macs/b-6"])).await?;
    why.expect(
        2,
        &["is the cluster of your kubeconfig reachable? (kubectl cluster-info)"],
    )
}

#[tokio::test]
async fn without_the_definitions_it_says_what_is_not_served_and_not_that_an_object_is_not_there() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let admin = plane.kubeconfig();
    for words in VERBS.iter().skip(2) {
        let said = run(plugin(Some(admin), words)).await?;
        said.expect(
            1,
            &["the cluster does not serve this kind", "kubectl apply -f deploy/crds"],
        )?;
        ensure!(!said.err.contains("has no MacOSMachine"), "{said:?}");
    }
    let nothing = run(plugin(Some(admin), &["status"])).await?;
    nothing.expect(2, &["nothing could be seen: the cluster does not serve this kind"])?;
    let doctor = run(plugin(Some(admin), &["doctor"])).await?;
    doctor.expect(
        1,
        &[
            "missing  kubevirt",
            "KubeVirt is not installed",
            "does not serve DockerIOS's kinds",
            "kubectl apply -f deploy/crds",
        ],
    )
}

#[tokio::test]
async fn without_rights_nothing_is_taken_for_absent_and_no_code_says_that_all_is_well() -> Result<()> {
    let plane = shared().await?;
    let eve = plane.kubeconfig_for("eve", &[])?;
    for words in VERBS.iter().skip(2) {
        let said = run(plugin(Some(&eve), words)).await?;
        said.expect(1, &["is forbidden: User \"eve\"", "an admin can grant it"])?;
    }
    let status = run(plugin(Some(&eve), &["status"])).await?;
    status.expect(2, &["nothing could be seen: ", "User \"eve\" cannot list resource"])?;
    ensure!(status.out.is_empty(), "{status:?}");
    let doctor = run(plugin(Some(&eve), &["doctor"])).await?;
    doctor.expect(2, &["unseen   kubevirt", "0 missing, "])?;
    // as kubectl's --as: the admin sees what eve would
    let seen_as = run(plugin(Some(plane.kubeconfig()), &["status", "--as", "eve"])).await?;
    seen_as.expect(2, &["User \"eve\" cannot list resource"])?;
    let group = ["status", "--as", "eve", "--as-group", "system:masters"];
    let group = run(plugin(Some(plane.kubeconfig()), &group)).await?;
    ensure!(!group.err.contains("forbidden"), "{group:?}");
    Ok(())
}

#[tokio::test]
async fn without_a_reader_nothing_panics_and_the_code_is_the_answers() -> Result<()> {
    let plane = shared().await?;
    for (words, code) in [
        (&["doctor"][..], 1),
        (&["doctor", "-o", "json"], 1),
        (&["status"], 2),
        (&["--help"], 0),
    ] {
        let mut unread = plugin(Some(plane.kubeconfig()), words);
        for (out, err) in [(true, false), (false, true), (true, true)] {
            let closed = |closed: bool| -> Result<Stdio> {
                let (reader, writer) = std::io::pipe()?;
                drop(reader);
                Ok(if closed { writer.into() } else { Stdio::null() })
            };
            unread.stdout(closed(out)?).stderr(closed(err)?);
            let status = unread.status()?;
            ensure!(status.code() == Some(code), "{words:?}, out {out}, err {err}: {status}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_completes_verbs_and_the_names_of_objects() -> Result<()> {
    let plane = shared().await?;
    // what a person has on PATH
    let path = tempfile::tempdir()?;
    let place = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kubectl_complete-dockerios");
    std::os::unix::fs::symlink(place, path.path().join("kubectl_complete-dockerios"))?;
    std::os::unix::fs::symlink(
        env!("CARGO_BIN_EXE_kubectl-dockerios"),
        path.path().join("kubectl-dockerios"),
    )?;
    let complete = async |words: &[&str]| {
        let mut kubectl = plane.kubectl()?;
        let others = std::env::var("PATH").unwrap_or_default();
        kubectl.env("PATH", format!("{}:{others}", path.path().display()));
        kubectl.arg("__complete").arg("dockerios").args(words);
        run(kubectl).await
    };
    complete(&["st"]).await?.expect(0, &["status\tShow platform", ":4"])?;
    complete(&["why", "macp"]).await?.expect(0, &["macpool/\n:6"])?;
    complete(&["status", "-n", "kube-s"])
        .await?
        .expect(0, &["kube-system\n:4"])?;
    // nothing is offered, and nothing is said, where nothing is served
    let none = complete(&["why", "macs/"]).await?;
    ensure!(none.out == ":4\n", "{none:?}");
    Ok(())
}
