//! The self test of a kernel's counter after a reboot: a VM of nobody's is started from a cached golden and wiped.
//!
//! A quarantine for a stuck counter ends only with a start that succeeds in a new boot. Where a VM is to run anyway it is
//! that start; on a Mac on which nothing is to run it would never come.
//!
//! Invariants: it is counted as any VM is and waits at the same gates, so it never makes a third; it runs beside no VM of
//! ours and only on a Mac that is quarantined for its counter; its disk is a golden's clone, holds nothing of a tenant's,
//! and is wiped like any other.

use jiff::{SignedDuration, Timestamp};
use macrack_api::rack::node::{MacNodeStatus, Order, QuarantineReason};

use crate::backoff::waits;
use crate::gates::{Gates, Shut};
use crate::life::{Life, REMAKE_WITHIN, Rest};
use crate::orders::Action;
use crate::quota::Quota;

/// Stands where an instance's uid stands; the API server makes no such (its version is no digit of theirs).
pub const UID: &str = "00000000-5e1f-0000-0000-000000000001";
/// Virtual cores: the least that macOS runs on.
pub const CPU_CORES: u32 = 4;
/// Bytes: enough for a start, which is all that is asked.
pub const MEMORY_BYTES: u64 = 4 << 30;
/// One that failed for another reason is tried anew after this.
const AFTER_FAILURE: SignedDuration = SignedDuration::from_mins(10);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until something changes or that moment.
    Wait(Option<Timestamp>),
    /// The same, for this reason: a gate of the chassis is shut.
    Shut(String, Option<Timestamp>),
    /// Clone it from a golden.
    Make,
    /// One of the acts of any VM.
    Act(Action),
}

/// Whether the counter of this boot is to be tested by a VM of nobody's.
pub fn wanted(status: &MacNodeStatus, boot_id: &str, quota: &Quota) -> bool {
    let stuck = QuarantineReason::QuotaStuck.as_str();
    let in_an_earlier_boot = status.quarantine.iter().any(|e| e.reason == stuck && e.boot_id != boot_id);
    let tested = quota.stuck || quota.checked_boot_id.as_deref() == Some(boot_id);
    let others_test_it = status.slots.iter().any(|slot| slot.order == Order::Run);
    in_an_earlier_boot && !tested && !others_test_it
}

/// Decides: `life` of the self test, since `since`; `golden`: one is in the cache. Every gate of the chassis is one of
/// the self test too; what shuts it is said with how long that is waited for.
pub fn decide(wanted: bool, life: Option<(&Life, Timestamp)>, golden: bool, gates: &Gates<'_>) -> Step {
    let act = |action: fn(String) -> Action| Step::Act(action(UID.to_owned()));
    let alive = gates.alive();
    let beside = alive.iter().any(|uid| *uid != UID);
    let open = |step| match gates.shut(UID, &alive) {
        Some(Shut { why, until }) => Step::Shut(why, until),
        None => step,
    };
    let Some((life, since)) = life else {
        return if wanted && !beside && golden { open(Step::Make) } else { Step::Wait(None) };
    };
    match life {
        Life::Cloning | Life::Stopping | Life::Wiping | Life::WipeFailed(_) | Life::Unknown(_) => Step::Wait(None),
        Life::Starting | Life::Running if wanted => Step::Wait(None),
        Life::AtRest(Rest::Refused(_)) if wanted => act(Action::Judge),
        Life::Partial { retry_at, .. } if wanted && !beside && golden => {
            match retry_at.filter(|until| waits(*until, gates.now, REMAKE_WITHIN)) {
                Some(until) => Step::Wait(Some(until)),
                None => open(Step::Make),
            }
        }
        Life::AtRest(Rest::Ready | Rest::HostRestarted) if wanted && !beside => open(act(Action::Start)),
        Life::AtRest(Rest::Failed(_)) if wanted && waits(since + AFTER_FAILURE, gates.now, AFTER_FAILURE) => {
            Step::Wait(Some(since + AFTER_FAILURE))
        }
        // tested, not to be tested any more, or to be made anew
        _ => act(Action::Wipe),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use macrack_api::rack::node::Quarantine;
    use macrack_wire::VmError;
    use macrack_wire::layout::is_uid;
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn quarantined(reason: QuarantineReason, boot: &str) -> MacNodeStatus {
        let since = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0));
        let entry = Quarantine { reason: reason.into(), since, boot_id: boot.to_owned() };
        MacNodeStatus { quarantine: vec![entry], ..MacNodeStatus::default() }
    }

    #[test]
    fn a_counter_is_tested_in_a_new_boot_once_and_only_where_no_vm_is_to_run() {
        use QuarantineReason::{QuotaStuck, WipeFailed};
        let quota = Quota::in_boot(None, "two");
        let stuck = Quota { stuck: true, ..quota.clone() };
        let checked = Quota { checked_boot_id: Some("two".to_owned()), ..quota.clone() };
        let slot = |order: &str| {
            let slot = json!({ "slot": 0, "uid": UID, "namespace": "t", "name": "n", "order": order });
            MacNodeStatus { slots: vec![serde_json::from_value(slot).unwrap()], ..quarantined(QuotaStuck, "one") }
        };
        assert!(is_uid(UID));
        for (what, status, quota, is) in [
            ("a new boot", quarantined(QuotaStuck, "one"), &quota, true),
            ("the boot that stuck", quarantined(QuotaStuck, "two"), &quota, false),
            ("stuck again", quarantined(QuotaStuck, "one"), &stuck, false),
            ("tested", quarantined(QuotaStuck, "one"), &checked, false),
            ("another reason", quarantined(WipeFailed, "one"), &quota, false),
            ("nothing wrong", MacNodeStatus::default(), &quota, false),
            ("a VM is to run", slot("Run"), &quota, false),
            ("a VM is to be off", slot("Stop"), &quota, true),
        ] {
            assert_eq!(wanted(&status, "two", quota), is, "{what}");
        }
    }

    /// A chassis with the self test in `life`, since the epoch, a minute later.
    struct World {
        wanted: bool,
        vms: BTreeMap<String, Life>,
        golden: bool,
        quota: Quota,
        crowded_out: BTreeMap<String, String>,
        going_down: bool,
        since: Timestamp,
    }

    impl World {
        fn step(&self) -> Step {
            let gates = Gates {
                now: at(60),
                vms: &self.vms,
                quota: &self.quota,
                crowded_out: &self.crowded_out,
                going_down: self.going_down,
            };
            decide(self.wanted, self.vms.get(UID).map(|life| (life, self.since)), self.golden, &gates)
        }
    }

    fn world(life: Option<Life>) -> World {
        World {
            wanted: true,
            vms: life.map(|life| (UID.to_owned(), life)).into_iter().collect(),
            golden: true,
            quota: Quota::in_boot(None, "two"),
            crowded_out: BTreeMap::new(),
            going_down: false,
            since: at(0),
        }
    }

    const WAIT: Step = Step::Wait(None);

    fn act(action: fn(String) -> Action) -> Step {
        Step::Act(action(UID.to_owned()))
    }

    fn partial() -> Option<Life> {
        Some(Life::Partial { why: None, retry_at: None })
    }

    fn ready() -> Option<Life> {
        Some(Life::AtRest(Rest::Ready))
    }

    #[test]
    fn it_is_made_started_and_wiped_and_never_runs_beside_another() {
        let unwanted = |life| World { wanted: false, ..world(life) }.step();
        let beside = |life| {
            let mut world = world(life);
            world.vms.insert("tenant".to_owned(), Life::Running);
            world.step()
        };
        let refused = VmError::new("VZErrorDomain", 6, "limit");
        assert_eq!(world(None).step(), Step::Make);
        assert_eq!(beside(None), WAIT, "beside another");
        assert_eq!(World { golden: false, ..world(None) }.step(), WAIT, "without a golden");
        assert_eq!(unwanted(None), WAIT);
        assert_eq!(world(partial()).step(), Step::Make);
        assert_eq!(unwanted(partial()), act(Action::Wipe));
        assert_eq!(world(ready()).step(), act(Action::Start));
        assert_eq!(beside(ready()), act(Action::Wipe), "beside another");
        assert_eq!(world(Some(Life::Running)).step(), WAIT, "its start is being noted");
        assert_eq!(unwanted(Some(Life::Running)), act(Action::Wipe));
        assert_eq!(world(Some(Life::AtRest(Rest::Refused(refused)))).step(), act(Action::Judge));
        let failed = || Some(Life::AtRest(Rest::Failed("no".to_owned())));
        assert_eq!(world(failed()).step(), Step::Wait(Some(at(600))), "it is not tried in a storm");
        assert_eq!(unwanted(failed()), act(Action::Wipe));
        let mut put_back = world(failed());
        put_back.since = at(90_000);
        assert_eq!(put_back.step(), act(Action::Wipe), "by a clock that was put back it would wait for a day");
    }

    #[test]
    fn it_waits_at_every_gate_at_which_a_tenants_vm_waits() {
        type Change = fn(&mut World);
        let gates: [(&str, Change, Option<Timestamp>); 5] = [
            ("shutting down", |w| w.going_down = true, None),
            ("counter is stuck", |w| w.quota.stuck = true, None),
            ("not MacRack's", |w| w.quota.foreign = 2, None),
            ("no room", |w| drop(w.crowded_out.insert(UID.to_owned(), "no room for its disk".to_owned())), None),
            ("tried again in a moment", |w| w.quota.not_before = Some(at(63)), Some(at(63))),
        ];
        for life in [None, partial(), ready()] {
            for (why, shuts, until) in gates {
                let mut world = world(life.clone());
                shuts(&mut world);
                match world.step() {
                    // its disk is there, and takes no more room
                    Step::Act(Action::Start(_)) if why == "no room" && life == ready() => {}
                    Step::Shut(said, when) if said.contains(why) => assert_eq!(when, until, "{why}"),
                    other => panic!("{life:?}, {why}: {other:?}"),
                }
            }
        }
        let mut silent = world(None);
        silent.vms.insert("tenant".to_owned(), Life::Unknown("silent".to_owned()));
        assert_eq!(silent.step(), WAIT, "what cannot be reached may live");
    }
}
