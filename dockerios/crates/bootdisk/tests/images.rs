//! The image in the eyes of others: fsck.fat, mtools, sgdisk, Python's plistlib. Where one of these programs is not
//! installed its part is left out, and the output says so; in CI (the variable CI is set) it has to be there.

mod template;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use dockerios_bootdisk::build::{BuildError, build};
use dockerios_bootdisk::config::CONFIG_PATH;
use dockerios_bootdisk::fat::FatError;
use dockerios_bootdisk::image::{IMAGE_BYTES, lay_out};
use dockerios_identity::Fields;
use template::{World, files_below, identity, pattern};

/// Whether a program is there; says so when not.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(Into::into);
    let there = std::env::split_paths(&path)
        .chain(extra)
        .any(|folder| folder.join(program).is_file());
    assert!(
        there || std::env::var_os("CI").is_none(),
        "{program} is not installed, and in CI it has to be"
    );
    if !there {
        println!("LEFT OUT: {program} is not installed, so its judgement is missing");
    }
    there
}

/// What a program prints; its failure fails the test with all that it said.
fn judged(command: &mut Command) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = command
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// The partition alone, as a sparse file.
fn partition(image: &Path, to: &Path) {
    let mut from = File::open(image).expect("image");
    let length = IMAGE_BYTES - (2 << 20);
    from.seek(SeekFrom::Start(1 << 20)).expect("seek");
    let mut out = File::create(to).expect("file");
    out.set_len(length).expect("length");
    let mut block = vec![0; 1 << 20];
    let zeros = block.clone();
    for at in 0..length / (1 << 20) {
        from.read_exact(&mut block).expect("read");
        if block != zeros {
            out.seek(SeekFrom::Start(at << 20)).expect("seek");
            out.write_all(&block).expect("write");
        }
    }
}

#[test]
fn fsck_fat_finds_nothing_to_say_about_the_volume() {
    let world = World::new();
    build(&world.order).expect("built");
    if have("fsck.fat") {
        let volume = world.folder.path().join("volume");
        partition(&world.order.output, &volume);
        let said = judged(Command::new("fsck.fat").args(["-n", "-v"]).arg(&volume));
        assert!(said.contains(" files, ") && !said.contains("differ"), "{said}");
        assert!(
            !said.contains("Dirty") && !said.contains("Free cluster summary wrong"),
            "{said}"
        );
    }
}

#[test]
fn sgdisk_finds_one_efi_system_partition_and_no_problem() {
    let world = World::new();
    build(&world.order).expect("built");
    if have("sgdisk") {
        let said = judged(Command::new("sgdisk").arg("-v").arg(&world.order.output));
        assert!(said.contains("No problems found") && !said.contains("aution"), "{said}");
        let said = judged(Command::new("sgdisk").args(["-i", "1"]).arg(&world.order.output));
        for line in [
            "(EFI system partition)",
            "First sector: 2048",
            "Last sector: 784383",
            "'EFI system partition'",
        ] {
            assert!(said.contains(line), "{line}: {said}");
        }
    }
}

#[test]
fn the_second_table_alone_gives_the_partition_back() {
    let world = World::new();
    build(&world.order).expect("built");
    if have("sgdisk") {
        let mut image = File::options().write(true).open(&world.order.output).expect("image");
        image.seek(SeekFrom::Start(512)).expect("seek");
        image.write_all(&[0; 33 * 512]).expect("wiped");
        let said = judged(Command::new("sgdisk").args(["-i", "1"]).arg(&world.order.output));
        assert!(
            said.contains("(EFI system partition)") && said.contains("Last sector: 784383"),
            "{said}"
        );
    }
}

#[test]
fn mtools_reads_every_file_back_under_its_long_name_and_only_the_configuration_differs() {
    let world = World::new();
    build(&world.order).expect("built");
    if have("mcopy") {
        let back = world.folder.path().join("back");
        fs::create_dir(&back).expect("folder");
        let image = format!("{}@@1M", world.order.output.display());
        judged(
            Command::new("mcopy")
                .args(["-s", "-n", "-i", &image, "::EFI"])
                .arg(&back),
        );
        let read = |folder: &Path| -> BTreeMap<String, Vec<u8>> {
            files_below(folder, "")
                .into_iter()
                .map(|(name, path)| (name, fs::read(path).expect("file")))
                .collect()
        };
        let (mut sent, received) = (read(&world.order.template), read(&back));
        sent.remove("MANIFEST.sha256");
        assert_eq!(sent.keys().collect::<Vec<_>>(), received.keys().collect::<Vec<_>>());
        let differ: Vec<_> = sent
            .iter()
            .filter(|(name, content)| received[*name] != **content)
            .map(|(name, _)| name)
            .collect();
        assert_eq!(differ, [CONFIG_PATH]);
        let listing = judged(Command::new("mdir").args(["-i", &image, "::EFI/OC"]));
        assert!(
            listing.contains("2020-01-01") && listing.contains("Volume in drive : is OPENCORE"),
            "{listing}"
        );
    }
}

#[test]
fn plistlib_reads_the_configuration_with_the_identity_in_it_and_the_rest_unchanged() {
    let world = World::new();
    build(&world.order).expect("built");
    if have("mcopy") && have("python3") {
        let image = format!("{}@@1M", world.order.output.display());
        let config = world.folder.path().join("config.plist");
        judged(
            Command::new("mcopy")
                .args(["-n", "-i", &image, "::EFI/OC/config.plist"])
                .arg(&config),
        );
        let program = "import json, plistlib, sys\n\
            old, new = (plistlib.load(open(name, 'rb')) for name in sys.argv[1:])\n\
            generic, info = new['PlatformInfo']['Generic'], new['PlatformInfo']\n\
            assert isinstance(generic['ROM'], bytes)\n\
            keys = ['SystemProductName', 'SystemSerialNumber', 'MLB', 'SystemUUID']\n\
            switches = ['Automatic', 'UpdateDataHub', 'UpdateNVRAM', 'UpdateSMBIOS']\n\
            assert all(info[switch] is True for switch in switches)\n\
            assert list(generic) == list(old['PlatformInfo']['Generic'])\n\
            assert {k: v for k, v in generic.items() if k not in keys + ['ROM']} == {'AdviseFeatures': False, 'SpoofVendor': True}\n\
            assert [(k, v) for k, v in old.items() if k != 'PlatformInfo'] == [(k, v) for k, v in new.items() if k != 'PlatformInfo']\n\
            assert new['#Note'] == 'a<b & c'\n\
            print(' '.join([generic[key] for key in keys] + [generic['ROM'].hex().upper()]))";
        let said = judged(
            Command::new("python3")
                .args(["-c", program])
                .arg(world.path(CONFIG_PATH))
                .arg(&config),
        );
        let wanted = Fields::from(world.identity.clone());
        let Fields {
            model,
            serial,
            mlb,
            rom,
            system_uuid,
            ..
        } = wanted;
        assert_eq!(said.trim(), [model, serial, mlb, system_uuid, rom].join(" "));
    }
}

#[test]
fn the_same_template_and_identity_give_the_same_bytes_and_another_identity_gives_others() {
    let mut world = World::new();
    let first = build(&world.order).expect("built");
    world.order.output = world.folder.path().join("again.raw");
    assert_eq!(build(&world.order).expect("built"), first);
    if have("sha256sum") {
        let said = judged(Command::new("sha256sum").arg(&world.order.output));
        assert!(said.starts_with(&first), "the sum that is told is the file's: {said}");
    }
    world.identity_is(&Fields::from(identity(6)));
    assert_ne!(build(&world.order).expect("built"), first);
}

#[test]
fn the_image_is_384_mib_sparse_and_readable_by_others() {
    let world = World::new();
    build(&world.order).expect("built");
    let metadata = world.order.output.metadata().expect("image");
    assert_eq!(metadata.len(), 384 << 20);
    assert!(metadata.blocks() * 512 < 16 << 20, "{} blocks", metadata.blocks());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o644);
}

#[test]
fn an_image_that_was_there_is_replaced_whole_or_left_alone_and_nothing_else_stays_behind() {
    let world = World::new();
    fs::write(&world.order.output, b"before").expect("file");
    world.put(CONFIG_PATH, b"broken");
    assert!(matches!(build(&world.order), Err(BuildError::Template(_))));
    assert_eq!(fs::read(&world.order.output).expect("file"), b"before");
    world.put(CONFIG_PATH, template::CONFIG.as_bytes());
    build(&world.order).expect("built");
    assert_eq!(world.order.output.metadata().expect("image").len(), IMAGE_BYTES);
    let mut names: Vec<_> = fs::read_dir(world.folder.path())
        .expect("folder")
        .map(|e| e.expect("entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["identity.json", "image.raw", "template"]);
}

#[test]
fn names_that_fat_cannot_tell_apart_or_hold_are_refused() {
    let laid_out = |paths: &[&str]| {
        let files = paths.iter().map(|path| ((*path).to_owned(), b"x".to_vec())).collect();
        lay_out(files, "6F0C1D1E-0000-4000-8000-00000000B001")
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let differ = "template files \"EFI/oc/b\" and \"OC\" beside it differ in case only";
    assert!(
        laid_out(&["EFI/OC/a", "EFI/oc/b"])
            .expect_err("folders")
            .starts_with(differ)
    );
    assert!(
        laid_out(&["EFI/a", "EFI/A"])
            .expect_err("files")
            .contains("differ in case only")
    );
    assert!(
        laid_out(&["EFI", "EFI/A"])
            .expect_err("file and folder")
            .contains("a file and a folder")
    );
    let said = laid_out(&["EFI/OC/what?.efi"]).expect_err("question mark");
    assert!(
        said.starts_with("template file \"EFI/OC/what?.efi\": a name on FAT holds no control character"),
        "{said}"
    );
}

#[test]
fn a_template_that_does_not_fit_is_refused_with_both_numbers_and_one_that_just_fits_ends_before_the_table() {
    let there = 97_600;
    let files = |clusters: usize| {
        vec![
            ("EFI/a".to_owned(), pattern(16)),
            ("EFI/b".to_owned(), vec![1; clusters * 4096]),
        ]
    };
    let uuid = "6F0C1D1E-0000-4000-8000-00000000B001";
    let error = lay_out(files(there + 1), uuid).expect_err("full");
    let FatError::Full { needed, there } = error else {
        panic!("{error}")
    };
    assert!(needed > there && there > 97_000, "{needed} of {there}");
    let most = there as usize - 3;
    assert!(lay_out(files(most + 1), uuid).is_err());
    let extents = lay_out(files(most), uuid).expect("fits");
    let end = extents
        .iter()
        .map(|extent| extent.offset + extent.bytes.len() as u64)
        .max();
    assert_eq!(end, Some(IMAGE_BYTES));
    assert!(
        extents.is_sorted_by(|a, b| a.offset + a.bytes.len() as u64 <= b.offset),
        "nothing overlaps"
    );
}

/// A loop device over a file, detached when this goes.
struct Loop(String);

impl Loop {
    /// `None`, and a word about it, where loop devices cannot be had.
    fn over(file: &Path) -> Option<Self> {
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match attached {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).expect("text").trim().into()))
            }
            other => {
                println!("LEFT OUT: no loop device, so writing to a block device is not tried: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(
            detached.is_ok_and(|status| status.success()),
            "{} stays attached",
            self.0
        );
    }
}

#[test]
fn on_a_block_device_every_byte_is_written_whatever_lay_there() {
    let mut world = World::new();
    let as_file = build(&world.order).expect("built");
    let backing = world.folder.path().join("backing");
    let mut file = File::create(&backing).expect("file");
    file.set_len(IMAGE_BYTES + (8 << 20)).expect("length");
    for at in [0, 5 << 20, 200 << 20, IMAGE_BYTES - 4096] {
        file.seek(SeekFrom::Start(at)).expect("seek");
        file.write_all(&[0xA5; 8192]).expect("write");
    }
    drop(file);
    let Some(device) = Loop::over(&backing) else { return };
    world.order.output = device.0.clone().into();
    assert_eq!(build(&world.order).expect("built"), as_file);
    drop(device);
    let written = fs::read(&backing).expect("file");
    let (image, rest) = written.split_at(IMAGE_BYTES as usize);
    assert_eq!(dockerios_bootdisk::template::digest(image), as_file);
    assert_eq!(rest[..4096], [0xA5; 4096], "what lies behind the image is not touched");
}

#[test]
fn a_block_device_that_is_too_small_is_refused_with_both_sizes_and_left_alone() {
    let mut world = World::new();
    let backing = world.folder.path().join("backing");
    fs::write(&backing, vec![0xA5; 1 << 20]).expect("file");
    let Some(device) = Loop::over(&backing) else { return };
    world.order.output = device.0.clone().into();
    let said = build(&world.order).expect_err("small").to_string();
    assert!(
        said.contains("has 1048576 bytes and the image takes 402653184"),
        "{said}"
    );
    drop(device);
    assert!(fs::read(&backing).expect("file").iter().all(|&byte| byte == 0xA5));
}
