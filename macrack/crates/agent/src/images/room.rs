//! Whether a golden fits on the disk: a pure function of measurements.
//!
//! Invariant: after a pull that was allowed here, `reserve` bytes are still free. What cannot be
//! measured is refused, and nothing is evicted for a pull that would be refused all the same.

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
}

/// Which goldens must be evicted, the least recently used first, so that one of `size` bytes fits.
///
/// # Errors
/// When it does not fit whatever is evicted, or a measurement is missing.
pub fn make_room(size: Option<u64>, disk: &Disk<'_>) -> Result<Vec<String>, NoRoom> {
    let needed = size.filter(|size| *size > 0).ok_or(NoRoom::SizeUnknown)?;
    let free = disk.free.ok_or(NoRoom::NotMeasured)?;
    let target = needed.saturating_add(disk.reserve);
    let mut freed = free;
    let mut evicted = Vec::new();
    for (hex, bytes) in disk.unused {
        if freed >= target {
            break;
        }
        freed = freed.saturating_add(*bytes);
        evicted.push(hex.clone());
    }
    if freed < target {
        let evictable = disk.unused.iter().map(|(_, bytes)| *bytes).sum();
        return Err(NoRoom::TooLittle { needed, reserve: disk.reserve, free, evictable });
    }
    Ok(evicted)
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
}
