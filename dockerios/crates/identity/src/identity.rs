//! One identity: what an admin or a file says (`Fields`), and what was found valid (`Identity`). Invariant: an
//! `Identity` exists only if it keeps every rule; there is no other way to make one than through `Fields`.

use serde::{Deserialize, Serialize};

use crate::address::{Octets, mac_text, parse_mac, parse_rom, rom_text};
use crate::alphabet::first_foreign;
use crate::mlb::{MLB_LENGTH, checksum};
use crate::models::Model;
use crate::refusal::{Field, Refusal, Refusals, Rule};
use crate::samples;
use crate::serial::SERIAL_LENGTH;

/// An identity as it is written, under the names of the API; nothing about it is known to be right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fields {
    /// The Mac model, such as `iMacPro1,1`.
    pub model: String,
    /// 12 characters.
    pub serial: String,
    /// 17 characters.
    pub mlb: String,
    /// 12 hexadecimal digits.
    pub rom: String,
    /// 36 characters, in capitals.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
    /// Six pairs of hexadecimal digits with colons; the same bytes as the ROM.
    pub mac_address: String,
}

impl Fields {
    /// Every field whose form alone is wrong: length, alphabet, digits. Says nothing of checksums, samples and models.
    pub fn check_form(&self) -> Result<(), Refusals> {
        collect([
            text(
                Field::Serial,
                &self.serial,
                SERIAL_LENGTH,
                Rule::SerialLength,
                Rule::SerialAlphabet,
            )
            .err(),
            text(Field::Mlb, &self.mlb, MLB_LENGTH, Rule::MlbLength, Rule::MlbAlphabet).err(),
            parse_rom(&self.rom).err(),
            uuid_form(&self.system_uuid).err(),
            parse_mac(&self.mac_address).err(),
        ])
    }
}

/// A valid identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Identity {
    model: &'static Model,
    serial: String,
    mlb: String,
    rom: Octets,
    system_uuid: String,
}

impl Identity {
    /// The model it claims to be.
    pub fn model(&self) -> &'static Model {
        self.model
    }

    /// The serial, 12 characters.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The main logic board's serial, 17 characters.
    pub fn mlb(&self) -> &str {
        &self.mlb
    }

    /// The ROM's six bytes, which are the MAC address too.
    pub fn rom(&self) -> Octets {
        self.rom
    }

    /// The hardware UUID, in capitals.
    pub fn system_uuid(&self) -> &str {
        &self.system_uuid
    }

    /// The MAC address, in lower case with colons.
    pub fn mac_address(&self) -> String {
        mac_text(self.rom)
    }
}

impl TryFrom<Fields> for Identity {
    type Error = Refusals;

    fn try_from(fields: Fields) -> Result<Self, Refusals> {
        let mut refused: Vec<Refusal> = fields.check_form().err().map(|form| form.0).unwrap_or_default();
        let well_formed = |refused: &[Refusal], field| refused.iter().all(|refusal| refusal.field != field);
        let model = Model::find(&fields.model).map_err(|refusal| refused.push(refusal)).ok();
        if well_formed(&refused, Field::Mlb) && checksum(&fields.mlb) != Some(0) {
            refused.push(Refusal::new(Field::Mlb, &fields.mlb, Rule::MlbChecksum));
        }
        if let Some(refusal) = uuid_value(&fields.system_uuid).filter(|_| well_formed(&refused, Field::SystemUuid)) {
            refused.push(refusal);
        }
        let rom = parse_rom(&fields.rom).ok();
        if let (Some(rom), Ok(mac)) = (rom, parse_mac(&fields.mac_address))
            && rom != mac
        {
            refused.push(Refusal::new(Field::MacAddress, &fields.mac_address, Rule::MacIsRom));
        }
        let written = [
            (Field::Serial, &fields.serial),
            (Field::Mlb, &fields.mlb),
            (Field::Rom, &fields.rom),
            (Field::SystemUuid, &fields.system_uuid),
        ];
        refused.extend(
            written
                .into_iter()
                .filter_map(|(field, value)| samples::refuse(field, value).err()),
        );
        match (model, rom) {
            (Some(model), Some(rom)) if refused.is_empty() => Ok(Self {
                model,
                serial: fields.serial,
                mlb: fields.mlb,
                rom,
                system_uuid: fields.system_uuid,
            }),
            _ => Err(Refusals(refused)),
        }
    }
}

impl From<Identity> for Fields {
    fn from(identity: Identity) -> Self {
        Self {
            model: identity.model.name.to_owned(),
            rom: rom_text(identity.rom),
            mac_address: mac_text(identity.rom),
            serial: identity.serial,
            mlb: identity.mlb,
            system_uuid: identity.system_uuid,
        }
    }
}

fn collect(found: impl IntoIterator<Item = Option<Refusal>>) -> Result<(), Refusals> {
    let refused: Vec<_> = found.into_iter().flatten().collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(Refusals(refused))
    }
}

fn text(field: Field, value: &str, length: usize, wrong_length: Rule, wrong_letter: Rule) -> Result<(), Refusal> {
    if value.chars().count() != length {
        return Err(Refusal::new(field, value, wrong_length));
    }
    match first_foreign(value) {
        Some(_) => Err(Refusal::new(field, value, wrong_letter)),
        None => Ok(()),
    }
}

fn uuid_form(uuid: &str) -> Result<(), Refusal> {
    let hyphen = |at| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, byte): (usize, u8)| {
        if hyphen(at) {
            byte == b'-'
        } else {
            byte.is_ascii_hexdigit()
        }
    };
    if uuid.len() == 36 && uuid.bytes().enumerate().all(fits) {
        Ok(())
    } else {
        Err(Refusal::new(Field::SystemUuid, uuid, Rule::UuidShape))
    }
}

fn uuid_value(uuid: &str) -> Option<Refusal> {
    let mut digits = uuid.bytes().filter(|&byte| byte != b'-');
    let first = digits.next();
    let rule = if uuid.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Rule::UuidCase
    } else if digits.all(|digit| Some(digit) == first) {
        Rule::UuidBlank
    } else {
        return None;
    };
    Some(Refusal::new(Field::SystemUuid, uuid, rule))
}
