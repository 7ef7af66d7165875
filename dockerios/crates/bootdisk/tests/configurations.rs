//! What a configuration has to say before an identity goes into it, and what it says afterwards.

mod template;

use dockerios_bootdisk::config::{ConfigError, personalise};
use dockerios_bootdisk::plist::{Plist, Value};
use template::{CONFIG, identity};

/// The refusals, as sentences, once `from` was replaced in a good configuration.
fn refused(from: &str, to: &str) -> Vec<String> {
    assert!(CONFIG.contains(from), "{from}");
    match personalise(CONFIG.replacen(from, to, 1).as_bytes(), &identity(5)) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Refused(refusals)) => refusals.iter().map(ToString::to_string).collect(),
        Err(other) => vec![other.to_string()],
    }
}

/// One refusal, and its beginning.
fn refused_for(from: &str, to: &str, beginning: &str) {
    let said = refused(from, to);
    assert_eq!(said.len(), 1, "{from:?} to {to:?}: {said:?}");
    assert!(
        said[0].starts_with(&format!("template EFI/OC/config.plist: {beginning}")),
        "{}",
        said[0]
    );
}

const VARIABLES: &str = "<key>boot-args</key>";

#[test]
fn the_identity_stands_in_its_five_places_and_the_four_switches_are_on() {
    let identity = identity(5);
    let config = personalise(CONFIG.as_bytes(), &identity).expect("personalised");
    let generic = |key| config.get(&["PlatformInfo", "Generic", key]).expect("dicts").cloned();
    assert_eq!(generic("SystemProductName"), Some(Value::String("iMacPro1,1".into())));
    assert_eq!(
        generic("SystemSerialNumber"),
        Some(Value::String(identity.serial().into()))
    );
    assert_eq!(generic("MLB"), Some(Value::String(identity.mlb().into())));
    assert_eq!(generic("ROM"), Some(Value::Data(identity.rom().to_vec())));
    assert_eq!(
        generic("SystemUUID"),
        Some(Value::String(identity.system_uuid().into()))
    );
    for switch in ["Automatic", "UpdateSMBIOS", "UpdateDataHub", "UpdateNVRAM"] {
        assert_eq!(
            config.get(&["PlatformInfo", switch]),
            Ok(Some(&Value::Boolean(true))),
            "{switch}"
        );
    }
}

#[test]
fn every_line_that_is_not_the_identitys_stays_as_it_was() {
    let config = personalise(CONFIG.as_bytes(), &identity(5)).expect("personalised");
    let before: Vec<_> = CONFIG.lines().collect();
    let after: Vec<_> = config.text().lines().collect();
    // the switch that was missing takes two lines more, at the end of PlatformInfo
    assert_eq!(after.len(), before.len() + 2);
    let kept = before.iter().filter(|line| after.contains(line)).count();
    assert_eq!(before.len() - kept, 6, "five values and Automatic");
    let without = |list: &Plist| match &list.root().value {
        Value::Dict(entries) => entries
            .iter()
            .filter(|entry| entry.key != "PlatformInfo")
            .cloned()
            .collect::<Vec<_>>(),
        other => panic!("{other}"),
    };
    assert_eq!(
        without(&config),
        without(&Plist::parse(CONFIG.as_bytes()).expect("good"))
    );
}

#[test]
fn a_personalised_configuration_can_be_personalised_again() {
    let first = personalise(CONFIG.as_bytes(), &identity(5)).expect("personalised");
    let second = personalise(first.text().as_bytes(), &identity(6)).expect("personalised");
    assert_eq!(
        second.text(),
        personalise(CONFIG.as_bytes(), &identity(6))
            .expect("personalised")
            .text()
    );
}

#[test]
fn identity_variables_under_nvram_are_refused_wherever_they_stand_but_not_in_the_delete_list() {
    let apple = "<key>4D1EDE05-38C7-4A6A-9CC6-4BCCA8B38C14</key>\n<dict><key>ROM</key><data>AgBeEAAB</data></dict>";
    refused_for(
        "<key>7C436110-AB2A-4BBB-A880-FE41995C9F82</key>",
        &format!("{apple}<key>7C436110-AB2A-4BBB-A880-FE41995C9F82</key>"),
        "NVRAM.Add.4D1EDE05-38C7-4A6A-9CC6-4BCCA8B38C14.ROM is <data> of 6 bytes: must not be there",
    );
    for key in [
        "MLB",
        "SSN",
        "HW_ROM",
        "system-id",
        "SystemSerialNumber",
        "SystemUUID",
        "SystemProductName",
        "mlb",
    ] {
        let beginning = format!("NVRAM.Add.7C436110-AB2A-4BBB-A880-FE41995C9F82.{key} is <string> \"x\": must not");
        refused_for(
            VARIABLES,
            &format!("<key>{key}</key><string>x</string>{VARIABLES}"),
            &beginning,
        );
    }
}

#[test]
fn a_loader_that_wants_signatures_or_does_not_look_at_the_disk_is_refused() {
    refused_for(
        "<string>Disabled</string>",
        "<string>Default</string>",
        "Misc.Security.SecureBootModel is <string> \"Default\": has to be Disabled",
    );
    refused_for(
        "<string>Optional</string>",
        "<string>Secure</string>",
        "Misc.Security.Vault is <string> \"Secure\": has to be Optional",
    );
    let scan = |to: &str| {
        refused(
            "<key>ScanPolicy</key>\n\t\t\t<integer>0</integer>",
            &format!("<key>ScanPolicy</key>{to}"),
        )
    };
    assert_eq!(scan("<integer>0x80103</integer>"), Vec::<String>::new());
    for policy in [
        "<integer>256</integer>",
        "<integer>0x80000</integer>",
        "<string>0</string>",
    ] {
        assert!(scan(policy)[0].contains("Misc.Security.ScanPolicy is"), "{policy}");
    }
}

#[test]
fn a_picker_that_waits_for_ever_is_refused() {
    let timeout = "<integer>5</integer>";
    refused_for(
        timeout,
        "<integer>0</integer>",
        "Misc.Boot.Timeout is <integer> 0: has to be greater than 0",
    );
    refused_for(
        timeout,
        "<string>5</string>",
        "Misc.Boot.Timeout is <string> \"5\": has to be greater than 0",
    );
    let hidden = "<key>ShowPicker</key>\n\t\t\t<false/>\n\t\t\t<key>Timeout</key>\n\t\t\t<integer>0</integer>";
    let shown = "<key>ShowPicker</key>\n\t\t\t<true/>\n\t\t\t<key>Timeout</key>\n\t\t\t<integer>5</integer>";
    assert_eq!(refused(shown, hidden), Vec::<String>::new());
}

#[test]
fn quirks_that_a_virtual_mac_needs_are_demanded_and_not_set_in_silence() {
    refused_for(
        "<integer>-1</integer>",
        "<integer>0</integer>",
        "Kernel.Quirks.SetApfsTrimTimeout is <integer> 0: has to be -1",
    );
    refused_for(
        "<key>DummyPowerManagement</key>\n\t\t\t<true/>",
        "<key>DummyPowerManagement</key><false/>",
        "Kernel.Emulate.DummyPowerManagement is <false/>: has to be <true/>",
    );
    refused_for(
        "<key>ProvideCurrentCpuInfo</key>\n\t\t\t<true/>",
        "",
        "Kernel.Quirks.ProvideCurrentCpuInfo is missing: has to be <true/>",
    );
    refused_for(
        "<key>ConnectDrivers</key>\n\t\t<true/>",
        "<key>ConnectDrivers</key><false/>",
        "UEFI.ConnectDrivers is <false/>: has to be <true/>",
    );
    refused_for(
        "<data>AAAAAA==</data>",
        "<data>AAA=</data>",
        "NVRAM.Add.7C436110-AB2A-4BBB-A880-FE41995C9F82.csr-active-config is <data> of 2 bytes: has to be <data> of 4",
    );
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let bare =
        "<plist version=\"1.0\"><dict><key>PlatformInfo</key><dict><key>Generic</key><dict/></dict></dict></plist>";
    let said = personalise(bare.as_bytes(), &identity(5))
        .expect_err("bare")
        .to_string();
    assert_eq!(said.lines().count(), 9 + 5, "{said}");
    assert!(said.lines().all(|line| line.ends_with("; change it there")), "{said}");
}

#[test]
fn a_configuration_without_platforminfo_or_with_another_type_there_is_refused() {
    let said = personalise(CONFIG.replace("PlatformInfo", "Platform").as_bytes(), &identity(5)).expect_err("none");
    assert!(
        said.to_string().contains("PlatformInfo.Generic.ROM is missing"),
        "{said}"
    );
    let text = CONFIG.replacen(
        "<key>Generic</key>",
        "<key>Generic</key><string>x</string><key>Other</key>",
        1,
    );
    let said = personalise(text.as_bytes(), &identity(5))
        .expect_err("string")
        .to_string();
    assert!(
        said.contains("PlatformInfo.Generic: has to be a <dict> and is <string> \"x\""),
        "{said}"
    );
    refused_for(
        "<key>Automatic</key>\n\t\t<false/>",
        "<key>Automatic</key><string>yes</string>",
        "PlatformInfo.Automatic is <string> \"yes\": has to be <true/>",
    );
}
