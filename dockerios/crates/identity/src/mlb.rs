//! The 17 characters of a main logic board's serial number. Invariant: the weighted sum of what is made here is a
//! multiple of 34, which is all that Apple's own software checks.

use rand::{Rng, RngCore};

use crate::alphabet::{character, value};
use crate::generate::pick;
use crate::models::Model;
use crate::serial::Made;

/// How many characters an MLB has on every model of the tables.
pub const MLB_LENGTH: usize = 17;

/// What may stand between the item number and the board code. OpenCorePkg's `macserial` knows one more that has an
/// O in it, which is not in the alphabet.
const INFIXES: [&str; 5] = ["GU", "4N", "J9", "QX", "CD"];

/// The weighted sum modulo 34: weight 1 on even places counted from 0, weight 3 on odd ones. `None` when a character
/// is not of the alphabet.
pub(crate) fn checksum(mlb: &str) -> Option<u32> {
    mlb.chars().enumerate().try_fold(0, |sum, (at, character)| {
        let weight = if at % 2 == 1 { 3 } else { 1 };
        Some((sum + weight * value(character)?) % 34)
    })
}

/// An MLB for a machine whose serial says that it was made in that week.
pub(crate) fn mint(rng: &mut impl RngCore, model: &Model, made: Made) -> String {
    let board = made.week_before();
    let mut mlb = format!(
        "{}{}{:02}{:03}{}{}{}",
        model.location,
        board.year % 10,
        board.week,
        rng.random_range(0..1000),
        pick(rng, &INFIXES),
        pick(rng, model.board_codes),
        character(rng.random_range(0..34)),
    );
    // the last place is even, so its weight is 1 and the missing value is the character itself
    let sum = checksum(&mlb).unwrap_or_default();
    mlb.push(character(34 - sum));
    mlb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_published_boards_hold_the_checksum_and_a_changed_character_breaks_it() {
        assert_eq!(checksum("C02717306J9JG361M"), Some(0));
        assert_eq!(checksum("C027251024NJG36UE"), Some(0));
        assert_ne!(checksum("C027251024NJG36UF"), Some(0));
        assert_ne!(checksum("C02725102N4JG36UE"), Some(0), "two swapped neighbours");
        assert_eq!(checksum("C02725102IOJG36UE"), None);
    }
}
