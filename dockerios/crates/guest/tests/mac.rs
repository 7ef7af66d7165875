//! The probe of a Mac, on a system whose tools are stand-ins that print what macOS prints.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use dockerios_guest::{facts::Probe, mac::MacProbe, programs::Wanted};
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
    tool(at, "usr/bin/pgrep", "exit 0");
    tool(at, "usr/sbin/sysctl", "echo 6F0C1D1E-0000-4000-8000-00000000B007");
    tool(at, "usr/sbin/ioreg", &ioreg("bwwdHgAAQACAAAAAAAAAAQ=="));
    root
}

/// As the real one: the platform expert by its class, the firmware's words by their plane, nothing for anything else.
fn ioreg(system_id: &str) -> String {
    let array =
        |dictionary: &str| format!("echo '<plist version=\"1.0\"><array><dict>{dictionary}</dict></array></plist>'");
    let expert = array(
        "<key>IOPlatformSerialNumber</key><string>ZZTEST000001</string><key>IOPlatformUUID</key>\
         <string>AAAAAAAA-BBBB-5CCC-8DDD-EEEEEEEEEEEE</string>",
    );
    let platform = array(&format!(
        "<key>name</key><data>cGxhdGZvcm0A</data><key>system-id</key><data>{system_id}</data>"
    ));
    format!(
        "case \"$*\" in\n\
         '-a -r -d 1 -c IOPlatformExpertDevice') {expert} ;;\n\
         '-a -r -d 1 -p IODeviceTree -n platform') {platform} ;;\n\
         esac"
    )
}

fn wanted(texts: &[&str]) -> Vec<Wanted> {
    texts.iter().map(|text| text.parse().expect("a program")).collect()
}

#[tokio::test]
async fn a_mac_is_read_with_its_own_tools() {
    let _alone = ALONE.lock().await;
    let root = mac();
    let programs = wanted(&["Tool=/Applications/Tool*.app", "Absent=/Applications/Absent.app"]);
    let seen = MacProbe::under(root.path().to_owned(), programs).look().await;
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
        Some("6F0C1D1E-0000-4000-8000-000000000001"),
        "the firmware's, not the one that macOS computes"
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
async fn a_firmware_that_shows_no_uuid_is_said_and_none_is_made_up() {
    let _alone = ALONE.lock().await;
    let root = mac();
    // fifteen bytes
    tool(root.path(), "usr/sbin/ioreg", &ioreg("bwwdHgAAQACAAAAAAAAA"));
    let seen = MacProbe::under(root.path().to_owned(), Vec::new()).look().await;
    assert_eq!(seen.facts.system_uuid, None);
    assert!(seen.facts.serial.is_some());
    let said = "/usr/sbin/ioreg: IODeviceTree:/efi/platform shows no system-id";
    assert_eq!(seen.troubles, [said]);
}

/// The places where macOS and Xcode keep them, in the binary form that they are in there.
#[tokio::test]
async fn xcode_s_version_is_read_from_its_version_list() {
    let _alone = ALONE.lock().await;
    let root = mac();
    for (bundle, version) in [("Xcode.app", "16.4"), ("Xcode-26.0.app", "26.0")] {
        let contents = root.path().join("Applications").join(bundle).join("Contents");
        fs::create_dir_all(&contents).expect("a directory");
        let list = |value: &str| {
            let mut list = plist::Dictionary::new();
            list.insert("CFBundleShortVersionString".into(), value.into());
            plist::Value::from(list)
        };
        list(version)
            .to_file_binary(contents.join("version.plist"))
            .expect("a list");
        list("another")
            .to_file_binary(contents.join("Info.plist"))
            .expect("a list");
    }
    let shipped = wanted(&["Xcode=/Applications/Xcode*.app"]);
    let seen = MacProbe::under(root.path().to_owned(), shipped).look().await;
    let programs: Vec<_> = seen
        .facts
        .software
        .iter()
        .map(|s| format!("{} {}", s.name, s.version))
        .collect();
    assert_eq!(programs, ["Xcode (Xcode-26.0) 26.0", "Xcode (Xcode) 16.4"]);
}

#[tokio::test]
async fn a_tool_that_fails_leaves_the_last_word_standing_and_is_said() {
    let _alone = ALONE.lock().await;
    let root = mac();
    let mut probe = MacProbe::under(root.path().to_owned(), wanted(&["Broken=/Applications/Broken.app"]));
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
