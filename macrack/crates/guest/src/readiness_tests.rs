use std::fs::{self, Permissions};
use std::io;
use std::path::Path;

use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::probe::{Facts, Session};

const PATIENCE: Duration = Duration::from_secs(20);
const QUICK: Pace =
    Pace { patience: PATIENCE, first_wait: Duration::from_millis(5), longest_wait: Duration::from_millis(10) };

/// A machine whose user is whoever runs the test.
struct Here;

impl Probe for Here {
    fn sessions(&self) -> watch::Receiver<Session> {
        watch::channel(Session::User).1
    }
    fn facts(&self) -> Facts {
        Facts::default()
    }
    fn machine(&self) -> io::Result<String> {
        Ok("here".to_owned())
    }
    fn as_user(&self, mut program: Command) -> io::Result<Command> {
        program.current_dir("/");
        Ok(program)
    }
    fn hand_over(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn shut_down(&self) -> io::Result<()> {
        Ok(())
    }
}

fn golden(ready: Option<&str>) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join(DIRECTORY)).unwrap();
    if let Some(text) = ready {
        put(root.path(), text, 0o755);
    }
    root
}

fn put(root: &Path, text: &str, mode: u32) {
    let path = root.join(DIRECTORY).join("ready");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

async fn until(gate: &mut Gate, state: ReadinessState) -> Readiness {
    let reached = async {
        loop {
            gate.tend(true, &Here);
            match gate.said() {
                Some(said) if said.state == state => return said.clone(),
                _ => gate.progress().await,
            }
        }
    };
    timeout(PATIENCE, reached).await.unwrap()
}

#[tokio::test]
async fn a_golden_without_a_command_has_nothing_to_say_and_nothing_to_wait_for() {
    let root = golden(None);
    let mut gate = Gate::new(root.path(), QUICK);
    gate.tend(true, &Here);
    assert_eq!(gate.said(), None);
    assert!(timeout(Duration::from_millis(20), gate.progress()).await.is_err());
}

#[tokio::test]
async fn a_command_is_run_until_it_agrees_and_then_no_more() {
    let root = golden(None);
    let runs = root.path().join("runs");
    let file = runs.display();
    let text = format!("echo run >> {file}\n[ $(wc -l < {file}) -ge 3 ] || {{ echo warming up; exit 7; }}\necho warm");
    put(root.path(), &text, 0o755);
    let mut gate = Gate::new(root.path(), QUICK);
    assert_eq!(gate.said().map(|said| said.state), Some(ReadinessState::Waiting));
    gate.tend(true, &Here);
    assert_eq!(gate.said().map(|said| said.state), Some(ReadinessState::Running));
    let refused = until(&mut gate, ReadinessState::NotReady).await;
    assert_eq!((refused.exit_code, refused.message.as_deref()), (Some(7), Some("warming up")));
    let agreed = until(&mut gate, ReadinessState::Ready).await;
    assert_eq!((agreed.exit_code, agreed.message.as_deref()), (Some(0), Some("warm")));
    gate.tend(true, &Here);
    assert!(timeout(Duration::from_millis(50), gate.progress()).await.is_err());
    assert_eq!(fs::read_to_string(runs).unwrap(), "run\nrun\nrun\n");
}

#[tokio::test]
async fn it_does_not_run_before_it_is_due_and_is_asked_anew_in_a_new_session() {
    let root = golden(None);
    let runs = root.path().join("runs");
    put(root.path(), &format!("echo run >> {}", runs.display()), 0o755);
    let mut gate = Gate::new(root.path(), QUICK);
    gate.tend(false, &Here);
    assert!(timeout(Duration::from_millis(50), gate.progress()).await.is_err());
    assert!(!runs.exists());
    until(&mut gate, ReadinessState::Ready).await;
    gate.tend(false, &Here);
    assert_eq!(gate.said().map(|said| said.state), Some(ReadinessState::Waiting));
    until(&mut gate, ReadinessState::Ready).await;
    assert_eq!(fs::read_to_string(runs).unwrap(), "run\nrun\n");
}

#[tokio::test]
async fn one_that_hangs_is_ended_and_says_what_it_last_said() {
    let root = golden(Some("echo looking for the licence server\nsleep 1000"));
    let mut gate = Gate::new(root.path(), Pace { patience: Duration::from_millis(500), ..QUICK });
    let ended = until(&mut gate, ReadinessState::TimedOut).await;
    assert_eq!(ended.exit_code, None);
    assert_eq!(ended.message.as_deref(), Some("ended after 500ms; it last said: looking for the licence server"));
}

#[tokio::test]
async fn a_file_that_cannot_be_run_is_not_taken_for_none() {
    let root = golden(None);
    put(root.path(), "exit 0", 0o644);
    let mut gate = Gate::new(root.path(), QUICK);
    let failed = until(&mut gate, ReadinessState::Failed).await;
    let message = failed.message.unwrap();
    assert!(message.contains("no executable file; chmod +x it"), "{message}");
    // mended while it is waited for
    put(root.path(), "exit 0", 0o755);
    until(&mut gate, ReadinessState::Ready).await;
}

#[tokio::test]
async fn a_command_that_first_boot_brought_along_counts() {
    let root = golden(None);
    let mut gate = Gate::new(root.path(), QUICK);
    gate.tend(false, &Here);
    put(root.path(), "echo not yet; exit 1", 0o755);
    until(&mut gate, ReadinessState::NotReady).await;
}

#[test]
fn what_a_command_says_is_made_fit_to_be_said() {
    let outcome = Outcome { ended: Ended::Exited(1), output: format!("\u{1b}[31m{}\u{7}\n\n", "é".repeat(300)) };
    let said = judged(Ok(outcome), Path::new("/ready"), PATIENCE);
    let message = said.message.unwrap();
    assert!(message.len() <= macrack_wire::guest::MAX_MESSAGE && !message.chars().any(char::is_control), "{message}");
}
