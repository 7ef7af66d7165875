//! Status and finalizers of MacRack's kinds are its own.

use macrack_testkit::expect::{accepts, rejects};
use serde_json::{Value, json};

use crate::world::{World, create, mac, moment, node_class, patch, patch_status, replace, world};

#[tokio::test]
async fn status_is_written_by_macrack_alone() {
    let world = world().await;
    let tenant = world.tenant("status").await;
    let rack = world.rack(&tenant).await;
    let instance = tenant.instance("vm", &rack);
    create(&tenant.client, &instance).await.unwrap();
    // a tenant has no right to any status to begin with
    for object in [&rack.lease, &instance] {
        rejects(patch_status(&tenant.client, object, json!({"phase": "Ready"})).await, "is forbidden");
    }
    // and whoever has is refused all the same
    let mac = mac(&rack.node_class);
    create(&world.admin, &mac).await.unwrap();
    for (object, what) in [
        (&rack.lease, format!("macnodelease {}/ios-ci", tenant.ns())),
        (&instance, format!("macosinstance {}/vm", tenant.ns())),
        (&mac, format!("macnode {}", mac["metadata"]["name"].as_str().unwrap())),
        (&rack.node_class, format!("macnodeclass {}", rack.node_class["metadata"]["name"].as_str().unwrap())),
        (&rack.image, format!("macosimage {}", rack.image["metadata"]["name"].as_str().unwrap())),
    ] {
        rejects(
            patch_status(&world.admin, object, json!({"observedGeneration": 7})).await,
            [
                format!("[status-owned] {what}: status is written by MacRack alone").as_str(),
                "change spec and read its answer",
            ],
        );
        accepts(patch_status(&world.operator, object, json!({"observedGeneration": 7})).await);
    }
    // an agent's name opens the two kinds it has a part in, not the others
    let agent = world
        .plane
        .as_user_with("system:serviceaccount:macrack-agents:macrack-agent-x", &["system:masters"], Default::default())
        .await
        .unwrap();
    let refusal = rejects(patch_status(&agent, &rack.lease, json!({"phase": "Bound"})).await, "denied request");
    // two policies refuse it, and which one speaks first is not said
    assert!(["[status-owned]", "[agent-"].iter().any(|rule| refusal.message.contains(rule)), "{}", refusal.message);
}

async fn finalized(world: &World, object: &Value) {
    let finalizers = json!({"metadata": {"finalizers": ["rack.macrack.io/release", "example.com/theirs"]}});
    accepts(patch(&world.operator, object, finalizers).await);
}

#[tokio::test]
async fn finalizers_of_macrack_are_set_and_removed_by_the_operator_alone() {
    let world = world().await;
    let tenant = world.tenant("finalizer").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let mut born_with = tenant.lease("born", &class);
    born_with["metadata"]["finalizers"] = json!(["rack.macrack.io/release"]);
    let refusal = format!("[finalizer-owned] macnodelease {}/born", tenant.ns());
    rejects(create(&tenant.client, &born_with).await, [refusal.as_str(), "set and removed by the operator alone"]);

    let lease = tenant.lease("l", &class);
    create(&tenant.client, &lease).await.unwrap();
    finalized(&world, &lease).await;
    for client in [&tenant.client, &world.admin] {
        rejects(patch(client, &lease, json!({"metadata": {"finalizers": null}})).await, "[finalizer-owned]");
        rejects(
            patch(client, &lease, json!({"metadata": {"finalizers": ["example.com/theirs"]}})).await,
            "[finalizer-owned]",
        );
        let without = |o: &mut Value| {
            o["metadata"].as_object_mut().unwrap().remove("finalizers");
        };
        rejects(replace(client, &lease, without).await, "[finalizer-owned]");
        let more = json!({"metadata": {"finalizers": ["rack.macrack.io/release", "instance.macrack.io/vm", "example.com/theirs"]}});
        rejects(patch(client, &lease, more).await, "[finalizer-owned]");
    }
    // those of others are theirs
    accepts(patch(&tenant.client, &lease, json!({"metadata": {"finalizers": ["rack.macrack.io/release"]}})).await);
    accepts(patch(&world.operator, &lease, json!({"metadata": {"finalizers": null}})).await);
}

#[tokio::test]
async fn an_admin_breaks_the_glass_by_right_and_reason_and_a_tenant_cannot() {
    let world = world().await;
    let tenant = world.tenant("glass").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let lease = tenant.lease("l", &class);
    create(&tenant.client, &lease).await.unwrap();
    finalized(&world, &lease).await;
    let with = |reason: &str| json!({"metadata": {"annotations": {"macrack.io/break-glass": reason}, "finalizers": ["example.com/theirs"]}});
    // the reason alone does not do, nor the right alone, nor an empty reason
    rejects(patch(&tenant.client, &lease, with("I want to")).await, "[finalizer-owned]");
    rejects(patch(&world.admin, &lease, with("  ")).await, "[finalizer-owned]");
    accepts(patch(&world.admin, &lease, with("etcd was restored, ticket 4711")).await);

    // a status cannot be annotated by the write itself: the annotation stands there first
    accepts(patch_status(&world.admin, &lease, json!({"phase": "Pending"})).await);
    let other = tenant.lease("other", &class);
    create(&tenant.client, &other).await.unwrap();
    rejects(patch_status(&world.admin, &other, json!({"phase": "Pending"})).await, "[status-owned]");
}

#[tokio::test]
async fn the_glass_does_not_open_what_the_schema_holds() {
    let world = world().await;
    let class = node_class();
    let mac = mac(&class);
    for object in [&class, &mac] {
        create(&world.admin, object).await.unwrap();
    }
    let lease_ref = json!({"namespace": "a", "name": "l", "uid": "11111111-1111-1111-1111-111111111111",
        "boundAt": moment(0), "earliestReleaseAt": moment(24)});
    accepts(patch_status(&world.operator, &mac, json!({"leaseRef": lease_ref})).await);
    accepts(patch(&world.admin, &mac, json!({"metadata": {"annotations": {"macrack.io/break-glass": "a try"}}})).await);
    rejects(patch_status(&world.admin, &mac, json!({"leaseRef": null})).await, "[clear-when-empty]");
    rejects(
        patch_status(&world.admin, &mac, json!({"leaseRef": {"earliestReleaseAt": moment(25 - 24)}})).await,
        "[floor-",
    );
}
