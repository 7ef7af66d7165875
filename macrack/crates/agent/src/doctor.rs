//! What is wrong with a Mac, in words, and the way out.
//!
//! [`judge`] is pure: `macrack-agent doctor` prints what it finds, and what of it keeps the host from serving tenants
//! is reported in `status.agent.host` ([`hindrances`]), from which the condition `HostPrepared` follows.
//!
//! Invariant: what could not be found out is neither good nor bad, and is said so.

mod look;
mod prove;

use std::fmt;

use jiff::SignedDuration;
use macrack_api::rack::node::HostFinding;
use serde::Serialize;

use crate::host::{HostFacts, VmProcess};
use crate::report::bounded;

pub use look::{Ask, look};
pub use prove::{Proof, prove};

/// The oldest macOS of a host: Apple mends nothing older (in 2026).
const OLDEST_HOST: u32 = 15;
/// The slowest network port of a Mac in a rack, in bits per second, as `MacNodeClass.spec.linkSpeed` says.
const SLOWEST_LINK: u64 = 10_000_000_000;
/// Free bytes below which no golden can be pulled beside the host's own reserve.
const LEAST_FREE: u64 = 100_000_000_000;
/// From here on a clock that differs from the API server's is told.
const SKEW: SignedDuration = SignedDuration::from_secs(60);
/// Longest message in a report, in characters, as the schema says.
pub(crate) const MESSAGE: usize = 256;
/// Most findings in a report, as the schema says.
pub(crate) const MOST: usize = 8;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Serial, model, chip and the rest can be read.
    Hardware,
    /// `macrack-vm` is signed with com.apple.security.virtualization.
    Entitlement,
    /// The login keychain is unlocked.
    Keychain,
    /// The agent's user logs in by itself.
    AutoLogin,
    /// macOS is new enough.
    HostVersion,
    /// `macrack-hostd` listens.
    Hostd,
    /// What the agent noted for its next life can be read.
    Notes,
    /// No other virtualization software runs VMs.
    OtherVms,
    /// Free disk.
    Disk,
    /// Speed of the network port.
    Link,
    /// The clock agrees with the API server's.
    Clock,
    /// The API server answers.
    ApiServer,
    /// The registry answers.
    Registry,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Check::Hardware => "hardware",
            Check::Entitlement => "entitlement",
            Check::Keychain => "keychain",
            Check::AutoLogin => "auto-login",
            Check::HostVersion => "host-version",
            Check::Hostd => "hostd",
            Check::Notes => "notes",
            Check::OtherVms => "other-vms",
            Check::Disk => "disk",
            Check::Link => "link",
            Check::Clock => "clock",
            Check::ApiServer => "api-server",
            Check::Registry => "registry",
        })
    }
}

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It could not be found out.
    Unknown,
    /// Wrong: the message says how to mend it.
    Wrong,
}

/// One check and what it came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// What it came to.
    pub verdict: Verdict,
    /// In words; with the way out unless it is good.
    pub message: String,
}

impl Finding {
    fn good(check: Check, message: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Good, message: message.into() }
    }

    fn wrong(check: Check, message: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Wrong, message: message.into() }
    }

    fn unknown(check: Check, message: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Unknown, message: message.into() }
    }

    fn either(check: Check, holds: bool, good: impl Into<String>, wrong: impl Into<String>) -> Self {
        if holds { Self::good(check, good) } else { Self::wrong(check, wrong) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Good => "ok",
            Verdict::Unknown => "UNKNOWN",
            Verdict::Wrong => "WRONG",
        };
        write!(f, "{verdict:<8} {:<13} {}", self.check, self.message)
    }
}

/// What is not the host's own to say; an error is why it could not be found out.
#[derive(Debug, Clone)]
pub struct Around {
    /// Free bytes on the volume of the state directory.
    pub disk_free: Result<u64, String>,
    /// Every process that holds a VM.
    pub vms: Result<Vec<VmProcess>, String>,
    /// What of the agent's own notes cannot be read, with the way out.
    pub notes: Vec<String>,
    /// The API server, if one was named.
    pub api_server: Option<Reached>,
    /// The registries that were named.
    pub registries: Vec<Reached>,
}

/// Something on the network that was asked for a sign of life.
#[derive(Debug, Clone)]
pub struct Reached {
    /// Its URL.
    pub url: String,
    /// How far the own clock is ahead of its own, to the second, if it said its time; or why it does not answer.
    pub answer: Result<Option<SignedDuration>, String>,
}

/// Everything that was found, in the order in which it is to be mended.
pub fn judge(host: &HostFacts, around: &Around) -> Vec<Finding> {
    let mut found = vec![hardware(host)];
    found.extend(of_host(host));
    found.push(notes(&around.notes));
    found.push(other_vms(&around.vms));
    found.push(disk(&around.disk_free));
    found.push(link(host));
    if let Some(reached) = &around.api_server {
        found.push(api_server(reached));
        found.push(clock(reached));
    }
    found.extend(around.registries.iter().map(registry));
    found
}

/// What keeps the host from serving tenants beyond the three facts that the report has fields for, the gravest first.
pub fn hindrances(host: &HostFacts) -> Vec<HostFinding> {
    let own_field = |check| matches!(check, Check::Entitlement | Check::Keychain | Check::AutoLogin);
    let told = |finding: &Finding| match finding.verdict {
        Verdict::Good => false,
        Verdict::Unknown => true,
        Verdict::Wrong => !own_field(finding.check),
    };
    let render = |finding: Finding| HostFinding {
        check: finding.check.to_string(),
        unknown: finding.verdict == Verdict::Unknown,
        message: bounded(&finding.message, MESSAGE),
    };
    of_host(host).into_iter().filter(told).map(render).take(MOST).collect()
}

/// What the host must have before it starts a guest for a tenant.
fn of_host(host: &HostFacts) -> Vec<Finding> {
    let found = [
        Finding::either(
            Check::Entitlement,
            host.entitled,
            "macrack-vm carries com.apple.security.virtualization",
            "macrack-vm lacks com.apple.security.virtualization: install the signed package, or sign it as \
             docs/host-preparation.md says",
        ),
        Finding::either(
            Check::Keychain,
            host.keychain_unlocked,
            "the login keychain is unlocked",
            "the login keychain is locked, guests from macOS 15 do not start: give it the password of the user and let \
             that user log in automatically",
        ),
        Finding::either(
            Check::AutoLogin,
            host.auto_login,
            "the agent's user logs in by itself",
            "the agent's user does not log in by itself: turn FileVault off, then choose it in System Settings, Users & \
             Groups, Automatically log in as",
        ),
        host_version(host),
        match &host.hostd_problem {
            None => Finding::good(Check::Hostd, "macrack-hostd listens"),
            Some(why) => Finding::wrong(
                Check::Hostd,
                format!(
                    "macrack-hostd does not listen, so nothing can reboot the Mac or wipe all of a tenant: load its \
                     LaunchDaemon ({why})"
                ),
            ),
        },
    ];
    found.into_iter().map(|finding| unread(host, finding.check).unwrap_or(finding)).collect()
}

/// What is said of a check whose fact could not be read.
fn unread(host: &HostFacts, check: Check) -> Option<Finding> {
    let unread = host.unread.iter().find(|unread| unread.check == check)?;
    Some(Finding::unknown(check, format!("could not be found out: {}", unread.why)))
}

fn hardware(host: &HostFacts) -> Finding {
    if let Some(finding) = unread(host, Check::Hardware) {
        return finding;
    }
    Finding::good(
        Check::Hardware,
        format!(
            "{}, {}, {}, {} cores, {} GiB, disk {} GB",
            host.serial,
            host.model,
            host.chip,
            host.cpu_cores,
            host.memory_bytes >> 30,
            host.disk_bytes / 1_000_000_000
        ),
    )
}

fn host_version(host: &HostFacts) -> Finding {
    let version = &host.host_version;
    match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
        None => Finding::unknown(Check::HostVersion, format!("macOS says its version is {version:?}")),
        Some(major) => Finding::either(
            Check::HostVersion,
            major >= OLDEST_HOST,
            format!("macOS {version}"),
            format!("macOS {version}; {OLDEST_HOST} or newer is needed: upgrade it in System Settings, General"),
        ),
    }
}

fn notes(unread: &[String]) -> Finding {
    match unread.is_empty() {
        true => Finding::good(Check::Notes, "the agent's notes can be read"),
        false => Finding::unknown(Check::Notes, unread.join("; ")),
    }
}

fn other_vms(vms: &Result<Vec<VmProcess>, String>) -> Finding {
    let foreign: Vec<String> = match vms {
        Err(why) => return Finding::unknown(Check::OtherVms, format!("the processes cannot be listed: {why}")),
        Ok(vms) => vms.iter().filter(|vm| vm.dir.is_none()).map(|vm| vm.pid.to_string()).collect(),
    };
    Finding::either(
        Check::OtherVms,
        foreign.is_empty(),
        "no other virtualization software runs VMs",
        format!(
            "VMs that are not MacRack's run (process {}), and the kernel counts them: end them, and remove the software \
             that starts them",
            foreign.join(", ")
        ),
    )
}

fn disk(free: &Result<u64, String>) -> Finding {
    match free {
        Err(why) => Finding::unknown(Check::Disk, format!("free disk cannot be measured: {why}")),
        Ok(free) => Finding::either(
            Check::Disk,
            *free >= LEAST_FREE,
            format!("{} GB free", free / 1_000_000_000),
            format!(
                "{} GB free, {} GB are needed for a golden and its clones: remove what is not MacRack's, snapshots of \
                 Time Machine first",
                free / 1_000_000_000,
                LEAST_FREE / 1_000_000_000
            ),
        ),
    }
}

fn link(host: &HostFacts) -> Finding {
    let giga = |bits: u64| format!("{} Gb/s", bits as f64 / 1e9);
    match host.link_bits_per_second {
        None => unread(host, Check::Link).unwrap_or_else(|| {
            Finding::unknown(Check::Link, "the speed of the network port could not be read: plug the cable in")
        }),
        Some(bits) => Finding::either(
            Check::Link,
            bits >= SLOWEST_LINK,
            giga(bits),
            format!(
                "{}, {} are needed to pull goldens in minutes: check cable and switch port, and that the default route \
                 uses the fast port",
                giga(bits),
                giga(SLOWEST_LINK)
            ),
        ),
    }
}

fn api_server(reached: &Reached) -> Finding {
    let Reached { url, answer } = reached;
    match answer {
        Ok(_) => Finding::good(Check::ApiServer, format!("{url} answers")),
        Err(why) => Finding::wrong(
            Check::ApiServer,
            format!("{url} does not answer: check the network and the bootstrap file's server and CA ({why})"),
        ),
    }
}

fn clock(reached: &Reached) -> Finding {
    let Ok(Some(ahead)) = reached.answer else {
        return Finding::unknown(Check::Clock, "nothing to compare it with: the API server did not say its time");
    };
    let seconds = ahead.as_secs();
    let which = if seconds < 0 { "behind" } else { "ahead of" };
    Finding::either(
        Check::Clock,
        ahead.abs() < SKEW,
        format!("within {} s of the API server's", seconds.abs() + 1),
        format!(
            "{} s {which} the API server's: turn on Set time and date automatically, and let the Mac reach its time \
             server",
            seconds.abs()
        ),
    )
}

fn registry(reached: &Reached) -> Finding {
    let Reached { url, answer } = reached;
    match answer {
        Ok(_) => Finding::good(Check::Registry, format!("{url} answers")),
        Err(why) => Finding::wrong(
            Check::Registry,
            format!("{url} does not answer: check name, network and certificate of the registry ({why})"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Unread;

    fn host() -> HostFacts {
        HostFacts {
            serial: "H4XK29Q0LW".into(),
            model: "Mac16,11".into(),
            chip: "Apple M4 Pro".into(),
            cpu_cores: 14,
            memory_bytes: 64 << 30,
            disk_bytes: 1_000_000_000_000,
            link_bits_per_second: Some(10_000_000_000),
            host_version: "26.1".into(),
            boot_id: "boot".into(),
            entitled: true,
            keychain_unlocked: true,
            auto_login: true,
            addresses: Vec::new(),
            hostd_problem: None,
            unread: Vec::new(),
        }
    }

    fn around() -> Around {
        let reached = |url: &str| Reached { url: url.into(), answer: Ok(Some(SignedDuration::from_secs(1))) };
        Around {
            disk_free: Ok(500_000_000_000),
            vms: Ok(vec![VmProcess { pid: 7, dir: Some("/s/vms/a".into()) }]),
            notes: Vec::new(),
            api_server: Some(reached("https://api:6443")),
            registries: vec![reached("https://registry")],
        }
    }

    #[test]
    fn a_prepared_mac_passes_every_check_and_is_reported_without_findings() {
        let found = judge(&host(), &around());
        assert!(found.iter().all(|finding| finding.verdict == Verdict::Good), "{found:#?}");
        assert_eq!(found.len(), 13, "every check has its line");
        assert_eq!(hindrances(&host()), []);
    }

    /// Every check, with what makes it fail: it and no other fails, and says how to mend it.
    #[test]
    fn each_fault_is_found_by_its_own_check_and_says_the_way_out() {
        type Fault = fn(&mut HostFacts, &mut Around);
        let table: [(Check, Fault, &str); 15] = [
            (Check::Entitlement, |h, _| h.entitled = false, "install the signed package"),
            (Check::Keychain, |h, _| h.keychain_unlocked = false, "log in automatically"),
            (Check::AutoLogin, |h, _| h.auto_login = false, "turn FileVault off"),
            (Check::HostVersion, |h, _| h.host_version = "14.7.1".into(), "upgrade it"),
            (Check::Hostd, |h, _| h.hostd_problem = Some("no such file".into()), "load its LaunchDaemon"),
            (Check::OtherVms, |_, a| a.vms = Ok(vec![VmProcess { pid: 77, dir: None }]), "(process 77)"),
            (Check::Disk, |_, a| a.disk_free = Ok(99_999_999_999), "Time Machine"),
            (Check::Link, |h, _| h.link_bits_per_second = Some(1_000_000_000), "1 Gb/s, 10 Gb/s are needed"),
            (Check::ApiServer, |_, a| set(&mut a.api_server, Err("refused".into())), "bootstrap file's server"),
            (Check::Clock, |_, a| set(&mut a.api_server, Ok(Some(SignedDuration::from_secs(-60)))), "60 s behind"),
            (Check::Clock, |_, a| set(&mut a.api_server, Ok(Some(SignedDuration::from_hours(25)))), "90000 s ahead"),
            (Check::Registry, |_, a| a.registries[0].answer = Err("x509".into()), "certificate of the registry"),
            (Check::Registry, |_, a| a.registries[0].answer = Err("dns".into()), "(dns)"),
            (Check::Disk, |_, a| a.disk_free = Ok(0), "0 GB free"),
            (Check::HostVersion, |h, _| h.host_version = "9".into(), "15 or newer"),
        ];
        for (check, fault, words) in table {
            let (mut host, mut around) = (host(), around());
            fault(&mut host, &mut around);
            let found = judge(&host, &around);
            let wrong: Vec<&Finding> = found.iter().filter(|f| f.verdict == Verdict::Wrong).collect();
            assert_eq!(wrong.len(), 1, "{check}: {found:#?}");
            assert!(wrong[0].check == check && wrong[0].message.contains(words), "{check}: {wrong:?}");
        }
    }

    fn set(reached: &mut Option<Reached>, answer: Result<Option<SignedDuration>, String>) {
        reached.as_mut().unwrap().answer = answer;
    }

    #[test]
    fn what_could_not_be_read_is_unknown_and_never_called_wrong() {
        let (mut host, mut around) = (host(), around());
        for check in [Check::Hardware, Check::Entitlement, Check::Keychain, Check::AutoLogin, Check::Link] {
            host.unread.push(Unread { check, why: "no such tool".into() });
        }
        (host.entitled, host.keychain_unlocked, host.auto_login) = (false, false, false);
        host.link_bits_per_second = None;
        host.host_version = "Sequoia".into();
        around.vms = Err("ps".into());
        around.notes = vec!["quota.json".into()];
        around.disk_free = Err("statvfs".into());
        around.api_server.as_mut().unwrap().answer = Ok(None);
        let found = judge(&host, &around);
        let count = |verdict| found.iter().filter(|finding| finding.verdict == verdict).count();
        assert_eq!((count(Verdict::Unknown), count(Verdict::Wrong)), (10, 0), "{found:#?}");
    }

    #[test]
    fn the_report_names_what_has_no_field_of_its_own_and_what_is_unknown() {
        let mut host = host();
        (host.entitled, host.keychain_unlocked) = (false, false);
        host.unread.push(Unread { check: Check::Keychain, why: "no such tool".into() });
        host.hostd_problem = Some("x".repeat(600));
        let said = hindrances(&host);
        let checks: Vec<(&str, bool)> = said.iter().map(|f| (f.check.as_str(), f.unknown)).collect();
        assert_eq!(checks, [("keychain", true), ("hostd", false)]);
        assert!(said.iter().all(|finding| finding.message.chars().count() <= MESSAGE));
    }
}
