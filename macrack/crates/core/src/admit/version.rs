//! Versions of macOS and Xcode, and which Xcode runs on which macOS.

/// `26.1` and `26.1.0` are the same version; the schema admits numbers and dots only.
pub(super) fn parts(version: &str) -> Option<Vec<u32>> {
    let mut parts: Vec<u32> = version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    while parts.last() == Some(&0) {
        parts.pop();
    }
    Some(parts)
}

/// Oldest macOS on which an Xcode runs.
///
/// Source: Apple, "Xcode: minimum requirements and supported SDKs" (developer.apple.com/support/xcode), and the
/// overview of each version's release notes ("Xcode 26.4 requires a Mac running macOS Tahoe 26.2 or later").
/// Patch releases share the row of their minor version. Add a row when Apple ships a version.
const OLDEST_MACOS: &[((u32, u32), &str)] = &[
    ((13, 0), "11.3"),
    ((13, 1), "11.3"),
    ((13, 2), "11.3"),
    ((13, 3), "12"),
    ((13, 4), "12"),
    ((14, 0), "12.5"),
    ((14, 1), "12.5"),
    ((14, 2), "12.5"),
    ((14, 3), "13"),
    ((15, 0), "13.5"),
    ((15, 1), "13.5"),
    ((15, 2), "13.5"),
    ((15, 3), "14"),
    ((15, 4), "14"),
    ((16, 0), "14.5"),
    ((16, 1), "14.5"),
    ((16, 2), "14.5"),
    ((16, 3), "15.2"),
    ((16, 4), "15.3"),
    ((26, 0), "15.6"),
    ((26, 1), "15.6"),
    ((26, 2), "15.6"),
    ((26, 3), "15.6"),
    ((26, 4), "26.2"),
    ((26, 5), "26.2"),
];

/// Whether an Xcode runs on a macOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    Yes,
    /// It needs at least this macOS.
    Needs(&'static str),
    /// Apple's page had no row for it when this was built.
    Unlisted,
}

pub(super) fn xcode_on_macos(xcode: &str, macos: &str) -> Runs {
    let (Some(xcode), Some(macos)) = (parts(xcode), parts(macos)) else {
        return Runs::Unlisted;
    };
    let key = (xcode.first().copied().unwrap_or(0), xcode.get(1).copied().unwrap_or(0));
    match OLDEST_MACOS.iter().find(|(version, _)| *version == key) {
        None => Runs::Unlisted,
        Some((_, oldest)) if parts(oldest).is_none_or(|oldest| macos < oldest) => Runs::Needs(oldest),
        Some(_) => Runs::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xcode_runs_from_its_oldest_macos_on() {
        for (xcode, macos, runs) in [
            ("26.1", "26.1", Runs::Yes),
            ("26.1.1", "15.6", Runs::Yes),
            ("26.1", "15.5", Runs::Needs("15.6")),
            ("26.1", "14.7.1", Runs::Needs("15.6")),
            ("26.4", "26.1", Runs::Needs("26.2")),
            ("26.4.1", "26.2", Runs::Yes),
            ("16", "14.5", Runs::Yes),
            ("16.0", "14.4.9", Runs::Needs("14.5")),
            ("15.3", "14.0", Runs::Yes),
            ("27.0", "26.1", Runs::Unlisted),
            ("12.5", "12.0", Runs::Unlisted),
            ("", "26.1", Runs::Unlisted),
            ("99999999999", "26.1", Runs::Unlisted),
        ] {
            assert_eq!(xcode_on_macos(xcode, macos), runs, "Xcode {xcode} on macOS {macos}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_readable() {
        assert!(OLDEST_MACOS.is_sorted_by(|a, b| a.0 < b.0), "a version twice or out of order");
        assert!(OLDEST_MACOS.iter().all(|(_, macos)| parts(macos).is_some()));
    }

    #[test]
    fn trailing_zeros_do_not_make_another_version() {
        assert_eq!(parts("26.1.0"), parts("26.1"));
        assert_ne!(parts("26.10"), parts("26.1"));
    }
}
