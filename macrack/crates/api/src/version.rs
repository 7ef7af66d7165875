//! Versions of macOS, and which host can run which golden.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::MacOSImageSpec;

/// The most parts of a version: Apple's have three, a rapid response's counts as a fourth.
const MAX_PARTS: usize = 4;

/// A released version: numbers and dots, compared as numbers. `15` is `15.0.0`, and older than `15.10`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version([u32; MAX_PARTS]);

/// A text that is no released version, a beta for example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoVersion;

impl Version {
    /// The first number.
    pub fn major(self) -> u32 {
        self.0[0]
    }
}

impl FromStr for Version {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let mut parts = [0; MAX_PARTS];
        let mut given = text.split('.');
        for part in &mut parts {
            let Some(digits) = given.next() else { break };
            // `parse` alone would take a sign
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(NoVersion);
            }
            *part = digits.parse().map_err(|_| NoVersion)?;
        }
        match given.next() {
            None => Ok(Version(parts)),
            Some(_) => Err(NoVersion),
        }
    }
}

/// Why a host cannot run a golden, or why that cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// The host's macOS is older than it needs.
    HostTooOld {
        /// The oldest that would do.
        needs: String,
        /// What the host has.
        host: String,
    },
    /// What the host says of its version is empty, or no released version.
    HostUnknown {
        /// What it says.
        host: String,
    },
    /// What the image asks for is no version. (The schema refuses it.)
    ImageUnreadable {
        /// What it asks for.
        needs: String,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::HostTooOld { needs, host } => {
                write!(f, "needs macOS {needs} or newer on its Mac, which has {host}")
            }
            Unfit::HostUnknown { host } if host.is_empty() => {
                f.write_str("cannot be judged: its Mac does not say which macOS it has")
            }
            Unfit::HostUnknown { host } => {
                write!(f, "cannot be judged: its Mac has macOS {host:?}, which is no released version")
            }
            Unfit::ImageUnreadable { needs } => write!(f, "asks for macOS {needs:?} on its Mac, which is no version"),
        }
    }
}

impl MacOSImageSpec {
    /// The version of what is in it: `macOS`, `Xcode` or `GuestAgent`.
    pub fn content(&self, kind: &str) -> Option<&str> {
        self.contents.iter().find(|content| content.kind == kind).map(|content| content.version.as_str())
    }

    /// Whether a host with this macOS can run it: the host is at least `minimumHostVersion`, and its macOS
    /// is of the golden's major version or a later one. Apple promises a guest no more than its host.
    ///
    /// # Errors
    /// The reason, for the person who looks at an instance.
    pub fn runs_on(&self, host: &str) -> Result<(), Unfit> {
        let own = self.content("macOS");
        if self.minimum_host_version.is_none() && own.is_none() {
            return Ok(());
        }
        let has: Version = host.parse().map_err(|_| Unfit::HostUnknown { host: host.to_owned() })?;
        let read = |text: &str| text.parse::<Version>().map_err(|_| Unfit::ImageUnreadable { needs: text.to_owned() });
        let too_old = |needs: String| Err(Unfit::HostTooOld { needs, host: host.to_owned() });
        if let Some(minimum) = &self.minimum_host_version
            && has.cmp(&read(minimum)?) == Ordering::Less
        {
            return too_old(minimum.clone());
        }
        if let Some(own) = own {
            let major = read(own)?.major();
            if has.major() < major {
                return too_old(major.to_string());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image(minimum: Option<&str>, macos: Option<&str>) -> MacOSImageSpec {
        let contents: Vec<_> = macos.map(|version| json!({"kind": "macOS", "version": version})).into_iter().collect();
        serde_json::from_value(json!({
            "source": {"oci": {"image": "r.example/m@sha256:0"}}, "contents": contents, "minimumHostVersion": minimum,
        }))
        .unwrap()
    }

    fn says(minimum: Option<&str>, macos: Option<&str>, host: &str) -> String {
        image(minimum, macos).runs_on(host).map_or_else(|unfit| unfit.to_string(), |()| "ok".to_owned())
    }

    #[test]
    fn a_host_older_than_a_golden_asks_for_is_refused_and_so_is_one_that_cannot_be_judged() {
        for (host, minimum, expected) in [
            ("15.5", "15.0", "ok"),
            ("15.5", "26.0", "needs macOS 26.0 or newer on its Mac, which has 15.5"),
            ("9.9", "15.0", "needs macOS 15.0 or newer on its Mac, which has 9.9"),
            ("15.10", "15.9", "ok"),
            ("15", "15.0.0", "ok"),
            ("15.0.0", "15", "ok"),
            ("26.0-beta3", "26.0", "cannot be judged: its Mac has macOS \"26.0-beta3\", which is no released version"),
            ("", "15.0", "cannot be judged: its Mac does not say which macOS it has"),
            // the schema refuses these two; if they came through, nothing would start
            ("15.5", "", "asks for macOS \"\" on its Mac, which is no version"),
            ("15.5", "fifteen", "asks for macOS \"fifteen\" on its Mac, which is no version"),
        ] {
            assert_eq!(says(Some(minimum), None, host), expected, "host {host:?}, minimum {minimum:?}");
        }
    }

    #[test]
    fn a_guest_of_a_later_major_version_than_its_host_is_refused_without_being_told_to() {
        for (host, macos, expected) in [
            ("15.5", "15.6.1", "ok"),
            ("26.0", "15.5", "ok"),
            ("15.7", "26.1", "needs macOS 26 or newer on its Mac, which has 15.7"),
            ("26.0-beta3", "15.5", "cannot be judged: its Mac has macOS \"26.0-beta3\", which is no released version"),
        ] {
            assert_eq!(says(None, Some(macos), host), expected, "host {host:?}, guest {macos:?}");
            assert_eq!(says(Some("10"), Some(macos), host), expected, "a lower minimum changes nothing");
        }
        assert_eq!(says(None, None, ""), "ok", "nothing is asked of the host");
    }

    #[test]
    fn a_version_is_numbers_and_dots() {
        for text in ["", ".", "15.", ".5", "+15", "15.-1", "15 ", "1.2.3.4.5", "99999999999", "١٥"] {
            assert_eq!(text.parse::<Version>(), Err(NoVersion), "{text:?}");
        }
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("15.9") < version("15.10") && version("15.10") < version("26"));
        assert_eq!(version("26.1"), version("26.1.0"));
    }
}
