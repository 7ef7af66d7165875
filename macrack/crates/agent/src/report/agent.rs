//! `MacNode.status.agent`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use macrack_api::Quantity;
use macrack_api::rack::node::{
    AgentStatus, Golden, Hardware, HostFacts as Prepared, HostFinding, LeaseRecord, Pull, QuotaFacts, RebootFacts,
    Slot, Vm, VmState, WipeReceipt,
};

use super::{MESSAGE, bounded, state};
use crate::doctor;
use crate::host::HostFacts;
use crate::images;
use crate::life::Facts;
use crate::notes;
use crate::orders::Say;
use crate::quota::Quota;
use crate::selftest;
use crate::writer::Report;

/// Most entries of a list in the report, as the schema says.
const LIST: usize = 16;
/// Most pulls in the report, as the schema says.
const PULLS: usize = 4;
/// Free disk is reported in whole gigabytes, so that it changes seldom.
const GIGABYTE: u64 = 1_000_000_000;

/// What the report is made from.
#[derive(Debug)]
pub struct Sources<'a> {
    /// The Mac.
    pub host: &'a HostFacts,
    /// Seconds that its clock is ahead of the API server's, when that is worth a word.
    pub clock_skew_seconds: Option<i64>,
    /// Free bytes, as far as they could be measured.
    pub disk_free: Option<u64>,
    /// The kernel's counter.
    pub quota: &'a Quota,
    /// Why the last lease cannot be read or kept.
    pub lease_problem: Option<&'a str>,
    /// The orders.
    pub slots: &'a [Slot],
    /// Every VM.
    pub vms: &'a BTreeMap<String, Facts>,
    /// What was decided about them.
    pub says: &'a BTreeMap<String, Say>,
    /// Receipts of the last wipes, by uid.
    pub receipts: &'a BTreeMap<String, WipeReceipt>,
    /// Bytes of the free ones that are promised.
    pub disk_reserved: u64,
    /// Goldens by hex.
    pub goldens: &'a BTreeMap<String, images::Golden>,
    /// Pulls by hex.
    pub pulls: &'a BTreeMap<String, images::Pulled>,
    /// The last lease.
    pub last_lease: Option<LeaseRecord>,
    /// The last reboot that was asked of the host.
    pub reboot: Option<RebootFacts>,
}

/// The report and the MacNode that it is written to.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentReport {
    /// uid of the MacNode; one that was made again is written anew.
    pub mac_node: String,
    /// Counts how often the report was lost from the MacNode.
    pub losses: u32,
    /// The report.
    pub status: AgentStatus,
}

impl Report for AgentReport {
    fn is_news(&self, written: &Self) -> bool {
        let without_progress = |report: &AgentReport| {
            let mut report = report.clone();
            report.status.disk_free = None;
            report.status.disk_reserved = None;
            let pulling = report.status.vms.iter_mut().filter(|vm| vm.state == VmState::Pulling);
            pulling.for_each(|vm| vm.message = None);
            for pull in report.status.pulls.iter_mut().filter(|pull| pull.finished_at.is_none()) {
                (pull.bytes, pull.bytes_per_second, pull.seconds_left) = (0, None, None);
            }
            report
        };
        without_progress(self) != without_progress(written)
    }
}

/// Renders the report.
pub fn render(sources: &Sources<'_>) -> AgentStatus {
    let host = sources.host;
    let short = |text: &str, most| bounded(text, most);
    AgentStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: short(&host.boot_id, 64),
        host_version: Some(short(&host.host_version, 32)),
        hardware: Some(Hardware {
            serial: short(&host.serial, 32),
            model: short(&host.model, 32),
            // as classes name it
            chip: short(host.chip.strip_prefix("Apple ").unwrap_or(&host.chip), 32),
            cpu_cores: host.cpu_cores.into(),
            memory: Quantity::bytes(host.memory_bytes),
            storage: decimal(host.disk_bytes),
            link_speed: host.link_bits_per_second.map(decimal),
        }),
        host: Some(Prepared {
            entitled: host.entitled,
            keychain_unlocked: host.keychain_unlocked,
            auto_login: host.auto_login,
            findings: findings(sources),
        }),
        disk_free: sources.disk_free.map(|free| Quantity(format!("{}G", free / GIGABYTE))),
        disk_reserved: Some(Quantity(format!("{}G", sources.disk_reserved.div_ceil(GIGABYTE)))),
        clock_skew_seconds: sources.clock_skew_seconds,
        quota: quota(sources),
        reboot: sources.reboot.clone(),
        vms: vms(sources),
        last_lease: sources.last_lease.clone(),
        goldens: goldens(sources),
        pulls: pulls(sources),
    }
}

/// What the agent does not know of its own past comes first: it concerns the Mac whatever else is wrong with it.
fn findings(sources: &Sources<'_>) -> Vec<HostFinding> {
    let notes = notes::findings(sources.quota, sources.lease_problem);
    notes.into_iter().chain(doctor::hindrances(sources.host)).take(doctor::MOST).collect()
}

fn quota(sources: &Sources<'_>) -> QuotaFacts {
    let running = sources.vms.values().filter(|vm| vm.life.is_alive()).count();
    QuotaFacts {
        running: i32::try_from(running).unwrap_or(i32::MAX),
        foreign: i32::try_from(sources.quota.foreign).unwrap_or(i32::MAX),
        stuck: sources.quota.stuck,
        checked_boot_id: sources.quota.checked_boot_id.as_deref().map(|id| bounded(id, 64)),
    }
}

/// Those in slots first: they are never left out.
fn vms(sources: &Sources<'_>) -> Vec<Vm> {
    let mut uids: Vec<&String> = sources.slots.iter().map(|slot| &slot.uid).collect();
    let slotted: BTreeSet<&String> = uids.iter().copied().collect();
    // the self test is nobody's, and has no slot to be wiped in: the agent wipes it by itself
    uids.extend(sources.vms.keys().filter(|uid| !slotted.contains(uid) && *uid != selftest::UID));
    let render = |uid: &String| {
        let facts = sources.vms.get(uid);
        let (state, message) = state(facts.map(|facts| &facts.life), sources.says.get(uid));
        Vm {
            uid: uid.clone(),
            state,
            guest_ready: facts.is_some_and(|facts| facts.guest_ready) && state == VmState::Running,
            message: message.map(|message| bounded(&message, MESSAGE)),
            since: facts.map(|facts| Time(seconds(facts.since))),
            cloned_by: facts.and_then(|facts| facts.cloned_by),
            wipe: sources.receipts.get(uid).filter(|_| state == VmState::Wiped).map(receipt),
        }
    };
    uids.into_iter().take(LIST).map(render).collect()
}

/// A receipt as it is written: in whole seconds.
fn receipt(receipt: &WipeReceipt) -> WipeReceipt {
    WipeReceipt {
        started_at: Time(seconds(receipt.started_at.0)),
        finished_at: Time(seconds(receipt.finished_at.0)),
        ..receipt.clone()
    }
}

fn goldens(sources: &Sources<'_>) -> Vec<Golden> {
    let clones = |hex: &str| sources.vms.values().filter(|vm| vm.golden.as_deref() == Some(hex)).count();
    let render = |(hex, golden): (&String, &images::Golden)| Golden {
        digest: format!("sha256:{hex}"),
        size: Quantity::bytes(golden.bytes),
        clones: i32::try_from(clones(hex)).unwrap_or(i32::MAX),
        last_used: Time(hour(golden.last_used)),
    };
    sources.goldens.iter().take(LIST).map(render).collect()
}

fn pulls(sources: &Sources<'_>) -> Vec<Pull> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let render = |(hex, pull): (&String, &images::Pulled)| Pull {
        digest: format!("sha256:{hex}"),
        bytes: number(pull.account.bytes),
        total_bytes: number(pull.account.total_bytes),
        bytes_per_second: pull.account.bytes_per_second.map(number),
        seconds_left: pull.account.seconds_left.map(number),
        started_at: Time(seconds(pull.started_at)),
        finished_at: pull.finished_at.map(|at| Time(seconds(at))),
    };
    sources.pulls.iter().take(PULLS).map(render).collect()
}

/// A number of bytes or bits as a person writes a disk or a port: decimal.
fn decimal(n: u64) -> Quantity {
    let units = [("T", 1_000_000_000_000u64), ("G", GIGABYTE), ("M", 1_000_000), ("k", 1000)];
    let unit = units.into_iter().find(|(_, scale)| n > 0 && n.is_multiple_of(*scale));
    let (suffix, scale) = unit.unwrap_or(("", 1));
    Quantity(format!("{}{suffix}", n / scale))
}

/// What is written is in whole seconds.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn hour(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second() / 3600 * 3600).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::Life;

    fn report(vms: Vec<Vm>, free: &str) -> AgentReport {
        let status = AgentStatus { vms, disk_free: Some(Quantity::from(free)), ..AgentStatus::default() };
        AgentReport { mac_node: "uid".to_owned(), losses: 0, status }
    }

    fn vm(state: VmState, message: &str) -> Vm {
        Vm {
            uid: "u".to_owned(),
            state,
            guest_ready: false,
            message: Some(message.to_owned()),
            since: None,
            cloned_by: None,
            wipe: None,
        }
    }

    #[test]
    fn progress_of_a_pull_and_free_space_are_no_news_everything_else_is() {
        let written = report(vec![vm(VmState::Pulling, "1 of 2 GB")], "10G");
        assert!(!report(vec![vm(VmState::Pulling, "2 of 2 GB")], "9G").is_news(&written));
        assert!(report(vec![vm(VmState::Cloning, "")], "10G").is_news(&written));
        let waiting = report(vec![vm(VmState::Waiting, "for a pod")], "10G");
        assert!(report(vec![vm(VmState::Waiting, "for room")], "10G").is_news(&waiting));
    }

    #[test]
    fn an_orphan_is_reported_with_its_true_state_and_a_wiped_uid_only_while_it_has_a_slot() {
        let host = HostFacts {
            serial: String::new(),
            model: String::new(),
            chip: String::new(),
            cpu_cores: 1,
            memory_bytes: 1 << 30,
            disk_bytes: 1_000_000_000_000,
            link_bits_per_second: Some(10_000_000_000),
            host_version: String::new(),
            boot_id: String::new(),
            entitled: true,
            keychain_unlocked: true,
            auto_login: true,
            addresses: Vec::new(),
            hostd_problem: None,
            unread: Vec::new(),
        };
        let quota = Quota::default();
        let slot = |uid: &str| Slot {
            slot: 0,
            uid: uid.to_owned(),
            namespace: "t".to_owned(),
            name: "n".to_owned(),
            order: macrack_api::rack::node::Order::Wipe,
        };
        let orphan = Facts::new(Life::Running, Timestamp::UNIX_EPOCH);
        let vms = [("orphan".to_owned(), orphan)].into();
        let says = [("gone".to_owned(), Say::Wiped)].into();
        let goldens = BTreeMap::new();
        let wiped = WipeReceipt {
            started_at: Time(Timestamp::UNIX_EPOCH),
            finished_at: Time("1970-01-01T00:00:09.7Z".parse().unwrap()),
            items: Vec::new(),
            agent_version: "0.1.0".to_owned(),
        };
        let receipts = [("gone".to_owned(), wiped.clone()), ("orphan".to_owned(), wiped)].into();
        let states = |slots: &[Slot], says: &BTreeMap<String, Say>| {
            let sources = Sources {
                host: &host,
                clock_skew_seconds: None,
                disk_free: Some(1),
                quota: &quota,
                lease_problem: None,
                slots,
                vms: &vms,
                says,
                receipts: &receipts,
                disk_reserved: 1_500_000_000,
                goldens: &goldens,
                pulls: &BTreeMap::new(),
                last_lease: None,
                reboot: None,
            };
            let rendered = render(&sources);
            assert_eq!(rendered.hardware.unwrap().storage.0, "1T");
            assert_eq!(rendered.disk_reserved.unwrap().0, "2G", "never less than is promised");
            for vm in &rendered.vms {
                let finished = vm.wipe.as_ref().map(|wipe| wipe.finished_at.0.as_second());
                assert_eq!(finished, (vm.state == VmState::Wiped).then_some(9), "{}", vm.uid);
            }
            rendered.vms.into_iter().map(|vm| (vm.uid, vm.state)).collect::<Vec<_>>()
        };
        let alone = ("orphan".to_owned(), VmState::Running);
        assert_eq!(states(&[slot("gone")], &says), [("gone".to_owned(), VmState::Wiped), alone.clone()]);
        assert_eq!(states(&[], &BTreeMap::new()), [alone]);
    }
}
