//! Every order in which things can happen, scene by scene. Two operators are at work in each scene with `freeze`: one
//! that sees what is, and one whose caches stopped at any moment and that goes on from any step of a plan.

use macrack_api::rack::node::Order;
use macrack_model::{
    rack::{Budget, Which, World},
    rest,
    scene::{Scene, Sight},
    world::{End, Mac, Real},
};
use stateright::{Checker, Expectation, Model};

/// Explores a scene to its end; prints the way to what is broken.
#[track_caller]
pub(crate) fn explore(scene: Scene) {
    let checker = scene.clone().checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them different, {} deep",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    for property in scene.properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (Expectation::Sometimes, None) => panic!("never met: {}", property.name),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => {
                let last = path.last_state().clone();
                path.into_actions().iter().for_each(|event| println!("  {event:?}"));
                let why = last.broken.clone().or_else(|| rest::comes(&last, scene.agents_count).err());
                let why = why.or_else(|| rest::asleep(&last).err()).or_else(|| rest::blind(&last).err());
                panic!("{}: {}", property.name, why.unwrap_or_default());
            }
        }
    }
}

pub(crate) fn scene(budget: Budget) -> Scene {
    Scene {
        macs: 1,
        budget,
        names: vec![0],
        tenants: vec![0],
        maximum: None,
        agents_count: false,
        unbound: vec![],
        freezes: vec![Which::All, Which::Macs, Which::Leases, Which::Instances],
        begun: (vec![0], vec![0]),
        meets: Vec::new(),
    }
}

fn mac(world: &World) -> Option<&Mac> {
    world.api.macs[0].as_ref()
}
fn holder(world: &World) -> Option<u8> {
    Some(mac(world)?.lease?.tenant)
}
fn is_free(world: &World) -> bool {
    mac(world).is_some_and(|m| m.lease.is_none())
}

const RELEASED: Sight = ("a lease was released", |_, w| w.given[0].is_some_and(|g| g.released) && is_free(w));
const TWO_VMS: Sight = ("two VMs run", |_, w| w.chassis[0].alive() == 2);
const HANDED_ON: Sight = ("the second tenant has the chassis", |_, w| holder(w) == Some(1));
const FULL: Sight = ("an instance found both slots taken", |_, w| w.api.instances.iter().flatten().any(|i| i.full));
const NEW_WHILE_HELD: Sight = ("an instance made while its lease is Held runs", |_, w| {
    let held = w.api.leases[0].as_ref().and_then(|l| l.deleted);
    let newer = w.api.instances.iter().flatten().filter(|i| held.is_some_and(|h| i.made > h));
    newer.into_iter().any(|i| w.chassis[0].vms.contains(&(i.uid, Real::Running)))
});
const GIVEN_BACK: Sight = ("a MacNode made again has its lease and its VM back", |_, w| {
    let again = mac(w).filter(|m| m.uid > 2 && m.lease.is_some());
    again.is_some_and(|m| m.slots.iter().any(|s| s.order == Order::Run))
});
const WAITS_FOR_ITS_FLOOR: Sight = ("a lease gone by force leaves a chassis that waits for its floor", |_, w| {
    w.api.leases[0].is_none() && holder(w) == Some(0) && w.server < 24
});
const BROKEN: Sight = ("a retired chassis keeps its leaseRef although the lease is gone", |_, w| {
    w.api.leases[0].as_ref().is_none_or(|l| l.end == Some(End::Broken))
        && mac(w).is_some_and(|m| m.retired && m.lease.is_some())
});
const BOUND_TWICE: Sight = ("one lease is in the leaseRef of two chassis", |_, w| {
    let mut held = w.api.macs.iter().flatten().filter_map(|m| m.lease).map(|r| r.lease);
    held.next().zip(held.next()).is_some_and(|(a, b)| a == b)
});
const LOST: Sight = ("a VM is lost while an instance waits", |_, w| {
    w.chassis[0].vms.iter().any(|(_, real)| *real == Real::Lost) && w.api.instances[1].is_some()
});

#[test]
fn a_lease_and_its_instance_from_nothing_to_nothing_with_a_crash_anywhere() {
    let budget = Budget {
        make_lease: 1,
        delete_lease: 1,
        make_instance: 1,
        delete_instance: 1,
        tick: 1,
        crash: 1,
        ..Budget::default()
    };
    explore(Scene { begun: (vec![], vec![]), ..scene(budget) });
}

#[test]
fn a_held_lease_takes_instances_and_is_released_at_a_floor_that_only_rises() {
    let budget = Budget { delete_lease: 1, raise_minimum: 1, make_instance: 1, tick: 2, ..Budget::default() };
    explore(Scene { begun: (vec![0], vec![]), meets: vec![RELEASED, NEW_WHILE_HELD], ..scene(budget) });
}

#[test]
fn caches_that_stopped_anywhere_in_the_end_of_a_lease() {
    let budget = Budget { delete_lease: 1, delete_instance: 1, make_lease: 1, tick: 1, freeze: 1, ..Budget::default() };
    explore(Scene { meets: vec![RELEASED], ..scene(budget) });
}

#[test]
fn three_instances_for_two_slots() {
    let budget = Budget { make_instance: 2, delete_instance: 1, force_instance: 1, ..Budget::default() };
    explore(Scene { names: vec![0, 1, 2], meets: vec![TWO_VMS, FULL], ..scene(budget) });
}

#[test]
fn three_instances_for_two_slots_and_caches_that_stopped() {
    let budget = Budget { make_instance: 1, delete_instance: 1, freeze: 1, ..Budget::default() };
    explore(Scene { names: vec![0, 1, 2], begun: (vec![0], vec![0, 1]), meets: vec![TWO_VMS, FULL], ..scene(budget) });
}

/// The agent's report Wiped of a VM that was off must not outlive the order to run it.
#[test]
fn an_instance_switched_off_and_on_and_deleted_at_once() {
    let budget = Budget {
        make_instance: 1,
        delete_instance: 1,
        power: 2,
        delete_lease: 1,
        tick: 1,
        crash: 1,
        ..Budget::default()
    };
    explore(Scene { begun: (vec![0], vec![]), meets: vec![RELEASED], ..scene(budget) });
}

#[test]
fn a_lease_and_an_instance_removed_by_force_and_made_again() {
    let budget =
        Budget { make_lease: 1, force_lease: 1, make_instance: 1, force_instance: 1, tick: 1, ..Budget::default() };
    explore(Scene { meets: vec![WAITS_FOR_ITS_FLOOR, RELEASED], ..scene(budget) });
}

#[test]
fn after_a_lease_removed_by_force_another_tenant_waits_for_the_floor_by_both_clocks() {
    let budget = Budget { make_lease: 1, force_lease: 1, tick: 2, ..Budget::default() };
    explore(Scene { tenants: vec![0, 1], meets: vec![WAITS_FOR_ITS_FLOOR, HANDED_ON], ..scene(budget) });
}

#[test]
fn a_macnode_removed_by_force_gets_its_lease_back_and_never_a_third_vm() {
    let budget = Budget { force_mac: 1, make_instance: 1, delete_instance: 1, ..Budget::default() };
    let names = vec![0, 1, 2];
    explore(Scene {
        names,
        agents_count: true,
        begun: (vec![0], vec![0, 1]),
        meets: vec![GIVEN_BACK, TWO_VMS],
        ..scene(budget)
    });
}

#[test]
fn a_macnode_removed_by_force_while_its_lease_is_held() {
    let budget = Budget { force_mac: 1, delete_lease: 1, make_instance: 1, tick: 1, ..Budget::default() };
    explore(Scene { names: vec![0, 1], agents_count: true, meets: vec![GIVEN_BACK, RELEASED], ..scene(budget) });
}

#[test]
fn with_lease_and_macnode_gone_the_mac_itself_remembers_its_floor() {
    let budget = Budget { force_mac: 1, force_lease: 1, make_lease: 1, tick: 2, ..Budget::default() };
    explore(Scene { tenants: vec![0, 1], agents_count: true, meets: vec![HANDED_ON], ..scene(budget) });
}

#[test]
fn a_retired_chassis_waits_for_its_floor_and_its_wipe() {
    let budget = Budget { retire: 1, delete_lease: 1, make_lease: 1, tick: 1, ..Budget::default() };
    explore(Scene { tenants: vec![0, 1], meets: vec![BROKEN, HANDED_ON], ..scene(budget) });
}

#[test]
fn an_instance_on_a_retired_chassis_goes_and_a_crash_anywhere() {
    let budget = Budget { retire: 1, delete_instance: 1, tick: 1, crash: 1, ..Budget::default() };
    explore(Scene { meets: vec![BROKEN], ..scene(budget) });
}

#[test]
fn while_a_vm_cannot_be_reached_nothing_extra_starts() {
    let budget = Budget { lose_vm: 1, make_instance: 1, delete_instance: 1, ..Budget::default() };
    explore(Scene { names: vec![0, 1], meets: vec![LOST, TWO_VMS], ..scene(budget) });
}

#[test]
fn a_lease_that_expires_and_a_macnode_removed_by_force() {
    let budget = Budget { delete_lease: 1, tick: 2, force_mac: 1, ..Budget::default() };
    explore(Scene { maximum: Some(24), meets: vec![RELEASED], ..scene(budget) });
}

#[test]
fn a_lease_that_expires_under_caches_that_stopped() {
    let budget = Budget { tick: 1, crash: 1, freeze: 1, ..Budget::default() };
    explore(Scene { maximum: Some(24), meets: vec![RELEASED], ..scene(budget) });
}

#[test]
fn a_namespace_deleted_with_everything_in_it() {
    let budget = Budget { end_namespace: 1, make_lease: 1, make_instance: 1, tick: 1, ..Budget::default() };
    explore(Scene { tenants: vec![0, 1], names: vec![0, 1], meets: vec![HANDED_ON], ..scene(budget) });
}

#[test]
fn a_chassis_goes_from_tenant_to_tenant_with_a_crash_anywhere() {
    let budget = Budget { delete_lease: 1, make_lease: 1, make_instance: 1, tick: 1, crash: 1, ..Budget::default() };
    explore(Scene { tenants: vec![0, 1], names: vec![0, 3], meets: vec![HANDED_ON], ..scene(budget) });
}

#[test]
fn two_tenants_race_for_two_macs_under_caches_that_stopped() {
    let budget = Budget { make_lease: 2, freeze: 1, crash: 1, ..Budget::default() };
    explore(Scene {
        macs: 2,
        tenants: vec![0, 1],
        names: vec![],
        begun: (vec![], vec![]),
        meets: vec![HANDED_ON],
        ..scene(budget)
    });
}

/// The younger lease takes the second Mac, the older one is deleted, and on caches that do not show it the younger one
/// takes the first Mac as well.
#[test]
fn a_lease_bound_twice_runs_its_instances_on_one_mac() {
    let budget = Budget { delete_lease: 1, make_instance: 1, freeze: 1, ..Budget::default() };
    explore(Scene {
        macs: 2,
        tenants: vec![0],
        names: vec![3],
        unbound: vec![0, 1],
        begun: (vec![], vec![]),
        freezes: vec![Which::Macs],
        meets: vec![BOUND_TWICE],
        ..scene(budget)
    });
}

#[test]
fn a_lease_never_has_instances_on_two_macs() {
    let budget = Budget { make_lease: 1, make_instance: 1, freeze: 1, force_mac: 1, ..Budget::default() };
    explore(Scene { macs: 2, agents_count: true, begun: (vec![], vec![]), ..scene(budget) });
}
