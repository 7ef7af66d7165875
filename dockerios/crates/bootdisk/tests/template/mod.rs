//! A template that looks like OpenCore's, made of invented files, and an identity to go with it.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use dockerios_bootdisk::build::Order;
use dockerios_bootdisk::template::{MANIFEST, digest, manifest};
use dockerios_identity::{Fields, Generator, Identity};

pub const CONFIG: &str = include_str!("config.plist");

/// A folder that goes away with this, with `template/`, `identity.json`, and the order to build `image.raw`.
pub struct World {
    pub folder: tempfile::TempDir,
    pub order: Order,
    pub identity: Identity,
}

pub fn identity(seed: u8) -> Identity {
    Generator::seeded([seed; 32]).mint("iMacPro1,1").expect("valid")
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let identity = identity(5);
        let order = Order {
            template: folder.path().join("template"),
            template_sha256: String::new(),
            identity: folder.path().join("identity.json"),
            output: folder.path().join("image.raw"),
        };
        let mut world = Self {
            folder,
            order,
            identity: identity.clone(),
        };
        world.put("EFI/BOOT/BOOTx64.efi", b"MZ first");
        world.put("EFI/OC/OpenCore.efi", &pattern(700_001));
        world.put("EFI/OC/config.plist", CONFIG.as_bytes());
        world.put("EFI/OC/ACPI/SSDT-EC-USBX-DESKTOP.aml", &pattern(4096));
        world.put("EFI/OC/Drivers/OpenRuntime.efi", &pattern(4097));
        world.put("EFI/OC/Drivers/OpenCanopy.efi", &pattern(1));
        world.put(
            "EFI/OC/Kexts/VirtualSMC.kext/Contents/MacOS/VirtualSMC",
            &pattern(123_456),
        );
        world.put("EFI/OC/Kexts/VirtualSMC.kext/Contents/Info.plist", b"<plist/>");
        world.put(
            "EFI/OC/Resources/Image/Acidanthera/GoldenGate/Überschrift mit Leerzeichen.icns",
            &pattern(9),
        );
        world.put("EFI/OC/Resources/empty", b"");
        for number in 0..150 {
            world.put(
                &format!("EFI/OC/Resources/Audio/OCEFIAudio_{number:03}_a_name_of_several_entries.mp3"),
                b"x",
            );
        }
        world.put("EFI/OC/Tools/SHELL.EFI", b"MZ shell");
        world.seal();
        world.identity_is(&Fields::from(identity));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.order.template.join(name)
    }

    pub fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, content).expect("file");
    }

    /// Writes the manifest anew and orders that template.
    pub fn seal(&mut self) {
        let manifest = manifest(&self.order.template).expect("manifest");
        fs::write(self.path(MANIFEST), &manifest).expect("file");
        self.order.template_sha256 = digest(manifest.as_bytes());
    }

    pub fn identity_is(&self, fields: &Fields) {
        fs::write(&self.order.identity, serde_json::to_string(fields).expect("json")).expect("file");
    }
}

/// Bytes of which no two neighbouring clusters are alike.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 4096 * 31 + at) as u8).collect()
}

pub fn files_below(folder: &Path, prefix: &str) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("folder") {
        let entry = entry.expect("entry");
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.extend(files_below(&entry.path(), &format!("{name}/")));
        } else {
            found.push((name, entry.path()));
        }
    }
    found
}
