//! `MacOSMachineClaim`: who gets which machine, and until when.
//!
//! ```text
//! Pending ──machine taken or made──▶ Pending ──it is Ready──▶ Bound ──ttl──▶ Expired ──a day──▶ removed
//!    └────────────ttl───────────────────┴──▶ Expired            └──machine gone or failed──▶ Lost ──a day──▶ removed
//! ```
//!
//! Invariants: a machine is taken by one PUT at the version it was seen in, and never given to another claim; a claim
//! says `Bound` only of a machine that was Ready; a machine that was claimed is deleted, never used again. Machines
//! for claims on a pool are made in that pool's own pass, which alone keeps within `maxMachines`.

mod hold;
pub(crate) mod line;
mod machine;
mod say;
mod term;

use std::sync::Arc;

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachineClaimStatus, MacOSMachineClass, MacOSMachinePool, PlatformConfig,
    machine::claim::{ClaimEnd, ClaimEndReason, ClaimReason, ClaimedMachine},
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt;

pub use hold::{let_go, orphaned};
pub(crate) use machine::{made_for, new_machine};

use crate::{Kind, Plan, Seen, Step, Target, plan::Refusal};
use line::{Crowd, Line, born, is_failed, is_going, is_ready};
use machine::{bound, named_for};
use say::Word;
use term::{KEPT, NOTICE, Ttl, moved};

/// What the decision looks at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The claim.
    pub claim: Arc<MacOSMachineClaim>,
    /// All claims of its namespace.
    pub claims: Seen<Vec<Arc<MacOSMachineClaim>>>,
    /// All machines of its namespace.
    pub machines: Seen<Vec<Arc<MacOSMachine>>>,
    /// All pools of its namespace.
    pub pools: Seen<Vec<Arc<MacOSMachinePool>>>,
    /// The class that it names, or that its pool names.
    pub class: Seen<Arc<MacOSMachineClass>>,
    /// Its namespace.
    pub namespace: Seen<Arc<Namespace>>,
    /// PlatformConfig `default`.
    pub platform: Seen<Arc<PlatformConfig>>,
    /// What was last refused to this claim's pass, or to its pool's about a machine.
    pub refusal: Option<Refusal>,
}

/// Decides one pass over a claim.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let claim = facts.claim.as_ref();
    // it goes at once, or somebody else's finalizer keeps it: its machine's own pass sees to the machine
    if claim.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let crowd = match Crowd::of(&facts.pools, &facts.machines, &facts.claims) {
        Ok(crowd) => crowd,
        Err(why) => return say::unreadable(claim, why, now),
    };
    let pass = Pass {
        facts,
        crowd,
        claim,
        ttl: term::ttl(claim, &facts.platform),
        now,
    };
    let status = claim.status.as_ref();
    match (
        status.and_then(|s| s.end.as_ref()),
        status.and_then(|s| s.machine_ref.as_ref()),
    ) {
        (Some(end), _) => pass.ended(end),
        (None, Some(told)) => pass.bound(told),
        (None, None) => pass.pending(),
    }
}

/// One pass over a claim that is not being deleted.
struct Pass<'a> {
    facts: &'a Facts,
    crowd: Crowd<'a>,
    claim: &'a MacOSMachineClaim,
    ttl: Seen<Ttl>,
    now: Timestamp,
}

impl<'a> Pass<'a> {
    /// Has a machine and was told so.
    fn bound(&self, told: &ClaimedMachine) -> Plan {
        let Some(machine) = self
            .crowd
            .machines
            .iter()
            .find(|m| m.metadata.uid.as_ref() == Some(&told.uid))
        else {
            return self.end(
                ClaimEndReason::Lost,
                format!("machine {} is gone; make a new claim", told.name.0),
            );
        };
        if is_failed(machine) {
            return self.lost(machine);
        }
        let since = self.claim.status.as_ref().and_then(|status| status.bound_at.as_ref());
        self.hold(machine, since.map_or(self.now, |at| at.0))
    }

    /// A machine that is this claim's, and was Ready at least once.
    fn hold(&self, machine: &MacOSMachine, since: Timestamp) -> Plan {
        let until = term::end(self.claim, Some(since), &self.ttl);
        if let Some(until) = until.filter(|until| self.over(*until)) {
            return self.expired(until);
        }
        let mut status = self.status(Some(machine), until);
        status.bound_at = Some(Time(since));
        status.machine_ref = Some(ClaimedMachine {
            name: machine.name_any().into(),
            uid: machine.uid().unwrap_or_default(),
        });
        let mut plan = self.say(status, &say::of_machine(machine, until));
        self.spare(&mut plan, machine);
        self.wake(&mut plan, until);
        plan
    }

    /// Has been told of no machine yet.
    fn pending(&self) -> Plan {
        let until = term::end(self.claim, None, &self.ttl);
        let machine = self
            .mine()
            .filter(|machine| !is_going(machine))
            .min_by_key(|m| (born(*m), m.uid()));
        if let Some(until) = until.filter(|until| self.over(*until)) {
            return self.expired(until);
        }
        let mut plan = match machine {
            Some(machine) if is_failed(machine) => return self.lost(machine),
            Some(machine) if is_ready(machine) => return self.hold(machine, self.now),
            Some(machine) => {
                let mut plan = self.say(self.status(Some(machine), until), &say::on_its_way(machine));
                self.spare(&mut plan, machine);
                plan
            }
            None => self.queue(until),
        };
        self.wake(&mut plan, until);
        plan
    }

    /// Stands in line.
    fn queue(&self, until: Option<Timestamp>) -> Plan {
        let say = |machine, word: &Word| self.say(self.status(machine, until), word);
        let pool = self.claim.spec.pool_name.as_ref();
        let found = pool.and_then(|name| self.crowd.pools.iter().find(|pool| pool.name_any() == name.0));
        if let Some(name) = pool
            && found.is_none_or(|pool| pool.metadata.deletion_timestamp.is_some())
        {
            return say(None, &say::no_pool(name, found.is_some()));
        }
        let line = Line::of(self.crowd);
        if let Some(machine) = line.machine_for(self.claim) {
            let word = Word::new(
                ClaimReason::MachineNotReady,
                format!("machine {} is being taken", machine.name_any()),
            );
            let mut plan = say(Some(machine), &word);
            plan.steps.extend(bound(machine, self.claim));
            return plan;
        }
        if let Some(word) = self.barred() {
            return say(None, &word);
        }
        let refusal = self
            .facts
            .refusal
            .as_ref()
            .filter(|refusal| refusal.of.kind == Kind::MacOSMachine);
        let refused = refusal.map(say::refused);
        match (found, &self.claim.spec.machine_class_name) {
            (Some(pool), _) => {
                let place = line
                    .unserved_of(&pool.name_any())
                    .iter()
                    .position(|c| c.metadata.uid == self.claim.metadata.uid);
                let full = say::full(pool, self.crowd, place.unwrap_or_default());
                say(None, &refused.or(full).unwrap_or_else(|| say::making(self.claim)))
            }
            (None, Some(class)) => {
                let mut plan = say(None, &refused.unwrap_or_else(|| say::making(self.claim)));
                // one of that name is this claim's and going: the next is made when it has gone
                if !self.crowd.machines.iter().any(|m| named_for(m, self.claim)) {
                    plan.then(Step::Create(made_for(self.claim, class, None)));
                }
                plan
            }
            (None, None) => say(None, &say::nothing_asked()),
        }
    }

    /// Why no machine may be made for it.
    fn barred(&self) -> Option<Word> {
        let class = match &self.facts.class {
            Seen::Unknown(why) => return Some(Word::unseen(why)),
            Seen::Absent => return Some(say::no_class(self.class_name().as_deref())),
            Seen::Present(class) => class,
        };
        let selector = class.spec.allowed_namespaces.as_ref()?;
        match &self.facts.namespace {
            Seen::Present(namespace) if selector.takes(namespace.labels()) => None,
            Seen::Unknown(why) => Some(Word::unseen(why)),
            Seen::Present(_) | Seen::Absent => Some(say::not_allowed(&class.name_any(), self.claim)),
        }
    }

    /// Over: what is left of it is removed, a day later itself.
    fn ended(&self, end: &ClaimEnd) -> Plan {
        let mut plan = Plan::default();
        plan.steps.extend(
            self.mine()
                .filter_map(|machine| orphaned(machine, &Seen::Present(self.claim))),
        );
        let removed = moved(end.at.0, KEPT);
        if self.over(removed) {
            plan.then(Step::Delete(Target::exactly(
                Kind::MacOSMachineClaim,
                &self.claim.metadata,
            )));
        } else {
            plan.wake_at(removed);
        }
        plan
    }

    fn lost(&self, machine: &MacOSMachine) -> Plan {
        self.end(ClaimEndReason::Lost, say::failed(machine))
    }

    fn expired(&self, until: Timestamp) -> Plan {
        let message = format!("its time was over at {until:.0}: the machine is deleted; make a new claim");
        self.end(ClaimEndReason::Expired, message)
    }

    /// Ends it; the machines that name it go with it.
    fn end(&self, reason: ClaimEndReason, message: String) -> Plan {
        let end = ClaimEnd {
            reason,
            at: Time(self.now),
        };
        let mut status = self.claim.status.clone().unwrap_or_default();
        status.observed_generation = self.claim.metadata.generation;
        status.end = Some(end);
        let mut over = self.claim.clone();
        over.status = Some(status.clone());
        let word = match reason {
            ClaimEndReason::Expired => Word::new(ClaimReason::Expired, message),
            ClaimEndReason::Lost => Word::new(ClaimReason::Lost, message),
        };
        let mut plan = self.say(status, &word);
        plan.steps.extend(
            self.mine()
                .filter_map(|machine| orphaned(machine, &Seen::Present(&over))),
        );
        plan.wake_at(moved(self.now, KEPT));
        plan
    }

    /// Machines that name this claim.
    fn mine(&self) -> impl Iterator<Item = &'a MacOSMachine> {
        let uid = self.claim.uid().unwrap_or_default();
        let named = move |m: &&MacOSMachine| m.spec.claim_ref.as_ref().is_some_and(|claim| claim.uid == uid);
        self.crowd.machines.iter().map(Arc::as_ref).filter(named)
    }

    /// A crash between two binds can leave a second machine: only `kept` is this claim's.
    fn spare(&self, plan: &mut Plan, kept: &MacOSMachine) {
        let others = self
            .mine()
            .filter(|machine| machine.metadata.uid != kept.metadata.uid && !is_going(machine));
        let deletions = others.map(|machine| Step::Delete(Target::exactly(Kind::MacOSMachine, &machine.metadata)));
        plan.steps.extend(deletions);
    }

    /// What was promised is over. Never decided while the platform's limits cannot be read.
    fn over(&self, moment: Timestamp) -> bool {
        self.ttl.present().is_some() && self.now >= moment
    }

    fn class_name(&self) -> Option<String> {
        let spec = &self.claim.spec;
        let of_pool = |name: &str| self.crowd.pools.iter().find(|pool| pool.name_any() == name);
        let pool = spec.pool_name.as_ref().and_then(|name| of_pool(name));
        let named = spec
            .machine_class_name
            .as_ref()
            .or(pool.map(|pool| &pool.spec.machine_class_name));
        named.map(|name| name.0.clone())
    }

    fn status(&self, machine: Option<&MacOSMachine>, until: Option<Timestamp>) -> MacOSMachineClaimStatus {
        let class = machine.map(|machine| machine.spec.machine_class_name.0.clone());
        let before = self.claim.status.clone().unwrap_or_default();
        MacOSMachineClaimStatus {
            observed_generation: self.claim.metadata.generation,
            machine_class_name: class.or_else(|| self.class_name()).map(Into::into),
            expires_at: until.map(Time),
            ..before
        }
    }

    fn say(&self, status: MacOSMachineClaimStatus, word: &Word) -> Plan {
        let complaint = self.ttl.present().and_then(|ttl| ttl.complaint.as_deref());
        say::plan(self.claim, status, word, complaint, self.now)
    }

    fn wake(&self, plan: &mut Plan, until: Option<Timestamp>) {
        let Some(until) = until else { return };
        let notice = moved(until, -NOTICE);
        plan.wake_at(if self.now < notice { notice } else { until });
    }
}
