//! What is asked about: `mnl/ios-ci`, as kubectl writes it, or `mnl ios-ci`.

/// A kind that can be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Node,
    Lease,
    Instance,
    Image,
}

/// An object of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

/// The names that kubectl knows each kind by.
const NAMES: &[(&[&str], Kind)] = &[
    (&["mn", "macnode", "macnodes"], Kind::Node),
    (&["mnl", "macnodelease", "macnodeleases"], Kind::Lease),
    (&["mi", "macosinstance", "macosinstances"], Kind::Instance),
    (&["macimg", "macosimage", "macosimages"], Kind::Image),
];

impl Target {
    /// Reads one or two words.
    ///
    /// # Errors
    /// In words, with what can be asked about.
    pub(crate) fn read(words: &[String]) -> Result<Target, String> {
        let (kind, name) = match words {
            [one] => one.split_once('/').ok_or_else(|| format!("{one:?} names no object; {}", usage()))?,
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return Err(usage()),
        };
        // `kubectl get -o name` prints the group behind a dot
        let short = kind.split('.').next().unwrap_or(kind).to_ascii_lowercase();
        let known = NAMES.iter().find(|(names, _)| names.contains(&short.as_str()));
        let Some((_, kind)) = known else { return Err(format!("{kind:?} is not asked about; {}", usage())) };
        if name.is_empty() || name.contains('/') {
            return Err(format!("{name:?} is no name; {}", usage()));
        }
        Ok(Target { kind: *kind, name: name.to_owned() })
    }
}

fn usage() -> String {
    "write mn/NAME (a MacNode), mnl/NAME (a lease), mi/NAME (an instance) or macimg/NAME (an image)".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_kubectl_names_them() {
        let read = |text: &str| Target::read(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (text, kind, name) in [
            ("mnl/ios-ci", Kind::Lease, "ios-ci"),
            ("mnl ios-ci", Kind::Lease, "ios-ci"),
            ("macnodelease.rack.macrack.io/ios-ci", Kind::Lease, "ios-ci"),
            ("MacNode/h4xk29q0lw", Kind::Node, "h4xk29q0lw"),
            ("mi/build-1", Kind::Instance, "build-1"),
            ("macosimages/tahoe", Kind::Image, "tahoe"),
        ] {
            assert_eq!(read(text), Ok(Target { kind, name: name.to_owned() }), "{text}");
        }
        for (text, why) in [
            ("ios-ci", "names no object"),
            ("pod/x", "is not asked about"),
            ("mnl/", "is no name"),
            ("mnl/a/b", "is no name"),
            ("mnl a b", "write mn/NAME"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(why) && refused.contains("mnl/NAME"), "{text}: {refused}");
        }
    }
}
