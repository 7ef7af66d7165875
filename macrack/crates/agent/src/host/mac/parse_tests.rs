use super::*;

const IOREG: &[u8] = include_bytes!("fixtures/ioreg-platform.plist");
const VOLUME: &[u8] = include_bytes!("fixtures/diskutil-volume.plist");
const DISK: &[u8] = include_bytes!("fixtures/diskutil-disk.plist");
const PORT: &[u8] = include_bytes!("fixtures/ifconfig-en0.txt");
const ENTITLEMENTS: &[u8] = include_bytes!("fixtures/codesign-entitlements.plist");

fn says<T: std::fmt::Debug>(result: io::Result<T>, words: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn the_machine_is_read_line_by_line_and_a_missing_line_is_named() {
    let printed = "Mac16,11\nApple M4 Pro\n14\n68719476736\n6E1B1E58-6C57-4B7B-9C5A-3B8E5B0C2A11\n";
    let read = sysctl(printed.as_bytes()).unwrap();
    assert_eq!((read.model.as_str(), read.chip.as_str()), ("Mac16,11", "Apple M4 Pro"));
    assert_eq!((read.cpu_cores, read.memory_bytes >> 30), (14, 64));
    assert_eq!(read.boot_id, "6E1B1E58-6C57-4B7B-9C5A-3B8E5B0C2A11");
    says(sysctl(b"Mac16,11\nApple M4 Pro\n14\n68719476736\n"), "kern.bootsessionuuid is missing");
    says(sysctl(b"Mac16,11\nApple M4 Pro\nmany\n1\nx\n"), "hw.physicalcpu is no number");
    says(sysctl(b""), "hw.model is missing");
    says(sysctl(b"\xff"), "no UTF-8");
}

#[test]
fn the_serial_is_that_of_the_platform_in_capitals() {
    assert_eq!(serial(IOREG).unwrap(), "H4XK29Q0LW");
    says(serial(b"<plist version=\"1.0\"><array/></plist>"), "no IOPlatformSerialNumber");
    says(serial(b""), "ioreg");
}

#[test]
fn the_disk_is_the_physical_one_under_the_volume_of_the_state_directory() {
    let df = "Filesystem   512-blocks      Used Available Capacity  Mounted on\n\
              /dev/disk3s5 1942402432 600000000 1300000000    32%    /System/Volumes/Data\n";
    assert_eq!(device(df.as_bytes()).unwrap(), "/dev/disk3s5");
    assert_eq!(physical_disk(VOLUME).unwrap(), "disk0");
    assert_eq!(disk_size(DISK).unwrap(), 1_000_555_581_440);
    says(device(b"Filesystem\nnas:/vol 1 1 1 1% /n\n"), "no device");
    says(physical_disk(DISK), "no APFS volume");
    says(disk_size(VOLUME), "no Size");
}

#[test]
fn version_and_auto_login_are_read_and_none_is_not_somebody() {
    let plist = |key: &str, value: &str| {
        format!("<plist version=\"1.0\"><dict><key>{key}</key><string>{value}</string></dict></plist>").into_bytes()
    };
    assert_eq!(system_version(&plist("ProductVersion", "26.1")).unwrap(), "26.1");
    says(system_version(&plist("ProductName", "macOS")), "no ProductVersion");
    assert_eq!(auto_login_user(&plist("autoLoginUser", "macrack")).unwrap().as_deref(), Some("macrack"));
    assert_eq!(auto_login_user(&plist("lastUserName", "macrack")).unwrap(), None);
    assert_eq!(auto_login_user(&plist("autoLoginUser", "")).unwrap(), None);
    says(auto_login_user(b"bplist00"), "com.apple.loginwindow.plist");
}

#[test]
fn only_a_true_entitlement_is_one() {
    assert!(entitled(ENTITLEMENTS).unwrap());
    assert!(!entitled(b"\n").unwrap(), "signed without any");
    let refused = String::from_utf8_lossy(ENTITLEMENTS).replace("<true/>", "<false/>");
    assert!(!entitled(refused.as_bytes()).unwrap());
    says(entitled(b"Executable=/usr/local/bin/macrack-vm"), "codesign");
}

#[test]
fn the_port_is_that_of_the_default_route() {
    let route =
        "   route to: default\ndestination: default\n       mask: default\n    gateway: 10.20.0.1\n  interface: en0\n";
    assert_eq!(default_port(route.as_bytes()).as_deref(), Some("en0"));
    assert_eq!(default_port(b"route: writing to routing socket: not in table\n"), None);
}

#[test]
fn the_speed_is_read_from_the_kind_of_ethernet_and_nothing_is_guessed() {
    assert_eq!(link_speed(PORT), Some(10_000_000_000));
    for (media, speed) in [
        ("autoselect (10Gbase-T <full-duplex>)", Some(10_000_000_000)),
        ("autoselect (10GbaseT <full-duplex,flow-control>)", Some(10_000_000_000)),
        ("autoselect (5000Base-T <full-duplex>)", Some(5_000_000_000)),
        ("autoselect (2.5GbaseT <full-duplex>)", Some(2_500_000_000)),
        ("autoselect (2500Base-T <full-duplex>)", Some(2_500_000_000)),
        ("1000baseT <full-duplex>", Some(1_000_000_000)),
        ("autoselect (100baseTX <full-duplex>)", Some(100_000_000)),
        ("autoselect (none)", None),
        ("autoselect", None),
        ("autoselect (<unknown type>)", None),
        ("autoselect (-1Gbase-T)", None),
        ("autoselect (1e300Gbase-T)", None),
    ] {
        let printed = format!("en0: flags=8863<UP> mtu 1500\n\tmedia: {media}\n\tstatus: active\n");
        assert_eq!(link_speed(printed.as_bytes()), speed, "{media}");
    }
    assert_eq!(link_speed(b"en1: flags=8863<UP> mtu 1500\n\tstatus: active\n"), None);
}

#[test]
fn addresses_are_those_under_which_others_reach_it() {
    let found: Vec<String> = addresses(PORT).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["2001:db8:20::5", "10.20.0.5"]);
    assert_eq!(addresses(b"\xff"), Vec::<IpAddr>::new());
}
