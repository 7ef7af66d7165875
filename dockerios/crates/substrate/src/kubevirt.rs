//! What KubeVirt does around the hook. Invariant: of a domain only what is named here is changed; the rest stays as the
//! hook or libvirt wrote it, since it is what is judged.

use std::ops::Range;

use roxmltree::{Document, Node};

use crate::{Outcome, Trouble};

const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Empty elements that KubeVirt writes and libvirt's schema has no place for.
const EMPTY: [&str; 3] = ["bios", "baseBoard", "chassis"];

/// The domain as this libvirt can judge it: KubeVirt's own offences against the schema are gone (KubeVirt skips the
/// schema), and so are KVM and the cards that are passed through, which libvirt looks for on the host.
pub fn for_libvirt(domain: &str) -> Outcome<String> {
    let document = parse(domain)?;
    let root = document.root_element();
    let mut edits = Vec::new();
    for node in root.descendants().filter(Node::is_element) {
        let empty = node.first_element_child().is_none() && node.text().unwrap_or_default().trim().is_empty();
        let name = node.tag_name().name();
        if empty && (EMPTY.contains(&name) || (name == "entry" && node.attribute("name") == Some("sku"))) {
            edits.push((node.range(), ""));
        }
        if name == "hostdev" {
            edits.push((node.range(), ""));
        }
        let of_disk = node.parent().is_some_and(|parent| parent.has_tag_name("disk"));
        if name == "source" && of_disk {
            remove_attribute(node, "name", &mut edits);
        }
    }
    if let Some(kind) = root.attributes().find(|attribute| attribute.name() == "type")
        && kind.value() == "kvm"
    {
        edits.push((kind.range_value(), "qemu"));
    }
    Ok(apply(domain, edits))
}

/// The domain without what only a host with KVM, huge pages and processors to pin can be asked to convert.
pub fn without_host_parts(domain: &str) -> Outcome<String> {
    let document = parse(domain)?;
    let root = document.root_element();
    let mut edits = Vec::new();
    for node in root.descendants().filter(Node::is_element) {
        match node.tag_name().name() {
            "memoryBacking" | "kvm" | "cputune" | "numatune" => edits.push((node.range(), "")),
            "cpu" => {
                let mode = node.attributes().find(|attribute| attribute.name() == "mode");
                edits.extend(
                    mode.filter(|mode| mode.value() == "host-passthrough")
                        .map(|mode| (mode.range_value(), "maximum")),
                );
            }
            _ => {}
        }
    }
    Ok(apply(domain, edits))
}

/// What KubeVirt's structs lose of a domain between two passes: what they have no field for, and, in every release up
/// to 1.9.0, QEMU's namespace with all that is in it.
pub fn lost_between_passes(domain: &str) -> Outcome<String> {
    let document = parse(domain)?;
    let mut edits = Vec::new();
    for node in document.descendants().filter(Node::is_element) {
        if node.tag_name().namespace() == Some(QEMU) {
            edits.push((node.range(), ""));
        }
        match node.tag_name().name() {
            "driver" => remove_attribute(node, "detect_zeroes", &mut edits),
            "model" => remove_attribute(node, "vendor_id", &mut edits),
            "serial" if node.parent().is_some_and(|parent| parent.has_tag_name("controller")) => {
                edits.push((node.range(), ""));
            }
            _ => {}
        }
    }
    // what lies inside of something that goes, goes with it
    let whole = edits.clone();
    edits.retain(|(range, _)| {
        !whole
            .iter()
            .any(|(outer, _)| outer.start < range.start && range.end <= outer.end)
    });
    let text = apply(domain, edits);
    let declarations = ['"', '\''].map(|quote| format!(" xmlns:qemu={quote}{QEMU}{quote}"));
    Ok(declarations
        .iter()
        .fold(text, |text, declaration| text.replace(declaration, "")))
}

fn parse(domain: &str) -> Outcome<Document<'_>> {
    Document::parse(domain).map_err(Trouble::during("a domain that is no XML"))
}

fn remove_attribute<'a>(node: Node<'a, 'a>, name: &str, edits: &mut Vec<(Range<usize>, &'static str)>) {
    let found = node.attributes().find(|attribute| attribute.name() == name);
    edits.extend(found.map(|attribute| (attribute.range(), "")));
}

fn apply(text: &str, mut edits: Vec<(Range<usize>, &str)>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let mut out = text.to_owned();
    for (range, new) in edits.into_iter().rev() {
        out.replace_range(range, new);
    }
    out
}
