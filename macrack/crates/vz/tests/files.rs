//! What the files of a VM must be: judged on real ones.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use macrack_vz::configuration::instance;
use macrack_vz::files::{check, temporary_directories};
use macrack_vz::{Configuration, HostLimits};
use macrack_wire::{ErrorClass, VmDescription, VmDir, VmError};
use tempfile::TempDir;

const HOST: HostLimits = HostLimits { cpu_min: 1, cpu_max: 14, memory_min: 0, memory_max: 64 << 30 };

struct Vm {
    root: TempDir,
    dir: PathBuf,
}

impl Vm {
    fn new() -> Vm {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap().join("vm");
        fs::create_dir(&dir).unwrap();
        let vm = Vm { root, dir };
        vm.write("disk.img", 1 << 20, b"");
        vm.write("aux.img", 4096, b"");
        vm
    }

    fn write(&self, name: &str, len: u64, begins: &[u8]) {
        let file = File::create(self.dir.join(name)).unwrap();
        file.set_len(len).unwrap();
        file.write_all_at(begins, 0).unwrap();
    }

    fn configuration(&self, dir: &Path) -> Configuration {
        let description = VmDescription {
            uid: "vm".to_owned(),
            namespace: "ci".to_owned(),
            name: "builder".to_owned(),
            cpu_cores: 4,
            memory_bytes: 8 << 30,
            disk: "disk.img".to_owned(),
            aux: "aux.img".to_owned(),
            hardware_model: Some("YnBsaXN0MDA=".to_owned()),
            machine_identifier: "RUNJRA==".to_owned(),
            mac_address: "02:00:5e:10:00:01".parse().unwrap(),
            display: None,
            first_boot: false,
        };
        instance(&description, &VmDir::new(dir), &HOST).unwrap()
    }

    fn check(&self) -> Result<(), VmError> {
        check(&self.configuration(&self.dir), &[])
    }

    fn refused(&self, class: ErrorClass, words: &str) {
        let error = self.check().unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
}

#[test]
fn whole_raw_files_are_taken() {
    Vm::new().check().unwrap();
}

#[test]
fn a_disk_has_whole_sectors() {
    let vm = Vm::new();
    for len in [0, 1, 511, (1 << 20) + 1] {
        vm.write("disk.img", len, b"");
        vm.refused(ErrorClass::DiskImage, "a multiple of 512");
    }
    vm.write("disk.img", 512, b"");
    vm.check().unwrap();
}

#[test]
fn a_disk_that_is_not_raw_is_none_whoever_has_made_it_so() {
    let vm = Vm::new();
    let formats = [
        (&b"shdw\0\0\0\x01"[..], "an ASIF"),
        (b"QFI\xfb", "a qcow2"),
        (b"KDMV", "a VMDK"),
        (b"vhdxfile", "a VHDX"),
        (b"conectix", "a VHD"),
    ];
    for (begins, name) in formats {
        vm.write("disk.img", 1 << 20, begins);
        vm.refused(ErrorClass::DiskImage, &format!("as {name} image does, and a disk is raw"));
    }
    vm.write("disk.img", 1 << 20, b"");
    let disk = File::options().write(true).open(vm.dir.join("disk.img")).unwrap();
    disk.write_all_at(b"koly", (1 << 20) - 512).unwrap();
    vm.refused(ErrorClass::DiskImage, "a DMG image");
}

#[test]
fn a_path_without_symbolic_links_is_asked_for() {
    let vm = Vm::new();
    let around = vm.root.path().canonicalize().unwrap().join("around");
    symlink(&vm.dir, &around).unwrap();
    let error = check(&vm.configuration(&around), &[]).unwrap_err();
    assert_eq!(error.class, ErrorClass::InvalidConfiguration);
    assert!(error.message.contains(&format!("use {}", vm.dir.join("disk.img").display())), "{error}");

    fs::rename(vm.dir.join("disk.img"), vm.dir.join("other.img")).unwrap();
    symlink("other.img", vm.dir.join("disk.img")).unwrap();
    vm.refused(ErrorClass::InvalidConfiguration, "follows no symbolic links");

    let error = check(&vm.configuration(Path::new("vms/vm")), &[]).unwrap_err();
    assert!(error.message.contains("not an absolute path"), "{error}");
}

#[test]
fn no_disk_lies_where_the_system_tidies_up() {
    let vm = Vm::new();
    let swept = vm.root.path().canonicalize().unwrap();
    let error = check(&vm.configuration(&vm.dir), &[swept]).unwrap_err();
    assert!(error.message.contains("move the state directory"), "{error}");
    let temporary = temporary_directories();
    assert!(temporary.contains(&PathBuf::from("/private/var/folders")), "where macOS keeps TMPDIR");
}

#[test]
fn a_missing_or_empty_file_is_named() {
    let vm = Vm::new();
    vm.write("aux.img", 0, b"");
    vm.refused(ErrorClass::InvalidConfiguration, "the auxiliary storage is empty");
    fs::remove_file(vm.dir.join("aux.img")).unwrap();
    vm.refused(ErrorClass::DiskImage, "aux.img: No such file");
}
