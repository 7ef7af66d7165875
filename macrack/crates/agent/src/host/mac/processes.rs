//! Which processes of a Mac hold a VM, and whose they are: pure.
//!
//! A VM of Virtualization.framework lives in an XPC service `com.apple.Virtualization.VirtualMachine`, which launchd
//! starts on behalf of the process that made the VM. Its parent is launchd, so the parent says nothing; the *responsible
//! process* that macOS keeps for each process does, as far as it can be asked.
//!
//! Invariant: a VM of somebody else is never taken for one of ours: where nobody can say whose a service is, as many
//! services are ours as we have VM processes without one, and no more.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::host::VmProcess;

/// The program of the XPC service that holds a VM.
const SERVICE: &str = "com.apple.Virtualization.VirtualMachine";
/// How a VM process is started; the directory may hold blanks.
const SERVES: &str = " run --dir ";
/// What follows the directory in a job of launchd.
const ANNOUNCES: &str = " --announce ";

/// One process, of `ps -axww -o pid=,command=`.
#[derive(Debug, PartialEq, Eq)]
struct Process<'a> {
    pid: u32,
    command: &'a [u8],
}

/// The processes that hold a VM, from `ps -axww -o pid=,command=`; `responsible` says which process is responsible for
/// another, where that can be asked.
///
/// # Errors
/// When a line does not begin with a process id: nothing is then known.
pub fn vm_processes(printed: &[u8], responsible: impl Fn(u32) -> Option<u32>) -> io::Result<Vec<VmProcess>> {
    let processes = listing(printed)?;
    let mut found: Vec<VmProcess> =
        processes.iter().filter_map(|p| Some(VmProcess { pid: p.pid, dir: Some(served(p.command)?) })).collect();
    let ours: Vec<u32> = found.iter().map(|process| process.pid).collect();
    let services: Vec<(u32, Option<u32>)> =
        processes.iter().filter(|p| is_service(p.command)).map(|p| (p.pid, responsible(p.pid))).collect();
    let claimed = services.iter().filter(|(_, of)| of.is_some_and(|of| ours.contains(&of))).count();
    // services of which nobody says whose they are
    let mut room = ours.len().saturating_sub(claimed);
    for (pid, of) in services {
        let foreign = match of {
            // a service that answers for itself says nothing of whose it is
            Some(of) if of != pid => !ours.contains(&of),
            _ if room > 0 => {
                room -= 1;
                false
            }
            _ => true,
        };
        if foreign {
            found.push(VmProcess { pid, dir: None });
        }
    }
    Ok(found)
}

fn listing(printed: &[u8]) -> io::Result<Vec<Process<'_>>> {
    let lines = printed.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let process = |line: &'_ [u8]| {
        let end = line.iter().position(|byte| *byte == b' ')?;
        let pid = std::str::from_utf8(&line[..end]).ok()?.parse().ok()?;
        Some((pid, end))
    };
    lines
        .map(|line| match process(line) {
            Some((pid, end)) => Ok(Process { pid, command: line[end..].trim_ascii() }),
            None => {
                let line = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("ps: {line:?} is no process")))
            }
        })
        .collect()
}

fn is_service(command: &[u8]) -> bool {
    // its path holds no blanks, what follows are arguments
    let program = command.split(|byte| *byte == b' ').next().unwrap_or_default();
    Path::new(OsStr::from_bytes(program)).file_name() == Some(OsStr::new(SERVICE))
}

/// The directory that a process serves, if it is `macrack-vm run --dir DIR [--announce SOCKET]`.
fn served(command: &[u8]) -> Option<PathBuf> {
    let (program, rest) = command.split_at(find(command, SERVES)?);
    let rest = &rest[SERVES.len()..];
    let dir = &rest[..find(rest, ANNOUNCES).unwrap_or(rest.len())];
    let ours = Path::new(OsStr::from_bytes(program)).file_name() == Some(OsStr::new("macrack-vm"));
    (ours && !dir.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(dir)))
}

fn find(text: &[u8], word: &str) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const XPC: &str = "/System/Library/Frameworks/Virtualization.framework/Versions/A/XPCServices/\
                       com.apple.Virtualization.VirtualMachine.xpc/Contents/MacOS/com.apple.Virtualization.VirtualMachine";

    fn ps(lines: &[(u32, &str)]) -> Vec<u8> {
        lines.iter().map(|(pid, command)| format!("{pid:>5} {command}\n")).collect::<String>().into_bytes()
    }

    fn found(lines: &[(u32, &str)], responsible: &[(u32, u32)]) -> Vec<(u32, Option<String>)> {
        let of = |pid| responsible.iter().find(|(of, _)| *of == pid).map(|(_, by)| *by);
        let found = vm_processes(&ps(lines), of).unwrap();
        found.into_iter().map(|p| (p.pid, p.dir.map(|dir| dir.display().to_string()))).collect()
    }

    const OURS: (u32, &str) = (400, "/Library/MacRack/bin/macrack-vm run --dir /Library/MacRack/state/vms/a");

    #[test]
    fn a_service_of_ours_is_counted_once_with_the_process_that_is_responsible_for_it() {
        let dir = Some("/Library/MacRack/state/vms/a".to_owned());
        assert_eq!(found(&[(1, "/sbin/launchd"), OURS, (401, XPC)], &[(401, 400)]), [(400, dir)]);
    }

    #[test]
    fn a_service_of_another_program_is_foreign_whatever_of_ours_runs() {
        let found = found(
            &[OURS, (401, XPC), (77, "/Applications/UTM.app/Contents/MacOS/UTM"), (78, XPC)],
            &[(401, 400), (78, 77)],
        );
        assert_eq!(found[1..], [(78, None)]);
    }

    #[test]
    fn where_nobody_can_be_asked_no_more_services_are_ours_than_we_have_processes() {
        let two = found(&[OURS, (401, XPC), (402, XPC)], &[]);
        assert_eq!(two.iter().filter(|(_, dir)| dir.is_none()).count(), 1, "{two:?}");
        let answers_for_itself = found(&[(401, XPC)], &[(401, 401)]);
        assert_eq!(answers_for_itself, [(401, None)]);
        let one_known = found(&[OURS, (401, XPC), (402, XPC)], &[(401, 400)]);
        assert_eq!(one_known[1..], [(402, None)]);
    }

    #[test]
    fn a_process_of_ours_is_known_by_its_program_and_its_directory_may_hold_blanks() {
        let dir = |command: &str| served(command.as_bytes()).map(|dir| dir.display().to_string());
        for line in
            ["/b/macrack-vm run --dir /U/My VMs/a", "/o p/macrack-vm run --dir /U/My VMs/a --announce /t/s.sock"]
        {
            assert_eq!(dir(line).as_deref(), Some("/U/My VMs/a"));
        }
        for other in ["vim run --dir /s", "/bin/macrack-vm launch --dir /s", "macrack-vm run --dir ", "macrack-vm"] {
            assert_eq!(dir(other), None, "{other}");
        }
        assert!(!is_service(format!("/usr/bin/grep {SERVICE}").as_bytes()));
    }

    #[test]
    fn a_listing_that_is_not_understood_is_an_error_and_not_an_empty_mac() {
        let error = vm_processes(b"PID COMMAND\n", |_| None).unwrap_err().to_string();
        assert!(error.contains("PID COMMAND"), "{error}");
        assert_eq!(vm_processes(b"", |_| None).unwrap(), []);
    }
}
