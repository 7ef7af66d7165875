//! Macs that go down: a stuck counter and its one reboot, a power cut, another board, a crashed VM process. Operator,
//! agent, macrack-hostd, VM processes and guests are the product's own; only the Mac is simulated.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Node, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use macrack_acceptance::{Mac, Rack, SOON, mac, objects};
use macrack_api::{
    MacNode, MacNodeLease, MacOSInstance, RackConfig, condition,
    instance::macos_instance::MacOSInstancePhase as Phase,
    rack::node::{Approver, MacNodePhase, MacNodeStatus},
};
use macrack_testkit::{Namespace, expect};
use macrack_vm::sim::Fault;
use macrack_wire::{StopCause, VmState};
use serde_json::json;

/// A VM's whole way from its order to Ready, on a machine that others use too.
const START: Duration = Duration::from_secs(60);

/// One class, one size and one golden for the tests of this binary, each under its own name.
struct Stage {
    rack: &'static Rack,
    admin: Client,
    name: &'static str,
    ns: Namespace,
}

impl Stage {
    async fn set(name: &'static str, minor: u32) -> Result<Stage> {
        let rack = Rack::shared();
        let admin = rack.plane.admin().await?;
        objects::make(&admin, &objects::node_class(name)).await?;
        objects::make(&admin, &objects::instance_class(name)).await?;
        mac::golden_of(rack, name, minor).await?;
        let ns = Namespace::fresh(rack.plane, name).await?;
        Ok(Stage { rack, admin, name, ns })
    }

    /// A Mac of its own, leased to this stage's namespace under `lease`.
    async fn leased(&self, serial: &str, lease: &str) -> Result<Mac> {
        let mac = Mac::enrol(self.rack, serial, self.name).await?;
        let mut wish = objects::lease(lease, self.name);
        wish.spec.serial = Some(serial.to_owned());
        objects::make_in(&self.admin, self.ns.name(), &wish).await?;
        let leases: Api<MacNodeLease> = Api::namespaced(self.admin.clone(), self.ns.name());
        let bound = |l: &MacNodeLease| l.status.as_ref().is_some_and(|s| s.serial.as_deref() == Some(serial));
        expect::until_seen(&leases, lease, "bound", SOON, bound).await;
        Ok(mac)
    }

    fn instances(&self) -> Api<MacOSInstance> {
        Api::namespaced(self.admin.clone(), self.ns.name())
    }

    async fn create(&self, name: &str, lease: &str) -> Result<()> {
        let instance = objects::instance(name, lease, self.name, self.name);
        objects::make_in(&self.admin, self.ns.name(), &instance).await?;
        Ok(())
    }

    async fn until(&self, name: &str, phase: Phase) -> MacOSInstance {
        let is = |i: &MacOSInstance| i.status.as_ref().is_some_and(|s| s.phase == Some(phase));
        expect::until_seen(&self.instances(), name, &format!("{phase:?}"), START, is).await
    }

    async fn ready(&self, name: &str, lease: &str) -> Result<String> {
        self.create(name, lease).await?;
        Ok(self.until(name, Phase::Ready).await.uid().unwrap_or_default())
    }

    async fn until_node(&self, mac: &Mac, what: &str, is: impl Fn(&MacNodeStatus) -> bool + Sync) -> MacNodeStatus {
        let nodes: Api<MacNode> = Api::all(self.admin.clone());
        let is = |n: &MacNode| n.status.as_ref().is_some_and(&is);
        let node = expect::until_seen(&nodes, &mac.serial.to_lowercase(), what, START, is).await;
        node.status.unwrap_or_default()
    }

    async fn events(&self, mac: &Mac) -> Result<Vec<String>> {
        let events: Api<Event> = Api::all(self.admin.clone());
        let of = ListParams::default().fields(&format!("involvedObject.name={}", mac.serial.to_lowercase()));
        Ok(events.list(&of).await?.items.into_iter().filter_map(|event| event.reason).collect())
    }
}

fn reason(status: &MacNodeStatus, type_: &str) -> String {
    condition::find(&status.conditions, type_).map(|c| c.reason.clone()).unwrap_or_default()
}

fn message(status: &MacNodeStatus, type_: &str) -> String {
    condition::find(&status.conditions, type_).map(|c| c.message.clone()).unwrap_or_default()
}

/// Every start is refused with code 6 although nothing runs.
fn refuse_starts(mac: &Mac, on: bool) -> Result<()> {
    Ok(mac.chassis.set_fault(Fault::FailStartWith(on.then_some(6)))?)
}

#[tokio::test]
async fn of_three_macs_that_stick_one_is_back_by_itself_one_never_returns_and_one_waits_for_an_admin() -> Result<()> {
    let stage = Stage::set("sticks", 31).await?;
    let configs: Api<RackConfig> = Api::all(stage.admin.clone());
    let quota = json!({ "reboot": "Automatic", "budget": 2, "deadline": "1m" });
    let config = objects::object(json!({ "metadata": { "name": "default" }, "spec": { "quota": quota } }));
    configs.create(&PostParams::default(), &config).await?;

    one_reboot_by_policy(&stage).await?;
    let lost = never_returns(&stage).await?;
    an_admin_approves_what_the_budget_does_not(&stage).await?;
    said_and_left_alone(&stage, lost).await
}

/// Two run, one goes, its count stays: the next start is refused with one alive.
async fn one_reboot_by_policy(stage: &Stage) -> Result<()> {
    let mut mac = stage.leased("STICKS0001", "a").await?;
    let ran = tempfile::tempdir()?;
    let script = format!("#!/bin/sh\necho ran >> {}/ran\n", ran.path().display());
    let secrets: Api<Secret> = Api::namespaced(stage.admin.clone(), stage.ns.name());
    let secret = objects::object(json!({ "metadata": { "name": "boot" }, "stringData": { "setup.sh": script } }));
    secrets.create(&PostParams::default(), &secret).await?;
    let mut kept = objects::instance("kept", "a", stage.name, stage.name);
    let from = json!({ "scriptFrom": { "secretKeyRef": { "name": "boot", "key": "setup.sh" } } });
    kept.spec.first_boot = Some(objects::object(from));
    objects::make_in(&stage.admin, stage.ns.name(), &kept).await?;
    let uid = stage.until("kept", Phase::Ready).await.uid().context("a uid")?;
    let done =
        |i: &MacOSInstance| condition::is_true(&i.status.clone().unwrap_or_default().conditions, "FirstBootDone");
    expect::until_seen(&stage.instances(), "kept", "through its first boot", START, done).await;
    let before = stage.until_node(&mac, "leased", |s| s.lease_ref.is_some()).await;
    let identity = mac.vm(&uid).read_description()?;

    mac.chassis.set_fault(Fault::StickCounter(true))?;
    stage.ready("gone", "a").await?;
    stage.instances().delete("gone", &Default::default()).await?;
    expect::until_gone(&stage.instances(), "gone", START).await;
    assert_eq!((mac.chassis.running()?.len(), mac.chassis.live()?), (1, 2), "one runs, two are counted");
    stage.create("next", "a").await?;

    mac.goes_down(1, START).await?;
    let ended = mac.vm(&uid).read_state()?.context("the VM wrote how it ended")?.report;
    assert_eq!(
        (ended.state, ended.stop_cause),
        (VmState::Stopped, Some(StopCause::Requested)),
        "cut off by the reboot"
    );
    let quarantined = stage.until_node(&mac, "quarantined", |s| s.phase == Some(MacNodePhase::Quarantined)).await;
    let reboot = quarantined.reboot.clone().context("a reboot was asked for")?;
    assert_eq!((reboot.approved_by, reboot.reason.as_str()), (Some(Approver::Policy), "QuotaStuck"));
    assert_eq!(reason(&quarantined, "QuotaHealthy"), "QuotaStuck");
    let next = stage.instances().get("next").await?.status.and_then(|s| s.phase);
    assert_ne!(next, Some(Phase::Failed), "it waits");
    let kube: Api<Node> = Api::all(stage.admin.clone());
    let node = kube.get("macrack-sticks0001").await?;
    assert_eq!(node.spec.and_then(|s| s.unschedulable), Some(true));

    mac.chassis.set_fault(Fault::StickCounter(false))?;
    mac.comes_up()?;
    stage.until("kept", Phase::Ready).await;
    stage.until("next", Phase::Ready).await;
    let after = stage.until_node(&mac, "its tenant's again", |s| s.phase == Some(MacNodePhase::Leased)).await;
    assert_eq!(after.lease_ref, before.lease_ref, "the same lease with the same floor");
    let boot = mac.chassis.boot_id()?;
    assert_eq!(after.reboot.and_then(|r| r.done_boot_id).as_deref(), Some(boot.as_str()));
    assert_eq!(mac.vm(&uid).read_description()?, identity, "the same disk, identity and address");
    assert_eq!(fs::read_to_string(ran.path().join("ran"))?, "ran\n", "the first boot was run again");
    assert_eq!(mac.chassis.read()?.boots, 2, "one reboot in all");
    let told = stage.events(&mac).await?;
    for step in ["QuotaStuck", "Rebooting", "AwaitsSelfTest", "Leased"] {
        assert!(told.iter().any(|reason| reason == step), "no event {step}: {told:?}");
    }
    Ok(())
}

async fn never_returns(stage: &Stage) -> Result<Mac> {
    let mac = stage.leased("STICKS0002", "b").await?;
    mac.chassis.set_fault(Fault::NeverReturns(true))?;
    refuse_starts(&mac, true)?;
    stage.create("lost", "b").await?;
    mac.goes_down(1, START).await?;
    Ok(mac)
}

/// The policy has approved two within a day.
async fn an_admin_approves_what_the_budget_does_not(stage: &Stage) -> Result<()> {
    let mut mac = stage.leased("STICKS0003", "c").await?;
    mac.chassis.set_fault(Fault::StickCounter(true))?;
    for name in ["patient", "brief"] {
        stage.ready(name, "c").await?;
    }
    stage.instances().delete("brief", &Default::default()).await?;
    expect::until_gone(&stage.instances(), "brief", START).await;
    stage.create("late", "c").await?;
    let waits = |s: &MacNodeStatus| reason(s, "RebootSettled") == "AwaitsApproval";
    let status = stage.until_node(&mac, "waiting for an admin", waits).await;
    assert!(message(&status, "RebootSettled").contains("budget (quota.budget) is 2"), "{status:?}");
    let token = status.reboot.clone().context("a request")?.requested_at.0.to_string();

    let kubectl = async |args: &[&str]| stage.rack.plane.kubectl(&[&["macrack", "reboot"], args].concat()).await;
    macrack_testkit::bin("kubectl-macrack")?;
    let shown = kubectl(&["sticks0003"]).await?.success()?;
    for part in ["QuotaStuck", &token, &format!("{}/c", stage.ns.name()), "patient", "--approve"] {
        assert!(shown.contains(part), "{part} is not in: {shown}");
    }
    let stale = kubectl(&["sticks0003", "--approve", "2026-01-01T00:00:00Z"]).await?;
    assert!(!stale.status.success() && stale.stderr.contains("another request"), "{stale:?}");
    assert_eq!(mac.chassis.read()?.boots, 1, "nobody has approved it");
    mac.chassis.set_fault(Fault::StickOverReboot(true))?;
    kubectl(&["sticks0003", "--approve", &token]).await?.success()?;
    mac.goes_down(1, START).await?;
    mac.comes_up()?;
    let token = stuck_again(stage, &mac, &status).await?;
    mac.chassis.set_fault(Fault::StickCounter(false))?;
    mac.chassis.set_fault(Fault::StickOverReboot(false))?;
    kubectl(&["sticks0003", "--approve", &token]).await?.success()?;
    mac.goes_down(2, START).await?;
    mac.comes_up()?;
    for name in ["patient", "late"] {
        stage.until(name, Phase::Ready).await;
    }
    let after = stage.until_node(&mac, "its tenant's again", |s| s.phase == Some(MacNodePhase::Leased)).await;
    assert_eq!(after.reboot.and_then(|r| r.approved_by), Some(Approver::Admin));
    let again = kubectl(&["sticks0003"]).await?;
    assert!(again.stderr.contains("nothing asks for a reboot"), "{again:?}");
    Ok(())
}

/// The first reboot did not free the counter: the same quarantine, now of the new boot, and another request, which the
/// old approval does not cover.
async fn stuck_again(stage: &Stage, mac: &Mac, before: &MacNodeStatus) -> Result<String> {
    let (boot, first) = (mac.chassis.boot_id()?, before.reboot.clone().context("a request")?.requested_at);
    let other = |s: &MacNodeStatus| {
        let asked = s.reboot.as_ref().is_some_and(|reboot| reboot.requested_at > first);
        asked && reason(s, "RebootSettled") == "AwaitsApproval"
    };
    let status = stage.until_node(mac, "stuck again and waiting for an admin", other).await;
    let entry = |s: &MacNodeStatus| s.quarantine.first().cloned().context("an entry");
    let (was, is) = (entry(before)?, entry(&status)?);
    assert_eq!((is.reason, is.since, is.boot_id), (was.reason, was.since, boot), "one quarantine over both boots");
    assert_eq!((mac.chassis.live()?, mac.chassis.running()?.len()), (2, 0), "two are counted and none runs");
    assert_eq!(mac.chassis.read()?.boots, 2, "one approval, one reboot");
    assert!(message(&status, "RebootSettled").contains("which is another request"), "{status:?}");
    Ok(status.reboot.context("a request")?.requested_at.0.to_string())
}

async fn said_and_left_alone(stage: &Stage, mut mac: Mac) -> Result<()> {
    let nodes: Api<MacNode> = Api::all(stage.admin.clone());
    let late = |n: &MacNode| n.status.as_ref().is_some_and(|s| reason(s, "RebootSettled") == "RebootTimedOut");
    let node = expect::until_seen(&nodes, "sticks0002", "RebootTimedOut", Duration::from_secs(90), late).await;
    let status = node.status.unwrap_or_default();
    assert_eq!(status.lease_ref.as_ref().map(|r| r.name.as_str()), Some("b"), "its lease stays");
    assert!(message(&status, "RebootSettled").contains("by hand"), "{status:?}");
    assert_eq!(mac.chassis.read()?.boots, 2, "one reboot command");
    assert!(stage.events(&mac).await?.iter().any(|reason| reason == "RebootTimedOut"));
    // hands; and while it was away its one instance was deleted, so that no VM is to run in the new boot
    stage.instances().delete("lost", &Default::default()).await?;
    mac.chassis.start_by_hand()?;
    refuse_starts(&mac, false)?;
    mac.comes_up()?;
    expect::until_gone(&stage.instances(), "lost", START).await;
    let empty = |s: &MacNodeStatus| {
        let vms = s.agent.as_ref().map(|agent| agent.vms.as_slice()).unwrap_or_default();
        assert!(vms.iter().all(|vm| vm.uid != macrack_agent::selftest::UID), "the self test is nobody's VM");
        s.phase == Some(MacNodePhase::Leased) && s.slots.is_empty() && vms.is_empty()
    };
    stage.until_node(&mac, "its tenant's again and empty", empty).await;
    let wiped = async || !mac.vm(macrack_agent::selftest::UID).path().exists();
    expect::until_effective("the wipe of the self test", START, wiped).await;
    assert_eq!(mac.chassis.live()?, 0);
    Ok(())
}

#[tokio::test]
async fn in_maintenance_what_runs_is_stopped_and_kept_and_runs_again_after_it() -> Result<()> {
    let stage = Stage::set("drains", 36).await?;
    let mac = stage.leased("DRAINS0001", "l").await?;
    let uid = stage.ready("vm", "l").await?;
    macrack_testkit::bin("kubectl-macrack")?;
    let kubectl = async |args: &[&str]| stage.rack.plane.kubectl(args).await;
    let alone = kubectl(&["patch", "mn", "drains0001", "--type=merge", "-p", r#"{"spec":{"drain":true}}"#]).await?;
    assert!(alone.stderr.contains("[drain-in-maintenance]"), "{alone:?}");
    let said = kubectl(&["macrack", "maintenance", "drains0001", "--on", "--drain"]).await?.success()?;
    assert!(said.contains(&format!("stopped cleanly and kept: {}/vm", stage.ns.name())), "{said}");
    stage.until("vm", Phase::Stopped).await;
    assert_eq!(running(&mac)?, Vec::<String>::new());
    let drained = stage.until_node(&mac, "drained", |s| message(s, "Ready").contains("nothing runs on it")).await;
    assert_eq!((drained.slots.len(), drained.lease_ref.map(|r| r.name)), (1, Some("l".to_owned())));
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(stage.admin.clone(), stage.ns.name());
    assert!(pods.get_opt("macrack-vm-vm").await?.is_some(), "its placeholder keeps the Mac's place");
    kubectl(&["macrack", "maintenance", "drains0001", "--off"]).await?.success()?;
    stage.until("vm", Phase::Ready).await;
    assert_eq!(running(&mac)?, [uid]);
    Ok(())
}

#[tokio::test]
async fn after_a_power_cut_what_is_to_run_runs_again_with_its_disk_and_what_is_to_be_off_stays_off() -> Result<()> {
    let stage = Stage::set("powercut", 32).await?;
    let mut mac = stage.leased("POWERC0001", "l").await?;
    let on = stage.ready("on", "l").await?;
    let off = stage.ready("off", "l").await?;
    objects::edit(&stage.instances(), "off", json!({ "spec": { "powerState": "Stopped" } })).await?;
    stage.until("off", Phase::Stopped).await;
    let identity = mac.vm(&on).read_description()?;
    mac.chassis.reboot()?;
    mac.goes_down(1, START).await?;
    assert_eq!(mac.chassis.live()?, 0, "every VM process died with the Mac");
    mac.comes_up()?;
    let again = |i: &MacOSInstance| {
        let vm = i.status.as_ref().and_then(|s| s.vm.as_ref());
        i.status.as_ref().is_some_and(|s| s.phase == Some(Phase::Ready)) && vm.is_some_and(|vm| vm.starts == 2)
    };
    expect::until_seen(&stage.instances(), "on", "started again", START, again).await;
    assert_eq!(mac.vm(&on).read_description()?, identity);
    stage.until("off", Phase::Stopped).await;
    assert_eq!(running(&mac)?, std::slice::from_ref(&on));
    let status = stage.until_node(&mac, "leased", |s| s.phase == Some(MacNodePhase::Leased)).await;
    assert_eq!((status.reboot, status.quarantine.len()), (None, 0), "an unasked reboot quarantines nothing");
    assert_eq!(status.slots.len(), 2, "{off} keeps its slot");
    Ok(())
}

fn running(mac: &Mac) -> Result<Vec<String>> {
    Ok(mac.chassis.running()?.into_iter().map(|(_, uid)| uid).collect())
}

#[tokio::test]
async fn another_board_in_an_enrolled_mac_is_quarantined_until_an_admin_clears_it() -> Result<()> {
    let stage = Stage::set("boards", 33).await?;
    let mut mac = stage.leased("BOARDS0001", "l").await?;
    mac.chassis.modify(|chassis| chassis.faults.swap_serial = Some("ZZOTHER001".into()))?;
    mac.chassis.reboot()?;
    mac.goes_down(1, START).await?;
    mac.comes_up()?;
    let mismatch = |s: &MacNodeStatus| reason(s, "Ready") == "SerialMismatch";
    let status = stage.until_node(&mac, "quarantined for its board", mismatch).await;
    assert_eq!(status.phase, Some(MacNodePhase::Quarantined));
    assert!(message(&status, "HardwareMatchesClass").contains("ZZOTHER001"), "{status:?}");
    stage.create("waits", "l").await?;
    stage.until("waits", Phase::Pending).await;
    // the right board again clears nothing by itself
    mac.chassis.modify(|chassis| chassis.faults.swap_serial = Some("BOARDS0001".into()))?;
    mac.chassis.reboot()?;
    mac.goes_down(2, START).await?;
    mac.comes_up()?;
    let boot = mac.chassis.boot_id()?;
    let same = move |s: &MacNodeStatus| {
        let agent = s.agent.as_ref();
        agent.is_some_and(|a| a.boot_id == boot && a.hardware.as_ref().is_some_and(|h| h.serial == "BOARDS0001"))
    };
    let status = stage.until_node(&mac, "the right board", same).await;
    let token = status.quarantine.first().context("still quarantined")?.token();
    let nodes: Api<MacNode> = Api::all(stage.admin.clone());
    objects::edit(&nodes, "boards0001", json!({ "spec": { "clearedQuarantine": token } })).await?;
    stage.until_node(&mac, "cleared", |s| s.phase == Some(MacNodePhase::Leased)).await;
    stage.until("waits", Phase::Ready).await;
    Ok(())
}

#[tokio::test]
async fn a_vm_process_that_crashes_is_failed_with_its_reason_and_keeps_its_slot_until_it_is_wiped() -> Result<()> {
    let stage = Stage::set("crashes", 34).await?;
    let mac = stage.leased("CRASHE0001", "l").await?;
    let uid = stage.ready("crashed", "l").await?;
    let beside = stage.ready("beside", "l").await?;
    assert!(mac.chassis.kill(&uid)?);
    let failed = stage.until("crashed", Phase::Failed).await.status.unwrap_or_default();
    let ready = condition::find(&failed.conditions, "Ready").cloned().context("a reason")?;
    assert_eq!(ready.reason, "VMFailed");
    assert!(ready.message.contains("killed or crashed"), "{}", ready.message);
    let slots = |s: &MacNodeStatus| s.slots.iter().map(|slot| slot.uid.clone()).collect::<Vec<_>>();
    let status = stage.until_node(&mac, "leased", |s| s.phase == Some(MacNodePhase::Leased)).await;
    assert!(slots(&status).contains(&uid), "the slot of a failed VM is its own");
    assert_eq!(running(&mac)?, std::slice::from_ref(&beside), "it is not started again by itself");
    stage.instances().delete("crashed", &Default::default()).await?;
    expect::until_gone(&stage.instances(), "crashed", START).await;
    let status = stage.until_node(&mac, "emptied", |s| s.slots.len() == 1).await;
    assert_eq!(slots(&status), std::slice::from_ref(&beside));
    assert!(!mac.vm(&uid).path().exists(), "wiped");
    assert_eq!(running(&mac)?, [beside]);
    Ok(())
}

/// Every file in the agent's state directory that an agent of another version may have written.
fn state_files(dir: &Path, found: &mut BTreeMap<String, serde_json::Value>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() && !["chassis", "hostd", "images"].contains(&name.as_str()) {
            state_files(&path, found)?;
        } else if ["agent.json", "quota.json", "last-lease.json"].contains(&name.as_str()) {
            found.insert(path.display().to_string(), serde_json::from_slice(&fs::read(&path)?)?);
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_of_another_version_adopts_what_it_finds_and_a_second_agent_refuses() -> Result<()> {
    let stage = Stage::set("upgrade", 35).await?;
    let mut mac = stage.leased("UPGRAD0001", "l").await?;
    for name in ["one", "two"] {
        stage.ready(name, "l").await?;
    }
    let before = mac.chassis.running()?;
    let second = std::process::Command::new(macrack_testkit::bin("macrack-agent")?)
        .args(["run", "--image-store", &format!("dir:{}", stage.rack.store().display()), "--bootstrap"])
        .arg(mac.state_dir().with_file_name("bootstrap.json"))
        .arg("--state-dir")
        .arg(mac.state_dir())
        .output()?;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("one chassis has one agent"), "{said}");

    // down to an older agent's files, then up to a newer one's: fields that are not known yet, fields that are gone
    for newer in [false, true] {
        mac.agent.kill9()?;
        let mut files = BTreeMap::new();
        state_files(&mac.state_dir(), &mut files)?;
        assert!(files.len() >= 4, "{files:?}");
        for (path, mut value) in files {
            let fields = value.as_object_mut().context("an object")?;
            if newer {
                fields.insert("aFieldOfTheNextMinor".into(), json!({ "of": ["any", "shape"] }));
            } else {
                fields.retain(|name, _| name != "diskBytes" && name != "checkedBootID" && name != "stoppedByOrder");
            }
            fs::write(path, serde_json::to_vec(&value)?)?;
        }
        mac.agent.restart()?;
        mac.agent.until_logged("inventory: 2 VMs", START).await?;
        for name in ["one", "two"] {
            stage.until(name, Phase::Ready).await;
        }
        assert_eq!(mac.chassis.running()?, before, "the very same processes");
    }
    Ok(())
}
