//! The reject tables of what an admin writes: images and classes.

use kube::Client;
use macrack_testkit::expect::{accepts, rejects};
use serde_json::{Value, json};

use crate::world::{World, create, image, instance_class, name, node_class, patch, patch_status, world};

async fn refused(client: &Client, mut object: Value, change: impl Fn(&mut Value), fragments: &[&str]) {
    change(&mut object);
    rejects(create(client, &object).await, fragments);
}

#[tokio::test]
async fn a_golden_is_pinned_by_digest() {
    let world = world().await;
    for reference in [
        "registry.example.com/golden/tahoe",
        "registry.example.com/golden/tahoe:26.1",
        "registry.example.com/golden/tahoe@sha256:dd56",
        "registry.example.com/golden/tahoe@sha512:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
        "tahoe@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
        "Registry.example.com/golden/tahoe@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
    ] {
        let unpin = |o: &mut Value| o["spec"]["source"]["oci"]["image"] = json!(reference);
        refused(&world.admin, image(), unpin, &["[image-pinned] spec.source.oci.image", "@sha256:"]).await;
    }
}

#[tokio::test]
async fn a_golden_holds_one_macos_one_xcode_and_the_guest_agent_and_nothing_else() {
    let world = world().await;
    type Row = (fn(&mut Value), &'static [&'static str]);
    let table: [Row; 10] = [
        (
            |o| o["spec"]["contents"][2]["kind"] = json!("GitLabRunner"),
            &["[contents-kinds]", "runners, tools, keys are provisioned at first boot"],
        ),
        (|o| o["spec"]["contents"][2]["kind"] = json!("xcode"), &["[contents-kinds]"]),
        // keyed by kind, so a second Xcode is a duplicate key
        (
            |o| o["spec"]["contents"][2] = json!({"kind": "Xcode", "version": "16.4"}),
            &["spec.contents[2]: Duplicate value", "Xcode"],
        ),
        (
            |o| o["spec"]["contents"].as_array_mut().unwrap().push(json!({"kind": "Runner", "version": "1"})),
            &["spec.contents: Too many: 4"],
        ),
        (
            |o| o["spec"]["contents"].as_array_mut().unwrap().truncate(2),
            &["[contents-complete]", "add what is missing"],
        ),
        (|o| o["spec"]["contents"] = json!([]), &["spec.contents"]),
        (
            |o| o["spec"]["contents"][0]["version"] = json!("26.2-beta1"),
            &["[no-beta]", "betas and release candidates are not sold"],
        ),
        (|o| o["spec"]["contents"][1]["version"] = json!("26.2 RC"), &["[no-beta]"]),
        (
            |o| o["spec"]["contents"][1]["build"] = json!("17C5013i"),
            &["[no-beta]", "a build that ends in a small letter is a beta"],
        ),
        (|o| o["metadata"]["name"] = json!("x".repeat(64)), &["[name-63]"]),
    ];
    for (change, fragments) in table {
        refused(&world.admin, image(), change, fragments).await;
    }
}

#[tokio::test]
async fn a_tenants_name_does_not_stand_in_a_golden() {
    let world = world().await;
    let tenant = world.tenant("acme").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let ns = tenant.ns().to_owned();
    // before it holds a lease it is no tenant
    let mut early = image();
    early["metadata"]["name"] = json!(format!("tahoe-{ns}"));
    accepts(create(&world.admin, &early).await);
    create(&tenant.client, &tenant.lease("l", &class)).await.unwrap();

    let reference = |path: &str| json!(format!("registry.example.com/{path}@sha256:{}", "d".repeat(64)));
    for path in [format!("{ns}/tahoe"), format!("golden/xcode-{ns}-26"), format!("golden/tahoe:{ns}")] {
        let change = |o: &mut Value| o["spec"]["source"]["oci"]["image"] = reference(&path);
        refused(
            &world.admin,
            image(),
            change,
            &["[tenant-name]", "spec.source.oci.image", &ns, "a golden is for every tenant"],
        )
        .await;
    }
    let change = |o: &mut Value| o["metadata"]["name"] = json!(format!("tahoe-{ns}-xcode"));
    refused(&world.admin, image(), change, &["[tenant-name]", "metadata.name"]).await;
    let mut similar = image();
    similar["spec"]["source"]["oci"]["image"] = reference(&format!("golden/{ns}x"));
    accepts(create(&world.admin, &similar).await);
    rejects(
        patch(
            &world.admin,
            &similar,
            json!({"spec": {"source": {"oci": {"image": reference(&format!("golden/{ns}"))}}}}),
        )
        .await,
        "[tenant-name]",
    );
}

#[tokio::test]
async fn there_is_one_golden_per_pair_and_its_xcode_runs_on_its_macos() {
    let world = world().await;
    let first = image();
    accepts(create(&world.admin, &first).await);
    let contents = first["spec"]["contents"].clone();
    refused(
        &world.admin,
        image(),
        |o| o["spec"]["contents"] = contents.clone(),
        &["[same-pair]", name(&first), "use that one, or delete it first"],
    )
    .await;
    let old = |o: &mut Value| o["spec"]["contents"][0]["version"] = json!("15.5");
    refused(&world.admin, image(), old, &["[xcode-on-macos]", "Xcode 26.1 runs on macOS 15.6 or later"]).await;
    let said = warning(&world, &{
        let mut unknown = image();
        unknown["spec"]["contents"][1]["version"] = json!("77.7");
        unknown
    })
    .await;
    assert!(said.contains("Warning: Xcode 77.7 is not in MacRack's table"), "{said}");
}

#[tokio::test]
async fn a_ready_golden_does_not_change() {
    let world = world().await;
    let golden = image();
    accepts(create(&world.admin, &golden).await);
    // not resolved yet, it may be corrected
    accepts(patch(&world.admin, &golden, json!({"spec": {"minimumHostVersion": "15.0"}})).await);
    patch_status(&world.operator, &golden, json!({"phase": "Ready"})).await.unwrap();
    for change in [
        json!({"minimumHostVersion": "26.0"}),
        json!({"source": {"oci": {"image": format!("registry.example.com/other/x@sha256:{}", "e".repeat(64))}}}),
    ] {
        rejects(
            patch(&world.admin, &golden, json!({ "spec": change })).await,
            "[image-fixed-once-ready] spec: immutable once Ready",
        );
    }
}

async fn warning(world: &World, object: &Value) -> String {
    let said = world.plane.kubectl_with(&["create", "-f", "-"], &object.to_string()).await.unwrap();
    assert!(said.status.success(), "{}", said.stderr);
    said.stderr
}

#[tokio::test]
async fn a_class_of_which_one_fits_comes_with_advice() {
    let world = world().await;
    let mut small = node_class();
    small["spec"]["memory"] = json!("16Gi");
    create(&world.admin, &small).await.unwrap();
    let said = warning(&world, &instance_class(4, "8Gi", "100G")).await;
    assert!(said.contains("Warning: one VM advised on") && said.contains(name(&small)), "{said}");
    let mut another = node_class();
    another["spec"]["memory"] = json!("16Gi");
    let said = warning(&world, &another).await;
    assert!(said.contains("Warning: one VM advised of") && said.contains("a second does not fit"), "{said}");
}

#[tokio::test]
async fn a_class_of_mac_is_what_is_sold() {
    let world = world().await;
    for (field, value, fragment) in [
        ("storage", json!("999G"), "[storage-1t] spec.storage"),
        ("linkSpeed", json!("1G"), "[link-10g] spec.linkSpeed"),
        ("cpuCores", json!(2), "spec.cpuCores"),
        ("memory", json!("64GiB"), "spec.memory"),
        ("memory", json!("-64Gi"), "spec.memory"),
        ("chassis", json!("MacPro"), "spec.chassis"),
        ("hostReserve", json!({"cpuCores": 14}), "[reserve-below-capacity] spec.hostReserve.cpuCores"),
        ("hostReserve", json!({"memory": "64Gi"}), "[reserve-below-capacity] spec.hostReserve.memory"),
        ("hostReserve", json!({"storage": "1T"}), "[reserve-below-capacity] spec.hostReserve.storage"),
    ] {
        refused(&world.admin, node_class(), |o| o["spec"][field] = value.clone(), &[fragment]).await;
    }
    for (field, value, fragment) in [
        ("cpuCores", json!(2), "spec.cpuCores"),
        ("memory", json!("2Gi"), "[memory-4gi] spec.memory"),
        ("disk", json!("1G"), "[disk-20g] spec.disk"),
    ] {
        refused(&world.admin, instance_class(6, "28Gi", "250G"), |o| o["spec"][field] = value.clone(), &[fragment])
            .await;
    }
    let class = instance_class(6, "28Gi", "250G");
    accepts(create(&world.admin, &class).await);
    rejects(
        patch(&world.admin, &class, json!({"spec": {"memory": "8Gi"}})).await,
        "[class-fixed] spec: an InstanceClass is immutable",
    );
    // there is no field for the number of VMs, under any name that suggests itself
    let mut asked = node_class();
    for field in ["maxVMs", "vms", "instancesPerChassis", "slots"] {
        asked["spec"][field] = json!(3);
    }
    let stored = accepts(create(&world.admin, &asked).await);
    for field in ["maxVMs", "vms", "instancesPerChassis", "slots"] {
        assert_eq!(stored.data["spec"].get(field), None);
    }
}
