//! What an earlier life of the agent noted on the disk, and what follows where that cannot be read: pure but for the
//! reading.
//!
//! Invariant: a note that cannot be read is not one that was never made. What it may have said is not known, and the Mac
//! neither starts a VM nor is given to a lease as if it had said nothing.

use std::io;
use std::path::Path;

use macrack_api::rack::node::{HostFinding, LeaseRecord};
use macrack_wire::layout::read_json;
use serde::de::DeserializeOwned;

use crate::doctor::{Check, MESSAGE};
use crate::quota::Quota;
use crate::report::bounded;
use crate::state_dir::StateDir;

/// What `file` says; `None` where nothing was noted yet.
///
/// # Errors
/// When it is there and cannot be read; the error names it.
pub fn read<T: DeserializeOwned>(file: &Path) -> io::Result<Option<T>> {
    match read_json(file) {
        Ok(noted) => Ok(Some(noted)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            tracing::error!(%error, "a note of an earlier life cannot be read; what it said is not known any more");
            Err(error)
        }
    }
}

/// What is said of a last lease that cannot be read or kept, with the way out.
pub fn lease_problem(error: &io::Error) -> String {
    format!(
        "the last lease of this Mac is not known, so it is given to nobody new: mend its note, or remove it once the 24 \
         hours of that lease are over, and restart the agent ({error})"
    )
}

/// What of the notes keeps the Mac from serving tenants, as the report says it.
pub fn findings(quota: &Quota, last_lease: Option<&str>) -> Vec<HostFinding> {
    let told =
        |why: &str| HostFinding { check: Check::Notes.to_string(), unknown: true, message: bounded(why, MESSAGE) };
    last_lease.into_iter().chain(quota.unread.as_deref()).map(told).collect()
}

/// What of the notes in a state directory cannot be read in boot `boot_id`, for whoever looks from outside.
pub fn problems(state_dir: &StateDir, boot_id: &str) -> Vec<String> {
    let quota = Quota::noted(read(&state_dir.quota()), boot_id);
    let last_lease = read::<LeaseRecord>(&state_dir.last_lease()).err().map(|error| lease_problem(&error));
    last_lease.into_iter().chain(quota.unread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_cannot_be_read_is_told_from_one_that_was_never_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("last-lease.json");
        assert_eq!(read::<LeaseRecord>(&file).unwrap(), None);
        std::fs::write(&file, "{").unwrap();
        let problem = lease_problem(&read::<LeaseRecord>(&file).unwrap_err());
        assert!(problem.contains("last-lease.json") && problem.contains("given to nobody new"), "{problem}");
        let told = findings(&Quota::in_boot(None, "boot"), Some(&problem));
        assert_eq!((told.len(), told[0].check.as_str(), told[0].unknown), (1, "notes", true));
        assert!(told[0].message.len() <= MESSAGE, "the schema would refuse the whole report");
        assert_eq!(findings(&Quota::in_boot(None, "boot"), None), []);
    }
}
