//! What the installer package of the guest agent holds.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plist::Dictionary;

const BINARY: &str = env!("CARGO_BIN_EXE_macrack-guest");
const JOB: &str = "io.macrack.guest";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(words: &[&str]) -> Output {
    Command::new(workspace().join("ci/guest-pkg.sh")).args(words).output().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_package_starts_the_program_that_it_brings_as_root_and_keeps_it_alive() {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("package");
    let made = script(&["layout", BINARY, into.to_str().unwrap()]);
    assert!(made.status.success(), "{made:?}");

    let root = into.join("root");
    let plist = root.join(format!("Library/LaunchDaemons/{JOB}.plist"));
    let job: Dictionary = plist::from_file(&plist).unwrap();
    assert_eq!(job["Label"].as_string(), Some(JOB), "launchd wants the label to be the file's name");
    let program = job["ProgramArguments"].as_array().unwrap()[0].as_string().unwrap();
    let brought = root.join(program.strip_prefix('/').unwrap());
    assert_eq!(fs::read(&brought).unwrap().len(), fs::read(BINARY).unwrap().len());
    assert_eq!((mode(&brought), mode(&plist)), (0o755, 0o644), "launchd refuses a job that others may write");
    assert!(job["RunAtLoad"].as_boolean().unwrap() && job["KeepAlive"].as_boolean().unwrap());
    assert_eq!(job.get("UserName"), None, "it is root's");
    assert_eq!(job["Umask"].as_signed_integer(), Some(0o022), "the user must reach what is theirs to run");
    assert_eq!(mode(&root.join("Library/Application Support/MacRack")), 0o755);

    let postinstall = into.join("scripts/postinstall");
    assert_eq!(mode(&postinstall), 0o755, "Installer leaves out a script that is not executable");
    let text = fs::read_to_string(&postinstall).unwrap();
    assert!(text.contains(&format!("job={JOB}\n")), "{text}");
    assert!(Command::new("/bin/sh").arg("-n").arg(&postinstall).status().unwrap().success());
}

#[test]
fn onto_another_volume_nothing_is_started_here() {
    let postinstall = workspace().join("deploy/guest/scripts/postinstall");
    // without a launchctl on the path it could not
    let ended = Command::new(postinstall).args(["pkg", "/", "/Volumes/other"]).env("PATH", "/nowhere").status();
    assert!(ended.unwrap().success());
}

#[test]
fn what_would_make_a_wrong_package_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().to_str().unwrap();
    fs::write(dir.path().join("secret"), "").unwrap();
    for (words, expected) in [
        (vec!["layout", BINARY, into], "is not empty"),
        (vec!["layout", "/no/such/program", into], "is no program"),
        (vec!["build", BINARY, into], "neither 'layout' nor 'pkg'"),
        (vec!["layout", BINARY], "usage:"),
    ] {
        let refused = script(&words);
        let why = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && why.contains(expected), "{words:?}: {why}");
    }
}
