//! The files that are applied: the product's own below `deploy/`, the demo's, and those of its samples in which a
//! value is invented here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

const CONFIG: &str = include_str!("../../bootdisk/tests/template/config.plist");
/// The image of the OpenCore template in the sample.
pub(crate) const TEMPLATE: &str = "registry.example.com/dockerios/opencore-template@sha256:74864e7868992d0850fd01300583420d5b9d6b3f87f41f07233b1340d350c226";
/// Its manifest's digest in the sample.
const SAMPLE_SHA: &str = "4581c7edb9e49b019f51f73da06a948b66bae10a897cf7798b2ce0ff989d207c";

/// The product's installation.
pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The YAML files of a folder of the installation; a namespace before what is in it.
pub(crate) fn installed(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = deploy().join(folder);
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort_by_key(|path| (path.file_stem().is_none_or(|stem| stem != "namespace"), path.clone()));
    Ok(files)
}

/// Writes every file that a person sees applied into `folder`.
pub(crate) fn write(folder: &Path, template_sha: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for (name, sample) in [
        ("platform.yaml", "01-platformconfig.yaml"),
        ("image.yaml", "02-macosimage.yaml"),
        ("class.yaml", "04-macosmachineclass.yaml"),
        ("pool.yaml", "06-macosmachinepool.yaml"),
        ("claim.yaml", "07-macosmachineclaim.yaml"),
        ("team.yaml", "08-team.yaml"),
    ] {
        let path = deploy().join("samples").join(sample);
        let mut text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if name == "platform.yaml" {
            ensure!(
                text.contains(SAMPLE_SHA) && text.contains(TEMPLATE),
                "{} has another template than the demo knows",
                path.display()
            );
            text = text.replace(SAMPLE_SHA, template_sha);
        }
        fs::write(folder.join(name), text)?;
    }
    for (name, text) in [
        ("teams.yaml", include_str!("../manifests/teams.yaml")),
        ("identities.yaml", include_str!("../manifests/identities.yaml")),
        ("classes.yaml", include_str!("../manifests/classes.yaml")),
        ("late.yaml", include_str!("../manifests/late.yaml")),
        ("short.yaml", include_str!("../manifests/short.yaml")),
        ("cold.yaml", include_str!("../manifests/cold.yaml")),
        ("eight.yaml", include_str!("../manifests/eight.yaml")),
        ("outside.yaml", include_str!("../manifests/outside.yaml")),
    ] {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// An OpenCore template of invented files; gives the digest of its manifest, which the real builder writes.
pub(crate) fn template(folder: &Path, builder: &Path) -> Result<String> {
    for (name, content) in [
        ("EFI/BOOT/BOOTx64.efi", "MZ stands for OpenCore's loader"),
        ("EFI/OC/OpenCore.efi", "MZ stands for OpenCore"),
        ("EFI/OC/config.plist", CONFIG),
    ] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    let told = Command::new(builder)
        .args(["manifest", "--template"])
        .arg(folder)
        .output()
        .with_context(|| format!("run {}", builder.display()))?;
    ensure!(
        told.status.success(),
        "{} manifest: {}",
        builder.display(),
        String::from_utf8_lossy(&told.stderr).trim()
    );
    fs::write(folder.join("MANIFEST.sha256"), &told.stdout)?;
    let digest = Sha256::digest(&told.stdout);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}
