//! What the tools of macOS print, read: pure.
//!
//! A fact that is not in what was printed is an error that names what was sought, never a default.

use std::io;
use std::net::IpAddr;

use plist::Value;

/// The names that [`sysctl`] reads the values of, in this order: `sysctl -n NAME…` prints a line for each.
pub const SYSCTLS: [&str; 5] =
    ["hw.model", "machdep.cpu.brand_string", "hw.physicalcpu", "hw.memsize", "kern.bootsessionuuid"];

/// What `sysctl -n` of [`SYSCTLS`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// `Mac16,11`.
    pub model: String,
    /// `Apple M4 Pro`.
    pub chip: String,
    /// Physical cores.
    pub cpu_cores: u32,
    /// Bytes.
    pub memory_bytes: u64,
    /// New at each boot.
    pub boot_id: String,
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn text(printed: &[u8]) -> io::Result<&str> {
    std::str::from_utf8(printed).map_err(|_| wrong("what was printed is no UTF-8"))
}

/// Reads `sysctl -n` of [`SYSCTLS`].
///
/// # Errors
/// When a line is missing or is no number where one is due.
pub fn sysctl(printed: &[u8]) -> io::Result<Sysctl> {
    let lines: Vec<&str> = text(printed)?.lines().map(str::trim).collect();
    let line = |name: &str| {
        let at = SYSCTLS.iter().position(|known| *known == name);
        let found = at.and_then(|at| lines.get(at)).filter(|line| !line.is_empty());
        found.copied().ok_or_else(|| wrong(format!("sysctl: {name} is missing")))
    };
    let number = |name: &str| line(name)?.parse::<u64>().map_err(|_| wrong(format!("sysctl: {name} is no number")));
    let model = line("hw.model")?.to_owned();
    let cores = number("hw.physicalcpu")?;
    Ok(Sysctl {
        model,
        chip: line("machdep.cpu.brand_string")?.to_owned(),
        cpu_cores: u32::try_from(cores).map_err(|_| wrong(format!("sysctl: {cores} cores")))?,
        memory_bytes: number("hw.memsize")?,
        boot_id: line("kern.bootsessionuuid")?.to_owned(),
    })
}

/// The serial in `ioreg -a -r -d 1 -c IOPlatformExpertDevice`, in capitals.
///
/// # Errors
/// When there is none.
pub fn serial(printed: &[u8]) -> io::Result<String> {
    let tree = plist(printed, "ioreg")?;
    let devices = tree.as_array().ok_or_else(|| wrong("ioreg: no list of devices"))?;
    let serial = devices.iter().find_map(|device| device.as_dictionary()?.get("IOPlatformSerialNumber")?.as_string());
    let serial = serial.map(str::trim).filter(|serial| !serial.is_empty());
    serial.map(str::to_ascii_uppercase).ok_or_else(|| wrong("ioreg: no IOPlatformSerialNumber"))
}

/// The device in `df -P DIR`, `/dev/disk3s5`.
///
/// # Errors
/// When there is none.
pub fn device(printed: &[u8]) -> io::Result<String> {
    let device = text(printed)?.lines().nth(1).and_then(|line| line.split_whitespace().next());
    let device = device.filter(|device| device.starts_with("/dev/disk"));
    device.map(str::to_owned).ok_or_else(|| wrong("df: no device; the state directory must lie on a disk of this Mac"))
}

/// The physical disk under a volume: from `diskutil info -plist VOLUME`, its first physical store as a whole disk,
/// `disk0`.
///
/// # Errors
/// When the volume is none of APFS.
pub fn physical_disk(printed: &[u8]) -> io::Result<String> {
    let tree = plist(printed, "diskutil")?;
    let stores = tree.as_dictionary().and_then(|volume| volume.get("APFSPhysicalStores")?.as_array());
    let store = stores.and_then(|stores| stores.first()?.as_dictionary()?.get("APFSPhysicalStore")?.as_string());
    let store = store.ok_or_else(|| wrong("diskutil: the state directory is on no APFS volume"))?;
    let digits = store.strip_prefix("disk").map(|rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    match digits {
        Some(digits @ 1..) => Ok(store[.."disk".len() + digits].to_owned()),
        _ => Err(wrong(format!("diskutil: {store:?} is no part of a disk"))),
    }
}

/// The size of a disk in bytes, from `diskutil info -plist disk0`.
///
/// # Errors
/// When it says none.
pub fn disk_size(printed: &[u8]) -> io::Result<u64> {
    let tree = plist(printed, "diskutil")?;
    let disk = tree.as_dictionary().ok_or_else(|| wrong("diskutil: no dictionary"))?;
    let size = disk.get("Size").or_else(|| disk.get("TotalSize")).and_then(Value::as_unsigned_integer);
    size.filter(|size| *size > 0).ok_or_else(|| wrong("diskutil: no Size"))
}

/// The version in `/System/Library/CoreServices/SystemVersion.plist`.
///
/// # Errors
/// When it says none.
pub fn system_version(bytes: &[u8]) -> io::Result<String> {
    let tree = plist(bytes, "SystemVersion.plist")?;
    let version = tree.as_dictionary().and_then(|about| about.get("ProductVersion")?.as_string());
    version.map(str::to_owned).ok_or_else(|| wrong("SystemVersion.plist: no ProductVersion"))
}

/// The user that logs in by itself, from `/Library/Preferences/com.apple.loginwindow.plist`.
///
/// # Errors
/// When it is no property list.
pub fn auto_login_user(bytes: &[u8]) -> io::Result<Option<String>> {
    let tree = plist(bytes, "com.apple.loginwindow.plist")?;
    let user = tree.as_dictionary().and_then(|settings| settings.get("autoLoginUser")?.as_string());
    Ok(user.filter(|user| !user.is_empty()).map(str::to_owned))
}

/// Whether `codesign -d --entitlements - --xml PROGRAM` grants virtualization. A signature without entitlements prints
/// nothing.
///
/// # Errors
/// When what it prints is no property list.
pub fn entitled(printed: &[u8]) -> io::Result<bool> {
    if printed.trim_ascii().is_empty() {
        return Ok(false);
    }
    let tree = plist(printed, "codesign")?;
    let grants = tree.as_dictionary().ok_or_else(|| wrong("codesign: no dictionary of entitlements"))?;
    Ok(grants.get("com.apple.security.virtualization").and_then(Value::as_boolean) == Some(true))
}

/// The network port of the default route, from `route -n get default`.
pub fn default_port(printed: &[u8]) -> Option<String> {
    let mut lines = text(printed).ok()?.lines();
    lines.find_map(|line| line.trim().strip_prefix("interface:")).map(|port| port.trim().to_owned())
}

/// The speed of a port in bits per second, from `ifconfig PORT`: its `media:` line names the kind of Ethernet in use,
/// `autoselect (10Gbase-T <full-duplex>)`. `None` for a port without a cable, and for radio, whose speed is nothing to
/// rely on.
pub fn link_speed(printed: &[u8]) -> Option<u64> {
    let media = text(printed).ok()?.lines().find_map(|line| line.trim().strip_prefix("media:"))?.to_ascii_lowercase();
    // what is in brackets is in use; without brackets the port was set by hand
    let kind = media.split_once('(').map_or(media.as_str(), |(_, kind)| kind).trim();
    let (rate, _) = kind.split_once("base")?;
    let (digits, unit) = match rate.strip_suffix('g') {
        Some(digits) => (digits, 1e9),
        None => (rate, 1e6),
    };
    let rate: f64 = digits.trim().parse().ok().filter(|rate| (0.0..=1e6).contains(rate))?;
    // at most 1e15, and whole
    Some((rate * unit).round() as u64).filter(|speed| *speed > 0)
}

/// The addresses in `ifconfig PORT` under which others reach it: neither link-local ones nor those that change by
/// themselves.
pub fn addresses(printed: &[u8]) -> Vec<IpAddr> {
    let passing = ["temporary", "deprecated", "tentative", "detached", "duplicated"];
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let kind = words.next().filter(|kind| ["inet", "inet6"].contains(kind));
        let address = kind.and(words.next())?.parse::<IpAddr>().ok()?;
        let local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_loopback(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_loopback(),
        };
        (!local && !words.any(|word| passing.contains(&word))).then_some(address)
    };
    text(printed).map(|text| text.lines().filter_map(address).collect()).unwrap_or_default()
}

fn plist(bytes: &[u8], from: &str) -> io::Result<Value> {
    Value::from_reader(io::Cursor::new(bytes)).map_err(|error| wrong(format!("{from}: {error}")))
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
