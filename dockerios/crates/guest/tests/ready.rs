//! What makes a guest ready.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use dockerios_guest::ready::{Readiness, WithoutChecks};
use dockerios_wire::Stage::{AgentStarting, LoginWindow, Ready, ShuttingDown, UserSession};
use tempfile::TempDir;

/// A script that is written while another test starts a process cannot be run for a moment ("text file busy").
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The flag of open(2) that makes a read return at once.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

fn check(directory: &Path, name: &str, body: &str, mode: u32) {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

#[tokio::test]
async fn without_checks_the_stage_decides() {
    let _alone = ALONE.lock().await;
    let empty = TempDir::new().expect("a directory");
    for directory in [empty.path().to_owned(), empty.path().join("absent")] {
        for (without, seen, said) in [
            (WithoutChecks::Session, AgentStarting, AgentStarting),
            (WithoutChecks::Session, LoginWindow, LoginWindow),
            (WithoutChecks::Session, UserSession, Ready),
            (WithoutChecks::Session, ShuttingDown, ShuttingDown),
            (WithoutChecks::Login, AgentStarting, AgentStarting),
            (WithoutChecks::Login, LoginWindow, Ready),
            (WithoutChecks::Login, UserSession, Ready),
            (WithoutChecks::Never, LoginWindow, LoginWindow),
            (WithoutChecks::Never, UserSession, UserSession),
            (WithoutChecks::Never, Ready, Ready),
        ] {
            let judged = Readiness::new(directory.clone(), without).judge(seen).await;
            assert_eq!(judged, (said, None), "{without:?} {seen:?}");
        }
    }
}

#[tokio::test]
async fn with_checks_they_alone_decide_and_a_no_is_named() {
    let _alone = ALONE.lock().await;
    for (body, mode, said, why) in [
        ("exit 0", 0o755, Ready, None),
        ("test \"$DOCKERIOS_STAGE\" = LoginWindow", 0o700, Ready, None),
        ("exit 7", 0o755, LoginWindow, Some("20-check: says no (exit status: 7)")),
        ("kill -9 $$", 0o755, LoginWindow, Some("20-check: says no (signal: 9")),
        (
            "sleep 60",
            0o755,
            LoginWindow,
            Some("20-check: gave no answer within 0 s"),
        ),
        (
            "exit 0",
            0o775,
            LoginWindow,
            Some("20-check: others may write it; chmod go-w it"),
        ),
        ("exit 0", 0o757, LoginWindow, Some("20-check: others may write it")),
    ] {
        let d = TempDir::new().expect("a directory");
        check(d.path(), "10-yes", "exit 0", 0o755);
        check(d.path(), "20-check", body, mode);
        check(d.path(), ".hidden", "exit 1", 0o755);
        check(d.path(), "README", "exit 1", 0o644);
        let mut readiness = Readiness::new(d.path().to_owned(), WithoutChecks::Never);
        if body.starts_with("sleep") {
            readiness.patience = Duration::from_millis(100);
        }
        let (stage, reason) = readiness.judge(LoginWindow).await;
        assert_eq!(stage, said, "{body}: {reason:?}");
        match why {
            None => assert_eq!(reason, None),
            Some(why) => assert!(reason.as_deref().is_some_and(|r| r.contains(why)), "{reason:?}"),
        }
    }
}

/// The end of the pipe that is read stays open only as long as somebody has the other.
#[tokio::test]
async fn a_check_that_gave_no_answer_leaves_nothing_running_that_it_started() {
    let _alone = ALONE.lock().await;
    let d = TempDir::new().expect("a directory");
    let pipe = TempDir::new().expect("a directory");
    let pipe = pipe.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    check(
        d.path(),
        "10-hangs",
        &format!("sleep 3600 >{} &\nwait", pipe.display()),
        0o755,
    );
    let mut end = fs::OpenOptions::new();
    let mut end = std::os::unix::fs::OpenOptionsExt::custom_flags(end.read(true), NONBLOCK)
        .open(&pipe)
        .expect("the pipe's end");
    let mut readiness = Readiness::new(d.path().to_owned(), WithoutChecks::Never);
    readiness.patience = Duration::from_secs(2);
    let (stage, why) = readiness.judge(LoginWindow).await;
    assert_eq!(stage, LoginWindow);
    assert!(why.expect("a reason").contains("10-hangs: gave no answer within 2 s"));
    let closed = async {
        // an error says that somebody has the other end, and that nothing was written yet
        while std::io::Read::read(&mut end, &mut [0]).is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), closed).await;
    assert!(gone.is_ok(), "what the check started runs on");
}

#[tokio::test]
async fn a_check_that_somebody_else_could_change_is_not_run_as_root() {
    let _alone = ALONE.lock().await;
    let d = TempDir::new().expect("a directory");
    check(d.path(), "10-yes", "exit 0", 0o755);
    let file = d.path().join("10-yes");
    let ours = Readiness::new(d.path().to_owned(), WithoutChecks::Never);
    assert_eq!(ours.judge(LoginWindow).await, (Ready, None));
    // only root can give files away: where the tests run as another, the agent is taken for a third
    let stranger = 4242;
    let mut theirs = ours.clone();
    if std::os::unix::fs::chown(&file, Some(stranger), None).is_err() {
        theirs.owner = stranger;
    }
    let (stage, why) = theirs.judge(LoginWindow).await;
    let why = why.expect("a reason");
    assert_eq!(stage, LoginWindow);
    assert!(
        why.contains("belongs to the user with id") && why.contains("chown it to root"),
        "{why}"
    );
    // and a folder in which anybody may put one is no better
    let open = TempDir::new().expect("a directory");
    check(open.path(), "10-yes", "exit 0", 0o755);
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    let (stage, why) = Readiness::new(open.path().to_owned(), WithoutChecks::Never)
        .judge(LoginWindow)
        .await;
    assert_eq!(stage, LoginWindow);
    assert!(why.expect("a reason").contains("others may write it; chmod go-w it"));
}

#[tokio::test]
async fn a_check_that_cannot_be_run_or_read_says_no() {
    let _alone = ALONE.lock().await;
    let d = TempDir::new().expect("a directory");
    check(d.path(), "10-bad", "", 0o755);
    fs::write(d.path().join("10-bad"), "#!/no/such/interpreter\n").expect("a file");
    let readiness = Readiness::new(d.path().to_owned(), WithoutChecks::Login);
    let (stage, why) = readiness.judge(UserSession).await;
    assert_eq!(stage, UserSession);
    assert!(why.expect("a reason").contains("cannot be run"));
    fs::write(d.path().join("file"), "").expect("a file");
    let readiness = Readiness::new(d.path().join("file"), WithoutChecks::Login);
    let (stage, why) = readiness.judge(UserSession).await;
    assert_eq!(stage, UserSession);
    assert!(why.expect("a reason").contains("cannot be read"));
}
