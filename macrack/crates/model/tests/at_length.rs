//! The scenes with more of everything: some minutes, so `cargo test` leaves them out (`test = false` in Cargo.toml).
//! `cargo test -p macrack-model --test at_length -- --test-threads 1`

#[path = "scenes.rs"]
mod scenes;

use macrack_model::{rack::Budget, scene::Scene};
use scenes::{explore, scene};

#[test]
fn a_held_lease_new_instances_and_caches_that_stopped() {
    let budget = Budget { delete_lease: 1, make_instance: 1, tick: 2, freeze: 1, ..Budget::default() };
    explore(Scene { names: vec![0, 1], ..scene(budget) });
}

#[test]
fn removed_by_force_and_caches_that_stopped() {
    let budget = Budget { make_lease: 1, force_lease: 1, tick: 2, freeze: 1, ..Budget::default() };
    explore(Scene { tenants: vec![0, 1], ..scene(budget) });
}

#[test]
fn lost_vms_over_the_floor() {
    let budget =
        Budget { lose_vm: 1, make_instance: 1, delete_instance: 1, delete_lease: 1, tick: 1, ..Budget::default() };
    explore(Scene { names: vec![0, 1], ..scene(budget) });
}

#[test]
fn two_macs_and_a_deletion() {
    let budget = Budget { make_lease: 2, delete_lease: 1, freeze: 1, crash: 1, ..Budget::default() };
    explore(Scene { macs: 2, tenants: vec![0, 1], names: vec![], begun: (vec![], vec![]), ..scene(budget) });
}
