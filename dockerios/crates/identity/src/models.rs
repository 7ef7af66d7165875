//! The Mac models that an identity may claim to be. Invariant: every code here is made of the serial alphabet, and a
//! model without board codes is never minted nor imported, since nobody knows what its MLB has to look like.
//!
//! Restated from the model tables that OpenCorePkg publishes beside `macserial`. The last macOS release of each model
//! is the last whose list of compatible computers, as Apple published it with the release, still names that model:
//!
//! | Release | Models that it is the last for |
//! |---|---|
//! | 12, Monterey | Mac Pro (Late 2013) |
//! | 13, Ventura | iMac (27-inch, 2017) |
//! | 15, Sequoia | iMac (2019), iMac Pro, Mac mini (2018), MacBook Pro (15-inch, 2018; 13-inch, 2020, two ports), MacBook Air (2020) |
//! | 26, Tahoe | iMac (2020), Mac Pro (2019), MacBook Pro (16-inch, 2019; 13-inch, 2020, four ports) |

use std::ops::RangeInclusive;

use crate::refusal::{Field, Refusal, Rule};

/// What the published tables know of one Mac model.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    /// The product name as SMBIOS says it, such as `iMacPro1,1`.
    pub name: &'static str,
    /// The newest major release of macOS that Apple lets this model run.
    pub newest_macos: u8,
    /// The three letters of the plant, with which serial and MLB begin.
    pub location: &'static str,
    /// The years of production, as far as 12-character serials go.
    pub built: RangeInclusive<u16>,
    /// The serial that the tables print as the model's example: taken by everybody who copied it.
    pub sample_serial: &'static str,
    /// The last four characters of serials.
    pub model_codes: &'static [&'static str],
    /// The four characters in the MLB that name the board; empty where the tables know none.
    pub board_codes: &'static [&'static str],
}

impl Model {
    /// The model of that exact name, provided identities can be made for it.
    pub fn find(name: &str) -> Result<&'static Self, Refusal> {
        let model = MODELS
            .iter()
            .find(|model| model.name == name)
            .ok_or_else(|| Refusal::new(Field::Model, name, Rule::ModelUnknown))?;
        if model.board_codes.is_empty() {
            return Err(Refusal::new(Field::Model, name, Rule::ModelWithoutBoardCode));
        }
        Ok(model)
    }

    /// All models that identities can be made for.
    pub fn mintable() -> impl Iterator<Item = &'static Self> {
        MODELS.iter().filter(|model| !model.board_codes.is_empty())
    }

    /// Whether Apple lets this model run that major release of macOS.
    pub fn runs_macos(&self, major: u8) -> bool {
        major <= self.newest_macos
    }
}

/// All models of the tables, those without board codes too, by name.
pub static MODELS: &[Model] = &[
    Model {
        name: "MacBookAir9,1",
        newest_macos: 15,
        location: "FVF",
        built: 2020..=2020,
        sample_serial: "FVFCC20JMNHP",
        model_codes: &[
            "MNHP", "MNHY", "MNHX", "MNHR", "MNHQ", "M6KL", "M6KM", "M6KH", "M6KJ", "M6KK", "M6KG", "MNJ0", "MLVD",
            "MLVF", "Q72V",
        ],
        board_codes: &[],
    },
    Model {
        name: "MacBookPro15,1",
        newest_macos: 15,
        location: "C02",
        built: 2018..=2019,
        sample_serial: "C02X846JJG5J",
        model_codes: &[
            "KGYG", "JG5H", "JG5J", "JG5K", "JG5L", "JG5M", "JGH5", "JGH6", "JGH7", "JGH8", "KGYF", "KGYH", "KQ9Q",
            "KQ9R", "KQ9T", "KQ9V", "KQ9W", "KQ9X", "KQ9Y", "KQC0", "KQC1", "KQC2", "KQC3", "KQC4", "KQC5", "KQC6",
            "KQC7", "KQC8", "KQC9", "KQCC", "KQCD", "KQCF", "KQCG", "KQCH", "KQCJ", "KQCK", "KQCL", "KQCM", "KQCN",
            "KQCP", "KQCR", "KQCT", "KQCV", "KQCW", "KQCX", "KWJ2", "LCM6", "MJLT", "L4HW", "KQCQ", "LC8K", "LC8J",
            "LC8L", "L539", "L53D", "L4HX", "L7GC", "MJLR",
        ],
        board_codes: &["JP4F"],
    },
    Model {
        name: "MacBookPro16,1",
        newest_macos: 26,
        location: "C02",
        built: 2019..=2021,
        sample_serial: "C02ZKJWAMD6N",
        model_codes: &[
            "MD6N", "MD6M", "MD6X", "MD6Q", "MD6P", "MD6R", "MD6W", "MD6V", "PG8W", "PG8V", "PG8Y", "PG8X", "PG8T",
            "PG90", "PG91",
        ],
        board_codes: &["N9PR"],
    },
    Model {
        name: "MacBookPro16,2",
        newest_macos: 26,
        location: "C02",
        built: 2020..=2021,
        sample_serial: "C02CL0YYML7H",
        model_codes: &[
            "ML7H", "ML7L", "ML7K", "ML87", "ML86", "ML85", "ML7M", "ML7J", "ML88", "0DHT",
        ],
        board_codes: &["P8PG"],
    },
    Model {
        name: "MacBookPro16,3",
        newest_macos: 15,
        location: "C02",
        built: 2020..=2020,
        sample_serial: "C02CJAATP3XY",
        model_codes: &[
            "P3XY", "P3YV", "P3YX", "P3YY", "P3Y0", "P3Y1", "P3Y2", "P3YW", "049N", "0056",
        ],
        board_codes: &[],
    },
    Model {
        name: "MacBookPro16,4",
        newest_macos: 26,
        location: "C02",
        built: 2020..=2021,
        sample_serial: "C02CW3CTMD6T",
        model_codes: &["MD6T", "03T9", "0DH8", "0051", "05J5"],
        board_codes: &[],
    },
    Model {
        name: "MacPro6,1",
        newest_macos: 12,
        location: "F5K",
        built: 2013..=2019,
        sample_serial: "F5KLA770F9VM",
        model_codes: &[
            "F9VM", "F693", "F694", "F9VN", "FRDW", "FRDY", "FRF0", "FRF1", "FRF2", "FRF3", "FRF4", "FRF5", "FRQC",
            "FT3F", "FT3G", "FT3H", "FT95", "FT96", "FT97", "FT98", "FT99", "FT9C", "FT9D", "FY3Y", "FY40", "G1LJ",
            "G1LK", "G1LL", "G1LM", "G1LN", "G1LP", "G1LQ", "G1LR", "G1LT", "G1LV", "G1LW", "G1LY", "G1M0", "G1M1",
            "G8GC", "G8GD", "J3RY", "J3RW", "N1VW", "N1VX",
        ],
        board_codes: &["FHDD", "FNN1", "FWC3"],
    },
    Model {
        name: "MacPro7,1",
        newest_macos: 26,
        location: "F5K",
        built: 2019..=2023,
        sample_serial: "F5KZN00HP7QM",
        model_codes: &[
            "P7QM", "PLXV", "PLXW", "PLXX", "PLXY", "P7QJ", "P7QK", "P7QL", "P7QN", "P7QP", "NYGV", "K7GF", "K7GD",
            "N5RN",
        ],
        board_codes: &["K3F7"],
    },
    Model {
        name: "Macmini8,1",
        newest_macos: 15,
        location: "C07",
        built: 2018..=2023,
        sample_serial: "C07XL9WEJYVX",
        model_codes: &[
            "JYVX", "JYVW", "JYVY", "JYW0", "L960", "MCD6", "M7FV", "M7FT", "M99Q", "M99P", "MJHL", "MHGQ", "LVVM",
            "LVVN", "MKTR", "LVVL", "LVVJ", "LVVK", "LHPC", "M99N", "L95X", "L95Y", "N6VR", "PJH7", "PJH8",
        ],
        board_codes: &[
            "KXPG", "KXVT", "KXW5", "KXQJ", "KXQW", "KXX7", "KXRY", "KXV3", "KXVG", "KXQ5", "KXYC", "KXWJ", "KXWW",
        ],
    },
    Model {
        name: "iMac18,3",
        newest_macos: 13,
        location: "C02",
        built: 2017..=2019,
        sample_serial: "C02TDHACJ1GJ",
        model_codes: &[
            "J1GJ", "J1GQ", "J1GG", "J9XC", "J9X7", "J9X6", "J9X9", "JNGD", "JNGF", "JCCR", "JCCT", "JT72", "J9X8",
            "JM3R", "JM3V", "J1GR", "J1GP", "J1GV", "J1GT", "J1GK", "J1GH", "J1GN", "J1GL", "J1GM", "JCND", "JC5L",
            "JX8H", "J2GJ", "J609", "J60C",
        ],
        board_codes: &[
            "J0PG", "J0PH", "J0PJ", "J0PC", "J0PD", "J0PF", "HX77", "HX78", "HX79", "HX7C", "HX7D", "HX7F", "HNL6",
            "HNL7", "HNL8",
        ],
    },
    Model {
        name: "iMac19,1",
        newest_macos: 15,
        location: "C02",
        built: 2019..=2020,
        sample_serial: "C02Y90H3JV3Q",
        model_codes: &[
            "JV3Q", "JV3P", "JV40", "JV41", "JV42", "JV43", "MC9K", "MC9J", "MX7W", "JV3N", "JV3T", "JV3W", "JV3R",
            "JV3Y", "JV3X", "MW2R", "MW2P", "MW2Q", "MW2V", "MW2W", "MW2T", "MQQP", "NY2G", "P1WV", "MMTC", "0H1M",
            "0H1L", "0H1K", "0H1J",
        ],
        board_codes: &["LNV9", "KDP0", "KDN8"],
    },
    Model {
        name: "iMac19,2",
        newest_macos: 15,
        location: "C02",
        built: 2019..=2021,
        sample_serial: "C02Y93YXJWDX",
        model_codes: &[
            "JWDW", "JWDX", "MQ87", "MC9M", "MC9L", "MRVM", "MPM0", "MW28", "JWDY", "MMTK", "MMTL", "MTML", "MCC1",
            "JWF3", "JWF2", "JWF1", "JWF0", "JWF4", "N6JT", "N9LN", "N07H", "0LKD", "0PYY", "03C7", "0MN1", "0L08",
            "0KYN", "0JVT", "07F8", "07F5", "07F4", "07F7", "07F6", "07F1", "07F3", "07F2", "0L0H", "0L0F", "0L0G",
            "0L09", "0LX4", "0LX7", "0LX8",
        ],
        board_codes: &["KGQG"],
    },
    Model {
        name: "iMac20,1",
        newest_macos: 26,
        location: "C02",
        built: 2020..=2022,
        sample_serial: "C02D38RCPN5T",
        model_codes: &["PN5T", "PN5Y", "PN5X", "PN5W", "PN5V", "PN78", "PN7D", "PN77", "PN7C"],
        board_codes: &["PHC1", "PHCD"],
    },
    Model {
        name: "iMac20,2",
        newest_macos: 26,
        location: "C02",
        built: 2020..=2022,
        sample_serial: "C02D201H046M",
        model_codes: &[
            "046M", "046N", "046L", "046T", "090Y", "08TD", "0LKK", "0LKJ", "0472", "0LCY", "07CK", "0D1R", "0D1T",
            "0LF2", "0LF3", "0LF0", "0LF1", "0LF4",
        ],
        board_codes: &[],
    },
    Model {
        name: "iMacPro1,1",
        newest_macos: 15,
        location: "C02",
        built: 2017..=2021,
        sample_serial: "C02VV5RFHX87",
        model_codes: &[
            "HX87", "HX8F", "JL53", "JL54", "JL55", "JLCN", "JLCP", "JLCR", "JLCT", "JLCV", "JLCW", "JLCX", "JLCY",
            "JLD0", "JLD1", "JLD2", "MC9H", "M0XV", "0833", "0832",
        ],
        board_codes: &[
            "JG36", "JG3C", "JG3D", "JG38", "JG39", "JML3", "JMPY", "JMQ0", "JML4", "JMQ1", "JMQ2", "J806", "J807",
            "J808", "J80H", "J80J", "J80M", "J803", "J804", "J805", "J809", "J80D", "J80F",
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alphabet;

    #[test]
    fn every_code_is_made_of_the_serial_alphabet() {
        for model in MODELS {
            for code in model.model_codes.iter().chain(model.board_codes) {
                assert_eq!(
                    (code.len(), alphabet::first_foreign(code)),
                    (4, None),
                    "{}: {code}",
                    model.name
                );
            }
            assert_eq!(
                (model.location.len(), alphabet::first_foreign(model.location)),
                (3, None),
                "{}",
                model.name
            );
            assert!(model.sample_serial.starts_with(model.location), "{}", model.name);
            assert!(
                !model.model_codes.is_empty() && !model.built.is_empty(),
                "{}",
                model.name
            );
        }
    }

    #[test]
    fn fifteen_models_are_known_and_four_of_them_have_no_board_code() {
        let refused: Vec<_> = MODELS
            .iter()
            .filter_map(|model| Model::find(model.name).err())
            .collect();
        assert_eq!((MODELS.len(), Model::mintable().count()), (15, 11));
        let names: Vec<_> = refused.iter().map(|refusal| refusal.found.as_str()).collect();
        assert_eq!(names, ["MacBookAir9,1", "MacBookPro16,3", "MacBookPro16,4", "iMac20,2"]);
        assert!(
            refused
                .iter()
                .all(|refusal| refusal.rule == Rule::ModelWithoutBoardCode)
        );
    }

    #[test]
    fn a_model_that_is_not_in_the_tables_is_refused_with_the_list() {
        let refusal = Model::find("iMacPro1,2").expect_err("unknown");
        assert_eq!((refusal.field, refusal.rule), (Field::Model, Rule::ModelUnknown));
        assert!(refusal.to_string().contains("iMacPro1,1"), "{refusal}");
        assert!(
            Model::find("imacpro1,1").is_err(),
            "names are exact: SMBIOS compares them so"
        );
    }

    #[test]
    fn the_last_release_of_each_model_is_the_one_of_apple_s_lists() {
        let last_for = |release| -> Vec<_> {
            let models = MODELS.iter().filter(|model| model.newest_macos == release);
            models.map(|model| model.name).collect()
        };
        assert_eq!(last_for(12), ["MacPro6,1"]);
        assert_eq!(last_for(13), ["iMac18,3"]);
        let sequoia = ["MacBookAir9,1", "MacBookPro15,1", "MacBookPro16,3", "Macmini8,1"];
        assert_eq!(
            last_for(15),
            [&sequoia[..], &["iMac19,1", "iMac19,2", "iMacPro1,1"]].concat()
        );
        let tahoe = ["MacBookPro16,1", "MacBookPro16,2", "MacBookPro16,4", "MacPro7,1"];
        assert_eq!(last_for(26), [&tahoe[..], &["iMac20,1", "iMac20,2"]].concat());
    }

    #[test]
    fn an_imac_pro_does_not_run_macos_26_and_a_mac_pro_of_2019_does() {
        let runs = |name| Model::find(name).expect(name).runs_macos(26);
        assert!(!runs("iMacPro1,1"));
        assert!(runs("MacPro7,1") && runs("iMac20,1") && runs("MacBookPro16,1"));
    }
}
