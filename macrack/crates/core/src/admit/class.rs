//! `InstanceClass` and `MacNodeClass`: advice only. There is no rule here that could be evaded, so facts that
//! could not be read cost the advice and nothing else.

use kube::ResourceExt;
use macrack_api::{InstanceClass, MacNodeClass};

use super::{Verdict, listed};
use crate::{seen::Seen, size::Size};

/// What is known when an InstanceClass is created.
#[derive(Clone, Debug)]
pub struct InstanceFacts {
    /// As it is asked for.
    pub class: InstanceClass,
    /// Every MacNodeClass.
    pub node_classes: Seen<Vec<MacNodeClass>>,
}

/// What is known when a MacNodeClass is created or changed.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// As it is asked for.
    pub class: MacNodeClass,
    /// Every InstanceClass.
    pub instance_classes: Seen<Vec<InstanceClass>>,
}

/// Judges the creation of an InstanceClass.
pub fn admit_instance_class(facts: &InstanceFacts) -> Verdict {
    let Some(node_classes) = facts.node_classes.present() else {
        return unread();
    };
    let fit = |node: &MacNodeClass| fit(&facts.class, node);
    let once = names(node_classes.iter().filter(|c| fit(c) == Some(1)));
    let never = names(node_classes.iter().filter(|c| fit(c) == Some(0)));
    let mut warnings = Vec::new();
    if !once.is_empty() {
        let once = said(&once);
        warnings
            .push(format!("one VM advised on {once}: a second of this class does not fit beside the host's reserve"));
    }
    if !never.is_empty() {
        warnings.push(format!("not even one VM of this class fits on {}", said(&never)));
    }
    Verdict::Allow { warnings }
}

/// Judges the creation or change of a MacNodeClass.
pub fn admit_node_class(facts: &NodeFacts) -> Verdict {
    let Some(classes) = facts.instance_classes.present() else {
        return unread();
    };
    let once = names(classes.iter().filter(|c| fit(c, &facts.class) == Some(1)));
    let mut warnings = Vec::new();
    if !once.is_empty() {
        let once = said(&once);
        warnings.push(format!("one VM advised of {once}: a second does not fit beside the host's reserve"));
    }
    Verdict::Allow { warnings }
}

fn unread() -> Verdict {
    Verdict::Allow {
        warnings: vec!["the other classes could not be read, so it was not checked how many VMs fit".into()],
    }
}

/// How many VMs fit, of two; None when a stored size is unreadable (the instance rule says so when it matters).
fn fit(class: &InstanceClass, node: &MacNodeClass) -> Option<usize> {
    Some(Size::of(&class.spec).ok()?.fit(Size::left_by(&node.spec).ok()?))
}

fn names<'a, K: kube::Resource + 'a>(of: impl Iterator<Item = &'a K>) -> Vec<String> {
    of.map(|k| k.name_any()).collect()
}

/// A warning is one line: at most eight names.
fn said(names: &[String]) -> String {
    let mut shown: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
    if names.len() > shown.len() {
        shown.push("others");
    }
    listed(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, memory: &str) -> MacNodeClass {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
            "memory": memory, "storage": "1T", "linkSpeed": "10G"}}))
        .unwrap()
    }

    fn class(name: &str, memory: &str) -> InstanceClass {
        serde_json::from_value(json!({"metadata": {"name": name},
            "spec": {"cpuCores": 6, "memory": memory, "disk": "250G"}}))
        .unwrap()
    }

    fn warnings(verdict: Verdict) -> Vec<String> {
        match verdict {
            Verdict::Allow { warnings } => warnings,
            Verdict::Deny(refusal) => panic!("{refusal}"),
        }
    }

    #[test]
    fn a_class_of_which_one_fits_comes_with_advice() {
        let node_classes =
            Seen::Present(vec![node("mini-16", "16Gi"), node("mini-64", "64Gi"), node("studio", "128Gi")]);
        let judged = |memory| {
            warnings(admit_instance_class(&InstanceFacts {
                class: class("c", memory),
                node_classes: node_classes.clone(),
            }))
        };
        assert!(judged("4Gi").is_empty());
        assert_eq!(
            judged("8Gi"),
            ["one VM advised on mini-16: a second of this class does not fit beside the host's reserve"]
        );
        let large = judged("61Gi");
        assert!(large[0].starts_with("one VM advised on studio: a second"), "{large:?}");
        assert_eq!(large[1], "not even one VM of this class fits on mini-16 and mini-64");
    }

    #[test]
    fn a_node_class_on_which_one_fits_comes_with_advice() {
        let instance_classes = Seen::Present(vec![class("half", "28Gi"), class("whole", "56Gi")]);
        let said = warnings(admit_node_class(&NodeFacts { class: node("mini-64", "64Gi"), instance_classes }));
        assert_eq!(said, ["one VM advised of whole: a second does not fit beside the host's reserve"]);
    }

    #[test]
    fn unread_classes_cost_the_advice_only() {
        let facts = InstanceFacts { class: class("c", "8Gi"), node_classes: Seen::Unknown("timeout".into()) };
        assert!(warnings(admit_instance_class(&facts))[0].contains("could not be read"));
    }
}
