//! Texts with a form. Each type carries its own schema (pattern, bounds, CEL with a reasoned message) and one parser,
//! so that schema, webhook, controller and CLI give the same verdict.

mod image;
mod name;
mod size;
mod span;

pub use image::PinnedImage;
pub use name::{Label, Name};
pub use size::{NotASize, Size};
pub use span::{MAX_SPAN, NotASpan, Span, Text as SpanText};

/// A schema of a string with bounds, a pattern, and CEL rules that say in words what the pattern cannot.
fn string(pattern: &str, (shortest, longest): (u32, u32), rules: &[(&str, &str)]) -> schemars::Schema {
    let rules: Vec<_> = rules
        .iter()
        .map(|(rule, message)| serde_json::json!({"rule": rule, "message": message}))
        .collect();
    schemars::json_schema!({
        "type": "string", "minLength": shortest, "maxLength": longest, "pattern": pattern,
        "x-kubernetes-validations": rules,
    })
}
