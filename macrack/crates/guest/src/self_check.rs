//! `macrack-guest report`: what this machine would say as a guest, and what is to be mended before a
//! golden is made of it. For the person in front of it.

use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::disk;
use crate::first_boot::DIRECTORY;
use crate::probe::{Facts, Session};
use crate::readiness;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfCheck {
    /// Who sits at the machine.
    pub session: Session,
    /// What a report would say.
    pub facts: Facts,
    /// The newest Xcode's bundle.
    pub xcode: Option<PathBuf>,
    /// The user who is logged in when it starts; `Err` when that cannot be read.
    pub auto_login: Result<Option<String>, String>,
    /// The readiness command.
    pub ready: ReadyFile,
    /// What first boots of this machine left behind.
    pub left_over: Vec<PathBuf>,
}

/// The golden's readiness command, as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadyFile {
    /// There is none.
    Absent,
    /// It can be run.
    Executable(PathBuf),
    /// It is there and cannot be run.
    NotExecutable(PathBuf),
    /// It cannot be looked at.
    Unreadable(String),
}

#[derive(Deserialize)]
struct LoginWindow {
    #[serde(rename = "autoLoginUser")]
    user: Option<String>,
}

impl SelfCheck {
    /// Looks at the disk mounted at `root`.
    pub fn look(root: &Path, session: Session, facts: Facts) -> Self {
        let directory = root.join(DIRECTORY);
        let left_over = ["first-boot.json", "first-boot.sh", "first-boot.log"].map(|name| directory.join(name));
        SelfCheck {
            session,
            facts,
            xcode: disk::newest_xcode(root).map(|xcode| xcode.app),
            auto_login: auto_login(&root.join("Library/Preferences/com.apple.loginwindow.plist")),
            ready: ready_file(readiness::command(root)),
            left_over: left_over.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect(),
        }
    }

    /// What keeps this machine from being a good golden, each with the way out. Empty when nothing does.
    pub fn findings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut find = |wrong: bool, words: String| found.extend(wrong.then_some(words));
        find(self.facts.os_version.is_none(), "the version of macOS cannot be read".to_owned());
        find(
            self.xcode.is_none(),
            "there is no /Applications/Xcode*.app whose version can be read: a golden holds one Xcode; install it"
                .to_owned(),
        );
        find(
            self.xcode.is_some() && self.facts.first_launch_accepted != Some(true),
            "Xcode's first launch is not done, so the first build would stop at a question: run \
             `sudo xcodebuild -license accept` and `sudo xcodebuild -runFirstLaunch`"
                .to_owned(),
        );
        match &self.auto_login {
            Ok(Some(_)) => {}
            Ok(None) => find(
                true,
                "nobody is logged in when this machine starts, so its clones stay at LoginWindow and never get \
                 Ready: turn on automatic login (System Settings, Users & Groups)"
                    .to_owned(),
            ),
            Err(why) => find(true, format!("whether somebody is logged in at the start cannot be read: {why}")),
        }
        match &self.ready {
            ReadyFile::Absent | ReadyFile::Executable(_) => {}
            ReadyFile::NotExecutable(path) => find(
                true,
                format!("{} is no executable file, so no clone gets Ready: chmod +x it, or remove it", path.display()),
            ),
            ReadyFile::Unreadable(why) => find(true, format!("the readiness command cannot be looked at: {why}")),
        }
        for path in &self.left_over {
            let words = "left over from a first boot of this machine, and may hold a tenant's words: remove it";
            find(true, format!("{}: {words}", path.display()));
        }
        found
    }
}

impl fmt::Display for SelfCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "not known".to_owned();
        let yes = |fact: Option<bool>, yes: &str, no: &str| fact.map_or_else(unknown, |fact| pick(fact, yes, no));
        let facts = &self.facts;
        let addresses: Vec<String> = facts.addresses.iter().map(ToString::to_string).collect();
        let mut xcode = facts.xcode_version.clone().unwrap_or_else(|| "none".to_owned());
        if let Some(app) = &self.xcode {
            write!(xcode, " ({})", app.display())?;
        }
        let ready = match &self.ready {
            ReadyFile::Absent => "none: ready when a user is logged in and the first boot is done".to_owned(),
            ReadyFile::Executable(path) | ReadyFile::NotExecutable(path) => path.display().to_string(),
            ReadyFile::Unreadable(_) => unknown(),
        };
        let session = match self.session {
            Session::None => "none yet",
            Session::LoginWindow => "the login window",
            Session::User => "a user's",
        };
        let rows = [
            ("agent", env!("CARGO_PKG_VERSION").to_owned()),
            ("macOS", facts.os_version.clone().unwrap_or_else(unknown)),
            ("system volume", yes(facts.system_sealed, "sealed", "not sealed")),
            ("Xcode", xcode),
            ("first launch", yes(facts.first_launch_accepted, "done", "not done")),
            ("session", session.to_owned()),
            ("automatic login", self.auto_login.clone().ok().flatten().unwrap_or_else(|| "off".to_owned())),
            ("readiness", ready),
            ("free", facts.disk_free_bytes.map_or_else(unknown, |bytes| format!("{} GB", bytes / 1_000_000_000))),
            ("addresses", if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") }),
        ];
        for (name, value) in rows {
            writeln!(f, "{name:<16} {value}")?;
        }
        let findings = self.findings();
        for finding in &findings {
            writeln!(f, "\nto be mended: {finding}")?;
        }
        if findings.is_empty() {
            writeln!(f, "\nnothing is to be mended: shut down and push it")?;
        }
        Ok(())
    }
}

fn pick(fact: bool, yes: &str, no: &str) -> String {
    if fact { yes } else { no }.to_owned()
}

fn auto_login(path: &Path) -> Result<Option<String>, String> {
    match plist::from_file::<_, LoginWindow>(path) {
        Ok(login_window) => Ok(login_window.user),
        Err(error) if error.as_io().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn ready_file(path: PathBuf) -> ReadyFile {
    match fs::metadata(&path) {
        Ok(file) if readiness::is_executable(&file) => ReadyFile::Executable(path),
        Ok(_) => ReadyFile::NotExecutable(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => ReadyFile::Absent,
        Err(error) => ReadyFile::Unreadable(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LOGIN_WINDOW: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<plist version="1.0"><dict><key>autoLoginUser</key><string>admin</string><key>Other</key><true/></dict></plist>"#;
    const XCODE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<plist version="1.0"><dict><key>CFBundleShortVersionString</key><string>26.1</string></dict></plist>"#;

    fn put(root: &Path, path: &str, text: &str, mode: u32) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn golden() -> (tempfile::TempDir, Facts) {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "Library/Preferences/com.apple.loginwindow.plist", LOGIN_WINDOW, 0o644);
        put(root.path(), "Applications/Xcode.app/Contents/version.plist", XCODE, 0o644);
        put(root.path(), "Library/Application Support/MacRack/ready", "#!/bin/sh", 0o755);
        let facts = Facts {
            os_version: Some("26.1".to_owned()),
            xcode_version: Some("26.1".to_owned()),
            disk_free_bytes: Some(41_999_999_999),
            addresses: vec!["192.168.64.7".parse().unwrap()],
            first_launch_accepted: Some(true),
            system_sealed: Some(true),
        };
        (root, facts)
    }

    #[test]
    fn a_good_golden_has_nothing_to_mend_and_shows_what_it_reports() {
        let (root, facts) = golden();
        let check = SelfCheck::look(root.path(), Session::User, facts);
        assert_eq!(check.findings(), Vec::<String>::new());
        let shown = check.to_string();
        for row in
            ["macOS            26.1\n", "automatic login  admin\n", "free             41 GB\n", "nothing is to be"]
        {
            assert!(shown.contains(row), "{row:?} in\n{shown}");
        }
    }

    #[test]
    fn each_thing_that_keeps_clones_from_ready_is_named_with_the_way_out() {
        type Spoil = fn(&Path, &mut Facts);
        let cases: [(&str, Spoil); 8] = [
            ("version of macOS", |_, facts| facts.os_version = None),
            ("install it", |root, _| fs::remove_dir_all(root.join("Applications")).unwrap()),
            ("-runFirstLaunch", |_, facts| facts.first_launch_accepted = Some(false)),
            ("-runFirstLaunch", |_, facts| facts.first_launch_accepted = None),
            ("turn on automatic login", |root, _| {
                fs::remove_file(root.join("Library/Preferences/com.apple.loginwindow.plist")).unwrap();
            }),
            ("cannot be read", |root, _| {
                put(root, "Library/Preferences/com.apple.loginwindow.plist", "<plist><dict>", 0o644);
            }),
            ("chmod +x", |root, _| put(root, "Library/Application Support/MacRack/ready", "", 0o644)),
            ("left over", |root, _| put(root, "Library/Application Support/MacRack/first-boot.sh", "", 0o700)),
        ];
        for (words, spoil) in cases {
            let (root, mut facts) = golden();
            spoil(root.path(), &mut facts);
            let findings = SelfCheck::look(root.path(), Session::User, facts).findings();
            assert!(findings.len() == 1 && findings[0].contains(words), "{words}: {findings:?}");
        }
    }
}
