//! The name of a golden: `registry/path@sha256:<64 hex digits>`.
//!
//! Invariant: a [`Reference`] can be used as a path below a store's root and in a URL: no part of it is empty, `.`
//! or `..`, or holds anything but what registries allow.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A golden, pinned by digest. A tag before the digest is for people and dropped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    repository: String,
    hex: String,
}

/// Why a text names no golden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no golden: registry/path@sha256:<64 hex digits> is expected")]
pub struct NotAReference(String);

impl Reference {
    /// The reference of `hex` in `repository` (`registry/path`, a tag is dropped).
    ///
    /// # Errors
    /// When either is not of its form.
    pub fn new(repository: &str, hex: &str) -> Result<Self, NotAReference> {
        format!("{repository}@sha256:{hex}").parse()
    }

    /// `registry/path`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// `registry`, with its port if it has one.
    pub fn registry(&self) -> &str {
        self.repository.split_once('/').map_or("", |(registry, _)| registry)
    }

    /// The path in the registry.
    pub fn path(&self) -> &str {
        self.repository.split_once('/').map_or("", |(_, path)| path)
    }

    /// The 64 hex digits of the digest.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// `sha256:<hex>`.
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.hex)
    }

    /// Where a directory store keeps it, below its root: `<registry>/<path>/sha256-<hex>`.
    pub fn place(&self) -> PathBuf {
        PathBuf::from(&self.repository).join(format!("sha256-{}", self.hex))
    }
}

/// Whether `text` is 64 lower-case hex digits.
pub fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_part(part: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    part.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) && part.bytes().all(allowed)
}

/// Where a golden is pushed to: `registry/path`, and a tag for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The registry, with its port if it has one.
    pub registry: String,
    /// The path in it.
    pub path: String,
    /// The tag.
    pub tag: String,
}

/// Why a text names no place to push to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no place to push to: registry/path:tag is expected, e.g. ghcr.io/acme/tahoe-xcode26:26.1")]
pub struct NotATarget(String);

impl FromStr for Target {
    type Err = NotATarget;

    fn from_str(text: &str) -> Result<Self, NotATarget> {
        let refused = || NotATarget(text.chars().take(600).collect());
        let (registry, path) = text.split_once('/').ok_or_else(refused)?;
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, tag),
            _ => (path, "latest"),
        };
        // of the distribution specification: a tag is at most 128 characters
        let is_tag = tag.len() <= 128 && is_part(tag) && !tag.contains(':');
        let is_path = path.split('/').all(|part| is_part(part) && !part.contains(':')) && !path.contains('@');
        if !is_part(registry) || !is_path || !is_tag || text.len() > 512 {
            return Err(refused());
        }
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(refused());
        }
        Ok(Target { registry: registry.to_owned(), path: path.to_owned(), tag: tag.to_owned() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.registry, self.path, self.tag)
    }
}

impl FromStr for Reference {
    type Err = NotAReference;

    fn from_str(text: &str) -> Result<Self, NotAReference> {
        let refused = || NotAReference(text.chars().take(600).collect());
        let (name, hex) = text.rsplit_once("@sha256:").ok_or_else(refused)?;
        let (registry, path) = name.split_once('/').ok_or_else(refused)?;
        // a colon in the registry is a port, in the last part of the path a tag
        let path = match path.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => path,
            _ => path,
        };
        if !is_hex(hex) || !is_part(registry) || !path.split('/').all(is_part) || text.len() > 512 {
            return Err(refused());
        }
        Ok(Reference { repository: format!("{registry}/{path}"), hex: hex.to_owned() })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@sha256:{}", self.repository, self.hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_pinned_and_its_tag_is_dropped() {
        let hex = "0123456789abcdef".repeat(4);
        for (text, repository) in [
            (format!("ghcr.io/acme/tahoe@sha256:{hex}"), Some("ghcr.io/acme/tahoe")),
            (format!("localhost:5000/tahoe:26.1@sha256:{hex}"), Some("localhost:5000/tahoe")),
            (format!("tahoe@sha256:{hex}"), None),
            ("ghcr.io/acme/tahoe:latest".to_owned(), None),
            (format!("ghcr.io/../../etc@sha256:{hex}"), None),
            (format!("ghcr.io//x@sha256:{hex}"), None),
            (format!("ghcr.io/x/@sha256:{hex}"), None),
            (format!("/etc/x@sha256:{hex}"), None),
            (format!("ghcr.io/x@sha256:{}", &hex[1..]), None),
            (format!("ghcr.io/x@sha256:{}", hex.to_uppercase()), None),
            (String::new(), None),
        ] {
            let read = text.parse::<Reference>();
            assert_eq!(read.as_ref().ok().map(Reference::repository), repository, "{text}");
        }
    }

    #[test]
    fn a_place_to_push_to_has_a_tag_or_gets_latest() {
        for (text, parts) in [
            ("ghcr.io/acme/tahoe:26.1", Some(("ghcr.io", "acme/tahoe", "26.1"))),
            ("localhost:5000/tahoe", Some(("localhost:5000", "tahoe", "latest"))),
            ("tahoe:26.1", None),
            ("ghcr.io/Acme/tahoe:26.1", None),
            ("ghcr.io/../tahoe:26.1", None),
            ("ghcr.io/tahoe:", None),
            ("ghcr.io/tahoe@sha256:00", None),
            ("", None),
        ] {
            let read = text.parse::<Target>().ok();
            let read = read.as_ref().map(|t| (t.registry.as_str(), t.path.as_str(), t.tag.as_str()));
            assert_eq!(read, parts, "{text}");
        }
    }
}
