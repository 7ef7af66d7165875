//! Which goldens go, and which are spoken for: pure.
//!
//! Invariant: a golden with a clone on this chassis, or that something asks for, is in no answer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::cache::Golden;

/// What is to be kept, and how much of the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// Hex of every golden that has a clone here or is asked for.
    pub in_use: BTreeSet<String>,
    /// `RackConfig.spec.imageCache.maxGoldens`.
    pub max_goldens: usize,
    /// `RackConfig.spec.imageCache.evictAfter`.
    pub evict_after: SignedDuration,
}

/// Goldens that may go, the least recently used first.
pub fn unused(goldens: &BTreeMap<String, Golden>, keeping: &Keeping) -> Vec<(String, u64)> {
    let mut unused: Vec<_> = goldens.iter().filter(|(hex, _)| !keeping.in_use.contains(*hex)).collect();
    unused.sort_by_key(|(hex, golden)| (golden.last_used, (*hex).clone()));
    unused.into_iter().map(|(hex, golden)| (hex.clone(), golden.bytes)).collect()
}

/// Goldens that must go now: not used for long, or above the number that is kept when `coming` more
/// are about to be pulled.
pub fn overdue(goldens: &BTreeMap<String, Golden>, keeping: &Keeping, coming: usize, now: Timestamp) -> Vec<String> {
    let too_many = (goldens.len() + coming).saturating_sub(keeping.max_goldens);
    let old = |hex: &str| goldens.get(hex).is_some_and(|g| now.duration_since(g.last_used) > keeping.evict_after);
    unused(goldens, keeping)
        .into_iter()
        .enumerate()
        .filter(|(n, (hex, _))| *n < too_many || old(hex))
        .map(|(_, (hex, _))| hex)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goldens(used_at: &[(&str, i64)]) -> BTreeMap<String, Golden> {
        used_at
            .iter()
            .map(|(hex, hour)| {
                let last_used = Timestamp::from_second(hour * 3600).unwrap();
                ((*hex).to_owned(), Golden { bytes: 1, last_used })
            })
            .collect()
    }

    fn keeping(in_use: &[&str], max_goldens: usize) -> Keeping {
        let in_use = in_use.iter().map(|hex| (*hex).to_owned()).collect();
        Keeping { in_use, max_goldens, evict_after: SignedDuration::from_hours(168) }
    }

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(hour * 3600).unwrap()
    }

    #[test]
    fn above_the_number_the_least_recently_used_goes() {
        let cached = goldens(&[("new", 9), ("old", 1), ("older", 0)]);
        assert_eq!(overdue(&cached, &keeping(&[], 2), 0, at(10)), ["older"]);
        assert_eq!(overdue(&cached, &keeping(&[], 2), 1, at(10)), ["older", "old"], "room for the one that comes");
    }

    #[test]
    fn a_golden_with_a_clone_stays_whatever_its_age_and_number() {
        let cached = goldens(&[("a", 0), ("b", 0), ("c", 0)]);
        assert!(overdue(&cached, &keeping(&["a", "b", "c"], 1), 1, at(100_000)).is_empty());
        assert!(unused(&cached, &keeping(&["a", "b", "c"], 1)).is_empty());
        assert_eq!(overdue(&cached, &keeping(&["a"], 3), 0, at(100_000)), ["b", "c"]);
    }

    #[test]
    fn one_that_was_not_used_for_long_goes_although_there_is_room() {
        let cached = goldens(&[("a", 0), ("b", 100)]);
        assert!(overdue(&cached, &keeping(&[], 2), 0, at(168)).is_empty());
        assert_eq!(overdue(&cached, &keeping(&[], 2), 0, at(169)), ["a"]);
    }
}
