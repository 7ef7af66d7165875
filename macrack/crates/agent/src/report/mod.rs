//! From facts to what is reported: pure, and bounded in every part.
//!
//! Invariant: a report is a function of facts; it says nothing that the facts do not.

pub mod agent;
pub mod instance;
pub mod pod;

use macrack_api::rack::node::VmState;

use crate::life::{Life, Rest};
use crate::orders::Say;

/// The longest message in a report, in bytes, as the schemas say.
const MESSAGE: usize = 512;

/// `text` cut to `most` bytes at a character boundary.
pub(crate) fn bounded(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let cut = text.floor_char_boundary(most.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..cut])
}

/// The state and the words of a VM.
pub(crate) fn state(life: Option<&Life>, say: Option<&Say>) -> (VmState, Option<String>) {
    match say {
        Some(Say::Wiped) => return (VmState::Wiped, None),
        Some(Say::Unmade) => {
            return (VmState::Stopped, Some("ordered to stop before it was made; no disk yet".to_owned()));
        }
        Some(Say::Waiting(why)) => return (VmState::Waiting, Some(why.clone())),
        Some(Say::Pulling(words)) => return (VmState::Pulling, Some(words.clone())),
        None => {}
    }
    match life {
        None => (VmState::Waiting, None),
        Some(Life::Partial { why, .. }) => {
            let words = why.clone().unwrap_or_else(|| "its disk was never whole".to_owned());
            (VmState::Stopped, Some(words))
        }
        Some(Life::Cloning) => (VmState::Cloning, None),
        Some(Life::AtRest(rest)) => at_rest(rest),
        Some(Life::Starting) => (VmState::Starting, None),
        Some(Life::Running) => (VmState::Running, None),
        Some(Life::Stopping) => (VmState::Stopping, None),
        Some(Life::Unknown(why)) => (VmState::Unknown, Some(why.clone())),
        Some(Life::Wiping) => (VmState::Wiping, None),
        Some(Life::WipeFailed(why)) => (VmState::WipeFailed, Some(why.clone())),
    }
}

fn at_rest(rest: &Rest) -> (VmState, Option<String>) {
    let words = |text: &str| Some(text.to_owned());
    match rest {
        Rest::Ready => (VmState::Stopped, None),
        Rest::GuestShutdown { .. } => (VmState::Stopped, words("the guest shut itself down")),
        Rest::HostRestarted => (VmState::Stopped, words("the Mac restarted while it ran")),
        Rest::Refused(error) => (VmState::Waiting, Some(error.to_string())),
        Rest::Failed(why) => (VmState::Failed, Some(why.clone())),
    }
}
