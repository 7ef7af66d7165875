//! The reject table of MacOSInstance.

use futures::future::join_all;
use macrack_testkit::expect::{accepts, rejects};
use serde_json::json;

use crate::world::{create, mac, moment, name, patch, patch_status, replace, world};

#[tokio::test]
async fn a_third_instance_on_a_lease_is_rejected_and_the_two_are_named() {
    let world = world().await;
    let tenant = world.tenant("third").await;
    let rack = world.rack(&tenant).await;
    for instance in ["build-1", "build-2"] {
        accepts(create(&tenant.client, &tenant.instance(instance, &rack)).await);
    }
    let third = tenant.instance("build-3", &rack);
    let status = rejects(
        create(&tenant.client, &third).await,
        [
            format!(
                "[two-per-lease] macosinstance {}/build-3: lease ios-ci already holds build-1 and build-2; ",
                tenant.ns()
            )
            .as_str(),
            "a Mac carries two macOS VMs, never more; delete one of them, or lease another Mac",
        ],
    );
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));

    // one that lost the race for a slot holds none
    patch_status(&world.operator, &tenant.instance("build-2", &rack), json!({"leaseFull": true})).await.unwrap();
    accepts(create(&tenant.client, &third).await);
}

#[tokio::test]
async fn a_lease_of_another_namespace_reads_like_one_that_does_not_exist() {
    let world = world().await;
    let (owner, stranger) = (world.tenant("owner").await, world.tenant("stranger").await);
    let rack = world.rack(&owner).await;
    let foreign = rejects(create(&stranger.client, &stranger.instance("vm", &rack)).await, "[lease-in-namespace]");
    let mut of_nobody = stranger.instance("vm", &rack);
    of_nobody["spec"]["leaseName"] = json!("no-such");
    let missing = rejects(create(&stranger.client, &of_nobody).await, "[lease-in-namespace]");
    assert_eq!(foreign.message.replace("ios-ci", "no-such"), missing.message);
    assert!(foreign.message.ends_with(&format!(
        "[lease-in-namespace] macosinstance {0}/vm: namespace {0} has no lease \"ios-ci\"; create one, or correct spec.leaseName",
        stranger.ns()
    )), "{}", foreign.message);
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_rejected() {
    let world = world().await;
    let (owner, stranger) = (world.tenant("target").await, world.tenant("climber").await);
    let rack = world.rack(&owner).await;
    let climb = format!("../../{}/macnodeleases/ios-ci", owner.ns());
    for (field, value) in [
        ("leaseName", climb.as_str()),
        ("leaseName", "ios-ci,metadata.name=x"),
        ("leaseName", "IOS-CI"),
        ("leaseName", "\u{fc}bung"),
        ("leaseName", ""),
        ("instanceClassName", "../macosimages/x"),
        ("imageName", ".."),
    ] {
        let mut instance = stranger.instance("vm", &rack);
        instance["spec"][field] = json!(value);
        rejects(create(&stranger.client, &instance).await, format!("spec.{field}: Invalid value").as_str());
    }
    let mut instance = stranger.instance("vm", &rack);
    instance["spec"]["firstBoot"] =
        json!({"scriptFrom": {"secretKeyRef": {"name": "../../other/secrets/x", "key": "k"}}});
    rejects(create(&stranger.client, &instance).await, "spec.firstBoot.scriptFrom.secretKeyRef.name: Invalid value");
}

#[tokio::test]
async fn a_lease_takes_instances_while_it_has_a_mac_and_has_not_ended() {
    let world = world().await;
    let tenant = world.tenant("ended").await;
    let rack = world.rack(&tenant).await;
    let on = |lease: &str| {
        let mut instance = tenant.instance(&format!("on-{lease}"), &rack);
        instance["spec"]["leaseName"] = json!(lease);
        instance
    };
    let held_finalizer = json!({"metadata": {"finalizers": ["rack.macrack.io/release"]}});
    for lease in ["pending", "held", "overdue", "expired", "broken"] {
        let object = tenant.lease(lease, &rack.node_class);
        accepts(create(&tenant.client, &object).await);
        patch(&world.operator, &object, held_finalizer.clone()).await.unwrap();
    }
    rejects(
        create(&tenant.client, &on("pending")).await,
        ["[lease-bound]", "is Pending and has no Mac yet", "kubectl wait --for=condition=Bound"],
    );

    let delete = async |lease: &str| {
        let object = tenant.lease(lease, &rack.node_class);
        crate::world::api_of(&tenant.client, &object).delete(lease, &Default::default()).await.unwrap();
    };
    world.bind(&tenant.lease("held", &rack.node_class), "H4XKHELD01", 3).await;
    delete("held").await;
    accepts(create(&tenant.client, &on("held")).await);

    world.bind(&tenant.lease("overdue", &rack.node_class), "H4XKOVER01", 25).await;
    accepts(create(&tenant.client, &on("overdue")).await);
    delete("overdue").await;
    let mut late = on("overdue");
    late["metadata"]["name"] = json!("late");
    rejects(
        create(&tenant.client, &late).await,
        ["[lease-ended]", "was yours until", "its Mac is being given back; make a new lease"],
    );

    for (lease, reason, said) in
        [("expired", "Expired", "lease expired expired at"), ("broken", "Broken", "its Mac was retired")]
    {
        let object = tenant.lease(lease, &rack.node_class);
        world.bind(&object, "H4XKENDS01", 1).await;
        patch_status(&world.operator, &object, json!({"end": {"reason": reason, "at": moment(0)}})).await.unwrap();
        rejects(create(&tenant.client, &on(lease)).await, ["[lease-ended]", said]);
    }
}

#[tokio::test]
async fn what_does_not_fit_the_mac_is_rejected_alone_or_beside_the_other() {
    let world = world().await;
    let tenant = world.tenant("fits").await;
    let rack = world.rack(&tenant).await;
    let huge = crate::world::instance_class(12, "64Gi", "250G");
    create(&world.admin, &huge).await.unwrap();
    let of = |instance: &str, class: &str| {
        let mut object = tenant.instance(instance, &rack);
        object["spec"]["instanceClassName"] = json!(class);
        object
    };
    rejects(
        create(&tenant.client, &of("huge", name(&huge))).await,
        ["[class-fits]", "takes 64Gi memory", "leaves 56Gi to its VMs"],
    );
    accepts(create(&tenant.client, &of("large", name(&rack.large))).await);
    rejects(
        create(&tenant.client, &of("half", name(&rack.half))).await,
        ["[class-fits]", "beside large takes 68Gi memory"],
    );
    rejects(
        create(&tenant.client, &of("lost", "no-such-class")).await,
        ["[class-exists]", "there is no InstanceClass \"no-such-class\""],
    );
}

#[tokio::test]
async fn an_image_that_is_missing_or_not_ready_is_rejected() {
    let world = world().await;
    let tenant = world.tenant("image").await;
    let rack = world.rack(&tenant).await;
    let unresolved = crate::world::image();
    create(&world.admin, &unresolved).await.unwrap();
    let mut instance = tenant.instance("vm", &rack);
    instance["spec"]["imageName"] = json!(name(&unresolved));
    rejects(
        create(&tenant.client, &instance).await,
        ["[image-ready]", "is not Ready", "kubectl wait --for=condition=Ready"],
    );
    instance["spec"]["imageName"] = json!("no-such-image");
    rejects(create(&tenant.client, &instance).await, ["[image-ready]", "there is no MacOSImage \"no-such-image\""]);
}

#[tokio::test]
async fn an_instance_is_exactly_one_macos_vm() {
    let world = world().await;
    let tenant = world.tenant("one").await;
    let rack = world.rack(&tenant).await;
    for limits in [
        json!({"macrack.io/macos-vm": 2}),
        json!({"macrack.io/macos-vm": "2"}),
        json!({"macrack.io/macos-vm": 0}),
        json!({"macrack.io/macos-vm": "1", "cpu": "4"}),
        json!({"cpu": "4"}),
        json!({}),
    ] {
        let mut instance = tenant.instance("vm", &rack);
        instance["spec"]["resources"] = json!({ "limits": limits });
        rejects(
            create(&tenant.client, &instance).await,
            ["[one-vm-each] spec.resources.limits", "exactly one macOS VM"],
        );
    }
    for (n, limits) in [json!({"macrack.io/macos-vm": 1}), json!({"macrack.io/macos-vm": "1"})].into_iter().enumerate()
    {
        let mut instance = tenant.instance(&format!("vm-{n}"), &rack);
        instance["spec"]["resources"] = json!({ "limits": limits });
        accepts(create(&tenant.client, &instance).await);
    }
}

#[tokio::test]
async fn what_an_instance_was_made_for_does_not_change() {
    let world = world().await;
    let tenant = world.tenant("fixed").await;
    let rack = world.rack(&tenant).await;
    let instance = tenant.instance("vm", &rack);
    accepts(create(&tenant.client, &instance).await);
    for (field, value) in [
        ("leaseName", json!("other")),
        ("imageName", json!("other")),
        ("instanceClassName", json!("other")),
        ("firstBoot", json!({"scriptFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})),
    ] {
        rejects(
            patch(&tenant.client, &instance, json!({"spec": {field: value}})).await,
            format!("[instance-fixed] spec.{field}: immutable").as_str(),
        );
    }
    accepts(patch(&tenant.client, &instance, json!({"spec": {"powerState": "Stopped"}})).await);
    // there is no such field: it is dropped, not obeyed
    let placed = accepts(replace(&tenant.client, &instance, |o| o["spec"]["nodeName"] = json!("macrack-x")).await);
    assert_eq!(placed.data["spec"].get("nodeName"), None);
}

#[tokio::test]
async fn fifty_creations_at_once_are_all_judged_in_time() {
    let world = world().await;
    let tenant = world.tenant("fifty").await;
    let rack = world.rack(&tenant).await;
    let began = std::time::Instant::now();
    let asked = join_all((0..50).map(|n| {
        let (client, instance) = (tenant.client.clone(), tenant.instance(&format!("vm-{n}"), &rack));
        async move { create(&client, &instance).await }
    }))
    .await;
    let took = began.elapsed();
    let admitted = asked.iter().filter(|a| a.is_ok()).count();
    for refused in asked.into_iter().filter(Result::is_err) {
        rejects(refused, "[two-per-lease]");
    }
    // those that raced past are caught by the slots, which is not this test's matter
    println!("50 creations at once: {admitted} admitted, {took:.2?}");
    assert!(admitted >= 2, "{admitted}");
}

/// The Mac's agent is played by the operator here: only the words of its status count.
#[tokio::test]
async fn a_golden_that_the_leased_mac_is_too_old_for_is_rejected_until_the_mac_is_upgraded() {
    let world = world().await;
    let tenant = world.tenant("older").await;
    let rack = world.rack(&tenant).await;
    let lease = tenant.lease("older", &rack.node_class);
    let mac = mac(&rack.node_class);
    create(&world.admin, &mac).await.unwrap();
    create(&tenant.client, &lease).await.unwrap();
    world.bind(&lease, mac["spec"]["serial"].as_str().unwrap(), 0).await;
    let mut instance = tenant.instance("build-1", &rack);
    instance["spec"]["leaseName"] = json!(name(&lease));
    let runs = async |version: &str| {
        let agent = json!({"agent": {"version": "0.1.0", "bootID": "b", "hostVersion": version}});
        patch_status(&world.operator, &mac, agent).await.unwrap();
    };
    runs("15.5").await;
    rejects(
        create(&tenant.client, &instance).await,
        [
            "[host-too-old] macosinstance",
            "needs macOS 90 or newer on its Mac, which has 15.5; choose another image, or ask an admin to upgrade the Mac",
        ],
    );
    runs("90.0").await;
    accepts(create(&tenant.client, &instance).await);
}
