//! Whether the operator may clone from a namespace: CDI lets nobody clone out of a namespace without the right
//! `create datavolumes/source` there, and refuses the DataVolume otherwise.
//!
//! Invariant: the right is looked at before a DataVolume is made; whether it is missing by the operator's own look or by
//! CDI's refusal, the words are the same, and what they print can be applied as it stands.

use std::time::Duration;

use dockerios_api::{condition::clip_to, names::OPERATOR};

use crate::Seen;

/// A right that is missing, or of which nothing is known, is asked for again so often: a grant makes no change that is
/// watched.
pub const ASK_AGAIN: Duration = Duration::from_secs(15);
/// One that is there is asked for again so often. CDI's own refusal tells of its loss meanwhile.
pub const ASK_ANEW: Duration = Duration::from_secs(60);
/// Bytes of CDI's own words that are passed on, so that what is to be applied is never cut off.
const TOLD: usize = 140;

/// From what is to be cloned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloneSource {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which a Role may be limited to; none: anything there.
    pub name: Option<String>,
}

impl CloneSource {
    /// Anything in that namespace.
    pub fn all_of(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: None,
        }
    }

    /// One volume or snapshot.
    pub fn one(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: Some(name.to_owned()),
        }
    }
}

/// What comes of looking for the right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shut {
    /// It is missing; the message has what grants it.
    Denied(String),
    /// It is not known.
    Unknown(String),
}

/// Whether the operator, whose namespace is `home`, may clone from that namespace.
///
/// # Errors
/// It may not, or that is not known.
pub fn judge(right: &Seen<bool>, namespace: &str, home: &str) -> Result<(), Shut> {
    match right {
        Seen::Present(true) => Ok(()),
        Seen::Present(false) | Seen::Absent => Err(Shut::Denied(denied(namespace, home, None))),
        Seen::Unknown(why) => Err(Shut::Unknown(format!(
            "whether the operator may clone from namespace {namespace} is not known: {why}"
        ))),
    }
}

/// That the right is missing, with the Role and RoleBinding that grant it; `told`: the words with which CDI refused.
pub fn denied(namespace: &str, home: &str, told: Option<&str>) -> String {
    let told = told.map_or(String::new(), |told| format!(" CDI said: {}.", clip_to(told, TOLD)));
    format!(
        "the operator may not clone from namespace {namespace}.{told} Whoever administers it grants that with \
         `kubectl apply -f -` of what follows; it then goes on by itself.\n{}",
        grant(namespace, home)
    )
}

/// What is applied to grant the right.
pub fn grant(namespace: &str, home: &str) -> String {
    format!(
        "---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: dockerios-clone, namespace: {namespace}}}
rules:
- {{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], verbs: [create]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: dockerios-clone, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: dockerios-clone}}
subjects:
- {{kind: ServiceAccount, name: {OPERATOR}, namespace: {home}}}
"
    )
}

/// Whether a DataVolume was refused for want of the right: CDI and the API server speak of cloning or of its source,
/// quotas and schemas do not. Whole words count alone, since tenants choose the names that stand in such a message, such as
/// `macs-clone-2f0c9a51-system`.
pub fn is_denial(message: &str) -> bool {
    // the API server's quota, in each of its words (plugin resourcequota)
    const QUOTA: [&str; 4] = [
        "exceeded quota",
        "failed quota",
        "insufficient quota",
        "unknown for quota",
    ];
    let lower = message.to_ascii_lowercase();
    let part_of_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/');
    let mut words = lower.split(|c| !part_of_a_name(c));
    words.any(|word| matches!(word, "clone" | "datavolumes/source")) && !QUOTA.iter().any(|quota| lower.contains(quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_and_words_leave_what_is_to_be_applied_whole() {
        let (namespace, home) = ("n".repeat(63), "h".repeat(63));
        let message = denied(&namespace, &home, Some(&"ü".repeat(5000)));
        assert_eq!(
            dockerios_api::condition::clip(&message),
            message,
            "{} bytes",
            message.len()
        );
        assert!(message.ends_with(&grant(&namespace, &home)));
    }

    #[test]
    fn what_is_printed_is_a_role_and_its_binding_to_the_operator_alone() {
        let documents: Vec<serde_yaml::Value> = serde_yaml::Deserializer::from_str(&grant("golden", "home"))
            .map(|document| serde::Deserialize::deserialize(document).expect("YAML"))
            .collect();
        let [role, binding] = &documents[..] else {
            panic!("{documents:?}")
        };
        assert_eq!(role["rules"][0]["resources"][0], "datavolumes/source");
        assert_eq!(
            role["rules"][0]["verbs"],
            serde_yaml::from_str::<serde_yaml::Value>("[create]").expect("YAML")
        );
        assert_eq!(binding["subjects"][0]["name"], OPERATOR);
        assert_eq!(binding["subjects"][0]["namespace"], "home");
        for object in [role, binding] {
            assert_eq!(object["metadata"]["namespace"], "golden");
        }
    }

    #[test]
    fn a_quota_is_no_missing_right_and_a_missing_right_is_known_in_each_of_its_words() {
        for (message, denial) in [
            (
                "User system:serviceaccount:h:o has insufficient permissions in clone source namespace golden",
                true,
            ),
            ("no permission to clone from namespace images", true),
            (
                "cannot create resource \"datavolumes/source\" in API group \"cdi.kubevirt.io\"",
                true,
            ),
            ("exceeded quota: clones, requested: requests.storage=20Gi", false),
            (
                "exceeded quota: disks, requested: count/datavolumes.cdi.kubevirt.io=1",
                false,
            ),
            ("spec.storage.resources: Required value", false),
            // names of tenants' objects say nothing
            (
                "datavolumes.cdi.kubevirt.io \"macs-clone-2f0c9a51-system\" is forbidden: storage class fast is not for team-a",
                false,
            ),
            (
                "User system:serviceaccount:h:o has insufficient permissions in clone source namespace quota-lab",
                true,
            ),
            (
                "exceeded quota: clone, requested: count/datavolumes.cdi.kubevirt.io=1",
                false,
            ),
        ] {
            assert_eq!(is_denial(message), denial, "{message}");
        }
    }
}
