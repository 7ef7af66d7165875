//! One `VZVirtualMachine`.

use std::os::fd::{BorrowedFd, OwnedFd};

use block2::RcBlock;
use macrack_wire::VmError;
use objc2::AnyThread;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSError;
use objc2_virtualization::{
    VZErrorCode, VZMacOSInstaller, VZVirtioSocketConnection, VZVirtioSocketDevice, VZVirtualMachine,
    VZVirtualMachineState,
};
use std::cell::OnceCell;
use tokio::sync::{Mutex, mpsc};

use super::build::build;
use super::delegate::Delegate;
use super::error::{gone, vm_error, vm_error_of, vz};
use super::queue::{Answer, Bound};
use crate::configuration::Configuration;
use crate::event::Event;

/// Objects of the framework, on the VM's queue.
pub(super) struct Objects {
    pub(super) machine: Retained<VZVirtualMachine>,
    /// The framework holds its delegate weakly: it lives here.
    _delegate: Retained<Delegate>,
    pub(super) installer: OnceCell<Retained<VZMacOSInstaller>>,
}

/// One VM. It ends with this process at the latest.
pub struct Machine {
    pub(super) bound: Bound<Objects>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
    teller: mpsc::UnboundedSender<Event>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Machine {
    /// Makes the VM, on a queue of its own, from a configuration that the framework has found valid.
    ///
    /// # Errors
    /// What the framework says, of class `AlreadyRunning` when another process holds the auxiliary storage.
    pub fn new(configuration: &Configuration) -> Result<Self, VmError> {
        let (teller, events) = mpsc::unbounded_channel();
        let ears = teller.clone();
        let bound = Bound::make("io.macrack.vm", move |queue| {
            let built = build(configuration)?;
            // SAFETY: on the queue that is named
            let machine =
                unsafe { VZVirtualMachine::initWithConfiguration_queue(VZVirtualMachine::alloc(), &built, queue) };
            let delegate = Delegate::new(ears);
            // SAFETY: on the VM's queue; the delegate outlives the VM, for the two are dropped together
            unsafe { machine.setDelegate(Some(ProtocolObject::from_ref(&*delegate))) };
            Ok(Objects { machine, _delegate: delegate, installer: OnceCell::new() })
        })?;
        Ok(Machine { bound, events: Mutex::new(events), teller })
    }

    /// Starts it; resolves when it runs.
    ///
    /// # Errors
    /// What the framework says.
    pub async fn start(&self) -> Result<(), VmError> {
        self.bound
            .ask(|objects, answer| {
                let done = completion(answer);
                // SAFETY: on the VM's queue
                unsafe { objects.machine.startWithCompletionHandler(&done) };
                Ok(())
            })
            .await
    }

    /// Presses the power button.
    ///
    /// # Errors
    /// When the VM's state does not take it, or what the framework says.
    pub async fn request_stop(&self) -> Result<(), VmError> {
        self.bound
            .ask(|objects, answer| {
                // SAFETY: on the VM's queue
                let (can, state) = unsafe { (objects.machine.canRequestStop(), objects.machine.state()) };
                if !can {
                    let words = format!("the power button does nothing in state {}", state.0);
                    return Err(vz(VZErrorCode::InvalidVirtualMachineState, words));
                }
                // SAFETY: as above
                unsafe { objects.machine.requestStopWithError() }.map_err(vm_error_of)?;
                answer.give(Ok(()));
                Ok(())
            })
            .await
    }

    /// Pulls the plug. The framework tells its delegate nothing of a stop that was asked for, so the event is made
    /// here, once the stop is done.
    ///
    /// # Errors
    /// When the VM's state does not take it, or what the framework says.
    pub async fn stop(&self) -> Result<(), VmError> {
        self.bound
            .ask(|objects, answer| {
                // SAFETY: on the VM's queue
                let (can, state) = unsafe { (objects.machine.canStop(), objects.machine.state()) };
                if state == VZVirtualMachineState::Stopped || state == VZVirtualMachineState::Error {
                    answer.give(Ok(()));
                    return Ok(());
                }
                if !can {
                    let words = format!("it cannot be stopped in state {}", state.0);
                    return Err(vz(VZErrorCode::InvalidVirtualMachineStateTransition, words));
                }
                // SAFETY: as above
                unsafe { objects.machine.stopWithCompletionHandler(&completion(answer)) };
                Ok(())
            })
            .await?;
        // the receiver lives as long as this
        let _ = self.teller.send(Event::GuestStopped);
        Ok(())
    }

    /// The next event; pending for ever when there is none. Cancel-safe.
    pub async fn next_event(&self) -> Event {
        match self.events.lock().await.recv().await {
            Some(event) => event,
            // a sender lives in `self`
            None => std::future::pending().await,
        }
    }

    /// The way to a port of the guest.
    pub fn vsock(&self, port: u32) -> VsockPort {
        VsockPort { bound: self.bound.clone(), port }
    }
}

/// A port of the guest, over vsock.
pub struct VsockPort {
    bound: Bound<Objects>,
    port: u32,
}

impl std::fmt::Debug for VsockPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VsockPort").field("port", &self.port).finish_non_exhaustive()
    }
}

impl VsockPort {
    /// Connects. Answers never while nothing in the guest listens: the caller brings the timeout.
    ///
    /// # Errors
    /// What the framework says.
    pub async fn connect(&self) -> Result<OwnedFd, VmError> {
        let port = self.port;
        self.bound
            .ask(move |objects, answer| {
                // SAFETY: on the VM's queue
                let devices = unsafe { objects.machine.socketDevices() };
                let device = devices.firstObject().and_then(|device| device.downcast::<VZVirtioSocketDevice>().ok());
                let device = device.ok_or_else(|| {
                    vz(VZErrorCode::InvalidVirtualMachineState, "the VM has no socket device, or does not run")
                })?;
                let connected = RcBlock::new(move |connection: *mut VZVirtioSocketConnection, error: *mut NSError| {
                    // SAFETY: nil, or valid for the duration of the call
                    let (connection, error) = unsafe { (connection.as_ref(), error.as_ref()) };
                    answer.give(match (connection, error) {
                        (Some(connection), _) => copy_of(connection),
                        (None, Some(error)) => Err(vm_error(error)),
                        (None, None) => Err(gone()),
                    });
                });
                // SAFETY: as above
                unsafe { device.connectToPort_completionHandler(port, &connected) };
                Ok(())
            })
            .await
    }
}

/// A descriptor of our own: the connection closes its own when it is released, after the completion block.
fn copy_of(connection: &VZVirtioSocketConnection) -> Result<OwnedFd, VmError> {
    // SAFETY: the connection keeps its descriptor open while it lives, which is longer than this call
    let theirs = unsafe { BorrowedFd::borrow_raw(connection.fileDescriptor()) };
    theirs.try_clone_to_owned().map_err(|error| VmError::os("vsock descriptor", &error))
}

/// A completion block that gives `answer`.
pub(super) fn completion(answer: Answer<()>) -> RcBlock<dyn Fn(*mut NSError)> {
    RcBlock::new(move |error: *mut NSError| {
        // SAFETY: nil, or valid for the duration of the call
        answer.give(match unsafe { error.as_ref() } {
            None => Ok(()),
            Some(error) => Err(vm_error(error)),
        });
    })
}
