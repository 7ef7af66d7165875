//! Why a VM whose process has gone does not run: pure, from what the files say.

use std::io;

use macrack_wire::{ErrorClass, LastState, StopCause, VmState};

use super::record::Record;
use crate::life::{Life, RESTART_EVERY, Rest};

/// Where a VM is that has no whole disk, or of which nobody can tell; `None` for one that has. `described` says whether
/// its description is there: what is half made is made anew from nothing, so it must not be taken for that by mistake.
pub(super) fn without_disk(described: io::Result<bool>) -> Option<Life> {
    match described {
        Ok(true) => None,
        Ok(false) => Some(Life::Partial { why: None, retry_at: None }),
        Err(error) => Some(Life::AtRest(Rest::Failed(format!(
            "its directory cannot be read, so it is neither started nor made anew: {error}; mend the disk of the Mac and \
             restart the agent, or delete the instance"
        )))),
    }
}

/// Where a VM is that has a disk and no process. A last state that cannot be read is not one that was never written:
/// what became of the VM is then not known, and it is not started over it.
pub(super) fn of(record: &Record, last: io::Result<Option<LastState>>, boot_id: &str) -> Rest {
    match last {
        Ok(last) => judge(record, last.as_ref(), boot_id),
        Err(error) => Rest::Failed(format!(
            "how its VM ended cannot be read, so it is not started: {error}; mend or remove the file and restart the \
             agent, or delete the instance"
        )),
    }
}

/// Judges the end of a VM that has a disk and no process, in boot `boot_id`.
fn judge(record: &Record, last: Option<&LastState>, boot_id: &str) -> Rest {
    if record.stopped_by_order || record.starts == 0 {
        return Rest::Ready;
    }
    // what an earlier process wrote says nothing of this one
    let report = last.map(|last| &last.report).filter(|report| record.pid.is_none_or(|pid| pid == report.pid));
    let Some(report) = report else {
        return match record.boot_id == boot_id {
            true => Rest::Failed("its process ended without a word; vm.log may say why".to_owned()),
            false => Rest::HostRestarted,
        };
    };
    match (report.state, report.stop_cause) {
        (VmState::Stopped, Some(StopCause::GuestShutdown)) => {
            Rest::GuestShutdown { restart_at: report.started_at + RESTART_EVERY }
        }
        (VmState::Stopped, _) => Rest::Ready,
        (VmState::Failed, _) => match &report.error {
            // a new boot counts anew, and may be one of a newer macOS
            Some(error)
                if matches!(error.class, ErrorClass::Limit | ErrorClass::HostTooOld) && record.boot_id != boot_id =>
            {
                Rest::Ready
            }
            Some(error) if error.class == ErrorClass::HostTooOld => Rest::Failed(format!(
                "this Mac's macOS is too old for its golden: {error}; it starts by itself once the Mac is upgraded"
            )),
            Some(error) if error.class == ErrorClass::Limit => Rest::Refused(error.clone()),
            Some(error) => Rest::Failed(error.with_way_out()),
            None => Rest::Failed("its process gave no reason; vm.log may".to_owned()),
        },
        (VmState::Starting | VmState::Running | VmState::Stopping, _) => match record.boot_id == boot_id {
            true => Rest::Failed("its process was killed or crashed; vm.log may say why".to_owned()),
            false => Rest::HostRestarted,
        },
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use macrack_wire::{VmError, VmReport};

    use super::*;

    fn record() -> Record {
        Record { starts: 1, boot_id: "now".to_owned(), pid: Some(7), ..Record::default() }
    }

    fn last(state: VmState, stop_cause: Option<StopCause>, code: Option<i64>) -> LastState {
        let report = VmReport {
            uid: "u".to_owned(),
            pid: 7,
            state,
            error: code.map(|code| VmError::new("VZErrorDomain", code, "said so")),
            started_at: Timestamp::UNIX_EPOCH,
            guest: None,
            guest_problem: None,
            stop_cause,
        };
        LastState { report, first_boot_handed: false }
    }

    #[test]
    fn a_crash_is_told_from_a_clean_stop_and_both_from_a_host_that_went_down() {
        use StopCause::{Crashed, Forced, GuestShutdown, Requested, StartFailed};
        let now = |last: Option<LastState>| judge(&record(), last.as_ref(), "now");
        assert_eq!(
            now(Some(last(VmState::Stopped, Some(GuestShutdown), None))),
            Rest::GuestShutdown { restart_at: Timestamp::UNIX_EPOCH + RESTART_EVERY }
        );
        assert_eq!(now(Some(last(VmState::Stopped, Some(Requested), None))), Rest::Ready);
        assert_eq!(now(Some(last(VmState::Stopped, Some(Forced), None))), Rest::Ready);
        assert!(matches!(now(Some(last(VmState::Failed, Some(StartFailed), Some(6)))), Rest::Refused(_)));
        assert!(matches!(now(Some(last(VmState::Failed, Some(Crashed), Some(1)))), Rest::Failed(_)));
        assert!(matches!(now(Some(last(VmState::Running, None, None))), Rest::Failed(_)), "killed while it ran");
        assert!(matches!(now(None), Rest::Failed(_)), "gone before it wrote anything");
        let counted = judge(&record(), Some(&last(VmState::Failed, Some(StartFailed), Some(6))), "later");
        assert_eq!(counted, Rest::Ready, "the kernel of a new boot was not asked yet");
        let rebooted = judge(&record(), Some(&last(VmState::Running, None, None)), "later");
        assert_eq!(rebooted, Rest::HostRestarted);
    }

    #[test]
    fn a_last_state_that_cannot_be_read_starts_nothing_by_itself_after_a_reboot() {
        let spoiled = || Err(io::Error::new(io::ErrorKind::InvalidData, "state.json: expected value"));
        let Rest::Failed(why) = of(&record(), spoiled(), "later") else { panic!("it starts over what it cannot read") };
        assert!(why.contains("state.json") && why.contains("or delete the instance"), "{why}");
        assert_eq!(of(&record(), Ok(None), "later"), Rest::HostRestarted, "never written is another matter");
    }

    #[test]
    fn a_disk_of_which_nobody_can_tell_is_not_made_anew() {
        assert_eq!(without_disk(Ok(true)), None);
        assert_eq!(without_disk(Ok(false)), Some(Life::Partial { why: None, retry_at: None }));
        let dir = tempfile::tempdir().unwrap();
        let looped = dir.path().join("vm.json");
        std::os::unix::fs::symlink(&looped, &looped).unwrap();
        let Some(Life::AtRest(Rest::Failed(why))) = without_disk(looped.try_exists()) else {
            panic!("the tenant's disk would be removed")
        };
        assert!(why.contains("neither started nor made anew"), "{why}");
    }

    #[test]
    fn a_golden_too_new_for_its_mac_is_tried_again_after_the_macs_upgrade_and_not_before() {
        let refused = last(VmState::Failed, Some(StopCause::StartFailed), Some(10_006));
        let Rest::Failed(why) = judge(&record(), Some(&refused), "now") else { panic!("it would be started for ever") };
        assert!(why.contains("macOS is too old for its golden: said so (VZErrorDomain code 10006)"), "{why}");
        assert_eq!(judge(&record(), Some(&refused), "later"), Rest::Ready);
    }

    #[test]
    fn what_an_earlier_process_wrote_is_not_taken_for_the_end_of_this_one() {
        let earlier = last(VmState::Stopped, Some(StopCause::Requested), None);
        let record = Record { pid: Some(8), starts: 2, ..record() };
        assert!(matches!(judge(&record, Some(&earlier), "now"), Rest::Failed(_)), "it would be started for ever");
    }

    #[test]
    fn a_vm_that_was_ordered_to_stop_may_start_again_however_it_ended() {
        let record = Record { stopped_by_order: true, ..record() };
        let crashed = last(VmState::Failed, Some(StopCause::Crashed), Some(1));
        assert_eq!(judge(&record, Some(&crashed), "now"), Rest::Ready);
        assert_eq!(judge(&Record::default(), None, "now"), Rest::Ready, "never started");
    }
}
