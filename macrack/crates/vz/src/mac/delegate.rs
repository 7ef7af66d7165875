//! What the framework tells of a VM, unasked.

use std::cell::Cell;

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSError;
use objc2_virtualization::{VZNATNetworkDeviceAttachment, VZNetworkDevice, VZVirtualMachine, VZVirtualMachineDelegate};
use tokio::sync::mpsc;

use super::error::{caught, vm_error};
use crate::event::Event;

/// How often a network that was lost is plugged in again in the life of a VM; one that keeps falling out is left
/// out, so that the two do not chase each other.
const REPLUGS: u32 = 8;

/// Instance variables of the delegate; touched on the VM's queue, where the framework calls it.
pub(super) struct Ears {
    events: mpsc::UnboundedSender<Event>,
    replugs: Cell<u32>,
}

define_class!(
    // SAFETY: NSObject asks nothing of its subclasses, and this one has no Drop of its own.
    #[unsafe(super(NSObject))]
    #[name = "MacRackVirtualMachineDelegate"]
    #[ivars = Ears]
    pub(super) struct Delegate;

    unsafe impl NSObjectProtocol for Delegate {}

    unsafe impl VZVirtualMachineDelegate for Delegate {
        #[unsafe(method(guestDidStopVirtualMachine:))]
        fn guest_did_stop(&self, _machine: &VZVirtualMachine) {
            self.tell(Event::GuestStopped);
        }

        #[unsafe(method(virtualMachine:didStopWithError:))]
        fn did_stop_with_error(&self, _machine: &VZVirtualMachine, error: &NSError) {
            self.tell(Event::Crashed(vm_error(error)));
        }

        #[unsafe(method(virtualMachine:networkDevice:attachmentWasDisconnectedWithError:))]
        fn network_lost(&self, _machine: &VZVirtualMachine, device: &VZNetworkDevice, error: &NSError) {
            let replugged = self.replug(device);
            self.tell(Event::NetworkLost { error: vm_error(error), replugged });
        }
    }
);

impl Delegate {
    pub(super) fn new(events: mpsc::UnboundedSender<Event>) -> Retained<Self> {
        let this = Self::alloc().set_ivars(Ears { events, replugs: Cell::new(0) });
        // SAFETY: init of NSObject, on a new object whose variables are set
        unsafe { msg_send![super(this), init] }
    }

    fn tell(&self, event: Event) {
        // the VM's owner has gone: nobody is left to hear it
        let _ = self.ivars().events.send(event);
    }

    fn replug(&self, device: &VZNetworkDevice) -> bool {
        let done = self.ivars().replugs.get();
        if done >= REPLUGS {
            return false;
        }
        self.ivars().replugs.set(done + 1);
        // SAFETY: on the VM's queue, where the delegate is called
        caught(|| unsafe { device.setAttachment(Some(&VZNATNetworkDeviceAttachment::new())) }).is_ok()
    }
}
