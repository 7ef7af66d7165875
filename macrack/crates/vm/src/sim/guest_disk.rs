//! The directory that stands for a guest's mounted disk: made once per clone, from the golden's
//! manifest, and kept over restarts of the VM as a disk is.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use macrack_guest::simulated::{SIMULATION, Simulation};
use macrack_wire::layout::{read_json, write_json};
use macrack_wire::{MacAddress, VmDescription, VmDir};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    contents: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    kind: String,
    version: String,
    #[serde(default)]
    build: Option<String>,
}

#[derive(Serialize)]
struct SystemVersion<'a> {
    #[serde(rename = "ProductName")]
    name: &'a str,
    #[serde(rename = "ProductVersion")]
    version: &'a str,
    #[serde(rename = "ProductBuildVersion")]
    build: Option<&'a str>,
}

#[derive(Serialize)]
struct BundleVersion<'a> {
    #[serde(rename = "CFBundleShortVersionString")]
    version: &'a str,
    #[serde(rename = "ProductBuildVersion")]
    build: Option<&'a str>,
}

/// Makes the disk if this clone has none yet. A `simulation.json` that lies in `guest-root` already,
/// put there to hold a stage for example, is kept.
pub(super) fn mount(dir: &VmDir, description: &VmDescription, chassis_file: &Path) -> io::Result<()> {
    let root = dir.guest_root();
    let simulation = root.join(SIMULATION);
    fs::create_dir_all(&root)?;
    let mut behaviour = match read_json(&simulation) {
        Ok(behaviour) => behaviour,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Simulation::default(),
        Err(error) => return Err(error),
    };
    behaviour.addresses = vec![leased(description.mac_address)];
    // as Virtualization.framework derives a guest's hardware UUID from it
    behaviour.machine.clone_from(&description.machine_identifier);
    behaviour.faults = Some(chassis_file.to_owned());
    write_json(&simulation, &behaviour)?;

    let manifest: Manifest = match read_json(&dir.manifest()) {
        Ok(manifest) => manifest,
        // a clone without a record of its contents shows no versions
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for content in &manifest.contents {
        let (version, build) = (content.version.as_str(), content.build.as_deref());
        match content.kind.as_str() {
            "macOS" => {
                let name = "macOS";
                put(&root, "System/Library/CoreServices/SystemVersion.plist", &SystemVersion { name, version, build })?;
                put_sw_vers(&root, version)?;
            }
            "Xcode" => put(&root, "Applications/Xcode.app/Contents/version.plist", &BundleVersion { version, build })?,
            _ => {}
        }
    }
    Ok(())
}

/// The tool that every Mac has, as far as a session with a guest is tried out with it.
fn put_sw_vers(root: &Path, version: &str) -> io::Result<()> {
    let tools = root.join("usr/bin");
    fs::create_dir_all(&tools)?;
    let path = tools.join("sw_vers");
    if path.exists() {
        return Ok(());
    }
    // a golden's version is text of ours, and still is no part of the program
    fs::write(tools.join("sw_vers.txt"), format!("ProductName:\t\tmacOS\nProductVersion:\t\t{version}\n"))?;
    fs::write(&path, "#!/bin/sh\nexec cat \"${0%/*}/sw_vers.txt\"\n")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
}

fn put(root: &Path, path: &str, content: &impl Serialize) -> io::Result<()> {
    let path = root.join(path);
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    plist::to_file_xml(&path, content).map_err(io::Error::other)
}

/// The address that the NAT network of a host would lease to this MAC address: 192.168.64.2 to .254, the
/// network of macOS's own shared mode.
fn leased(address: MacAddress) -> IpAddr {
    let text = address.to_string();
    let sum = text.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let host = u8::try_from(sum % 253 + 2).unwrap_or(2);
    IpAddr::V4(Ipv4Addr::new(192, 168, 64, host))
}
