use super::*;

fn digest(n: u8) -> String {
    format!("sha256:{}", format!("{n:02x}").repeat(32))
}

fn golden() -> Golden {
    let blob = |n, size| Blob { digest: digest(n), size };
    let chunk =
        |n, offset, raw_size| Chunk { blob: blob(n, 1000), offset, raw_size, raw_digest: Some(digest(n + 100)) };
    Golden {
        image_config: blob(1, 100),
        config: blob(2, 500),
        chunks: vec![chunk(3, 0, MAX_CHUNK), chunk(4, MAX_CHUNK, 4096)],
        nvram: blob(5, 33 << 20),
        disk_bytes: MAX_CHUNK + 4096,
        facts: Facts {
            os_version: Some("26.1".to_owned()),
            xcode_version: Some("26.1.1".to_owned()),
            guest_agent_version: None,
            minimum_host_version: Some("26.0".to_owned()),
        },
    }
}

fn json() -> Value {
    let bytes = golden().write("2026-11-30T09:00:00Z".parse().unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn what_is_written_is_tarts_layout_and_is_read_back() {
    let json = json();
    assert_eq!(Golden::read(json.to_string().as_bytes()).unwrap(), golden());
    let types: Vec<_> = json["layers"].as_array().unwrap().iter().map(|l| l["mediaType"].as_str().unwrap()).collect();
    assert_eq!(types, [CONFIG, DISK, DISK, NVRAM], "the order is Tart's");
    assert_eq!(json["layers"][1]["annotations"][RAW_SIZE], "536870912");
    assert_eq!(json["layers"][1]["annotations"][RAW_DIGEST], digest(103));
    assert_eq!(json["annotations"][DISK_SIZE], "536875008");
    assert_eq!(json["annotations"][UPLOAD_TIME], "2026-11-30T09:00:00Z");
    assert_eq!(json["annotations"][XCODE], "26.1.1");
    assert_eq!(json["annotations"].get(GUEST_AGENT), None, "what is not known is not said");
}

#[test]
fn an_image_of_somebody_elses_that_says_nothing_of_its_contents_is_a_golden_too() {
    let mut json = json();
    json.as_object_mut().unwrap().remove("annotations");
    json.as_object_mut().unwrap().remove("mediaType");
    let read = Golden::read(json.to_string().as_bytes()).unwrap();
    assert_eq!(read.facts, Facts::default());
    assert_eq!(read.disk_bytes, MAX_CHUNK + 4096, "the chunks tell");
}

#[test]
fn a_manifest_that_is_no_golden_is_refused_with_the_reason() {
    type Spoil = fn(&mut Value);
    let cases: [(Spoil, &str); 14] = [
        (|m| m["layers"][2]["mediaType"] = OVERLAY.into(), "ASIF overlays"),
        (|m| m["layers"][2]["mediaType"] = "application/vnd.cirruslabs.tart.disk.v1".into(), "only application/vnd"),
        (|m| m["layers"][2]["mediaType"] = "application/vnd.oci.image.layer.v1.tar".into(), "no macOS golden has"),
        (|m| m["layers"].as_array_mut().unwrap().truncate(3), "no layer application/vnd.cirruslabs.tart.nvram.v1"),
        (|m| m["layers"].as_array_mut().unwrap().retain(|l| l["mediaType"] != DISK), "no disk"),
        (|m| m["layers"][0]["mediaType"] = NVRAM.into(), "no layer application/vnd.cirruslabs.tart.config.v1"),
        (|m| m["layers"][1]["annotations"][RAW_SIZE] = "536870913".into(), "must be 1 to 536870912"),
        (|m| m["layers"][1]["annotations"][RAW_SIZE] = "-1".into(), "must be 1 to"),
        (|m| m["layers"][2]["annotations"][RAW_SIZE] = "4095".into(), "whole sectors of 512"),
        (|m| m["layers"][3]["size"] = 0.into(), "its auxiliary storage is empty"),
        (|m| m["layers"][1]["size"] = (2_u64 << 30).into(), "at most"),
        (|m| m["layers"][1]["digest"] = "sha256:../../etc".into(), "is no sha256 digest"),
        (|m| m["annotations"][DISK_SIZE] = "7".into(), "says 7"),
        (|m| m["mediaType"] = "application/vnd.oci.image.index.v1+json".into(), "take the digest of the image itself"),
    ];
    for (spoil, wanted) in cases {
        let mut json = json();
        spoil(&mut json);
        let error = Golden::read(json.to_string().as_bytes()).unwrap_err();
        assert!(matches!(error, Error::NotAGolden(_)) && error.to_string().contains(wanted), "{wanted}: {error}");
    }
    assert!(Golden::read(b"{}").unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn a_config_is_of_macos_on_a_raw_disk_or_it_is_refused() {
    let new = NewConfig {
        hardware_model: "bW9kZWw=",
        machine_identifier: "ZWNpZA==",
        mac_address: "02:00:00:00:00:01",
        cpu_count_min: 4,
        memory_min: 4 << 30,
        display: (1920, 1080),
    };
    let read = VmConfig::read(&VmConfig::write(&new)).unwrap();
    assert_eq!(
        (read.hardware_model.as_str(), read.cpu_count_min, read.memory_min),
        ("bW9kZWw=", Some(4), Some(4 << 30))
    );
    let old = br#"{"version":1,"hardwareModel":"bQ==","ecid":"ZQ==","cpuCount":4}"#;
    assert_eq!(VmConfig::read(old).unwrap().cpu_count_min, None);
    for (config, wanted) in [
        (r#"{"os":"linux","arch":"arm64"}"#, "os linux"),
        (r#"{"os":"darwin","arch":"arm64","hardwareModel":"bQ==","diskFormat":"asif"}"#, "diskFormat asif"),
        (r#"{"os":"darwin","arch":"arm64"}"#, "no hardwareModel"),
        ("[", "cannot be read"),
    ] {
        assert!(VmConfig::read(config.as_bytes()).unwrap_err().to_string().contains(wanted), "{config}");
    }
    judge_image_config(&image_config()).unwrap();
    judge_image_config(b"{}").unwrap();
    let asif = json!({ "config": { "Labels": { DISK_FORMAT: "asif" } } }).to_string();
    assert!(judge_image_config(asif.as_bytes()).unwrap_err().to_string().contains("only raw is read"));
}
