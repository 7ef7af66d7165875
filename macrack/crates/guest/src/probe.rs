//! What `macrack-guest` asks of the machine that it runs on.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

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
    /// Whether Xcode needs no further step before its first use; `None` without Xcode and until it is known.
    pub first_launch_accepted: Option<bool>,
    /// Whether the system volume is the one that Apple sealed; `None` until it is known.
    pub system_sealed: Option<bool>,
}

/// The machine, as far as this program needs it.
pub trait Probe: Send + Sync + 'static {
    /// The session, and a wake-up for each change of it. Ends when the machine goes down.
    fn sessions(&self) -> watch::Receiver<Session>;

    /// The facts of this moment; cheap enough to be asked every few seconds.
    fn facts(&self) -> Facts;

    /// What tells this machine from every other clone of the same disk, and stays over its restarts.
    fn machine(&self) -> io::Result<String>;

    /// `program` as the user who is logged in would start it; output and input are set by the caller.
    /// An error when nobody is.
    fn as_user(&self, program: Command) -> io::Result<Command>;

    /// Gives a file of this program to the user who is logged in, who is to run it.
    fn hand_over(&self, path: &Path) -> io::Result<()>;

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

/// The least uid of a person on macOS; those below are the system's own, `_mbsetupuser` of the Setup
/// Assistant among them.
pub const FIRST_USER: u32 = 501;

/// The session that follows from who owns `/dev/console` (`None` when that cannot be read) and from
/// whether a `loginwindow` runs. loginwindow gives the console to whoever logs in, and back to root.
pub fn session(console: Option<u32>, login_window: bool) -> Session {
    match (console, login_window) {
        (Some(uid), true) if uid >= FIRST_USER => Session::User,
        (_, true) => Session::LoginWindow,
        (_, false) => Session::None,
    }
}

/// How long the session may be taken for what it is without another look.
///
/// A change of the console's owner is told by the kernel; that a `loginwindow` has started is not, by
/// anything that can be asked without watching every process. So until one was seen, which takes seconds
/// after the boot, the process table is read every second; after that every half minute, in case it ended.
pub fn until_next_look(session: Session) -> Duration {
    match session {
        Session::None => Duration::from_secs(1),
        Session::LoginWindow | Session::User => Duration::from_secs(30),
    }
}

/// The arguments of `/bin/launchctl` that start `program` as user `uid`, in that user's bootstrap
/// namespace (where the keychain and the window server are found), home directory and environment.
///
/// `sudo` and not a bare setuid: it brings the user's groups along. Its `#` form needs no name.
pub fn asuser(uid: u32, program: &Command) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["asuser", &uid.to_string(), "/usr/bin/sudo", "-H", "-u", &format!("#{uid}"), "--"].map(OsString::from).into();
    if program.get_current_dir().is_none() {
        // `cd` alone goes to HOME, which sudo has set
        words.extend(["/bin/sh", "-c", r#"cd && exec "$0" "$@""#].map(OsString::from));
    }
    let set: Vec<(&OsStr, &OsStr)> = program.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
    if !set.is_empty() {
        words.push("/usr/bin/env".into());
        words.extend(set.into_iter().map(|(name, value)| [name, OsStr::new("="), value].into_iter().collect()));
    }
    words.push(program.get_program().to_owned());
    words.extend(program.get_args().map(OsStr::to_owned));
    words
}

/// The value of `key` in what `ioreg -rd1 -c IOPlatformExpertDevice` prints.
pub fn ioreg_value(printed: &str, key: &str) -> Option<String> {
    let quoted = format!("\"{key}\"");
    let (_, value) = printed.lines().find_map(|line| line.trim().strip_prefix(&quoted)?.split_once('='))?;
    let value = value.trim().trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}

/// Whether `csrutil authenticated-root status` says that macOS starts only from the volume that Apple
/// sealed. `None` for words that this build does not know.
pub fn sealed(printed: &str) -> Option<bool> {
    let (_, status) = printed.lines().find_map(|line| line.split_once("status:"))?;
    match status.trim().trim_end_matches('.') {
        "enabled" => Some(true),
        "disabled" => Some(false),
        _ => None,
    }
}

/// Whether an address is worth reporting: not loopback, not link-local, not unspecified.
pub fn reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_follows_from_the_console_and_the_login_window() {
        for (console, login_window, expected) in [
            (None, false, Session::None),
            (Some(0), false, Session::None),
            (Some(0), true, Session::LoginWindow),
            (None, true, Session::LoginWindow),
            // the Setup Assistant's user is nobody's
            (Some(248), true, Session::LoginWindow),
            (Some(500), true, Session::LoginWindow),
            (Some(501), true, Session::User),
            (Some(502), true, Session::User),
            // a console that is left over from before a crash of loginwindow
            (Some(501), false, Session::None),
        ] {
            assert_eq!(session(console, login_window), expected, "{console:?} {login_window}");
        }
    }

    #[test]
    fn a_program_of_the_user_starts_in_their_home_with_its_own_arguments_unharmed() {
        let mut program = Command::new("/Library/a b/ready");
        program.args(["--x", "$(y)", ""]);
        let words = asuser(501, &program);
        let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            words,
            [
                "asuser",
                "501",
                "/usr/bin/sudo",
                "-H",
                "-u",
                "#501",
                "--",
                "/bin/sh",
                "-c",
                r#"cd && exec "$0" "$@""#,
                "/Library/a b/ready",
                "--x",
                "$(y)",
                "",
            ]
        );
        program.current_dir("/tmp").env("A", "b c").env_remove("D");
        let words = asuser(501, &program);
        let words: Vec<&str> = words[6..].iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["--", "/usr/bin/env", "A=b c", "/Library/a b/ready", "--x", "$(y)", ""]);
    }

    #[test]
    fn a_machine_is_known_by_its_platform_uuid() {
        let printed = r#"
+-o J773gAP  <class IOPlatformExpertDevice, id 0x100000227, registered, matched, active, busy 0 (0 ms), retain 40>
    {
      "IOPlatformSerialNumber" = "Z4F7K9QX2M"
      "IOPlatformUUID" = "6E1D94C2-7A0B-5F3E-9C44-21B8D0A7F6E5"
      "empty" = ""
      "model" = <"VirtualMac2,1">
    }
"#;
        let uuid = Some("6E1D94C2-7A0B-5F3E-9C44-21B8D0A7F6E5".to_owned());
        assert_eq!(ioreg_value(printed, "IOPlatformUUID"), uuid);
        assert_eq!(ioreg_value(printed, "empty"), None);
        assert_eq!(ioreg_value(printed, "IOPlatform"), None, "a key is not its beginning");
        assert_eq!(ioreg_value("", "IOPlatformUUID"), None);
    }

    #[test]
    fn words_that_nobody_knows_say_neither_sealed_nor_open() {
        assert_eq!(sealed("Authenticated Root status: enabled\n"), Some(true));
        assert_eq!(sealed("Authenticated Root status: disabled.\n"), Some(false));
        assert_eq!(sealed("Authenticated Root status: unknown (Custom Configuration)."), None);
        assert_eq!(sealed("csrutil: command failed"), None);
    }

    #[test]
    fn only_addresses_that_somebody_can_reach_are_reported() {
        for (address, expected) in [
            ("192.168.64.7", true),
            ("127.0.0.1", false),
            ("169.254.3.4", false),
            ("0.0.0.0", false),
            ("fd00::7", true),
            ("fe80::1", false),
            ("::1", false),
        ] {
            assert_eq!(reachable(&address.parse().unwrap()), expected, "{address}");
        }
    }
}
