//! The installation's own certificate authority and the key behind its guests' tokens, both in one Secret.
//!
//! ```text
//!  no Secret ──create──▶ one CA ──two years before its end──▶ old CA signs, new CA is published beside it
//!                           ▲                                        │ one year before the old one's end
//!                           └── the expired one is dropped ◀── new CA signs, both are trusted
//! ```
//! Invariants: whoever was told of the authorities at any time in the year before a switch trusts what is shown after
//! it; a Secret that this crate did not write, or cannot read, is refused with the reason and never overwritten; of
//! several replicas that make or change the Secret at once one wins, and the others take what it wrote.

mod authority;
mod generation;
mod keyring;
mod leaf;

pub use authority::{Authority, Clock};
pub use keyring::REPORT_KEY_BYTES;

/// Why there is no authority, or no certificate from it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not let us read or write the Secret.
    #[error("Secret {secret}: cannot {verb} it: {}", words(.source))]
    Api {
        /// `namespace/name`.
        secret: String,
        /// What was tried.
        verb: &'static str,
        /// The API server's or the transport's answer.
        source: Box<kube::Error>,
    },
    /// The Secret is there and holds something else than what is written here.
    #[error(
        "Secret {secret}: {fault}; it is left as it is. Restore it from a backup, or delete it to have new keys made \
         (guests that run now are then unknown until their machine is made again), or name another Secret"
    )]
    Foreign {
        /// `namespace/name`.
        secret: String,
        /// What is wrong with which key of its data.
        fault: String,
    },
    /// Others changed the Secret each time we were about to.
    #[error("Secret {secret}: others kept changing it; try again")]
    Contested {
        /// `namespace/name`.
        secret: String,
    },
    /// A certificate could not be made.
    #[error("no certificate for {names}: {why}")]
    Leaf {
        /// The names that were asked for.
        names: String,
        /// What is wrong.
        why: String,
    },
    /// A key or an authority could not be made.
    #[error("no certificate authority could be made: {0}")]
    Made(String),
}

/// An error of the API server in its own words, with the causes of any other. kube's own text repeats the whole answer
/// as a program prints it.
pub fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.ends_with(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}
