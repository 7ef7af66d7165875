//! The key that macOS asks of the SMC. Invariant: it has no `Display`, its `Debug` hides it, and no error
//! quotes it; the only way out is the QEMU argument that it belongs in.

use std::{fmt, fs::File, io, path::Path};

use crate::bounded;

/// Length of the key, as QEMU's `isa-applesmc` demands it.
pub const LENGTH: usize = 64;
/// Bytes of the key's file at most: the key and the longest line ending.
pub const LARGEST_FILE: usize = LENGTH + 2;

/// The key: [`LENGTH`] printable ASCII characters without space.
#[derive(Clone)]
pub struct Osk(String);

/// Why a file holds no key. Says lengths and places, never content.
#[derive(Debug)]
pub enum OskError {
    /// The file cannot be read.
    Unreadable(io::Error),
    /// It holds this many bytes, not [`LENGTH`], its last newline not counted.
    Length(usize),
    /// It holds more than [`LARGEST_FILE`]; how much is not looked at.
    Long,
    /// The byte at this offset is no printable ASCII character.
    Character(usize),
}

impl fmt::Display for OskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "the key's file cannot be read: {error}"),
            Self::Length(bytes) => {
                write!(
                    f,
                    "the key's file holds {bytes} bytes, not {LENGTH} (a newline at the end is tolerated)"
                )
            }
            Self::Long => {
                write!(
                    f,
                    "the key's file holds more than {LARGEST_FILE} bytes, not {LENGTH} (a newline at the end is tolerated)"
                )
            }
            Self::Character(offset) => {
                write!(
                    f,
                    "the key's file holds something other than printable ASCII at byte {offset}"
                )
            }
        }
    }
}

impl std::error::Error for OskError {}

impl Osk {
    /// Reads the key from a file: 64 bytes, one line ending tolerated.
    pub fn read(path: &Path) -> Result<Self, OskError> {
        let bytes = File::open(path).and_then(|file| bounded(file, LARGEST_FILE));
        Self::parse(&bytes.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => OskError::Long,
            _ => OskError::Unreadable(error),
        })?)
    }

    /// The key from bytes: 64 of them, one line ending tolerated.
    pub fn parse(bytes: &[u8]) -> Result<Self, OskError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() != LENGTH {
            return Err(OskError::Length(bytes.len()));
        }
        match bytes.iter().position(|byte| !byte.is_ascii_graphic()) {
            Some(offset) => Err(OskError::Character(offset)),
            None => Ok(Self(bytes.iter().map(|byte| char::from(*byte)).collect())),
        }
    }

    /// The key as it stands.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The key as a value inside a QEMU option list, where a comma is written twice.
    pub(crate) fn as_option(&self) -> String {
        self.0.replace(',', ",,")
    }
}

impl fmt::Debug for Osk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Osk(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up() -> String {
        "not-a-key,".repeat(7)[..LENGTH].to_owned()
    }

    #[test]
    fn one_line_ending_is_tolerated_and_no_second_one() {
        for ending in ["", "\n", "\r\n"] {
            assert!(
                Osk::parse(format!("{}{ending}", made_up()).as_bytes()).is_ok(),
                "{ending:?}"
            );
        }
        let twice = Osk::parse(format!("{}\n\n", made_up()).as_bytes()).unwrap_err();
        assert!(matches!(twice, OskError::Length(65)), "{twice}");
    }

    #[test]
    fn wrong_lengths_and_bytes_are_told_without_the_content() {
        let short = Osk::parse(b"short-secret").unwrap_err().to_string();
        assert_eq!(
            short,
            "the key's file holds 12 bytes, not 64 (a newline at the end is tolerated)"
        );
        let mut odd = made_up();
        odd.replace_range(10..11, " ");
        let odd = Osk::parse(odd.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            odd,
            "the key's file holds something other than printable ASCII at byte 10"
        );
    }

    #[test]
    fn debug_hides_the_key_and_an_option_doubles_its_commas() {
        let osk = Osk::parse(made_up().as_bytes()).unwrap();
        assert_eq!(format!("{osk:?}"), "Osk(hidden)");
        assert!(osk.as_option().starts_with("not-a-key,,not-a-key,,"));
    }
}
