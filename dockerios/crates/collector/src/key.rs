//! The key behind every guest's token. Invariant: it leaves this module only as a token for one machine; it is never
//! printed and is wiped when dropped; comparisons take the same time whether they match or not.

use std::fmt;

use ring::hmac;
use zeroize::Zeroizing;

/// 32 bytes that the operator keeps. A machine's token is HMAC-SHA256(key, uid), so tokens need not be stored or read.
#[derive(Clone)]
pub struct ReportKey(Zeroizing<[u8; 32]>);

impl ReportKey {
    /// Takes the bytes of the installation's key.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The token of one machine: 64 lower-case hexadecimal digits, to be put on its config volume.
    #[must_use]
    pub fn token(&self, uid: &str) -> String {
        let tag = hmac::sign(&self.hmac(), uid.as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether `tag` is the token of the machine `uid`.
    pub(crate) fn fits(&self, uid: &str, tag: &Tag) -> bool {
        hmac::verify(&self.hmac(), uid.as_bytes(), &tag.0).is_ok()
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice())
    }
}

impl fmt::Debug for ReportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReportKey(…)")
    }
}

/// What a guest presented, decoded.
pub(crate) struct Tag([u8; 32]);

impl Tag {
    /// Reads the value of an `Authorization` header.
    pub(crate) fn of_header(value: &[u8]) -> Option<Self> {
        let scheme = value.get(..7)?;
        let digits = value.get(7..)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") || digits.len() != 64 {
            return None;
        }
        let mut tag = [0; 32];
        for (byte, pair) in tag.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(tag))
    }
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected digits were computed with OpenSSL.
    #[test]
    fn a_token_is_the_hmac_of_the_uid_and_fits_no_other() {
        let key = ReportKey::new([7; 32]);
        let token = key.token("6f0c1d1e-0000-4000-8000-000000000001");
        assert_eq!(
            token,
            "86b35397bbe99ff34057bc4a4eabb5c886818231369ff935f26280c43200bce9"
        );
        let tag = Tag::of_header(format!("Bearer {token}").as_bytes()).expect("a token");
        assert!(key.fits("6f0c1d1e-0000-4000-8000-000000000001", &tag));
        assert!(!key.fits("6f0c1d1e-0000-4000-8000-000000000002", &tag));
        assert!(!ReportKey::new([8; 32]).fits("6f0c1d1e-0000-4000-8000-000000000001", &tag));
        assert!(!format!("{key:?}").contains('7'));
    }

    #[test]
    fn headers_that_carry_no_token() {
        let token = "0a".repeat(32);
        for header in [
            String::new(),
            "Bearer".into(),
            "Bearer ".into(),
            format!("Basic {token}"),
            format!("Bearer {token}0"),
            format!("Bearer {}", &token[1..]),
            format!("Bearer {}", token.to_uppercase()),
            format!("Bearer {}", "g".repeat(64)),
        ] {
            assert!(Tag::of_header(header.as_bytes()).is_none(), "{header}");
        }
        assert!(
            Tag::of_header(format!("bearer {token}").as_bytes()).is_some(),
            "schemes have no case"
        );
    }
}
