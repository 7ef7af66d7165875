//! One bell for everything that may change what is to be done, and word of what did change.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// Rings once for any number of changes since it was last heard.
#[derive(Debug, Clone, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Something has changed.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Resolves when something has changed since the last time. One listener.
    pub async fn heard(&self) {
        self.0.notified().await;
    }
}

/// Says `value` to those who watch; the same as before is no news and wakes nobody.
pub(crate) fn replace<T: PartialEq>(watched: &watch::Sender<T>, value: T) {
    watched.send_if_modified(|old| {
        let changed = *old != value;
        *old = value;
        changed
    });
}
