//! A shared bootdisk as an OCI image, in the eyes of Python's own readers of JSON, gzip and tar.

mod template;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dockerios_bootdisk::build::build;
use dockerios_bootdisk::image::IMAGE_BYTES;
use dockerios_bootdisk::inspect;
use dockerios_identity::Fields;
use proptest::prelude::*;
use template::{World, files_below, identity};

/// Reads the layout at argv[1] by the specification alone, and says what a container would see.
const READER: &str = r#"
import gzip, hashlib, json, sys, tarfile
at = sys.argv[1]
def blob(d, media):
    assert d["mediaType"] == media, d
    algorithm, digest = d["digest"].split(":")
    data = open(f"{at}/blobs/{algorithm}/{digest}", "rb").read()
    assert algorithm == "sha256" and hashlib.sha256(data).hexdigest() == digest and len(data) == d["size"], d
    return data
assert json.load(open(f"{at}/oci-layout")) == {"imageLayoutVersion": "1.0.0"}
index = json.load(open(f"{at}/index.json"))
assert index["schemaVersion"] == 2 and len(index["manifests"]) == 1, index
manifest = json.loads(blob(index["manifests"][0], "application/vnd.oci.image.manifest.v1+json"))
assert manifest["schemaVersion"] == 2 and len(manifest["layers"]) == 1, manifest
config = json.loads(blob(manifest["config"], "application/vnd.oci.image.config.v1+json"))
assert (config["architecture"], config["os"]) == ("amd64", "linux"), config
packed = blob(manifest["layers"][0], "application/vnd.oci.image.layer.v1.tar+gzip")
layer = gzip.decompress(packed)
assert config["rootfs"] == {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}, config
open(f"{at}.layer", "wb").write(layer)
with tarfile.open(f"{at}.layer") as tar:
    for one in tar:
        kind = "folder" if one.isdir() else "file" if one.isreg() else "other"
        print(kind, one.name, oct(one.mode), one.uid, one.gid, one.mtime, one.size)
    disk = tar.extractfile("disk/bootdisk.img")
    digest = hashlib.sha256()
    while piece := disk.read(1 << 20):
        digest.update(piece)
    print(digest.hexdigest())
print(index["manifests"][0]["digest"], len(packed) < 2 << 20)
"#;

fn python(script: &str, at: &Path) -> Output {
    Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(at)
        .output()
        .expect("python3 is one of the programs that CI installs")
}

/// A bootdisk, and the sha256 that the builder told.
fn built() -> (World, String) {
    let world = World::new();
    let sha256 = build(&world.order).expect("built");
    (world, sha256)
}

fn at(world: &World, name: &str) -> PathBuf {
    world.folder.path().join(name)
}

fn pack(image: &Path, share: Option<&str>, output: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dockerios-bootdisk"));
    command.arg("pack").arg("--image").arg(image);
    if let Some(serial) = share {
        command.args(["--share", serial]);
    }
    command.arg("--output").arg(output).output().expect("started")
}

/// Packed well; the digest that was printed.
fn packed(world: &World, output: &Path) -> String {
    let done = pack(&world.order.output, Some(world.identity.serial()), output);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text").trim_end().to_owned()
}

/// Refused in words, with nothing on standard output and nothing left beside the image.
fn refused(image: &Path, share: Option<&str>, output: &Path) -> String {
    let before = listed(output.parent().expect("a folder"));
    let done = pack(image, share, output);
    assert!(!done.status.success() && done.stdout.is_empty());
    assert_eq!(listed(output.parent().expect("a folder")), before, "something is left");
    let said = String::from_utf8(done.stderr).expect("text");
    assert!(
        said.starts_with("dockerios-bootdisk: ") && !said.contains("panicked"),
        "{said}"
    );
    said
}

fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    all.sort();
    all
}

#[test]
fn python_finds_one_disk_for_qemus_user_with_the_bytes_that_were_built_and_every_sum_right() {
    let (world, sha256) = built();
    let layout = at(&world, "layout");
    let digest = packed(&world, &layout);
    let read = python(READER, &layout);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let said = String::from_utf8(read.stdout).expect("text");
    let lines: Vec<&str> = said.lines().collect();
    let disk = format!("file disk/bootdisk.img 0o444 107 107 0 {IMAGE_BYTES}");
    assert_eq!(
        lines,
        [
            "folder disk 0o755 107 107 0 0",
            &disk,
            &sha256,
            &format!("{digest} True")
        ],
        "and 384 MiB with so much nothing in them are small once packed"
    );
    assert_eq!(
        fs::metadata(&layout).expect("a folder").permissions().mode() & 0o777,
        0o755
    );
}

/// Names and bytes of a layout's files.
fn content(layout: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = files_below(layout, "");
    files.sort();
    let read = |(name, path)| (name, fs::read(path).expect("a file"));
    files.into_iter().map(read).collect()
}

#[test]
fn the_same_bootdisk_gives_the_same_layout_whenever_and_wherever_and_another_one_another() {
    let (world, _) = built();
    let (one, other) = (at(&world, "one"), at(&world, "elsewhere"));
    fs::create_dir(&other).expect("a folder");
    let other = other.join("other");
    let digest = packed(&world, &one);
    assert_eq!(packed(&world, &other), digest);
    assert!(content(&one) == content(&other), "two layouts of one bootdisk differ");

    let mut second = World::new();
    second.identity = identity(6);
    second.identity_is(&Fields::from(second.identity.clone()));
    build(&second.order).expect("built");
    assert_ne!(packed(&second, &at(&second, "layout")), digest);
}

#[test]
fn with_tar_at_the_end_of_its_name_the_output_is_the_same_layout_in_one_file() {
    let (world, _) = built();
    let (folder, file) = (at(&world, "layout"), at(&world, "layout.tar"));
    assert_eq!(packed(&world, &folder), packed(&world, &file));
    let again = at(&world, "again.tar");
    packed(&world, &again);
    let bytes = |path: &Path| fs::read(path).expect("a file");
    assert!(bytes(&file) == bytes(&again), "two archives of one bootdisk differ");
    let unpacked = at(&world, "unpacked");
    let script =
        "import sys, tarfile; at = sys.argv[1]; tarfile.open(at).extractall(at.replace('layout.tar', 'unpacked'))";
    let done = python(script, &file);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(
        content(&unpacked) == content(&folder),
        "archive and folder hold other files"
    );
}

#[test]
fn an_identity_is_packed_only_when_its_serial_is_said() {
    let (world, _) = built();
    let serial = world.identity.serial();
    let said = refused(&world.order.output, None, &at(&world, "layout"));
    for part in [serial, "must be of no pool", &format!("say --share {serial}")] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = refused(&world.order.output, Some("C02ZZTEST001"), &at(&world, "layout"));
    for part in [serial, "--share says \"C02ZZTEST001\""] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// A copy of the bootdisk, changed; as sparse as it was.
fn changed(world: &World, name: &str, change: impl FnOnce(&File)) -> PathBuf {
    let copy = at(world, name);
    let done = Command::new("cp")
        .arg("--sparse=always")
        .arg(&world.order.output)
        .arg(&copy)
        .status();
    assert!(done.expect("cp").success());
    change(&File::options().read(true).write(true).open(&copy).expect("a file"));
    copy
}

#[test]
fn what_is_no_whole_bootdisk_is_refused_by_what_is_missing() {
    let (world, _) = built();
    let write = |at: u64, bytes: &'static [u8]| move |file: &File| file.write_all_at(bytes, at).expect("written");
    let text = at(&world, "text");
    fs::write(&text, "<html>404</html>").expect("a file");
    let zeros = at(&world, "zeros");
    File::create(&zeros)
        .expect("a file")
        .set_len(IMAGE_BYTES)
        .expect("a length");
    let images = [
        (text, "its size is no whole number of sectors"),
        (zeros, "the second sector is not the header of a GUID partition table"),
        (
            changed(&world, "cut", |file| {
                file.set_len(IMAGE_BYTES - (1 << 20)).expect("cut")
            }),
            "the disk does not end where the table says",
        ),
        (
            changed(&world, "header", write(512 + 40, b"\0\x01")),
            "the checksum of its header is wrong",
        ),
        (
            changed(&world, "entries", write(1024 + 60, b"x")),
            "the checksum of its entries is wrong",
        ),
        (
            changed(&world, "volume", write(1 << 20, &[0; 512])),
            "the partition does not begin with a boot sector",
        ),
        (
            // the name EFI in the root folder: a reader of the volume finds no such folder any more
            changed(&world, "root", |file| {
                let mut root = vec![0; 8 << 20];
                file.read_exact_at(&mut root, 1 << 20).expect("read");
                let place = root
                    .windows(11)
                    .position(|name| name == b"EFI        ")
                    .expect("the folder");
                file.write_all_at(b"AFI", (1 << 20) + place as u64).expect("written");
            }),
            "has no file EFI/BOOT/BOOTx64.efi in its EFI system partition",
        ),
    ];
    for (image, says) in images {
        let said = refused(&image, Some(world.identity.serial()), &at(&world, "layout"));
        assert!(said.contains(says), "{}: {said}", image.display());
        assert!(
            said.contains("pack a bootdisk that `dockerios-bootdisk build` wrote"),
            "{said}"
        );
    }
    let said = refused(world.folder.path(), None, &at(&world, "layout"));
    assert!(said.contains("is no file"), "{said}");
    let said = refused(&at(&world, "nowhere"), None, &at(&world, "layout"));
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let (world, _) = built();
    let pipe = at(&world, "pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("started");
    assert!(made.success());
    let said = refused(&pipe, None, &at(&world, "layout"));
    assert!(said.contains("pipe\": is no file"), "{said}");
}

#[test]
fn a_configuration_without_an_identity_of_its_own_or_that_waits_for_somebody_is_refused() {
    let (world, _) = built();
    let replaced = |name: &str, from: &str, to: &str| {
        assert_eq!(from.len(), to.len(), "nothing else may move");
        changed(&world, name, |file| {
            let mut all = vec![0; 8 << 20];
            file.read_exact_at(&mut all, 1 << 20).expect("read");
            let found = all.windows(from.len()).position(|text| text == from.as_bytes());
            let place = found.unwrap_or_else(|| panic!("{from} is in the volume"));
            file.write_all_at(to.as_bytes(), (1 << 20) + place as u64)
                .expect("written");
        })
    };
    // a serial that was published, as templates have them for a placeholder
    let sample = replaced("sample", world.identity.serial(), "W00000000001");
    let said = refused(&sample, Some("W00000000001"), &at(&world, "layout"));
    assert!(said.contains("published as a sample"), "{said}");
    let vault = replaced("vault", "<string>Optional</string>", "<string>Required</string>");
    let said = refused(&vault, Some(world.identity.serial()), &at(&world, "layout"));
    assert!(said.contains("Misc.Security.Vault"), "{said}");
}

#[test]
fn what_lies_under_the_outputs_name_stays_and_a_folder_that_is_missing_is_said() {
    let (world, _) = built();
    let serial = world.identity.serial();
    for name in ["there", "there.tar"] {
        let there = at(&world, name);
        fs::write(&there, "kept").expect("a file");
        let said = refused(&world.order.output, Some(serial), &there);
        assert!(
            said.contains("is there already; remove it, or name another one"),
            "{said}"
        );
        assert_eq!(fs::read(&there).expect("a file"), b"kept");
    }
    let done = pack(&world.order.output, Some(serial), &at(&world, "nowhere/layout"));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        !done.status.success() && said.contains("the folder has to be there"),
        "{said}"
    );
}

#[test]
fn an_output_that_is_file_and_folder_at_once_is_refused_before_the_image_is_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("absent.img");
    for (name, why) in [
        (".tar", "has nothing before .tar"),
        (".tar/", "has nothing before .tar"),
        ("a.tar/", "is a file by its .tar, and a folder by what follows"),
        ("a.tar/.", "is a file by its .tar, and a folder by what follows"),
        ("nowhere/..", "has no name of its own"),
    ] {
        let output = PathBuf::from(format!("{}/{name}", folder.path().display()));
        let done = pack(&image, None, &output);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && done.stdout.is_empty(), "{said}");
        assert!(
            said.contains(why) && said.contains("name a new folder, or a new file such as bootdisk.tar"),
            "{name}: {said}"
        );
        assert!(listed(folder.path()).is_empty(), "{name}");
    }
}

#[test]
fn a_layout_whose_digest_nobody_read_is_said_to_be_there_and_an_unfinished_one_too() {
    let (world, _) = built();
    fs::create_dir(at(&world, ".containerdisk-aBc123")).expect("a folder");
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let output = at(&world, "layout");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dockerios-bootdisk"));
    command.arg("pack").arg("--image").arg(&world.order.output);
    command
        .args(["--share", world.identity.serial()])
        .arg("--output")
        .arg(&output);
    let child = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn();
    let done = child.expect("started").wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("/.containerdisk-aBc123\" is unfinished"), "{said}");
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(output.join("index.json")).expect("an index")).expect("JSON");
    let digest = index["manifests"][0]["digest"].as_str().expect("a digest");
    assert!(
        said.contains("standard output: Broken pipe")
            && said.contains(&format!(
                "layout\" is written, its digest is {digest}, which its index.json says too"
            )),
        "{said}"
    );
}

#[test]
fn an_image_of_384_mib_is_packed_within_less_memory_than_it_has_bytes() {
    let (world, _) = built();
    let program = env!("CARGO_BIN_EXE_dockerios-bootdisk");
    // KiB of address space, program and libraries included
    let script = r#"ulimit -v 131072; exec "$0" pack --image "$1" --share "$2" --output "$3""#;
    let done = Command::new("sh")
        .args(["-c", script, program])
        .arg(&world.order.output)
        .arg(world.identity.serial())
        .arg(at(&world, "layout"))
        .output()
        .expect("a shell");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A file with some of its bytes replaced, as far as a reader sees.
struct Damaged {
    file: File,
    changes: Vec<(u64, u8)>,
}

impl Read for Damaged {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let from = self.file.stream_position()?;
        let count = self.file.read(bytes)?;
        for (at, byte) in &self.changes {
            let place = at.checked_sub(from).filter(|place| *place < count as u64);
            if let Some(place) = place {
                bytes[place as usize] = *byte;
            }
        }
        Ok(count)
    }
}

impl Seek for Damaged {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn an_image_damaged_anywhere_is_read_or_refused_and_never_read_for_ever() {
    let (world, _) = built();
    // where there is something to damage: boot sector, allocation table, folders
    let places = prop_oneof![
        3 => (1u64 << 20)..(1 << 20) + 96,
        3 => (1u64 << 20) + 32 * 512..(1 << 20) + 32 * 512 + 4096,
        4 => (1u64 << 20)..(9 << 20),
    ];
    let changes = proptest::collection::vec((places, any::<u8>()), 1..40);
    let config = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(changes in changes)| {
        let file = File::open(&world.order.output).expect("the image");
        let mut damaged = Damaged { file, changes };
        match inspect::identity(&mut damaged, IMAGE_BYTES) {
            Ok(found) => prop_assert_eq!(found.serial(), world.identity.serial()),
            Err(why) => prop_assert!(!why.to_string().is_empty()),
        }
    });
}

#[test]
fn a_folder_whose_chain_goes_round_is_read_to_an_end() {
    let (world, _) = built();
    let file = File::open(&world.order.output).expect("the image");
    let mut volume = vec![0; 8 << 20];
    file.read_exact_at(&mut volume, 1 << 20).expect("read");
    let table = u64::from(u16::from_le_bytes([volume[14], volume[15]])) * 512;
    let name = volume
        .windows(11)
        .position(|name| name == b"EFI        ")
        .expect("the folder");
    // the root folder's cluster follows itself, no entry ends it, and what is looked for is not in it
    let root = name / 512 * 512;
    let filled = (root..root + 4096).step_by(32).filter(|at| volume[*at] == 0);
    let mut changes: Vec<(u64, u8)> = filled.map(|at| (at as u64, 0xE5)).collect();
    changes.extend((8u64..12).map(|at| (table + at, if at == 8 { 2 } else { 0 })));
    changes.push((name as u64, b'A'));
    for (at, _) in &mut changes {
        *at += 1 << 20;
    }
    let why = inspect::identity(&mut Damaged { file, changes }, IMAGE_BYTES).expect_err("no folder EFI");
    assert!(why.to_string().contains("has no file EFI/BOOT/BOOTx64.efi"), "{why}");
}
