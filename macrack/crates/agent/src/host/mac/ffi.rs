//! Two calls of the system's libraries, for what no tool tells without asking a person or root.
//!
//! Not yet run on hardware.
#![allow(unsafe_code, reason = "calls of C")]

use std::ffi::{c_char, c_void};
use std::io;

/// `kSecUnlockStateStatus` of SecKeychain.h.
const UNLOCKED: u32 = 1;
/// `RTLD_DEFAULT` of Darwin's dlfcn.h: every library that is loaded.
const EVERYWHERE: *mut c_void = std::ptr::without_provenance_mut(-2_isize as usize);

#[link(name = "Security", kind = "framework")]
unsafe extern "C" {
    fn SecKeychainGetStatus(keychain: *const c_void, status: *mut u32) -> i32;
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// Whether the default keychain of this user, which is the login keychain, is unlocked. `security
/// show-keychain-info` would put a dialog on the screen for a locked one.
///
/// # Errors
/// When the keychain does not say.
pub(super) fn keychain_unlocked() -> io::Result<bool> {
    let mut status = 0;
    // SAFETY: null names the default keychain, and `status` outlives the call
    let answer = unsafe { SecKeychainGetStatus(std::ptr::null(), &raw mut status) };
    match answer {
        0 => Ok(status & UNLOCKED != 0),
        code => Err(io::Error::other(format!("SecKeychainGetStatus answers {code}"))),
    }
}

/// The process that macOS holds responsible for `pid`; `None` when it does not say. The function is not documented by
/// Apple, so a macOS without it must not keep this program from starting.
pub(super) fn responsible(pid: u32) -> Option<u32> {
    let pid = i32::try_from(pid).ok()?;
    // SAFETY: a name that ends with NUL, sought in what is loaded
    let found = unsafe { dlsym(EVERYWHERE, c"responsibility_get_pid_responsible_for_pid".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: `pid_t responsibility_get_pid_responsible_for_pid(pid_t)` of libquarantine
    let ask: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(found) };
    u32::try_from(ask(pid)).ok().filter(|responsible| *responsible > 0)
}
