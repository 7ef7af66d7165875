//! From a restore image to a bundle: everything before and after the framework.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::fs;
use std::path::{Path, PathBuf};

use macrack_vz::HostLimits;
use macrack_vz::install::{Progress, Request, Requirements, RestoreImage, explain, finishing, parse_size, percent};
use macrack_wire::classify::VZ_DOMAIN;
use macrack_wire::{BundleDir, BundleMachine, Display, GoldenBundle, VmError};

const HOST: HostLimits = HostLimits { cpu_min: 2, cpu_max: 8, memory_min: 1 << 30, memory_max: 24 << 30 };

fn request(into: &Path) -> Request {
    Request { from: RestoreImage::Latest, into: into.to_owned(), disk_bytes: 120_000_000_000 }
}

fn refused(request: &Request, words: &str) {
    let error = request.check(&[PathBuf::from("/private/tmp")]).unwrap_err();
    assert!(error.message.contains(words), "{error}");
}

#[test]
fn sizes_are_quantities_and_nothing_else() {
    assert_eq!(parse_size("120G"), Ok(120_000_000_000));
    assert_eq!(parse_size("100Gi"), Ok(100 << 30));
    assert_eq!(parse_size("64424509440"), Ok(60 << 30));
    for wrong in ["", "G", "-1G", "+1G", "1.5G", "120GB", "120 G", "99999999999T", "٣G", "0x10"] {
        let refused = parse_size(wrong).unwrap_err();
        assert!(refused.contains("as in 120G"), "{wrong}: {refused}");
    }
}

#[test]
fn what_cannot_become_a_bundle_is_refused_before_anything_is_made() {
    let root = tempfile::tempdir().unwrap();
    let into = root.path().join("tahoe");
    request(&into).check(&[]).unwrap();
    for disk_bytes in [0, 39 << 30, (60 << 30) + 1] {
        refused(&Request { disk_bytes, ..request(&into) }, "--disk-size");
    }
    let missing = RestoreImage::File(root.path().join("none.ipsw"));
    refused(&Request { from: missing, ..request(&into) }, "none.ipsw: No such file");
    let folder = RestoreImage::File(root.path().to_owned());
    refused(&Request { from: folder, ..request(&into) }, "not a file");
    refused(&request(Path::new("/private/tmp/tahoe")), "is lost when the system tidies up");
    fs::create_dir(&into).unwrap();
    request(&into).check(&[]).unwrap();
    fs::write(into.join("disk.img"), "somebody's").unwrap();
    refused(&request(&into), "nothing is overwritten");
}

#[test]
fn apples_newest_is_kept_beside_the_bundle_under_its_own_name() {
    let request = request(Path::new("/Users/admin/tahoe"));
    let kept = request.download("https://updates.cdn-apple.com/x/UniversalMac_26.1_25B78_Restore.ipsw").unwrap();
    assert_eq!(kept, Path::new("/Users/admin/UniversalMac_26.1_25B78_Restore.ipsw"));
    for wrong in ["", "http://a/x.ipsw", "https://a/x.zip", "https://a/..", "https://a/.ipsw", "https://a/a b.ipsw"] {
        let refused = request.download(wrong).unwrap_err();
        assert!(refused.message.contains("give --ipsw a file"), "{wrong}: {refused}");
    }
    assert_eq!("latest".parse(), Ok(RestoreImage::Latest));
    assert_eq!("./latest".parse(), Ok(RestoreImage::File("./latest".into())));
    assert!("".parse::<RestoreImage>().is_err());
}

#[test]
fn the_installing_machine_is_what_image_and_host_ask_for_at_least() {
    let wanted = |cpu_min, memory_min| Requirements {
        os_version: "26.1".to_owned(),
        build: "25B78".to_owned(),
        hardware_model: "YnBsaXN0MDA=".to_owned(),
        cpu_min,
        memory_min,
    };
    assert_eq!(wanted(2, 4 << 30).machine(&HOST).unwrap(), (4, 8 << 30), "macOS freezes with fewer than four");
    assert_eq!(wanted(6, (12 << 30) + 1).machine(&HOST).unwrap(), (6, (12 << 30) + (1 << 20)));
    for (cpus, memory) in [(9, 4 << 30), (4, 25 << 30)] {
        let refused = wanted(cpus, memory).machine(&HOST).unwrap_err();
        assert!(refused.message.contains("use a larger Mac"), "{refused}");
    }
    let said = Progress::Found(wanted(2, 4 << 30)).to_string();
    assert_eq!(said, "macOS 26.1 (25B78), at least 2 cores and 4096 MiB");
}

#[test]
fn progress_is_whole_percent_and_never_goes_back() {
    assert_eq!(percent(0.0, None), Some(0));
    assert_eq!(percent(0.019, Some(0)), Some(1));
    assert_eq!(percent(0.019, Some(1)), None);
    assert_eq!(percent(f64::NAN, Some(1)), None);
    assert_eq!(percent(7.0, Some(99)), Some(100));
}

#[test]
fn every_code_of_the_installer_says_what_to_do() {
    for code in 10_001..=10_007 {
        let said = explain(&VmError::new(VZ_DOMAIN, code, "it failed"));
        assert!(said.starts_with(&format!("it failed (VZErrorDomain code {code}): ")), "{said}");
        assert!(
            said.contains("upgrade") || said.contains("--ipsw") || said.contains("again") || said.contains("IPSW"),
            "{said}"
        );
    }
    assert!(explain(&VmError::new(VZ_DOMAIN, 8, "full")).contains("free space"));
}

#[test]
fn a_bundle_is_read_as_it_was_written_and_is_none_without_its_manifest() {
    let root = tempfile::tempdir().unwrap();
    let bundle = BundleDir::new(root.path());
    assert!(bundle.read().unwrap_err().to_string().contains("bundle.json"));
    let written = GoldenBundle {
        hardware_model: "YnBsaXN0MDA=".to_owned(),
        os_version: "26.1".to_owned(),
        cpu_count_min: 2,
        memory_min: 4 << 30,
        disk_bytes: 120_000_000_000,
        display: None,
    };
    bundle.write(&written).unwrap();
    assert_eq!(bundle.read().unwrap(), written);
    let text = fs::read_to_string(bundle.manifest()).unwrap();
    let refused = finishing(&bundle, &HOST).unwrap_err();
    assert!(refused.message.contains("machine.json"), "without its identity it cannot be booted: {refused}");
    let machine =
        BundleMachine { machine_identifier: "RUNJRA==".to_owned(), mac_address: "02:00:5e:10:00:02".parse().unwrap() };
    bundle.write_machine(&machine).unwrap();
    let finished = finishing(&bundle, &HOST).unwrap();
    assert_eq!((finished.cpu_count, finished.memory_bytes), (4, 8 << 30));
    assert_eq!(finished.display.map(|screen| (screen.width, screen.height)), Some((1920, 1080)));
    let small = GoldenBundle { display: Some(Display { width: 800, height: 600 }), memory_min: 30 << 30, ..written };
    bundle.write(&small).unwrap();
    assert!(finishing(&bundle, &HOST).unwrap_err().message.contains("use a larger Mac"));
    for field in ["hardwareModel", "osVersion", "cpuCountMin", "memoryMin", "diskBytes"] {
        assert!(text.contains(&format!("\"{field}\"")), "{text}");
    }
}
