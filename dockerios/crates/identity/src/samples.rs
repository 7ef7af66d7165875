//! Values that were published as examples and that many machines therefore claim. Invariant: none of them is ever
//! minted, and none is imported.

use crate::models::MODELS;
use crate::refusal::{Field, Refusal, Rule};

/// Serials of OpenCore's sample configuration and of the well-known guides and images.
const SERIALS: [&str; 4] = ["W00000000001", "C02FPBZPHX87", "C02TW0WAHX87", "C02TM2ZBHX87"];

const MLBS: [&str; 3] = ["M0000000000000001", "C027251024NJG36UE", "C02717306J9JG361M"];

const ROMS: [&str; 5] = [
    "112233445566",
    "0022412E3D4A",
    "9BBCE12187E5",
    "A85C2C9A462F",
    "000A27000000",
];

const UUIDS: [&str; 2] = [
    "007076A6-F2A2-4461-BBE5-BAD019F8025A",
    "5CCB366D-9118-4C61-A00A-E5BAF3BED451",
];

/// Refuses a value of that field that was published, in whatever case it is written.
pub(crate) fn refuse(field: Field, value: &str) -> Result<(), Refusal> {
    let among = |published: &[&str]| published.iter().any(|known| known.eq_ignore_ascii_case(value));
    let published = match field {
        Field::Serial => {
            among(&SERIALS)
                || MODELS
                    .iter()
                    .any(|model| model.sample_serial.eq_ignore_ascii_case(value))
        }
        Field::Mlb => among(&MLBS),
        Field::Rom => among(&ROMS),
        Field::SystemUuid => among(&UUIDS),
        Field::Model | Field::MacAddress => false,
    };
    if published {
        Err(Refusal::new(field, value, Rule::PublishedSample))
    } else {
        Ok(())
    }
}
