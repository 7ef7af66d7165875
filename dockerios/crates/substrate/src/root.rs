//! The Debian root. Invariant: a root that is absent, half made or too old is a failure with the way out, never a
//! test that passes because it did nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Outcome, Trouble};

/// Names the root, for the tests and for the script that makes it.
pub const VARIABLE: &str = "DOCKERIOS_SUBSTRATE_ROOT";

/// The first libvirt with `bus='nvme'` (libvirt's news of 11.5.0).
pub const OLDEST_LIBVIRT: (u32, u32) = (11, 5);

const WAY_OUT: &str = "run dockerios/ci/substrate-root.sh as root: it makes the root once, in one or two minutes";

/// The folder of the root.
pub fn find() -> Outcome<PathBuf> {
    let root = match std::env::var_os(VARIABLE) {
        Some(named) => PathBuf::from(named),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.build/substrate"),
    };
    // written last: a root without it was not finished
    if !root.join(".recipe").is_file() {
        return Err(Trouble::new(format_args!(
            "{}: no root with libvirt and QEMU is there ({VARIABLE} names another place); {WAY_OUT}",
            root.display()
        )));
    }
    let root = fs::canonicalize(&root).map_err(Trouble::during(root.display()))?;
    if !am_root() {
        return Err(Trouble::new(format_args!(
            "the tests use {} by chroot, which wants root; run them as root",
            root.display()
        )));
    }
    Ok(root)
}

fn am_root() -> bool {
    // the owner of a process's folder in /proc is its effective user
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Refuses a libvirt that does not know NVMe disks; `said` is what `libvirtd --version` says.
pub fn demand_libvirt(said: &str) -> Outcome {
    let words = said.split_whitespace();
    let mut version = words.filter_map(|word| {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    match version.next_back() {
        Some(version) if version >= OLDEST_LIBVIRT => Ok(()),
        Some((major, minor)) => Err(Trouble::new(format_args!(
            "libvirt {major}.{minor} has no bus='nvme', which came with {}.{}; remove the root and {WAY_OUT}",
            OLDEST_LIBVIRT.0, OLDEST_LIBVIRT.1
        ))),
        None => Err(Trouble::new(format_args!("libvirtd says no version: {said:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libvirt_without_nvme_disks_is_refused_by_its_version() {
        for new in ["libvirtd (libvirt) 12.9.0", "libvirtd (libvirt) 11.5.0\n"] {
            assert!(demand_libvirt(new).is_ok(), "{new}");
        }
        for (old, says) in [
            (
                "libvirtd (libvirt) 11.3.0",
                "libvirt 11.3 has no bus='nvme', which came with 11.5",
            ),
            ("libvirtd (libvirt) 9.0.0", "libvirt 9.0 has no"),
            ("sh: libvirtd: not found", "says no version"),
        ] {
            let refused = demand_libvirt(old).expect_err(old).to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
