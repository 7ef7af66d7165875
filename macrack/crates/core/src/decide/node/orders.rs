//! The two slots: who gets one, what the agent is told, when one is emptied.

use kube::ResourceExt;
use macrack_api::{
    InstanceClassSpec, MacNodeClassSpec, MacOSInstance,
    instance::macos_instance::PowerState,
    names::{FINALIZER_INSTANCE, VMS_PER_MAC},
    rack::node::{Order, Quarantine, Slot, VmState},
};

use super::{Facts, Hold, remains};
use crate::{
    seen::Seen,
    size::{NoQuantity, Size},
};

/// The slots as they should be.
pub(super) fn decide(facts: &Facts, hold: &Hold, quarantine: &[Quarantine]) -> Vec<Slot> {
    let kept = facts.slots().iter().filter(|slot| !is_empty(facts, slot));
    let mut slots: Vec<Slot> =
        kept.map(|slot| Slot { order: order(facts, hold, quarantine, slot), ..slot.clone() }).collect();
    adopt_orphans(facts, hold, &mut slots);
    if hold.takes_instances() {
        award(facts, hold, quarantine, &mut slots);
    }
    slots.sort_by_key(|slot| slot.slot);
    slots
}

/// Emptied only when ordered Wipe and reported Wiped.
fn is_empty(facts: &Facts, slot: &Slot) -> bool {
    slot.order == Order::Wipe && facts.vm(&slot.uid) == Some(VmState::Wiped)
}

/// What the agent is to do with the VM in this slot. Wipe is never taken back; what cannot be read changes nothing.
fn order(facts: &Facts, hold: &Hold, quarantine: &[Quarantine], slot: &Slot) -> Order {
    if slot.order == Order::Wipe {
        return Order::Wipe;
    }
    // A Wiped under an order Run is older than that order: were it believed later, it would empty the slot under a VM
    // that is being started now. The agent answers Run first, then the order changes.
    if slot.order == Order::Run && facts.vm(&slot.uid) == Some(VmState::Wiped) {
        return Order::Run;
    }
    if *hold == Hold::Broken {
        return Order::Wipe;
    }
    if *hold == Hold::Unreadable {
        return slot.order;
    }
    if hold.clears() || facts.namespace_ending.present() == Some(&true) {
        return ending(facts, slot);
    }
    let instance = match facts.holders.get(&slot.uid) {
        Some(Seen::Present(instance)) if instance.uid().as_deref() == Some(&slot.uid) => instance,
        // gone by force, or made again under the same name: the VM of this uid is nobody's
        Some(Seen::Present(_) | Seen::Absent) => return ending(facts, slot),
        Some(Seen::Unknown(_)) | None => return slot.order,
    };
    if instance.metadata.deletion_timestamp.is_some() {
        return ending(facts, slot);
    }
    if let Hold::Held { since } = hold
        && instance.creation_timestamp().is_some_and(|made| made.0 <= *since)
    {
        return Order::Stop;
    }
    match powered(instance) {
        Order::Run => super::reboot::order(facts, quarantine, slot),
        stopped => stopped,
    }
}

fn powered(instance: &MacOSInstance) -> Order {
    match instance.spec.power_state {
        PowerState::Running => Order::Run,
        PowerState::Stopped => Order::Stop,
    }
}

/// Stop first; Wipe once no process of it runs any more.
fn ending(facts: &Facts, slot: &Slot) -> Order {
    let at_rest = facts.vm(&slot.uid).is_some_and(VmState::at_rest);
    if slot.order == Order::Stop && at_rest { Order::Wipe } else { Order::Stop }
}

/// A VM on the disk that no slot names is given a free slot to be wiped in, unless its instance may still get one.
fn adopt_orphans(facts: &Facts, hold: &Hold, slots: &mut Vec<Slot>) {
    let Some(agent) = facts.agent() else {
        return;
    };
    let Seen::Present(instances) = &facts.instances else {
        return;
    };
    // a lease that is about to be written back brings its instances with it
    if *hold == Hold::Unreadable || !facts.claim.is_absent() {
        return;
    }
    for vm in agent.vms.iter().filter(|vm| vm.state != VmState::Wiped) {
        let named = slots.iter().any(|s| s.uid == vm.uid);
        let awaited =
            hold.takes_instances() && instances.iter().any(|i| i.uid().as_deref() == Some(&vm.uid) && may_run(i, hold));
        if named || awaited || vm.uid.len() != 36 {
            continue;
        }
        let Some(free) = free_slot(slots) else { return };
        slots.push(Slot {
            slot: free,
            uid: vm.uid.clone(),
            namespace: remains::NAMESPACE.into(),
            name: remains::NAME.into(),
            order: Order::Wipe,
        });
    }
}

fn free_slot(slots: &[Slot]) -> Option<i32> {
    (0..VMS_PER_MAC as i32).find(|n| slots.iter().all(|s| s.slot != *n))
}

/// Oldest first, those that wait get the free slots. One whose VM is on the disk already (its MacNode was made again)
/// comes before them.
fn award(facts: &Facts, hold: &Hold, quarantine: &[Quarantine], slots: &mut Vec<Slot>) {
    let (Seen::Present(instances), true) = (&facts.instances, gives(facts, quarantine)) else {
        return;
    };
    let mut waiting: Vec<&MacOSInstance> = instances.iter().filter(|i| waits(facts, i, hold, slots)).collect();
    let on_disk = |i: &MacOSInstance| i.uid().and_then(|uid| facts.vm(&uid)).is_some_and(|vm| vm != VmState::Wiped);
    waiting.sort_by_key(|i| (!on_disk(i), i.creation_timestamp().map(|t| t.0), i.name_any()));
    for instance in waiting {
        let Some(free) = free_slot(slots) else { return };
        if !fits(facts, instance, slots) {
            continue; // said in the instance's own status
        }
        slots.push(Slot {
            slot: free,
            uid: instance.uid().unwrap_or_default(),
            namespace: instance.namespace().unwrap_or_default(),
            name: instance.name_any(),
            order: powered(instance),
        });
    }
}

/// Whether this chassis gives out slots at all: its agent has reported what is there, nothing in that very report
/// quarantines it, it is not in maintenance, the namespace stays, and the lease says that it has this chassis.
fn gives(facts: &Facts, quarantine: &[Quarantine]) -> bool {
    facts.agent().is_some()
        && quarantine.is_empty()
        && !facts.node.spec.drain
        && facts.namespace_ending.present() == Some(&false)
        && super::hold::is_told(facts)
}

/// Whether it waits for a slot of this chassis. One whose slot is emptied in this very pass waits for the next: the same
/// VM cannot leave a slot and enter it in one write.
fn waits(facts: &Facts, instance: &MacOSInstance, hold: &Hold, slots: &[Slot]) -> bool {
    let uid = instance.uid().unwrap_or_default();
    let ours = facts.lease_ref().is_some_and(|r| instance.namespace().as_deref() == Some(&r.namespace));
    may_run(instance, hold)
        && ours
        && instance.finalizers().iter().any(|f| f == FINALIZER_INSTANCE)
        && facts.slots().iter().chain(slots).all(|s| s.uid != uid)
}

/// Whether it can still win a slot: not one that goes, that lost once, or that is older than the lease's deletion.
fn may_run(instance: &MacOSInstance, hold: &Hold) -> bool {
    let full = instance.status.as_ref().is_some_and(|s| s.lease_full);
    let older = matches!(hold, Hold::Held { since } if instance.creation_timestamp().is_none_or(|t| t.0 <= *since));
    instance.metadata.deletion_timestamp.is_none() && !full && !older
}

/// Whether the instance fits beside those that hold a slot now. Beside one whose size is not known (it is gone by
/// force, or cannot be read) nothing fits until its slot is empty.
fn fits(facts: &Facts, instance: &MacOSInstance, slots: &[Slot]) -> bool {
    let Seen::Present(class) = &facts.class else {
        return false;
    };
    let size = |i: &MacOSInstance| facts.sizes.get(&i.spec.instance_class_name);
    let beside = slots.iter().map(|slot| holder(facts, &slot.uid).and_then(size));
    let sizes: Option<Vec<&InstanceClassSpec>> = beside.chain([size(instance)]).collect();
    sizes.is_some_and(|sizes| capacity(&class.spec, &sizes).is_ok())
}

fn holder<'a>(facts: &'a Facts, uid: &str) -> Option<&'a MacOSInstance> {
    let seen = facts.holders.get(uid).and_then(Seen::present).into_iter();
    seen.chain(facts.instances.present().into_iter().flatten()).find(|i| i.uid().as_deref() == Some(uid))
}

/// Whether VMs of these sizes fit together on a Mac of that class, beside the host's reserve.
///
/// # Errors
/// What does not fit, with both numbers.
pub fn capacity(class: &MacNodeClassSpec, sizes: &[&InstanceClassSpec]) -> Result<(), String> {
    let unreadable =
        |no: NoQuantity| format!("{} of one of the classes is {:?}, which is no quantity", no.field, no.text);
    let mut wanted = Size::default();
    for size in sizes {
        wanted = wanted.plus(Size::of(size).map_err(unreadable)?);
    }
    match wanted.exceeds(Size::left_by(class).map_err(unreadable)?) {
        None => Ok(()),
        Some((what, wanted, there)) => {
            Err(format!("{wanted} of {what} wanted, {there} there beside the host's reserve"))
        }
    }
}
