//! The program itself: what it refuses, and how it ends.

use macrack_agent::state_dir::StateDir;
use macrack_testkit::child::{Program, bin};

const SOON: std::time::Duration = std::time::Duration::from_secs(20);

#[tokio::test]
async fn a_second_agent_refuses_to_start_and_names_the_first() {
    let bench = crate::chassis::Bench::new().await;
    let _first = bench.state_dir.lock().unwrap();
    let store = tempfile::tempdir().unwrap();
    let second = agent(&bench.state_dir, store.path()).start("second-agent").unwrap();
    assert!(!second.wait(SOON).await.unwrap().success());
    let said = second.log();
    assert!(said.contains("another macrack-agent") && said.contains("agent.lock"), "{said}");
    assert!(said.contains(&std::process::id().to_string()), "{said}");
}

#[tokio::test]
async fn a_state_directory_without_a_chassis_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = StateDir::open(&dir.path().join("s")).unwrap();
    let agent = agent(&state_dir, dir.path()).start("agent-without-a-mac").unwrap();
    assert!(!agent.wait(SOON).await.unwrap().success());
    assert!(agent.log().contains("chassis.json"), "{}", agent.log());
}

fn agent(state_dir: &StateDir, store: &std::path::Path) -> Program {
    Program::new(bin("macrack-agent").unwrap())
        .args(["run", "--bootstrap", "/nowhere.json", "--state-dir"])
        .arg(state_dir.path())
        .arg("--image-store")
        .arg(format!("dir:{}", store.display()))
}
