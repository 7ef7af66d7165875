//! Reads what `plutil` and `ioreg` print: XML property lists. Invariant: gives a string that stands in the document
//! at the named key, or nothing.

use std::collections::HashMap;

/// Keys and string values of the outermost dictionary, or of the first one in an outermost array.
///
/// # Errors
/// When this is no XML property list.
pub fn strings(xml: &str) -> Result<HashMap<String, String>, String> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        nodes_limit: 100_000,
        ..Default::default()
    };
    let document =
        roxmltree::Document::parse_with_options(xml, options).map_err(|e| format!("no property list: {e}"))?;
    let root = document.root_element();
    if !root.has_tag_name("plist") {
        return Err(format!("no property list: begins with <{}>", root.tag_name().name()));
    }
    let dictionary = root
        .first_element_child()
        .and_then(|top| {
            if top.has_tag_name("array") {
                top.first_element_child()
            } else {
                Some(top)
            }
        })
        .filter(|node| node.has_tag_name("dict"))
        .ok_or("no property list: has no dictionary")?;
    let mut found = HashMap::new();
    let mut key = None;
    for node in dictionary.children().filter(roxmltree::Node::is_element) {
        let text = node.text().unwrap_or_default().trim().to_owned();
        match (node.tag_name().name(), key.take()) {
            ("key", _) => key = Some(text),
            ("string", Some(key)) => {
                found.insert(key, text);
            }
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">"#;

    #[test]
    fn the_outermost_dictionary_s_strings_are_read() {
        let xml = format!(
            "{HEAD}<dict><key>BuildVersion</key><integer>3</integer><key>Inner</key><dict><key>A</key><string>no</string>\
             </dict><key>CFBundleShortVersionString</key><string> 16.4 </string><key>Empty</key><string/></dict></plist>"
        );
        let found = strings(&xml).expect("a property list");
        assert_eq!(found.len(), 2);
        assert_eq!(found["CFBundleShortVersionString"], "16.4");
        assert_eq!(found["Empty"], "");
    }

    #[test]
    fn ioreg_prints_an_array_of_dictionaries() {
        let xml = format!(
            "{HEAD}<array><dict><key>IOPlatformSerialNumber</key><string>ZZTEST000001</string></dict></array></plist>"
        );
        assert_eq!(
            strings(&xml).expect("a property list")["IOPlatformSerialNumber"],
            "ZZTEST000001"
        );
    }

    #[test]
    fn what_is_no_property_list_is_said() {
        for (xml, why) in [
            ("", "no property list"),
            ("bplist00", "no property list"),
            ("<html/>", "begins with <html>"),
            ("<plist/>", "has no dictionary"),
            ("<plist><array/></plist>", "has no dictionary"),
            ("<plist><string>x</string></plist>", "has no dictionary"),
            ("<plist><dict><key>a", "no property list"),
        ] {
            let said = strings(xml).expect_err(xml);
            assert!(said.contains(why), "{xml}: {said}");
        }
    }
}
