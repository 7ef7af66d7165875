//! The domain as a tree to read. Invariant: elements are found by expanded name, so a prefix never decides;
//! libvirt's own elements have no namespace, and an element of the same name in another one is not theirs.

use roxmltree::{Document, Error, Node, ParsingOptions};

use crate::{Reason, Refusal};

/// An element of the domain.
pub type El<'a> = Node<'a, 'a>;

/// Largest domain that is read. KubeVirt's are below 100 KiB.
const LARGEST: usize = 8 << 20;
/// Most nodes in it.
const MOST_NODES: u32 = 200_000;

/// Parses a domain, without document types and within bounds.
pub fn parse(xml: &str) -> Result<Document<'_>, Refusal> {
    if xml.len() > LARGEST {
        return Err(Refusal::new(
            Reason::DomainUnreadable,
            format_args!("domain XML: {} bytes, more than {LARGEST}", xml.len()),
            "this is no domain of KubeVirt's; hand over the one it made",
        ));
    }
    if let Some(encoding) = declared_encoding(xml)
        && !["utf-8", "us-ascii", "ascii"].contains(&encoding.to_ascii_lowercase().as_str())
    {
        return Err(Refusal::new(
            Reason::DomainUnreadable,
            format_args!("domain XML: declares the encoding {encoding:?} and is read as UTF-8"),
            "hand it over as UTF-8",
        ));
    }
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: MOST_NODES,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(xml, options).map_err(not_parsed)
}

fn not_parsed(error: Error) -> Refusal {
    match error {
        Error::UnknownNamespace(prefix, at) => Refusal::new(
            Reason::UndeclaredPrefix,
            format_args!("domain XML: the namespace prefix {prefix:?} at {at} is not declared"),
            format_args!("declare it on <domain> (xmlns:{prefix}=...), else libvirt drops what it marks in silence"),
        ),
        Error::DtdDetected => Refusal::new(
            Reason::DocumentType,
            "domain XML: has a document type declaration",
            "remove it: domains have none, and its entities could hide content",
        ),
        other => Refusal::new(
            Reason::DomainMalformed,
            format_args!("domain XML: not well-formed: {other}"),
            "hand over the domain as libvirt or KubeVirt wrote it",
        ),
    }
}

fn declared_encoding(xml: &str) -> Option<&str> {
    let declaration = xml.trim_start_matches('\u{feff}').strip_prefix("<?xml")?;
    let declaration = &declaration[..declaration.find("?>")?];
    let value = &declaration[declaration.find("encoding")? + "encoding".len()..];
    let value = value.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    value[1..].split(quote).next()
}

/// Whether this is libvirt's element of that name.
pub fn is(node: El<'_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace().is_none() && node.tag_name().name() == name
}

/// libvirt's child elements of that name.
pub fn children<'a>(parent: El<'a>, name: &'a str) -> impl Iterator<Item = El<'a>> {
    parent.children().filter(move |node| is(*node, name))
}

/// The value of an attribute without namespace.
pub fn attribute<'a>(node: El<'a>, name: &str) -> Option<&'a str> {
    attribute_node(node, name).map(|attribute| attribute.value())
}

/// An attribute without namespace.
pub fn attribute_node<'a>(node: El<'a>, name: &str) -> Option<roxmltree::Attribute<'a, 'a>> {
    node.attributes()
        .find(|attribute| attribute.namespace().is_none() && attribute.name() == name)
}

/// At most one child of that name; `Err` counts them.
pub fn at_most_one<'a>(parent: El<'a>, name: &'a str) -> Result<Option<El<'a>>, usize> {
    let mut found = children(parent, name);
    let first = found.next();
    match found.count() {
        0 => Ok(first),
        more => Err(more + 1),
    }
}

/// The parts of a domain that the hook works on.
#[derive(Clone, Copy)]
pub struct Domain<'a> {
    /// `<domain>`
    pub root: El<'a>,
    /// `<devices>`
    pub devices: El<'a>,
}

impl<'a> Domain<'a> {
    /// Finds them, and demands a q35 machine, which libvirt makes only where it is said: the hotplug switch is a property
    /// of its chipset, and bus 0 is another one elsewhere.
    pub fn of(document: &'a Document<'a>) -> Result<Self, Refusal> {
        let root = document.root_element();
        if !is(root, "domain") {
            return Err(Refusal::new(
                Reason::DomainNotUnderstood,
                format_args!(
                    "domain XML: the root element is {:?}, not libvirt's domain",
                    root.tag_name()
                ),
                "hand over a whole domain",
            ));
        }
        let Ok(Some(devices)) = at_most_one(root, "devices") else {
            return Err(Refusal::new(
                Reason::DomainNotUnderstood,
                "domain XML: <domain> has not exactly one <devices>",
                "hand over the domain as libvirt or KubeVirt wrote it",
            ));
        };
        let machine = children(root, "os")
            .flat_map(|os| children(os, "type"))
            .find_map(|os| attribute(os, "machine"));
        let said = match machine {
            Some(machine) if machine.contains("q35") => return Ok(Self { root, devices }),
            Some(machine) => format!("the machine type is {machine:?}"),
            None => "no machine type is said".to_owned(),
        };
        Err(Refusal::new(
            Reason::DomainNotUnderstood,
            format_args!("domain XML: {said}, and macOS machines are q35"),
            "set spec.template.spec.domain.machine.type: q35",
        ))
    }
}
