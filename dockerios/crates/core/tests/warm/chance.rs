//! Any order of passes, stale caches, crashes, failures and people: no machine is given twice, none that is bound is
//! deleted by its pool, no pool has too many, and in the end every claim is served.

use std::collections::BTreeSet;

use dockerios_api::{
    MacOSMachine,
    machine::claim::{ClaimEndReason, ClaimPhase},
    names::POOL_UID,
};
use dockerios_core::{Kind, Seen, Step};
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use crate::world::{View, World};

#[derive(Clone, Debug)]
enum Event {
    /// A pass over a claim; read `back` events ago, cut off after `cut` steps.
    Claim {
        which: usize,
        back: usize,
        cut: usize,
    },
    /// A pass over a pool.
    Pool {
        which: usize,
        back: usize,
        cut: usize,
    },
    NewClaim {
        pool: Option<usize>,
    },
    DeleteClaim(usize),
    Ready(usize),
    Fail(usize),
    DeleteMachine(usize),
    Scale {
        which: usize,
        replicas: i32,
    },
    ChangeClass,
    Sweep,
    Time(i64),
}

fn event(stale: usize) -> impl Strategy<Value = Event> {
    let any = 0..64usize;
    let cut = prop_oneof![4 => Just(usize::MAX), 1 => 0..3usize];
    prop_oneof![
        8 => (any.clone(), 0..=stale, cut.clone()).prop_map(|(which, back, cut)| Event::Claim { which, back, cut }),
        6 => (any.clone(), 0..=stale, cut).prop_map(|(which, back, cut)| Event::Pool { which, back, cut }),
        4 => prop::option::of(0..2usize).prop_map(|pool| Event::NewClaim { pool }),
        1 => any.clone().prop_map(Event::DeleteClaim),
        6 => any.clone().prop_map(Event::Ready),
        1 => any.clone().prop_map(Event::Fail),
        1 => any.clone().prop_map(Event::DeleteMachine),
        2 => (0..2usize, 0..5i32).prop_map(|(which, replicas)| Event::Scale { which, replicas }),
        1 => Just(Event::ChangeClass),
        3 => Just(Event::Sweep),
        3 => (1..40i64).prop_map(Event::Time),
    ]
}

const MOST: i32 = 6;

struct Game {
    /// Passes read what they wrote before, as the engine has it; only then can a pool count what it made.
    reads_its_writes: bool,
    world: World,
    past: Vec<View>,
    claims: usize,
}

fn pick<T: Clone>(all: &[T], which: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[which % all.len()].clone())
}

impl Game {
    fn new(reads_its_writes: bool) -> Self {
        let mut world = World::new();
        world.pool("p0", 2, MOST);
        world.pool("p1", 1, MOST);
        Self {
            reads_its_writes,
            world,
            past: Vec::new(),
            claims: 0,
        }
    }

    fn view(&self, back: usize) -> View {
        let at = self.past.len().saturating_sub(back);
        self.past.get(at).cloned().unwrap_or_else(|| self.world.view.clone())
    }

    fn machine(&self, which: usize) -> Option<String> {
        pick(&self.world.view.machines, which).map(|machine| machine.name_any())
    }

    fn happen(&mut self, event: &Event) {
        self.past.push(self.world.view.clone());
        match event {
            Event::Claim { which, back, cut } => self.claim(*which, *back, *cut),
            Event::Pool { which, back, cut } => self.pool(*which, *back, *cut),
            Event::NewClaim { pool } => {
                self.claims += 1;
                let spec = match pool {
                    Some(pool) => json!({"poolName": format!("p{pool}"), "ttl": "24h"}),
                    None => json!({"machineClassName": "build", "ttl": "24h"}),
                };
                self.world.claim(&format!("c{}", self.claims), spec);
            }
            Event::DeleteClaim(which) => {
                if let Some(claim) = pick(&self.world.view.claims, *which) {
                    self.world.view.claims.retain(|c| c.uid() != claim.uid());
                }
            }
            Event::Ready(which) => {
                let alive = |m: &MacOSMachine| m.status.is_none();
                let waiting: Vec<_> = self.world.view.machines.iter().filter(|m| alive(m)).cloned().collect();
                if let Some(machine) = pick(&waiting, *which) {
                    self.world.ready(&machine.name_any());
                }
            }
            Event::Fail(which) => {
                if let Some(name) = self.machine(*which) {
                    self.world.fail(&name);
                }
            }
            Event::DeleteMachine(which) => {
                // a person; the machine then waits for its claim
                let now = self.world.now;
                if let Some(name) = self.machine(*which) {
                    self.world.touch(&name, |m| {
                        m.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
                    });
                }
            }
            Event::Scale { which, replicas } => {
                self.world
                    .touch_pool(&format!("p{which}"), |pool| pool.spec.replicas = *replicas);
            }
            Event::ChangeClass => {
                let mut class = self.world.view.class.present().expect("a class").as_ref().clone();
                class.spec.cpu.cores = if class.spec.cpu.cores == 4 { 8 } else { 4 };
                self.world.view.class = Seen::Present(class.into());
            }
            Event::Sweep => self.world.sweep(),
            Event::Time(seconds) => self.world.pass_time(*seconds),
        }
        self.one_machine_for_one_claim();
    }

    fn claim(&mut self, which: usize, back: usize, cut: usize) {
        let view = self.view(back);
        let Some(name) = pick(&view.claims, which).map(|claim| claim.name_any()) else {
            return;
        };
        let version = view
            .claims
            .iter()
            .find(|c| c.name_any() == name)
            .and_then(|c| c.resource_version());
        let plan = self.world.decide_claim(&name, &view);
        self.world.carry_out(&plan, cut);
        if cut == usize::MAX {
            self.world.write_status(Kind::MacOSMachineClaim, &name, version, &plan);
        }
    }

    fn pool(&mut self, which: usize, back: usize, cut: usize) {
        let view = self.view(back);
        let Some(pool) = pick(&view.pools, which) else { return };
        let plan = self.world.decide_pool(&pool.name_any(), &view);
        for step in plan.steps.iter().take(cut) {
            let bound = self.bound();
            if self.world.apply(step).is_err() {
                break;
            }
            if let Step::Delete(target) = step {
                assert!(
                    !bound.contains(&target.uid),
                    "a pool deleted a machine that a claim had: {target:?}"
                );
            }
        }
        if cut == usize::MAX {
            self.world
                .write_status(Kind::MacOSMachinePool, &pool.name_any(), pool.resource_version(), &plan);
        }
        if self.reads_its_writes {
            self.within_max(&pool.uid().unwrap_or_default());
        }
    }

    /// uids of machines whose claim is there and has not ended.
    fn bound(&self) -> BTreeSet<String> {
        let open = |uid: &str| {
            let found = self.world.view.claims.iter().find(|c| c.uid().as_deref() == Some(uid));
            found.is_some_and(|claim| claim.status.as_ref().is_none_or(|status| status.end.is_none()))
        };
        let machines = self.world.view.machines.iter();
        let failed = |m: &MacOSMachine| m.status.as_ref().is_some_and(|status| status.failure.is_some());
        machines
            .filter(|m| !failed(m) && m.spec.claim_ref.as_ref().is_some_and(|claim| open(&claim.uid)))
            .filter_map(|m| m.uid())
            .collect()
    }

    fn one_machine_for_one_claim(&self) {
        let mut told = BTreeSet::new();
        for claim in &self.world.view.claims {
            let machine = claim.status.as_ref().and_then(|status| status.machine_ref.as_ref());
            if let Some(machine) = machine {
                assert!(
                    told.insert(machine.uid.clone()),
                    "two claims were told of {}",
                    machine.name.0
                );
                let there = self
                    .world
                    .view
                    .machines
                    .iter()
                    .find(|m| m.uid().as_ref() == Some(&machine.uid));
                let named = there
                    .and_then(|m| m.spec.claim_ref.as_ref())
                    .map(|c| Some(c.uid.clone()) == claim.uid());
                assert!(named.unwrap_or(true), "a claim was told of another's machine");
            }
        }
    }

    fn within_max(&self, pool: &str) {
        let ours = |m: &MacOSMachine| m.labels().get(POOL_UID).map(String::as_str) == Some(pool);
        let failed = |m: &MacOSMachine| m.status.as_ref().is_some_and(|status| status.failure.is_some());
        let count = self
            .world
            .view
            .machines
            .iter()
            .filter(|m| ours(m) && !failed(m))
            .count();
        assert!(
            count <= usize::try_from(MOST).unwrap_or_default(),
            "{count} machines of at most {MOST}"
        );
    }

    /// No more faults: everything runs on until nothing moves. As many rounds as slow replacements need.
    fn settle(&mut self) {
        for _ in 0..60 {
            for which in 0..2 {
                self.pool(which, 0, usize::MAX);
            }
            for which in 0..self.world.view.claims.len() {
                self.claim(which, 0, usize::MAX);
            }
            for machine in self.world.view.machines.clone() {
                if machine.status.is_none() {
                    self.world.ready(&machine.name_any());
                }
            }
            self.world.sweep();
            self.world.pass_time(200);
        }
    }
}

fn served(game: &Game) {
    for claim in &game.world.view.claims {
        let status = claim.status.clone().unwrap_or_default();
        let reason = status
            .conditions
            .iter()
            .find(|c| c.kind == "Ready")
            .map(|c| c.reason.clone());
        let lost = status.end.is_some_and(|end| end.reason == ClaimEndReason::Lost);
        let full = reason.as_deref() == Some("AtMaxMachines");
        assert!(
            status.phase == Some(ClaimPhase::Bound) || lost || full,
            "{} is {:?} for {reason:?}",
            claim.name_any(),
            status.phase
        );
        if full {
            let pool = game.world.find_pool(claim.spec.pool_name.as_ref().expect("a pool"));
            let ours = |m: &&std::sync::Arc<MacOSMachine>| m.labels().get(POOL_UID) == pool.metadata.uid.as_ref();
            let claimed = game
                .world
                .view
                .machines
                .iter()
                .filter(ours)
                .filter(|m| m.spec.claim_ref.is_some())
                .count();
            assert!(
                claimed >= usize::try_from(MOST).unwrap_or_default(),
                "it waits though {claimed} are claimed"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn whatever_happens_no_machine_is_given_twice_and_every_claim_is_served(
        events in prop::collection::vec(event(0), 1..80)
    ) {
        let mut game = Game::new(true);
        events.iter().for_each(|event| game.happen(event));
        for pool in game.world.view.pools.clone() {
            game.within_max(&pool.uid().unwrap_or_default());
        }
        game.settle();
        served(&game);
    }

    #[test]
    fn what_was_read_too_early_binds_nothing_twice_and_costs_no_bound_machine(
        events in prop::collection::vec(event(12), 1..80)
    ) {
        let mut game = Game::new(false);
        events.iter().for_each(|event| game.happen(event));
        game.settle();
        served(&game);
    }
}
