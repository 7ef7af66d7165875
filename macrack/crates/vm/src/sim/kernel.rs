//! The simulated kernel's quota of two macOS VMs.
//!
//! Invariant: a slot is counted while a living process holds its file's lock, which the real kernel takes
//! back at the end of that process, whatever it dies of; and after that for as long as the counter
//! sticks. Everything is judged under one lock, when somebody looks.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::chassis::ChassisFile;

/// macOS VMs that a host's kernel admits at once; Apple's licence and its kernel agree on two.
const SLOTS: usize = 2;

/// Who took a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Occupant {
    /// The process.
    pub pid: u32,
    /// The VM.
    pub uid: String,
    /// The boot in which it was taken.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// It has ended, and is counted all the same.
    #[serde(default)]
    pub stuck: bool,
}

/// The kernel of one chassis.
#[derive(Debug, Clone)]
pub struct Kernel {
    directory: PathBuf,
}

/// The kernel's lock.
#[derive(Debug)]
pub struct Locked {
    _held: Held,
}

/// A counted slot, for the life of the process that holds it.
#[derive(Debug)]
pub struct Slot {
    _file: File,
}

/// The mark of a process that a reboot kills.
#[derive(Debug)]
pub struct Process {
    _file: File,
    /// The boot in which it began.
    pub boot_id: String,
}

/// Why no slot was given.
#[derive(Debug)]
pub enum NoSlot {
    /// Two are counted.
    Limit,
    /// The process is of an earlier boot.
    Rebooted,
    /// The simulation itself failed.
    Io(io::Error),
}

impl From<io::Error> for NoSlot {
    fn from(error: io::Error) -> Self {
        NoSlot::Io(error)
    }
}

impl Kernel {
    pub(super) fn of(chassis: &Path) -> Self {
        Kernel { directory: chassis.join("kernel") }
    }

    pub(super) fn create(chassis: &Path) -> io::Result<()> {
        fs::create_dir_all(Kernel::of(chassis).processes())
    }

    /// Takes the one lock under which everything is judged.
    pub fn lock(&self) -> io::Result<Locked> {
        let file = open(&self.directory.join("lock"))?;
        Ok(Locked { _held: Held::wait(file)? })
    }

    /// Marks this process as one that a reboot kills.
    pub fn enrol(&self, _: &Locked, chassis: &ChassisFile, uid: &str) -> io::Result<Process> {
        let pid = std::process::id();
        let mut file = open(&self.processes().join(pid.to_string()))?;
        file.lock()?;
        let boot_id = chassis.boot_id.clone();
        let occupant = Occupant { pid, uid: uid.to_owned(), boot_id: boot_id.clone(), stuck: false };
        write(&mut file, Some(&occupant))?;
        Ok(Process { _file: file, boot_id })
    }

    /// Takes a slot for this process, or says why there is none.
    pub fn take_slot(
        &self,
        lock: &Locked,
        chassis: &ChassisFile,
        process: &Process,
        uid: &str,
    ) -> Result<Slot, NoSlot> {
        if process.boot_id != chassis.boot_id {
            return Err(NoSlot::Rebooted);
        }
        self.settle(lock, chassis)?;
        for seat in self.seats()? {
            let Seat::Free(mut held) = seat else { continue };
            if read(held.file()?)?.is_some() {
                continue;
            }
            let occupant = Occupant {
                pid: std::process::id(),
                uid: uid.to_owned(),
                boot_id: chassis.boot_id.clone(),
                stuck: false,
            };
            write(held.file()?, Some(&occupant))?;
            return Ok(Slot { _file: held.keep()? });
        }
        Err(NoSlot::Limit)
    }

    /// Brings the slots of ended processes up to date: freed, or stuck for the rest of this boot.
    pub(super) fn settle(&self, _: &Locked, chassis: &ChassisFile) -> io::Result<()> {
        for seat in self.seats()? {
            let Seat::Free(mut held) = seat else { continue };
            let file = held.file()?;
            let Some(mut occupant) = read(file)? else {
                continue;
            };
            let this_boot = occupant.boot_id == chassis.boot_id;
            let counts = this_boot || chassis.faults.stick_over_reboot;
            if counts && (occupant.stuck || chassis.faults.stick_counter) {
                occupant.stuck = true;
                occupant.boot_id.clone_from(&chassis.boot_id);
                write(file, Some(&occupant))?;
            } else {
                write(file, None)?;
            }
        }
        Ok(())
    }

    /// How many slots are counted; [`Kernel::settle`] comes first.
    pub(super) fn counted(&self, _: &Locked) -> io::Result<usize> {
        let mut counted = 0;
        for seat in self.seats()? {
            counted += usize::from(match seat {
                Seat::Taken(_) => true,
                Seat::Free(mut held) => read(held.file()?)?.is_some(),
            });
        }
        Ok(counted)
    }

    /// The living processes that hold a slot.
    pub(super) fn holders(&self, _: &Locked) -> io::Result<Vec<Occupant>> {
        let mut holders = Vec::new();
        for seat in self.seats()? {
            if let Seat::Taken(mut file) = seat {
                holders.extend(read(&mut file)?);
            }
        }
        Ok(holders)
    }

    /// Kills every marked process that runs VM `uid`, or every one, and returns when they and their
    /// slots are gone. Answers how many there were.
    pub(super) fn kill(&self, _: &Locked, uid: Option<&str>) -> io::Result<usize> {
        let mut killed = 0;
        for entry in fs::read_dir(self.processes())? {
            let path = entry?.path();
            if let Seat::Taken(mut mark) = Seat::of(open(&path)?)? {
                let Some(occupant) = read(&mut mark)? else {
                    continue;
                };
                if uid.is_some_and(|uid| uid != occupant.uid) {
                    continue;
                }
                kill(&path, occupant.pid)?;
                self.await_end(mark, occupant.pid)?;
                killed += 1;
            }
            fs::remove_file(&path)?;
        }
        Ok(killed)
    }

    /// The end of a process gives its locks back, the mark's before the slot's.
    fn await_end(&self, mark: File, pid: u32) -> io::Result<()> {
        Held::wait(mark)?;
        for seat in self.seats()? {
            if let Seat::Taken(mut slot) = seat
                && read(&mut slot)?.is_some_and(|occupant| occupant.pid == pid)
            {
                Held::wait(slot)?;
            }
        }
        Ok(())
    }

    fn seats(&self) -> io::Result<Vec<Seat>> {
        (0..SLOTS).map(|slot| Seat::of(open(&self.directory.join(format!("slot-{slot}")))?)).collect()
    }

    fn processes(&self) -> PathBuf {
        self.directory.join("processes")
    }
}

/// A file that a living process may hold.
enum Seat {
    /// Nobody held it; now this process does, for as long as it looks.
    Free(Held),
    /// Another process holds it.
    Taken(File),
}

impl Seat {
    fn of(file: File) -> io::Result<Self> {
        match file.try_lock() {
            Ok(()) => Ok(Seat::Free(Held(Some(file)))),
            Err(TryLockError::WouldBlock) => Ok(Seat::Taken(file)),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// A lock that is given back in so many words. Closing the file would not do: a child that another
/// thread is just starting has a copy of it until it executes its program.
#[derive(Debug)]
struct Held(Option<File>);

impl Held {
    fn wait(file: File) -> io::Result<Self> {
        file.lock()?;
        Ok(Held(Some(file)))
    }

    fn file(&mut self) -> io::Result<&mut File> {
        self.0.as_mut().ok_or_else(gone)
    }

    /// Holds it for the life of the process.
    fn keep(mut self) -> io::Result<File> {
        self.0.take().ok_or_else(gone)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = &self.0
            && let Err(error) = file.unlock()
        {
            tracing::error!(%error, "a lock is not given back");
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the lock was given away")
}

/// Kills `pid` if it still holds the mark at `path`: the number alone could by now be another's.
fn kill(path: &Path, pid: u32) -> io::Result<()> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        let message = format!("{pid} is no process id");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if let Seat::Free(_) = Seat::of(open(path)?)? {
        return Ok(());
    }
    match pidfd_send_signal(process, Signal::KILL) {
        Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn read(file: &mut File) -> io::Result<Option<Occupant>> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    if text.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&text)?))
}

fn write(file: &mut File, occupant: Option<&Occupant>) -> io::Result<()> {
    let text = occupant.map(serde_json::to_vec).transpose()?;
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(&text.unwrap_or_default())
}
