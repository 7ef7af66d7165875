//! What is installed in a golden image: the daemon that launchd is told of, and the package that brings it.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use plist::Value;
use tempfile::TempDir;

const MACOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/macos");
const LABEL: &str = "io.dockerios.guest";
const PROGRAM: &str = "/usr/local/libexec/dockerios-guest";

fn daemon() -> plist::Dictionary {
    let list = Value::from_file(format!("{MACOS}/{LABEL}.plist")).expect("a property list");
    list.into_dictionary().expect("a dictionary")
}

#[test]
fn launchd_keeps_the_agent_running_as_root_from_the_boot_on() {
    let daemon = daemon();
    assert_eq!(
        daemon["Label"].as_string(),
        Some(LABEL),
        "launchd wants the file's own name"
    );
    for key in ["RunAtLoad", "KeepAlive"] {
        assert_eq!(daemon[key].as_boolean(), Some(true), "{key}");
    }
    // shutdown(8) and the volume's mount need root; a daemon without a name of a user is root's
    for key in ["UserName", "GroupName", "LimitLoadToSessionType", "Disabled"] {
        assert!(!daemon.contains_key(key), "{key}");
    }
    let exit = daemon["ExitTimeOut"].as_signed_integer();
    assert!(exit.is_some_and(|seconds| seconds > 0), "0 waits for ever: {exit:?}");
}

#[test]
fn the_daemon_s_command_line_is_one_that_the_agent_takes() {
    let arguments = daemon()["ProgramArguments"].as_array().expect("arguments").clone();
    let arguments: Vec<&str> = arguments.iter().filter_map(Value::as_string).collect();
    assert_eq!(arguments[0], PROGRAM);
    assert_eq!(arguments[1..], ["--software", "Xcode=/Applications/Xcode*.app"]);
    let tried = |more: &[&str]| {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_dockerios-guest"));
        let output = agent.args(&arguments[1..]).args(more).output().expect("the agent runs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // off macOS it has nothing to look at, and says so once it has understood its arguments
    let said = tried(&[]);
    assert!(said.contains("this is no macOS"), "{said}");
    let said = tried(&["--no-such-option"]);
    assert!(said.contains("unexpected argument '--no-such-option'"), "{said}");
}

#[test]
fn that_nobody_hears_why_it_cannot_begin_is_no_panic() {
    let (nobody, said) = std::io::pipe().expect("a pipe");
    drop(nobody);
    let mut agent = Command::new(env!("CARGO_BIN_EXE_dockerios-guest"));
    let ended = agent.stderr(said).status().expect("the agent runs");
    assert_eq!(ended.code(), Some(2), "{ended}");
}

/// A stand-in for the agent: what 64-bit programs of macOS begin with, and no more.
const AGENT: &[u8] = b"\xcf\xfa\xed\xfe an agent";

/// Every file and folder below, with its mode.
fn modes(root: &Path) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let mode = path.metadata().expect("it is there").permissions().mode() & 0o7777;
            let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
            found.insert(name, mode);
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

fn package(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(format!("{MACOS}/package.sh"))
        .args(arguments)
        .env("PATH", "/usr/bin:/bin")
        .output()
        .expect("a shell");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn the_package_holds_agent_daemon_and_an_empty_folder_for_checks_that_only_root_may_write() {
    let dir = TempDir::new().expect("a directory");
    let into = dir.path().join("package");
    let at = |path: &Path| path.to_string_lossy().into_owned();
    let agent = dir.path().join("dockerios-guest");
    fs::write(&agent, AGENT).expect("written");
    let (good, said) = package(&[&at(&agent), "0.1.0", &at(&into)]);
    assert!(good, "{said}");
    let expected: BTreeMap<String, u32> = [
        ("Library", 0o755),
        ("Library/LaunchDaemons", 0o755),
        ("Library/LaunchDaemons/io.dockerios.guest.plist", 0o644),
        ("usr", 0o755),
        ("usr/local", 0o755),
        ("usr/local/lib", 0o755),
        ("usr/local/lib/dockerios", 0o755),
        ("usr/local/lib/dockerios/ready.d", 0o755),
        ("usr/local/libexec", 0o755),
        ("usr/local/libexec/dockerios-guest", 0o755),
    ]
    .map(|(name, mode)| (name.to_owned(), mode))
    .into();
    assert_eq!(modes(&into.join("root")), expected);
    assert!(
        expected.contains_key(PROGRAM.trim_start_matches('/')),
        "what the daemon runs"
    );
    assert_eq!(modes(&into.join("scripts")), [("postinstall".to_owned(), 0o755)].into());
    assert_eq!(
        fs::read(into.join("root").join(&PROGRAM[1..])).expect("the agent"),
        AGENT
    );
    if !cfg!(target_os = "macos") {
        assert!(said.contains("laid out, not built"), "{said}");
        assert!(
            said.contains("--ownership recommended") && said.contains("dockerios-guest-0.1.0.pkg"),
            "{said}"
        );
    }
}

#[test]
fn a_package_is_not_made_of_what_is_not_there_nor_over_another() {
    let dir = TempDir::new().expect("a directory");
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    fs::write(at("agent"), AGENT).expect("written");
    fs::create_dir_all(at("taken/root")).expect("a folder");
    fs::create_dir_all(at("scripted/scripts")).expect("a folder");
    fs::write(at("scripted/scripts/preinstall"), "#!/bin/sh\n").expect("written");
    fs::write(at("elf"), b"\x7fELF\x02\x01\x01").expect("written");
    fs::write(at("short"), b"\xcf\xfa\xed").expect("written");
    fs::write(at("empty"), "").expect("written");
    let rows: [(&[&str], &str); 9] = [
        (&[], "usage: package.sh"),
        (&[&at("absent"), "1", &at("new")], "absent: no such file"),
        (
            &[&at("elf"), "1", &at("new")],
            "elf: no program of macOS: it begins with '7f454c46', a Mach-O with cffaedfe",
        ),
        (
            &[&at("short"), "1", &at("new")],
            "no program of macOS: it begins with 'cffaed'",
        ),
        (
            &[&at("empty"), "1", &at("new")],
            "no program of macOS: it begins with ''",
        ),
        (
            &[&at("agent"), "1.0-beta", &at("new")],
            "1.0-beta: no version; write numbers with dots",
        ),
        (&[&at("agent"), "", &at("new")], "no version"),
        (&[&at("agent"), "1", &at("taken")], "taken/root is there already"),
        // pkgbuild would take a stranger's preinstall along, and the installer run it as root
        (
            &[&at("agent"), "1", &at("scripted")],
            "scripted/scripts is there already",
        ),
    ];
    for (arguments, why) in rows {
        let (good, said) = package(arguments);
        assert!(!good && said.contains(why), "{arguments:?}: {said}");
    }
    assert!(!dir.path().join("new").exists());
}

#[test]
fn the_command_that_is_said_for_a_mac_is_one_command_whatever_the_directory_is_called() {
    if cfg!(target_os = "macos") {
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let agent = dir.path().join("agent");
    fs::write(&agent, AGENT).expect("written");
    let into = dir.path().join("it's $(here) ü");
    let (good, said) = package(&[&agent.to_string_lossy(), "1", &into.to_string_lossy()]);
    assert!(good, "{said}");
    let (_, command) = said.trim_end().split_once("On a Mac: ").expect("a command");
    // the shell's own reading of it
    let words = format!("pkgbuild() {{ printf '%s\\n' \"$2\"; }}; {command}");
    let read = Command::new("/bin/sh").args(["-c", &words]).output().expect("a shell");
    let root = String::from_utf8_lossy(&read.stdout);
    assert_eq!(root.trim_end(), into.join("root").to_string_lossy(), "{command}");
}

/// The tools of macOS that the script calls, as stand-ins that write down how they were called.
struct Tools {
    dir: TempDir,
}

impl Tools {
    /// launchd finds the old daemon this many times more before it has ended, and answers to bootstrap with `status`.
    fn new(found: usize, status: u8) -> Self {
        let dir = TempDir::new().expect("a directory");
        let at = dir.path().display();
        // what it found is looked up in a file that becomes shorter
        let launchctl = format!(
            "case $1 in print) [ -s '{at}/found' ] || exit 113; \
             sed -i.old 1d '{at}/found' ;; bootstrap) exit {status} ;; esac\n"
        );
        fs::write(dir.path().join("found"), "still\n".repeat(found)).expect("written");
        for (tool, does) in [("defaults", ""), ("launchctl", &launchctl), ("sleep", "")] {
            let path = dir.path().join(tool);
            fs::write(&path, format!("#!/bin/sh\necho {tool} \"$@\" >> '{at}/calls'\n{does}")).expect("a tool");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        Self { dir }
    }

    /// Whether the script ended well, how it called the tools, and what it said.
    fn run(&self, volume: &str) -> (bool, String, String) {
        let done = Command::new(format!("{MACOS}/scripts/postinstall"))
            .args(["/tmp/a.pkg", "/", volume])
            .env("PATH", format!("{}:/usr/bin:/bin", self.dir.path().display()))
            .output()
            .expect("a shell");
        let calls = fs::read_to_string(self.dir.path().join("calls")).expect("calls");
        (
            done.status.success(),
            calls,
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    }
}

const MOUNT: &str = "Library/Preferences/SystemConfiguration/autodiskmount AutomountDisksWithoutUserLogin -bool true\n";

#[test]
fn after_the_installation_the_volume_mounts_without_a_login_and_the_daemon_is_loaded_only_in_the_running_system() {
    let (good, calls, said) = Tools::new(0, 0).run("/");
    assert!(good, "{said}");
    assert_eq!(
        calls,
        format!(
            "defaults write /{MOUNT}launchctl bootout system/{LABEL}\nlaunchctl print system/{LABEL}\n\
             launchctl bootstrap system /Library/LaunchDaemons/{LABEL}.plist\n"
        )
    );
    let (good, calls, said) = Tools::new(0, 0).run("/Volumes/Image");
    assert!(good, "{said}");
    assert_eq!(calls, format!("defaults write /Volumes/Image/{MOUNT}"));
}

#[test]
fn the_new_daemon_is_loaded_when_launchd_no_longer_has_the_old_one() {
    let (good, calls, said) = Tools::new(2, 0).run("/");
    assert!(good, "{said}");
    let asked = format!("launchctl print system/{LABEL}\n");
    let again = format!("{asked}sleep 1\n");
    assert_eq!(
        calls,
        format!(
            "defaults write /{MOUNT}launchctl bootout system/{LABEL}\n{again}{again}{asked}\
             launchctl bootstrap system /Library/LaunchDaemons/{LABEL}.plist\n"
        )
    );
}

#[test]
fn a_daemon_that_does_not_end_or_load_is_told_with_what_to_do() {
    let by_hand = format!("launchctl bootstrap system /Library/LaunchDaemons/{LABEL}.plist");
    let (good, calls, said) = Tools::new(1000, 0).run("/");
    assert!(!good && !calls.contains("launchctl bootstrap"), "{calls}");
    assert!(
        said.contains(&format!("system/{LABEL}, has not ended within 60 seconds")) && said.contains(&by_hand),
        "{said}"
    );
    let (good, _, said) = Tools::new(0, 5).run("/");
    assert!(
        !good && said.contains(&format!("launchd did not take /Library/LaunchDaemons/{LABEL}.plist")),
        "{said}"
    );
    assert!(said.contains(&by_hand), "{said}");
}
