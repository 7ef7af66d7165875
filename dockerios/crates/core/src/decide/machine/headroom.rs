//! Physical room: arithmetic alone.
//!
//! Invariant: what is not known is not plenty, and a rule that cannot be judged holds machines back.

use dockerios_api::{Size, config::platform_config::Headroom};

use crate::Seen;

/// Bytes of a storage class, as its source told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Physically free.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// A clone that shares blocks with its image takes nothing at first and grows with the first boot (caches, index,
/// swap): this part of its size is reserved for it until it is Ready. An allowance, not a measurement.
pub const GROWTH_SHARE: u64 = 16;

/// What a clone of `bytes` takes until its machine is Ready. `strategy` is CDI's word for how the storage class
/// clones; a word that is not known counts as a whole copy.
pub fn reservation(bytes: u64, strategy: Option<&str>) -> u64 {
    match strategy {
        Some("csi-clone" | "snapshot") => bytes / GROWTH_SHARE,
        _ => bytes,
    }
}

/// Points of the capacity above the threshold at which a storage class that was closed opens again: a pool that hovers
/// at its threshold would otherwise let machines in one by one, each of which closes it again. A choice of ours.
pub const REOPENS_ABOVE: u8 = 2;

/// Whether there is room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// No rule about the storage class.
    NotConfigured,
    /// So many bytes stay free, which is not less than must.
    Enough {
        /// Free after all reservations.
        left: u64,
        /// What must stay free.
        floor: u64,
    },
    /// Fewer bytes would stay free than must.
    Below {
        /// Free now.
        free: u64,
        /// Reserved for this machine, those before it, and those that are being made.
        reserved: u64,
        /// What must stay free.
        floor: Share,
        /// What would have to stay free for the storage class to open again.
        opens: Share,
        /// It was closed already: `opens` is what counts.
        held: bool,
    },
    /// The capacity is not known.
    Unknown(String),
}

/// Part of a storage class's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Percent of the capacity.
    pub percent: u8,
    /// The same in bytes, rounded up.
    pub bytes: u64,
}

impl Share {
    fn of(total: u64, percent: u8) -> Self {
        let percent = percent.min(100);
        // at most `total`, so it fits again
        let bytes = u64::try_from((u128::from(total) * u128::from(percent)).div_ceil(100)).unwrap_or(total);
        Self { percent, bytes }
    }
}

/// What must stay free of `total` bytes by that rule, and what for a storage class that was closed to open again.
pub fn thresholds(rule: &Headroom, total: u64) -> (Share, Share) {
    let floor = rule.min_free_percent;
    (
        Share::of(total, floor),
        Share::of(total, floor.saturating_add(REOPENS_ABOVE)),
    )
}

/// Judges a storage class: free less everything reserved (the machine's own part too) against the threshold, for a
/// machine that was `held` back in this very class already against [`REOPENS_ABOVE`] points more.
pub fn judge(rule: Option<&Headroom>, capacity: &Seen<Capacity>, reserved: u64, held: bool) -> Room {
    let Some(rule) = rule else { return Room::NotConfigured };
    let Capacity { free, total } = match capacity {
        Seen::Present(capacity) => *capacity,
        Seen::Absent => return Room::Unknown("its source says nothing about it".into()),
        Seen::Unknown(why) => return Room::Unknown(why.clone()),
    };
    if total == 0 || free > total {
        return Room::Unknown(format!(
            "its source says {free} of {total} bytes are free, which cannot be"
        ));
    }
    let (floor, opens) = thresholds(rule, total);
    let must = if held { opens } else { floor };
    if u128::from(free) >= u128::from(reserved) + u128::from(must.bytes) {
        Room::Enough {
            left: free.saturating_sub(reserved),
            floor: must.bytes,
        }
    } else {
        Room::Below {
            free,
            reserved,
            floor,
            opens,
            held,
        }
    }
}

/// Bytes for people: in tenths of a GiB.
pub(super) fn gib(bytes: u64) -> String {
    if bytes < 1 << 30 {
        return Size::of_bytes(bytes).to_string();
    }
    let tenths = bytes / ((1 << 30) / 10);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dockerios_api::config::platform_config::HeadroomSource;

    fn rule(percent: u8) -> Headroom {
        Headroom {
            storage_class_name: "fast".into(),
            min_free_percent: percent,
            source: HeadroomSource {
                csi_capacity: None,
                prometheus: None,
            },
        }
    }

    #[test]
    fn free_less_what_is_reserved_is_held_against_the_threshold() {
        let seen = |free, total| Seen::Present(Capacity { free, total });
        let rows = [
            // (percent, free, total, reserved, enough)
            (20, 100, 100, 80, true),
            (20, 100, 100, 81, false),
            (0, 5, 100, 5, true),
            (0, 5, 100, 6, false),
            (33, 34, 100, 0, true),
            (33, 33, 100, 0, true),
            (33, 4, 10, 0, true),
            // 33 % of 10 is rounded up to 4
            (33, 3, 10, 0, false),
            (90, u64::MAX, u64::MAX, 1 << 40, true),
            (90, u64::MAX, u64::MAX, u64::MAX, false),
        ];
        for (percent, free, total, reserved, enough) in rows {
            let room = judge(Some(&rule(percent)), &seen(free, total), reserved, false);
            assert_eq!(
                matches!(room, Room::Enough { .. }),
                enough,
                "{percent}% of {free}/{total}, {reserved}: {room:?}"
            );
        }
    }

    #[test]
    fn unknown_capacity_is_not_plenty() {
        for capacity in [
            Seen::Absent,
            Seen::Unknown("the query timed out".into()),
            Seen::Present(Capacity { free: 0, total: 0 }),
            Seen::Present(Capacity { free: 2, total: 1 }),
        ] {
            let room = judge(Some(&rule(0)), &capacity, 0, false);
            assert!(matches!(room, Room::Unknown(_)), "{capacity:?}: {room:?}");
        }
        assert_eq!(judge(None, &Seen::Absent, 1, false), Room::NotConfigured);
    }

    #[test]
    fn a_copy_reserves_its_whole_size_and_so_does_what_is_not_known() {
        for (strategy, bytes) in [
            (Some("copy"), 160),
            (None, 160),
            (Some("other"), 160),
            (Some("csi-clone"), 10),
            (Some("snapshot"), 10),
        ] {
            assert_eq!(reservation(160, strategy), bytes, "{strategy:?}");
        }
    }
}
