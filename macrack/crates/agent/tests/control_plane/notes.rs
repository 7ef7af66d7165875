//! What a new agent of the same boot knows, and what it does where its own notes cannot be read.

use std::fs;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use macrack_agent::images::Cache;
use macrack_api::names;
use macrack_api::rack::node::{AgentStatus, Order, VmState};
use macrack_testkit::child::is_alive;
use macrack_testkit::expect;
use serde_json::json;

use crate::by_hand::{Rack, SOON};

fn findings(report: &AgentStatus) -> Vec<String> {
    let found = report.host.iter().flat_map(|host| &host.findings).filter(|finding| finding.check == "notes");
    found.map(|finding| finding.message.clone()).collect()
}

#[tokio::test]
async fn a_mac_whose_last_lease_cannot_be_read_says_so_until_it_has_another() {
    let mut rack = Rack::leased("lastlease").await;
    rack.until_report("the lease noted", |report| report.last_lease.is_some()).await;
    rack.agent.kill9().unwrap();
    let note = rack.state_dir().join("last-lease.json");
    fs::write(&note, "{").unwrap();
    // its MacNode was lost too, so that nobody else knows of the lease
    rack.make_mac_node_again().await;
    let report = rack.next_life().await;
    assert_eq!(report.last_lease, None);
    let said = findings(&report);
    assert!(
        said.len() == 1 && said[0].contains("given to nobody new") && said[0].contains("last-lease.json"),
        "{said:?}"
    );
    assert_eq!(fs::read_to_string(&note).unwrap(), "{", "what could not be read is thrown away");

    rack.lease().await;
    let noted = rack.until_report("noted anew", |report| report.last_lease.is_some()).await;
    assert_eq!(findings(&noted), Vec::<String>::new());
    assert!(findings(&rack.next_life().await).is_empty(), "the note is whole again");
}

#[tokio::test]
async fn a_counter_whose_note_cannot_be_read_starts_nothing_until_the_next_boot_and_stops_nothing() {
    let mut rack = Rack::leased("counter").await;
    let [one, two] = [rack.instance("one", None).await, rack.instance("two", None).await];
    rack.order(&[("one", &one, Order::Run)]).await;
    rack.placeholder("one", &one).await;
    rack.until_ready(&one).await;
    let pid = i32::try_from(rack.vm_dir(&one).read_state().unwrap().unwrap().report.pid).unwrap();
    rack.agent.kill9().unwrap();
    fs::write(rack.state_dir().join("quota.json"), "{").unwrap();
    rack.placeholder("two", &two).await;
    rack.order(&[("one", &one, Order::Run), ("two", &two, Order::Run)]).await;
    for _ in 0..2 {
        let report = rack.next_life().await;
        assert!(findings(&report)[0].contains("reboot this Mac"), "an agent's restart forgets it: {report:?}");
        assert!(!report.quota.stuck && report.quota.checked_boot_id.is_none(), "{:?}", report.quota);
        rack.until_vm(&two, "held back", |vm| {
            let words = vm.message.as_deref().unwrap_or_default();
            vm.state == VmState::Waiting && words.contains("is not known") && words.contains("quota.json")
        })
        .await;
        assert!(is_alive(pid) && !rack.vm_dir(&two).path().exists());
    }
    rack.agent.kill9().unwrap();
    rack.chassis.reboot().unwrap();
    let report = rack.next_life().await;
    assert_eq!(findings(&report), Vec::<String>::new());
    for uid in [&one, &two] {
        rack.until_ready(uid).await;
    }
}

#[tokio::test]
async fn a_foreign_vm_is_in_the_very_first_report_of_a_new_agent() {
    let mut rack = Rack::leased("stranger").await;
    rack.until_report("a report", |_| true).await;
    rack.agent.kill9().unwrap();
    // this very process holds a VM that is not MacRack's
    let (kernel, chassis) = (rack.chassis.kernel(), rack.chassis.read().unwrap());
    let lock = kernel.lock().unwrap();
    let process = kernel.enrol(&lock, &chassis, "foreign").unwrap();
    let slot = kernel.take_slot(&lock, &chassis, &process, "foreign").unwrap();
    drop(lock);
    assert_eq!(rack.next_life().await.quota.foreign, 1, "a report without it ends its quarantine");
    drop((slot, process));
}

#[tokio::test]
async fn a_placeholder_that_was_called_not_ready_during_an_outage_is_put_right() {
    let rack = Rack::leased("ready").await;
    let uid = rack.instance("one", None).await;
    rack.order(&[("one", &uid, Order::Run)]).await;
    rack.placeholder("one", &uid).await;
    let name = names::placeholder("one");
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    let before = expect::until_seen(&rack.pods(), &name, "Ready", SOON, ready).await;
    // as the node controller does it: it never takes it back
    let not_ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let written = rack.pods().patch_status(&name, &PatchParams::default(), &Patch::Strategic(not_ready)).await;
    let written = expect::accepts(written);
    assert!(!ready(&written));
    let after = expect::until_seen(&rack.pods(), &name, "Ready again", SOON, ready).await;
    assert_ne!(after.metadata.resource_version, before.metadata.resource_version);
}

#[tokio::test]
async fn a_new_agent_evicts_no_golden_before_it_has_read_the_settings_that_keep_it() {
    let mut rack = Rack::leased("goldens").await;
    rack.configure(&json!({ "imageCache": { "maxGoldens": 4, "evictAfter": "8784h" } })).await;
    rack.until_report("a report", |_| true).await;
    rack.agent.kill9().unwrap();
    // more than are kept without settings, one of them used a month ago
    let cache = Cache::open(rack.state_dir().join("images")).unwrap();
    for (n, hours) in [(1, 0), (2, 1), (3, 720)] {
        let hex = format!("{n:064x}");
        let partial = cache.begin(&hex).unwrap();
        for name in ["disk.img", "aux.img"] {
            fs::write(partial.join(name), name).unwrap();
        }
        cache.publish(&hex, b"{}", Timestamp::now() - SignedDuration::from_hours(hours)).unwrap();
    }
    rack.next_life().await;
    let report = rack.until_report("its goldens", |report| !report.goldens.is_empty()).await;
    assert_eq!((report.goldens.len(), cache.list().unwrap().len()), (3, 3), "evicted by settings that nobody made");
}
