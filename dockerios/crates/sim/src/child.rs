//! Processes that end with the simulator, even when it is killed.

use rustix::process::Signal;
use tokio::process::Command;

/// Has the kernel kill the process when the thread that starts it ends: a worker of the runtime, so with the runtime.
#[allow(unsafe_code)]
pub(crate) fn dies_with_us(command: &mut Command) -> &mut Command {
    let simulator = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // it may have ended before this was asked for
        match rustix::process::getppid() {
            Some(parent) if parent == simulator => Ok(()),
            _ => Err(std::io::Error::from(rustix::io::Errno::SRCH)),
        }
    };
    // SAFETY: what runs between fork and exec are three system calls; nothing is allocated and no lock is taken.
    unsafe { command.kill_on_drop(true).pre_exec(arm) }
}
