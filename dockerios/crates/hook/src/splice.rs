//! The domain as bytes to edit. Invariant: the output is the input with the recorded ranges replaced and not
//! one other byte changed, however quotes, comments, entities or line ends are written.

use std::ops::Range;

use crate::document::{El, attribute_node};

/// Edits of one document, recorded in any order.
pub struct Splices<'a> {
    source: &'a str,
    edits: Vec<(Range<usize>, String)>,
}

impl<'a> Splices<'a> {
    /// No edits of `source`, the text that the tree was parsed from.
    pub fn of(source: &'a str) -> Self {
        Self {
            source,
            edits: Vec::new(),
        }
    }

    /// Sets an attribute to a value, in place when the element has it.
    pub fn set(&mut self, node: El<'_>, name: &str, value: &str) {
        match attribute_node(node, name) {
            Some(attribute) if attribute.value() == value => {}
            Some(attribute) => self.edits.push((attribute.range_value(), escaped(value))),
            None => {
                let at = node.range().start + 1 + self.qualified_name(node).len();
                let edit = (at..at, format!(" {name}=\"{}\"", escaped(value)));
                // two changes may need the same one, a namespace for instance
                if !self.edits.contains(&edit) {
                    self.edits.push(edit);
                }
            }
        }
    }

    /// Removes an attribute and the space before it.
    pub fn unset(&mut self, node: El<'_>, name: &str) {
        if let Some(attribute) = attribute_node(node, name) {
            let range = attribute.range();
            let start = self.source[..range.start].trim_end_matches(XML_SPACE).len();
            self.edits.push((start..range.end, String::new()));
        }
    }

    /// Removes an element and the space before it.
    pub fn remove(&mut self, node: El<'_>) {
        let start = self.source[..node.range().start].trim_end_matches(XML_SPACE).len();
        self.edits.push((start..node.range().end, String::new()));
    }

    /// Puts elements behind a node, each indented as the node is.
    pub fn after(&mut self, node: El<'_>, elements: &[String]) {
        let lead = self.lead(node);
        let text = elements
            .iter()
            .fold(String::new(), |text, element| text + lead + element);
        self.edits.push((node.range().end..node.range().end, text));
    }

    /// Puts elements before a node, each indented as the node is.
    pub fn before(&mut self, node: El<'_>, elements: &[String]) {
        let lead = self.lead(node);
        let text = elements
            .iter()
            .fold(String::new(), |text, element| text + element + lead);
        self.edits.push((node.range().start..node.range().start, text));
    }

    /// Puts elements at the end of a parent, which may be written as an empty tag.
    pub fn append(&mut self, parent: El<'_>, elements: &[String]) {
        if let Some(last) = parent.children().rfind(|child| child.is_element()) {
            return self.after(last, elements);
        }
        self.fill(parent, &elements.concat());
    }

    /// Replaces what an element without child elements holds by this text, which is escaped.
    pub fn text(&mut self, node: El<'_>, text: &str) {
        for child in node.children() {
            self.edits.push((child.range(), String::new()));
        }
        self.fill(node, &escaped(text));
    }

    fn fill(&mut self, node: El<'_>, inner: &str) {
        let range = node.range();
        let whole = &self.source[range.clone()];
        if whole.ends_with("/>") {
            let closed = format!(">{inner}</{}>", self.qualified_name(node));
            self.edits.push((range.end - 2..range.end, closed));
        } else if let Some(close) = whole.rfind("</") {
            self.edits
                .push((range.start + close..range.start + close, inner.to_owned()));
        }
    }

    /// The element's name as it is written, prefix included.
    pub fn qualified_name(&self, node: El<'_>) -> &'a str {
        let name = &self.source[node.range().start + 1..node.range().end];
        name.find(|c: char| c == '/' || c == '>' || XML_SPACE.contains(&c))
            .map_or(name, |end| &name[..end])
    }

    /// The line break and indentation before a node; empty when it stands behind something on its line.
    fn lead(&self, node: El<'_>) -> &'a str {
        let before = &self.source[..node.range().start];
        let space = &before[before.trim_end_matches(XML_SPACE).len()..];
        space.rfind('\n').map_or("", |line| {
            &space[space[..line].strip_suffix('\r').map_or(line, str::len)..]
        })
    }

    /// The edited document; `None` when two edits want the same bytes.
    pub fn apply(mut self) -> Option<String> {
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let added: usize = self.edits.iter().map(|(_, text)| text.len()).sum();
        let (mut out, mut at) = (String::with_capacity(self.source.len() + added), 0);
        for (range, text) in &self.edits {
            out.push_str(self.source.get(at..range.start)?);
            out.push_str(text);
            at = range.end;
        }
        out.push_str(self.source.get(at..)?);
        Some(out)
    }
}

/// What XML calls white space.
const XML_SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// Text that is safe in content and in attribute values of either quote.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' => out.push_str(&format!("&#{};", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    fn edit(source: &str, change: impl FnOnce(&mut Splices, El<'_>)) -> String {
        let document = Document::parse(source).unwrap();
        let mut splices = Splices::of(source);
        change(&mut splices, document.root_element());
        splices.apply().unwrap()
    }

    #[test]
    fn an_attribute_is_set_inside_its_own_quotes_and_added_behind_the_name() {
        assert_eq!(
            edit("<a b='1'  c = \"2\"/>", |s, a| s.set(a, "b", "it's")),
            "<a b='it&apos;s'  c = \"2\"/>"
        );
        assert_eq!(
            edit("<x:a xmlns:x='u'\n/>", |s, a| s.set(a, "b", "<")),
            "<x:a b=\"&lt;\" xmlns:x='u'\n/>"
        );
        assert_eq!(edit("<a b='&#49;'/>", |s, a| s.set(a, "b", "1")), "<a b='&#49;'/>");
    }

    #[test]
    fn an_attribute_that_two_changes_need_is_added_once() {
        let twice = edit("<a/>", |s, a| {
            s.set(a, "b", "1");
            s.set(a, "b", "1");
        });
        assert_eq!(twice, "<a b=\"1\"/>");
    }

    #[test]
    fn neighbouring_attributes_are_removed_without_touching_each_other() {
        let out = edit("<a b='1' c='2' d='3'/>", |s, a| {
            s.unset(a, "c");
            s.unset(a, "b");
        });
        assert_eq!(out, "<a d='3'/>");
    }

    #[test]
    fn elements_are_appended_to_full_childless_and_self_closed_parents() {
        let new = ["<n/>".to_owned(), "<m/>".to_owned()];
        assert_eq!(
            edit("<a>\n  <b/>\n</a>", |s, a| s.append(a, &new)),
            "<a>\n  <b/>\n  <n/>\n  <m/>\n</a>"
        );
        assert_eq!(
            edit("<a><!-- </a> --></a >", |s, a| s.append(a, &new)),
            "<a><!-- </a> --><n/><m/></a >"
        );
        assert_eq!(
            edit("<a b='/>' />", |s, a| s.append(a, &new)),
            "<a b='/>' ><n/><m/></a>"
        );
    }

    #[test]
    fn two_edits_of_the_same_bytes_are_refused() {
        let document = Document::parse("<a b='1'/>").unwrap();
        let mut splices = Splices::of("<a b='1'/>");
        splices.set(document.root_element(), "b", "2");
        splices.unset(document.root_element(), "b");
        assert_eq!(splices.apply(), None);
    }
}
