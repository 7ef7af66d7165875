//! The VMs of this chassis: one task each.
//!
//! Invariant: whatever happens to a VM's directory or process is done by its one task, in the order in
//! which it was asked. The task is asked by [`Command`]s and answers in [`Facts`]; it never asks the API.

mod make;
mod process;
mod record;
mod rest;
mod root;
mod task;
mod wipe;

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use macrack_wire::VmDir;
use tokio::sync::{mpsc, watch};

pub use make::{Making, Script, Shape};
pub use process::end as end_process;
pub use record::Record;
pub use task::LOOKING;
pub use wipe::{Wipes, surplus, wipes};

use crate::bell::Bell;
use crate::host::Host;
use crate::life::{Facts, Life, Rest};

/// Seconds that a guest has to shut down before its VM is forced.
pub const GRACE: u32 = 60;

/// What a VM's task is asked.
#[derive(Debug)]
pub enum Command {
    /// Clone its disk and describe it.
    Make(Box<Making>),
    /// Start its process.
    Start,
    /// Stop it, keep its disk.
    Stop,
    /// It may be started again however it ended.
    Forget,
    /// Its refused start was judged and may be tried again.
    Pardon,
    /// Stop it and destroy everything of it.
    Wipe,
}

/// What every VM's task needs of its surroundings.
#[derive(Clone)]
pub struct Surroundings {
    /// The Mac.
    pub host: Arc<dyn Host>,
    /// The program `macrack-vm`.
    pub vm_binary: PathBuf,
    /// The present boot.
    pub boot_id: String,
    /// Rung whenever a VM's facts change.
    pub bell: Bell,
}

/// A VM's task, as the rest of the agent sees it.
#[derive(Debug)]
pub struct Vm {
    facts: Arc<watch::Sender<Facts>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Vm {
    /// Takes up the VM whose files lie in `dir`, as it is found there: running, at rest, half made.
    pub fn adopt(dir: VmDir, around: Surroundings) -> Vm {
        Vm::begin(dir, around, Facts::new(Life::Unknown(LOOKING.to_owned()), Timestamp::now()), None)
    }

    /// A new VM, whose files are made in `dir`.
    pub fn make(dir: VmDir, around: Surroundings, making: Making) -> Vm {
        let facts = Facts::new(Life::Cloning, Timestamp::now());
        Vm::begin(dir, around, facts, Some(Command::Make(Box::new(making))))
    }

    fn begin(dir: VmDir, around: Surroundings, facts: Facts, first: Option<Command>) -> Vm {
        let (facts, _) = watch::channel(facts);
        let facts = Arc::new(facts);
        let (commands, received) = mpsc::unbounded_channel();
        let vm = Vm { facts: facts.clone(), commands };
        let adopted = first.is_none();
        if let Some(first) = first {
            vm.order(first);
        }
        tokio::spawn(task::run(dir, around, facts, received, adopted));
        vm
    }

    /// What is known of it.
    pub fn facts(&self) -> Facts {
        self.facts.borrow().clone()
    }

    /// Its facts as they change.
    pub fn watch(&self) -> watch::Receiver<Facts> {
        self.facts.subscribe()
    }

    /// Asks the task for something. What was asked shows in the facts before this returns, so that
    /// nothing is decided from facts that are about to be untrue.
    pub fn order(&self, command: Command) {
        let next = match &command {
            Command::Make(_) => Some(Life::Cloning),
            Command::Start => Some(Life::Starting),
            Command::Pardon | Command::Forget => Some(Life::AtRest(Rest::Ready)),
            Command::Stop | Command::Wipe => None,
        };
        let running = |life: &Life| matches!(life, Life::Starting | Life::Running);
        let stops = matches!(command, Command::Stop | Command::Wipe);
        self.facts.send_modify(|facts| match next {
            Some(life) => facts.enter(life, Timestamp::now()),
            None if stops && running(&facts.life) => facts.enter(Life::Stopping, Timestamp::now()),
            None => {}
        });
        // a task that has ended has nothing left to do it with
        if self.commands.send(command).is_err() {
            tracing::debug!("a VM that is gone was asked for something");
        }
    }
}
