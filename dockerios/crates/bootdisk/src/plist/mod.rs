//! Property lists, read strictly and edited in place. Invariant: an edit changes the bytes of the one value that it
//! names (or adds the one key that was missing); every other byte, comments and order included, stays.
//!
//! Only XML property lists with a dictionary at the root are read. What other readers guess at (the old ASCII syntax,
//! duplicate keys, integers that do not fit) is refused with its place.

use std::fmt;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roxmltree::{Document, ParsingOptions};

mod fault;
mod read;

pub use fault::{Fault, NoDict, SetError, Unreadable};
use read::Reader;

/// A configuration of OpenCore has some thousand lines; this is a hundred times as much.
const MOST_BYTES: usize = 8 << 20;
const MOST_NODES: u32 = 500_000;
const MOST_LEVELS: usize = 64;

/// A property list: its text, and what the text says.
#[derive(Debug, Clone)]
pub struct Plist {
    text: String,
    root: Element,
}

/// A value and the place where it is written. Two elements are equal when their values are.
#[derive(Debug, Clone)]
pub struct Element {
    /// What is written there.
    pub value: Value,
    span: Range<usize>,
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// The value of an element, with the order of dictionaries kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Keys and values in the order in which they are written.
    Dict(Vec<Entry>),
    /// Values in order.
    Array(Vec<Element>),
    /// Text, with entities and CDATA resolved.
    String(String),
    /// An integer from −2⁶³ to 2⁶⁴−1.
    Integer(i128),
    /// A real number as it is written.
    Real(String),
    /// True or false.
    Boolean(bool),
    /// A date as it is written.
    Date(String),
    /// Bytes.
    Data(Vec<u8>),
}

impl Value {
    /// The element name of this type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Dict(_) => "dict",
            Self::Array(_) => "array",
            Self::String(_) => "string",
            Self::Integer(_) => "integer",
            Self::Real(_) => "real",
            Self::Boolean(_) => "boolean",
            Self::Date(_) => "date",
            Self::Data(_) => "data",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(text) => write!(f, "<string> {:?}", text.chars().take(64).collect::<String>()),
            Self::Integer(number) => write!(f, "<integer> {number}"),
            Self::Boolean(truth) => write!(f, "<{truth}/>"),
            Self::Data(bytes) => write!(f, "<data> of {} bytes", bytes.len()),
            other => write!(f, "<{}>", other.kind()),
        }
    }
}

/// A key of a dictionary with its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub element: Element,
    key_at: usize,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.element == other.element
    }
}

/// A value that [`Plist::set`] can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// `<string>`.
    String(&'a str),
    /// `<data>`.
    Data(&'a [u8]),
    /// `<true/>` or `<false/>`.
    Boolean(bool),
}

impl Scalar<'_> {
    fn xml(self) -> String {
        match self {
            Self::String(text) => format!("<string>{}</string>", escaped(text)),
            Self::Data(bytes) => format!("<data>{}</data>", STANDARD.encode(bytes)),
            Self::Boolean(truth) => format!("<{truth}/>"),
        }
    }
}

impl Plist {
    /// Reads a property list.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let whole = |fault| Unreadable {
            position: None,
            path: String::new(),
            fault,
        };
        if bytes.len() > MOST_BYTES {
            return Err(whole(Fault::TooLarge));
        }
        if bytes.starts_with(b"bplist") {
            return Err(whole(Fault::Binary));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| whole(Fault::Encoding))?;
        let options = ParsingOptions {
            allow_dtd: true,
            nodes_limit: MOST_NODES,
            ..ParsingOptions::default()
        };
        let document = Document::parse_with_options(text, options).map_err(|error| Unreadable {
            position: Some((error.pos().row, error.pos().col)),
            path: String::new(),
            fault: Fault::NotXml(error.to_string()),
        })?;
        let reader = Reader { document: &document };
        let root = reader.root()?;
        Ok(Self {
            text: text.to_owned(),
            root,
        })
    }

    /// The text, as it was read or with the edits made.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The dictionary at the root.
    pub fn root(&self) -> &Element {
        &self.root
    }

    /// The value that the keys lead to; `None` where one of them is missing.
    pub fn get(&self, path: &[&str]) -> Result<Option<&Value>, NoDict> {
        let mut here = &self.root;
        for (depth, key) in path.iter().enumerate() {
            let entries = entries(here, &path[..depth])?;
            match entries.iter().find(|entry| entry.key == *key) {
                Some(entry) => here = &entry.element,
                None => return Ok(None),
            }
        }
        Ok(Some(&here.value))
    }

    /// This property list with that value; a missing last key is added at the end of its dictionary. The dictionary
    /// itself has to be there.
    pub fn set(&self, path: &[&str], value: Scalar<'_>) -> Result<Self, SetError> {
        let Some((last, way)) = path.split_last() else {
            return Err(NoDict {
                path: String::new(),
                found: "the root itself".into(),
            }
            .into());
        };
        let mut parent = &self.root;
        for (depth, key) in way.iter().enumerate() {
            let found = entries(parent, &path[..depth])?.iter().find(|entry| entry.key == *key);
            parent = &found
                .ok_or_else(|| NoDict {
                    path: path[..=depth].join("."),
                    found: "missing".into(),
                })?
                .element;
        }
        let entries = entries(parent, way)?;
        let mut text = self.text.clone();
        match entries.iter().find(|entry| entry.key == *last) {
            Some(entry) => text.replace_range(entry.element.span.clone(), &value.xml()),
            None => self.add(&mut text, parent, entries, last, value),
        }
        Ok(Self::parse(text.as_bytes())?)
    }

    fn add(&self, text: &mut String, parent: &Element, entries: &[Entry], key: &str, value: Scalar<'_>) {
        let key = format!("<key>{}</key>", escaped(key));
        let written = &self.text[parent.span.clone()];
        match entries.last() {
            Some(last) => {
                let line = self.text[..last.key_at].rsplit('\n').next().unwrap_or_default();
                let indent = if line.trim().is_empty() {
                    format!("\n{line}")
                } else {
                    String::new()
                };
                text.insert_str(last.element.span.end, &format!("{indent}{key}{indent}{}", value.xml()));
            }
            None if written.ends_with("/>") => {
                text.replace_range(parent.span.clone(), &format!("<dict>{key}{}</dict>", value.xml()));
            }
            None => {
                let close = parent.span.start + written.rfind("</").unwrap_or(written.len());
                text.insert_str(close, &format!("{key}{}", value.xml()));
            }
        }
    }
}

fn entries<'a>(element: &'a Element, path: &[&str]) -> Result<&'a [Entry], NoDict> {
    match &element.value {
        Value::Dict(entries) => Ok(entries),
        other => Err(NoDict {
            path: path.join("."),
            found: other.to_string(),
        }),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
