//! Invariants of every plan, judged before anything is done, and in every test.

use dockerios_api::names::{MACHINE_UID, TEARDOWN};

use crate::{
    kind::Kind,
    plan::{Guard, Plan, Step, Target},
};

/// What a plan may never do. A plan that breaks one is a defect of the decider: it is not carried out.
///
/// # Errors
/// The first rule that it breaks, in words.
pub fn check(plan: &Plan) -> Result<(), String> {
    plan.steps.iter().try_for_each(step)
}

fn step(step: &Step) -> Result<(), String> {
    let id = step.id();
    match step {
        Step::Create(object) | Step::CreateHookConfig(object) | Step::CreateGuestConfig(object) => {
            if object.meta("name").is_none() && object.meta("generateName").is_none() {
                return Err(format!("{id}: created without a name"));
            }
            let of_a_machine = matches!(object.kind, Kind::VirtualMachine | Kind::Secret | Kind::ConfigMap);
            if of_a_machine && object.label(MACHINE_UID).is_none() {
                return Err(format!(
                    "{id}: an object of a machine without its uid label could never be found again"
                ));
            }
            if of_a_machine && object.body["metadata"]["ownerReferences"].is_array() {
                return Err(format!(
                    "{id}: owned by its machine, a foreground delete would destroy it at once"
                ));
            }
            Ok(())
        }
        Step::Replace(object) | Step::ReplaceStatus(object, _) if object.meta("resourceVersion").is_none() => {
            Err(format!("{id}: replaced without the resourceVersion it was decided on"))
        }
        Step::ReplaceStatus(object, guard) if object.kind == Kind::MachineIdentity => identity(object, guard.as_ref()),
        Step::Delete(target) => deletion(target),
        Step::RemoveFinalizer(target, finalizer, guard) => {
            exact(target)?;
            let proven = matches!(guard, Some(Guard::NothingLeftOf { uid, .. }) if *uid == target.uid);
            if *finalizer == TEARDOWN && !proven {
                return Err(format!(
                    "{id}: {TEARDOWN} removed without the proof that nothing of the machine is left"
                ));
            }
            Ok(())
        }
        Step::AddFinalizer(target, _) => exact(target),
        Step::DeleteLabelled { kind, label, .. } => {
            let allowed =
                matches!(kind, Kind::Secret | Kind::ConfigMap) && label.0 == MACHINE_UID && !label.1.is_empty();
            if allowed {
                Ok(())
            } else {
                Err(format!("{id}: a collection is deleted by a machine's uid label only"))
            }
        }
        _ => Ok(()),
    }
}

/// An identity is given to a machine, or taken from one, only after the proof that nothing runs with it.
fn identity(object: &crate::Object, guard: Option<&Guard>) -> Result<(), String> {
    let (id, status) = (object.id(), &object.body["status"]);
    let unused = matches!(guard, Some(Guard::IdentityUnused { identity, .. }) if *identity == id.name);
    match status["phase"].as_str() {
        Some("Available") if status["claimRef"].is_object() => Err(format!("{id}: Available with a claimRef")),
        // going on with the machine that it has needs no proof, and could not give one
        Some("Allocated") if status["claimRef"].is_null() => Err(format!("{id}: Allocated to nobody")),
        Some("Available" | "Quarantined" | "Released") if status["usedAt"].is_string() && !unused => Err(format!(
            "{id}: taken from its machine without the proof that nothing runs with it"
        )),
        _ => Ok(()),
    }
}

fn deletion(target: &Target) -> Result<(), String> {
    if target.uid.is_empty() {
        return Err(format!("{}: deleted by name alone", target.id));
    }
    // with the uid alone, machines that a claim had just taken were deleted
    if target.id.kind == Kind::MacOSMachine {
        exact(target)
    } else {
        Ok(())
    }
}

fn exact(target: &Target) -> Result<(), String> {
    let exact = !target.uid.is_empty() && target.resource_version.is_some();
    if exact {
        Ok(())
    } else {
        Err(format!("{}: written without uid and resourceVersion", target.id))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Id, Object};

    fn refused(step: Step) -> String {
        check(&Plan {
            steps: vec![step],
            ..Plan::default()
        })
        .expect_err("the plan breaks a rule")
    }

    fn target(kind: Kind, resource_version: Option<&str>) -> Target {
        Target {
            id: Id::new(kind, "n", "m"),
            uid: "u".into(),
            resource_version: resource_version.map(Into::into),
        }
    }

    #[test]
    fn each_rule_refuses_what_it_is_about() {
        let vm = json!({"metadata": {"name": "vm", "namespace": "n"}});
        let why = refused(Step::Create(Object {
            kind: Kind::VirtualMachine,
            body: vm,
        }));
        assert!(why.contains("uid label"), "{why}");
        let why = refused(Step::Delete(target(Kind::MacOSMachine, None)));
        assert!(why.contains("resourceVersion"), "{why}");
        let why = refused(Step::RemoveFinalizer(
            target(Kind::MacOSMachine, Some("1")),
            TEARDOWN,
            None,
        ));
        assert!(why.contains("without the proof"), "{why}");
        let body = json!({"metadata": {"name": "c02", "resourceVersion": "1"},
            "status": {"phase": "Available", "usedAt": "2026-01-01T00:00:00Z"}});
        let why = refused(Step::ReplaceStatus(
            Object {
                kind: Kind::MachineIdentity,
                body,
            },
            None,
        ));
        assert!(why.contains("nothing runs with it"), "{why}");
        let label = ("app", "x".to_owned());
        let why = refused(Step::DeleteLabelled {
            kind: Kind::Secret,
            namespace: "n".into(),
            label,
        });
        assert!(why.contains("uid label only"), "{why}");
    }

    #[test]
    fn ordinary_writes_pass() {
        let steps = vec![
            Step::Delete(target(Kind::MacOSMachine, Some("1"))),
            Step::Delete(target(Kind::VirtualMachine, None)),
            Step::RemoveFinalizer(
                target(Kind::MacOSMachine, Some("1")),
                TEARDOWN,
                Some(Guard::NothingLeftOf {
                    namespace: "n".into(),
                    uid: "u".into(),
                    retained: false,
                }),
            ),
        ];
        assert_eq!(
            check(&Plan {
                steps,
                ..Plan::default()
            }),
            Ok(())
        );
    }
}
