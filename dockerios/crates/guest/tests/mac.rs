//! The probe of a Mac, on a system whose tools are stand-ins that print what macOS prints.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use dockerios_guest::{
    facts::Probe,
    mac::{MacProbe, Wanted},
};
use dockerios_wire::Stage;
use tempfile::TempDir;

/// A script that is written while another test starts a process cannot be run for a moment ("text file busy").
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(&path, text).expect("a file");
}

fn tool(root: &Path, path: &str, body: &str) {
    put(root, path, &format!("#!/bin/sh\n{body}\n"));
    fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o755)).expect("a tool");
}

fn plist(key: &str, value: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
         \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n<plist version=\"1.0\"><dict><key>{key}</key>\
         <string>{value}</string></dict></plist>\n"
    )
}

/// The console's owner is whoever runs the test: root or a person.
fn mac() -> TempDir {
    let root = TempDir::new().expect("a directory");
    let at = root.path();
    put(at, "dev/console", "");
    put(at, "System/Volumes/Data/x", "");
    put(
        at,
        "System/Library/CoreServices/SystemVersion.plist",
        &plist("ProductVersion", "15.6"),
    );
    put(
        at,
        "Applications/Tool.app/Contents/version.plist",
        &plist("CFBundleShortVersionString", "16.4"),
    );
    put(
        at,
        "Applications/Tool-beta.app/Contents/Info.plist",
        &plist("CFBundleShortVersionString", "17.0"),
    );
    put(at, "Applications/Broken.app/Contents/Info.plist", "bplist00");
    // plutil -convert xml1 -o - FILE
    tool(at, "usr/bin/plutil", "cat \"$5\"");
    tool(at, "usr/bin/pgrep", "exit 0");
    tool(at, "usr/sbin/sysctl", "echo 6F0C1D1E-0000-4000-8000-00000000B007");
    let dictionary = "<key>IOPlatformSerialNumber</key><string>ZZTEST000001</string><key>IOPlatformUUID</key>\
                      <string>6F0C1D1E-0000-4000-8000-000000000001</string>";
    tool(
        at,
        "usr/sbin/ioreg",
        &format!("echo '<plist version=\"1.0\"><array><dict>{dictionary}</dict></array></plist>'"),
    );
    root
}

fn wanted(texts: &[&str]) -> Vec<Wanted> {
    texts.iter().map(|text| text.parse().expect("a program")).collect()
}

#[tokio::test]
async fn a_mac_is_read_with_its_own_tools() {
    let _alone = ALONE.lock().await;
    let root = mac();
    let programs = wanted(&["Tool=/Applications/Tool*.app", "Absent=/Applications/Absent.app"]);
    let seen = MacProbe::under(root.path().to_owned(), programs, true).look().await;
    assert_eq!(seen.troubles, Vec::<String>::new());
    let facts = seen.facts;
    assert!(
        matches!(facts.stage, Stage::LoginWindow | Stage::UserSession),
        "{:?}",
        facts.stage
    );
    assert_eq!(facts.os_version.as_deref(), Some("15.6"));
    assert_eq!(facts.serial.as_deref(), Some("ZZTEST000001"));
    assert_eq!(
        facts.system_uuid.as_deref(),
        Some("6F0C1D1E-0000-4000-8000-000000000001")
    );
    assert_eq!(facts.boot_id.as_deref(), Some("6F0C1D1E-0000-4000-8000-00000000B007"));
    assert!(facts.disk_free <= facts.disk_total && facts.disk_total > Some(0));
    let programs: Vec<_> = facts
        .software
        .iter()
        .map(|s| (s.name.as_str(), s.version.as_str()))
        .collect();
    assert_eq!(programs, [("Tool (Tool-beta)", "17.0"), ("Tool (Tool)", "16.4")]);
}

#[tokio::test]
async fn the_uuid_is_left_out_unless_asked_for() {
    let _alone = ALONE.lock().await;
    let root = mac();
    let seen = MacProbe::under(root.path().to_owned(), Vec::new(), false).look().await;
    assert_eq!(seen.facts.system_uuid, None);
    assert!(seen.facts.serial.is_some());
}

#[tokio::test]
async fn a_tool_that_fails_leaves_the_last_word_standing_and_is_said() {
    let _alone = ALONE.lock().await;
    let root = mac();
    let mut probe = MacProbe::under(
        root.path().to_owned(),
        wanted(&["Broken=/Applications/Broken.app"]),
        false,
    );
    let first = probe.look().await;
    assert_eq!(first.troubles.len(), 1, "{:?}", first.troubles);
    assert!(
        first.troubles[0].contains("Broken.app/Contents/Info.plist: no property list"),
        "{:?}",
        first.troubles
    );
    tool(root.path(), "usr/bin/pgrep", "exit 3");
    fs::remove_dir_all(root.path().join("System/Volumes")).expect("removed");
    let second = probe.look().await;
    assert_eq!(second.facts, first.facts, "nothing is made up");
    assert!(
        second.troubles.iter().any(|t| t.contains("/usr/bin/pgrep")),
        "{:?}",
        second.troubles
    );
    assert!(
        second.troubles.iter().any(|t| t.contains("/System/Volumes/Data")),
        "{:?}",
        second.troubles
    );
    tool(root.path(), "usr/bin/pgrep", "exit 1");
    if first.facts.stage == Stage::LoginWindow {
        assert_eq!(
            probe.look().await.facts.stage,
            Stage::AgentStarting,
            "no login window any more"
        );
    }
}
