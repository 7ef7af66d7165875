//! What is minted keeps the rules, follows from its seed, and is never there twice.

use std::collections::HashSet;

use dockerios_identity::alphabet::ALPHABET;
use dockerios_identity::{Fields, Generator, Identity, Model, Reserved, Rule, fill, serial};
use proptest::prelude::*;

fn any_model() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(Model::mintable().map(|model| model.name).collect::<Vec<_>>())
}

/// The weighted sum, written anew: weight 3 on odd places.
fn weighted_sum(mlb: &str) -> usize {
    let value = |byte: &u8| {
        ALPHABET
            .iter()
            .position(|known| known == byte)
            .expect("of the alphabet")
    };
    let bytes = mlb.as_bytes();
    let even: usize = bytes.iter().step_by(2).map(value).sum();
    let odd: usize = bytes.iter().skip(1).step_by(2).map(value).sum();
    even + 3 * odd
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_seed_a_minted_identity_is_valid_and_reads_back_as_its_model(seed: [u8; 32], name in any_model()) {
        let minted = Generator::seeded(seed).mint(name).expect("a published sample at one in millions");
        let fields = Fields::from(minted.clone());
        prop_assert_eq!(Identity::try_from(fields.clone()), Ok(minted.clone()));

        let model = minted.model();
        let made = serial::made(minted.serial(), *model.built.start()).expect("readable");
        prop_assert!(made.year <= 2020 && model.built.contains(&made.year), "{made:?}");
        prop_assert!(serial::line(minted.serial()).expect("readable") < 3400);
        prop_assert!(model.model_codes.contains(&&minted.serial()[8..]));

        let mlb = minted.mlb();
        prop_assert_eq!(weighted_sum(mlb) % 34, 0);
        prop_assert!(model.board_codes.contains(&&mlb[11..15]));
        prop_assert!(["GU", "4N", "J9", "QX", "CD"].contains(&&mlb[9..11]));
        let (year, week) = if made.week == 1 { (made.year - 1, 52) } else { (made.year, made.week - 1) };
        prop_assert_eq!(&mlb[3..6], format!("{}{week:02}", year % 10));

        prop_assert_eq!(minted.rom()[0] & 0b11, 0b10, "unicast, locally administered");
        prop_assert_eq!(fields.mac_address.replace(':', "").to_uppercase(), fields.rom);
        prop_assert_eq!(fields.system_uuid.as_bytes()[14], b'4', "version 4");
    }

    #[test]
    fn whatever_stands_in_the_fields_the_answer_is_an_identity_or_a_reason(
        texts in proptest::array::uniform6(".{0,40}")
    ) {
        let [model, serial, mlb, rom, system_uuid, mac_address] = texts;
        let refused = Identity::try_from(Fields { model, serial, mlb, rom, system_uuid, mac_address });
        prop_assert!(!refused.expect_err("random text").to_string().is_empty());
    }
}

#[test]
fn the_same_seed_gives_the_same_identities_and_another_seed_gives_others() {
    let mint = |seed| {
        let mut generator = Generator::seeded([seed; 32]);
        [(); 3].map(|()| generator.mint("MacPro7,1").expect("valid"))
    };
    assert_eq!(mint(1), mint(1));
    assert_ne!(mint(1)[0], mint(2)[0]);
}

#[test]
fn a_seed_gives_the_identity_that_it_gave_in_the_first_release() {
    let minted = Fields::from(Generator::seeded([7; 32]).mint("iMacPro1,1").expect("valid"));
    let golden = include_str!("golden/seed-7.json");
    assert_eq!(serde_json::to_string_pretty(&minted).expect("json"), golden.trim_end());
}

#[test]
fn ten_thousand_identities_of_one_model_share_no_value() {
    let mut generator = Generator::seeded([3; 32]);
    let mut reserved = Reserved::default();
    let filled = fill(10_000, 1_000, &mut reserved, || generator.mint("MacBookPro16,1"));
    assert_eq!((filled.made.len(), filled.short), (10_000, 0));
    let distinct = |value: fn(&Identity) -> String| filled.made.iter().map(value).collect::<HashSet<_>>().len();
    assert_eq!(distinct(|identity| identity.serial().to_uppercase()), 10_000);
    assert_eq!(distinct(|identity| identity.mlb().to_uppercase()), 10_000);
    assert_eq!(distinct(Identity::mac_address), 10_000);
    assert_eq!(distinct(|identity| identity.system_uuid().to_uppercase()), 10_000);
    assert!(
        filled
            .dropped
            .iter()
            .flat_map(|refusals| &refusals.0)
            .all(|refusal| refusal.rule == Rule::Taken)
    );
}

#[test]
fn a_model_without_a_board_code_is_not_minted() {
    let refused = Generator::seeded([1; 32]).mint("iMac20,2").expect_err("no board code");
    assert_eq!(refused.0[0].rule, Rule::ModelWithoutBoardCode);
}
