//! What `macrack-guest` asks of the machine that it runs on.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use tokio::sync::watch;

/// Who sits at the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Session {
    /// The login window does not stand yet.
    None,
    /// The login window stands, nobody is logged in.
    LoginWindow,
    /// A user is logged in.
    User,
}

/// What is true of the machine at the moment of asking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The version of macOS.
    pub os_version: Option<String>,
    /// The version of the newest Xcode.
    pub xcode_version: Option<String>,
    /// Free bytes of the data volume.
    pub disk_free_bytes: Option<u64>,
    /// Addresses that are neither loopback nor link-local.
    pub addresses: Vec<IpAddr>,
}

/// The machine, as far as this program needs it.
pub trait Probe: Send + Sync + 'static {
    /// The session, and a wake-up for each change of it. Ends when the machine goes down.
    fn sessions(&self) -> watch::Receiver<Session>;

    /// The facts of this moment; cheap enough to be asked every few seconds.
    fn facts(&self) -> Facts;

    /// How a script is started on this machine; output and input are set by the caller. `text` is the
    /// script's own text, which may name its interpreter.
    fn script(&self, path: &Path, text: &str) -> Command;

    /// Begins an orderly shutdown of the machine; returns when it has begun.
    fn shut_down(&self) -> io::Result<()>;
}

/// A command for a script by its own `#!` line, or by `/bin/sh` where it has none.
pub fn by_interpreter(path: &Path, text: &str) -> Command {
    if text.starts_with("#!") {
        Command::new(path)
    } else {
        let mut command = Command::new("/bin/sh");
        command.arg(path);
        command
    }
}
