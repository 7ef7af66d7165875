//! What the Secret holds: authorities in their order of succession and the report key.
//!
//! Layout of `data`: `report.key` (32 bytes), and for each authority `ca-<n>.crt` and `ca-<n>.key` (PEM), n from 1.
//! Invariant: a keyring has at least one authority; reading tells a foreign or damaged Secret from an own one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::generation::{Generation, PUBLISH_AHEAD, STOP_SIGNING};

/// Bytes of the key from which the tokens of guests are made.
pub const REPORT_KEY_BYTES: usize = 32;

/// More authorities than succession can leave behind are a sign of something else.
const MOST: usize = 8;

/// All keys of an installation.
#[derive(Clone)]
pub(crate) struct Keyring {
    generations: Vec<Generation>,
    report_key: Zeroizing<[u8; REPORT_KEY_BYTES]>,
}

/// The keys of a Secret's data.
pub(crate) type Data = BTreeMap<String, ByteString>;

impl Keyring {
    /// New keys.
    pub(crate) fn make(now: Timestamp) -> Result<Self, String> {
        let mut report_key = Zeroizing::new([0; REPORT_KEY_BYTES]);
        SystemRandom::new()
            .fill(report_key.as_mut())
            .map_err(|_| "the system gave no randomness".to_owned())?;
        Ok(Self {
            generations: vec![Generation::make(1, now)?],
            report_key,
        })
    }

    /// The keys of a Secret, or what is wrong with it.
    pub(crate) fn read(data: &Data) -> Result<Self, String> {
        if data.is_empty() {
            return Err("it holds no data".to_owned());
        }
        if let Some(other) = data.keys().find(|key| !ours(key)) {
            return Err(format!("it holds {other:?}, which is nothing of ours"));
        }
        let key = data.get("report.key").ok_or("it holds no report.key")?;
        let report_key = <[u8; REPORT_KEY_BYTES]>::try_from(key.0.as_slice())
            .map_err(|_| format!("report.key has {} bytes instead of {REPORT_KEY_BYTES}", key.0.len()))?;
        let mut generations = Vec::new();
        for number in numbers(data) {
            let certificate = text(data, &format!("ca-{number}.crt"))?;
            let key = Zeroizing::new(text(data, &format!("ca-{number}.key"))?);
            generations.push(Generation::read(number, certificate, key)?);
        }
        if generations.is_empty() {
            return Err("it holds no ca-1.crt".to_owned());
        }
        if generations.len() > MOST {
            return Err(format!(
                "it holds {} authorities, at most {MOST} can be ours",
                generations.len()
            ));
        }
        Ok(Self {
            generations,
            report_key: Zeroizing::new(report_key),
        })
    }

    /// What the Secret is to hold.
    pub(crate) fn data(&self) -> Data {
        let mut data = Data::from([("report.key".to_owned(), ByteString(self.report_key.to_vec()))]);
        for one in &self.generations {
            let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
            data.insert(format!("ca-{}.crt", one.number), bytes(one.certificate()));
            data.insert(format!("ca-{}.key", one.number), bytes(one.key()));
        }
        data
    }

    /// This keyring with a successor where one is due and without what has expired; None when nothing is to be done.
    pub(crate) fn renewed(&self, now: Timestamp) -> Result<Option<Self>, String> {
        let mut generations = self.generations.clone();
        generations.retain(|one| one.has(SignedDuration::ZERO, now));
        if !generations.iter().any(|one| one.has(PUBLISH_AHEAD, now)) {
            let last = self.generations.last().map_or(0, |one| one.number);
            let number = last.checked_add(1).ok_or("the numbers of authorities are used up")?;
            generations.push(Generation::make(number, now)?);
        }
        let same = generations.len() == self.generations.len()
            && generations
                .iter()
                .zip(&self.generations)
                .all(|(a, b)| a.number == b.number);
        Ok((!same).then(|| Self {
            generations,
            report_key: self.report_key.clone(),
        }))
    }

    /// The authority that signs now: the oldest that has a year left, since it has been known for longest.
    pub(crate) fn signer(&self, now: Timestamp) -> Option<&Generation> {
        let oldest = self.generations.iter().find(|one| one.has(STOP_SIGNING, now));
        oldest.or(self.generations.last())
    }

    /// All authorities that are to be trusted, PEM.
    pub(crate) fn bundle(&self, now: Timestamp) -> String {
        let valid = self.generations.iter().filter(|one| one.has(SignedDuration::ZERO, now));
        valid.map(|one| format!("{}\n", one.certificate().trim_end())).collect()
    }

    /// The key behind the tokens of guests.
    pub(crate) fn report_key(&self) -> Zeroizing<[u8; REPORT_KEY_BYTES]> {
        self.report_key.clone()
    }
}

/// Whether this key of a Secret's data is one that is written here.
fn ours(key: &str) -> bool {
    key == "report.key" || number_of(key, ".crt").is_some() || number_of(key, ".key").is_some()
}

fn number_of(key: &str, suffix: &str) -> Option<u32> {
    let digits = key.strip_prefix("ca-")?.strip_suffix(suffix)?;
    let number: u32 = digits.parse().ok()?;
    // `ca-01.crt` and `ca-+1.crt` are not how they are written
    (number > 0 && number.to_string() == digits).then_some(number)
}

/// The numbers of authorities that have a certificate or a key, in order.
fn numbers(data: &Data) -> Vec<u32> {
    let either = |key: &String| number_of(key, ".crt").or_else(|| number_of(key, ".key"));
    let mut numbers: Vec<u32> = data.keys().filter_map(either).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn text(data: &Data, key: &str) -> Result<String, String> {
    let bytes = data
        .get(key)
        .ok_or_else(|| format!("it holds no {key}, which belongs to the other one"))?;
    String::from_utf8(bytes.0.clone()).map_err(|_| format!("{key} is no text"))
}

#[cfg(test)]
#[path = "keyring_tests.rs"]
mod tests;
