//! What can be wrong with a property list. Invariant: a fault comes with its place, and its words say the way out.

use std::fmt;

use super::MOST_LEVELS;

/// What is wrong with a property list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It does not fit into what is read at all.
    #[error("the file is larger than 8 MiB; a configuration has some hundred KiB")]
    TooLarge,
    /// Binary property lists are not read.
    #[error("this is a binary property list; convert it with `plutil -convert xml1` or Python's plistlib")]
    Binary,
    /// Only UTF-8 is read.
    #[error("the text is not UTF-8; save it as UTF-8")]
    Encoding,
    /// It is not XML: the old ASCII syntax, a web page, plain text, a truncated file.
    #[error("this is not a well-formed XML property list ({0}); take the file that was meant, whole")]
    NotXml(String),
    /// Entities of its own.
    #[error("the document declares entities; write out what they stand for")]
    Entities,
    /// An element where another one has to be.
    #[error("<{found}> where {wanted} has to be; write the property list as Apple's DTD says")]
    Element {
        /// The element's name.
        found: String,
        /// What should be there.
        wanted: &'static str,
    },
    /// Text between the elements of a dictionary or an array.
    #[error("there is text between elements; put it into a <string> or a comment")]
    StrayText,
    /// An attribute.
    #[error("<{0}> has attributes that property lists do not know; remove them")]
    Attribute(String),
    /// A dictionary ends after a key.
    #[error("this key has no value; write one or remove the key")]
    KeyWithoutValue,
    /// The same key twice.
    #[error("this key stands twice in its dictionary; keep one of the two")]
    DuplicateKey,
    /// Not a number, or one that does not fit.
    #[error("{0:?} is no integer from −2⁶³ to 2⁶⁴−1; write a decimal one or one that begins with 0x")]
    Integer(String),
    /// Not a real number.
    #[error("{0:?} is no real number; write it like 0.5")]
    Real(String),
    /// Not a date.
    #[error("{0:?} is no date; write it like 2026-03-02T09:00:00Z")]
    Date(String),
    /// Not base64.
    #[error("the text of <data> is not base64; encode the bytes, not their hexadecimal digits")]
    Base64,
    /// Nested too deep.
    #[error("the nesting is deeper than {MOST_LEVELS} levels; no configuration needs that")]
    TooDeep,
}

/// A fault and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Line and column, from 1; absent where the file as a whole is meant.
    pub position: Option<(u32, u32)>,
    /// The keys that lead there; empty at the root.
    pub path: String,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.position {
            write!(f, "line {line} column {column}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for Unreadable {}

/// Why a value cannot be reached or set: something on the way to it is missing or no dictionary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: has to be a <dict> and is {found}; restore it from OpenCore's Sample.plist")]
pub struct NoDict {
    /// The keys up to the place.
    pub path: String,
    /// What is there instead.
    pub found: String,
}

/// Why an edit was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// There is no dictionary to write into.
    #[error(transparent)]
    NoDict(#[from] NoDict),
    /// The text with the edit does not read back.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}
