//! The builder as a program: what it prints, and what it refuses with which words.

mod template;

use std::fs;
use std::process::{Command, Output};

use dockerios_identity::Fields;
use template::World;

fn run(world: &World, change: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dockerios-bootdisk"));
    command.arg("build").arg("--template").arg(&world.order.template);
    command.arg("--template-sha256").arg(&world.order.template_sha256);
    command
        .arg("--identity")
        .arg(&world.order.identity)
        .arg("--output")
        .arg(&world.order.output);
    change(&mut command);
    command.output().expect("started")
}

/// Refused with nothing on standard output, no image, and a word on standard error.
fn refused(world: &World) -> String {
    let output = run(world, |_| {});
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(!world.order.output.exists());
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn it_writes_the_image_and_prints_its_sha256_alone() {
    let world = World::new();
    let output = run(&world, |_| {});
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(said.trim_end().len(), 64, "{said}");
    assert!(
        said.ends_with('\n') && said.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{said}"
    );
    assert_eq!(world.order.output.metadata().expect("image").len(), 384 << 20);
}

#[test]
fn a_report_that_was_asked_for_says_what_was_printed_and_one_that_cannot_be_written_is_refused() {
    let world = World::new();
    let report = world.order.output.with_file_name("report");
    let output = run(&world, |command| {
        command.arg("--report").arg(&report);
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&report).expect("a report"), output.stdout);
    let output = run(&world, |command| {
        command
            .arg("--report")
            .arg(world.order.output.with_file_name("missing").join("report"));
    });
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("name a file that can be written"), "{said}");
}

#[test]
fn the_manifest_that_it_prints_is_the_one_that_it_takes() {
    let world = World::new();
    let printed = Command::new(env!("CARGO_BIN_EXE_dockerios-bootdisk"))
        .arg("manifest")
        .arg("--template")
        .arg(&world.order.template)
        .output()
        .expect("started");
    assert_eq!(
        printed.stdout,
        fs::read(world.path("MANIFEST.sha256")).expect("manifest")
    );
}

#[test]
fn an_invalid_identity_is_refused_with_field_rule_and_way_out() {
    let world = World::new();
    let mut fields = Fields::from(world.identity.clone());
    fields.serial = "W00000000001".into();
    fields.rom = "02005E1000".into();
    world.identity_is(&fields);
    let said = refused(&world);
    assert!(
        said.contains("identity.json\": rom \"02005E1000\": a ROM is 6 bytes"),
        "{said}"
    );
    assert!(
        said.contains("serial \"W00000000001\": this value was published as a sample"),
        "{said}"
    );
}

#[test]
fn an_identity_file_that_is_missing_or_no_identity_is_refused() {
    let world = World::new();
    for (content, reason) in [
        ("", "EOF"),
        ("[]", "invalid"),
        ("{\"model\": 5}", "invalid type"),
        ("\u{0}", "expected"),
    ] {
        fs::write(&world.order.identity, content).expect("file");
        let said = refused(&world);
        assert!(
            said.contains("identity.json\": ") && said.contains(reason),
            "{content}: {said}"
        );
    }
    fs::write(&world.order.identity, vec![b' '; (64 << 10) + 1]).expect("file");
    let said = refused(&world);
    assert!(said.contains("has more than 65536 bytes"), "{said}");
    fs::remove_file(&world.order.identity).expect("removed");
    assert!(
        refused(&world).contains("identity.json\": No such file"),
        "{}",
        refused(&world)
    );
}

#[test]
fn a_manifest_that_is_a_pipe_is_refused_and_not_waited_for() {
    let world = World::new();
    let manifest = world.path("MANIFEST.sha256");
    fs::remove_file(&manifest).expect("removed");
    let made = Command::new("mkfifo").arg(&manifest).status().expect("started");
    assert!(made.success());
    let said = refused(&world);
    assert!(
        said.contains("MANIFEST.sha256\" is neither a file nor a folder; put the file itself there"),
        "{said}"
    );
}

#[test]
fn a_configuration_that_is_a_web_page_is_refused_with_its_place() {
    let mut world = World::new();
    world.put("EFI/OC/config.plist", b"<html><body>404</body></html>");
    world.seal();
    let said = refused(&world);
    assert_eq!(
        said,
        "dockerios-bootdisk: template EFI/OC/config.plist: line 1 column 1: <html> where <plist> has to be; write the \
         property list as Apple's DTD says\n"
    );
}

#[test]
fn an_output_that_is_a_folder_or_in_no_folder_is_refused() {
    let mut world = World::new();
    let folder = world.folder.path().to_owned();
    world.order.output = folder.join("nowhere/image.raw");
    assert!(
        refused(&world).contains("nowhere/image.raw\": No such file"),
        "{}",
        refused(&world)
    );
    world.order.output = folder;
    let output = run(&world, |_| {});
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("is neither a file nor a block device"),
        "{said}"
    );
}

#[test]
fn nothing_is_written_into_the_template_by_whatever_way_its_name_leads_there() {
    use std::os::unix::fs::symlink;
    let mut world = World::new();
    let folder = world.folder.path().to_owned();
    symlink(world.order.template.join("EFI"), folder.join("way")).expect("a link");
    let kept = world.order.output.clone();
    for output in ["template/x.img", "template/EFI/OC/x.img", "way/x.img", "way/../x.img"] {
        world.order.output = folder.join(output);
        let said = refused(&world);
        assert!(
            said.contains(&format!("output {:?} lies in the template", world.order.output))
                && said.contains("name a file outside of it"),
            "{said}"
        );
    }
    world.order.output = kept;
    let report = folder.join("template/report");
    let done = run(&world, |command| {
        command.arg("--report").arg(&report);
    });
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("template/report\" lies in the template"),
        "{said}"
    );
    assert!(!report.exists() && !world.order.output.exists());
    // beside it, with a name that begins alike, is outside
    world.order.output = folder.join("template.img");
    assert!(run(&world, |_| {}).status.success());
}

#[test]
fn no_file_of_an_order_is_written_over_another_by_whatever_name() {
    let mut world = World::new();
    let folder = world.folder.path().to_owned();
    std::os::unix::fs::symlink(&folder, folder.join("way")).expect("a link");
    let (output, identity) = (world.order.output.clone(), world.order.identity.clone());
    let by_way = |path: &std::path::Path| folder.join("way").join(path.file_name().expect("a name"));
    let before = fs::read(&identity).expect("an identity");
    for (report, other) in [
        (output.clone(), "output"),
        (by_way(&output), "output"),
        (by_way(&identity), "identity"),
    ] {
        let done = run(&world, |command| {
            command.arg("--report").arg(&report);
        });
        let said = String::from_utf8_lossy(&done.stderr);
        let why = format!("report {report:?} is the file of the {other}, which would be lost; name another file");
        assert!(!done.status.success() && said.contains(&why), "{said}");
        assert!(!output.exists());
    }
    world.order.output = by_way(&identity);
    let done = run(&world, |_| {});
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("is the file of the identity, which would be lost"),
        "{said}"
    );
    assert_eq!(fs::read(&identity).expect("an identity"), before);
}

#[test]
fn what_a_killed_run_left_behind_is_said_and_left() {
    let world = World::new();
    let left = world.order.output.with_file_name(".bootdisk-aBc123");
    fs::write(&left, "half").expect("a file");
    let done = run(&world, |_| {});
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && said.contains("/.bootdisk-aBc123\" is unfinished"),
        "{said}"
    );
    assert!(left.exists());
}

fn unread() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer
}

#[test]
fn an_image_whose_sum_nobody_read_is_said_to_be_there() {
    let world = World::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dockerios-bootdisk"));
    command.arg("build").arg("--template").arg(&world.order.template);
    command.arg("--template-sha256").arg(&world.order.template_sha256);
    command.arg("--identity").arg(&world.order.identity);
    command.arg("--output").arg(&world.order.output).stdout(unread());
    let done = command.stderr(std::process::Stdio::piped()).spawn().expect("started");
    let done = done.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        said.contains("standard output: Broken pipe") && said.contains("image.raw\" is written, its sha256 is "),
        "{said}"
    );
}

#[test]
fn a_reader_that_went_away_is_no_panic() {
    let world = World::new();
    let status = Command::new(env!("CARGO_BIN_EXE_dockerios-bootdisk"))
        .arg("manifest")
        .arg("--template")
        .arg(&world.order.template)
        .stdout(unread())
        .stderr(unread())
        .status()
        .expect("started");
    // the manifest did not arrive, and nobody heard so: 101 would be a panic
    assert_eq!(status.code(), Some(1));
}
