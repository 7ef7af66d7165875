//! Whether the files that the agent wrote describe a VM: rules without a hypervisor.

use std::fs;

use macrack_wire::classify::{INVALID_DESCRIPTION, MACRACK_DOMAIN};
use macrack_wire::guest::MAX_SCRIPT;
use macrack_wire::{VmDescription, VmDir, VmError};

const MIB: u64 = 1024 * 1024;

/// The description in `dir`, if it holds the rules. `handed` says that the guest has acknowledged its
/// first-boot script in an earlier run, after which the script is gone.
pub fn load(dir: &VmDir, handed: bool) -> Result<VmDescription, VmError> {
    let description = dir.read_description().map_err(|error| invalid(error.to_string()))?;
    check(dir, &description)?;
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
        return Err(invalid(format!("{file}: uid {:?} is not the name of its directory", description.uid)));
    }
    for (field, name) in [("disk", &description.disk), ("aux", &description.aux)] {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(invalid(format!("{file}: {field} {name:?} is not the name of a file in this directory")));
        }
    }
    if description.cpu_cores == 0 {
        return Err(invalid(format!("{file}: cpuCores is 0")));
    }
    if description.memory_bytes == 0 || !description.memory_bytes.is_multiple_of(MIB) {
        return Err(invalid(format!(
            "{file}: memoryBytes {} is not a multiple of 1 MiB, as VZVirtualMachineConfiguration wants it",
            description.memory_bytes
        )));
    }
    if description.machine_identifier.is_empty() {
        return Err(invalid(format!("{file}: machineIdentifier is empty")));
    }
    Ok(())
}

fn check_script(dir: &VmDir) -> Result<(), VmError> {
    let path = dir.first_boot();
    let text = fs::read_to_string(&path).map_err(|error| {
        invalid(format!("{}: {error}; vm.json says firstBoot, so the script must lie there", path.display()))
    })?;
    if text.len() > MAX_SCRIPT {
        return Err(invalid(format!(
            "{}: {} bytes; a first-boot script has at most {MAX_SCRIPT}",
            path.display(),
            text.len()
        )));
    }
    Ok(())
}

/// An error in what the agent wrote.
pub fn invalid(message: String) -> VmError {
    VmError::new(MACRACK_DOMAIN, INVALID_DESCRIPTION, message)
}
