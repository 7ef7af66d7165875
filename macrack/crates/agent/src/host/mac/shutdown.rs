//! Whether the Mac goes down, from what its accounting of logins says: pure.

/// Seconds that a shutdown takes at most once it is logged: launchd kills whatever has not ended long before. A record
/// that is older is of a shutdown that did not happen, or was made by a clock that has been put right since.
const LASTS: i64 = 300;

/// Whether a shutdown is under way at `now`, by the newest records of a boot and of a shutdown; all in seconds since
/// 1970.
pub fn goes_down(boot: Option<i64>, shutdown: Option<i64>, now: i64) -> bool {
    let Some(shutdown) = shutdown else { return false };
    // the record of the last shutdown is older than this boot's
    let of_this_boot = boot.is_none_or(|boot| shutdown > boot);
    of_this_boot && (now - LASTS..=now + LASTS).contains(&shutdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_is_under_way_only_if_it_was_logged_in_this_boot_and_just_now() {
        for (boot, shutdown, now, down) in [
            (Some(1_000), None, 5_000, false),
            (Some(1_000), Some(990), 1_010, false),
            (Some(1_000), Some(5_000), 5_002, true),
            (None, Some(5_000), 5_002, true),
            // cancelled, or logged by a clock that was ahead: starts are not held up by it for ever
            (Some(1_000), Some(5_000), 5_301, false),
            (Some(1_000), Some(90_000), 5_000, false),
        ] {
            assert_eq!(goes_down(boot, shutdown, now), down, "{boot:?} {shutdown:?} {now}");
        }
    }
}
