//! What the schema of MacNode holds against everybody, the operator included.

use kube::api::DynamicObject;
use macrack_testkit::expect::{accepts, rejects};
use serde_json::{Value, json};

use crate::world::{World, create, mac, moment, node_class, patch, patch_status, replace, world};

const ONE: &str = "11111111-1111-1111-1111-111111111111";
const TWO: &str = "22222222-2222-2222-2222-222222222222";
const THREE: &str = "33333333-3333-3333-3333-333333333333";

async fn new_mac(world: &World) -> Value {
    let class = node_class();
    let mac = mac(&class);
    for object in [&class, &mac] {
        create(&world.admin, object).await.unwrap();
    }
    mac
}

fn lease_ref(uid: &str, hours: i64) -> Value {
    json!({"namespace": "team-a", "name": "l", "uid": uid, "boundAt": "2026-03-02T09:00:00Z",
           "earliestReleaseAt": format!("2026-03-{:02}T{:02}:00:00Z", 2 + (9 + hours) / 24, (9 + hours) % 24)})
}

fn slot(slot: u8, uid: &str, order: &str) -> Value {
    json!({"slot": slot, "uid": uid, "namespace": "team-a", "name": format!("vm-{}", &uid[..1]), "order": order})
}

fn agent(vms: &[(&str, &str)]) -> Value {
    let vms: Vec<Value> = vms.iter().map(|(uid, state)| json!({"uid": uid, "state": state})).collect();
    json!({"version": "0.1.0", "bootID": "b", "vms": vms})
}

async fn status(world: &World, mac: &Value, status: Value) -> kube::Result<DynamicObject> {
    patch_status(&world.operator, mac, status).await
}

#[tokio::test]
async fn a_third_slot_does_not_exist() {
    let world = world().await;
    let mac = new_mac(&world).await;
    let two = [slot(0, ONE, "Run"), slot(1, TWO, "Run")];
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 24), "slots": two})).await);
    let third = [two[0].clone(), two[1].clone(), slot(2, THREE, "Run")];
    rejects(
        status(&world, &mac, json!({ "slots": third })).await,
        "status.slots: Too many: 3: must have at most 2 items",
    );
    rejects(status(&world, &mac, json!({"slots": [slot(2, THREE, "Run")]})).await, "status.slots[0].slot");
    let twice = [slot(0, ONE, "Run"), slot(0, THREE, "Run")];
    rejects(status(&world, &mac, json!({ "slots": twice })).await, "Duplicate value");
    let same = [slot(0, ONE, "Run"), slot(1, ONE, "Run")];
    let fresh = new_mac(&world).await;
    rejects(status(&world, &fresh, json!({"leaseRef": lease_ref(ONE, 24), "slots": same})).await, "[one-slot-per-vm]");
}

#[tokio::test]
async fn a_slot_is_emptied_only_after_its_vm_was_wiped() {
    let world = world().await;
    let mac = new_mac(&world).await;
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 24), "slots": [slot(0, ONE, "Run")]})).await);
    let rule = "[slot-until-wiped]";
    rejects(status(&world, &mac, json!({"slots": []})).await, rule);
    rejects(status(&world, &mac, json!({"slots": null})).await, rule);
    rejects(status(&world, &mac, json!({"slots": [slot(0, TWO, "Run")]})).await, rule);
    rejects(status(&world, &mac, json!({"slots": [slot(1, ONE, "Run")]})).await, rule);
    // ordered, but not reported; reported, but not ordered
    accepts(status(&world, &mac, json!({"slots": [slot(0, ONE, "Wipe")]})).await);
    rejects(status(&world, &mac, json!({"slots": []})).await, rule);
    rejects(status(&world, &mac, json!({"slots": [slot(0, ONE, "Run")]})).await, rule);
    accepts(status(&world, &mac, json!({"agent": agent(&[(ONE, "Wiping")])})).await);
    rejects(status(&world, &mac, json!({"slots": []})).await, rule);
    accepts(status(&world, &mac, json!({"agent": agent(&[(ONE, "Wiped")])})).await);
    accepts(status(&world, &mac, json!({"slots": [slot(0, TWO, "Run")]})).await);
    accepts(status(&world, &mac, json!({"agent": agent(&[(TWO, "Wiped")])})).await);
    rejects(status(&world, &mac, json!({"slots": []})).await, rule);
}

#[tokio::test]
async fn a_chassis_passes_from_lease_to_lease_only_empty() {
    let world = world().await;
    let mac = new_mac(&world).await;
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 24), "slots": [slot(0, ONE, "Run")]})).await);
    rejects(status(&world, &mac, json!({"leaseRef": lease_ref(TWO, 24)})).await, "[lease-ref-once]");
    rejects(status(&world, &mac, json!({"leaseRef": null})).await, "[clear-when-empty]");
    let releasing = json!({"leaseRef": {"releasing": true}});
    accepts(status(&world, &mac, releasing).await);
    rejects(status(&world, &mac, json!({"leaseRef": null})).await, "[clear-when-empty]");
    rejects(status(&world, &mac, json!({"leaseRef": {"releasing": false}})).await, "[releasing-stays]");
    accepts(status(&world, &mac, json!({"slots": [slot(0, ONE, "Wipe")], "agent": agent(&[(ONE, "Wiped")])})).await);
    rejects(status(&world, &mac, json!({"leaseRef": null})).await, "[clear-when-empty]");
    accepts(status(&world, &mac, json!({"slots": []})).await);
    accepts(status(&world, &mac, json!({"leaseRef": null})).await);
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(TWO, 24)})).await);
}

fn entry(reason: &str, hour: u8, boot: &str) -> Value {
    json!({"reason": reason, "since": format!("2026-03-02T{hour:02}:00:00Z"), "bootID": boot})
}

fn boot(id: &str, stuck: bool, checked: Option<&str>) -> Value {
    json!({"agent": {"version": "0.1.0", "bootID": id, "quota": {"stuck": stuck, "checkedBootID": checked}}})
}

#[tokio::test]
async fn a_quarantine_is_left_only_as_its_reason_demands() {
    let world = world().await;
    let mac = new_mac(&world).await;
    let rule = "[quarantine-stays]";
    let listed = async |entries: &[Value]| status(&world, &mac, json!({ "quarantine": entries })).await;
    let all = ["QuotaStuck", "SerialMismatch", "WipeFailed"].map(|reason| entry(reason, 9, "one"));
    let [stuck, board, remains] = all.clone();
    accepts(status(&world, &mac, boot("one", true, Some("one"))).await);
    accepts(listed(&[all.as_slice(), &[entry("ForeignVM", 9, "one")]].concat()).await);
    // the others end with what the agent reports, and the operator alone judges that
    accepts(listed(&all).await);
    rejects(listed(&[]).await, rule);
    rejects(status(&world, &mac, json!({"quarantine": null})).await, rule);
    for other in [entry("QuotaStuck", 10, "one"), entry("QuotaStuck", 9, "two")] {
        rejects(listed(&[other, board.clone(), remains.clone()]).await, rule);
    }
    let rest = [board.clone(), remains.clone()];
    for report in [
        boot("one", false, Some("one")),
        boot("two", false, None),
        boot("two", false, Some("one")),
        boot("two", true, Some("two")),
    ] {
        accepts(status(&world, &mac, report.clone()).await);
        let written = listed(&rest).await;
        assert!(written.is_err(), "not earned by {report}");
        rejects(written, rule);
    }
    // it sticks in the new boot too; what an old cache held of the boot before does not come back
    let moved = entry("QuotaStuck", 9, "two");
    accepts(listed(&[moved.clone(), board.clone(), remains.clone()]).await);
    rejects(listed(&[stuck, board.clone(), remains.clone()]).await, rule);
    accepts(status(&world, &mac, boot("three", false, Some("three"))).await);
    accepts(listed(&rest).await);
    // a new boot ends neither of these; an admin ends exactly the one whose token is echoed
    rejects(listed(std::slice::from_ref(&board)).await, rule);
    let clear = async |token: &str| patch(&world.admin, &mac, json!({"spec": {"clearedQuarantine": token}})).await;
    rejects(clear("WipeFailed@yesterday").await, "spec.clearedQuarantine");
    accepts(clear("WipeFailed@2026-03-02T08:00:00Z").await);
    rejects(listed(std::slice::from_ref(&board)).await, rule);
    accepts(clear("WipeFailed@2026-03-02T09:00:00Z").await);
    rejects(listed(std::slice::from_ref(&remains)).await, rule);
    accepts(listed(std::slice::from_ref(&board)).await);
    accepts(clear("SerialMismatch@2026-03-02T09:00:00Z").await);
    accepts(listed(&[]).await);
}

#[tokio::test]
async fn when_the_policy_last_approved_a_reboot_is_not_forgotten() {
    let world = world().await;
    let mac = new_mac(&world).await;
    let at = |hour: u8| json!({"policyRebootAt": format!("2026-03-02T{hour:02}:00:00Z")});
    accepts(status(&world, &mac, at(9)).await);
    rejects(status(&world, &mac, at(8)).await, "[policy-reboot-stays]");
    rejects(status(&world, &mac, json!({"policyRebootAt": null})).await, "[policy-reboot-stays]");
    accepts(status(&world, &mac, at(10)).await);
}

#[tokio::test]
async fn a_floor_is_a_day_at_least_and_never_falls() {
    let world = world().await;
    let mac = new_mac(&world).await;
    rejects(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 23)})).await, "[floor-24h]");
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 30)})).await);
    rejects(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 24)})).await, "[floor-never-falls]");
    rejects(
        status(&world, &mac, json!({"leaseRef": {"boundAt": "2026-03-02T08:00:00Z"}})).await,
        "[floor-never-falls]",
    );
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 48)})).await);
}

#[tokio::test]
async fn a_status_is_never_dropped_whole() {
    let world = world().await;
    let mac = new_mac(&world).await;
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 24), "slots": [slot(0, ONE, "Run")]})).await);
    // the operator has no right to PUT; not even an admin who broke the glass gets through
    accepts(patch(&world.admin, &mac, json!({"metadata": {"annotations": {"macrack.io/break-glass": "a try"}}})).await);
    let api = crate::world::api_of(&world.admin, &mac);
    let stored = api.get(crate::world::name(&mac)).await.unwrap();
    let mut bare = serde_json::to_value(&stored).unwrap();
    bare.as_object_mut().unwrap().remove("status");
    let written = api.replace_status(crate::world::name(&mac), &Default::default(), &crate::world::read(&bare)).await;
    rejects(written, "[status-kept]");
}

#[tokio::test]
async fn a_mac_is_named_by_its_serial_and_keeps_it() {
    let world = world().await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let mut odd = mac(&class);
    odd["metadata"]["name"] = json!("my-mac");
    rejects(create(&world.admin, &odd).await, "[name-is-serial]");
    for serial in ["h4xk29q0lw", "H4XK-29Q0LW", "", "H4X"] {
        let mut wrong = mac(&class);
        wrong["spec"]["serial"] = json!(serial);
        rejects(create(&world.admin, &wrong).await, "spec.serial");
    }
    let mac = mac(&class);
    accepts(create(&world.admin, &mac).await);
    rejects(patch(&world.admin, &mac, json!({"spec": {"serial": "OTHER00000"}})).await, "[serial-fixed]");
    accepts(status(&world, &mac, json!({"leaseRef": lease_ref(ONE, 24)})).await);
    rejects(patch(&world.admin, &mac, json!({"spec": {"nodeClassName": "other"}})).await, "[class-fixed-while-leased]");
    // what is not declared is dropped, under any name that suggests itself
    let stored = accepts(replace(&world.admin, &mac, |o| o["spec"]["maxVMs"] = json!(3)).await);
    assert_eq!(stored.data["spec"].get("maxVMs"), None);
}

#[tokio::test]
async fn an_ended_lease_and_a_bound_floor_are_final() {
    let world = world().await;
    let tenant = world.tenant("final").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let lease = tenant.lease("l", &class);
    create(&tenant.client, &lease).await.unwrap();
    world.bind(&lease, "H4XKFINAL1", 0).await;
    rejects(
        patch_status(&world.operator, &lease, json!({"earliestReleaseAt": moment(1)})).await,
        "[floor-never-falls]",
    );
    rejects(patch_status(&world.operator, &lease, json!({"earliestReleaseAt": null})).await, "[floor-never-falls]");
    accepts(patch_status(&world.operator, &lease, json!({"end": {"reason": "Expired", "at": moment(0)}})).await);
    rejects(patch(&tenant.client, &lease, json!({"spec": {"minimumDuration": "48h"}})).await, "[ended-is-final]");
    rejects(patch_status(&world.operator, &lease, json!({"end": null})).await, "[ended-is-final]");
}
