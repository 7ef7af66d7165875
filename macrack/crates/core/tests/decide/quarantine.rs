//! Hand-over case 60: what ends a quarantine, and what does not. (The table of each reason stands beside the code.)

use macrack_api::rack::node::{MacNodePhase, QuarantineReason as Reason, VmState::*};
use macrack_core::decide::node::Leasable;

use super::rack::{Rack, agent, time};

fn left(rack: Rack) -> Vec<String> {
    let status = rack.at("+2h").node_pass().plan.status.unwrap();
    let list = status["quarantine"].as_array().cloned().unwrap_or_default();
    list.iter().map(|entry| entry["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn what_does_not_end_a_quarantine() {
    let stuck = || Rack::leased().quarantined(Reason::QuotaStuck);
    assert_eq!(left(stuck()), ["QuotaStuck"], "a heartbeat");
    assert_eq!(left(stuck().running("other", "+1h")), ["QuotaStuck"], "another VM that starts well");
    assert_eq!(left(stuck().with(|r| r.agent().version = "0.2.0".into())), ["QuotaStuck"], "an agent that restarts");
    let unwiped = || Rack::leased().quarantined(Reason::WipeFailed);
    assert_eq!(left(unwiped()), ["WipeFailed"], "an operator that restarts");
    assert_eq!(left(unwiped().lease_deleted("+1h")), ["WipeFailed"], "a lease that is deleted");
    assert_eq!(left(unwiped().lease_gone()), ["WipeFailed"], "a lease that is gone");
    let ready = unwiped().with(|r| r.status().phase = Some(MacNodePhase::Ready));
    assert_eq!(left(ready.clone()), ["WipeFailed"], "somebody who writes the phase");
    assert_eq!(ready.at("+2h").node_pass().phase(), "Quarantined");
    let silent = unwiped().with(|r| r.status().agent = None);
    assert_eq!(left(silent), ["WipeFailed"], "an agent that is not heard");
}

#[test]
fn what_ends_a_quarantine() {
    let reboot = |r: &mut Rack| {
        r.agent().boot_id = "boot-2".into();
        r.agent().quota.checked_boot_id = Some("boot-2".into());
    };
    assert!(left(Rack::leased().quarantined(Reason::QuotaStuck).with(reboot)).is_empty());
    let both = Rack::leased().quarantined(Reason::QuotaStuck).quarantined(Reason::WipeFailed).with(reboot);
    assert_eq!(left(both), ["WipeFailed"]);
    let lost = Rack::leased().running("i1", "+1h").quarantined(Reason::ReattachFailed);
    assert!(left(lost.clone()).is_empty(), "every VM answers again");
    assert_eq!(left(lost.vm("i1", Unknown)), ["ReattachFailed"]);
    let foreign = Rack::leased().quarantined(Reason::ForeignVM);
    assert!(left(foreign.clone()).is_empty());
    assert_eq!(left(foreign.with(|r| r.agent().quota.foreign = 1)), ["ForeignVM"]);
}

#[test]
fn an_admin_clears_by_echoing_the_entry_and_only_that_one() {
    let dirty = Rack::leased().quarantined(Reason::WipeFailed);
    let token = dirty.node.status.as_ref().unwrap().quarantine[0].token();
    assert_eq!(token, "WipeFailed@2026-03-02T10:00:00Z");
    let words = dirty.clone().at("+2h").node_pass().message("Ready");
    assert!(words.contains(&token), "the way out is in the message: {words}");
    assert!(left(dirty.clone().with(|r| r.node.spec.cleared_quarantine = Some(token.clone()))).is_empty());
    let later = dirty.with(|r| {
        r.status().quarantine[0].since = time("+1h30m");
        r.node.spec.cleared_quarantine = Some(token);
    });
    assert_eq!(left(later), ["WipeFailed"], "an earlier entry's echo clears no later one");
}

#[test]
fn a_quarantined_chassis_is_never_bound() {
    for reason in
        [Reason::QuotaStuck, Reason::ReattachFailed, Reason::SerialMismatch, Reason::WipeFailed, Reason::ForeignVM]
    {
        // the list alone is enough, whatever the agent reports by now
        let rack = Rack::free().quarantined(reason).with(|r| r.status().agent = Some(agent()));
        let earned = matches!(reason, Reason::ReattachFailed | Reason::ForeignVM);
        assert_eq!(matches!(rack.leasable(), Leasable::Yes), earned, "{reason}");
    }
    // and so is the report, whatever the list says yet
    for (what, rack) in [
        ("stuck", Rack::free().with(|r| r.agent().quota.stuck = true)),
        ("lost", Rack::free().vm("ghost", Unknown)),
        ("dirty", Rack::free().vm("ghost", WipeFailed)),
        ("foreign", Rack::free().with(|r| r.agent().quota.foreign = 1)),
        ("board", Rack::free().with(|r| r.agent().hardware.as_mut().unwrap().serial = "ZZOTHER001".into())),
    ] {
        assert!(matches!(rack.leasable(), Leasable::No(because, _) if because.as_str() == "Quarantined"), "{what}");
    }
}

#[test]
fn reason_and_since_when_are_seen() {
    let pass = Rack::leased().quarantined(Reason::QuotaStuck).at("+2h").node_pass();
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Quarantined", "False QuotaStuck"));
    assert!(pass.message("Ready").contains("since 2026-03-02T10:00:00Z"), "{}", pass.message("Ready"));
}
