//! `MacNodeLease`: of a class that exists; a serial that is named is one of that class which nobody has.
//!
//! Who has it is never said: neither namespace, nor name, nor until when.

use kube::ResourceExt;
use macrack_api::{MacNode, MacNodeClass, MacNodeLease};

use super::{Refusal, Subject, Verdict};
use crate::seen::Seen;

/// What is known when a MacNodeLease is created or its spec changes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// As it is asked for.
    pub lease: MacNodeLease,
    /// As it was, on update.
    pub old: Option<MacNodeLease>,
    /// The class it names.
    pub class: Seen<MacNodeClass>,
    /// The chassis of the serial it names; Absent when it names none.
    pub chassis: Seen<MacNode>,
    /// Each image to have at hand, and whether it exists.
    pub images: Vec<(String, Seen<()>)>,
}

/// Judges the creation or change of a MacNodeLease.
pub fn admit(facts: &Facts) -> Verdict {
    judge(facts).into()
}

fn judge(facts: &Facts) -> Result<Vec<String>, Refusal> {
    let subject = Subject::of(&facts.lease);
    let (new, old) = (&facts.lease.spec, facts.old.as_ref().map(|o| &o.spec));
    let class_changed = old.is_none_or(|o| o.node_class_name != new.node_class_name);
    let serial_changed = old.is_none_or(|o| o.serial != new.serial);
    if class_changed {
        class_exists(&subject, facts)?;
    }
    if let Some(serial) = new.serial.as_deref()
        && (class_changed || serial_changed)
    {
        serial_free(&subject, facts, serial)?;
    }
    let images_changed = old.is_none_or(|o| o.prefetch_image_names != new.prefetch_image_names);
    Ok(if images_changed { missing_images(facts) } else { Vec::new() })
}

fn class_exists(subject: &Subject, facts: &Facts) -> Result<(), Refusal> {
    let name = &facts.lease.spec.node_class_name;
    match subject.known(&facts.class, &format!("MacNodeClass {name}"))? {
        Some(_) => Ok(()),
        None => Err(subject.refuse(
            "class-exists",
            format!("there is no MacNodeClass \"{name}\""),
            "correct spec.nodeClassName (kubectl get macnodeclasses)",
        )),
    }
}

fn serial_free(subject: &Subject, facts: &Facts, serial: &str) -> Result<(), Refusal> {
    let any = "leave spec.serial out to have any Mac of the class";
    let Some(chassis) = subject.known(&facts.chassis, &format!("the Mac {serial}"))? else {
        return Err(subject.refuse(
            "serial-known",
            format!("there is no Mac with the serial {serial}"),
            format!("correct spec.serial, or {any}"),
        ));
    };
    let wanted = &facts.lease.spec.node_class_name;
    let class = &chassis.spec.node_class_name;
    if class != wanted {
        return Err(subject.refuse(
            "serial-of-class",
            format!("the Mac {serial} is a {class}, not a {wanted}"),
            format!("correct spec.nodeClassName or spec.serial, or {any}"),
        ));
    }
    let holder = chassis.status.as_ref().and_then(|s| s.lease_ref.as_ref());
    if holder.is_some_and(|held| facts.lease.uid().as_deref() != Some(held.uid.as_str())) {
        return Err(subject.refuse("serial-taken", format!("the Mac {serial} is leased"), any));
    }
    Ok(())
}

fn missing_images(facts: &Facts) -> Vec<String> {
    let missing = facts.images.iter().filter(|(_, seen)| seen.is_absent());
    missing
        .map(|(name, _)| {
            format!("spec.prefetchImageNames: there is no MacOSImage \"{name}\"; it is pulled once there is one")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HOLDER: &str = "11111111-1111-1111-1111-111111111111";

    fn lease(spec: serde_json::Value) -> MacNodeLease {
        serde_json::from_value(json!({"metadata": {"namespace": "team-a", "name": "ios-ci"}, "spec": spec})).unwrap()
    }

    fn mac(held: bool) -> MacNode {
        let lease_ref = held.then(|| {
            json!({"namespace": "team-secret", "name": "hidden", "uid": HOLDER,
                   "boundAt": "2026-03-02T09:00:00Z", "earliestReleaseAt": "2026-03-03T09:00:00Z"})
        });
        serde_json::from_value(json!({
            "metadata": {"name": "h4xk29q0lw"},
            "spec": {"serial": "H4XK29Q0LW", "nodeClassName": "mini"},
            "status": {"leaseRef": lease_ref},
        }))
        .unwrap()
    }

    fn class() -> MacNodeClass {
        serde_json::from_value(json!({"metadata": {"name": "mini"}, "spec": {
            "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
            "memory": "64Gi", "storage": "1T", "linkSpeed": "10G"}}))
        .unwrap()
    }

    fn named() -> Facts {
        Facts {
            lease: lease(json!({"nodeClassName": "mini", "serial": "H4XK29Q0LW"})),
            old: None,
            class: Seen::Present(class()),
            chassis: Seen::Present(mac(false)),
            images: vec![],
        }
    }

    fn says(facts: &Facts) -> String {
        match admit(facts) {
            Verdict::Allow { warnings } => format!("allowed {}", warnings.join("|")),
            Verdict::Deny(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn each_rule_has_its_refusal() {
        let table: Vec<(&str, Facts, &str)> = vec![
            ("a free Mac of the class", named(), "allowed "),
            (
                "no such class",
                Facts { class: Seen::Absent, ..named() },
                "[class-exists] macnodelease team-a/ios-ci: there is no MacNodeClass \"mini\"; correct spec.nodeClassName",
            ),
            (
                "class unreadable",
                Facts { class: Seen::Unknown("timeout".into()), ..named() },
                "[try-again] macnodelease team-a/ios-ci: MacNodeClass mini could not be read (timeout); nothing was changed, try again",
            ),
            (
                "no such serial",
                Facts { chassis: Seen::Absent, ..named() },
                "[serial-known] macnodelease team-a/ios-ci: there is no Mac with the serial H4XK29Q0LW; correct spec.serial",
            ),
            ("serial unreadable", Facts { chassis: Seen::Unknown("timeout".into()), ..named() }, "[try-again]"),
            (
                "serial of another class",
                Facts { lease: lease(json!({"nodeClassName": "studio", "serial": "H4XK29Q0LW"})), ..named() },
                "[serial-of-class] macnodelease team-a/ios-ci: the Mac H4XK29Q0LW is a mini, not a studio; ",
            ),
            (
                "serial held",
                Facts { chassis: Seen::Present(mac(true)), ..named() },
                "[serial-taken] macnodelease team-a/ios-ci: the Mac H4XK29Q0LW is leased; leave spec.serial out",
            ),
            (
                "no serial named",
                Facts { lease: lease(json!({"nodeClassName": "mini"})), chassis: Seen::Absent, ..named() },
                "allowed ",
            ),
            (
                "an image that is missing",
                Facts {
                    images: vec![("tahoe".into(), Seen::Absent), ("sequoia".into(), Seen::Present(()))],
                    ..named()
                },
                "allowed spec.prefetchImageNames: there is no MacOSImage \"tahoe\"",
            ),
        ];
        for (case, facts, expected) in table {
            let said = says(&facts);
            assert!(said.starts_with(expected), "{case}: {said}");
        }
    }

    #[test]
    fn a_refusal_never_says_who_has_the_mac() {
        let said = says(&Facts { chassis: Seen::Present(mac(true)), ..named() });
        for secret in ["team-secret", "hidden", HOLDER, "2026"] {
            assert!(!said.contains(secret), "{said}");
        }
    }

    #[test]
    fn an_update_is_judged_by_what_it_changes() {
        let old = lease(json!({"nodeClassName": "mini", "serial": "H4XK29Q0LW", "minimumDuration": "24h"}));
        let taken = Facts { chassis: Seen::Present(mac(true)), old: Some(old.clone()), ..named() };
        let longer = lease(json!({"nodeClassName": "mini", "serial": "H4XK29Q0LW", "minimumDuration": "48h"}));
        assert_eq!(says(&Facts { lease: longer, class: Seen::Absent, ..taken.clone() }), "allowed ");
        let elsewhere = Facts { old: Some(lease(json!({"nodeClassName": "mini"}))), ..taken.clone() };
        assert!(says(&elsewhere).starts_with("[serial-taken]"));
        // its own Mac is not taken from it
        let mut own = named().lease;
        own.metadata.uid = Some(HOLDER.into());
        assert_eq!(
            says(&Facts { lease: own, old: Some(lease(json!({"nodeClassName": "mini"}))), ..taken }),
            "allowed "
        );
    }
}
