//! One bell for everything that may change what is to be done.

use std::sync::Arc;

use tokio::sync::Notify;

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
