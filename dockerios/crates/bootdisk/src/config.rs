//! OpenCore's `config.plist`. Invariant: the identity is written where OpenCore reads it and nowhere else; everything
//! else that a machine needs to boot unattended is demanded of the template, never changed behind its author's back.
//!
//! The rules are those of OpenCore's Configuration.pdf.

use std::fmt;

use dockerios_identity::{Fields, Identity};

use crate::plist::{NoDict, Plist, Scalar, SetError, Unreadable, Value};

/// Where the template keeps it.
pub const CONFIG_PATH: &str = "EFI/OC/config.plist";

/// Apple's boot variables.
const BOOT_VARIABLES: &str = "7C436110-AB2A-4BBB-A880-FE41995C9F82";

/// `OC_SCAN_ALLOW_FS_APFS` and `OC_SCAN_ALLOW_DEVICE_NVME`.
const SCAN_APFS_AND_NVME: i128 = 0x100 | 0x8_0000;

/// Keys under NVRAM that would overrule the identity: OpenCore makes these variables itself from PlatformInfo.
const IDENTITY_VARIABLES: [&str; 10] = [
    "ROM",
    "MLB",
    "SSN",
    "HW_ROM",
    "HW_MLB",
    "HW_SSN",
    "system-id",
    "SystemSerialNumber",
    "SystemUUID",
    "SystemProductName",
];

/// The switches that make OpenCore use the identity.
const SWITCHES: [&str; 4] = ["Automatic", "UpdateDataHub", "UpdateNVRAM", "UpdateSMBIOS"];

/// A place in the configuration that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The keys that lead there.
    pub path: String,
    /// What is there.
    pub found: String,
    /// What has to be there, and why.
    pub rule: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "template {CONFIG_PATH}: {} is {}: {}; change it there",
            self.path, self.found, self.rule
        )
    }
}

/// Why a configuration cannot carry an identity.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no property list.
    #[error("template {CONFIG_PATH}: {0}")]
    Unreadable(#[from] Unreadable),
    /// A section is missing.
    #[error("template {CONFIG_PATH}: {0}")]
    NoDict(#[from] NoDict),
    /// It breaks rules: all of them are named.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<Refusal>),
    /// What stands there is no identity.
    #[error(
        "configuration {CONFIG_PATH}: PlatformInfo.Generic holds no valid identity: {0}; build the bootdisk with one"
    )]
    NoIdentity(String),
    /// The edited text does not say what was written. A fault of this program, told instead of shipped.
    #[error("template {CONFIG_PATH}: {0} does not read back as it was written; please report this with the template")]
    ReadBack(String),
}

impl From<SetError> for ConfigError {
    fn from(error: SetError) -> Self {
        match error {
            SetError::NoDict(error) => error.into(),
            SetError::Unreadable(error) => error.into(),
        }
    }
}

/// The configuration with the identity in it, checked before and after.
pub fn personalise(config: &[u8], identity: &Identity) -> Result<Plist, ConfigError> {
    let template = Plist::parse(config)?;
    let mut refused = check_boot(&template)?;
    refused.extend(check_places(&template)?);
    if !refused.is_empty() {
        return Err(ConfigError::Refused(refused));
    }
    let written = write(&template, identity)?;
    read_back(&written, identity)?;
    Ok(written)
}

/// The identity that a configuration holds, all of whose rules are kept.
pub fn identity(config: &Plist) -> Result<Identity, ConfigError> {
    let mut refused = check_boot(config)?;
    refused.extend(check_places(config)?);
    let rom = match rom(config)? {
        Ok(rom) if refused.is_empty() => rom,
        _ => return Err(ConfigError::Refused(refused)),
    };
    let text = |key: &str| match config.get(&["PlatformInfo", "Generic", key]) {
        Ok(Some(Value::String(text))) => text.clone(),
        _ => String::new(),
    };
    let hex = |between: &str| rom.map(|byte| format!("{byte:02x}")).join(between);
    let fields = Fields {
        model: text("SystemProductName"),
        serial: text("SystemSerialNumber"),
        mlb: text("MLB"),
        rom: hex("").to_uppercase(),
        system_uuid: text("SystemUUID"),
        mac_address: hex(":"),
    };
    Identity::try_from(fields).map_err(|refusals| ConfigError::NoIdentity(refusals.to_string()))
}

/// The ROM in PlatformInfo.Generic: six bytes of data, and nothing else passes for them.
pub fn rom(config: &Plist) -> Result<Result<[u8; 6], Refusal>, NoDict> {
    const PATH: [&str; 3] = ["PlatformInfo", "Generic", "ROM"];
    let refuse = |found: String, rule| {
        Err(Refusal {
            path: PATH.join("."),
            found,
            rule,
        })
    };
    Ok(match config.get(&PATH)? {
        None => refuse(
            "missing".into(),
            "has to be there as <data> of 6 bytes; any 6 bytes do as a placeholder",
        ),
        Some(Value::Data(bytes)) => <[u8; 6]>::try_from(bytes.as_slice()).or_else(|_| {
            refuse(
                format!("<data> of {} bytes", bytes.len()),
                "has to be exactly 6 bytes, the MAC address",
            )
        }),
        Some(other) => refuse(
            other.to_string(),
            "has to be of type <data>: OpenCore sets no ROM at all from another type",
        ),
    })
}

/// Whether the places of the identity are there in the right type, and whether nothing overrules them.
pub fn check_places(config: &Plist) -> Result<Vec<Refusal>, NoDict> {
    let mut refused: Vec<Refusal> = rom(config)?.err().into_iter().collect();
    for key in ["SystemProductName", "SystemSerialNumber", "MLB", "SystemUUID"] {
        let path = ["PlatformInfo", "Generic", key];
        match config.get(&path)? {
            Some(Value::String(_)) => {}
            other => refused.push(refusal(
                &path,
                other,
                "has to be a <string>; any text does as a placeholder",
            )),
        }
    }
    for key in SWITCHES {
        let path = ["PlatformInfo", key];
        match config.get(&path)? {
            None | Some(Value::Boolean(_)) => {}
            other => refused.push(refusal(&path, other, "has to be <true/>")),
        }
    }
    if let Some(nvram) = config.get(&["NVRAM"])? {
        overruling(nvram, "NVRAM", &mut refused);
    }
    Ok(refused)
}

fn overruling(value: &Value, path: &str, refused: &mut Vec<Refusal>) {
    match value {
        Value::Dict(entries) => {
            for entry in entries {
                let here = format!("{path}.{}", entry.key);
                if IDENTITY_VARIABLES
                    .iter()
                    .any(|variable| variable.eq_ignore_ascii_case(&entry.key))
                {
                    let rule = "must not be there: it would overrule the identity in PlatformInfo.Generic";
                    refused.push(Refusal {
                        path: here,
                        found: entry.element.value.to_string(),
                        rule,
                    });
                } else {
                    overruling(&entry.element.value, &here, refused);
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                overruling(&item.value, &format!("{path}[{at}]"), refused);
            }
        }
        _ => {}
    }
}

struct Must {
    path: &'static [&'static str],
    holds: fn(&Value) -> bool,
    rule: &'static str,
}

/// What a macOS machine needs to boot without anybody in front of it.
const MUSTS: [Must; 8] = [
    Must {
        path: &["Misc", "Security", "SecureBootModel"],
        holds: |value| *value == Value::String("Disabled".into()),
        rule: "has to be Disabled: virtual machines have no Apple secure boot",
    },
    Must {
        path: &["Misc", "Security", "Vault"],
        holds: |value| *value == Value::String("Optional".into()),
        rule: "has to be Optional: the configuration is changed for each identity and has no vault signature",
    },
    Must {
        path: &["Misc", "Security", "ScanPolicy"],
        holds: |value| match value {
            Value::Integer(policy) => *policy == 0 || policy & SCAN_APFS_AND_NVME == SCAN_APFS_AND_NVME,
            _ => false,
        },
        rule: "has to be 0 or to contain NVMe (0x80000) and APFS (0x100): else the system disk is not found",
    },
    Must {
        path: &["NVRAM", "Add", BOOT_VARIABLES, "csr-active-config"],
        holds: |value| matches!(value, Value::Data(bytes) if bytes.len() == 4),
        rule: "has to be <data> of 4 bytes (AAAAAA== keeps system integrity protection on)",
    },
    Must {
        path: &["Kernel", "Quirks", "SetApfsTrimTimeout"],
        holds: |value| *value == Value::Integer(-1),
        rule: "has to be -1: 0 turns TRIM off, and disks only ever grow",
    },
    Must {
        path: &["Kernel", "Emulate", "DummyPowerManagement"],
        holds: |value| *value == Value::Boolean(true),
        rule: "has to be <true/>: virtual CPUs have no Intel power management",
    },
    Must {
        path: &["Kernel", "Quirks", "ProvideCurrentCpuInfo"],
        holds: |value| *value == Value::Boolean(true),
        rule: "has to be <true/>: the kernel cannot find out the frequencies of virtual CPUs",
    },
    Must {
        path: &["UEFI", "ConnectDrivers"],
        holds: |value| *value == Value::Boolean(true),
        rule: "has to be <true/>: the firmware connects the bootdisk alone, and OpenCore looks for the system disk",
    },
];

/// What else has to stand in the template; every breach is named.
pub fn check_boot(config: &Plist) -> Result<Vec<Refusal>, NoDict> {
    let mut refused = Vec::new();
    for must in &MUSTS {
        let found = config.get(must.path)?;
        if !found.is_some_and(must.holds) {
            refused.push(refusal(must.path, found, must.rule));
        }
    }
    let picker = config.get(&["Misc", "Boot", "ShowPicker"])?;
    let timeout = config.get(&["Misc", "Boot", "Timeout"])?;
    let ends_by_itself = matches!(timeout, Some(Value::Integer(seconds)) if *seconds > 0);
    if picker != Some(&Value::Boolean(false)) && !ends_by_itself {
        let rule = "has to be greater than 0, or ShowPicker <false/>: else the picker waits for ever";
        refused.push(refusal(&["Misc", "Boot", "Timeout"], timeout, rule));
    }
    Ok(refused)
}

fn refusal(path: &[&str], found: Option<&Value>, rule: &'static str) -> Refusal {
    let found = found.map_or_else(|| "missing".to_owned(), ToString::to_string);
    Refusal {
        path: path.join("."),
        found,
        rule,
    }
}

fn write(template: &Plist, identity: &Identity) -> Result<Plist, ConfigError> {
    let mut config = template.clone();
    let rom = identity.rom();
    for (key, value) in places(identity, &rom) {
        config = config.set(&["PlatformInfo", "Generic", key], value)?;
    }
    for key in SWITCHES {
        config = config.set(&["PlatformInfo", key], Scalar::Boolean(true))?;
    }
    Ok(config)
}

fn places<'a>(identity: &'a Identity, rom: &'a [u8; 6]) -> [(&'static str, Scalar<'a>); 5] {
    [
        ("SystemProductName", Scalar::String(identity.model().name)),
        ("SystemSerialNumber", Scalar::String(identity.serial())),
        ("MLB", Scalar::String(identity.mlb())),
        ("ROM", Scalar::Data(rom)),
        ("SystemUUID", Scalar::String(identity.system_uuid())),
    ]
}

fn read_back(config: &Plist, identity: &Identity) -> Result<(), ConfigError> {
    let rom = identity.rom();
    for (key, value) in places(identity, &rom) {
        let path = ["PlatformInfo", "Generic", key];
        let same = match (config.get(&path)?, value) {
            (Some(Value::String(found)), Scalar::String(wanted)) => found == wanted,
            (Some(Value::Data(found)), Scalar::Data(wanted)) => found == wanted,
            _ => false,
        };
        if !same {
            return Err(ConfigError::ReadBack(path.join(".")));
        }
    }
    Ok(())
}
