//! `kubectl macrack image` as a person runs it, with a real registry and without a cluster.

use std::fs::{self, File};
use std::path::Path;
use std::process::Output;

use anyhow::Result;
use macrack_testkit::{Registry, RegistryOptions, bin};
use macrack_wire::{BundleDir, GoldenBundle};

const GIB: u64 = 1 << 30;

fn macrack(arguments: &[&str]) -> Result<Output> {
    let mut command = std::process::Command::new(bin("kubectl-macrack")?);
    // neither a cluster nor anybody's logins are needed
    command.args(arguments).env("KUBECONFIG", "/nowhere").env("DOCKER_CONFIG", "/nowhere");
    Ok(command.output()?)
}

fn bundle(dir: &Path, disk_bytes: u64) -> Result<BundleDir> {
    let bundle = BundleDir::new(dir.join("bundle"));
    fs::create_dir_all(bundle.path())?;
    File::create(bundle.disk())?.set_len(disk_bytes)?;
    fs::write(bundle.aux(), "aux")?;
    bundle.write(&GoldenBundle {
        hardware_model: "bW9kZWw=".to_owned(),
        os_version: "26.1".to_owned(),
        cpu_count_min: 4,
        memory_min: 4 * GIB,
        disk_bytes,
        display: None,
    })?;
    Ok(bundle)
}

#[tokio::test]
async fn a_bundle_is_pushed_in_seconds_gives_an_image_to_apply_and_is_not_sent_twice() -> Result<()> {
    let registry = Registry::start(RegistryOptions::default()).await?;
    let dir = tempfile::tempdir()?;
    let bundle = bundle(dir.path(), 5 * GIB)?;
    let (path, target) =
        (bundle.path().display().to_string(), format!("{}/golden/tahoe-xcode26:26.1", registry.address()));
    let push = ["image", "push", &path, &target, "--xcode-version", "26.1", "--guest-agent-version", "0.1.0"];
    let pushed = macrack(&push)?;
    let (yaml, said) = (String::from_utf8(pushed.stdout)?, String::from_utf8(pushed.stderr)?);
    assert!(pushed.status.success(), "{said}");
    assert!(said.contains("pushed 5.3 GB of disk as"), "{said}");
    let value = |key: &str| {
        let line = yaml.lines().find_map(|line| line.trim().strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key} in:\n{yaml}")).trim().to_owned()
    };
    assert_eq!((value("kind:"), value("name:")), ("MacOSImage".to_owned(), "tahoe-xcode26".to_owned()));
    assert!(yaml.contains("- {kind: Xcode, version: \"26.1\"}"), "{yaml}");
    let reference = value("image:");
    assert!(reference.starts_with(&format!("{}/golden/tahoe-xcode26@sha256:", registry.address())), "{reference}");

    let shown = String::from_utf8(macrack(&["image", "inspect", &reference])?.stdout)?;
    for line in ["macOS        26.1", "Xcode        26.1", "disk         5.3 GB", "in 20 chunks", "least cores  4"] {
        assert!(shown.contains(line), "{line:?} is not in:\n{shown}");
    }
    let again = macrack(&push)?;
    let said = String::from_utf8(again.stderr)?;
    // another identity each time: the description of the VM alone is new
    assert!(again.status.success() && said.contains("; 0.0 MB were sent, the rest was there"), "{said}");
    Ok(())
}

#[tokio::test]
async fn what_is_no_bundle_or_no_golden_is_refused_with_the_way_out() -> Result<()> {
    let registry = Registry::start(RegistryOptions::default()).await?;
    let dir = tempfile::tempdir()?;
    let bundle = bundle(dir.path(), GIB)?;
    let path = bundle.path().display().to_string();
    let target = format!("{}/golden/tahoe:26.1", registry.address());
    let missing = format!("{}/golden/tahoe@sha256:{}", registry.address(), "ab".repeat(32));
    for (arguments, wanted) in [
        (vec!["image", "push", "/nowhere", &target], "is no bundle: a folder with disk.img, aux.img and bundle.json"),
        (vec!["image", "push", &path, "tahoe"], "registry/path:tag is expected"),
        (vec!["image", "push", &path, &target, "--xcode-version", "26.2b1"], "betas are not sold"),
        (vec!["image", "push", &path, "127.0.0.1:1/golden/tahoe:26.1"], "refused"),
        (vec!["image", "inspect", &missing], "push it, or correct the reference"),
        (vec!["image", "inspect", "ghcr.io/acme/tahoe:latest"], "names no golden"),
    ] {
        let refused = macrack(&arguments)?;
        let said = String::from_utf8(refused.stderr)?;
        assert!(!refused.status.success() && said.contains(wanted), "{arguments:?}: {said}");
    }
    File::options().write(true).open(bundle.disk())?.set_len(GIB + 512)?;
    let said = String::from_utf8(macrack(&["image", "push", &path, &target])?.stderr)?;
    assert!(said.contains("bundle.json says 1073741824: correct diskBytes"), "{said}");
    Ok(())
}
