//! Making a batch. Invariant: what is made is unique in all four values within the batch and against what is
//! reserved; what is dropped is counted and explained; and a generator that only repeats itself ends the batch short,
//! never in a loop.

use std::collections::BTreeMap;
use std::fmt;

use crate::refusal::{Field, Refusals, Rule};
use crate::reserved::{Keys, Reserved};

/// What came of a batch.
#[derive(Debug)]
pub struct Filled<T> {
    /// The new ones, whose values are reserved now; at most as many as were wanted.
    pub made: Vec<T>,
    /// Why each of the others was dropped, in the order of the attempts.
    pub dropped: Vec<Refusals>,
    /// How many are missing because the attempts ran out.
    pub short: usize,
}

/// Asks `next` until `wanted` acceptable ones are made or `spare` ones were dropped.
pub fn fill<T>(
    wanted: usize,
    spare: usize,
    reserved: &mut Reserved,
    mut next: impl FnMut() -> Result<T, Refusals>,
) -> Filled<T>
where
    for<'a> Keys: From<&'a T>,
{
    let mut filled = Filled {
        made: Vec::new(),
        dropped: Vec::new(),
        short: wanted,
    };
    while filled.short > 0 && filled.dropped.len() < spare.max(1) {
        let unique = next().and_then(|candidate| reserved.reserve(&Keys::from(&candidate)).map(|()| candidate));
        match unique {
            Ok(candidate) => {
                filled.made.push(candidate);
                filled.short -= 1;
            }
            Err(why) => filled.dropped.push(why),
        }
    }
    filled
}

impl<T> fmt::Display for Filled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} made, {} dropped", self.made.len(), self.dropped.len())?;
        let mut reasons: BTreeMap<(Field, Rule), usize> = BTreeMap::new();
        for refusal in self.dropped.iter().flat_map(|refusals| &refusals.0) {
            *reasons.entry((refusal.field, refusal.rule)).or_default() += 1;
        }
        for (at, ((field, rule), count)) in reasons.iter().enumerate() {
            let opening = if at == 0 { " (" } else { ", " };
            let reason = if *rule == Rule::Taken { "taken" } else { "invalid" };
            write!(f, "{opening}{field} {reason}: {count}")?;
        }
        if !reasons.is_empty() {
            f.write_str(")")?;
        }
        if self.short > 0 {
            write!(
                f,
                "; {} missing: the attempts ran out, try again later or with another model",
                self.short
            )?;
        }
        Ok(())
    }
}
