//! The seam to the power of the machine.

use std::io;

/// Reboots the machine.
pub trait Power: Send + Sync + 'static {
    /// Begins a reboot. `Ok` means that it is under way, an error that it is not.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn reboot(&self) -> io::Result<()>;
}

/// A Mac.
#[cfg(target_os = "macos")]
#[derive(Debug)]
pub struct Mac;

#[cfg(target_os = "macos")]
impl Power for Mac {
    fn reboot(&self) -> io::Result<()> {
        // shutdown(8) asks launchd for an orderly restart, in which jobs get their SIGTERM. It goes on in a child of its own,
        // which would keep pipes open to the end: so it gets none, and its words stand in the log of this job
        let status = std::process::Command::new("/sbin/shutdown")
            .args(["-r", "now"])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .status()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("/sbin/shutdown -r now: {status}; /var/log/macrack-hostd.log says why")))
    }
}

/// A simulated chassis.
#[cfg(all(feature = "sim", target_os = "linux"))]
#[derive(Debug)]
pub struct Simulated {
    /// Its state directory.
    pub state_dir: std::path::PathBuf,
}

#[cfg(all(feature = "sim", target_os = "linux"))]
impl Power for Simulated {
    fn reboot(&self) -> io::Result<()> {
        macrack_vm::sim::Chassis::open(&self.state_dir)?.reboot()
    }
}
