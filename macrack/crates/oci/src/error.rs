//! What can go wrong with a registry, in three classes.

use std::io;
use std::time::Duration;

/// Why something could not be had from, or put into, a registry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry does not have it.
    #[error("{0} is not there; push it, or correct the reference")]
    NotFound(String),
    /// The registry does not let us.
    #[error("{what}: the registry refuses it: {why}; check the pull secret")]
    Denied {
        /// What was asked for.
        what: String,
        /// Its words.
        why: String,
    },
    /// What the registry has is not what its digest says, or no golden.
    #[error("{0}")]
    NotAGolden(String),
    /// Something here is not as it must be: a reference, a secret, a bundle.
    #[error("{0}")]
    Invalid(String),
    /// The registry did not answer, or not well, for as long as was tried.
    #[error("{what}: {why}; it is tried again")]
    Transient {
        /// What was asked for.
        what: String,
        /// What came instead.
        why: String,
        /// When the registry wants to be asked again.
        after: Option<Duration>,
    },
    /// Whoever asked does not want it any more, or says that it cannot go on.
    #[error("{0}")]
    Stopped(String),
    /// The disk is full.
    #[error("{what}: no space is left on the disk (write error {})", rustix::io::Errno::NOSPC.raw_os_error())]
    NoSpace {
        /// What was done.
        what: String,
    },
    /// Reading or writing here failed.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// What is to be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Nothing helps but an edit, or a push.
    Invalid,
    /// It may work later.
    Transient,
    /// It was ended from here.
    Stopped,
}

impl Error {
    /// Its class.
    pub fn class(&self) -> Class {
        match self {
            Error::NotFound(_) | Error::Denied { .. } | Error::NotAGolden(_) | Error::Invalid(_) => Class::Invalid,
            Error::Transient { .. } | Error::NoSpace { .. } | Error::Io { .. } => Class::Transient,
            Error::Stopped(_) => Class::Stopped,
        }
    }

    /// Says what was done when the operating system refused; a full disk is told apart.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| match source.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NOSPC.raw_os_error() => Error::NoSpace { what },
            _ => Error::Io { what, source },
        }
    }

    /// Something that did not work now.
    pub fn transient(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Transient { what: what.into(), why: why.into(), after: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_error_code_28_is_a_full_disk_and_no_other_trouble() {
        let full = Error::io("write disk.img")(io::Error::from_raw_os_error(28));
        assert!(matches!(full, Error::NoSpace { .. }) && full.to_string().contains("write error 28"), "{full}");
        let broken = Error::io("write disk.img")(io::Error::from_raw_os_error(5));
        assert!(matches!(broken, Error::Io { .. }), "{broken}");
    }
}
