//! The journal of one VM: what its tenant may read of it, `kubectl logs` of its placeholder.
//!
//! ```text
//!   2026-03-02T09:00:00.123456789Z vm     the VM runs
//!   2026-03-02T09:00:07.000000001Z boot   installing tools
//! ```
//!
//! It is written by `macrack-vm` alone and read by the agent also while no VM runs. Invariants: a line is added
//! whole, with the time of its arrival; it holds what the VM does, in words, and what the guest's own first-boot
//! script wrote, and nothing else of the host: no path, no process, no other VM. The file never grows past
//! [`MAX_FILE`]: the older half goes first.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use crate::guest::unsayable;

/// The most bytes of a journal.
pub const MAX_FILE: u64 = 4 * 1024 * 1024;
/// The most bytes of one line, its time included; the rest of it begins another.
pub const MAX_LINE: usize = 8 * 1024;

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What becomes of the VM.
    Vm,
    /// The guest's first-boot script.
    FirstBoot,
}

impl Source {
    fn word(self) -> &'static str {
        match self {
            Source::Vm => "vm  ",
            Source::FirstBoot => "boot",
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Journal {
    /// Opens the journal at `path`, making it where there is none, mode 0600.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        Ok(Journal { path: path.to_owned(), file, length })
    }

    /// Bytes that it holds.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Adds `text`, one line or several; an overlong line is broken.
    ///
    /// # Errors
    /// When the operating system refuses; the journal then lacks the line, and nothing else.
    pub fn add(&mut self, now: Timestamp, source: Source, text: &str) -> io::Result<()> {
        let mut lines = String::new();
        for line in text.lines() {
            for piece in pieces(line, MAX_LINE - 64) {
                lines.push_str(&format!("{} {} ", stamp(now), source.word()));
                // a terminal that shows it obeys no command in it, and shows it in the order in which it stands
                lines.extend(piece.chars().filter(|c| !unsayable(*c) || *c == '\t'));
                lines.push('\n');
            }
        }
        if self.length + lines.len() as u64 > MAX_FILE {
            self.shorten()?;
        }
        self.file.write_all(lines.as_bytes())?;
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Drops the older half.
    fn shorten(&mut self) -> io::Result<()> {
        let mut kept = Vec::new();
        let mut old = File::open(&self.path)?;
        old.seek(SeekFrom::Start(self.length / 2))?;
        old.read_to_end(&mut kept)?;
        let whole = kept.iter().position(|byte| *byte == b'\n').map_or(kept.len(), |end| end + 1);
        crate::layout::write_whole(&self.path, &kept[whole..])?;
        *self = Journal::open(&self.path)?;
        Ok(())
    }
}

/// Nine digits after the second, as `kubectl logs --timestamps` prints.
fn stamp(now: Timestamp) -> String {
    format!("{now:.9}")
}

fn pieces(line: &str, most: usize) -> Vec<&str> {
    let (mut rest, mut pieces) = (line, Vec::new());
    while rest.len() > most {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(most));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

/// What is in the journal at `path` from byte `from` on, in whole lines, at most `most` bytes; from its beginning
/// where it is shorter than `from`. Empty where there is none.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read_from(path: &Path, from: u64, most: usize) -> io::Result<(u64, Vec<u8>)> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, Vec::new())),
        other => other?,
    };
    let from = if file.metadata()?.len() < from { 0 } else { from };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    Ok((from, bytes))
}

/// Reads the whole journal at `path`; empty where there is none.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// Which lines are wanted, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only the last so many.
    pub tail: Option<usize>,
    /// Only those that are not older.
    pub since: Option<Timestamp>,
    /// At most so many bytes, from the beginning of what is wanted.
    pub limit: Option<usize>,
    /// With their times.
    pub timestamps: bool,
}

impl Wanted {
    /// `now - seconds`, for "the last so many seconds".
    pub fn last_seconds(now: Timestamp, seconds: i64) -> Timestamp {
        now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN)
    }

    /// The wanted part of the journal's `bytes`, as it is shown.
    pub fn select(&self, bytes: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines: Vec<&str> = text.lines().filter(|line| self.is_new_enough(line)).collect();
        if let Some(tail) = self.tail {
            lines.drain(..lines.len().saturating_sub(tail));
        }
        let mut shown = String::new();
        for line in lines {
            let (time, rest) = line.split_once(' ').unwrap_or(("", line));
            if self.timestamps {
                shown.push_str(time);
                shown.push(' ');
            }
            shown.push_str(rest);
            shown.push('\n');
        }
        let mut shown = shown.into_bytes();
        shown.truncate(self.limit.unwrap_or(usize::MAX));
        shown
    }

    fn is_new_enough(&self, line: &str) -> bool {
        let Some(since) = self.since else { return true };
        let time = line.split(' ').next().and_then(|time| time.parse::<Timestamp>().ok());
        time.is_none_or(|time| time >= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn journal() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.log");
        (dir, path)
    }

    #[test]
    fn lines_are_shown_by_age_number_and_size() {
        let (_dir, path) = journal();
        let mut journal = Journal::open(&path).unwrap();
        journal.add(at(0), Source::Vm, "the VM starts").unwrap();
        journal.add(at(10), Source::FirstBoot, "one\ntwo").unwrap();
        journal.add(at(20), Source::Vm, "\u{1b}[31mthe guest\u{7} is \u{202e}ready").unwrap();
        let bytes = read(&path).unwrap();
        let shown = |wanted: Wanted| String::from_utf8(wanted.select(&bytes)).unwrap();
        let all = Wanted::default();
        assert_eq!(shown(all), "vm   the VM starts\nboot one\nboot two\nvm   [31mthe guest is ready\n");
        assert_eq!(shown(Wanted { tail: Some(2), ..all }), "boot two\nvm   [31mthe guest is ready\n");
        assert_eq!(shown(Wanted { tail: Some(0), ..all }), "");
        let recent = Wanted { since: Some(Wanted::last_seconds(at(21), 11)), ..all };
        assert_eq!(shown(recent), "boot one\nboot two\nvm   [31mthe guest is ready\n");
        assert_eq!(shown(Wanted { limit: Some(6), ..all }), "vm   t");
        let stamped = shown(Wanted { timestamps: true, tail: Some(1), ..all });
        assert!(stamped.starts_with("2027-01-15T08:00:20.000000000Z vm "), "{stamped}");
    }

    #[test]
    fn what_is_added_is_read_on_from_where_one_was() {
        let (_dir, path) = journal();
        assert_eq!(read_from(&path, 7, 100).unwrap(), (0, Vec::new()));
        let mut journal = Journal::open(&path).unwrap();
        journal.add(at(0), Source::Vm, "a").unwrap();
        let first = journal.length();
        journal.add(at(1), Source::Vm, "b").unwrap();
        let (from, bytes) = read_from(&path, first, MAX_LINE).unwrap();
        assert_eq!(from, first);
        assert!(bytes.ends_with(b" b\n") && bytes.len() as u64 == first);
        assert_eq!(read_from(&path, journal.length(), MAX_LINE).unwrap(), (journal.length(), Vec::new()));
        // a journal that is shorter than what was known was begun anew
        assert_eq!(read_from(&path, 1 << 40, MAX_LINE).unwrap().0, 0);
    }

    #[test]
    fn a_journal_never_outgrows_its_bound_and_keeps_the_newest_whole_lines() {
        let (_dir, path) = journal();
        let mut journal = Journal::open(&path).unwrap();
        let line = "x".repeat(MAX_LINE * 3);
        for n in 0..400 {
            journal.add(at(n), Source::FirstBoot, &format!("{n} {line}")).unwrap();
            assert!(journal.length() <= MAX_FILE);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), journal.length());
        let bytes = read(&path).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.lines().all(|line| line.len() <= MAX_LINE && line.starts_with("2027-")));
        assert!(text.contains(" 399 x") && !text.contains(" 0 x"));
    }
}
