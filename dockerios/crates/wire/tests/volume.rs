//! The config volume: what is read, and what it is refused for.

use std::fs;

use dockerios_wire::{Collector, Volume};
use tempfile::TempDir;

const UID: &str = "6f0c1d1e-0000-4000-8000-000000000001";
const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

fn volume() -> TempDir {
    let d = TempDir::new().expect("a directory");
    for (name, text) in [
        ("machine-id", format!("{UID}\n")),
        ("collector", "https://collector.example:8443\n".to_owned()),
        ("token", format!("{}\n", "0a".repeat(32))),
        ("ca.crt", PEM.to_owned()),
    ] {
        fs::write(d.path().join(name), text).expect("a file");
    }
    d
}

#[test]
fn a_volume_is_read_and_its_token_is_not_shown() {
    let d = volume();
    let v = Volume::read(d.path()).expect("a good volume");
    assert_eq!(v.machine_id, UID);
    assert_eq!(
        (v.collector.host.as_str(), v.collector.port),
        ("collector.example", 8443)
    );
    assert_eq!(v.token.reveal(), "0a".repeat(32));
    assert!(!format!("{v:?}").contains("0a0a"), "the token shows in Debug");
}

#[test]
fn each_file_is_refused_by_name_when_it_is_missing_or_malformed() {
    let secret = "SECRET".repeat(11);
    for (file, text, rule) in [
        ("machine-id", None, "cannot read"),
        ("machine-id", Some(""), "empty"),
        ("machine-id", Some("../../etc"), "not the uid of a machine"),
        ("machine-id", Some("a\nb"), "more than one line"),
        ("collector", Some("http://c.example"), "does not begin with https://"),
        ("token", Some(secret.as_str()), "not 64 lower-case hexadecimal digits"),
        ("ca.crt", Some("hello"), "no whole PEM certificate"),
        ("ca.crt", None, "is the volume with the label DOCKERIOS mounted there?"),
    ] {
        let d = volume();
        match text {
            Some(text) => fs::write(d.path().join(file), text).expect("a file"),
            None => fs::remove_file(d.path().join(file)).expect("a file"),
        }
        let refusal = Volume::read(d.path()).expect_err("must be refused");
        assert_eq!(refusal.field, file);
        assert!(refusal.message.contains(rule), "{refusal}");
        assert!(!refusal.message.contains("SECRET"), "{refusal}");
    }
}

#[test]
fn the_collectors_certificate_is_for_the_name_of_the_volume_or_for_the_address() {
    let d = volume();
    let name = |d: &TempDir| Volume::read(d.path()).map(|v| v.server_name);
    assert_eq!(
        name(&d).as_deref(),
        Ok("collector.example"),
        "made by an older operator"
    );
    fs::write(d.path().join("server-name"), "reports.system.svc\n").expect("a file");
    assert_eq!(name(&d).as_deref(), Ok("reports.system.svc"));
    for (text, rule) in [
        ("", "empty"),
        ("a/b", "no plain host name"),
        ("a\nb", "more than one line"),
    ] {
        fs::write(d.path().join("server-name"), text).expect("a file");
        let refusal = name(&d).expect_err("no name");
        assert_eq!(refusal.field, "server-name");
        assert!(refusal.message.contains(rule), "{refusal}");
    }
    fs::remove_file(d.path().join("server-name")).expect("a file");
    fs::create_dir(d.path().join("server-name")).expect("a directory");
    assert_eq!(name(&d).expect_err("unreadable is not absent").field, "server-name");
}

#[test]
fn a_file_that_is_huge_or_no_text_is_refused() {
    let d = volume();
    fs::write(d.path().join("ca.crt"), vec![b'a'; 300_000]).expect("a file");
    assert!(
        Volume::read(d.path())
            .expect_err("huge")
            .message
            .contains("larger than")
    );
    fs::write(d.path().join("ca.crt"), [0xff, 0xfe]).expect("a file");
    assert!(
        Volume::read(d.path())
            .expect_err("no text")
            .message
            .contains("not UTF-8")
    );
}

#[test]
fn collector_addresses() {
    for (text, host, port) in [
        ("https://c.example", "c.example", 443),
        ("https://c.example/", "c.example", 443),
        ("https://192.0.2.7:8443", "192.0.2.7", 8443),
        ("https://[2001:db8::7]:8443", "2001:db8::7", 8443),
        ("https://[2001:db8::7]", "2001:db8::7", 443),
    ] {
        let c = Collector::parse(text).expect(text);
        assert_eq!((c.host.as_str(), c.port), (host, port), "{text}");
        assert_eq!(Collector::parse(&c.to_string()), Ok(c), "{text}");
    }
    for text in [
        "",
        "c.example",
        "https://",
        "https://:8443",
        "https://c.example:",
        "https://c.example:0",
        "https://c:65536",
        "https://c:+1",
        "https://c.example/v1",
        "https://u@c.example",
        "https://c.example?x",
        "https://[::1",
        "https://[c]",
        "https://[::1]x",
        "https://c d",
    ] {
        let refusal = Collector::parse(text).expect_err(text);
        assert!(refusal.message.contains("write https://host[:port]"), "{refusal}");
    }
}
