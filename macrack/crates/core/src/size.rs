//! Cores, memory and disk: what an instance class takes and what a node class leaves. Admission and the award of slots
//! judge by the same numbers and say them in the same words.

use macrack_api::{InstanceClassSpec, MacNodeClassSpec, Quantity};

/// Cores, bytes, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) cores: u64,
    pub(crate) memory: u64,
    pub(crate) disk: u64,
}

/// A stored text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoQuantity {
    pub(crate) field: &'static str,
    pub(crate) text: String,
}

fn bytes(field: &'static str, quantity: &Quantity) -> Result<u64, NoQuantity> {
    quantity.value().ok_or_else(|| NoQuantity { field, text: quantity.0.clone() })
}

fn count(cores: i64) -> u64 {
    u64::try_from(cores).unwrap_or(0)
}

impl Size {
    /// What one VM of the class takes.
    pub(crate) fn of(class: &InstanceClassSpec) -> Result<Self, NoQuantity> {
        Ok(Self {
            cores: count(class.cpu_cores),
            memory: bytes("spec.memory", &class.memory)?,
            disk: bytes("spec.disk", &class.disk)?,
        })
    }

    /// What a Mac of the class leaves to VMs: all of it less the host's reserve.
    pub(crate) fn left_by(class: &MacNodeClassSpec) -> Result<Self, NoQuantity> {
        let reserve = &class.host_reserve;
        Ok(Self {
            cores: count(class.cpu_cores).saturating_sub(count(reserve.cpu_cores)),
            memory: bytes("spec.memory", &class.memory)?
                .saturating_sub(bytes("spec.hostReserve.memory", &reserve.memory)?),
            disk: bytes("spec.storage", &class.storage)?
                .saturating_sub(bytes("spec.hostReserve.storage", &reserve.storage)?),
        })
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cores: self.cores.saturating_add(other.cores),
            memory: self.memory.saturating_add(other.memory),
            disk: self.disk.saturating_add(other.disk),
        }
    }

    /// The first measure in which `self` exceeds `room`: its name, what is wanted, what there is.
    pub(crate) fn exceeds(self, room: Self) -> Option<(&'static str, String, String)> {
        if self.cores > room.cores {
            return Some(("CPU", format!("{} cores", self.cores), format!("{} cores", room.cores)));
        }
        [("memory", self.memory, room.memory), ("disk", self.disk, room.disk)]
            .into_iter()
            .find(|(_, wanted, there)| wanted > there)
            .map(|(what, wanted, there)| (what, amount(wanted), amount(there)))
    }

    /// How many VMs of this size fit in `room`; more than two is two, a Mac carries no more.
    pub(crate) fn fit(self, room: Self) -> usize {
        let fits = |n: usize| {
            let all = (0..n).fold(Self::default(), |sum, _| sum.plus(self));
            all.exceeds(room).is_none()
        };
        (1..=macrack_api::names::VMS_PER_MAC).take_while(|n| fits(*n)).count()
    }
}

/// Bytes as people write them: `56Gi` or `850G` where that is exact, else rounded to a tenth.
pub(crate) fn amount(bytes: u64) -> String {
    for (unit, scale) in [("Gi", 1u64 << 30), ("G", 1_000_000_000), ("Mi", 1 << 20), ("M", 1_000_000)] {
        if bytes > 0 && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{:.1}G", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_said_as_people_write_them() {
        for (bytes, said) in [
            (56u64 << 30, "56Gi"),
            (850_000_000_000, "850G"),
            (512 << 20, "512Mi"),
            (1_234_567_890, "1.2G"),
            (0, "0.0G"),
        ] {
            assert_eq!(amount(bytes), said);
        }
    }

    #[test]
    fn a_mac_leaves_what_the_host_does_not_keep() {
        let class: MacNodeClassSpec = serde_json::from_value(serde_json::json!({
            "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
            "memory": "64Gi", "storage": "1T", "linkSpeed": "10G",
            "hostReserve": {"cpuCores": 3, "memory": "8Gi", "storage": "150G"},
        }))
        .unwrap();
        let room = Size::left_by(&class).unwrap();
        assert_eq!(room, Size { cores: 11, memory: 56 << 30, disk: 850_000_000_000 });
        let wide = Size { cores: 12, ..Size::default() };
        assert_eq!(wide.exceeds(room), Some(("CPU", "12 cores".to_owned(), "11 cores".to_owned())));
    }

    #[test]
    fn two_fit_or_one_or_none() {
        let room = Size { cores: 12, memory: 56 << 30, disk: 850_000_000_000 };
        let half = Size { cores: 6, memory: 28 << 30, disk: 250_000_000_000 };
        assert_eq!(half.fit(room), 2);
        assert_eq!(Size { cores: 4, ..half }.fit(room), 2, "never three");
        assert_eq!(Size { memory: 29 << 30, ..half }.fit(room), 1);
        assert_eq!(Size { disk: 851_000_000_000, ..half }.fit(room), 0);
        assert_eq!(Size { memory: u64::MAX, ..half }.fit(room), 0, "no overflow");
    }
}
