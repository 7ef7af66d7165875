use super::*;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn born() -> Timestamp {
    at("2026-03-02T09:00:00Z")
}

fn numbers_of(ring: &Keyring) -> Vec<u32> {
    ring.generations.iter().map(|one| one.number).collect()
}

#[test]
fn what_was_written_is_read_again() {
    let made = Keyring::make(born()).expect("keys");
    let read = Keyring::read(&made.data()).expect("own keys");
    assert_eq!(read.data(), made.data());
    assert_eq!(read.bundle(born()), made.bundle(born()));
}

#[test]
fn two_keyrings_share_no_key() {
    let (one, other) = (
        Keyring::make(born()).expect("keys"),
        Keyring::make(born()).expect("keys"),
    );
    assert_ne!(one.report_key(), other.report_key());
    assert_ne!(one.bundle(born()), other.bundle(born()));
}

#[test]
fn a_foreign_or_damaged_secret_is_refused_with_the_key_that_is_wrong() {
    let good = Keyring::make(born()).expect("keys").data();
    let other = Keyring::make(born()).expect("keys").data();
    let server = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (server, server_key) = (server.cert.pem(), server.signing_key.serialize_pem());
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    type Change<'a> = Box<dyn Fn(&mut Data) + 'a>;
    let table: Vec<(&str, Change<'_>)> = vec![
        ("it holds no data", Box::new(|d| d.clear())),
        (
            "it holds \"password\", which is nothing of ours",
            Box::new(|d| drop(d.insert("password".into(), bytes("x")))),
        ),
        (
            "it holds \"ca-01.crt\"",
            Box::new(|d| drop(d.insert("ca-01.crt".into(), bytes("x")))),
        ),
        (
            "it holds \"ca-0.crt\"",
            Box::new(|d| drop(d.insert("ca-0.crt".into(), bytes("x")))),
        ),
        ("it holds no report.key", Box::new(|d| drop(d.remove("report.key")))),
        (
            "report.key has 3 bytes instead of 32",
            Box::new(|d| drop(d.insert("report.key".into(), bytes("abc")))),
        ),
        (
            "report.key has 0 bytes",
            Box::new(|d| drop(d.insert("report.key".into(), bytes("")))),
        ),
        (
            "it holds no ca-1.crt",
            Box::new(|d| d.retain(|key, _| key == "report.key")),
        ),
        (
            "it holds no ca-1.key, which belongs",
            Box::new(|d| drop(d.remove("ca-1.key"))),
        ),
        (
            "it holds no ca-1.crt, which belongs",
            Box::new(|d| drop(d.remove("ca-1.crt"))),
        ),
        (
            "ca-1.crt is no PEM",
            Box::new(|d| drop(d.insert("ca-1.crt".into(), bytes("garbage")))),
        ),
        (
            "ca-1.crt is no text",
            Box::new(|d| drop(d.insert("ca-1.crt".into(), ByteString(vec![0xff])))),
        ),
        (
            "ca-1.key is no private key",
            Box::new(|d| drop(d.insert("ca-1.key".into(), bytes("garbage")))),
        ),
        (
            "ca-1.key does not belong to ca-1.crt",
            Box::new(|d| drop(d.insert("ca-1.key".into(), other["ca-1.key"].clone()))),
        ),
        (
            "ca-1.crt is the certificate of a server",
            Box::new(|d| {
                d.insert("ca-1.crt".into(), bytes(&server));
                d.insert("ca-1.key".into(), bytes(&server_key));
            }),
        ),
        (
            "ca-1.crt holds more than one certificate",
            Box::new(|d| {
                let mut both = d["ca-1.crt"].0.clone();
                both.extend_from_slice(&other["ca-1.crt"].0);
                d.insert("ca-1.crt".into(), ByteString(both));
            }),
        ),
    ];
    for (expected, change) in table {
        let mut data = good.clone();
        change(&mut data);
        let fault = Keyring::read(&data)
            .err()
            .unwrap_or_else(|| panic!("accepted: {expected}"));
        assert!(fault.contains(expected), "{expected}: {fault}");
    }
}

#[test]
fn a_successor_is_published_two_years_ahead_and_signs_one_year_ahead() {
    let old = Keyring::make(born()).expect("keys");
    let end = old.generations[0].not_after();
    assert!(old.renewed(end - DAY * 731).expect("checked").is_none(), "not due yet");

    let both = old.renewed(end - DAY * 730).expect("made").expect("due");
    assert_eq!(numbers_of(&both), [1, 2]);
    assert_eq!(
        both.report_key(),
        old.report_key(),
        "tokens of guests outlive an authority"
    );
    let signs = |days: i32| both.signer(end - DAY * days).map(|one| one.number);
    assert_eq!(
        (signs(729), signs(366), signs(365), signs(1)),
        (Some(1), Some(1), Some(2), Some(2))
    );

    let bundle = both.bundle(end - DAY);
    assert_eq!(
        bundle.matches("BEGIN CERTIFICATE").count(),
        2,
        "who trusts the old one may still be asked"
    );
    assert!(both.renewed(end - DAY).expect("checked").is_none(), "published once");
    let after = both.renewed(end + DAY).expect("made").expect("the expired one goes");
    assert_eq!(numbers_of(&after), [2]);
}

#[test]
fn authorities_that_all_expired_while_nobody_ran_are_replaced_and_the_report_key_stays() {
    let old = Keyring::make(born()).expect("keys");
    let late = old.generations[0].not_after() + DAY;
    let fresh = old.renewed(late).expect("made").expect("due");
    assert_eq!(numbers_of(&fresh), [2]);
    assert_eq!(fresh.report_key(), old.report_key());
}
