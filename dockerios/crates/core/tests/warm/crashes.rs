//! Each pass is cut off after each of its steps, and everything is begun anew: the end is the same.

use dockerios_api::machine::claim::ClaimPhase;
use dockerios_core::Kind;
use kube::ResourceExt;
use serde_json::json;

use crate::world::World;

/// Passes over everything, each cut off after `most` steps, with or without its status; then machines move on.
fn round(world: &mut World, most: usize, with_status: bool) {
    let pools: Vec<String> = world.view.pools.iter().map(|p| p.name_any()).collect();
    for name in pools {
        let plan = world.decide_pool(&name, &world.view);
        let version = world.find_pool(&name).resource_version();
        world.carry_out(&plan, most);
        if with_status {
            world.write_status(Kind::MacOSMachinePool, &name, version, &plan);
        }
    }
    let claims: Vec<String> = world.view.claims.iter().map(|c| c.name_any()).collect();
    for name in claims {
        let plan = world.decide_claim(&name, &world.view);
        let version = world.find_claim(&name).resource_version();
        world.carry_out(&plan, most);
        if with_status {
            world.write_status(Kind::MacOSMachineClaim, &name, version, &plan);
        }
    }
}

fn all_on(world: &mut World) {
    for machine in world.view.machines.clone() {
        world.pass_time(1);
        world.ready(&machine.name_any());
    }
    world.sweep();
}

#[test]
fn a_crash_after_any_step_makes_no_second_machine_and_loses_no_claim() {
    for most in [0, 1, 2] {
        for with_status in [false, true] {
            let mut world = World::new();
            world.pool("ci", 2, 6);
            for name in ["a", "b", "c"] {
                world.claim(name, json!({"poolName": "ci"}));
                world.pass_time(1);
            }
            world.claim("d", json!({"machineClassName": "build"}));
            for _ in 0..4 {
                round(&mut world, most, with_status);
                all_on(&mut world);
            }
            for _ in 0..8 {
                round(&mut world, usize::MAX, true);
                all_on(&mut world);
            }
            for claim in world.view.claims.clone() {
                let status = claim.status.clone().expect("a status");
                assert_eq!(status.phase, Some(ClaimPhase::Bound), "{most} {with_status}: {claim:?}");
                assert_eq!(
                    world.machines_of(&claim).len(),
                    1,
                    "{most} {with_status}: {}",
                    claim.name_any()
                );
            }
            // the class's claim may have taken one of the pool's, or have one of its own
            assert!(
                (6..=7).contains(&world.view.machines.len()),
                "{}",
                world.view.machines.len()
            );
        }
    }
}

#[test]
fn the_end_of_a_claim_can_be_cut_off_anywhere() {
    for (most, with_status) in [(0, false), (0, true), (1, false)] {
        let mut world = World::new();
        world.pool("ci", 1, 2);
        world.claim("job", json!({"poolName": "ci", "ttl": "1h"}));
        for _ in 0..4 {
            round(&mut world, usize::MAX, true);
            all_on(&mut world);
        }
        let machine = world.machines_of(&world.find_claim("job"))[0].uid();
        world.pass_time(3600);
        round(&mut world, most, with_status);
        for _ in 0..3 {
            round(&mut world, usize::MAX, true);
            world.sweep();
        }
        assert_eq!(
            world.find_claim("job").status.and_then(|s| s.phase),
            Some(ClaimPhase::Expired)
        );
        assert!(
            !world.view.machines.iter().any(|m| m.uid() == machine),
            "{most} {with_status}"
        );
    }
}
