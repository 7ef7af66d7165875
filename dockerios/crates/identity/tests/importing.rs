//! What an admin imports is taken as it is or refused with field, rule and way out.

use dockerios_identity::{Field, Fields, Generator, Identity, Rule};

fn valid() -> Fields {
    Generator::seeded([9; 32]).mint("iMacPro1,1").expect("valid").into()
}

/// What is refused once `change` was made to a valid identity.
fn refused(change: impl FnOnce(&mut Fields)) -> Vec<(Field, Rule)> {
    let mut fields = valid();
    change(&mut fields);
    match Identity::try_from(fields) {
        Ok(_) => Vec::new(),
        Err(refusals) => refusals
            .0
            .into_iter()
            .map(|refusal| (refusal.field, refusal.rule))
            .collect(),
    }
}

#[test]
fn a_valid_identity_is_taken_and_written_back_as_it_was() {
    let fields = valid();
    assert_eq!(Identity::try_from(fields.clone()).map(Fields::from), Ok(fields));
}

#[test]
fn an_owned_address_of_a_manufacturer_is_taken_in_either_case() {
    let own = |rom: &str, mac: &str| {
        refused(|fields| {
            fields.rom = rom.into();
            fields.mac_address = mac.into();
        })
    };
    assert_eq!(own("f0189800AB01", "F0:18:98:00:ab:01"), []);
    assert_eq!(
        own("F0189800AB01", "F0:18:98:00:AB:02"),
        [(Field::MacAddress, Rule::MacIsRom)]
    );
    assert_eq!(
        own("F1189800AB01", "F1:18:98:00:AB:01"),
        [(Field::Rom, Rule::RomUnicast)]
    );
}

#[test]
fn serials_of_another_length_or_with_i_and_o_are_refused() {
    for (serial, rule) in [
        ("", Rule::SerialLength),
        ("C02XK0AAHX8", Rule::SerialLength),
        ("C02XK0AAHX877", Rule::SerialLength),
        ("C02XK0AAHXI7", Rule::SerialAlphabet),
        ("C02XK0AAHXO7", Rule::SerialAlphabet),
        ("c02xk0aahx87", Rule::SerialAlphabet),
        ("C02XK0AAHX8\u{663}", Rule::SerialAlphabet),
    ] {
        assert_eq!(
            refused(|fields| fields.serial = serial.into()),
            [(Field::Serial, rule)],
            "{serial}"
        );
    }
}

#[test]
fn boards_of_another_length_alphabet_or_checksum_are_refused() {
    let flipped = |fields: &mut Fields| {
        let last = fields.mlb.pop();
        fields.mlb.push(if last == Some('7') { '8' } else { '7' });
    };
    assert_eq!(refused(flipped), [(Field::Mlb, Rule::MlbChecksum)]);
    assert_eq!(
        refused(|fields| fields.mlb.truncate(13)),
        [(Field::Mlb, Rule::MlbLength)]
    );
    assert_eq!(
        refused(|fields| fields.mlb.replace_range(3..4, "O")),
        [(Field::Mlb, Rule::MlbAlphabet)]
    );
}

#[test]
fn uuids_in_lower_case_without_form_or_blank_are_refused() {
    for (uuid, rule) in [
        ("6f0c1d1e-0000-4000-8000-00000000b001", Rule::UuidCase),
        ("6F0C1D1E000040008000000000000B001", Rule::UuidShape),
        ("6F0C1D1E-0000-4000-8000-00000000B00", Rule::UuidShape),
        ("{6F0C1D1E-0000-4000-8000-00000000B0}", Rule::UuidShape),
        ("00000000-0000-0000-0000-000000000000", Rule::UuidBlank),
        ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", Rule::UuidBlank),
    ] {
        assert_eq!(
            refused(|fields| fields.system_uuid = uuid.into()),
            [(Field::SystemUuid, rule)],
            "{uuid}"
        );
    }
}

#[test]
fn published_samples_are_refused_whatever_field_they_stand_in() {
    for serial in [
        "W00000000001",
        "C02FPBZPHX87",
        "C02TW0WAHX87",
        "C02VV5RFHX87",
        "F5KZN00HP7QM",
    ] {
        assert_eq!(
            refused(|fields| fields.serial = serial.into()),
            [(Field::Serial, Rule::PublishedSample)],
            "{serial}"
        );
    }
    let rom = |rom: &str, mac: &str| {
        refused(|fields| {
            fields.rom = rom.into();
            fields.mac_address = mac.into();
        })
    };
    assert_eq!(
        rom("0022412e3d4a", "00:22:41:2e:3d:4a"),
        [(Field::Rom, Rule::PublishedSample)]
    );
    assert!(rom("112233445566", "11:22:33:44:55:66").contains(&(Field::Rom, Rule::PublishedSample)));
    assert_eq!(
        refused(|fields| fields.mlb = "C027251024NJG36UE".into()),
        [(Field::Mlb, Rule::PublishedSample)]
    );
    assert_eq!(
        refused(|fields| fields.system_uuid = "007076A6-F2A2-4461-BBE5-BAD019F8025A".into()),
        [(Field::SystemUuid, Rule::PublishedSample)]
    );
}

#[test]
fn models_that_are_unknown_or_without_a_board_code_are_refused() {
    assert_eq!(
        refused(|fields| fields.model = "Macintosh".into()),
        [(Field::Model, Rule::ModelUnknown)]
    );
    assert_eq!(
        refused(|fields| fields.model = "MacBookAir9,1".into()),
        [(Field::Model, Rule::ModelWithoutBoardCode)]
    );
}

#[test]
fn all_that_is_wrong_is_said_at_once_and_each_line_has_field_value_rule_and_way_out() {
    let mut fields = valid();
    fields.serial = "C02XK0AAHXI7".into();
    fields.rom = "02005E1000".into();
    let said = Identity::try_from(fields).expect_err("two wrong").to_string();
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "serial \"C02XK0AAHXI7\": a serial is written in 0-9 and A-Z without I and O; write capitals; what looks like \
             I or O is 1 or 0",
            "rom \"02005E1000\": a ROM is 6 bytes, written as 12 hexadecimal digits; write it like 02005E100001",
        ]
    );
}

#[test]
fn a_huge_value_is_refused_without_being_repeated_whole() {
    let mut fields = valid();
    fields.serial = "C".repeat(1 << 20);
    assert!(Identity::try_from(fields).expect_err("huge").to_string().len() < 300);
}

#[test]
fn an_identity_file_with_a_missing_unknown_or_wrong_field_is_refused() {
    let json = serde_json::to_value(valid()).expect("json");
    let reads = |json: &serde_json::Value| serde_json::from_value::<Identity>(json.clone()).map_err(|e| e.to_string());
    assert!(reads(&json).is_ok());
    let mut without = json.clone();
    without.as_object_mut().expect("object").remove("systemUUID");
    assert_eq!(reads(&without), Err("missing field `systemUUID`".into()));
    let mut more = json.clone();
    more["sn"] = "x".into();
    assert!(reads(&more).expect_err("unknown").starts_with("unknown field `sn`"));
    let mut wrong = json;
    wrong["model"] = "Macintosh".into();
    assert!(
        reads(&wrong)
            .expect_err("refused")
            .starts_with("model \"Macintosh\": no such model")
    );
}
