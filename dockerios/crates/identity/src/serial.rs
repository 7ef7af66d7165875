//! The 12 characters of a serial: place, half-year, week, production line, model. Invariant: what is made here reads
//! back as a place, year, week and line of the model that it was made for.

use rand::{Rng, RngCore};

use crate::alphabet::{character, value};
use crate::generate::pick;
use crate::models::Model;

/// How many characters a serial has.
pub const SERIAL_LENGTH: usize = 12;

/// Half-years from the first half of 2010 on; the row starts again with 2020.
const HALF_YEARS: &[u8; 20] = b"CDFGHJKLMNPQRSTVWXYZ";

/// Weeks 1 to 26 of the half-year.
const WEEKS: &[u8; 26] = b"123456789CDFGHJKLMNPQRTVWX";

/// Macs made later have serials of 10 random characters.
const LAST_YEAR: u16 = 2020;

/// One more than the greatest number of a production line.
const LINES: u32 = 3400;

/// When a machine or a board was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The calendar year.
    pub year: u16,
    /// The week, 1 to 52.
    pub week: u16,
}

impl Made {
    /// Boards are made in the week before the machine.
    pub(crate) fn week_before(self) -> Self {
        match self.week {
            0 | 1 => Self {
                year: self.year - 1,
                week: 52,
            },
            week => Self {
                year: self.year,
                week: week - 1,
            },
        }
    }
}

/// A serial of the model, and when it says that the machine was made.
pub(crate) fn mint(rng: &mut impl RngCore, model: &Model) -> (String, Made) {
    let last = (*model.built.end()).min(LAST_YEAR);
    let first = (*model.built.start()).min(last);
    let made = Made {
        year: rng.random_range(first..=last),
        week: rng.random_range(1..=52),
    };
    let line = rng.random_range(0..LINES);
    let serial = format!(
        "{}{}{}{}",
        model.location,
        week_letters(made),
        line_letters(line),
        pick(rng, model.model_codes)
    );
    (serial, made)
}

fn week_letters(made: Made) -> String {
    let since_2010 = usize::from(made.year.saturating_sub(2010));
    let week = usize::from(made.week.saturating_sub(1));
    let half_year = HALF_YEARS[(2 * since_2010 + week / WEEKS.len()) % HALF_YEARS.len()];
    [half_year, WEEKS[week % WEEKS.len()]].map(char::from).iter().collect()
}

/// The three characters of a line: 68a + 34b + c, with the smallest `a` that leaves a `b` below 34, which is how the
/// first machine of a line is written.
fn line_letters(line: u32) -> String {
    let a = line.saturating_sub(33 * 34 + 33).div_ceil(68);
    let rest = line - 68 * a;
    [a, rest / 34, rest % 34].map(character).iter().collect()
}

/// The number of the production line in a serial.
pub fn line(serial: &str) -> Option<u32> {
    let mut values = serial.chars().skip(5).take(3).map(value);
    let (a, b, c) = (values.next()??, values.next()??, values.next()??);
    Some(68 * a + 34 * b + c)
}

/// When a serial says that its machine was made. The letters repeat every ten years: the first year that fits and is
/// not before `earliest` is taken.
pub fn made(serial: &str, earliest: u16) -> Option<Made> {
    let mut letters = serial.bytes().skip(3);
    let (half_year, week) = (letters.next()?, letters.next()?);
    let half_year = HALF_YEARS.iter().position(|&letter| letter == half_year)?;
    let week = WEEKS.iter().position(|&letter| letter == week)? + WEEKS.len() * (half_year % 2) + 1;
    let mut year = 2010 + u16::try_from(half_year / 2).ok()?;
    while year < earliest {
        year += 10;
    }
    Some(Made {
        year,
        week: u16::try_from(week).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_of_the_imac_pro_reads_as_a_machine_of_december_2017() {
        assert_eq!(made("C02VV5RFHX87", 2010), Some(Made { year: 2017, week: 50 }));
        assert_eq!(line("C02VV5RFHX87"), Some(1205));
    }

    #[test]
    fn every_week_of_every_year_reads_back() {
        for year in 2010..=2020 {
            for week in 1..=52 {
                let made_then = Made { year, week };
                let serial = format!("C02{}000HX87", week_letters(made_then));
                assert_eq!(made(&serial, year), Some(made_then), "{serial}");
            }
        }
    }

    #[test]
    fn every_line_reads_back_and_is_written_in_its_first_form() {
        for number in 0..LINES {
            let letters = line_letters(number);
            assert_eq!(line(&format!("C02VV{letters}HX87")), Some(number), "{letters}");
        }
        assert_eq!(
            ["0ZZ", "1Y0", "ZZZ"].map(str::to_owned),
            [line_letters(1155), line_letters(1156), line_letters(3399)]
        );
    }

    #[test]
    fn a_board_is_made_in_the_week_before_and_borrows_a_year() {
        assert_eq!(
            Made { year: 2018, week: 1 }.week_before(),
            Made { year: 2017, week: 52 }
        );
        assert_eq!(
            Made { year: 2018, week: 40 }.week_before(),
            Made { year: 2018, week: 39 }
        );
    }
}
