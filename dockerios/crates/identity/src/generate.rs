//! Minting. Invariant: the same seed gives the same identities in the same order, on every machine and in every
//! release that keeps these rules; nothing here reads a clock or the system's randomness.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::identity::{Fields, Identity};
use crate::models::Model;
use crate::refusal::Refusals;
use crate::{address, mlb, serial};

/// Mints identities from a source of randomness.
#[derive(Debug, Clone)]
pub struct Generator<R> {
    rng: R,
}

impl Generator<ChaCha20Rng> {
    /// A generator whose every output follows from the seed. In production the seed comes from the system.
    pub fn seeded(seed: [u8; 32]) -> Self {
        Self::new(ChaCha20Rng::from_seed(seed))
    }
}

impl<R: RngCore> Generator<R> {
    /// A generator that draws from `rng`.
    pub fn new(rng: R) -> Self {
        Self { rng }
    }

    /// One identity of the model. It may collide with another one: see [`crate::fill`]. It is refused when it turns
    /// out to be a published sample, or when identities of that model cannot be made.
    pub fn mint(&mut self, model: &str) -> Result<Identity, Refusals> {
        let model = Model::find(model).map_err(|refusal| Refusals(vec![refusal]))?;
        let (serial, made) = serial::mint(&mut self.rng, model);
        let octets = address::mint(&mut self.rng);
        Identity::try_from(Fields {
            model: model.name.to_owned(),
            serial,
            mlb: mlb::mint(&mut self.rng, model, made),
            rom: address::rom_text(octets),
            mac_address: address::mac_text(octets),
            system_uuid: uuid(&mut self.rng),
        })
    }
}

/// A random (version 4) UUID in capitals.
fn uuid(rng: &mut impl RngCore) -> String {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32];
    groups.map(|group| digits[group].to_owned()).join("-")
}

/// One of the choices; empty only when there is none.
pub(crate) fn pick(rng: &mut impl RngCore, choices: &[&'static str]) -> &'static str {
    match choices {
        [] => "",
        _ => choices[rng.random_range(0..choices.len())],
    }
}
