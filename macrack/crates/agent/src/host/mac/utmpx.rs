//! The system's accounting of boots and shutdowns, `getutxent(3)`; shutdown(8) and reboot(8) log there before anything ends.
//!
//! Not yet run on hardware.
#![allow(unsafe_code, reason = "calls of C")]

use std::io;
use std::sync::{Mutex, PoisonError};

/// The newest records, in seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Logged {
    /// Of a boot.
    pub(super) boot: Option<i64>,
    /// Of a shutdown.
    pub(super) shutdown: Option<i64>,
}

/// Reads them.
///
/// # Errors
/// When there is no record at all: the boot itself is always one.
pub(super) fn newest() -> io::Result<Logged> {
    // the place in the file is one for the whole process
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut logged = Logged::default();
    let mut records = 0_usize;
    // SAFETY: nobody else in this process reads the file, as the lock says
    unsafe { libc::setutxent() };
    loop {
        // SAFETY: as above
        let record = unsafe { libc::getutxent() };
        // SAFETY: null at the end, else a record that stands until the next call
        let Some(record) = (unsafe { record.as_ref() }) else { break };
        records += 1;
        let at = record.ut_tv.tv_sec;
        match record.ut_type {
            libc::BOOT_TIME => logged.boot = logged.boot.max(Some(at)),
            libc::SHUTDOWN_TIME => logged.shutdown = logged.shutdown.max(Some(at)),
            _ => {}
        }
    }
    // SAFETY: as above
    unsafe { libc::endutxent() };
    match records {
        0 => Err(io::Error::other("utmpx holds no record, not even of the boot")),
        _ => Ok(logged),
    }
}
