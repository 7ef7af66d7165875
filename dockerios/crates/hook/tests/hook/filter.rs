//! The binary as a filter: the whole answer on standard output, or nothing.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::world::{FRESH, KEY, MACHINE, changed, with};

fn filter(folder: &Path, domain: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dockerios-domain-hook"))
        .arg("filter")
        .args(["--vmi", folder.join("vmi.json").to_str().unwrap()])
        .args(["--osk-file", folder.join("key").to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // a filter that ends before it read everything closes the pipe: its answer is judged, not that
    let _ = child.stdin.take().unwrap().write_all(domain);
    child.wait_with_output().unwrap()
}

fn folder(vmi: &str, key: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("vmi.json"), vmi).unwrap();
    fs::write(folder.path().join("key"), key).unwrap();
    folder
}

#[test]
fn the_filter_writes_what_the_function_answers() {
    let folder = folder(MACHINE, &format!("{KEY}\n"));
    let output = filter(folder.path(), FRESH.as_bytes());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), changed(FRESH, &[]).unwrap());
    assert!(output.stderr.is_empty());
}

#[test]
fn refused_input_leaves_standard_output_empty_and_says_why() {
    let boot = with(
        FRESH,
        "<target bus=\"sata\" dev=\"sda\">",
        "<target bus=\"usb\" dev=\"sda\">",
    );
    let not_text = [b"<domain>".as_slice(), &[0xff, 0xfe]].concat();
    for (vmi, domain, says) in [
        (MACHINE, boot.as_bytes(), "refused: BootDiskNotOnSata"),
        (MACHINE, b"<domain".as_slice(), "refused: DomainMalformed"),
        (MACHINE, not_text.as_slice(), "refused: DomainUnreadable"),
        ("{}", FRESH.as_bytes(), "refused: AnnotationAbsent"),
    ] {
        let output = filter(folder(vmi, KEY).path(), domain);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{errors}");
        assert!(errors.contains(says), "{errors}");
    }
}

#[test]
fn a_file_that_is_no_key_is_told_without_what_it_holds() {
    for (key, says) in [
        ("secret-but-short", "holds 16 bytes, not 64"),
        (&" ".repeat(64), "at byte 0"),
    ] {
        let output = filter(folder(MACHINE, key).path(), FRESH.as_bytes());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
        assert!(errors.contains(says) && !errors.contains("secret"), "{errors}");
    }
    let nowhere = filter(Path::new("/nowhere"), FRESH.as_bytes());
    assert_eq!((nowhere.status.code(), nowhere.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8(nowhere.stderr).unwrap().contains("/nowhere/vmi.json"));
}

#[test]
fn files_without_an_end_are_refused_by_name_and_bound() {
    use std::os::unix::fs::symlink;
    for (file, says) in [
        ("key", "the key's file holds more than 66 bytes, not 64"),
        (
            "vmi.json",
            "holds more than 16777216 bytes, which is the most that is read",
        ),
    ] {
        let folder = folder(MACHINE, KEY);
        fs::remove_file(folder.path().join(file)).unwrap();
        symlink("/dev/zero", folder.path().join(file)).unwrap();
        let output = filter(folder.path(), FRESH.as_bytes());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
        assert!(
            errors.contains(says) && errors.contains(&format!("/{file}: ")),
            "{errors}"
        );
    }
    // within the bound the length is known
    let long = filter(folder(MACHINE, &"x".repeat(66)).path(), FRESH.as_bytes());
    let errors = String::from_utf8(long.stderr).unwrap();
    assert!(errors.contains("holds 66 bytes, not 64"), "{errors}");
}

#[test]
fn a_domain_without_an_end_is_refused_by_its_bound() {
    let folder = folder(MACHINE, KEY);
    let endless = vec![b' '; (16 << 20) + 1];
    let output = filter(folder.path(), &endless);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
    assert!(
        errors.contains("standard input: holds more than 16777216 bytes"),
        "{errors}"
    );
}

#[test]
fn a_reader_that_went_away_is_no_panic() {
    let unread = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let folder = folder(MACHINE, KEY);
    let mut child = Command::new(env!("CARGO_BIN_EXE_dockerios-domain-hook"))
        .arg("filter")
        .args(["--vmi", folder.path().join("vmi.json").to_str().unwrap()])
        .args(["--osk-file", folder.path().join("key").to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(unread())
        .stderr(unread())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(FRESH.as_bytes());
    // the domain did not arrive, and nobody heard so: 101 would be a panic
    assert_eq!(child.wait().unwrap().code(), Some(2));
}
