//! Releases of macOS, as images name them.

/// The first release whose kernel extensions and frameworks are built for AVX2 (macOS 13 dropped every Mac without).
pub const FIRST_WITH_AVX2: u8 = 13;

/// The last release for Intel.
pub(super) const LAST_FOR_INTEL: u8 = 26;

/// The major release of `15.6`, `13`, `12.7.1`; None for what the schema would refuse.
pub fn major(os_version: &str) -> Option<u8> {
    os_version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_release_stands_before_the_first_dot() {
        assert_eq!(["15.6", "13", "12.7.1"].map(major), [Some(15), Some(13), Some(12)]);
        assert_eq!(["", "x", ".1", "300"].map(major), [None; 4]);
    }
}
