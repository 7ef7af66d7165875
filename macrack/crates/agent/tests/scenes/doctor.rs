//! `macrack-agent doctor`, as a person runs it.

use std::fs;
use std::process::{Command, Output};

use macrack_testkit::child::bin;
use macrack_vm::sim::Fault;
use serde_json::Value;

use crate::chassis::{Bench, until_ready};

impl Bench {
    fn doctor(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(bin("macrack-agent").unwrap());
        command.arg("doctor").arg("--state-dir").arg(self.state_dir.path()).args(arguments);
        command.output().unwrap()
    }

    fn prove(&self) -> Output {
        self.doctor(&["--prove", "--golden", self.golden.to_str().unwrap()])
    }

    /// The directories of VMs, none of which a proof may leave.
    fn vms(&self) -> usize {
        fs::read_dir(self.state_dir.vms()).unwrap().count()
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_prepared_mac_is_told_line_by_line_and_ends_with_0_and_any_fault_with_1() {
    let bench = Bench::new().await;
    let good = bench.doctor(&[]);
    assert!(good.status.success(), "{}", said(&good));
    assert!(said(&good).contains("ok       entitlement   macrack-vm carries"), "{}", said(&good));
    bench.chassis.modify(|chassis| chassis.spec.host_prepared.auto_login = false).unwrap();
    bench.chassis.modify(|chassis| chassis.spec.link_bits_per_second = 1_000_000_000).unwrap();
    let bad = bench.doctor(&["--json", "--bootstrap", "/nowhere.json"]);
    assert_eq!(bad.status.code(), Some(1));
    let lines: Vec<Value> =
        String::from_utf8_lossy(&bad.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let wrong: Vec<&str> =
        lines.iter().filter(|line| line["verdict"] == "wrong").map(|line| line["check"].as_str().unwrap()).collect();
    assert_eq!(wrong, ["auto-login", "link", "api-server"], "{lines:?}");
    let clock = lines.iter().find(|line| line["check"] == "clock").unwrap();
    assert_eq!(clock["verdict"], "unknown", "without an API server there is nothing to compare the clock with");
}

#[tokio::test]
async fn the_proof_runs_two_sees_the_third_refused_with_code_6_and_leaves_nothing() {
    let bench = Bench::new().await;
    let proof = bench.prove();
    let said = said(&proof);
    assert!(proof.status.success(), "{said}");
    assert!(said.contains("VM 1 of 2 runs") && said.contains("VM 2 of 2 runs"), "{said}");
    assert!(said.contains("VM 3 is refused") && said.contains("VZErrorDomain code 6"), "{said}");
    assert_eq!((bench.vms(), bench.chassis.live().unwrap()), (0, 0), "{said}");
}

#[tokio::test]
async fn a_proof_that_fails_says_where_and_leaves_nothing_either() {
    let bench = Bench::new().await;
    bench.chassis.set_fault(Fault::FailStartWith(Some(2))).unwrap();
    let failed = bench.prove();
    assert_eq!(failed.status.code(), Some(1));
    assert!(said(&failed).contains("VM 1 did not start") && said(&failed).contains("code 2"), "{}", said(&failed));
    assert_eq!((bench.vms(), bench.chassis.live().unwrap()), (0, 0));

    // one ended VM stays counted: the second of the proof meets the limit, which is no proof
    bench.chassis.set_fault(Fault::FailStartWith(None)).unwrap();
    bench.chassis.set_fault(Fault::StickCounter(true)).unwrap();
    let proof = bench.prove();
    assert!(proof.status.success(), "{}", said(&proof));
    let stuck = bench.prove();
    assert!(said(&stuck).contains("VM 1 did not start") && said(&stuck).contains("code 6"), "{}", said(&stuck));
    assert_eq!(bench.vms(), 0);
}

#[tokio::test]
async fn a_proof_does_not_begin_beside_a_vm_or_an_agent_or_without_a_golden() {
    let bench = Bench::new().await;
    let vm = bench.made(1).await;
    vm.order(macrack_agent::vms::Command::Start);
    until_ready(&vm).await;
    let beside = bench.prove();
    assert_eq!(beside.status.code(), Some(1));
    assert!(said(&beside).contains("never ends a VM that is not its own"), "{}", said(&beside));
    assert_eq!(bench.chassis.live().unwrap(), 1, "it touched the VM that ran");
    drop(bench);

    let bench = Bench::new().await;
    let lock = bench.state_dir.lock().unwrap();
    assert!(said(&bench.prove()).contains("one chassis has one agent"));
    drop(lock);
    let empty = bench.doctor(&["--prove", "--golden", "/"]);
    assert!(said(&empty).contains("/disk.img is not there"), "{}", said(&empty));
    assert_eq!(bench.vms(), 0);
}
