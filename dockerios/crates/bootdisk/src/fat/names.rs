//! Names on FAT: eleven bytes that are unique in their folder, and long names beside them. Invariant: a name that is
//! a short name already stands alone; every other one has its long form in UTF-16 before it, bound by the checksum.

use std::collections::HashSet;

use super::tree::{Directory, Node};

/// UTF-16 units in one long entry.
const UNITS: usize = 13;
const MOST_UNITS: usize = 255;
const LONG_NAME: u8 = 0x0F;
const LAST: u8 = 0x40;

/// What FAT does not allow in a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// Empty, `.` or `..`.
    #[error("an empty name, `.` and `..` are no names")]
    None,
    /// Longer than 255 units.
    #[error("a name has at most 255 characters (UTF-16 units)")]
    Long,
    /// A forbidden character.
    #[error("a name on FAT holds no control character and none of \\ / : * ? \" < > |")]
    Character,
    /// Trailing dot or space, or a leading space.
    #[error("a name on FAT does not begin with a space and does not end in a space or a dot")]
    Edge,
    /// No unique short name is left.
    #[error("too many names in this folder begin alike")]
    Alike,
}

/// A file or folder with both its names.
#[derive(Debug)]
pub(super) struct Named {
    pub name: String,
    pub short: [u8; 11],
    pub node: Node,
    long: Vec<u16>,
}

impl Named {
    /// How many entries the long name takes.
    pub fn long_entries(&self) -> usize {
        self.long.len().div_ceil(UNITS)
    }

    /// The entries of the long name, last part first, as they stand before the short one.
    pub fn write_long_entries(&self, bytes: &mut Vec<u8>) {
        let checksum = self
            .short
            .iter()
            .fold(0u8, |sum, &byte| sum.rotate_right(1).wrapping_add(byte));
        for (at, part) in self.long.chunks(UNITS).enumerate().rev() {
            // the name ends with a zero unless it fills the entry; the rest is filled with ones
            let mut units = [0xFFFF; UNITS];
            units[..part.len()].copy_from_slice(part);
            if let Some(end) = units.get_mut(part.len()) {
                *end = 0;
            }
            let last = if at + 1 == self.long_entries() { LAST } else { 0 };
            let mut entry = [0; 32];
            entry[0] = (at as u8 + 1) | last;
            entry[11] = LONG_NAME;
            entry[13] = checksum;
            let places = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
            for (place, unit) in places.into_iter().zip(units) {
                entry[place..place + 2].copy_from_slice(&unit.to_le_bytes());
            }
            bytes.extend(entry);
        }
    }
}

/// The entries of a folder with short names that are unique in it. The refused name comes with the fault.
pub(super) fn assign(directory: Directory) -> Result<Vec<Named>, (String, NameFault)> {
    let mut taken: HashSet<[u8; 11]> = directory.entries.values().filter_map(|(name, _)| exact(name)).collect();
    let mut named = Vec::with_capacity(directory.entries.len());
    for (name, node) in directory.entries.into_values() {
        if let Err(fault) = check(&name) {
            return Err((name, fault));
        }
        let (short, long) = match exact(&name) {
            Some(short) => (short, Vec::new()),
            None => match invent(&name, &mut taken) {
                Some(short) => (short, name.encode_utf16().collect()),
                None => return Err((name, NameFault::Alike)),
            },
        };
        named.push(Named {
            name,
            short,
            node,
            long,
        });
    }
    Ok(named)
}

fn check(name: &str) -> Result<(), NameFault> {
    if matches!(name, "" | "." | "..") {
        return Err(NameFault::None);
    }
    if name.encode_utf16().count() > MOST_UNITS {
        return Err(NameFault::Long);
    }
    if name
        .chars()
        .any(|character| character.is_control() || "\\/:*?\"<>|".contains(character))
    {
        return Err(NameFault::Character);
    }
    if name.ends_with(['.', ' ']) || name.starts_with(' ') {
        return Err(NameFault::Edge);
    }
    Ok(())
}

fn is_short(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"$%'-_@~`!(){}^#&".contains(&byte)
}

/// The eleven bytes of a name that is a short one as it stands.
fn exact(name: &str) -> Option<[u8; 11]> {
    let (base, extension) = name.split_once('.').unwrap_or((name, ""));
    let fits = |part: &str, most| part.len() <= most && part.bytes().all(is_short);
    let whole = !base.is_empty() && (name.contains('.') != extension.is_empty());
    (whole && fits(base, 8) && fits(extension, 3)).then(|| joined(base, extension))
}

fn joined(base: &str, extension: &str) -> [u8; 11] {
    let mut short = *b"           ";
    short[..base.len()].copy_from_slice(base.as_bytes());
    short[8..8 + extension.len()].copy_from_slice(extension.as_bytes());
    short
}

/// A short name like `BOOTX6~1.EFI` that nothing in the folder has yet.
fn invent(name: &str, taken: &mut HashSet<[u8; 11]>) -> Option<[u8; 11]> {
    let (base, extension) = match name.rsplit_once('.') {
        Some((base, extension)) if !base.is_empty() => (base, extension),
        _ => (name, ""),
    };
    let reduced = |part: &str| -> String {
        let kept = part.chars().filter(|&character| character != ' ' && character != '.');
        kept.map(|character| {
            u8::try_from(character.to_ascii_uppercase())
                .ok()
                .filter(|&byte| is_short(byte))
        })
        .map(|byte| byte.map_or('_', char::from))
        .collect()
    };
    let (base, mut extension) = (reduced(base), reduced(extension));
    extension.truncate(3);
    (1..1_000_000u32).find_map(|number| {
        let tail = format!("~{number}");
        let kept = &base[..base.len().min(8 - tail.len())];
        let short = joined(&format!("{kept}{tail}"), &extension);
        taken.insert(short).then_some(short)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_short_already_stand_alone() {
        assert_eq!(exact("EFI"), Some(*b"EFI        "));
        assert_eq!(exact("BOOTX64.EFI"), Some(*b"BOOTX64 EFI"));
        for long in [
            "BOOTx64.efi",
            "OpenCore.efi",
            "A.B.C",
            ".HIDDEN",
            "TRAILING.",
            "WITH SPACE",
            "NINECHARS",
            "A.LONG",
            "",
        ] {
            assert_eq!(exact(long), None, "{long}");
        }
    }

    #[test]
    fn names_that_begin_alike_get_different_numbers() {
        let mut taken = HashSet::from([*b"SAMEBE~1KEX"]);
        let mut invented = |name| invent(name, &mut taken).map(|short| String::from_utf8_lossy(&short).into_owned());
        assert_eq!(invented("SameBeginning1.kext"), Some("SAMEBE~2KEX".into()));
        assert_eq!(invented("SameBeginning2.kext"), Some("SAMEBE~3KEX".into()));
        assert_eq!(invented("Grüße und mehr.txt"), Some("GR__EU~1TXT".into()));
        assert_eq!(invented(".contentVisibility"), Some("CONTEN~1   ".into()));
    }

    #[test]
    fn the_tenth_of_a_beginning_gives_up_a_letter_for_the_second_digit() {
        let mut taken = HashSet::new();
        let last = (0..12)
            .filter_map(|number| invent(&format!("beginning {number}"), &mut taken))
            .last();
        assert_eq!(last, Some(*b"BEGIN~12   "));
    }

    #[test]
    fn names_that_fat_cannot_hold_are_refused_for_their_own_reasons() {
        for (name, fault) in [
            ("a:b", NameFault::Character),
            ("a\u{7}", NameFault::Character),
            ("end.", NameFault::Edge),
            (" begin", NameFault::Edge),
            ("..", NameFault::None),
        ] {
            assert_eq!(check(name), Err(fault), "{name:?}");
        }
        assert_eq!(check(&"x".repeat(256)), Err(NameFault::Long));
        assert_eq!(check(&"x".repeat(255)), Ok(()));
    }
}
