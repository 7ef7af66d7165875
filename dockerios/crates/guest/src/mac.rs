//! Looks at a Mac with what every macOS has. Invariant: reads only; a tool that fails or does not end leaves its
//! value as it was, with a trouble for the log.
//!
//! | fact | from |
//! |---|---|
//! | stage | the owner of `/dev/console`, and whether `loginwindow` runs |
//! | system version | `SystemVersion.plist` |
//! | programs | `version.plist`, else `Info.plist`, of the bundles that were asked for |
//! | disk | the data volume, `/System/Volumes/Data` |
//! | serial (and UUID, if asked) | `ioreg`, class `IOPlatformExpertDevice` |
//! | boot | `kern.bootsessionuuid` |

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    str::FromStr,
    time::Duration,
};

use dockerios_wire::{Report, Software, Stage};
use tokio::time::Instant;

use crate::{
    facts::{Facts, Probe, Seen},
    plist,
};

/// Users that log in have at least this uid (macOS gives out 501 first).
const FIRST_USER: u32 = 501;
/// What seldom changes is looked at this often.
const SLOW: Duration = Duration::from_secs(60);
/// Time for one tool.
const PATIENCE: Duration = Duration::from_secs(10);

/// A program whose version is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What it is called in the report.
    pub name: String,
    /// Directory of the bundles.
    pub directory: PathBuf,
    /// The bundle's name before and behind the `*`; without a `*` all of it stands before.
    pub stem: (String, Option<String>),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write NAME=/absolute/path/Bundle*.app; a * may stand once, in the last part";
        let (name, pattern) = text.split_once('=').ok_or_else(|| format!("no `=` in it; {form}"))?;
        let path = Path::new(pattern);
        let (Some(directory), Some(bundle)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
            return Err(format!("names no bundle; {form}"));
        };
        if !(1..=64).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(format!("the name has 1 to 64 printable characters; {form}"));
        }
        if !path.is_absolute() || directory.to_string_lossy().contains('*') || bundle.matches('*').count() > 1 {
            return Err(form.to_owned());
        }
        let stem = match bundle.split_once('*') {
            Some((before, behind)) => (before.to_owned(), Some(behind.to_owned())),
            None => (bundle.to_owned(), None),
        };
        Ok(Self {
            name: name.to_owned(),
            directory: directory.to_owned(),
            stem,
        })
    }
}

impl Wanted {
    fn fits(&self, bundle: &str) -> bool {
        match &self.stem {
            (all, None) => bundle == all,
            (before, Some(behind)) => {
                bundle.len() >= before.len() + behind.len() && bundle.starts_with(before) && bundle.ends_with(behind)
            }
        }
    }
}

/// Looks at the Mac it runs on.
#[derive(Debug)]
pub struct MacProbe {
    root: PathBuf,
    wanted: Vec<Wanted>,
    with_uuid: bool,
    last: Facts,
    slow_at: Option<Instant>,
    slow_troubles: Vec<String>,
}

impl MacProbe {
    /// `with_uuid`: also report the hardware UUID. Whether macOS shows the firmware's UUID unchanged depends on how it
    /// was booted, so it is not compared unless asked.
    #[must_use]
    pub fn new(wanted: Vec<Wanted>, with_uuid: bool) -> Self {
        Self::under(PathBuf::from("/"), wanted, with_uuid)
    }

    /// For a system whose files and tools are under `root`.
    #[must_use]
    pub fn under(root: PathBuf, wanted: Vec<Wanted>, with_uuid: bool) -> Self {
        Self {
            root,
            wanted,
            with_uuid,
            last: Facts::default(),
            slow_at: None,
            slow_troubles: Vec::new(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    async fn tool(&self, program: &str, arguments: &[&str]) -> Result<std::process::Output, String> {
        let child = tokio::process::Command::new(self.at(program))
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(PATIENCE, child).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(e)) => Err(format!("{program}: cannot be run: {e}")),
            Err(_) => Err(format!("{program}: did not end within {} s", PATIENCE.as_secs())),
        }
    }

    async fn printed(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let output = self.tool(program, arguments).await?;
        if !output.status.success() {
            return Err(format!("{program}: {}", output.status));
        }
        String::from_utf8(output.stdout).map_err(|_| format!("{program}: printed no text"))
    }

    /// The strings of a property list in either of its forms.
    async fn list(&self, path: &Path) -> Result<HashMap<String, String>, String> {
        let file = path.to_string_lossy();
        let xml = self
            .printed("/usr/bin/plutil", &["-convert", "xml1", "-o", "-", &file])
            .await?;
        plist::strings(&xml).map_err(|e| format!("{file}: {e}"))
    }

    async fn stage(&self) -> Result<Stage, String> {
        let console = fs::metadata(self.at("/dev/console"))
            .map_err(|e| format!("/dev/console: {e}"))?
            .uid();
        let found = self.tool("/usr/bin/pgrep", &["-x", "loginwindow"]).await?;
        // pgrep: 0 found, 1 none, else an error
        match found.status.code() {
            Some(0) => Ok(stage_of(console, true)),
            Some(1) => Ok(stage_of(console, false)),
            _ => Err(format!("/usr/bin/pgrep: {}", found.status)),
        }
    }

    fn disk(&self) -> Result<(u64, u64), String> {
        let path = self.at("/System/Volumes/Data");
        let about = rustix::fs::statvfs(&path).map_err(|e| format!("/System/Volumes/Data: {e}"))?;
        let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
        Ok((bytes(about.f_bavail), bytes(about.f_blocks)))
    }

    /// What costs processes and seldom changes.
    async fn look_slowly(&mut self) {
        let mut troubles = Vec::new();
        let system = self.at("/System/Library/CoreServices/SystemVersion.plist");
        match self.list(&system).await {
            Ok(mut strings) => self.last.os_version = strings.remove("ProductVersion").map(|v| cut(&v)),
            Err(e) => troubles.push(e),
        }
        let arguments = ["-a", "-r", "-d", "1", "-c", "IOPlatformExpertDevice"];
        let platform = self.printed("/usr/sbin/ioreg", &arguments).await;
        match platform.and_then(|xml| plist::strings(&xml).map_err(|e| format!("/usr/sbin/ioreg: {e}"))) {
            Ok(mut strings) => {
                self.last.serial = strings.remove("IOPlatformSerialNumber").map(|v| cut(&v));
                self.last.system_uuid = strings
                    .remove("IOPlatformUUID")
                    .filter(|_| self.with_uuid)
                    .map(|v| cut(&v));
            }
            Err(e) => troubles.push(e),
        }
        match self.printed("/usr/sbin/sysctl", &["-n", "kern.bootsessionuuid"]).await {
            Ok(id) => self.last.boot_id = Some(cut(id.trim())),
            Err(e) => troubles.push(e),
        }
        self.last.software = self.programs(&mut troubles).await;
        self.slow_troubles = troubles;
        self.slow_at = Some(Instant::now());
    }

    async fn programs(&self, troubles: &mut Vec<String>) -> Vec<Software> {
        let mut found: Vec<Software> = Vec::new();
        for wanted in &self.wanted {
            let bundles = bundles(&self.at(&wanted.directory.to_string_lossy()), wanted);
            let several = bundles.len() > 1;
            for bundle in bundles {
                let name = match bundle.file_stem() {
                    Some(stem) if several => cut(&format!("{} ({})", wanted.name, stem.to_string_lossy())),
                    _ => wanted.name.clone(),
                };
                match self.version(&bundle).await {
                    Ok(version) if found.iter().all(|s| s.name != name) => found.push(Software { name, version }),
                    Ok(_) => troubles.push(format!("{}: a second program with the name {name}", bundle.display())),
                    Err(e) => troubles.push(e),
                }
            }
        }
        if found.len() > Report::MOST_SOFTWARE {
            troubles.push(format!(
                "{} programs; the first {} are reported",
                found.len(),
                Report::MOST_SOFTWARE
            ));
            found.truncate(Report::MOST_SOFTWARE);
        }
        found
    }

    async fn version(&self, bundle: &Path) -> Result<String, String> {
        let own = bundle.join("Contents/version.plist");
        let list = if own.exists() {
            own
        } else {
            bundle.join("Contents/Info.plist")
        };
        let mut strings = self.list(&list).await?;
        let version = strings.remove("CFBundleShortVersionString").map(|v| cut(&v));
        version
            .filter(|v| !v.is_empty())
            .ok_or_else(|| format!("{}: names no version", list.display()))
    }
}

impl Probe for MacProbe {
    async fn look(&mut self) -> Seen {
        if self.slow_at.is_none_or(|at| at.elapsed() >= SLOW) {
            self.look_slowly().await;
        }
        let mut troubles = self.slow_troubles.clone();
        match self.stage().await {
            Ok(stage) => self.last.stage = stage,
            Err(e) => troubles.push(e),
        }
        match self.disk() {
            Ok((free, total)) => (self.last.disk_free, self.last.disk_total) = (Some(free), Some(total)),
            Err(e) => troubles.push(e),
        }
        Seen {
            facts: self.last.clone(),
            troubles,
        }
    }
}

/// The login window belongs to root; a session to whoever logged in; in between, and in the set-up assistant, neither.
fn stage_of(console_owner: u32, login_window: bool) -> Stage {
    match console_owner {
        FIRST_USER.. => Stage::UserSession,
        0 if login_window => Stage::LoginWindow,
        _ => Stage::AgentStarting,
    }
}

/// The bundles that are there, by name. A directory that is not there has none.
fn bundles(directory: &Path, wanted: &Wanted) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let fitting = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|name| wanted.fits(name)));
    let mut found: Vec<PathBuf> = fitting.map(|e| e.path()).collect();
    found.sort();
    found
}

/// What the protocol takes: at most 64 bytes without control characters.
fn cut(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    plain[..plain.floor_char_boundary(64)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_s_owner_tells_the_stage() {
        for (owner, login_window, stage) in [
            (0, false, Stage::AgentStarting),
            (0, true, Stage::LoginWindow),
            (248, true, Stage::AgentStarting),
            (501, true, Stage::UserSession),
            (502, false, Stage::UserSession),
        ] {
            assert_eq!(
                stage_of(owner, login_window),
                stage,
                "uid {owner}, loginwindow {login_window}"
            );
        }
    }

    #[test]
    fn wanted_programs_are_parsed_and_matched() {
        let wanted: Wanted = "Tool=/Applications/Tool*.app".parse().expect("a program");
        assert!(wanted.fits("Tool.app") && wanted.fits("Tool-16.4.app"));
        assert!(!wanted.fits("Toolbox") && !wanted.fits("My Tool.app") && !wanted.fits("Tool.ap"));
        let exact: Wanted = "Tool=/Applications/Tool.app".parse().expect("a program");
        assert!(exact.fits("Tool.app") && !exact.fits("Tool-16.4.app"));
        for text in [
            "Tool",
            "=/A/b.app",
            "T=b.app",
            "T=/A*/b.app",
            "T=/A/*b*.app",
            "T=/",
            "T=",
        ] {
            let said = text.parse::<Wanted>().expect_err(text);
            assert!(said.contains("write NAME=/absolute/path"), "{said}");
        }
    }

    #[test]
    fn what_a_tool_prints_is_cut_to_what_the_protocol_takes() {
        assert_eq!(cut("15.6\n\u{7}"), "15.6");
        assert_eq!(cut(&"é".repeat(50)).len(), 64);
    }
}
