//! An OpenCore template of invented files, for the real bootdisk builder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

const CONFIG: &str = include_str!("../../bootdisk/tests/template/config.plist");

/// The boot-args in it.
const BOOT_ARGS: &str = "-v keepsyms=1";

/// A folder that stands for the image which holds the template.
pub(crate) struct Template {
    pub(crate) folder: PathBuf,
    /// SHA-256 of its manifest.
    pub(crate) sha256: String,
}

impl Template {
    /// Writes the files below `folder` with those boot-args, and the manifest with the builder's own `manifest`.
    pub(crate) fn write(folder: &Path, builder: &Path, boot_args: &str) -> Result<Template> {
        ensure!(
            CONFIG.matches(BOOT_ARGS).count() == 1,
            "{BOOT_ARGS} stands once in the configuration"
        );
        let config = CONFIG.replace(BOOT_ARGS, boot_args);
        for (name, content) in [
            ("EFI/BOOT/BOOTx64.efi", b"MZ an invented loader".as_slice()),
            ("EFI/OC/OpenCore.efi", b"MZ an invented OpenCore"),
            ("EFI/OC/config.plist", config.as_bytes()),
        ] {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        }
        let output = Command::new(builder)
            .arg("manifest")
            .arg("--template")
            .arg(folder)
            .output()
            .context("run dockerios-bootdisk manifest")?;
        ensure!(
            output.status.success(),
            "dockerios-bootdisk manifest: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::write(folder.join("MANIFEST.sha256"), &output.stdout)?;
        let sha256 = Sha256::digest(&output.stdout)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Template {
            folder: folder.to_owned(),
            sha256,
        })
    }
}
