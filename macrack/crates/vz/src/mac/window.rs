//! A VM in a window, for the person who finishes a golden by hand. The one place where the framework is on the main
//! queue: its view wants that.

use std::thread;

use block2::RcBlock;
use macrack_wire::VmError;
use macrack_wire::classify::{EXCEPTION, MACRACK_DOMAIN};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2::{AnyThread, MainThreadMarker, MainThreadOnly};
use objc2_app_kit::{NSApplication, NSApplicationActivationPolicy, NSBackingStoreType, NSWindow, NSWindowStyleMask};
use objc2_foundation::{NSError, NSPoint, NSRect, NSSize, NSString};
use objc2_virtualization::{VZVirtualMachine, VZVirtualMachineView};
use tokio::sync::mpsc;

use super::build::build;
use super::delegate::Delegate;
use super::error::{caught, tried, vm_error};
use crate::configuration::Configuration;
use crate::event::Event;
use crate::install::explain;

/// Boots the VM in a window named `title` and ends this process when the guest shuts down: 0, or 1 with the words on
/// stderr when it broke. Returns only an error, or when the application was ended by its menu.
///
/// # Errors
/// When this is not the main thread, or what the framework says before the VM runs.
pub fn show(configuration: &Configuration, title: &str) -> Result<(), VmError> {
    let main = MainThreadMarker::new()
        .ok_or_else(|| VmError::new(MACRACK_DOMAIN, EXCEPTION, "a window belongs to the main thread"))?;
    let (ears, events) = mpsc::unbounded_channel();
    thread::spawn(move || ends_with_the_guest(events));
    let application = NSApplication::sharedApplication(main);
    application.setActivationPolicy(NSApplicationActivationPolicy::Regular);
    let delegate = Delegate::new(ears);
    let window = tried(|| {
        let built = build(configuration)?;
        // SAFETY: on the main thread, whose queue is the VM's when none is named
        let machine = unsafe { VZVirtualMachine::initWithConfiguration(VZVirtualMachine::alloc(), &built) };
        // SAFETY: as above; the delegate lives until the application ends
        unsafe { machine.setDelegate(Some(ProtocolObject::from_ref(&*delegate))) };
        let window = window(main, &machine, title, configuration);
        let started = RcBlock::new(|error: *mut NSError| {
            // SAFETY: nil, or valid for the duration of the call
            if let Some(error) = unsafe { error.as_ref() } {
                eprintln!("macrack-vm: {}", explain(&vm_error(error)));
                std::process::exit(1);
            }
        });
        // SAFETY: as above
        unsafe { machine.startWithCompletionHandler(&started) };
        Ok(window)
    })?;
    caught(|| {
        window.makeKeyAndOrderFront(None);
        application.activate();
        application.run();
    })
}

/// A window without a button that closes it: the guest is shut down inside.
fn window(
    main: MainThreadMarker,
    machine: &VZVirtualMachine,
    title: &str,
    configuration: &Configuration,
) -> Retained<NSWindow> {
    let (width, height) = configuration.display.map_or((1280, 800), |screen| (screen.width, screen.height));
    // half the pixels: a window that fits on a screen of the same size
    let size = NSSize::new(f64::from(width) / 2.0, f64::from(height) / 2.0);
    let frame = NSRect::new(NSPoint::new(0.0, 0.0), size);
    let style = NSWindowStyleMask::Titled | NSWindowStyleMask::Miniaturizable | NSWindowStyleMask::Resizable;
    // SAFETY: new objects, on the main thread
    unsafe {
        let view = VZVirtualMachineView::initWithFrame(VZVirtualMachineView::alloc(main), frame);
        view.setVirtualMachine(Some(machine));
        let window = NSWindow::initWithContentRect_styleMask_backing_defer(
            NSWindow::alloc(main),
            frame,
            style,
            NSBackingStoreType::Buffered,
            false,
        );
        window.setReleasedWhenClosed(false);
        window.setTitle(&NSString::from_str(title));
        window.setContentView(Some(&view));
        window.center();
        window
    }
}

/// The application's loop does not end by itself, so the process does.
fn ends_with_the_guest(mut events: mpsc::UnboundedReceiver<Event>) {
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::GuestStopped => std::process::exit(0),
            Event::Crashed(error) => {
                eprintln!("macrack-vm: {}", explain(&error));
                std::process::exit(1);
            }
            Event::NetworkLost { error, replugged } => {
                eprintln!("macrack-vm: the network was lost ({error}); plugged in again: {replugged}");
            }
        }
    }
}
