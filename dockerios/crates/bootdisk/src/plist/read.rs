//! From XML to values. Invariant: nothing is guessed and nothing dropped; what Apple's DTD does not allow is a fault.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roxmltree::{Document, Node};

use super::fault::{Fault, Unreadable};
use super::{Element, Entry, MOST_LEVELS, Value};

pub(super) struct Reader<'a, 'input> {
    pub document: &'a Document<'input>,
}

type Xml<'a, 'input> = Node<'a, 'input>;

impl<'a, 'input> Reader<'a, 'input> {
    fn fault<T>(&self, node: Xml<'_, '_>, path: &str, fault: Fault) -> Result<T, Unreadable> {
        let at = self.document.text_pos_at(node.range().start);
        Err(Unreadable {
            position: Some((at.row, at.col)),
            path: path.to_owned(),
            fault,
        })
    }

    pub fn root(&self) -> Result<Element, Unreadable> {
        let plist = self.document.root_element();
        let before = &self.document.input_text()[..plist.range().start];
        let mut prolog = before.to_owned();
        for remark in self.document.root().children().filter(Node::is_comment) {
            let range = remark.range();
            if range.end <= before.len() {
                prolog.replace_range(range.clone(), &" ".repeat(range.len()));
            }
        }
        if prolog.contains("<!ENTITY") {
            return self.fault(plist, "", Fault::Entities);
        }
        if plist.tag_name().name() != "plist" {
            let found = plist.tag_name().name().to_owned();
            return self.fault(
                plist,
                "",
                Fault::Element {
                    found,
                    wanted: "<plist>",
                },
            );
        }
        let known = |name: &str, value: &str| name == "version" && value == "1.0";
        if !plist
            .attributes()
            .all(|attribute| known(attribute.name(), attribute.value()))
        {
            return self.fault(plist, "", Fault::Attribute("plist".into()));
        }
        let inside = self.elements(plist, "")?;
        match inside.as_slice() {
            [dict] if dict.tag_name().name() == "dict" => self.element(*dict, "", 0),
            [other] => self.fault(
                *other,
                "",
                Fault::Element {
                    found: name(*other),
                    wanted: "the root <dict>",
                },
            ),
            _ => self.fault(
                plist,
                "",
                Fault::Element {
                    found: "plist".into(),
                    wanted: "one root <dict> inside it",
                },
            ),
        }
    }

    /// The child elements, provided there is nothing else but space and comments.
    fn elements(&self, node: Xml<'a, 'input>, path: &str) -> Result<Vec<Xml<'a, 'input>>, Unreadable> {
        let mut elements = Vec::new();
        for child in node.children() {
            if child.is_element() {
                elements.push(child);
            } else if child.is_text() && !child.text().unwrap_or_default().trim().is_empty() {
                return self.fault(child, path, Fault::StrayText);
            }
        }
        Ok(elements)
    }

    /// The text inside; comments do not count.
    fn text(&self, node: Xml<'a, 'input>, path: &str) -> Result<String, Unreadable> {
        match node.children().find(Node::is_element) {
            Some(child) => self.fault(
                child,
                path,
                Fault::Element {
                    found: name(child),
                    wanted: "text",
                },
            ),
            None => Ok(node
                .children()
                .filter(Node::is_text)
                .filter_map(|text| text.text())
                .collect()),
        }
    }

    fn element(&self, node: Xml<'a, 'input>, path: &str, level: usize) -> Result<Element, Unreadable> {
        if level > MOST_LEVELS {
            return self.fault(node, path, Fault::TooDeep);
        }
        if node.attributes().len() > 0 || node.tag_name().namespace().is_some() {
            return self.fault(node, path, Fault::Attribute(name(node)));
        }
        let value = match node.tag_name().name() {
            "dict" => Value::Dict(self.dict(node, path, level)?),
            "array" => {
                let items = self.elements(node, path)?.into_iter().enumerate();
                let read = items.map(|(at, item)| self.element(item, &format!("{path}[{at}]"), level + 1));
                Value::Array(read.collect::<Result<_, _>>()?)
            }
            "string" => Value::String(self.text(node, path)?),
            "true" | "false" if node.has_children() => {
                return self.fault(node, path, Fault::StrayText);
            }
            "true" => Value::Boolean(true),
            "false" => Value::Boolean(false),
            kind @ ("integer" | "real" | "date" | "data") => {
                let text = self.text(node, path)?;
                scalar(kind, &text).or_else(|fault| self.fault(node, path, fault))?
            }
            _ => {
                return self.fault(
                    node,
                    path,
                    Fault::Element {
                        found: name(node),
                        wanted: "a value",
                    },
                );
            }
        };
        Ok(Element {
            value,
            span: node.range(),
        })
    }

    fn dict(&self, node: Xml<'a, 'input>, path: &str, level: usize) -> Result<Vec<Entry>, Unreadable> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut elements = self.elements(node, path)?.into_iter();
        while let Some(key_node) = elements.next() {
            if key_node.tag_name().name() != "key" {
                return self.fault(
                    key_node,
                    path,
                    Fault::Element {
                        found: name(key_node),
                        wanted: "a <key>",
                    },
                );
            }
            let key = self.text(key_node, path)?;
            let here = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            if !seen.insert(key.clone()) {
                return self.fault(key_node, &here, Fault::DuplicateKey);
            }
            let value = match elements.next() {
                Some(value) if value.tag_name().name() != "key" => self.element(value, &here, level + 1)?,
                _ => return self.fault(key_node, &here, Fault::KeyWithoutValue),
            };
            entries.push(Entry {
                key,
                element: value,
                key_at: key_node.range().start,
            });
        }
        Ok(entries)
    }
}

fn name(node: Xml<'_, '_>) -> String {
    node.tag_name().name().to_owned()
}

fn scalar(kind: &str, text: &str) -> Result<Value, Fault> {
    let trimmed = text.trim();
    let cut = || trimmed.chars().take(64).collect::<String>();
    match kind {
        "integer" => integer(trimmed)
            .map(Value::Integer)
            .ok_or_else(|| Fault::Integer(cut())),
        "real" if trimmed.parse::<f64>().is_ok() => Ok(Value::Real(trimmed.to_owned())),
        "real" => Err(Fault::Real(cut())),
        "date" if is_date(trimmed) => Ok(Value::Date(trimmed.to_owned())),
        "date" => Err(Fault::Date(cut())),
        _ => {
            let compact: String = text
                .chars()
                .filter(|character| !character.is_ascii_whitespace())
                .collect();
            STANDARD.decode(compact).map(Value::Data).map_err(|_| Fault::Base64)
        }
    }
}

fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (digits, 10),
    };
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    let size = i128::from_str_radix(digits, radix).ok()?;
    let number = if negative { -size } else { size };
    (i128::from(i64::MIN)..=i128::from(u64::MAX))
        .contains(&number)
        .then_some(number)
}

/// `YYYY-MM-DDTHH:MM:SSZ`, the only form that Apple's DTD describes.
fn is_date(text: &str) -> bool {
    let form = b"dddd-dd-ddTdd:dd:ddZ";
    let fits = |(byte, wanted): (u8, &u8)| {
        if *wanted == b'd' {
            byte.is_ascii_digit()
        } else {
            byte == *wanted
        }
    };
    let number = |range: Range<usize>| {
        text.get(range)
            .and_then(|digits| digits.parse::<u8>().ok())
            .unwrap_or(u8::MAX)
    };
    text.len() == form.len()
        && text.bytes().zip(form).all(fits)
        && (1..=12).contains(&number(5..7))
        && (1..=31).contains(&number(8..10))
        && number(11..13) < 24
        && number(14..16) < 60
        && number(17..19) < 60
}
