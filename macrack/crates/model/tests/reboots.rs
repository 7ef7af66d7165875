//! A stuck counter, an approval, one reboot: in every order in which things can happen.

use macrack_api::config::rack_config::RebootPolicy;
use macrack_model::reboot::{Budget, Scene};
use stateright::{Checker, Expectation, Model};

/// Explores to the end; `met`: what must be met on the way.
#[track_caller]
fn explore(scene: Scene, met: &[&str]) {
    let checker = scene.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states, {} different", checker.state_count(), checker.unique_state_count());
    for property in scene.properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (Expectation::Sometimes, None) if met.contains(&property.name) => panic!("never met: {}", property.name),
            (Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let broken = path.last_state().broken;
                path.into_actions().iter().for_each(|event| println!("  {event:?}"));
                panic!("{}: {broken:?}", property.name);
            }
        }
    }
}

const BACK: &str = "a Mac is rebooted once and its VM runs again";
const AGAIN: &str = "an approval is asked with again and used once";
const NOTHING: Budget = Budget { stick: 0, approve: 0, clear: 0, cut: 0, die: 0, freeze: 0, tick: 0 };

#[test]
fn an_admin_approves_and_agents_and_operators_die_anywhere() {
    let budget = Budget { stick: 1, approve: 1, die: 2, ..NOTHING };
    explore(Scene { policy: RebootPolicy::Manual, budget }, &[BACK]);
}

#[test]
fn the_policy_approves_under_a_cache_that_stopped_anywhere() {
    let budget = Budget { stick: 1, freeze: 1, die: 1, tick: 1, ..NOTHING };
    explore(Scene { policy: RebootPolicy::Automatic, budget }, &[BACK]);
}

#[test]
fn it_sticks_again_and_the_second_reboot_is_an_admins() {
    let budget = Budget { stick: 2, approve: 1, die: 1, tick: 1, ..NOTHING };
    explore(Scene { policy: RebootPolicy::Automatic, budget }, &[BACK]);
}

#[test]
fn power_is_cut_and_an_admin_clears_by_hand_at_any_moment() {
    let budget = Budget { stick: 1, approve: 1, clear: 1, cut: 1, die: 1, ..NOTHING };
    explore(Scene { policy: RebootPolicy::Manual, budget }, &[BACK]);
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again_and_reboots_nothing_more() {
    let budget = Budget { stick: 1, die: 1, cut: 1, ..NOTHING };
    explore(Scene { policy: RebootPolicy::Automatic, budget }, &[BACK, AGAIN]);
}
