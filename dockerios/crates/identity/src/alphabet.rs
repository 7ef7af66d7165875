//! The 34 characters that serials and MLBs are written in: digits and capital letters without I and O.

/// The alphabet in the order that gives each character its value, 0 to 33.
pub const ALPHABET: &[u8; 34] = b"0123456789ABCDEFGHJKLMNPQRSTUVWXYZ";

/// The character of that value; the value is taken modulo 34, so that there is always one.
pub(crate) fn character(value: u32) -> char {
    char::from(ALPHABET[value as usize % ALPHABET.len()])
}

/// The value of a character, 0 to 33.
pub(crate) fn value(character: char) -> Option<u32> {
    ALPHABET
        .iter()
        .position(|&known| char::from(known) == character)
        .and_then(|at| u32::try_from(at).ok())
}

/// The first character that does not belong here.
pub(crate) fn first_foreign(text: &str) -> Option<char> {
    text.chars().find(|&character| value(character).is_none())
}
