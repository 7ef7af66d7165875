//! Whether the files that the agent wrote describe a VM: rules without a hypervisor.

use std::fs;
use std::io;
use std::io::ErrorKind::{InvalidData, NotADirectory, NotFound};

use macrack_wire::guest::MAX_SCRIPT;
use macrack_wire::{VmDescription, VmDir, VmError};

const MIB: u64 = 1024 * 1024;

/// The description in `dir`, if it holds the rules. `handed` says that the guest has acknowledged its
/// first-boot script in an earlier run, after which the script is gone.
pub fn load(dir: &VmDir, handed: bool) -> Result<VmDescription, VmError> {
    let description = dir.read_description().map_err(|error| VmError::invalid(error.to_string()))?;
    check(dir, &description)?;
    check_unique(dir, &description)?;
    if description.first_boot && !handed {
        check_script(dir)?;
    }
    Ok(description)
}

fn check(dir: &VmDir, description: &VmDescription) -> Result<(), VmError> {
    let file = dir.description();
    let file = file.display();
    let named = dir.path().file_name().and_then(|name| name.to_str());
    if named != Some(description.uid.as_str()) {
        return Err(VmError::invalid(format!("{file}: uid {:?} is not the name of its directory", description.uid)));
    }
    for (field, name) in [("disk", &description.disk), ("aux", &description.aux)] {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(VmError::invalid(format!(
                "{file}: {field} {name:?} is not the name of a file in this directory"
            )));
        }
    }
    if description.cpu_cores == 0 {
        return Err(VmError::invalid(format!("{file}: cpuCores is 0")));
    }
    if description.memory_bytes == 0 || !description.memory_bytes.is_multiple_of(MIB) {
        return Err(VmError::invalid(format!(
            "{file}: memoryBytes {} is not a multiple of 1 MiB, as VZVirtualMachineConfiguration wants it",
            description.memory_bytes
        )));
    }
    if description.machine_identifier.is_empty() {
        return Err(VmError::invalid(format!("{file}: machineIdentifier is empty")));
    }
    Ok(())
}

/// Two VMs of one Mac that share a machine identifier or an address break each other, so the second is not started.
/// The agent gives each its own; this catches a directory that was copied by hand.
fn check_unique(dir: &VmDir, description: &VmDescription) -> Result<(), VmError> {
    let file = dir.description();
    let file = file.display();
    let unlisted = |error: io::Error| VmError::invalid(format!("{file}: the VMs beside it cannot be listed: {error}"));
    let Some(all) = dir.path().parent() else { return Ok(()) };
    for entry in fs::read_dir(all).map_err(unlisted)? {
        let beside = VmDir::new(entry.map_err(unlisted)?.path());
        if beside.path() == dir.path() {
            continue;
        }
        let other = match beside.read_description() {
            Ok(other) => other,
            // what is not described, or not understood, cannot be started either; what cannot be read may run
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | InvalidData) => continue,
            Err(error) => {
                return Err(VmError::invalid(format!(
                    "{file}: whether it shares its identity with a VM beside it cannot be told: {error}; mend that file, \
                     or delete the instance that it is of"
                )));
            }
        };
        let other_file = beside.description();
        let shared = [
            ("machineIdentifier", other.machine_identifier == description.machine_identifier),
            ("macAddress", other.mac_address == description.mac_address),
        ];
        if let Some((field, _)) = shared.iter().find(|(_, same)| *same) {
            return Err(VmError::invalid(format!(
                "{file}: its {field} is that of {}; two VMs of one Mac never share one: make the instance anew",
                other_file.display()
            )));
        }
    }
    Ok(())
}

fn check_script(dir: &VmDir) -> Result<(), VmError> {
    let path = dir.first_boot();
    let text = fs::read_to_string(&path).map_err(|error| {
        VmError::invalid(format!("{}: {error}; vm.json says firstBoot, so the script must lie there", path.display()))
    })?;
    if text.len() > MAX_SCRIPT {
        return Err(VmError::invalid(format!(
            "{}: {} bytes; a first-boot script has at most {MAX_SCRIPT}",
            path.display(),
            text.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use macrack_wire::{ErrorClass, MacAddress};

    use super::*;

    fn vm(all: &std::path::Path, uid: &str, last: u8) -> VmDir {
        let dir = VmDir::new(all.join(uid));
        fs::create_dir_all(dir.path()).unwrap();
        let description = VmDescription {
            uid: uid.to_owned(),
            namespace: "ci".to_owned(),
            name: uid.to_owned(),
            cpu_cores: 4,
            memory_bytes: 8 << 30,
            disk: "disk.img".to_owned(),
            aux: "aux.img".to_owned(),
            hardware_model: None,
            machine_identifier: format!("identifier {last}"),
            mac_address: MacAddress::locally_administered([2, 0, 0, 0, 0, last]),
            display: None,
            first_boot: false,
        };
        dir.write_description(&description).unwrap();
        dir
    }

    #[test]
    fn two_vms_of_one_mac_never_share_an_identity_and_the_file_of_the_other_is_named() {
        let all = tempfile::tempdir().unwrap();
        let (one, two) = (vm(all.path(), "one", 1), vm(all.path(), "two", 2));
        load(&one, false).unwrap();
        let mine = load(&two, false).unwrap();
        for (field, copied) in [
            ("machineIdentifier", VmDescription { machine_identifier: "identifier 1".to_owned(), ..mine.clone() }),
            ("macAddress", VmDescription { mac_address: "02:00:00:00:00:01".parse().unwrap(), ..mine.clone() }),
        ] {
            two.write_description(&copied).unwrap();
            let refused = load(&two, false).unwrap_err();
            assert_eq!(refused.class, ErrorClass::InvalidConfiguration);
            let words = format!("its {field} is that of {}", one.description().display());
            assert!(refused.message.contains(&words), "{refused}");
        }
        // half made, or not understood: no VM that could run beside it
        fs::remove_file(one.description()).unwrap();
        load(&two, false).unwrap();
        fs::write(one.description(), "{").unwrap();
        load(&two, false).unwrap();
        fs::write(all.path().join("a file"), "").unwrap();
        load(&two, false).unwrap();
        // not to be read, which is not the same
        fs::remove_file(one.description()).unwrap();
        std::os::unix::fs::symlink(one.description(), one.description()).unwrap();
        let refused = load(&two, false).unwrap_err();
        let words = format!("cannot be told: {}", one.description().display());
        assert!(refused.message.contains(&words), "{refused}");
    }
}
