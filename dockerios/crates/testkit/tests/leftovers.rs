//! Whatever ends a process that uses this crate, nothing that it started runs on.

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

use dockerios_testkit::{Proc, bin, client_from, is_alive};

const MINUTE: Duration = Duration::from_secs(60);

/// Every process whose working folder or arguments name `dir`.
fn of_dir(dir: &std::path::Path) -> HashSet<u32> {
    let text = dir.display().to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(&text) || folder.starts_with(dir)
    })
    .collect()
}

async fn until_dead(pids: &HashSet<u32>) {
    let deadline = tokio::time::Instant::now() + MINUTE;
    while let Some(alive) = pids.iter().find(|pid| is_alive(**pid)) {
        let arguments = std::fs::read_to_string(format!("/proc/{alive}/cmdline")).unwrap_or_default();
        assert!(tokio::time::Instant::now() < deadline, "{alive} runs on: {arguments}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_plane_whose_owner_is_killed_leaves_no_process_and_its_folder_can_be_used_again() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let log = dir.path().join("plane.out");
    let inner = dir.path().join("inner");
    let kubeconfig = inner.join("admin.kubeconfig");
    let start = || {
        let mut command = Command::new(bin("dockerios-plane")?);
        command.arg("--dir").arg(&inner);
        Proc::spawn("dockerios-plane", command, &log)
    };
    let plane = start()?;
    plane.until_logged("admin.kubeconfig", 3 * MINUTE).await?;
    client_from(&kubeconfig).await?.apiserver_version().await?;
    let mut parts = of_dir(&inner);
    parts.remove(&std::process::id());
    assert!(parts.len() >= 5, "the plane, etcd and three components: {parts:?}");
    plane.kill9().await?;
    until_dead(&parts).await;

    // and an end that was asked for is a success
    std::fs::remove_file(&log)?;
    let plane = start()?;
    plane.until_logged("admin.kubeconfig", 3 * MINUTE).await?;
    let parts = of_dir(&inner);
    assert!(plane.terminate(MINUTE).await?.success());
    until_dead(&parts).await;
    Ok(())
}

/// Not a test of its own: what the next test starts and kills.
#[tokio::test]
async fn owner_of_a_grandchild() -> anyhow::Result<()> {
    let Some(log) = std::env::var_os("DOCKERIOS_TESTKIT_GRANDCHILD_LOG") else {
        return Ok(());
    };
    let mut command = Command::new("sh");
    // the inner shell leaves the process group, as daemons do
    command.args([
        "-c",
        "echo child $$; setsid sh -c 'echo grandchild $$; sleep 600' & wait",
    ]);
    let child = Proc::spawn("child", command, log)?;
    child.wait(10 * MINUTE).await?;
    Ok(())
}

/// An owner, and the numbers of its child and grandchild, which run.
async fn start_owner(dir: &std::path::Path) -> anyhow::Result<(Proc, HashSet<u32>)> {
    let log = dir.join("child.log");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "owner_of_a_grandchild", "--nocapture"])
        .env("DOCKERIOS_TESTKIT_GRANDCHILD_LOG", &log);
    let owner = Proc::spawn("owner", command, dir.join("owner.log"))?;
    let deadline = tokio::time::Instant::now() + MINUTE;
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let pids: HashSet<u32> = text
            .lines()
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        if pids.len() == 2 && text.ends_with('\n') {
            assert!(pids.iter().all(|pid| is_alive(*pid)));
            return Ok((owner, pids));
        }
        assert!(
            tokio::time::Instant::now() < deadline && owner.is_running(),
            "{}",
            owner.tail(20)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_a_child_started_ends_with_a_killed_owner_and_with_a_dropped_guard() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (owner, started) = start_owner(dir.path()).await?;
    owner.kill9().await?;
    until_dead(&started).await;

    let mut command = Command::new("sh");
    command.args(["-c", "setsid sh -c 'echo ready; sleep 600' & wait"]);
    let guard = Proc::spawn("guard", command, dir.path().join("guard.log"))?;
    guard.until_logged("ready", MINUTE).await?;
    let mut started: HashSet<u32> = guard.descendants().into_iter().collect();
    assert!(!started.is_empty());
    started.insert(guard.pid());
    drop(guard);
    assert!(
        started.iter().all(|pid| !is_alive(*pid)),
        "a dropped guard has ended all"
    );
    Ok(())
}

#[tokio::test]
async fn what_even_the_guardian_could_not_end_is_swept_by_the_next_start() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (owner, started) = start_owner(dir.path()).await?;
    let guardian = guardian_of(owner.pid()).expect("the owner has a guardian");
    for pid in [guardian, owner.pid()] {
        Command::new("kill").args(["-KILL", &pid.to_string()]).status()?;
    }
    owner.wait(MINUTE).await?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "--exact",
        "a_process_that_ends_before_it_says_what_is_awaited_fails_with_its_log",
    ]);
    let next = Proc::spawn("next", command, dir.path().join("next.log"))?;
    assert!(next.wait(MINUTE).await?.success(), "{}", next.tail(20));
    until_dead(&started).await;
    Ok(())
}

fn guardian_of(owner: u32) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{owner}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children: String = threads
        .filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok())
        .collect();
    let is_guardian = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments
            .split(|byte| *byte == 0)
            .any(|argument| argument == b"guardian")
    };
    children.split(' ').filter_map(|pid| pid.parse().ok()).find(is_guardian)
}

#[tokio::test]
async fn a_process_that_ends_before_it_says_what_is_awaited_fails_with_its_log() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new("sh");
    command.args(["-c", "echo no such disk >&2; exit 3"]);
    let proc = Proc::spawn("builder", command, dir.path().join("log"))?;
    let error = proc
        .until_logged("ready", MINUTE)
        .await
        .expect_err("it never says so")
        .to_string();
    assert!(
        error.contains("builder ended (exit status: 3) without saying \"ready\""),
        "{error}"
    );
    assert!(error.contains("no such disk"), "{error}");
    let absent = Proc::spawn("absent", Command::new("/nowhere/binary"), dir.path().join("log")).err();
    assert!(format!("{:#}", absent.expect("there is no such binary")).contains("start absent (/nowhere/binary)"));
    Ok(())
}
