use std::sync::atomic::{AtomicUsize, Ordering};

use macrack_wire::WireError;

use super::*;
use crate::life::Rest;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn approved(requested: i64) -> Reboot {
    Reboot {
        reason: "QuotaStuck".to_owned(),
        requested_at: Time(at(requested)),
        boot_id: Some("boot-1".to_owned()),
        approved_at: Some(Time(at(requested + 5))),
        approved_by: None,
        done_boot_id: None,
    }
}

fn asked(requested: i64, begun: bool) -> Asked {
    Asked { requested_at: at(requested), asked_at: at(100), begun, problem: None }
}

#[test]
fn an_approval_is_carried_out_in_its_own_boot_once_and_only_when_nothing_runs() {
    let none = false;
    let at_rest = is_busy(&Life::AtRest(Rest::Ready));
    let unapproved = Reboot { approved_at: None, ..approved(50) };
    let done = Reboot { done_boot_id: Some("boot-2".to_owned()), ..approved(50) };
    let nameless = Reboot { boot_id: None, ..approved(50) };
    for (what, reboot, boot, before, busy, step) in [
        ("approved", &approved(50), "boot-1", None, none, Step::Ask),
        ("VMs at rest", &approved(50), "boot-1", None, at_rest, Step::Ask),
        ("not approved", &unapproved, "boot-1", None, none, Step::Nothing),
        ("done", &done, "boot-1", None, none, Step::Nothing),
        ("a later boot", &approved(50), "boot-2", None, none, Step::Nothing),
        ("no boot named", &nameless, "boot-1", None, none, Step::Nothing),
        ("begun", &approved(50), "boot-1", Some(asked(50, true)), none, Step::Nothing),
        ("a crash before the answer", &approved(50), "boot-1", Some(asked(50, false)), none, Step::Ask),
        ("an older one was carried out", &approved(50), "boot-1", Some(asked(40, true)), none, Step::Ask),
        ("a later one was carried out", &approved(50), "boot-1", Some(asked(60, true)), none, Step::Nothing),
    ] {
        assert_eq!(decide(reboot, boot, before.as_ref(), busy, at(1000)), step, "{what}");
    }
    for life in [Life::Starting, Life::Running, Life::Stopping, Life::Unknown("?".into()), Life::Cloning, Life::Wiping]
    {
        assert_eq!(decide(&approved(50), "boot-1", None, is_busy(&life), at(1000)), Step::Nothing, "{life}");
    }
    let soon = decide(&approved(50), "boot-1", Some(&asked(50, false)), none, at(101));
    assert_eq!(soon, Step::Wait(at(100) + ASK_AGAIN), "it is not asked in a storm");
    for asked_at in [at(90_000), Timestamp::MAX] {
        let ahead = Asked { asked_at, ..asked(50, false) };
        let step = decide(&approved(50), "boot-1", Some(&ahead), none, at(101));
        assert_eq!(step, Step::Ask, "a clock that was a day ahead puts the reboot off by a day");
    }
}

#[test]
fn only_what_certainly_was_not_done_is_a_problem_that_is_asked_again() {
    let before = asked(50, false);
    assert!(answered(&before, &Ok(())).begun);
    assert!(answered(&before, &Err(HostdError::Repeated("used at noon".into()))).begun);
    for error in [HostdError::Refused("no power".into()), HostdError::NotThere(WireError::OutOfBounds("gone".into()))] {
        let after = answered(&before, &Err(error));
        assert!(!after.begun && after.problem.is_some(), "{after:?}");
    }
}

/// Uses each approval once, as `macrack-hostd` does; its answer is lost.
#[derive(Default)]
struct Deaf {
    used: std::sync::Mutex<Option<Timestamp>>,
    reboots: AtomicUsize,
    asked: AtomicUsize,
}

struct Shared(Arc<Deaf>);

impl Power for Shared {
    fn reboot(&self, requested_at: Timestamp, _: String) -> BoxFuture<'static, Result<(), HostdError>> {
        let power = self.0.clone();
        async move {
            power.asked.fetch_add(1, Ordering::SeqCst);
            if power.used.lock().unwrap().replace(requested_at) == Some(requested_at) {
                return Err(HostdError::Repeated("used".into()));
            }
            power.reboots.fetch_add(1, Ordering::SeqCst);
            Err(HostdError::Broken(WireError::OutOfBounds("the answer is lost".into())))
        }
        .boxed()
    }
}

#[tokio::test]
async fn what_is_asked_is_on_the_disk_first_and_a_crash_between_gives_one_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("reboot.json");
    let power = Arc::new(Deaf::default());
    let bell = Bell::default();
    let agent = || Rebooter::new(file.clone(), Arc::new(Shared(power.clone())), bell.clone());
    let step = |agent: &mut Rebooter| agent.step(Some(&approved(50)), "boot-1", false);

    // the first life writes, asks, and dies before the answer
    let mut first = agent();
    assert_eq!(step(&mut first), None);
    let kept: Asked = read_json(&file).unwrap();
    assert_eq!((kept.requested_at, kept.begun), (at(50), false), "asked before it was kept");
    first.asking.take().unwrap().await.unwrap().unwrap_err();
    drop(first);

    // the next ones, in the same boot, ask with the same approval and hear that it was used
    for _ in 0..3 {
        write_json(&file, &Asked { asked_at: at(0), ..read_json(&file).unwrap() }).unwrap();
        let mut next = agent();
        step(&mut next);
        while next.asking.is_some() {
            bell.heard().await;
            next.hear();
        }
    }
    assert_eq!(power.reboots.load(Ordering::SeqCst), 1, "two reboots for one approval");
    assert_eq!(power.asked.load(Ordering::SeqCst), 2, "an approval that was used is not asked with again");
    assert_eq!(agent().facts(Some(&approved(50))).unwrap().problem, None);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_reboots_nothing_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("reboot.json");
    std::fs::write(&file, "{").unwrap();
    let power = Arc::new(Deaf::default());
    let mut agent = Rebooter::new(file, Arc::new(Shared(power.clone())), Bell::default());
    assert_eq!(agent.step(Some(&approved(50)), "boot-1", false), None);
    assert_eq!(power.asked.load(Ordering::SeqCst), 0);
    let facts = agent.facts(Some(&approved(50))).unwrap();
    assert!(facts.problem.unwrap().contains("reboot.json"));
}
