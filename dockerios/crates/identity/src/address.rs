//! The six bytes that are ROM and MAC address at once. Invariant: what is read or made here is the address of one
//! network card, never of a group and never zero.

use rand::RngCore;

use crate::refusal::{Field, Refusal, Rule};

/// Six bytes of a network card's address.
pub type Octets = [u8; 6];

/// A random unicast address of the locally administered range, so that it is no manufacturer's.
pub(crate) fn mint(rng: &mut impl RngCore) -> Octets {
    let mut octets = [0; 6];
    rng.fill_bytes(&mut octets);
    octets[0] = octets[0] & 0b1111_1100 | 0b0000_0010;
    octets
}

/// The ROM as identities write it: `02005E100001`.
pub(crate) fn rom_text(octets: Octets) -> String {
    octets.iter().map(|octet| format!("{octet:02X}")).collect()
}

/// The address as KubeVirt and people write it: `02:00:5e:10:00:01`.
pub(crate) fn mac_text(octets: Octets) -> String {
    octets.map(|octet| format!("{octet:02x}")).join(":")
}

/// Twelve hexadecimal digits, in either case, that are a unicast address.
pub(crate) fn parse_rom(text: &str) -> Result<Octets, Refusal> {
    let octets = digits(text).ok_or_else(|| Refusal::new(Field::Rom, text, Rule::RomShape))?;
    if octets[0] & 1 == 1 || octets == [0; 6] {
        return Err(Refusal::new(Field::Rom, text, Rule::RomUnicast));
    }
    Ok(octets)
}

/// Six pairs of hexadecimal digits, in either case, with colons.
pub(crate) fn parse_mac(text: &str) -> Result<Octets, Refusal> {
    let pairs = text.len() == 17
        && text
            .bytes()
            .enumerate()
            .all(|(at, byte)| (byte == b':') == (at % 3 == 2));
    let octets = if pairs { digits(&text.replace(':', "")) } else { None };
    octets.ok_or_else(|| Refusal::new(Field::MacAddress, text, Rule::MacShape))
}

fn digits(text: &str) -> Option<Octets> {
    if text.len() != 12 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut octets = [0; 6];
    for (octet, at) in octets.iter_mut().zip((0..12).step_by(2)) {
        *octet = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rom_of_another_length_or_with_colons_is_refused_for_its_shape() {
        for text in [
            "",
            "02005E1000",
            "02005E10000101",
            "02:00:5E:10:00",
            "02005E10000G",
            "٠٢٠٠٥٣",
            "+2005E100001",
        ] {
            assert_eq!(
                parse_rom(text).map_err(|refusal| refusal.rule),
                Err(Rule::RomShape),
                "{text}"
            );
        }
    }

    #[test]
    fn the_address_of_a_group_and_zero_are_refused_as_roms() {
        for text in ["01005E100001", "FFFFFFFFFFFF", "000000000000"] {
            assert_eq!(
                parse_rom(text).map_err(|refusal| refusal.rule),
                Err(Rule::RomUnicast),
                "{text}"
            );
        }
    }

    #[test]
    fn both_ways_of_writing_read_back() {
        let octets = [0x02, 0x00, 0x5E, 0x10, 0x00, 0x01];
        assert_eq!(
            (parse_rom("02005e100001"), parse_mac("02:00:5E:10:00:01")),
            (Ok(octets), Ok(octets))
        );
        assert_eq!(
            (rom_text(octets).as_str(), mac_text(octets).as_str()),
            ("02005E100001", "02:00:5e:10:00:01")
        );
    }

    #[test]
    fn a_mac_address_with_other_separators_is_refused() {
        for text in [
            "02-00-5e-10-00-01",
            "02005e100001",
            "02:00:5e:10:00:1",
            "02:00:5e:10:00:0:",
            ":2:00:5e:10:00:01",
        ] {
            assert_eq!(
                parse_mac(text).map_err(|refusal| refusal.rule),
                Err(Rule::MacShape),
                "{text}"
            );
        }
    }
}
