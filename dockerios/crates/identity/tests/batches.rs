//! Batches from generators that cannot be trusted: duplicates, wrong lengths, endless repetition.

use dockerios_identity::{Field, Fields, Keys, Refusals, Reserved, Rule, fill};

/// A row of a generator: twenty of them differ in one number, except where it went wrong.
fn row(number: usize) -> Fields {
    let mut fields = Fields {
        model: "iMacPro1,1".into(),
        serial: format!("ZZTEST{number:06}"),
        mlb: format!("ZZTESTMLB{number:08}"),
        rom: format!("02005E20{number:04X}"),
        system_uuid: format!("6F0C1D1E-0000-4000-8000-00000000C{number:03}"),
        mac_address: format!("02:00:5e:20:00:{number:02x}"),
    };
    match number {
        9 => fields.mlb = "ZZTESTMLB009".into(),
        13 => fields.serial = "ZZTEST000004".into(),
        17 => fields.rom = "02005E200002".into(),
        18 => fields.system_uuid = "6f0c1d1e-0000-4000-8000-00000000c003".into(),
        _ => {}
    }
    fields
}

fn retired() -> Keys {
    Keys {
        serial: "zztest000007".into(),
        mlb: "ZZTESTMLB00000999".into(),
        rom: "02005E2000FE".into(),
        system_uuid: "6F0C1D1E-0000-4000-8000-00000000CFFE".into(),
    }
}

/// The generator that gives the same twenty rows for ever, and how often it was asked.
fn repeating(asked: &mut usize) -> impl FnMut() -> Result<Fields, Refusals> {
    move || {
        let fields = row(*asked % 20);
        *asked += 1;
        fields.check_form().map(|()| fields)
    }
}

#[test]
fn of_a_batch_of_twenty_the_five_bad_rows_are_dropped_for_their_own_reasons() {
    let mut asked = 0;
    let mut reserved = Reserved::of([retired()]);
    let mut next = repeating(&mut asked);
    let filled = fill(15, 100, &mut reserved, &mut next);
    // the fifteenth good row is the last of the batch
    assert_eq!((filled.made.len(), filled.short), (15, 0));
    let reasons: Vec<_> = filled
        .dropped
        .iter()
        .map(|why| (why.0[0].field, why.0[0].rule))
        .collect();
    assert_eq!(
        reasons,
        [
            (Field::Serial, Rule::Taken),
            (Field::Mlb, Rule::MlbLength),
            (Field::Serial, Rule::Taken),
            (Field::Rom, Rule::Taken),
            (Field::SystemUuid, Rule::Taken),
        ]
    );
    assert_eq!(
        filled.to_string(),
        "15 made, 5 dropped (serial taken: 2, mlb invalid: 1, rom taken: 1, systemUUID taken: 1)"
    );
}

#[test]
fn a_generator_that_only_repeats_itself_ends_the_batch_short_and_says_so() {
    let mut asked = 0;
    let mut reserved = Reserved::of([retired()]);
    let filled = fill(20, 40, &mut reserved, repeating(&mut asked));
    assert_eq!((filled.made.len(), filled.dropped.len(), filled.short), (15, 40, 5));
    assert_eq!(asked, 55, "bounded");
    let said = filled.to_string();
    assert!(
        said.starts_with("15 made, 40 dropped (") && said.contains("; 5 missing: the attempts ran out"),
        "{said}"
    );
}

#[test]
fn a_row_that_collides_in_one_value_reserves_none_of_the_others() {
    let mut reserved = Reserved::of([retired()]);
    let mut keys = Keys::from(&row(1));
    keys.serial = "ZZTEST000007".into();
    assert_eq!(reserved.reserve(&keys).expect_err("taken").0.len(), 1);
    assert_eq!(reserved.reserve(&Keys::from(&row(1))), Ok(()));
    assert_eq!(reserved.reserve(&Keys::from(&row(1))).expect_err("all four").0.len(), 4);
}

#[test]
fn nothing_wanted_asks_the_generator_nothing() {
    let mut asked = 0;
    let filled = fill(0, 10, &mut Reserved::default(), repeating(&mut asked));
    assert_eq!(
        (filled.made.len(), filled.short, filled.to_string().as_str()),
        (0, 0, "0 made, 0 dropped")
    );
    assert_eq!(asked, 0);
}
