//! sha256, as registries write it.

use ring::digest::{Context, SHA256};

/// A digest in the making.
#[derive(Clone)]
pub struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Hasher(Context::new(&SHA256))
    }
}

impl Hasher {
    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// `sha256:<64 hex digits>` of everything that it took.
    pub fn finish(self) -> String {
        format!("sha256:{}", hex(self.0.finish().as_ref()))
    }
}

/// `sha256:<64 hex digits>` of `bytes`.
pub fn of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(ring::digest::digest(&SHA256, bytes).as_ref()))
}

/// Whether `text` is `sha256:` and 64 lower-case hex digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(crate::reference::is_hex)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
