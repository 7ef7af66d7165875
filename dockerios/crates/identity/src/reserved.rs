//! Which values are taken. Invariant: of all that was reserved here, no two share serial, MLB, ROM or UUID, in
//! whatever case they are written, and an identity that collides in one of them reserves none.
//!
//! The set is a snapshot. Whoever mints builds it from a list that was read for this minting, with every identity in
//! it whatever its phase, and never from a cache that may lag.

use std::collections::HashSet;

use crate::address::rom_text;
use crate::identity::{Fields, Identity};
use crate::refusal::{Field, Refusal, Refusals, Rule};

/// The four values that are unique in the fleet, as they are written. The MAC address is the ROM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The serial.
    pub serial: String,
    /// The main logic board's serial.
    pub mlb: String,
    /// The ROM, 12 hexadecimal digits.
    pub rom: String,
    /// The hardware UUID.
    pub system_uuid: String,
}

impl From<&Identity> for Keys {
    fn from(identity: &Identity) -> Self {
        Self {
            serial: identity.serial().to_owned(),
            mlb: identity.mlb().to_owned(),
            rom: rom_text(identity.rom()),
            system_uuid: identity.system_uuid().to_owned(),
        }
    }
}

impl From<&Fields> for Keys {
    fn from(fields: &Fields) -> Self {
        Self {
            serial: fields.serial.clone(),
            mlb: fields.mlb.clone(),
            rom: fields.rom.clone(),
            system_uuid: fields.system_uuid.clone(),
        }
    }
}

/// The taken values.
#[derive(Debug, Clone, Default)]
pub struct Reserved {
    taken: HashSet<(Field, String)>,
}

impl Reserved {
    /// All values of the identities that there are, in whatever phase. They may collide among themselves: that is for
    /// the check after the write to say.
    pub fn of(existing: impl IntoIterator<Item = Keys>) -> Self {
        Self {
            taken: existing.into_iter().flat_map(|keys| folded(&keys)).collect(),
        }
    }

    /// Takes all four values, or none and says which are taken already.
    pub fn reserve(&mut self, keys: &Keys) -> Result<(), Refusals> {
        let wanted = folded(keys);
        let refused: Vec<_> = wanted
            .iter()
            .filter(|key| self.taken.contains(*key))
            .map(|(field, value)| Refusal::new(*field, value, Rule::Taken))
            .collect();
        if !refused.is_empty() {
            return Err(Refusals(refused));
        }
        self.taken.extend(wanted);
        Ok(())
    }
}

fn folded(keys: &Keys) -> [(Field, String); 4] {
    [
        (Field::Serial, &keys.serial),
        (Field::Mlb, &keys.mlb),
        (Field::Rom, &keys.rom),
        (Field::SystemUuid, &keys.system_uuid),
    ]
    .map(|(field, value)| (field, value.to_uppercase()))
}
