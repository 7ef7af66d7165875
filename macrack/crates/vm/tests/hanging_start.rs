//! The owner of a VM with a hypervisor that never answers, and with time paused.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::future::pending;
use std::io;

use macrack_vm::hypervisor::{Event, GuestPort, Hypervisor};
use macrack_vm::vm::{Vm, first_report};
use macrack_wire::{MacAddress, StopCause, VmDescription, VmDir, VmError, VmState};
use tokio::io::DuplexStream;
use tokio::time::{Duration, timeout};

struct Mute;

impl GuestPort for Mute {
    type Stream = DuplexStream;

    async fn connect(&self) -> io::Result<DuplexStream> {
        pending().await
    }
}

impl Hypervisor for Mute {
    type Port = Mute;

    fn validate(&self) -> Result<(), VmError> {
        Ok(())
    }

    async fn start(&self) -> Result<(), VmError> {
        pending().await
    }

    async fn request_stop(&self) -> Result<(), VmError> {
        pending().await
    }

    async fn force_stop(&self) -> Result<(), VmError> {
        pending().await
    }

    async fn next_event(&self) -> Event {
        pending().await
    }

    fn guest_port(&self) -> Mute {
        Mute
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_never_ends_is_given_up_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dir = VmDir::new(folder.path());
    let description = VmDescription {
        uid: "a".into(),
        namespace: "team-a".into(),
        name: "build-a".into(),
        cpu_cores: 4,
        memory_bytes: 8 << 30,
        disk: "disk.img".into(),
        aux: "aux.img".into(),
        hardware_model: None,
        machine_identifier: "a".into(),
        mac_address: MacAddress::locally_administered([2, 0, 0, 0, 0, 1]),
        display: None,
        first_boot: false,
    };
    let first = first_report("a", "2026-11-30T09:00:00Z".parse().unwrap());
    let (vm, _service) = Vm::new(dir.clone(), Mute, first, false);
    let ended = timeout(Duration::from_secs(3_600), vm.run(&description)).await;
    assert_eq!(ended.expect("it is waited for"), StopCause::StartFailed);
    let last = dir.read_state().unwrap().unwrap().report;
    assert_eq!((last.state, last.stop_cause), (VmState::Failed, Some(StopCause::StartFailed)));
    assert!(last.error.unwrap().message.contains("did not answer within 300 s"));
}
