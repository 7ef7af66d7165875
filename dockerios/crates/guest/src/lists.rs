//! Property lists, in each of their forms: those of bundles and of the system, and what `ioreg -a` prints. Invariant:
//! gives dictionaries that stand in the file, or says why there are none; reads no more than [`LARGEST`] bytes.

use std::{
    fs::File,
    io::{Cursor, Read},
    path::Path,
};

use plist::{Dictionary, Value};

/// No list that is looked at is larger, in bytes: those of Xcode are below 64 KiB.
const LARGEST: u64 = 4 << 20;

/// The dictionary in a file.
///
/// # Errors
/// When there is no such file, or no dictionary in it: with the file's name.
pub fn dictionary(path: &Path) -> Result<Dictionary, String> {
    let said = |why: String| format!("{}: {why}", path.display());
    // a pipe or a device in a bundle that others may write would be read for ever
    let about = path.metadata().map_err(|e| said(e.to_string()))?;
    if !about.is_file() {
        return Err(said("no file".to_owned()));
    }
    let file = File::open(path).map_err(|e| said(e.to_string()))?;
    let mut bytes = Vec::new();
    file.take(LARGEST)
        .read_to_end(&mut bytes)
        .map_err(|e| said(e.to_string()))?;
    let value = parse(&bytes).map_err(said)?;
    value
        .into_dictionary()
        .ok_or_else(|| format!("{}: a property list without a dictionary", path.display()))
}

/// The dictionaries in what `ioreg -a` printed. It prints nothing at all when it found nothing.
///
/// # Errors
/// When this is no array of dictionaries.
pub fn printed(bytes: &[u8]) -> Result<Vec<Dictionary>, String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let all = parse(bytes)?.into_array().ok_or("a property list without an array")?;
    let dictionaries = all.into_iter().map(|one| {
        one.into_dictionary()
            .ok_or_else(|| "an array with something else than dictionaries".to_owned())
    });
    dictionaries.collect()
}

fn parse(bytes: &[u8]) -> Result<Value, String> {
    Value::from_reader(Cursor::new(bytes)).map_err(|e| format!("no property list: {e}"))
}

/// A text in a dictionary; empty ones count as absent.
#[must_use]
pub fn text(dictionary: &Dictionary, key: &str) -> Option<String> {
    let text = dictionary.get(key)?.as_string()?.trim();
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">"#;

    #[test]
    fn a_list_is_read_as_text_and_in_the_binary_form() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut version = Dictionary::new();
        version.insert("CFBundleShortVersionString".into(), Value::from(" 16.4 "));
        version.insert("Empty".into(), Value::from(""));
        version.insert("BuildVersion".into(), Value::from(3));
        for (name, binary) in [("xml.plist", false), ("binary.plist", true)] {
            let (path, value) = (dir.path().join(name), Value::from(version.clone()));
            let written = if binary {
                value.to_file_binary(&path)
            } else {
                value.to_file_xml(&path)
            };
            written.expect("written");
            let read = dictionary(&path).expect(name);
            assert_eq!(text(&read, "CFBundleShortVersionString").as_deref(), Some("16.4"));
            for none in ["Empty", "BuildVersion", "Absent"] {
                assert_eq!(text(&read, none), None, "{name}: {none}");
            }
        }
    }

    #[test]
    fn ioreg_prints_an_array_of_dictionaries_or_nothing() {
        let xml = format!(
            "{HEAD}<array><dict><key>IOPlatformSerialNumber</key><string>ZZTEST000001</string></dict><dict/></array></plist>"
        );
        let all = printed(xml.as_bytes()).expect("an array");
        assert_eq!(text(&all[0], "IOPlatformSerialNumber").as_deref(), Some("ZZTEST000001"));
        assert_eq!((all.len(), printed(b"\n").expect("nothing").len()), (2, 0));
    }

    #[test]
    fn what_is_no_property_list_is_said() {
        let array = format!("{HEAD}<array><string>x</string></array></plist>");
        let text = format!("{HEAD}<string>x</string></plist>");
        for (bytes, why) in [
            ("bplist00", "no property list"),
            ("<html/>", "no property list"),
            (&text, "without an array"),
            (&array, "something else than dictionaries"),
        ] {
            let said = printed(bytes.as_bytes()).expect_err(bytes);
            assert!(said.contains(why), "{bytes}: {said}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let said = dictionary(dir.path()).expect_err("a directory is no list");
        assert!(said.ends_with(": no file"), "{said}");
        let file = dir.path().join("a.plist");
        std::fs::write(&file, &text).expect("written");
        let said = dictionary(&file).expect_err("no dictionary");
        assert!(said.contains("a.plist: a property list without a dictionary"), "{said}");
    }
}
