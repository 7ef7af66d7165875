//! The self test of a kernel's counter after a reboot: a VM of nobody's is started from a cached golden and wiped.
//!
//! A quarantine for a stuck counter ends only with a start that succeeds in a new boot. Where a VM is to run anyway it is
//! that start; on a Mac on which nothing is to run it would never come.
//!
//! Invariants: it is counted as any VM is, so it never makes a third; it runs beside nothing and only on a Mac that is
//! quarantined for its counter; its disk is a golden's clone, holds nothing of a tenant's, and is wiped like any other.

use jiff::{SignedDuration, Timestamp};
use macrack_api::rack::node::{MacNodeStatus, Order, QuarantineReason};

use crate::life::{Life, Rest};
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

/// Decides: `life` of the self test, since `since`; `beside`: another VM lives; `golden`: one is in the cache.
pub fn decide(
    wanted: bool,
    life: Option<(&Life, Timestamp)>,
    beside: bool,
    golden: bool,
    quota: &Quota,
    now: Timestamp,
) -> Step {
    let act = |action: fn(String) -> Action| Step::Act(action(UID.to_owned()));
    let Some((life, since)) = life else {
        return if wanted && !beside && golden { Step::Make } else { Step::Wait(None) };
    };
    match life {
        Life::Cloning | Life::Stopping | Life::Wiping | Life::WipeFailed(_) | Life::Unknown(_) => Step::Wait(None),
        Life::Starting | Life::Running if wanted => Step::Wait(None),
        Life::AtRest(Rest::Refused(_)) if wanted => act(Action::Judge),
        Life::Partial { retry_at, .. } if wanted && !beside && golden => match retry_at.filter(|until| *until > now) {
            Some(until) => Step::Wait(Some(until)),
            None => Step::Make,
        },
        Life::AtRest(Rest::Ready | Rest::HostRestarted) if wanted && !beside => {
            match quota.not_before.filter(|until| *until > now) {
                Some(until) => Step::Wait(Some(until)),
                None => act(Action::Start),
            }
        }
        Life::AtRest(Rest::Failed(_)) if wanted && since + AFTER_FAILURE > now => {
            Step::Wait(Some(since + AFTER_FAILURE))
        }
        // tested, not to be tested any more, or to be made anew
        _ => act(Action::Wipe),
    }
}

#[cfg(test)]
mod tests {
    use macrack_api::rack::node::Quarantine;
    use macrack_wire::VmError;
    use serde_json::json;

    use super::*;
    use crate::state_dir::is_uid;

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

    #[test]
    fn it_is_made_started_and_wiped_and_never_runs_beside_another() {
        let quota = Quota::in_boot(None, "two");
        let step = |wanted, life: Option<Life>, beside, golden| {
            decide(wanted, life.as_ref().map(|life| (life, at(0))), beside, golden, &quota, at(60))
        };
        let act = |action: fn(String) -> Action| Step::Act(action(UID.to_owned()));
        let wait = Step::Wait(None);
        let partial = || Life::Partial { why: None, retry_at: None };
        let (ready, refused) = (Life::AtRest(Rest::Ready), VmError::new("VZErrorDomain", 6, "limit"));
        assert_eq!(step(true, None, false, true), Step::Make);
        assert_eq!(step(true, None, true, true), wait, "beside another");
        assert_eq!(step(true, None, false, false), wait, "without a golden");
        assert_eq!(step(false, None, false, true), wait);
        assert_eq!(step(true, Some(partial()), false, true), Step::Make);
        assert_eq!(step(false, Some(partial()), false, true), act(Action::Wipe));
        assert_eq!(step(true, Some(ready.clone()), false, true), act(Action::Start));
        assert_eq!(step(true, Some(ready), true, true), act(Action::Wipe), "beside another");
        assert_eq!(step(true, Some(Life::Running), false, true), wait, "its start is being noted");
        assert_eq!(step(false, Some(Life::Running), false, true), act(Action::Wipe));
        assert_eq!(step(true, Some(Life::AtRest(Rest::Refused(refused))), false, true), act(Action::Judge));
        let failed = || Some(Life::AtRest(Rest::Failed("no".to_owned())));
        assert_eq!(step(true, failed(), false, true), Step::Wait(Some(at(600))), "it is not tried in a storm");
        assert_eq!(step(false, failed(), false, true), act(Action::Wipe));
        let paused = Quota { not_before: Some(at(63)), ..quota.clone() };
        let rest = Life::AtRest(Rest::Ready);
        assert_eq!(decide(true, Some((&rest, at(0))), false, true, &paused, at(60)), Step::Wait(Some(at(63))));
    }
}
