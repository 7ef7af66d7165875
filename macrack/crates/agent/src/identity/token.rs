//! What a token says of itself, and with which one the next is asked for: pure.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;

/// What a token says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    /// The user that it speaks for.
    pub(super) subject: String,
    /// By the API server's clock.
    pub(super) issued: Timestamp,
    /// By the API server's clock.
    pub(super) expires: Timestamp,
    /// The Node that it dies with.
    pub(super) node_uid: Option<String>,
}

impl Claims {
    /// Reads a token's claims without checking its signature: it is our own, and the API server checks.
    pub(super) fn read(token: &str) -> Option<Claims> {
        #[derive(Deserialize)]
        struct Payload {
            sub: String,
            exp: i64,
            iat: i64,
            #[serde(rename = "kubernetes.io")]
            kubernetes: Option<Kubernetes>,
        }
        #[derive(Deserialize)]
        struct Kubernetes {
            node: Option<Bound>,
        }
        #[derive(Deserialize)]
        struct Bound {
            uid: String,
        }
        let payload = token.trim().split('.').nth(1)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
        let payload: Payload = serde_json::from_slice(&bytes).ok()?;
        Some(Claims {
            subject: payload.sub,
            issued: Timestamp::from_second(payload.iat).ok()?,
            expires: Timestamp::from_second(payload.exp).ok()?,
            node_uid: payload.kubernetes.and_then(|k| k.node).map(|node| node.uid),
        })
    }

    /// How long after it was given the next one is asked for: two thirds of its life, so that the last third is there
    /// for an API server that does not answer. Both moments are the server's, so this Mac's clock has no say in it.
    pub(super) fn renew_after(&self) -> Duration {
        Duration::try_from(self.expires.duration_since(self.issued)).unwrap_or_default() * 2 / 3
    }
}

/// With which token the next one is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    /// The agent's own.
    Own,
    /// The one of the bootstrap file.
    Bootstrap,
}

/// What the failed attempts since the last token say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Failures {
    own: bool,
    bootstrap: bool,
}

impl Failures {
    /// Takes in that an attempt failed; `dead` if the token itself was refused or is not to be had, and not only the
    /// answer missing. Says with which the next attempt is made.
    ///
    /// A token that nobody refused is tried again: an outage is no end of it. Refused ones are tried in turns: an API
    /// server that has just started refuses good ones too.
    pub(super) fn note(&mut self, with: With, dead: bool, has_own: bool) -> With {
        if !dead {
            return with;
        }
        match with {
            With::Own => self.own = true,
            With::Bootstrap => self.bootstrap = true,
        }
        if with == With::Bootstrap && has_own { With::Own } else { With::Bootstrap }
    }

    /// Whether there is no token left that nobody refused.
    pub(super) fn is_nobody(self, has_own: bool) -> bool {
        self.bootstrap && (self.own || !has_own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> String {
        format!("h.{}.s\n", BASE64_URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn a_token_says_whose_it_is_when_it_ends_and_to_which_node_it_is_bound() {
        let bound = r#"{"sub":"a","exp":90000,"iat":3600,"kubernetes.io":{"node":{"name":"macrack-x","uid":"u-1"}}}"#;
        let read = Claims::read(&token(bound)).unwrap();
        assert_eq!((read.subject.as_str(), read.node_uid.as_deref()), ("a", Some("u-1")));
        assert_eq!(read.expires, Timestamp::from_second(90_000).unwrap());
        assert_eq!(read.renew_after(), Duration::from_secs(16 * 3600), "two thirds of a day");
        let loose = r#"{"sub":"a","exp":3600,"iat":7200,"kubernetes.io":{}}"#;
        let read = Claims::read(&token(loose)).unwrap();
        assert_eq!((read.node_uid.clone(), read.renew_after()), (None, Duration::ZERO), "nonsense is renewed at once");
        for nonsense in ["", "a.b", "a.!!.c", "a.e30.c"] {
            assert_eq!(Claims::read(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn an_outage_ends_no_token_and_only_two_refusals_make_a_mac_nobody() {
        const SILENCE: bool = false;
        const REFUSED: bool = true;
        use With::{Bootstrap, Own};
        // (has a token of its own, attempts, with what the next is made, is nobody)
        for (has_own, attempts, next, nobody) in [
            (true, vec![(Own, SILENCE); 9], Own, false),
            (true, vec![(Own, REFUSED)], Bootstrap, false),
            (true, vec![(Own, REFUSED), (Bootstrap, SILENCE)], Bootstrap, false),
            (true, vec![(Own, REFUSED), (Bootstrap, REFUSED)], Own, true),
            (true, vec![(Own, REFUSED), (Bootstrap, REFUSED), (Own, REFUSED)], Bootstrap, true),
            (true, vec![(Bootstrap, REFUSED)], Own, false),
            (false, vec![(Bootstrap, SILENCE)], Bootstrap, false),
            (false, vec![(Bootstrap, REFUSED)], Bootstrap, true),
        ] {
            let mut failures = Failures::default();
            let mut with = None;
            for (attempt, dead) in &attempts {
                with = Some(failures.note(*attempt, *dead, has_own));
            }
            assert_eq!((with, failures.is_nobody(has_own)), (Some(next), nobody), "{attempts:?}");
        }
    }
}
