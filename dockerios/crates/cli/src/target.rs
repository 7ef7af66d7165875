//! What is asked about: `macs/b-6`, as kubectl writes it, or `macs b-6`.

use dockerios_api::{
    Entry, IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool,
    MachineIdentity, PlatformConfig,
    config::platform_config::PlatformReason,
    identity::{machine_identity::IdentityReason, pool::IdentityPoolReason},
    image::macos_image::ImageReason,
    machine::{claim::ClaimReason, class::ClassReason, macos_machine::MachineReason, pool::MachinePoolReason},
};
use kube::Resource;
use kube::discovery::ApiResource;

use crate::access::is_name;

/// A kind that can be asked about.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The names that kubectl and people know it by.
    pub(crate) names: &'static [&'static str],
    /// Whether it lives in a namespace.
    pub(crate) namespaced: bool,
    /// How it is found.
    pub(crate) resource: fn() -> ApiResource,
    /// What its reasons mean, and the way out of each.
    pub(crate) reasons: &'static [Entry],
}

/// An object of a kind.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) kind: &'static Kind,
    pub(crate) name: String,
}

fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// Every kind of DockerIOS.
pub(crate) static KINDS: &[Kind] = &[
    Kind {
        names: &["macs", "mac", "macosmachine", "macosmachines"],
        namespaced: true,
        resource: resource::<MacOSMachine>,
        reasons: MachineReason::ENTRIES,
    },
    Kind {
        names: &["macclaim", "claim", "macosmachineclaim", "macosmachineclaims"],
        namespaced: true,
        resource: resource::<MacOSMachineClaim>,
        reasons: ClaimReason::ENTRIES,
    },
    Kind {
        names: &["macpool", "pool", "macosmachinepool", "macosmachinepools"],
        namespaced: true,
        resource: resource::<MacOSMachinePool>,
        reasons: MachinePoolReason::ENTRIES,
    },
    Kind {
        names: &["macclass", "class", "macosmachineclass", "macosmachineclasses"],
        namespaced: false,
        resource: resource::<MacOSMachineClass>,
        reasons: ClassReason::ENTRIES,
    },
    Kind {
        names: &["mimg", "image", "macosimage", "macosimages"],
        namespaced: false,
        resource: resource::<MacOSImage>,
        reasons: ImageReason::ENTRIES,
    },
    Kind {
        names: &["idpool", "identitypool", "identitypools"],
        namespaced: false,
        resource: resource::<IdentityPool>,
        reasons: IdentityPoolReason::ENTRIES,
    },
    Kind {
        names: &["mid", "identity", "machineidentity", "machineidentities"],
        namespaced: false,
        resource: resource::<MachineIdentity>,
        reasons: IdentityReason::ENTRIES,
    },
    Kind {
        names: &["platform", "platformconfig", "platformconfigs"],
        namespaced: false,
        resource: resource::<PlatformConfig>,
        reasons: PlatformReason::ENTRIES,
    },
];

impl Target {
    /// Reads one or two words.
    ///
    /// # Errors
    /// In words, with what can be asked about.
    pub(crate) fn read(words: &[String]) -> Result<Target, String> {
        let (kind, name) = match words {
            [one] => one
                .split_once('/')
                .ok_or_else(|| format!("{one:?} names no object; {}", usage()))?,
            [one, other] if one.contains('/') => {
                return Err(format!("{one:?} and {other:?} are more than one object; {}", usage()));
            }
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return Err(usage()),
        };
        // `kubectl get -o name` prints the group behind a dot
        let short = kind.split('.').next().unwrap_or(kind).to_ascii_lowercase();
        let known = KINDS.iter().find(|known| known.names.contains(&short.as_str()));
        let Some(known) = known else {
            return Err(format!("{kind:?} is not asked about; {}", usage()));
        };
        if !is_name(name) {
            return Err(format!("{name:?} is no name; {}", usage()));
        }
        Ok(Target {
            kind: known,
            name: name.to_owned(),
        })
    }

    /// Reads the name of a machine, alone or behind its kind.
    ///
    /// # Errors
    /// In words, when another kind is named.
    pub(crate) fn machine(word: &str) -> Result<String, String> {
        if is_name(word) {
            return Ok(word.to_owned());
        }
        let target = Self::read(&[word.to_owned()])?;
        if target.kind.names.contains(&"macs") {
            Ok(target.name)
        } else {
            Err(format!("{word:?} is no machine; write macs/NAME"))
        }
    }
}

/// What would have been right.
fn usage() -> String {
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.names[0]).collect();
    format!("write KIND/NAME or KIND NAME, KIND being one of {}", kinds.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_or_two_words_name_an_object_by_any_of_its_kinds_names() {
        fn read(words: &str) -> Result<Target, String> {
            let words: Vec<String> = words.split(' ').map(Into::into).collect();
            Target::read(&words)
        }
        for (text, kind, name) in [
            ("macs/b-6", "macs", "b-6"),
            ("mac b-6", "macs", "b-6"),
            ("macosmachineclaim.machine.dockerios.io/job", "macclaim", "job"),
            ("IdentityPool/imacpro", "idpool", "imacpro"),
            ("platform/default", "platform", "default"),
        ] {
            let target = read(text).unwrap();
            assert_eq!((target.kind.names[0], &*target.name), (kind, name), "{text}");
        }
        for (text, why) in [
            ("b-6", "names no object"),
            ("pod/x", "is not asked about"),
            ("macs/", "is no name"),
            ("macs/a/b", "is no name"),
            ("macs/a?watch=true", "is no name"),
            ("macs a b", "write KIND/NAME or KIND NAME"),
            ("macs/a macs/b", "more than one object"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(
                refused.contains(why) && refused.contains("macclaim"),
                "{text}: {refused}"
            );
        }
    }

    #[test]
    fn a_machine_is_named_with_or_without_its_kind() {
        assert_eq!(Target::machine("b-6").unwrap(), "b-6");
        assert_eq!(Target::machine("mac/b-6").unwrap(), "b-6");
        assert!(Target::machine("macpool/ci").unwrap_err().contains("is no machine"));
    }

    #[test]
    fn no_name_means_two_kinds() {
        let mut names: Vec<_> = KINDS.iter().flat_map(|kind| kind.names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
