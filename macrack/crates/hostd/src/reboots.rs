//! Which approvals were used: `reboots.json`.
//!
//! Invariants: an approval is on the disk as used before its reboot begins, and is given back only when the operating
//! system said that no reboot has begun. Whoever asks and whatever is said to be approved, no more than [`MOST`] reboots
//! begin within [`SPAN`]: nobody can sign an approval here, so a number is what root can hold by itself.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use macrack_wire::Refusal;
use macrack_wire::layout::{read_json, write_json};
use macrack_wire::message::RefusalKind;
use serde::{Deserialize, Serialize};

/// A request may be so far ahead of this host's clock: clocks differ, by less than a day.
const FARTHEST: SignedDuration = SignedDuration::from_hours(24);

/// Reboots that begin within [`SPAN`] at most. The operator's policy approves one for a Mac in that time, so three are
/// left to admins; one who needs more stands at the Mac anyway.
pub const MOST: usize = 4;
/// The time over which reboots are counted.
pub const SPAN: SignedDuration = SignedDuration::from_hours(24);

/// Reboots whose times are kept: more than count, for whoever looks into them later, and the log can be filled.
const KEPT: usize = 32;

/// The note on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Used {
    /// The latest approval that was used.
    #[serde(default)]
    requested_at: Option<Timestamp>,
    /// When, by the host's clock.
    #[serde(default)]
    at: Option<Timestamp>,
    /// When the last reboots began, at most [`KEPT`], the latest last.
    #[serde(default)]
    begun: Vec<Timestamp>,
}

impl Used {
    /// What is noted, with what an earlier release has.
    fn begun(&self) -> Vec<Timestamp> {
        if self.begun.is_empty() { self.at.into_iter().collect() } else { self.begun.clone() }
    }

    /// The reboots that count at `now`. One whose time is a day and more away in either direction is of a clock that was
    /// wrong then or is now, and must not keep a Mac from its reboot for years.
    fn counted(&self, now: Timestamp) -> Vec<Timestamp> {
        self.begun().into_iter().filter(|begun| now.duration_since(*begun).abs() < SPAN).collect()
    }

    /// With a reboot that begins now.
    fn with(&self, requested_at: Timestamp, now: Timestamp) -> Used {
        let mut begun = self.begun();
        begun.push(now);
        begun.drain(..begun.len().saturating_sub(KEPT));
        Used { requested_at: Some(requested_at), at: Some(now), begun }
    }
}

/// The used approvals.
#[derive(Debug)]
pub struct Reboots {
    file: PathBuf,
}

impl Reboots {
    /// Those noted in `file`.
    pub fn new(file: PathBuf) -> Self {
        Reboots { file }
    }

    /// Uses the approval `requested_at` for `reboot`.
    ///
    /// Approvals are ordered by their time, so one older than the last that was used is stale, not new.
    ///
    /// # Errors
    /// Refused when it was used before, when too many reboots have begun lately, when the notes cannot be read or written,
    /// or when `reboot` failed.
    pub fn once(
        &self,
        requested_at: Timestamp,
        now: Timestamp,
        reboot: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), Refusal> {
        let before = self.read()?;
        self.judge(&before, requested_at, now)?;
        self.write(&before.with(requested_at, now))?;
        reboot().map_err(|error| {
            // no reboot has begun: the approval is still good
            if let Err(kept) = self.write(&before) {
                tracing::error!(error = %kept.message, "an approval that was not used stays noted as used");
            }
            Refusal::denied(format!("the reboot could not begin: {error}"))
        })
    }

    /// Whether the approval `requested_at` is good at `now`, after what is noted.
    fn judge(&self, before: &Used, requested_at: Timestamp, now: Timestamp) -> Result<(), Refusal> {
        let ahead = requested_at.duration_since(now);
        if ahead > FARTHEST {
            return Err(Refusal::denied(format!(
                "the reboot requested at {requested_at} lies more than {} h ahead of this host's clock ({now}), and once \
                 used would make every later request stale; set the clock, or request it again",
                FARTHEST.as_hours()
            )));
        }
        if let Some(last) = before.requested_at
            && requested_at <= last
        {
            let at = before.at.map(|at| format!(" at {at}")).unwrap_or_default();
            let message = match requested_at == last {
                true => format!(
                    "the approval of the reboot requested at {requested_at} was used{at}; another reboot needs \
                     another request"
                ),
                false => format!(
                    "the reboot requested at {requested_at} is stale: that of {last} was done{at}. If {last} is \
                     wrong, remove {} as root",
                    self.file.display()
                ),
            };
            return Err(Refusal::new(RefusalKind::Repeated, message));
        }
        let counted = before.counted(now);
        if let Some(first) = counted.iter().min().filter(|_| counted.len() >= MOST) {
            return Err(Refusal::denied(format!(
                "{} reboots of this Mac were begun within {} h, and no more are, approved or not: the next one at {}, with \
                 the same approval; somebody at the Mac can reboot it before",
                counted.len(),
                SPAN.as_hours(),
                *first + SPAN
            )));
        }
        Ok(())
    }

    fn read(&self) -> Result<Used, Refusal> {
        match read_json(&self.file) {
            Ok(used) => Ok(used),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Used::default()),
            Err(error) => Err(Refusal::denied(format!(
                "which approvals were used cannot be read, so none is: {error}. Mend or remove the file as root"
            ))),
        }
    }

    fn write(&self, used: &Used) -> Result<(), Refusal> {
        let write = || {
            write_json(&self.file, used)?;
            // the name must outlive the reboot that follows at once
            self.file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
        };
        write().map_err(|error| Refusal::denied(format!("the use of the approval cannot be noted: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_approval_is_used_once_also_by_a_later_life_and_an_older_one_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("reboots.json");
        let mut begun = 0;
        let mut ask = |second| {
            Reboots::new(file.clone()).once(at(second), at(100), || {
                begun += 1;
                Ok(())
            })
        };
        assert_eq!(ask(10), Ok(()));
        let again = ask(10).unwrap_err();
        assert_eq!(again.kind, RefusalKind::Repeated);
        assert!(again.message.contains("was used at 1970-01-01T00:01:40Z"), "{again}");
        let stale = ask(9).unwrap_err();
        assert!(stale.kind == RefusalKind::Repeated && stale.message.contains("is stale"), "{stale}");
        assert_eq!(ask(11), Ok(()));
        assert_eq!(begun, 2);
    }

    #[test]
    fn a_request_from_the_far_future_cannot_make_all_later_ones_stale() {
        let dir = tempfile::tempdir().unwrap();
        let reboots = Reboots::new(dir.path().join("reboots.json"));
        let day = 24 * 3600;
        let refused = reboots.once(at(100 + day + 1), at(100), || panic!("it rebooted")).unwrap_err();
        assert!(refused.message.contains("more than 24 h ahead"), "{refused}");
        assert_eq!(reboots.once(at(50), at(100), || Ok(())), Ok(()), "nothing was noted");
        assert_eq!(reboots.once(at(100 + day), at(100), || Ok(())), Ok(()), "a day ahead is not too far");
    }

    #[test]
    fn the_use_is_on_the_disk_before_the_reboot_begins() {
        let dir = tempfile::tempdir().unwrap();
        let reboots = Reboots::new(dir.path().join("reboots.json"));
        let looked = reboots.once(at(10), at(100), || {
            assert_eq!(reboots.read().unwrap().requested_at, Some(at(10)), "a crash here would reboot twice");
            Ok(())
        });
        assert_eq!(looked, Ok(()));
    }

    #[test]
    fn an_approval_whose_reboot_could_not_begin_is_still_good() {
        let dir = tempfile::tempdir().unwrap();
        let reboots = Reboots::new(dir.path().join("reboots.json"));
        let failed = reboots.once(at(10), at(100), || Err(io::Error::other("no power"))).unwrap_err();
        assert!(failed.kind == RefusalKind::Denied && failed.message.contains("no power"), "{failed}");
        assert_eq!(reboots.once(at(10), at(100), || Ok(())), Ok(()));
    }

    #[test]
    fn no_more_than_four_begin_within_a_day_whatever_is_said_to_be_approved() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("reboots.json");
        let mut begun = 0;
        let mut ask = |requested, now| {
            Reboots::new(file.clone()).once(at(requested), at(now), || {
                begun += 1;
                Ok(())
            })
        };
        for n in 1..=4 {
            assert_eq!(ask(n, 1000 * n), Ok(()));
        }
        let day = SPAN.as_secs();
        for (requested, now) in [(5, 4001), (6, 999 + day)] {
            let refused = ask(requested, now).unwrap_err();
            assert_eq!(refused.kind, RefusalKind::Denied, "the approval is not used up");
            assert!(refused.message.contains("4 reboots of this Mac were begun within 24 h"), "{refused}");
            assert!(refused.message.contains("the next one at 1970-01-02T00:16:40Z"), "{refused}");
        }
        assert_eq!(ask(5, 1000 + day), Ok(()), "the first of them counts no more");
        assert!(ask(6, 1001 + day).is_err(), "the others do");
        // a clock that ran years ahead for a while
        let years = 20 * 365 * day;
        assert_eq!(ask(6, years), Ok(()));
        assert_eq!(ask(7, 3000 + day), Ok(()));
        assert_eq!(begun, 7);
    }

    #[test]
    fn what_could_not_begin_does_not_count_and_what_an_earlier_release_noted_does() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("reboots.json");
        std::fs::write(&file, r#"{"requestedAt": "1970-01-01T00:00:01Z", "at": "1970-01-01T00:00:02Z"}"#).unwrap();
        let reboots = Reboots::new(file);
        for n in 10..20 {
            reboots.once(at(n), at(100), || Err(io::Error::other("no power"))).unwrap_err();
        }
        for n in 20..23 {
            assert_eq!(reboots.once(at(n), at(100), || Ok(())), Ok(()));
        }
        assert!(reboots.once(at(23), at(100), || panic!("a fifth")).unwrap_err().message.contains("4 reboots"));
    }

    #[test]
    fn notes_that_cannot_be_read_allow_no_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("reboots.json");
        std::fs::write(&file, "{").unwrap();
        let refused = Reboots::new(file).once(at(10), at(100), || panic!("it rebooted")).unwrap_err();
        assert!(refused.message.contains("reboots.json") && refused.message.contains("as root"), "{refused}");
    }
}
