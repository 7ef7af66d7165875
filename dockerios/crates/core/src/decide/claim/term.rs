//! How long a claim lasts.
//!
//! Invariant: what was promised is never taken back. Raising `ttl` moves the end; a platform limit that is lowered
//! later does not.

use std::sync::Arc;

use dockerios_api::{
    MacOSMachineClaim, PlatformConfig,
    config::platform_config::Claims,
    text::{Span, SpanText},
};
use jiff::{SignedDuration, Timestamp};

use super::line::born;
use crate::{Seen, admit::machine::SHORTEST_TTL};

/// How long before the end it is said.
pub(super) const NOTICE: SignedDuration = SignedDuration::from_mins(5);
/// How long an ended claim stays to be looked at.
pub(super) const KEPT: SignedDuration = SignedDuration::from_hours(24);

/// The ttl that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ttl {
    pub(super) span: Span,
    /// Why it is not the claim's own.
    pub(super) complaint: Option<String>,
}

/// The claim's, or the platform's default, within the platform's maximum.
pub(super) fn ttl(claim: &MacOSMachineClaim, platform: &Seen<Arc<PlatformConfig>>) -> Seen<Ttl> {
    let usual = Claims::usual();
    let limits = match platform {
        Seen::Present(platform) => &platform.spec.claims,
        Seen::Absent => &usual,
        Seen::Unknown(why) => return Seen::Unknown(why.clone()),
    };
    let most = read(&limits.max_ttl, &usual.max_ttl);
    let default = read(&limits.default_ttl, &usual.default_ttl).min(most);
    let own = claim.spec.ttl.as_ref();
    let (span, complaint) = match own.map(|text| (text, text.span())) {
        None => (default, None),
        Some((_, Ok(span))) if span >= SHORTEST_TTL => (span.min(most), None),
        Some((text, Ok(_))) => (
            default,
            Some(format!(
                "spec.ttl {text} is less than {SHORTEST_TTL}: the platform's {default} counts; raise it"
            )),
        ),
        Some((_, Err(why))) => (
            default,
            Some(format!("spec.ttl {why}: the platform's {default} counts; correct it")),
        ),
    };
    Seen::Present(Ttl { span, complaint })
}

/// A limit; what always holds when it was stored past its schema.
fn read(text: &SpanText, usual: &SpanText) -> Span {
    text.span().or_else(|_| usual.span()).unwrap_or(SHORTEST_TTL)
}

/// When the claim ends by itself. While the platform's limits cannot be read, what was promised last.
pub(super) fn end(claim: &MacOSMachineClaim, bound: Option<Timestamp>, ttl: &Seen<Ttl>) -> Option<Timestamp> {
    let promised = claim
        .status
        .as_ref()
        .and_then(|status| status.expires_at.as_ref())
        .map(|at| at.0);
    let from = bound.unwrap_or_else(|| born(claim));
    let reckoned = ttl.present().and_then(|ttl| from.checked_add(ttl.span.signed()).ok());
    promised.max(reckoned)
}

/// `moment` moved by `by`; the moment itself at the ends of time.
pub(super) fn moved(moment: Timestamp, by: SignedDuration) -> Timestamp {
    moment.checked_add(by).unwrap_or(moment)
}
