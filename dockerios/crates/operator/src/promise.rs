//! Machines that are on their way to a claim: decided, and not yet seen.
//!
//! Two passes can give a claim a machine: its own, which takes a warm one, and its pool's, which makes one. Each sees
//! only what was stored. Invariant: while one of them has a machine on its way to a claim, the other gives it none; else
//! a claim gets two, and the second, bound already, is deleted.

use std::collections::HashMap;

use dockerios_api::names::CLAIM_UID;
use dockerios_core::{Id, Kind, Plan, Step};

/// uid of a claim, and the pass that has a machine on its way to it.
#[derive(Debug, Default)]
pub struct Promises(HashMap<String, Id>);

impl Promises {
    /// Whether another pass than that one has a machine on its way to the claim.
    pub fn by_another(&self, claim_uid: &str, pass: &Id) -> bool {
        self.0.get(claim_uid).is_some_and(|by| by != pass)
    }

    /// Takes out of a plan what would give a claim a second machine.
    pub fn keep(&self, pass: &Id, plan: &mut Plan) {
        plan.steps
            .retain(|step| !claim_served_by(step).is_some_and(|uid| self.by_another(uid, pass)));
    }

    /// The plan is being carried out.
    pub fn make(&mut self, pass: &Id, plan: &Plan) {
        for uid in plan.steps.iter().filter_map(claim_served_by) {
            self.0.insert(uid.to_owned(), pass.clone());
        }
    }

    /// What the pass did was seen, or came to nothing; gives the uids of the claims.
    pub fn settle(&mut self, pass: &Id) -> Vec<String> {
        let settled: Vec<String> = self
            .0
            .iter()
            .filter(|(_, by)| *by == pass)
            .map(|(uid, _)| uid.clone())
            .collect();
        settled.iter().for_each(|uid| drop(self.0.remove(uid)));
        settled
    }
}

/// The claim that a step gives a machine to.
fn claim_served_by(step: &Step) -> Option<&str> {
    match step {
        Step::Create(object) if object.kind == Kind::MacOSMachine => object.label(CLAIM_UID),
        Step::Replace(object) if object.kind == Kind::MacOSMachine => object.body["spec"]["claimRef"]["uid"].as_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use dockerios_core::Object;
    use serde_json::json;

    use super::*;

    #[test]
    fn while_a_machine_is_being_taken_for_a_claim_none_is_made_for_it() {
        let (claim, pool) = (
            Id::new(Kind::MacOSMachineClaim, "n", "job"),
            Id::new(Kind::MacOSMachinePool, "n", "ci"),
        );
        let taken = json!({"metadata": {"name": "ci-1"}, "spec": {"claimRef": {"name": "job", "uid": "u"}}});
        let made = json!({"metadata": {"name": "mac-u", "labels": {CLAIM_UID: "u"}}});
        let take = Step::Replace(Object {
            kind: Kind::MacOSMachine,
            body: taken,
        });
        let make = Step::Create(Object {
            kind: Kind::MacOSMachine,
            body: made,
        });
        let plan = |step: &Step| Plan {
            steps: vec![step.clone()],
            ..Plan::default()
        };

        let mut promises = Promises::default();
        promises.make(&claim, &plan(&take));
        let mut second = plan(&make);
        promises.keep(&pool, &mut second);
        assert!(second.steps.is_empty(), "{second:?}");
        let mut own = plan(&take);
        promises.keep(&claim, &mut own);
        assert_eq!(own.steps.len(), 1, "a pass may try again what it began");

        assert_eq!(promises.settle(&claim), ["u"]);
        promises.make(&pool, &plan(&make));
        assert!(promises.by_another("u", &claim), "and the other way round");
    }
}
