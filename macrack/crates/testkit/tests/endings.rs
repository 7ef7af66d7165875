//! Whatever was started is ended, however its starter ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child as Raw, Command, Stdio};
use std::time::{Duration, Instant};

use macrack_testkit::child::is_alive;
use macrack_testkit::{Program, run};

const SOON: Duration = Duration::from_secs(10);

/// Processes whose environment has `TMPDIR=<tmp>`, by id: a look of the test's own, which shares
/// nothing with how the testkit finds them.
fn with_tmpdir(tmp: &Path) -> BTreeMap<i32, String> {
    let wanted = format!("TMPDIR={}", tmp.display());
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|b| *b == 0).any(|pair| pair == wanted.as_bytes()) {
            let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let text = String::from_utf8_lossy(&cmdline).replace('\0', " ");
            found.insert(pid, text);
        }
    }
    found
}

/// A process that a failing test ends too.
struct Plane(Raw);

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of `tmp` whose command line begins with `start`; waits for it, since a shell forks
/// first and becomes it then.
fn process(tmp: &Path, start: &str) -> i32 {
    let until = Instant::now() + SOON;
    loop {
        let all = with_tmpdir(tmp);
        match all.iter().find(|(_, cmdline)| cmdline.starts_with(start)) {
            Some((pid, _)) => return *pid,
            None if Instant::now() > until => panic!("{start} does not run: {all:#?}"),
            None => std::thread::yield_now(),
        }
    }
}

/// Starts `macrack-plane`, returns when it says that it is ready.
fn plane(tmp: &Path, words: &[&str]) -> Plane {
    let mut child = Command::new(env!("CARGO_BIN_EXE_macrack-plane"))
        .args(words)
        .env("TMPDIR", tmp)
        .stdout(Stdio::piped())
        .spawn()
        .expect("macrack-plane starts");
    let output = child.stdout.take().expect("its output");
    let ready = BufReader::new(output).lines().map_while(Result::ok).any(|l| l.starts_with("ready:"));
    assert!(ready, "the control plane became ready");
    Plane(child)
}

#[test]
fn what_a_killed_run_left_behind_is_ended_by_the_next_and_a_living_run_is_left_alone() {
    let tmp = tempfile::tempdir().unwrap();
    let mut first = plane(tmp.path(), &["sh", "-c", "setsid sleep 1001 & wait"]);
    let escaped = process(tmp.path(), "sleep 1001");
    let of_first = with_tmpdir(tmp.path());
    for part in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        assert!(of_first.values().any(|c| c.contains(part)), "{part} runs: {of_first:#?}");
    }
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    // the parent-death signal ends the parts, but not what they started
    let until = Instant::now() + SOON;
    while of_first.keys().any(|pid| *pid != escaped && is_alive(*pid)) {
        assert!(Instant::now() < until, "a part outlived its killed parent: {of_first:#?}");
        std::thread::yield_now();
    }
    assert!(is_alive(escaped), "a process in a session of its own survives its killed ancestor");

    let mut second = plane(tmp.path(), &[]);
    let survivors: Vec<_> = of_first.iter().filter(|(pid, _)| is_alive(**pid)).collect();
    assert!(survivors.is_empty(), "the second start ended what the first left: {survivors:?}");

    let of_second = with_tmpdir(tmp.path());
    let mut third = plane(tmp.path(), &[]);
    let dead: Vec<_> = of_second.iter().filter(|(pid, _)| !is_alive(**pid)).collect();
    assert!(dead.is_empty(), "the third start leaves the living second alone: {dead:?}");

    for child in [&mut second, &mut third] {
        Command::new("kill").arg(child.0.id().to_string()).status().unwrap();
        assert!(child.0.wait().unwrap().success());
    }
    assert_eq!(with_tmpdir(tmp.path()), BTreeMap::new(), "an orderly end leaves no process");
    let left: Vec<_> = std::fs::read_dir(tmp.path().join(format!("macrack-testkit-{}", uid())))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["turn.lock"], "and no folder");
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

#[tokio::test]
async fn a_child_that_is_killed_leaves_what_it_started_and_a_dropped_one_does_not() {
    let script = "setsid sleep 1002 & echo started; wait";
    let mut child = Program::new("sh").args(["-c", script]).start("parent").unwrap();
    child.until_logged("started", SOON).await.unwrap();
    let [sleeper] = child.descendants()[..] else { panic!("one descendant: {:?}", child.descendants()) };
    child.kill9().unwrap();
    assert!(!child.is_running());
    assert!(is_alive(sleeper), "SIGKILL of the agent does not end its VMs");
    child.restart_as(Program::new("sleep").arg("1003")).unwrap();
    assert_eq!(child.descendants(), [sleeper], "a later life still owns what an earlier one started");
    drop(child);
    assert!(!is_alive(sleeper), "a test's end does");
}

#[tokio::test]
async fn the_log_says_why_a_child_never_became_ready() {
    let child = Program::new("sh").args(["-c", "echo 'no token in the file'; exit 3"]).start("agent").unwrap();
    let error = child.until_logged("ready", SOON).await.unwrap_err().to_string();
    assert!(error.contains("agent ended (exit status: 3) without saying \"ready\""), "{error}");
    assert!(error.contains("no token in the file"), "{error}");
    assert_eq!(child.wait(SOON).await.unwrap().code(), Some(3));
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_reported_with_its_log() {
    let child = Program::new("sh").args(["-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"]);
    let child = child.start("deaf").unwrap();
    child.until_logged("deaf", SOON).await.unwrap();
    let error = child.terminate(Duration::from_millis(300)).await.unwrap_err();
    assert!(format!("{error:#}").contains("deaf still runs after 300.0ms"), "{error:#}");
}

#[tokio::test]
async fn a_child_that_runs_is_not_started_twice() {
    let mut child = Program::new("sleep").arg("1004").start("once").unwrap();
    let error = child.restart().unwrap_err().to_string();
    assert!(error.contains("still runs: end it before it is started again"), "{error}");
}

#[tokio::test]
async fn children_end_in_their_own_process_group_so_that_ctrl_c_reaches_only_their_owner() {
    let child = Program::new("sleep").arg("1005").start("grouped").unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
    let group = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2)).unwrap();
    assert_eq!(group, child.pid().to_string());
}

#[test]
fn a_sweep_of_a_living_run_finds_nothing() {
    let own = run::current().unwrap().dir().to_owned();
    run::sweep().unwrap();
    assert!(own.is_dir(), "the run's own folder stays");
}
