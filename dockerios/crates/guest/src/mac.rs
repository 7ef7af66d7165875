//! Looks at a Mac with what every macOS has. Invariant: reads only; what fails or does not end leaves its value as it
//! was, with a trouble for the log.
//!
//! | fact | from |
//! |---|---|
//! | stage | the owner of `/dev/console`, and whether `loginwindow` runs |
//! | system version | `SystemVersion.plist` |
//! | programs | `version.plist`, else `Info.plist`, of the bundles that were asked for |
//! | disk | the data volume, `/System/Volumes/Data` |
//! | serial | `ioreg`, class `IOPlatformExpertDevice` |
//! | UUID | `ioreg`, `system-id` of `IODeviceTree:/efi/platform` |
//! | boot | `kern.bootsessionuuid` |
//!
//! `IOPlatformUUID`, the "Hardware UUID" of System Information, is another: macOS computes it. `system-id` is what
//! OpenCore hands over, byte by byte the SystemUUID of its configuration, and so the identity's.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use dockerios_wire::Stage;
use tokio::time::Instant;

use crate::{
    facts::{Facts, Probe, Seen, cut},
    lists,
    programs::{self, Wanted},
};

/// Users that log in have at least this uid (macOS gives out 501 first).
const FIRST_USER: u32 = 501;
/// What seldom changes is looked at this often.
const SLOW: Duration = Duration::from_secs(60);
/// Time for one tool.
const PATIENCE: Duration = Duration::from_secs(10);
/// The data volume: what a user's files and programs are on, and what fills up.
const DATA: &str = "/System/Volumes/Data";
const SYSTEM_VERSION: &str = "/System/Library/CoreServices/SystemVersion.plist";
const IOREG: &str = "/usr/sbin/ioreg";

/// Looks at the Mac it runs on.
#[derive(Debug)]
pub struct MacProbe {
    root: PathBuf,
    wanted: Vec<Wanted>,
    last: Facts,
    slow_at: Option<Instant>,
    slow_troubles: Vec<String>,
}

impl MacProbe {
    /// For this system.
    #[must_use]
    pub fn new(wanted: Vec<Wanted>) -> Self {
        Self::under(PathBuf::from("/"), wanted)
    }

    /// For a system whose files and tools are under `root`.
    #[must_use]
    pub fn under(root: PathBuf, wanted: Vec<Wanted>) -> Self {
        Self {
            root,
            wanted,
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

    async fn printed(&self, program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let output = self.tool(program, arguments).await?;
        if !output.status.success() {
            return Err(format!("{program}: {}", output.status));
        }
        Ok(output.stdout)
    }

    /// Entries of the registry, without those below them.
    async fn registry(&self, which: &[&str]) -> Result<Vec<plist::Dictionary>, String> {
        let arguments = [&["-a", "-r", "-d", "1"], which].concat();
        let printed = self.printed(IOREG, &arguments).await?;
        lists::printed(&printed).map_err(|e| format!("{IOREG}: {e}"))
    }

    async fn serial(&self) -> Result<String, String> {
        let experts = self.registry(&["-c", "IOPlatformExpertDevice"]).await?;
        let serial = experts
            .iter()
            .find_map(|expert| lists::text(expert, "IOPlatformSerialNumber"));
        serial
            .map(|serial| cut(&serial))
            .ok_or_else(|| format!("{IOREG}: shows no IOPlatformSerialNumber"))
    }

    async fn system_uuid(&self) -> Result<String, String> {
        let platforms = self.registry(&["-p", "IODeviceTree", "-n", "platform"]).await?;
        let id = platforms
            .iter()
            .find_map(|platform| <[u8; 16]>::try_from(platform.get("system-id")?.as_data()?).ok());
        id.map(uuid)
            .ok_or_else(|| format!("{IOREG}: IODeviceTree:/efi/platform shows no system-id"))
    }

    async fn boot(&self) -> Result<String, String> {
        let printed = self
            .printed("/usr/sbin/sysctl", &["-n", "kern.bootsessionuuid"])
            .await?;
        let id = cut(String::from_utf8_lossy(&printed).trim());
        Some(id)
            .filter(|id| !id.is_empty())
            .ok_or_else(|| "/usr/sbin/sysctl: kern.bootsessionuuid is empty".to_owned())
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
        let about = rustix::fs::statvfs(self.at(DATA)).map_err(|e| format!("{DATA}: {e}"))?;
        let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
        Ok((bytes(about.f_bavail), bytes(about.f_blocks)))
    }

    fn system_version(&self) -> Result<Option<String>, String> {
        let list = lists::dictionary(&self.at(SYSTEM_VERSION))?;
        Ok(lists::text(&list, "ProductVersion").map(|version| cut(&version)))
    }

    /// What costs processes and seldom changes.
    async fn look_slowly(&mut self) {
        let mut troubles = Vec::new();
        match self.system_version() {
            Ok(version) => self.last.os_version = version,
            Err(e) => troubles.push(e),
        }
        match self.serial().await {
            Ok(serial) => self.last.serial = Some(serial),
            Err(e) => troubles.push(e),
        }
        match self.system_uuid().await {
            Ok(uuid) => self.last.system_uuid = Some(uuid),
            Err(e) => troubles.push(e),
        }
        match self.boot().await {
            Ok(id) => self.last.boot_id = Some(id),
            Err(e) => troubles.push(e),
        }
        self.last.software = programs::versions(Path::new(&self.root), &self.wanted, &mut troubles);
        self.slow_troubles = troubles;
        self.slow_at = Some(Instant::now());
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

/// The bytes in the order in which they stand, as RFC 4122 writes them: OpenCore keeps them so for Apple's sake.
fn uuid(id: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02X}"));
    }
    text
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
    fn a_system_id_is_written_in_the_order_of_its_bytes() {
        let id = std::array::from_fn(|at| 0x10 + at as u8);
        assert_eq!(uuid(id), "10111213-1415-1617-1819-1A1B1C1D1E1F");
    }
}
