//! A VM's process as a job: with a `launchctl` that stands in for launchd, and everything else real.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use macrack_vm::launch::launch_job;
use macrack_vm::launchd::{JobState, Launchd, label};
use macrack_wire::VmState;

use crate::rack::{Rack, VM};

/// Jobs are files in a directory; a job's process is started apart, and printed while it lives.
const LAUNCHCTL: &str = r#"#!/bin/sh
jobs=$(dirname "$0")/jobs
echo "$*" >> "$(dirname "$0")/calls"
name=${2##*/}
case $1 in
  print)
    [ -e "$jobs/$name" ] || { echo "Could not find service \"$name\" in domain for user gui: 501" >&2; exit 113; }
    printf 'gui/501/%s = {\n\tstate = whatever\n' "$name"
    pid=$(cat "$jobs/$name")
    if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$pid/status"; then
      printf '\tpid = %s\n' "$pid"
    fi
    printf '}\n' ;;
  bootstrap)
    [ ! -e "$(dirname "$0")/no-session" ] || { echo "Bootstrap failed: 125: Domain does not support specified action" >&2; exit 125; }
    name=$(sed -n '/<key>Label</{n;s|.*<string>\(.*\)</string>.*|\1|p;}' "$3")
    log=$(sed -n '/<key>StandardErrorPath</{n;s|.*<string>\(.*\)</string>.*|\1|p;}' "$3")
    program=$(sed -n '/<key>ProgramArguments</{n;n;s|.*<string>\(.*\)</string>.*|\1|p;}' "$3")
    dir=$(sed -n '/<string>--dir</{n;s|.*<string>\(.*\)</string>.*|\1|p;}' "$3")
    setsid "$program" run --dir "$dir" </dev/null >>"$log" 2>&1 &
    echo $! > "$jobs/$name" ;;
  bootout)
    kill "$(cat "$jobs/$name")" 2>/dev/null
    rm "$jobs/$name"
    echo "Boot-out failed: 36: Operation now in progress" >&2
    exit 36 ;;
esac
"#;

struct Stand {
    root: tempfile::TempDir,
    launchd: Launchd,
}

impl Stand {
    fn new() -> Stand {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("jobs")).unwrap();
        let program = root.path().join("launchctl");
        fs::write(&program, LAUNCHCTL).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        Stand { launchd: Launchd::new(program, 501), root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn calls(&self) -> String {
        let calls = fs::read_to_string(self.path("calls")).unwrap();
        fs::remove_file(self.path("calls")).unwrap();
        calls
    }
}

#[tokio::test]
async fn a_job_starts_the_vm_and_the_launcher_hears_that_it_is_up() {
    let (rack, stand) = (Rack::new(), Stand::new());
    let dir = rack.make("one");
    let identity = fs::read(dir.description()).unwrap();
    let pid = launch_job(&stand.launchd, Path::new(VM), &dir).unwrap();
    let report = rack.until("one", |report| report.state == VmState::Running).await;
    assert_eq!(report.pid, pid);
    assert_eq!(stand.launchd.state(&label("one")).unwrap(), JobState::Running(pid));
    assert!(!dir.announcement().exists(), "nobody waits any more");
    assert!(fs::read_to_string(dir.job()).unwrap().contains("io.macrack.vm.one"));

    // a second start leaves the process alone
    stand.calls();
    let refused = launch_job(&stand.launchd, Path::new(VM), &dir).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists, "{refused}");
    assert!(!stand.calls().contains("boot"), "a job whose process lives is never removed by a start");

    rack.client("one").await.stop(0).await.unwrap();
    rack.until("one", |report| report.state.is_final()).await;
    // the process ends after its last word, and is waited for
    let again = launch_job(&stand.launchd, Path::new(VM), &dir).unwrap();
    assert_ne!(again, pid, "an ended job is replaced");
    assert_eq!(fs::read(dir.description()).unwrap(), identity, "a restarted VM is the same machine");
    assert!(stand.calls().contains("bootout gui/501/io.macrack.vm.one"));

    stand.launchd.remove(&label("one")).unwrap();
    rack.until("one", |report| report.pid == again && report.state.is_final()).await;
    assert_eq!(stand.launchd.state(&label("one")).unwrap(), JobState::Absent);
    stand.launchd.remove(&label("one")).unwrap();
}

#[tokio::test]
async fn a_vm_that_runs_outside_of_its_job_is_left_alone_too() {
    let (rack, stand) = (Rack::new(), Stand::new());
    let dir = rack.make("held");
    let pid = rack.start("held");
    let refused = launch_job(&stand.launchd, Path::new(VM), &dir).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists, "{refused}");
    let report = rack.until("held", |report| report.state == VmState::Running).await;
    assert_eq!(report.pid, pid);
}

#[tokio::test]
async fn a_vm_that_cannot_start_leaves_its_last_word_and_its_launcher_goes_by_it() {
    let (rack, stand) = (Rack::new(), Stand::new());
    let dir = rack.make("wrong");
    fs::write(dir.description(), "{}").unwrap();
    let pid = launch_job(&stand.launchd, Path::new(VM), &dir).unwrap();
    let last = dir.read_state().unwrap().unwrap();
    assert_eq!((last.report.pid, last.report.state), (pid, VmState::Failed));
}

#[test]
fn without_a_session_of_the_user_the_way_out_is_said() {
    let (rack, stand) = (Rack::new(), Stand::new());
    let dir = rack.make("alone");
    fs::write(stand.path("no-session"), "").unwrap();
    let refused = launch_job(&stand.launchd, Path::new(VM), &dir).unwrap_err().to_string();
    assert!(refused.contains("Bootstrap failed: 125") && refused.contains("must be logged in"), "{refused}");
    assert!(!dir.announcement().exists());
}
