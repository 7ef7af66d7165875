//! Container images, always pinned.

use std::{borrow::Cow, fmt, ops::Deref};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// A container image pinned by digest: `registry/repository[:tag]@sha256:<64 hex>`. What a boot depends on never
/// moves under a tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PinnedImage(pub String);

impl PinnedImage {
    /// `sha256:…`, the part that pins; empty when the stored text has none (the schema refuses that).
    pub fn digest(&self) -> &str {
        self.0.split_once('@').map_or("", |(_, digest)| digest)
    }
}

impl JsonSchema for PinnedImage {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PinnedImage".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        super::string(
            r"^[a-zA-Z0-9][-a-zA-Z0-9._:/]*(@.*)?$",
            (3, 512),
            &[(
                "self.matches('@sha256:[0-9a-f]{64}$')",
                "[image-pinned] a container image is pinned by digest: write registry/repository@sha256:<64 hex digits>; a tag can move",
            )],
        )
    }
}

impl Deref for PinnedImage {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PinnedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
