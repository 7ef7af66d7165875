//! Ids that a disk needs and that nobody chooses. Invariant: they follow from the identity's UUID and from what they
//! are for, so the same identity gives the same image, and two identities share none.

use sha2::{Digest, Sha256};

/// A GUID in the byte order of GPT.
pub type Guid = [u8; 16];

/// The GUID for that purpose, of version 8 (RFC 9562: a vendor's own scheme).
pub fn derived(system_uuid: &str, purpose: &str) -> Guid {
    let digest = hash(system_uuid, purpose);
    let mut guid = [0; 16];
    guid.copy_from_slice(&digest[..16]);
    // the first three fields are little-endian on disk: the version is in the upper half of byte 7
    guid[7] = guid[7] & 0x0F | 0x80;
    guid[8] = guid[8] & 0x3F | 0x80;
    guid
}

/// The serial number of the FAT volume.
pub fn volume_id(system_uuid: &str) -> u32 {
    let digest = hash(system_uuid, "volume");
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

fn hash(system_uuid: &str, purpose: &str) -> [u8; 32] {
    Sha256::digest(format!("dockerios-bootdisk 1\n{purpose}\n{system_uuid}\n")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "6F0C1D1E-0000-4000-8000-00000000B001";
    const OTHER: &str = "6F0C1D1E-0000-4000-8000-00000000B002";

    #[test]
    fn ids_differ_by_identity_and_by_purpose_and_are_of_version_8() {
        let all = [
            derived(ONE, "disk"),
            derived(ONE, "partition"),
            derived(OTHER, "disk"),
            derived(OTHER, "partition"),
        ];
        for (at, guid) in all.iter().enumerate() {
            assert_eq!((guid[7] >> 4, guid[8] >> 6), (8, 0b10));
            assert!(!all[..at].contains(guid));
        }
        assert_ne!(volume_id(ONE), volume_id(OTHER));
    }

    #[test]
    fn ids_are_those_of_the_first_release() {
        let digits: String = derived(ONE, "disk").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            (digits.as_str(), volume_id(ONE)),
            ("6e4ff28f61d4388cbe82cad507844348", 1_968_758_816)
        );
    }
}
