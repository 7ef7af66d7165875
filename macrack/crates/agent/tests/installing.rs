//! What launchd is given on a Mac, as far as it can be looked at anywhere.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plist::Value;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/macos")
}

/// A folder with what a package holds.
fn package() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["macrack-agent", "macrack-vm", "macrack-hostd", "bootstrap.json"] {
        fs::write(dir.path().join(file), "").unwrap();
    }
    dir
}

fn install(user: &str, package: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command.arg(deploy().join("install.sh")).args(["--dry-run", "--user", user, "--programs"]).arg(package);
    command.arg("--bootstrap").arg(package.join("bootstrap.json"));
    if !flags.is_empty() {
        command.arg("--").args(flags);
    }
    command.output().unwrap()
}

/// The files that a dry run would write, by name.
fn written(output: &Output, name: &str) -> Value {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, from) = said.split_once(&format!("{name}\n<?xml")).unwrap_or_else(|| panic!("no {name} in {said}"));
    let (body, _) = from.split_once("</plist>").unwrap();
    Value::from_reader(std::io::Cursor::new(format!("<?xml{body}</plist>"))).unwrap()
}

fn arguments(job: &Value) -> Vec<String> {
    let arguments = job.as_dictionary().unwrap().get("ProgramArguments").unwrap().as_array().unwrap();
    arguments.iter().map(|argument| argument.as_string().unwrap().to_owned()).collect()
}

#[test]
fn the_daemon_hears_the_agents_user_and_the_agent_gets_the_flags_that_were_given() {
    let package = package();
    let planned = install("nobody", package.path(), &["--image-store", "dir:/golden & co"]);
    assert!(planned.status.success(), "{planned:?}");
    let daemon = written(&planned, "io.macrack.hostd.plist");
    let uid = Command::new("id").args(["-u", "nobody"]).output().unwrap().stdout;
    let uid = String::from_utf8(uid).unwrap().trim().to_owned();
    assert_eq!(arguments(&daemon)[1..4], ["serve".to_owned(), "--agent-uid".to_owned(), uid]);
    let agent = written(&planned, "io.macrack.agent.plist");
    assert_eq!(arguments(&agent)[6..], ["--image-store", "dir:/golden & co"]);
    for job in [daemon, agent] {
        assert_eq!(arguments(&job)[0].rsplit_once('/').unwrap().0, "/Library/MacRack/bin", "only root may write there");
        let state = arguments(&job).iter().position(|argument| argument == "--state-dir").unwrap();
        assert_eq!(arguments(&job)[state + 1], "/Library/MacRack/state", "both must mean the same chassis");
    }
}

#[test]
fn root_writes_nothing_where_a_link_of_the_agents_user_could_lead_it_elsewhere() {
    let package = package();
    let planned = install("nobody", package.path(), &[]);
    let said = String::from_utf8_lossy(&planned.stdout).into_owned();
    let theirs = |line: &&str| line.contains("/Library/LaunchAgents") || line.contains("/state/");
    // the comment in the property list, and launchd's own reading of it
    let writes = |line: &&str| !line.contains("~/Library") && !line.starts_with("launchctl ");
    let lines: Vec<&str> = said.lines().filter(theirs).filter(writes).collect();
    assert!(lines.len() > 1, "{said}");
    for line in lines {
        assert!(line.starts_with("sudo -u nobody "), "root does this: {line}");
    }
}

#[test]
fn a_vm_outlives_its_agent_and_only_a_session_of_its_user_starts_one() {
    let agent = Value::from_file(deploy().join("io.macrack.agent.plist")).unwrap();
    let job = agent.as_dictionary().unwrap();
    assert_eq!(job.get("AbandonProcessGroup").and_then(Value::as_boolean), Some(true));
    assert_eq!(job.get("LimitLoadToSessionType").and_then(Value::as_string), Some("Aqua"));
    assert_eq!(job.get("KeepAlive").and_then(Value::as_boolean), Some(true));
    let entitlements = Value::from_file(deploy().join("macrack-vm.entitlements")).unwrap();
    let granted: Vec<&String> = entitlements.as_dictionary().unwrap().keys().collect();
    assert_eq!(granted, ["com.apple.security.virtualization"], "nothing more than it needs");
}

#[test]
fn an_installation_that_cannot_be_right_is_refused_with_the_way_out() {
    let package = package();
    let said = |output: Output| {
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(install("root", package.path(), &[])).contains("root starts no guests"));
    assert!(said(install("no-such-user", package.path(), &[])).contains("there is no user no-such-user"));
    fs::remove_file(package.path().join("macrack-hostd")).unwrap();
    assert!(said(install("nobody", package.path(), &[])).contains("macrack-hostd is not there"));
}
