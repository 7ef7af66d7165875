//! `MacOSMachine`: from a class to a guest that is ready, and back to nothing.
//!
//! ```text
//! finalizer ─▶ gates ─▶ room ─▶ identity ─▶ ConfigMap, Secret, DataVolumes, VirtualMachine ─▶ instance ─▶ guest ─▶ Ready
//!                 any deadline passed ─▶ failure written once ─▶ everything given back, the object stays
//!                 deleted ─▶ claim lets go ─▶ everything given back in order ─▶ finalizer removed
//! ```
//!
//! Invariants: what could not be read frees nothing and makes nothing; a stop that began is carried to its end; the
//! identity is the last thing that is given back and never the first that is forgotten. The phase is output only.

mod cards;
mod devices;
mod disks;
mod drain;
mod end;
mod facts;
mod headroom;
mod instance;
mod line;
mod provision;
mod run;
mod start;
mod status;
mod stop;
mod teardown;

use dockerios_api::{
    machine::{
        class::IdentityKind,
        macos_machine::{MachineCondition as Condition, MachinePhase as Phase, MachineReason as Reason},
    },
    names::{POOL_UID, TEARDOWN},
};
use jiff::Timestamp;
use kube::ResourceExt;

pub use cards::{Cards, Holder};
pub use disks::USUAL_CLONE;
pub use end::held_by_claim;
pub use facts::{Facts, node_of};
pub use headroom::{Capacity, GROWTH_SHARE, REOPENS_ABOVE, Room, Share, judge as judge_room, reservation, thresholds};
pub use line::{Line, Waiter, reserved};
pub use provision::{Open, Shut, gates};
pub use run::SILENCE;
pub use start::START_DEADLINE;
pub use stop::{GUEST_WINDOW, OVERDUE};

use self::{
    disks::{Disks, LOST_AFTER},
    drain::Drain,
    facts::Objects,
    instance::Life,
    status::{Pass, after},
};
use crate::{Kind, Plan, Step, Target, decide::claim};

/// Decides what is next for a machine.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let machine = &facts.machine;
    let deleting = machine.metadata.deletion_timestamp.is_some();
    let guarded = machine.finalizers().iter().any(|finalizer| finalizer == TEARDOWN);
    if deleting && !guarded {
        // nothing of it waits for us any more; what it may have left is found by its label
        return Plan::default();
    }
    let mut pass = Pass::new(facts, now);
    match Objects::of(facts) {
        Err(why) => pass.unreadable(&why),
        Ok(objects) => {
            pass.describe(&objects);
            standing(&mut pass);
            course(&mut pass, &objects, deleting, guarded);
        }
    }
    pass.done()
}

fn course(pass: &mut Pass, objects: &Objects, deleting: bool, guarded: bool) {
    if deleting {
        return end::proceed(pass, objects);
    }
    if !guarded {
        pass.plan.then(Step::AddFinalizer(exactly(pass), TEARDOWN));
        return pass.sum_up(Phase::Pending, Reason::Starting, "it was accepted");
    }
    if let Some(step) = claim::orphaned(pass.machine(), &pass.facts.claim) {
        pass.plan.then(step);
        let phase = pass.before().and_then(|status| status.phase).unwrap_or(Phase::Pending);
        return pass.sum_up(
            phase,
            Reason::ShuttingDown,
            "its claim is gone or has ended; a machine is never used again",
        );
    }
    if let Some(failure) = pass.draft.failure.clone() {
        return end::failed(pass, objects, &failure);
    }
    let life = Life::of(pass.facts, objects);
    let drain = drain::judge(pass, objects, &life);
    // what cannot be asked to stop is not stopped by being asked
    let leave = drain == Drain::Leave && !matches!(life, Life::Lost(_));
    let borrowed = pass.machine().labels().contains_key(POOL_UID) || pass.machine().spec.claim_ref.is_some();
    if leave && borrowed {
        pass.plan.then(Step::Delete(exactly(pass)));
        return pass.sum_up(
            Phase::Stopping,
            Reason::Draining,
            "its node is being drained; another machine takes its place",
        );
    }
    let disks = disks::judge(pass, objects);
    if let Disks::Lost(message) = &disks {
        return lost(pass, objects, message);
    }
    // a machine of nobody's is stopped, and then started wherever there is room
    if stop::wanted(pass) || leave {
        // who is to be off waits for no room, and closes no storage class for those who read how many wait
        pass.draft.awaits_room_in = None;
        return stop::proceed(pass, objects, &life);
    }
    match objects.vm {
        Some(vm) => run::proceed(pass, objects, vm, &life, &disks),
        None => made_again(pass, objects, &life),
    }
}

/// It has no VirtualMachine.
fn made_again(pass: &mut Pass, objects: &Objects, life: &Life) {
    if matches!(life, Life::Down(_)) && objects.vmi.is_none() {
        return provision::proceed(pass, objects);
    }
    if let Some((reason, message)) = stop::bring_down(pass, objects, life, false) {
        return pass.sum_up(Phase::Stopping, reason, message);
    }
    stop::remove_forsaken(pass, objects);
    let message = "its VirtualMachine was taken away; it is made again when what is left of its instance is gone";
    pass.sum_up(Phase::Stopping, Reason::WaitingForInstance, message);
}

/// Conditions that hold until something else is said of them in the pass.
fn standing(pass: &mut Pass) {
    let shared = pass
        .facts
        .class
        .present()
        .is_some_and(|class| class.spec.identity.kind == IdentityKind::Shared);
    match (pass.facts.held.unreadable(), pass.draft.identity_ref.clone()) {
        (Some(_), _) => pass.again(Condition::IdentityAllocated),
        (None, Some(name)) => {
            pass.say(
                Condition::IdentityAllocated,
                true,
                Reason::IdentityAllocated,
                format!("it has identity {name}"),
            );
        }
        (None, None) if shared => {
            pass.say(
                Condition::IdentityAllocated,
                true,
                Reason::SharedBootDisk,
                "its class shares one bootdisk",
            );
        }
        (None, None) if end::has_given_back(pass, Condition::IdentityAllocated) => {
            pass.again(Condition::IdentityAllocated);
        }
        // whether it is to have one is not known
        (None, None) if pass.facts.class.unreadable().is_some() => pass.again(Condition::IdentityAllocated),
        (None, None) => pass.say(
            Condition::IdentityAllocated,
            false,
            Reason::AllocatingIdentity,
            "it has none yet",
        ),
    }
    pass.say(Condition::DiskCloned, false, Reason::Cloning, "nothing is cloned yet");
    pass.again(Condition::DiskCloned);
    pass.say(
        Condition::InstanceRunning,
        false,
        Reason::Starting,
        "there is no instance yet",
    );
    pass.again(Condition::InstanceRunning);
    pass.say(Condition::GuestReady, false, Reason::Booting, "nothing runs yet");
    pass.again(Condition::GuestReady);
    pass.say(Condition::Draining, false, Reason::NotDraining, "its node is in use");
    pass.again(Condition::StorageHeadroom);
}

/// A disk is gone: said first, and given up when it stays so.
fn lost(pass: &mut Pass, objects: &Objects, message: &str) {
    let message = format!("{message}; what was on it is lost. Delete the machine and make another");
    let stood = pass
        .stood(Condition::DiskCloned)
        .filter(|stood| stood.reason == Reason::VolumeLost.word());
    let since = stood.map_or(pass.now, |stood| stood.last_transition_time.0);
    pass.say(Condition::DiskCloned, false, Reason::VolumeLost, &message);
    let due = after(since, LOST_AFTER);
    if pass.now >= due {
        return pass.fail(objects, Reason::VolumeLost, message);
    }
    pass.plan.wake_at(due);
    let phase = pass
        .before()
        .and_then(|status| status.phase)
        .filter(|phase| *phase != Phase::Ready);
    pass.draft.stop_requested_at = pass.before().and_then(|status| status.stop_requested_at.clone());
    pass.sum_up(phase.unwrap_or(Phase::Unknown), Reason::VolumeLost, message);
}

fn exactly(pass: &Pass) -> Target {
    Target::exactly(Kind::MacOSMachine, &pass.machine().metadata)
}
