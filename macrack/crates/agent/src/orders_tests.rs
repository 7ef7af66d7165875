use macrack_wire::VmError;

use super::*;
use crate::quota::Quota;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A chassis on which everything is as it should be: placeholders bound, golden cached.
struct World {
    slots: Vec<Slot>,
    vms: BTreeMap<String, Life>,
    placeholders: BTreeMap<String, Placeholder>,
    wishes: BTreeMap<String, Wish>,
    goldens: BTreeMap<String, GoldenState>,
    crowded_out: BTreeMap<String, String>,
    quota: Quota,
    now: Timestamp,
    going_down: bool,
}

fn world(slots: &[(&str, Order)]) -> World {
    let wish = Wish { restart: Some(RestartPolicy::Never), golden: Ok("golden".to_owned()) };
    let uids = || slots.iter().map(|(uid, _)| (*uid).to_owned());
    World {
        slots: (0..).zip(slots).map(|(n, (uid, order))| slot(n, uid, *order)).collect(),
        vms: BTreeMap::new(),
        placeholders: uids().map(|uid| (uid, Placeholder::Bound)).collect(),
        wishes: uids().map(|uid| (uid, wish.clone())).collect(),
        goldens: [("golden".to_owned(), GoldenState::Cached)].into(),
        crowded_out: BTreeMap::new(),
        quota: Quota::in_boot(None, "boot"),
        now: NOW,
        going_down: false,
    }
}

fn slot(slot: i32, uid: &str, order: Order) -> Slot {
    Slot { slot, uid: uid.to_owned(), namespace: "tenant".to_owned(), name: uid.to_owned(), order }
}

impl World {
    fn with(mut self, uid: &str, life: Life) -> World {
        self.vms.insert(uid.to_owned(), life);
        self
    }

    fn decide(&self) -> Decision {
        let gates = Gates {
            now: self.now,
            vms: &self.vms,
            quota: &self.quota,
            crowded_out: &self.crowded_out,
            going_down: self.going_down,
        };
        decide(&View {
            gates,
            slots: &self.slots,
            placeholders: &self.placeholders,
            wishes: &self.wishes,
            goldens: &self.goldens,
        })
    }

    fn waits_for(&self, uid: &str) -> String {
        match self.decide().says.get(uid) {
            Some(Say::Waiting(why)) => why.clone(),
            other => panic!("{uid} does not wait: {other:?}"),
        }
    }
}

fn rest() -> Life {
    Life::AtRest(Rest::Ready)
}

fn refused() -> Life {
    Life::AtRest(Rest::Refused(VmError::new("VZErrorDomain", 6, "limit")))
}

fn start(uid: &str) -> Action {
    Action::Start(uid.to_owned())
}

#[test]
fn an_ordered_vm_is_made_then_started_and_then_left_alone() {
    let world = world(&[("a", Order::Run)]);
    assert_eq!(world.decide().actions, [Action::Make("a".into())]);
    let world = world.with("a", rest());
    assert_eq!(world.decide().actions, [start("a")]);
    for life in [Life::Cloning, Life::Starting, Life::Running, Life::Stopping, Life::Wiping] {
        let decision = self::world(&[("a", Order::Run)]).with("a", life.clone()).decide();
        assert_eq!(decision, Decision::default(), "{life:?}");
    }
}

#[test]
fn a_mac_that_goes_down_starts_nothing_and_still_carries_out_stops_and_wipes() {
    let orders = [("a", Order::Run), ("b", Order::Stop)];
    let mut world = world(&orders).with("a", rest()).with("b", Life::Running);
    world.going_down = true;
    assert_eq!(world.decide().actions, [Action::Stop("b".into())]);
    assert!(world.waits_for("a").contains("shutting down"), "{}", world.waits_for("a"));
    world.vms.remove("a");
    assert!(world.waits_for("a").contains("shutting down"), "nor is a disk cloned into it");
    world.slots = vec![slot(0, "b", Order::Wipe)];
    assert_eq!(world.decide().actions, [Action::Wipe("b".into())]);
}

#[test]
fn a_third_vm_is_refused_although_a_slot_says_run() {
    // an orphan and one VM live; the second slot's VM is ready to start
    let world = world(&[("a", Order::Run), ("b", Order::Run)])
        .with("orphan", Life::Running)
        .with("a", Life::Running)
        .with("b", rest());
    assert!(world.decide().actions.is_empty(), "{:?}", world.decide());
    assert!(world.waits_for("b").contains("two VMs live"), "{}", world.waits_for("b"));

    // three slots cannot be written, and would not help
    let mut world = self::world(&[("a", Order::Run), ("b", Order::Run), ("c", Order::Run)])
        .with("a", rest())
        .with("b", rest())
        .with("c", rest());
    assert_eq!(world.decide().actions, [start("a"), start("b")]);
    world.vms = BTreeMap::new();
    assert_eq!(world.decide().actions.len(), 2, "a third disk is not even cloned");

    // one that stops is counted until it has stopped
    let world = self::world(&[("a", Order::Run), ("b", Order::Run)])
        .with("gone", Life::Stopping)
        .with("a", Life::Starting)
        .with("b", rest());
    assert!(world.decide().actions.is_empty());
}

#[test]
fn nothing_starts_while_anything_cannot_be_reached() {
    let world =
        world(&[("a", Order::Run), ("b", Order::Run)]).with("a", Life::Unknown("silent".into())).with("b", rest());
    assert!(world.decide().actions.is_empty(), "{:?}", world.decide());
    assert!(world.waits_for("b").contains("VM a on this Mac cannot be reached"));
    assert!(!world.decide().says.contains_key("a"), "its own state says Unknown");
}

#[test]
fn nothing_starts_while_the_counter_is_stuck_and_the_refused_one_waits() {
    let mut world = world(&[("a", Order::Run), ("b", Order::Run)]).with("a", rest()).with("b", refused());
    world.quota.stuck = true;
    assert!(world.decide().actions.is_empty(), "{:?}", world.decide());
    for uid in ["a", "b"] {
        assert!(world.waits_for(uid).contains("counter is stuck"), "{uid}");
    }
}

#[test]
fn nothing_starts_and_nothing_is_judged_while_it_is_not_known_whether_the_counter_is_stuck() {
    let mut world = world(&[("a", Order::Run), ("b", Order::Run)]).with("a", rest());
    world.quota = Quota::noted(Err(std::io::Error::other("quota.json: torn")), "boot");
    assert!(world.decide().actions.is_empty(), "{:?}", world.decide());
    for uid in ["a", "b"] {
        assert!(world.waits_for(uid).contains("reboot this Mac (quota.json: torn)"), "{uid}");
    }
}

#[test]
fn a_refused_start_is_judged_before_anything_else_happens_to_it() {
    let world = world(&[("a", Order::Run)]).with("a", refused());
    assert_eq!(world.decide().actions, [Action::Judge("a".into())]);
}

#[test]
fn a_retry_waits_for_its_time_and_the_loop_is_woken_for_it() {
    let mut world = world(&[("a", Order::Run)]).with("a", rest());
    let later = NOW + jiff::SignedDuration::from_secs(3);
    world.quota.not_before = Some(later);
    assert_eq!(world.decide().wake, Some(later));
    assert!(world.decide().actions.is_empty());
    world.now = later;
    assert_eq!(world.decide().actions, [start("a")]);
    world.now = NOW - jiff::SignedDuration::from_hours(24);
    assert_eq!(world.decide().actions, [start("a")], "by a clock that was put back it would wait for a day");
}

#[test]
fn a_foreign_vm_counts_towards_two_and_is_named() {
    let mut world = world(&[("a", Order::Run), ("b", Order::Run)]).with("a", Life::Running).with("b", rest());
    world.quota.foreign = 1;
    assert!(world.decide().actions.is_empty());
    assert!(world.waits_for("b").contains("not MacRack's"));
}

#[test]
fn nothing_but_an_order_stops_a_vm() {
    for life in [Life::Starting, Life::Running, Life::Stopping, Life::Unknown("silent".into())] {
        for order in [Order::Run, Order::Stop] {
            // the role is gone, the pod is gone, the instance cannot be read
            let mut world = world(&[("a", order)]).with("a", life.clone());
            world.placeholders.clear();
            world.wishes.clear();
            world.goldens.clear();
            world.quota.stuck = true;
            let stops = world.decide().actions.contains(&Action::Stop("a".into()));
            let stoppable = life != Life::Stopping;
            assert_eq!(stops, order == Order::Stop && stoppable, "{life:?} {order:?}");
        }
    }
    // and a lost slot neither
    let orphaned = world(&[]).with("a", Life::Running).decide();
    assert_eq!(orphaned, Decision::default());
}

#[test]
fn without_a_bound_placeholder_nothing_starts() {
    let mut world = world(&[("a", Order::Run)]).with("a", rest());
    world.placeholders.insert("a".into(), Placeholder::Missing("not scheduled yet".into()));
    assert_eq!(world.waits_for("a"), "not scheduled yet");
    assert!(world.decide().actions.is_empty());
    world.placeholders.clear();
    assert!(world.decide().actions.is_empty());
}

#[test]
fn a_uid_that_was_never_here_is_wiped_as_ordered_and_stopped_as_ordered() {
    for (order, say) in [(Order::Wipe, Say::Wiped), (Order::Stop, Say::Unmade)] {
        let decision = world(&[("a", order)]).decide();
        assert_eq!(decision.says, [("a".to_owned(), say)].into(), "{order:?}");
        assert!(decision.actions.is_empty());
    }
    assert!(world(&[("a", Order::Run)]).decide().says.is_empty(), "one that is to run is made");
}

#[test]
fn wiped_is_never_said_while_something_is_on_the_disk() {
    let somewhere = [
        Life::Partial { why: None, retry_at: None },
        Life::Cloning,
        rest(),
        Life::Running,
        Life::Unknown("silent".into()),
        Life::Wiping,
        Life::WipeFailed("busy".into()),
    ];
    for life in somewhere {
        for order in [Order::Run, Order::Stop, Order::Wipe] {
            let decision = world(&[("a", order)]).with("a", life.clone()).decide();
            assert_ne!(decision.says.get("a"), Some(&Say::Wiped), "{life:?} {order:?}");
        }
    }
}

#[test]
fn wipe_is_asked_for_once_and_repeated_by_the_task_itself() {
    let wipe = Action::Wipe("a".into());
    for (life, asked) in [
        (rest(), true),
        (Life::Running, true),
        (Life::Cloning, true),
        (Life::Unknown("silent".into()), true),
        (Life::Wiping, false),
        (Life::WipeFailed("busy".into()), false),
    ] {
        let decision = world(&[("a", Order::Wipe)]).with("a", life.clone()).decide();
        assert_eq!(decision.actions.contains(&wipe), asked, "{life:?}");
    }
}

#[test]
fn stop_then_run_starts_the_same_disk_again() {
    let stopped = world(&[("a", Order::Stop)]).with("a", rest()).decide();
    assert_eq!(stopped, Decision::default());
    let mut again = world(&[("a", Order::Run)]).with("a", rest());
    again.goldens.clear();
    again.wishes.clear();
    assert_eq!(again.decide().actions, [start("a")], "neither golden nor instance is needed for it");
}

#[test]
fn a_guest_that_shut_itself_down_is_restarted_only_if_its_policy_says_so() {
    let shut_down = || Life::AtRest(Rest::GuestShutdown { restart_at: NOW });
    let mut world = world(&[("a", Order::Run)]).with("a", shut_down());
    assert_eq!(world.decide(), Decision::default());
    if let Some(wish) = world.wishes.get_mut("a") {
        wish.restart = Some(RestartPolicy::OnGuestShutdown);
    }
    assert_eq!(world.decide().actions, [start("a")]);
    world.wishes.clear();
    assert_eq!(world.decide(), Decision::default(), "an unreadable policy restarts nothing");
    let stop = self::world(&[("a", Order::Stop)]).with("a", shut_down()).decide();
    assert_eq!(stop.actions, [Action::Forget("a".into())], "stopped by order, it may be started by order");
}

#[test]
fn a_guest_that_shuts_down_as_soon_as_it_is_up_is_not_started_without_end() {
    let later = NOW + jiff::SignedDuration::from_secs(10);
    let mut world = world(&[("a", Order::Run)]).with("a", Life::AtRest(Rest::GuestShutdown { restart_at: later }));
    if let Some(wish) = world.wishes.get_mut("a") {
        wish.restart = Some(RestartPolicy::OnGuestShutdown);
    }
    assert!(world.waits_for("a").contains("right after its start"));
    assert_eq!(world.decide().wake, Some(later));
    world.now = later;
    assert_eq!(world.decide().actions, [start("a")]);
    world.now = NOW - jiff::SignedDuration::from_hours(24);
    assert_eq!(world.decide().actions, [start("a")], "by a clock that was put back it would wait for a day");
}

#[test]
fn a_vm_that_failed_is_not_tried_again_until_it_was_ordered_to_stop() {
    let failed = || Life::AtRest(Rest::Failed("disk image".into()));
    assert_eq!(world(&[("a", Order::Run)]).with("a", failed()).decide(), Decision::default());
    let stop = world(&[("a", Order::Stop)]).with("a", failed()).decide();
    assert_eq!(stop.actions, [Action::Forget("a".into())]);
    let reboot = world(&[("a", Order::Run)]).with("a", Life::AtRest(Rest::HostRestarted)).decide();
    assert_eq!(reboot.actions, [start("a")], "the host's restart is not the VM's failure");
}

#[test]
fn a_vm_waits_for_its_golden_and_says_how_far_it_is() {
    let mut world = world(&[("a", Order::Run)]);
    world.goldens.insert("golden".into(), GoldenState::Pulling("1 of 2 GB".into()));
    assert_eq!(world.decide().says, [("a".to_owned(), Say::Pulling("1 of 2 GB".into()))].into());
    world.goldens.insert("golden".into(), GoldenState::Refused("no room".into()));
    assert_eq!(world.waits_for("a"), "no room");
    world.wishes.insert("a".into(), Wish { restart: None, golden: Err("MacOSInstance unreadable".into()) });
    assert_eq!(world.waits_for("a"), "MacOSInstance unreadable");
}

#[test]
fn a_disk_that_may_not_grow_to_its_size_is_not_cloned_and_one_that_is_there_starts_all_the_same() {
    let mut world = world(&[("a", Order::Run), ("b", Order::Run)]).with("b", rest());
    for uid in ["a", "b"] {
        world.crowded_out.insert(uid.into(), "no room for its disk".into());
    }
    assert_eq!(world.waits_for("a"), "no room for its disk");
    assert_eq!(world.decide().actions, [start("b")]);
}

#[test]
fn a_half_made_disk_is_made_anew_when_its_time_has_come() {
    let later = NOW + jiff::SignedDuration::from_secs(5);
    let partial = Life::Partial { why: Some("no such Secret".into()), retry_at: Some(later) };
    let mut world = world(&[("a", Order::Run)]).with("a", partial);
    assert_eq!(world.waits_for("a"), "no such Secret");
    assert_eq!(world.decide().wake, Some(later));
    world.now = later;
    assert_eq!(world.decide().actions, [Action::Make("a".into())]);
    world.now = NOW - jiff::SignedDuration::from_hours(24);
    assert_eq!(
        world.decide().actions,
        [Action::Make("a".into())],
        "by a clock that was put back it would wait for a day"
    );
}
