//! Property lists as people and other programs write them: what is read, what is refused and where, and that an edit
//! changes nothing else.

use dockerios_bootdisk::config::{check_places, rom};
use dockerios_bootdisk::plist::{Fault, Plist, Scalar, Value};

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC \
    \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n";

/// A small configuration with that ROM entry, those boot arguments, and more at the end.
fn config(rom: &str, boot_args: &str, more: &str) -> String {
    format!(
        "{DECLARATION}<plist version=\"1.0\">
<dict>
  <key>PlatformInfo</key>
  <dict>
    <key>Automatic</key><true/>
    <key>UpdateNVRAM</key><true/>
    <key>UpdateSMBIOS</key><true/>
    <key>Generic</key>
    <dict>
      <key>SystemProductName</key><string>iMacPro1,1</string>
      <key>SystemSerialNumber</key><string>ZZTESTSERIAL</string>
      <key>MLB</key><string>ZZTESTMLB00000017</string>
      <key>SystemUUID</key><string>6F0C1D1E-0000-4000-8000-00000000B001</string>
      {rom}
    </dict>
  </dict>
  <key>NVRAM</key>
  <dict>
    <key>Add</key>
    <dict><key>7C436110-AB2A-4BBB-A880-FE41995C9F82</key><dict><key>boot-args</key><string>{boot_args}</string></dict></dict>
    <key>Delete</key>
    <dict><key>4D1EDE05-38C7-4A6A-9CC6-4BCCA8B38C14</key><array><string>ROM</string><string>MLB</string></array></dict>
  </dict>{more}
</dict>
</plist>
"
    )
}

const GOOD_ROM: &str = "<key>ROM</key><data>AgBeEAAB</data>";
const SERIAL: [&str; 3] = ["PlatformInfo", "Generic", "SystemSerialNumber"];

fn plain(more: &str) -> String {
    config(GOOD_ROM, "-v", more)
}

fn parsed(text: &str) -> Plist {
    Plist::parse(text.as_bytes()).expect("a property list")
}

#[test]
fn byte_order_mark_comments_cdata_entities_and_blank_lines_read_and_survive_an_edit_byte_for_byte() {
    let note = "\n  <!-- note -->\n  <key>#Note</key><string><![CDATA[a<b]]> &amp; c</string>";
    let bare = plain("").replace(DECLARATION, "\n\n");
    let amp = config(GOOD_ROM, "-v a=&quot;1&quot; &amp; b=&lt;2&gt;", "");
    for text in [
        plain(""),
        format!("\u{feff}{}", plain("")),
        plain(note),
        amp.clone(),
        bare,
        plain("").replace('\n', "\r\n"),
    ] {
        let edited = parsed(&text)
            .set(&SERIAL, Scalar::String("ZZNEWSERIAL1"))
            .expect("edits");
        assert_eq!(edited.text(), text.replace("ZZTESTSERIAL", "ZZNEWSERIAL1"));
        assert_eq!(
            edited.get(&SERIAL).expect("dicts"),
            Some(&Value::String("ZZNEWSERIAL1".into()))
        );
        let back = edited.set(&SERIAL, Scalar::String("ZZTESTSERIAL")).expect("edits");
        assert_eq!(
            back.root(),
            parsed(&text).root(),
            "every other key, type and order as before"
        );
    }
    let read = |text: &str, path: &[&str]| parsed(text).get(path).expect("dicts").cloned();
    assert_eq!(read(&plain(note), &["#Note"]), Some(Value::String("a<b & c".into())));
    let boot_args = ["NVRAM", "Add", "7C436110-AB2A-4BBB-A880-FE41995C9F82", "boot-args"];
    assert_eq!(read(&amp, &boot_args), Some(Value::String("-v a=\"1\" & b=<2>".into())));
}

#[test]
fn what_is_no_xml_property_list_with_a_dictionary_is_refused_with_its_place() {
    let refused = |text: &str| {
        let error = Plist::parse(text.as_bytes()).expect_err(text);
        (error.position, error.path.clone(), error.fault)
    };
    let not_xml = |text: &str| {
        let (position, _, fault) = refused(text);
        assert!(
            matches!(fault, Fault::NotXml(_)) && position.is_some(),
            "{text}: {fault}"
        );
    };
    not_xml("{ PlatformInfo = { Generic = { MLB = \"x\"; }; }; }");
    not_xml("hello world");
    not_xml("");
    not_xml(&plain("")[..600]);
    not_xml(&format!("{}<plist/>", plain("")));
    let element = |found: &str, wanted| Fault::Element {
        found: found.into(),
        wanted,
    };
    let at = |line, column| Some((line, column));
    assert_eq!(
        refused("<html><body>404</body></html>"),
        (at(1, 1), String::new(), element("html", "<plist>"))
    );
    let array = "<?xml version=\"1.0\"?>\n<plist version=\"1.0\"><array/></plist>";
    assert_eq!(
        refused(array),
        (at(2, 22), String::new(), element("array", "the root <dict>"))
    );
    let two = "<plist><dict/><dict/></plist>";
    assert_eq!(
        refused(two),
        (at(1, 1), String::new(), element("plist", "one root <dict> inside it"))
    );
    let bytes = |bytes: &[u8]| Plist::parse(bytes).expect_err("refused").fault;
    assert_eq!(bytes(b"bplist00p"), Fault::Binary);
    assert_eq!(
        bytes(b"<plist><dict><key>\xff</key><true/></dict></plist>"),
        Fault::Encoding
    );
    assert_eq!(bytes(&vec![b' '; 9 << 20]), Fault::TooLarge);
}

#[test]
fn entities_that_a_document_declares_are_refused_small_or_exploding() {
    let bomb = "<?xml version=\"1.0\"?>\n<!DOCTYPE plist [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>\n\
                <plist version=\"1.0\"><dict><key>&b;</key><true/></dict></plist>";
    assert_eq!(Plist::parse(bomb.as_bytes()).expect_err("bomb").fault, Fault::Entities);
    let mut declared = String::from("<!ENTITY e0 \"xxxxxxxxxx\">");
    for level in 1..30 {
        let inside = format!("&e{};", level - 1).repeat(10);
        declared += &format!("<!ENTITY e{level} \"{inside}\">");
    }
    let laughs = format!("<!DOCTYPE plist [{declared}]><plist><dict><key>&e29;</key><true/></dict></plist>");
    let error = Plist::parse(laughs.as_bytes()).expect_err("bomb");
    assert!(matches!(error.fault, Fault::NotXml(_) | Fault::Entities), "{error}");
    let remark = format!(
        "<?xml version=\"1.0\"?><!-- no <!ENTITY here -->{}",
        plain("").replace(DECLARATION, "")
    );
    assert!(Plist::parse(remark.as_bytes()).is_ok(), "a comment declares nothing");
}

#[test]
fn duplicate_keys_lonely_keys_and_misplaced_things_are_refused_with_the_keys_that_lead_there() {
    for (more, path, fault) in [
        ("<key>NVRAM</key><dict/>", "NVRAM", Fault::DuplicateKey),
        ("<key>Lonely</key>", "Lonely", Fault::KeyWithoutValue),
        ("<key>A</key><key>B</key><true/>", "A", Fault::KeyWithoutValue),
        (
            "<true/>",
            "",
            Fault::Element {
                found: "true".into(),
                wanted: "a <key>",
            },
        ),
        ("stray", "", Fault::StrayText),
        ("<key>A</key><array>stray<true/></array>", "A", Fault::StrayText),
        (
            "<key>A</key><array><integer>1</integer><integer>x</integer></array>",
            "A[1]",
            Fault::Integer("x".into()),
        ),
        (
            "<key>A</key><dict><key>B</key><set/></dict>",
            "A.B",
            Fault::Element {
                found: "set".into(),
                wanted: "a value",
            },
        ),
        (
            "<key>A</key><string>a<b/>c</string>",
            "A",
            Fault::Element {
                found: "b".into(),
                wanted: "text",
            },
        ),
        (
            "<key>A</key><string id=\"1\">a</string>",
            "A",
            Fault::Attribute("string".into()),
        ),
        ("<key>A</key><true>yes</true>", "A", Fault::StrayText),
    ] {
        let error = Plist::parse(plain(more).as_bytes()).expect_err(more);
        assert_eq!((error.path.as_str(), &error.fault), (path, &fault), "{more}");
        assert!(error.position.is_some_and(|(line, _)| line > 20), "{error}");
    }
}

#[test]
fn numbers_dates_and_data_are_read_by_their_own_rules() {
    let value = |written: &str| {
        let text = plain(&format!("<key>X</key>{written}"));
        Plist::parse(text.as_bytes())
            .map(|list| list.get(&["X"]).expect("dict").cloned())
            .map_err(|error| error.fault)
    };
    let integer = |written: &str| value(&format!("<integer>{written}</integer>"));
    for (written, number) in [
        ("-1", -1),
        (" 42 ", 42),
        ("+7", 7),
        ("0x80100", 0x8_0100),
        ("18446744073709551615", i128::from(u64::MAX)),
        ("-9223372036854775808", i128::from(i64::MIN)),
    ] {
        assert_eq!(integer(written), Ok(Some(Value::Integer(number))), "{written}");
    }
    let huge = "9".repeat(26);
    let endless = "1".repeat(100_000);
    for written in [
        huge.as_str(),
        "18446744073709551616",
        "-9223372036854775809",
        "",
        "1.5",
        "0x",
        "--1",
        "-+1",
        &endless,
    ] {
        assert!(
            matches!(integer(written), Err(Fault::Integer(_))),
            "{}",
            &written[..written.len().min(30)]
        );
    }
    assert_eq!(value("<real>0.5</real>"), Ok(Some(Value::Real("0.5".into()))));
    assert_eq!(value("<real>half</real>"), Err(Fault::Real("half".into())));
    assert_eq!(
        value("<date>2026-03-02T09:00:00Z</date>"),
        Ok(Some(Value::Date("2026-03-02T09:00:00Z".into())))
    );
    for date in [
        "yesterday",
        "2026-13-02T09:00:00Z",
        "2026-03-02T24:00:00Z",
        "9999999-03-02T09:00:00Z",
        "",
    ] {
        assert_eq!(value(&format!("<date>{date}</date>")), Err(Fault::Date(date.into())));
    }
    assert_eq!(
        value("<data>\n\tAgBe\n\tEAAB\n</data>"),
        Ok(Some(Value::Data(vec![2, 0, 0x5E, 0x10, 0, 1])))
    );
    assert_eq!(value("<data>AgBeEAA</data>"), Err(Fault::Base64));
}

#[test]
fn nesting_without_end_is_refused_and_breaks_nothing() {
    for levels in [70, 2_000, 200_000] {
        let deep = format!(
            "<plist><dict><key>A</key>{}{}</dict></plist>",
            "<array>".repeat(levels),
            "</array>".repeat(levels)
        );
        let error = Plist::parse(deep.as_bytes()).expect_err("deep");
        assert!(
            matches!(error.fault, Fault::TooDeep | Fault::NotXml(_)),
            "{levels}: {}",
            error.fault
        );
    }
}

#[test]
fn a_missing_key_is_added_at_the_end_of_its_dictionary_however_that_is_written() {
    let added = |text: &str| {
        parsed(text)
            .set(&["A", "New"], Scalar::Boolean(true))
            .map(|list| list.text().to_owned())
    };
    for (before, after) in [
        (
            "<plist><dict><key>A</key><dict/></dict></plist>",
            "<dict><key>New</key><true/></dict>",
        ),
        (
            "<plist><dict><key>A</key><dict></dict></dict></plist>",
            "<dict><key>New</key><true/></dict>",
        ),
        (
            "<plist><dict><key>A</key><dict>\n\t<key>B</key>\n\t<false/>\n</dict></dict></plist>",
            "<dict>\n\t<key>B</key>\n\t<false/>\n\t<key>New</key>\n\t<true/>\n</dict>",
        ),
    ] {
        let text = added(before).expect("edits");
        assert!(text.contains(after), "{text}");
    }
    let error = added("<plist><dict><key>A</key><string>x</string></dict></plist>").expect_err("no dict");
    assert!(
        error
            .to_string()
            .starts_with("A: has to be a <dict> and is <string> \"x\""),
        "{error}"
    );
    let error = added("<plist><dict></dict></plist>").expect_err("no dict");
    assert!(
        error.to_string().starts_with("A: has to be a <dict> and is missing"),
        "{error}"
    );
}

#[test]
fn a_value_with_markup_in_it_is_written_as_text() {
    let edited = parsed(&plain(""))
        .set(&SERIAL, Scalar::String("</string><true/>&"))
        .expect("edits");
    assert_eq!(
        edited.get(&SERIAL).expect("dicts"),
        Some(&Value::String("</string><true/>&".into()))
    );
}

#[test]
fn six_bytes_of_data_are_a_rom_however_they_are_wrapped() {
    for written in [
        "<data>AgBeEAAB</data>",
        "<data>\n\tAgBe\n\tEAAB\n\t</data>",
        "<data> AgBeEAAB </data>",
    ] {
        let list = parsed(&config(&format!("<key>ROM</key>{written}"), "-v", ""));
        assert_eq!(rom(&list), Ok(Ok([0x02, 0x00, 0x5E, 0x10, 0x00, 0x01])), "{written}");
        assert_eq!(check_places(&list), Ok(vec![]));
    }
}

#[test]
fn a_rom_of_another_type_or_length_or_none_is_refused_by_its_path() {
    for (written, rule) in [
        (
            "<key>ROM</key><data>AgBeEAA=</data>",
            "is <data> of 5 bytes: has to be exactly 6 bytes",
        ),
        (
            "<key>ROM</key><data></data>",
            "is <data> of 0 bytes: has to be exactly 6 bytes",
        ),
        (
            "<key>ROM</key><data>MDIwMDVFMTAwMDAx</data>",
            "is <data> of 12 bytes: has to be exactly 6 bytes",
        ),
        (
            "<key>ROM</key><data>02005E100001</data>",
            "is <data> of 9 bytes: has to be exactly 6 bytes",
        ),
        (
            "<key>ROM</key><integer>2</integer>",
            "is <integer> 2: has to be of type <data>",
        ),
        (
            "<key>ROM</key><string>02005E100001</string>",
            "is <string> \"02005E100001\": has to be of type <data>",
        ),
        ("", "is missing: has to be there as <data> of 6 bytes"),
    ] {
        let refusal = rom(&parsed(&config(written, "-v", "")))
            .expect("dicts")
            .expect_err(written)
            .to_string();
        assert!(
            refusal.contains(&format!("PlatformInfo.Generic.ROM {rule}")),
            "{refusal}"
        );
    }
    let error =
        Plist::parse(config("<key>ROM</key><data>02:00:5E:10</data>", "-v", "").as_bytes()).expect_err("base64");
    assert_eq!(
        (error.path.as_str(), error.fault),
        ("PlatformInfo.Generic.ROM", Fault::Base64)
    );
}

#[test]
fn a_rom_that_is_written_says_the_same_as_one_that_was_well_written() {
    let zero = config("<key>ROM</key><data>AAAAAAAA</data>", "-v", "");
    let path = ["PlatformInfo", "Generic", "ROM"];
    let written = parsed(&zero)
        .set(&path, Scalar::Data(&[0x02, 0x00, 0x5E, 0x10, 0x00, 0x01]))
        .expect("edits");
    assert_eq!(written.root(), parsed(&plain("")).root());
}
