//! The proof of uniqueness. The caches only spare a proof that would fail; what counts is the consistent list that
//! the API server gives right before the write.

use dockerios_api::{
    MachineIdentity,
    condition::{Verdict, of},
    identity::machine_identity::{IdentityCondition, IdentityPhase, IdentityReason},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{AGAIN, Facts, Pass};
use crate::{Guard, Seen};

/// What is said of one that collides with none.
const UNIQUE: &str = "no other identity has one of its values";

type Value = fn(&MachineIdentity) -> &str;

/// The values of which each exists once in the fleet, in whatever case they are written.
const VALUES: [(&str, Value); 5] = [
    ("serial", |one| &one.spec.serial),
    ("mlb", |one| &one.spec.mlb),
    ("rom", |one| &one.spec.rom),
    ("systemUUID", |one| &one.spec.system_uuid),
    ("macAddress", |one| &one.spec.mac_address),
];

/// What other identities have in common with it, in words; `None` if nothing, as far as was seen.
pub(super) fn collision(facts: &Facts) -> Option<String> {
    let mine = facts.identity.name_any();
    let mut said = Vec::new();
    for other in facts.fleet.present()?.iter().filter(|other| other.name_any() != mine) {
        let same: Vec<_> = VALUES
            .iter()
            .filter(|(_, value)| value(other).eq_ignore_ascii_case(value(&facts.identity)))
            .map(|(field, _)| *field)
            .collect();
        if !same.is_empty() {
            said.push(format!(
                "MachineIdentity {} has the same {}",
                other.name_any(),
                same.join(", ")
            ));
        }
        if said.len() == 4 {
            break;
        }
    }
    (!said.is_empty()).then(|| said.join("; "))
}

impl Pass<'_> {
    /// Whether it was proven unique, and still is as far as was seen. If not, the plan does what follows.
    pub(super) fn proven_unique(&mut self) -> bool {
        if let Seen::Unknown(why) = &self.facts.fleet {
            self.unreadable("the other identities", why);
            return false;
        }
        let said = of(&self.before.conditions, IdentityCondition::Ready.word());
        let told = said.is_some_and(|ready| ready.reason == IdentityReason::Collision.word());
        let refused = self.unproven().filter(|_| !told && self.before.unique_at.is_none());
        let found = collision(self.facts).or_else(|| refused.map(|refusal| refusal.message.clone()));
        if let Some(what) = found {
            self.collides(&what);
            return false;
        }
        if self.before.unique_at.is_some() {
            self.say_unique();
            return true;
        }
        self.status.unique_at = Some(Time(self.now));
        self.status.phase = Some(IdentityPhase::BuildingBootDisk);
        self.say(IdentityCondition::Unique, Verdict::True, IdentityReason::Unique, UNIQUE);
        self.ready(
            Verdict::False,
            IdentityReason::Building,
            "unique; its bootdisk comes next",
        );
        let identity = self.facts.identity.name_any();
        self.write(Some(Guard::IdentityUnique { identity }));
        self.wake_in(AGAIN);
        false
    }

    /// What is seen now of one that was proven unique, or that a machine has: a collision that is over is not said any
    /// more. While the others cannot be read, what was said stays.
    pub(super) fn say_unique(&mut self) {
        if self.facts.fleet.present().is_none() {
            return;
        }
        match collision(self.facts) {
            Some(what) => self.say(
                IdentityCondition::Unique,
                Verdict::False,
                IdentityReason::Collision,
                what,
            ),
            None if self.before.unique_at.is_some() => {
                self.say(IdentityCondition::Unique, Verdict::True, IdentityReason::Unique, UNIQUE);
            }
            // never proven: that no other is seen is no proof
            None => {}
        }
    }

    fn collides(&mut self, what: &str) {
        let message = format!("{what}: both are kept aside; delete the wrong one, the other then goes on by itself");
        self.status.unique_at = None;
        self.status.phase = Some(IdentityPhase::Quarantined);
        self.say(
            IdentityCondition::Unique,
            Verdict::False,
            IdentityReason::Collision,
            &message,
        );
        self.ready(Verdict::False, IdentityReason::Collision, &message);
        self.write(None);
        self.wake_in(AGAIN);
    }
}
