//! An agent: it sees the orders late, does them one by one, and reports later still.

use macrack_api::rack::node::{Order, VmState};

use crate::world::{Chassis, Mac, Real, Report, Uid};

/// It reads its MacNode, and remembers the lease on its own disk.
pub fn sees(chassis: &mut Chassis, mac: &Mac) {
    chassis.seen = mac.slots.iter().map(|s| (s.uid, s.order)).collect();
    if let Some(r) = &mac.lease {
        chassis.last = Some((r.lease, r.floor));
    }
}

/// It does the next step for every order that it saw. `counts`: it refuses a third VM by itself; where the model turns
/// that off, the operator and the schema must keep to two without it.
pub fn works(chassis: &mut Chassis, counts: bool) {
    let lost = chassis.vms.iter().any(|(_, real)| *real == Real::Lost);
    for (uid, order) in chassis.seen.clone() {
        let at = chassis.vms.iter().position(|(u, _)| *u == uid);
        let full = counts && chassis.alive() >= 2;
        match (order, at.map(|i| chassis.vms[i].1)) {
            (_, Some(Real::Lost)) => {}
            (Order::Run, None | Some(Real::Stopped)) if full || lost => {}
            (Order::Run, None) => chassis.vms.push((uid, Real::Running)),
            (Order::Run, Some(_)) => set(chassis, at, Real::Running),
            (Order::Stop | Order::Wipe, Some(Real::Running)) => set(chassis, at, Real::Stopped),
            (Order::Wipe, Some(Real::Stopped)) => chassis.vms.retain(|(u, _)| *u != uid),
            (Order::Stop | Order::Wipe, _) => {}
        }
    }
    chassis.vms.sort_unstable();
}

fn set(chassis: &mut Chassis, at: Option<usize>, real: Real) {
    if let Some(vm) = at.and_then(|i| chassis.vms.get_mut(i)) {
        vm.1 = real;
    }
}

/// What it reports: the truth, and Wiped of what it was told to stop or wipe and does not have.
pub fn reports(chassis: &Chassis) -> Report {
    let mut vms: Vec<(Uid, VmState)> = chassis
        .vms
        .iter()
        .map(|(uid, real)| {
            let state = match real {
                Real::Running => VmState::Running,
                Real::Lost => VmState::Unknown,
                Real::Stopped => VmState::Stopped,
            };
            (*uid, state)
        })
        .collect();
    for (uid, order) in &chassis.seen {
        if chassis.vms.iter().all(|(u, _)| u != uid) {
            vms.push((*uid, if *order == Order::Run { VmState::Waiting } else { VmState::Wiped }));
        }
    }
    vms.sort_unstable_by_key(|(uid, _)| *uid);
    Report { vms, last: chassis.last }
}
