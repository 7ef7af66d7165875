//! Just enough DER to write a client certificate whose subject holds several groups: Kubernetes reads one group from
//! each O of the subject, and rcgen keeps one O only.

use anyhow::{Context, Result};
use rcgen::{KeyPair, PublicKeyData, SigningKey};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;

/// 2.5.4.3, commonName: Kubernetes' user name.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10, organizationName: a group.
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// 1.2.840.10045.4.3.2, ecdsa-with-SHA256: what rcgen's default keys sign with.
const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// 2.5.29.37, extKeyUsage.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// 1.3.6.1.5.5.7.3.2, id-kp-clientAuth.
const CLIENT_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];

/// A client certificate for `user` in `groups`, signed by the CA whose subject is the common name `issuer` and whose
/// key is `ca`. DER. `serial` must differ between certificates of one CA.
pub(crate) fn client_certificate(
    issuer: &str,
    ca: &KeyPair,
    serial: u64,
    user: &str,
    groups: &[&str],
    key: &KeyPair,
) -> Result<Vec<u8>> {
    let algorithm = tlv(SEQUENCE, &tlv(OBJECT, ECDSA_SHA256));
    // bit 62 alone makes it eight bytes, positive, and without a needless leading zero
    let serial = (serial & (u64::MAX >> 2) | 1 << 62).to_be_bytes();
    // clocks of tests are moved by days: valid from long ago until the last year that UTCTime can say
    let validity = [tlv(UTC_TIME, b"200101000000Z"), tlv(UTC_TIME, b"491231235959Z")].concat();
    let usage = tlv(SEQUENCE, &tlv(OBJECT, CLIENT_AUTH));
    let extension = tlv(
        SEQUENCE,
        &[tlv(OBJECT, EXTENDED_KEY_USAGE), tlv(OCTET_STRING, &usage)].concat(),
    );
    let body = tlv(
        SEQUENCE,
        &[
            tlv(0xa0, &tlv(INTEGER, &[2])), // X.509 version 3
            tlv(INTEGER, &serial),
            algorithm.clone(),
            name(issuer, &[]),
            tlv(SEQUENCE, &validity),
            name(user, groups),
            key.subject_public_key_info(),
            tlv(0xa3, &tlv(SEQUENCE, &extension)),
        ]
        .concat(),
    );
    let signature = ca
        .sign(&body)
        .with_context(|| format!("sign the client certificate of {user}"))?;
    let signature = tlv(BIT_STRING, &[&[0][..], &signature].concat());
    Ok(tlv(SEQUENCE, &[body, algorithm, signature].concat()))
}

fn name(common: &str, organizations: &[&str]) -> Vec<u8> {
    let attribute = |kind: &[u8], value: &str| {
        let pair = [tlv(OBJECT, kind), tlv(UTF8, value.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &pair))
    };
    let groups = organizations.iter().flat_map(|group| attribute(ORGANIZATION, group));
    tlv(
        SEQUENCE,
        &groups.chain(attribute(COMMON_NAME, common)).collect::<Vec<u8>>(),
    )
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short @ 0..=0x7f) => out.push(short),
        _ => {
            let length = content.len().to_be_bytes();
            let used = &length[length.iter().position(|byte| *byte != 0).unwrap_or(length.len())..];
            // at most eight bytes of length
            out.push(0x80 | u8::try_from(used.len()).unwrap_or(8));
            out.extend_from_slice(used);
        }
    }
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_the_shortest_form() {
        assert_eq!(tlv(UTF8, b"ab"), [0x0c, 2, b'a', b'b']);
        assert_eq!(tlv(UTF8, &[0; 0x7f])[..2], [0x0c, 0x7f]);
        assert_eq!(tlv(UTF8, &[0; 0x80])[..3], [0x0c, 0x81, 0x80]);
        assert_eq!(tlv(UTF8, &[0; 300])[..4], [0x0c, 0x82, 1, 44]);
    }
}
