//! Whether a golden or a clone fits on the disk: pure functions of measurements.
//!
//! Invariants:
//! - after a pull or a clone that was allowed here, every clone may still grow to the size of its class, the golden
//!   under way may come to its end, and the host has its own need;
//! - what cannot be measured is refused, and nothing is evicted for what would be refused all the same.

use std::collections::BTreeMap;

/// What stands on the disk, in bytes.
#[derive(Debug, Clone)]
pub struct Disk<'a> {
    /// Free bytes; `None` when they could not be measured.
    pub free: Option<u64>,
    /// Bytes that must stay free: what the instances' disks may still grow by, and the host's own need.
    pub reserve: u64,
    /// Goldens that may be evicted, the least recently used first: (hex, bytes).
    pub unused: &'a [(String, u64)],
}

/// Why there is no room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The golden's size is not known, so that nothing can be promised.
    #[error("the size of the golden is not known; its manifest must say diskBytes")]
    SizeUnknown,
    /// The free space could not be measured.
    #[error("the free space of the disk could not be measured; nothing is pulled until it can")]
    NotMeasured,
    /// It does not fit.
    #[error(
        "no room for the golden: it needs {} and {} must stay free for the instances' disks and the host, {} is free and {} could be evicted; delete an instance, or use a smaller image",
        gigabytes(*needed), gigabytes(*reserve), gigabytes(*free), gigabytes(*evictable)
    )]
    TooLittle {
        /// Bytes of the golden.
        needed: u64,
        /// Bytes that must stay free.
        reserve: u64,
        /// Free bytes.
        free: u64,
        /// Bytes of goldens that may be evicted.
        evictable: u64,
    },
    /// The disk of an instance could not grow to the size of its class.
    #[error(
        "no room for its disk: it may grow to {}, {} is free, of which {} is promised to other instances' disks and the host{}; delete an instance, or use a smaller InstanceClass",
        gigabytes(*needed), gigabytes(*free), gigabytes(*promised),
        if *coming > 0 { format!(" and {} to the golden that is being pulled", gigabytes(*coming)) } else { String::new() }
    )]
    ForDisk {
        /// Bytes that the disk may grow to.
        needed: u64,
        /// Bytes that must stay free for other disks and the host.
        promised: u64,
        /// Bytes of the golden under way.
        coming: u64,
        /// Free bytes.
        free: u64,
    },
}

/// Which goldens must be evicted, the least recently used first, so that one of `size` bytes fits.
///
/// # Errors
/// When it does not fit whatever is evicted, or a measurement is missing.
pub fn make_room(size: Option<u64>, disk: &Disk<'_>) -> Result<Vec<String>, NoRoom> {
    let needed = size.filter(|size| *size > 0).ok_or(NoRoom::SizeUnknown)?;
    let free = disk.free.ok_or(NoRoom::NotMeasured)?;
    evictions(needed.saturating_add(disk.reserve), free, disk.unused).ok_or_else(|| {
        let evictable = disk.unused.iter().map(|(_, bytes)| *bytes).sum();
        NoRoom::TooLittle { needed, reserve: disk.reserve, free, evictable }
    })
}

/// Which goldens must be evicted, the least recently used first, so that the reserve is free again: the disks of
/// instances have grown, or another is to be cloned. None where it would not suffice.
pub fn relieve(disk: &Disk<'_>) -> Vec<String> {
    let evicted = disk.free.and_then(|free| evictions(disk.reserve, free, disk.unused));
    evicted.unwrap_or_default()
}

/// The first of `unused` that must go until `target` bytes are free; `None` when all of them are not enough.
fn evictions(target: u64, free: u64, unused: &[(String, u64)]) -> Option<Vec<String>> {
    let mut freed = free;
    let mut evicted = Vec::new();
    for (hex, bytes) in unused {
        if freed >= target {
            break;
        }
        freed = freed.saturating_add(*bytes);
        evicted.push(hex.clone());
    }
    (freed >= target).then_some(evicted)
}

/// Bytes that a disk of at most `size` bytes may still take from the free ones, when it has `allocated` now and shared
/// `shared` with its golden at first. A shared block counts as allocated and costs another one as soon as it is
/// written: so this never says too little.
pub fn growth(size: u64, allocated: u64, shared: u64) -> u64 {
    size.saturating_sub(allocated.saturating_sub(shared))
}

/// A disk that is to be cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    /// Its instance.
    pub uid: String,
    /// Bytes that it may grow to.
    pub size: u64,
}

/// Those of `clones`, the first served first, that must wait for room, and why. `promised` bytes must stay free for the
/// disks that there are and for the host, `coming` for the golden that is being pulled.
pub fn crowded_out(clones: &[NewDisk], free: Option<u64>, promised: u64, coming: u64) -> BTreeMap<String, NoRoom> {
    let mut promised = promised;
    let mut waiting = BTreeMap::new();
    for clone in clones {
        let reserve = promised.saturating_add(coming);
        match free {
            None => drop(waiting.insert(clone.uid.clone(), NoRoom::NotMeasured)),
            Some(free) if free < reserve.saturating_add(clone.size) => {
                let no = NoRoom::ForDisk { needed: clone.size, promised, coming, free };
                waiting.insert(clone.uid.clone(), no);
            }
            // it is cloned now, and may grow
            Some(_) => promised = promised.saturating_add(clone.size),
        }
    }
    waiting
}

/// `12.3 GB`, decimal as on a disk's label.
pub fn gigabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000_000;
    format!("{}.{} GB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn judged(free: Option<u64>, golden: Option<u64>, unused: &[u64], reserve: u64) -> Result<usize, NoRoom> {
        let unused: Vec<_> = unused.iter().enumerate().map(|(n, gb)| (format!("golden-{n}"), gb * GB)).collect();
        let disk = Disk { free: free.map(|gb| gb * GB), reserve: reserve * GB, unused: &unused };
        make_room(golden.map(|gb| gb * GB), &disk).map(|evicted| evicted.len())
    }

    #[test]
    fn a_pull_is_allowed_only_if_the_reserve_stays_free_after_it() {
        assert_eq!(judged(Some(600), Some(120), &[], 100), Ok(0), "there is room");
        assert!(matches!(judged(Some(200), Some(120), &[], 100), Err(NoRoom::TooLittle { .. })));
        assert_eq!(judged(Some(200), Some(120), &[90], 100), Ok(1), "evicting one makes room");
        assert!(
            matches!(judged(Some(200), Some(120), &[5], 100), Err(NoRoom::TooLittle { .. })),
            "nothing is evicted in vain"
        );
        assert_eq!(judged(Some(200), None, &[], 100), Err(NoRoom::SizeUnknown));
        assert_eq!(judged(None, Some(120), &[], 100), Err(NoRoom::NotMeasured));
        assert_eq!(judged(Some(220), Some(120), &[90], 100), Ok(0), "exactly enough is enough");
    }

    #[test]
    fn the_least_recently_used_goes_first_and_no_more_than_needed() {
        let unused = [("oldest".to_owned(), 50 * GB), ("newer".to_owned(), 50 * GB), ("newest".to_owned(), 50 * GB)];
        let disk = Disk { free: Some(150 * GB), reserve: 100 * GB, unused: &unused };
        assert_eq!(make_room(Some(120 * GB), &disk), Ok(vec!["oldest".to_owned(), "newer".to_owned()]));
    }

    #[test]
    fn a_refusal_names_the_numbers_and_the_way_out() {
        let disk = Disk { free: Some(99 * GB), reserve: 100 * GB, unused: &[] };
        let said = make_room(Some(120 * GB), &disk).unwrap_err().to_string();
        for part in ["120.0 GB", "100.0 GB", "99.0 GB", "delete an instance"] {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
    }

    fn clone(uid: &str, size: u64) -> NewDisk {
        NewDisk { uid: uid.to_owned(), size }
    }

    #[test]
    fn a_clone_is_allowed_to_the_byte_of_what_every_disk_may_still_grow_by() {
        let one = [clone("a", 100 * GB)];
        assert!(crowded_out(&one, Some(110 * GB), 10 * GB, 0).is_empty(), "exactly enough is enough");
        let no = crowded_out(&one, Some(110 * GB - 1), 10 * GB, 0);
        assert_eq!(no["a"], NoRoom::ForDisk { needed: 100 * GB, promised: 10 * GB, coming: 0, free: 110 * GB - 1 });
        assert!(crowded_out(&one, Some(130 * GB), 10 * GB, 20 * GB).is_empty(), "the pull may come to its end");
        assert_eq!(crowded_out(&one, Some(130 * GB), 10 * GB, 20 * GB + 1).len(), 1, "the pull would not");
        assert_eq!(crowded_out(&one, None, 0, 0)["a"], NoRoom::NotMeasured);
        assert_eq!(crowded_out(&[clone("a", u64::MAX)], Some(u64::MAX), 1, 1).len(), 0, "saturated, not wrapped");
    }

    #[test]
    fn two_clones_at_once_are_not_promised_the_same_bytes() {
        let both = [clone("a", 100 * GB), clone("b", 100 * GB)];
        let room = |free| crowded_out(&both, Some(free), 10 * GB, 0).into_keys().collect::<Vec<_>>();
        assert!(room(210 * GB).is_empty());
        assert_eq!(room(210 * GB - 1), ["b"], "the first keeps its place");
        assert_eq!(room(110 * GB - 1), ["a", "b"]);
        let small_second = [clone("a", 100 * GB), clone("b", 5 * GB)];
        assert!(crowded_out(&small_second, Some(20 * GB), 10 * GB, 0).into_keys().eq(["a"]), "one that fits goes on");
    }

    #[test]
    fn what_a_clone_may_still_take_counts_shared_blocks_as_not_taken_yet() {
        assert_eq!(growth(100, 0, 0), 100);
        assert_eq!(growth(100, 60, 60), 100, "every shared block may be written");
        assert_eq!(growth(100, 75, 60), 85, "15 are its own");
        assert_eq!(growth(100, 75, 0), 25, "a copy shares nothing");
        assert_eq!(growth(100, 50, 60), 100, "it freed some of its golden's");
        assert_eq!(growth(100, 170, 60), 0, "never below nothing");
    }

    #[test]
    fn goldens_go_for_growing_disks_only_where_that_helps() {
        let unused = [("old".to_owned(), 30 * GB), ("new".to_owned(), 30 * GB)];
        let gone = |free: Option<u64>, reserve: u64| relieve(&Disk { free, reserve: reserve * GB, unused: &unused });
        assert!(gone(Some(100 * GB), 100).is_empty(), "the reserve is free");
        assert_eq!(gone(Some(100 * GB - 1), 100), ["old"], "one byte short");
        assert_eq!(gone(Some(50 * GB), 100), ["old", "new"]);
        assert!(gone(Some(30 * GB), 100).is_empty(), "all of them are not enough: none goes in vain");
        assert!(gone(None, 100).is_empty(), "nothing is known");
    }

    #[test]
    fn a_clone_that_waits_names_the_numbers_and_the_way_out() {
        let no = NoRoom::ForDisk { needed: 100 * GB, promised: 10 * GB, coming: 5 * GB, free: 99 * GB }.to_string();
        for part in ["100.0 GB", "10.0 GB", "5.0 GB", "99.0 GB", "smaller InstanceClass"] {
            assert!(no.contains(part), "{part} is missing in: {no}");
        }
    }
}
