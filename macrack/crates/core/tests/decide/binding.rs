//! How a lease gets its chassis.

use macrack_api::rack::node::{HostFinding, LeaseRecord, Order::*, QuarantineReason, VmState::*};
use macrack_core::{
    clock::Clocks,
    decide::{
        lease::{self, Candidate},
        node::Leasable,
    },
    seen::Seen,
};

use super::rack::{LEASE, NAME, Rack, SERIAL, TEAM, at, new_lease, time, uid};

fn waiting() -> Rack {
    let mut rack = Rack::free().at("+0s");
    rack.lease = Seen::Present(new_lease(TEAM, LEASE));
    rack
}

fn chassis(n: usize, leasable: Leasable) -> Candidate {
    Candidate {
        name: format!("zzserialn{n}"),
        uid: uid("node"),
        serial: format!("ZZSERIALN{n}"),
        leasable,
        free_at: None,
        remembered: None,
    }
}

#[test]
fn a_lease_gets_our_finalizer_first_and_then_a_chassis_with_its_clock_inside() {
    let rack = waiting();
    let bare = rack.clone().with(|r| r.the_lease().metadata.finalizers = None);
    assert_eq!(bare.lease_pass().steps(), ["add rack.macrack.io/release"]);
    let pass = rack.clocks("+0s", Seen::Present("+1h")).lease_pass();
    assert_eq!(pass.steps(), ["bind zzserialn1 to ci"]);
    let bound = pass.bound().unwrap();
    assert_eq!((bound.namespace.as_str(), bound.uid.as_str()), (TEAM, uid(LEASE).as_str()));
    assert_eq!(bound.bound_at, time("+1h"), "the later clock counts");
    assert_eq!(bound.earliest_release_at, time("+25h"));
    assert!(!bound.releasing);
}

#[test]
fn without_the_servers_clock_nothing_is_bound() {
    for server in [Seen::Absent, Seen::Unknown("timeout".into())] {
        assert!(waiting().clocks("+0s", server).lease_pass().steps().is_empty());
    }
}

#[test]
fn a_longer_minimum_gives_a_later_floor() {
    let rack = waiting().with(|r| r.the_lease().spec.minimum_duration = "48h".into());
    assert_eq!(rack.lease_pass().bound().unwrap().earliest_release_at, time("+48h"));
}

#[test]
fn the_lease_that_waits_longest_gets_the_first_free_chassis_and_the_next_one_the_next() {
    let busy = Leasable::No(macrack_api::rack::node::MacNodeReason::NodeNotReady, "down".into());
    let candidates =
        vec![chassis(1, Leasable::Yes), chassis(2, busy), chassis(3, Leasable::Yes), chassis(4, Leasable::Yes)];
    for (ahead, gets) in [(0, Some("zzserialn1")), (1, Some("zzserialn3")), (2, Some("zzserialn4")), (3, None)] {
        let facts = lease::Facts { candidates: candidates.clone(), ahead, ..waiting().lease_facts() };
        assert_eq!(lease::choose(&facts).map(|c| c.name.as_str()), gets, "{ahead} ahead");
    }
}

#[test]
fn a_lease_that_names_a_serial_gets_that_chassis_or_none() {
    let named = |serial: &str| {
        let mut facts = waiting().with(|r| r.the_lease().spec.serial = Some(serial.into())).lease_facts();
        facts.candidates = vec![chassis(1, Leasable::Yes), chassis(2, Leasable::Yes)];
        facts.ahead = 7;
        lease::choose(&facts).map(|c| c.serial.clone())
    };
    assert_eq!(named("ZZSERIALN2").as_deref(), Some("ZZSERIALN2"));
    assert_eq!(named("ZZSERIALN9"), None);
}

fn finding(unknown: bool) -> HostFinding {
    HostFinding { check: "hostd".into(), unknown, message: "macrack-hostd does not answer: load it".into() }
}

#[test]
fn what_stands_in_the_way_of_a_lease_is_named_on_the_chassis() {
    use QuarantineReason::WipeFailed as Dirty;
    let table: Vec<(&str, Rack)> = vec![
        ("Leased", Rack::leased()),
        ("Retired", Rack::free().retired()),
        ("Quarantined", Rack::free().quarantined(Dirty)),
        ("NotWiped", Rack::free().vm("ghost", Stopped)),
        ("NotWiped", Rack::free().slot("ghost", Wipe).vm("ghost", Wiped)),
        ("Unschedulable", Rack::free().with(|r| r.node.spec.unschedulable = true)),
        ("Deleting", Rack::free().with(|r| r.node.metadata.deletion_timestamp = Some(time("+0s")))),
        ("AgentNotReported", Rack::free().with(|r| r.status().agent = None)),
        ("NodeMissing", Rack::free().with(|r| r.kube_node = Seen::Absent)),
        ("Unreadable", Rack::free().with(|r| r.kube_node = Seen::Unknown("timeout".into()))),
        ("Differs", Rack::free().with(|r| r.agent().hardware.as_mut().unwrap().memory = "32Gi".into())),
        ("KeychainLocked", Rack::free().with(|r| r.agent().host.as_mut().unwrap().keychain_unlocked = false)),
        ("NotPrepared", Rack::free().with(|r| r.agent().host.as_mut().unwrap().findings = vec![finding(false)])),
        ("Unreadable", Rack::free().with(|r| r.agent().host.as_mut().unwrap().findings = vec![finding(true)])),
        ("ClockSkewed", Rack::free().with(|r| r.agent().clock_skew_seconds = Some(305))),
        ("ClockSkewed", Rack::free().with(|r| r.agent().clock_skew_seconds = Some(-86_400))),
        ("Unreadable", Rack::free().with(|r| r.agent().hardware.as_mut().unwrap().link_speed = None)),
        ("Reconciling", Rack::free().with(|r| r.claim = Seen::Present(super::rack::bound_lease()))),
        ("Reconciling", Rack::free().with(|r| r.claim = Seen::Unknown("a lease cannot be read".into()))),
    ];
    for (reason, rack) in table {
        match rack.at("+0s").leasable() {
            Leasable::Yes => panic!("{reason}: this chassis can be leased"),
            Leasable::No(because, _) => assert_eq!(because.as_str(), reason),
        }
    }
    assert_eq!(Rack::free().leasable(), Leasable::Yes);
}

#[test]
fn a_clock_that_is_a_little_off_is_said_and_hinders_no_lease_and_a_leased_mac_is_left_alone() {
    let skewed = |rack: Rack, seconds| rack.at("+0s").with(|r| r.agent().clock_skew_seconds = seconds);
    for (seconds, says) in [
        (None, "True InStep"),
        (Some(60), "True InStep"),
        (Some(65), "False ClockSkewed"),
        (Some(-300), "False ClockSkewed"),
    ] {
        let rack = skewed(Rack::free(), seconds);
        assert_eq!(rack.node_pass().says("ClockInStep"), says, "{seconds:?}");
        assert_eq!(rack.leasable(), Leasable::Yes, "{seconds:?}");
    }
    let words = skewed(Rack::free(), Some(-240)).node_pass().message("ClockInStep");
    assert!(words.contains("240s behind") && words.contains("Set time and date automatically"), "{words}");
    // a worker's clock is no reason to touch its VMs
    let leased = || Rack::leased().slot("one", Run).vm("one", Running);
    let (in_step, far_off) = (skewed(leased(), None).node_pass(), skewed(leased(), Some(86_400)).node_pass());
    assert_eq!(in_step.steps(), far_off.steps());
}

/// A Mac whose MacNode was made again, or whose etcd came from an old backup, remembers by itself.
#[test]
fn a_floor_that_the_mac_itself_remembers_keeps_it_from_being_leased() {
    let record = LeaseRecord { uid: uid("before"), earliest_release_at: time("+10h") };
    let rack = Rack::free().with(|r| r.agent().last_lease = Some(record));
    let early = rack.clone().at("+9h59m59s");
    assert!(matches!(early.leasable(), Leasable::No(because, _) if because.as_str() == "Reconciling"));
    let pass = early.node_pass();
    assert_eq!(pass.says("Leasable"), "False Reconciling");
    assert!(pass.message("Leasable").contains("2026-03-02T19:00:00Z"), "{}", pass.message("Leasable"));
    assert_eq!(pass.wakes(), Some(at("+10h")), "looked at again when that floor has passed");
    assert_eq!(rack.at("+10h").leasable(), Leasable::Yes);
}

#[test]
fn a_floor_that_the_mac_remembers_needs_both_clocks_too() {
    let record = LeaseRecord { uid: uid("before"), earliest_release_at: time("+10h") };
    let rack = waiting().with(|r| r.agent().last_lease = Some(record));
    assert!(rack.clone().clocks("+11h", Seen::Present("+1h")).lease_pass().steps().is_empty());
    assert_eq!(rack.at("+11h").lease_pass().steps(), ["bind zzserialn1 to ci"]);
}

#[test]
fn a_pending_lease_says_why_and_when_and_names_no_tenant() {
    let mut rack = Rack::leased().at("+1h");
    rack.lease = Seen::Present(new_lease("team-b", "other"));
    let mut facts = rack.lease_facts();
    let pass = lease_words(&facts);
    assert_eq!(pass.0, "False NoChassisFree");
    assert!(pass.1.contains("all 1 mini are leased") && pass.1.contains("2026-03-03T09:00:00Z (23h0m)"), "{}", pass.1);
    facts.lease.spec.serial = Some(SERIAL.into());
    let named = lease_words(&facts);
    assert_eq!(named.0, "False SerialNotAvailable");
    for words in [&pass.1, &named.1] {
        assert!(!words.contains(TEAM) && !words.contains(LEASE) && !words.contains(&uid(LEASE)), "{words}");
    }
    facts.lease.spec.serial = None;
    facts.class = Seen::Absent;
    assert_eq!(lease_words(&facts).0, "False ClassNotFound");
    facts.class = Seen::Unknown("timeout".into());
    assert_eq!(lease_words(&facts).0, "False Unreadable", "it is not said that none is free");
    facts.class = Seen::Present(());
    facts.candidates.clear();
    assert_eq!(lease_words(&facts).0, "False NoChassisOfClass");
}

fn lease_words(facts: &lease::Facts) -> (String, String) {
    let pass = super::rack::Decided::from(lease::decide(facts));
    assert_eq!(pass.phase(), "Pending");
    (pass.says("Ready"), pass.message("Ready"))
}

#[test]
fn a_bound_lease_is_told_its_chassis_and_its_clock() {
    let mut rack = Rack::leased().at("+1m");
    rack.the_lease().status = None;
    let pass = rack.lease_pass();
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Bound", "True Bound"));
    assert_eq!((pass.text("serial").as_str(), pass.text("nodeName").as_str()), (SERIAL, "macrack-zzserialn1"));
    assert_eq!(pass.text("boundAt"), "2026-03-02T09:00:00Z");
    assert_eq!(pass.says("ChassisHealthy"), "True Healthy");
    assert_eq!(pass.text("instances"), "0/2");
}

/// Between the binding and the lease's own word of it nothing is given out: were it bound twice, an instance could
/// otherwise win a slot on both.
#[test]
fn a_lease_has_one_chassis_the_one_its_status_names() {
    let rack = Rack::leased().instance("i1", "+1h").at("+1h");
    let unsaid = rack.clone().with(|r| r.the_lease().status = None);
    assert!(unsaid.node_pass().slots().is_empty());
    let other = rack.clone().with(|r| r.the_lease().status.as_mut().unwrap().serial = Some("ZZSERIALN2".into()));
    let pass = other.node_pass();
    assert!(pass.steps().is_empty(), "{:?}", pass.steps());
    assert!(pass.message("Ready").contains("given to nobody before 2026-03-03T09:00:00Z"), "{}", pass.message("Ready"));
    let released = other.at("+24h").node_pass().steps();
    assert_eq!(released.last().map(String::as_str), Some("clear lease"));
    // and the lease does not change its mind
    let mut facts = rack.lease_facts();
    facts.lease.status.as_mut().unwrap().serial = Some("ZZSERIALN2".into());
    facts.named = Seen::Absent;
    let pass = super::rack::Decided::from(lease::decide(&facts));
    assert_eq!(pass.text("serial"), "ZZSERIALN2");
    assert_eq!(pass.says("Ready"), "False ChassisMissing");
}

#[test]
fn the_servers_clock_is_asked_for_only_when_a_moment_seems_to_have_come() {
    let lease = super::rack::bound_lease();
    let asked = |offset: &str, choosing| lease::needs_server_clock(&lease, None, choosing, at(offset));
    assert!(!asked("+1h", false));
    assert!(asked("+1h", true));
    assert!(asked("+24h", false));
    let clocks = Clocks { operator: at("+24h"), server: Seen::Absent };
    assert!(!clocks.both_past(at("+1h")), "a clock that was not asked has not said yes");
    assert_eq!(NAME, SERIAL.to_lowercase());
}
