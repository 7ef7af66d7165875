use tempfile::TempDir;

use super::*;

fn disk() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn load(root: &TempDir, machine: &str) -> Script {
    Script::load(root.path(), Ok(machine.to_owned())).unwrap()
}

fn ended(code: i32) -> io::Result<ExitStatus> {
    std::process::Command::new("/bin/sh").args(["-c", &format!("exit {code}")]).status()
}

#[test]
fn a_golden_that_was_once_an_instance_does_not_keep_its_clones_from_their_own_first_boot() {
    let root = disk();
    let mut golden = load(&root, "golden");
    golden.accept("echo golden").unwrap();
    golden.put(FirstBoot::Running).unwrap();
    golden.finish(ended(0));
    assert_eq!(load(&root, "golden").state(), &FirstBoot::Done { exit_code: 0 }, "the same machine, started again");

    let mut clone = load(&root, "clone");
    assert_eq!(clone.state(), &FirstBoot::NotAsked);
    clone.accept("echo clone").unwrap();
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Waiting);
}

#[test]
fn a_script_of_another_machine_is_neither_run_nor_kept() {
    let root = disk();
    load(&root, "golden").accept("echo secret").unwrap();
    let clone = load(&root, "clone");
    assert_eq!(clone.state(), &FirstBoot::NotAsked);
    assert!(!clone.text().exists());
}

#[tokio::test]
async fn what_the_script_of_another_machine_wrote_is_not_shown_as_this_ones() {
    let root = disk();
    load(&root, "golden").accept("echo golden").unwrap();
    let log = root.path().join(DIRECTORY).join("first-boot.log");
    fs::write(&log, "words of somebody else\n").unwrap();
    assert_eq!(shown(&load(&root, "golden")).await, "words of somebody else\n", "the same machine, started again");

    let mut clone = load(&root, "clone");
    assert!(!log.exists());
    clone.accept("echo clone").unwrap();
    assert_eq!(shown(&clone).await, "");
}

/// What a host gets that follows the script's output, if no more comes.
async fn shown(script: &Script) -> String {
    use macrack_wire::link::{Limits, Link};
    use macrack_wire::session::{Ended, Frame, split};
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (_client, mut writer) = split(Link::new(near, Limits::VM));
    let (mut reader, _host) = split(Link::new(far, Limits::GUEST));
    let log = script.log();
    log.await_script(false);
    assert_eq!(log.send(&mut writer).await.unwrap(), Ended::Over);
    writer.close().await.unwrap();
    let mut text = Vec::new();
    while let Some(Frame::Output(bytes)) = reader.next().await.unwrap() {
        text.extend_from_slice(&bytes);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn a_guest_that_does_not_know_itself_runs_nothing_where_there_is_a_record() {
    let root = disk();
    let unknown = || Script::load(root.path(), Err(io::Error::other("ioreg failed"))).unwrap();
    assert_eq!(unknown().state(), &FirstBoot::NotAsked, "without a record there is nothing to mistake");
    load(&root, "clone").accept("echo once").unwrap();
    let FirstBoot::Failed { message } = unknown().state().clone() else { panic!("{:?}", unknown().state()) };
    assert!(message.contains("whose it is cannot be told: ioreg failed"), "{message}");
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Waiting, "nothing was decided for good");
}

#[test]
fn a_record_of_an_early_release_is_this_machines() {
    let root = disk();
    let directory = root.path().join(DIRECTORY);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("first-boot.json"), r#"{"state": "Done", "exitCode": 3}"#).unwrap();
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Done { exit_code: 3 });
}

#[test]
fn a_script_that_removes_itself_ends_as_well_as_any_other() {
    let root = disk();
    let mut script = load(&root, "clone");
    script.accept("rm -- \"$0\"").unwrap();
    script.put(FirstBoot::Running).unwrap();
    fs::remove_file(script.text()).unwrap();
    script.finish(ended(0));
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Done { exit_code: 0 });

    let root = disk();
    let mut script = load(&root, "clone");
    script.accept("rm -- \"$0\"").unwrap();
    script.put(FirstBoot::Running).unwrap();
    fs::remove_file(script.text()).unwrap();
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Interrupted);
}

/// The guest may go down after any write; `cut` is what lies on the disk then.
#[test]
fn wherever_the_power_goes_the_script_is_begun_once_at_most_and_its_text_does_not_stay() {
    let text_only = |script: &mut Script| write_whole(&script.text(), b"echo once").unwrap();
    let accepted = |script: &mut Script| script.accept("echo once").unwrap();
    let begun = |script: &mut Script| {
        script.accept("echo once").unwrap();
        script.put(FirstBoot::Running).unwrap();
    };
    let over = |script: &mut Script| {
        script.accept("echo once").unwrap();
        script.put(FirstBoot::Done { exit_code: 0 }).unwrap();
    };
    let interrupted = |script: &mut Script| {
        script.accept("echo once").unwrap();
        script.put(FirstBoot::Interrupted).unwrap();
    };
    type Cut<'a> = &'a dyn Fn(&mut Script);
    let cases: [(&str, Cut<'_>, FirstBoot, bool); 5] = [
        ("before it was acknowledged", &text_only, FirstBoot::NotAsked, true),
        ("after it was acknowledged", &accepted, FirstBoot::Waiting, true),
        ("while it ran", &begun, FirstBoot::Interrupted, false),
        ("before its text was removed", &over, FirstBoot::Done { exit_code: 0 }, false),
        ("while that was put down", &interrupted, FirstBoot::Interrupted, false),
    ];
    for (when, cut, expected, kept) in cases {
        let root = disk();
        cut(&mut load(&root, "clone"));
        let script = load(&root, "clone");
        assert_eq!(script.state(), &expected, "{when}");
        assert_eq!(script.text().exists(), kept, "{when}");
    }
}

#[test]
fn a_disk_that_takes_nothing_more_keeps_the_script_from_being_begun_and_the_guest_answering() {
    let root = disk();
    let mut script = load(&root, "clone");
    script.accept("echo once").unwrap();
    // where the next record is written lies a folder
    let in_the_way = root.path().join(DIRECTORY).join("first-boot.json.new");
    fs::create_dir(&in_the_way).unwrap();
    assert!(script.begin(&Nowhere).is_none());
    let FirstBoot::Failed { message } = script.state().clone() else { panic!("{:?}", script.state()) };
    assert!(message.starts_with("not begun since this start, for that cannot be put down"), "{message}");
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Waiting, "nothing ran, so it may at the next start");

    fs::remove_dir(&in_the_way).unwrap();
    let mut script = load(&root, "clone");
    script.put(FirstBoot::Running).unwrap();
    fs::create_dir(&in_the_way).unwrap();
    script.finish(ended(0));
    assert!(matches!(script.state(), FirstBoot::Failed { .. }), "a success that is not put down is none");
    assert_eq!(load(&root, "clone").state(), &FirstBoot::Interrupted);
}

/// A machine on which nothing may be started.
struct Nowhere;

impl Probe for Nowhere {
    fn sessions(&self) -> tokio::sync::watch::Receiver<crate::probe::Session> {
        tokio::sync::watch::channel(crate::probe::Session::User).1
    }
    fn facts(&self) -> crate::probe::Facts {
        crate::probe::Facts::default()
    }
    fn machine(&self) -> io::Result<String> {
        Ok("clone".to_owned())
    }
    fn as_user(&self, _: std::process::Command) -> io::Result<std::process::Command> {
        Err(io::Error::other("nothing may be started here"))
    }
    fn hand_over(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn shut_down(&self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_script_that_cannot_be_started_leaves_its_reason_and_no_text() {
    let root = disk();
    let mut script = load(&root, "clone");
    script.accept("echo once").unwrap();
    assert!(script.begin(&Nowhere).is_none());
    let failed = FirstBoot::Failed { message: "could not be started: nothing may be started here".to_owned() };
    assert_eq!(load(&root, "clone").state(), &failed);
    assert!(!script.text().exists());
}
