//! What stopped a test. Invariant: a message never holds the key, whatever libvirt or QEMU quoted.

use std::fmt;

use crate::hook::KEY;

/// Why a test cannot go on, for the person who reads its output.
pub struct Trouble(String);

/// What a step of a test gives.
pub type Outcome<T = ()> = Result<T, Trouble>;

impl Trouble {
    /// With that message, the key taken out.
    pub fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string().replace(KEY, "(key)"))
    }

    /// Says what was being done.
    pub fn during<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |error| Self::new(format_args!("{what}: {error}"))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A test that fails prints this: the message, without quotes around it.
impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}
