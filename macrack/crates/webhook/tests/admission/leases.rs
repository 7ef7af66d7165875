//! The reject table of MacNodeLease, and what `kubectl delete` says of it.

use kube::api::{Patch, PatchParams};
use macrack_api::{Span, duration::FLOOR};
use macrack_testkit::expect::{accepts, rejects};
use serde_json::{Value, json};

use crate::world::{World, api_of, create, mac, moment, name, node_class, patch, patch_status, replace, unique, world};

/// A Mac that a lease of nobody in this test holds.
async fn held_mac(world: &World, class: &Value) -> String {
    let mac = mac(class);
    create(&world.admin, &mac).await.unwrap();
    let lease_ref = json!({"namespace": "team-secret", "name": "hidden-lease", "uid": "11111111-1111-1111-1111-111111111111",
        "boundAt": moment(0), "earliestReleaseAt": moment(24)});
    patch_status(&world.operator, &mac, json!({"phase": "Leased", "leaseRef": lease_ref, "slots": []})).await.unwrap();
    mac["spec"]["serial"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_second_lease_on_a_bound_serial_is_rejected_from_any_namespace_without_saying_whose_it_is() {
    let world = world().await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let serial = held_mac(&world, &class).await;
    for tenant in [world.tenant("one").await, world.tenant("two").await] {
        let mut lease = tenant.lease("mine", &class);
        lease["spec"]["serial"] = json!(serial);
        let status = rejects(
            create(&tenant.client, &lease).await,
            [
                format!("[serial-taken] macnodelease {}/mine: the Mac {serial} is leased; ", tenant.ns()).as_str(),
                "leave spec.serial out to have any Mac of the class",
            ],
        );
        for secret in ["team-secret", "hidden-lease", "11111111", &moment(24)[..10]] {
            assert!(!status.message.contains(secret), "{}", status.message);
        }
        // nor by a detour: named only afterwards
        lease["spec"].as_object_mut().unwrap().remove("serial");
        accepts(create(&tenant.client, &lease).await);
        rejects(patch(&tenant.client, &lease, json!({"spec": {"serial": serial}})).await, "[serial-taken]");
    }
}

#[tokio::test]
async fn a_serial_is_one_that_exists_and_is_of_the_class() {
    let world = world().await;
    let tenant = world.tenant("serial").await;
    let (class, other) = (node_class(), node_class());
    let mac = mac(&class);
    for object in [&class, &other, &mac] {
        create(&world.admin, object).await.unwrap();
    }
    let mut lease = tenant.lease("l", &class);
    lease["spec"]["serial"] = json!("NOSUCH0000");
    rejects(create(&tenant.client, &lease).await, ["[serial-known]", "no Mac with the serial NOSUCH0000"]);
    lease["spec"]["serial"] = mac["spec"]["serial"].clone();
    lease["spec"]["nodeClassName"] = json!(name(&other));
    rejects(create(&tenant.client, &lease).await, ["[serial-of-class]", name(&class), name(&other)]);
    lease["spec"]["nodeClassName"] = json!("no-such-class");
    rejects(create(&tenant.client, &lease).await, ["[class-exists]", "there is no MacNodeClass \"no-such-class\""]);
    lease["spec"]["nodeClassName"] = json!(name(&class));
    accepts(create(&tenant.client, &lease).await);
}

#[tokio::test]
async fn a_minimum_below_a_day_is_rejected_and_none_is_ever_lowered_or_erased() {
    let world = world().await;
    let tenant = world.tenant("minimum").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let mut lease = tenant.lease("l", &class);
    lease["spec"]["minimumDuration"] = json!("23h59m59s");
    rejects(create(&tenant.client, &lease).await, ["[minimum-24h] spec.minimumDuration", "write 24h or more"]);
    lease["spec"]["minimumDuration"] = json!("48h");
    lease["spec"]["maximumDuration"] = json!("47h");
    rejects(create(&tenant.client, &lease).await, "[maximum-not-below-minimum] spec.maximumDuration");
    lease["spec"].as_object_mut().unwrap().remove("maximumDuration");
    accepts(create(&tenant.client, &lease).await);
    world.bind(&lease, "H4XKMINI01", 0).await;

    let lowered = "[minimum-only-rises] spec.minimumDuration: may be raised, never lowered";
    rejects(patch(&tenant.client, &lease, json!({"spec": {"minimumDuration": "24h"}})).await, lowered);
    // erased: a merge patch of null and a PUT without it both become the default, which is lower
    rejects(patch(&tenant.client, &lease, json!({"spec": {"minimumDuration": null}})).await, lowered);
    let erase = |o: &mut Value| {
        o["spec"].as_object_mut().unwrap().remove("minimumDuration");
    };
    rejects(replace(&tenant.client, &lease, erase).await, lowered);
    // a PUT of null is no duration at all
    let nulled = replace(&tenant.client, &lease, |o| o["spec"]["minimumDuration"] = Value::Null).await;
    match nulled {
        Ok(stored) => assert_eq!(stored.data["spec"]["minimumDuration"], "48h", "null erased the minimum"),
        Err(e) => _ = rejects::<()>(Err(e), "minimumDuration"),
    }
    let dropped: kube::Result<_> = api_of(&tenant.client, &lease)
        .patch(
            "l",
            &PatchParams::default(),
            &Patch::<()>::Json(
                serde_json::from_value(json!([{"op": "remove", "path": "/spec/minimumDuration"}])).unwrap(),
            ),
        )
        .await;
    rejects(dropped, lowered);
    accepts(patch(&tenant.client, &lease, json!({"spec": {"minimumDuration": "72h"}})).await);
}

#[tokio::test]
async fn an_omitted_minimum_is_a_day() {
    let world = world().await;
    let tenant = world.tenant("default").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    for (n, minimum) in [None, Some(Value::Null)].into_iter().enumerate() {
        let mut lease = tenant.lease(&format!("l{n}"), &class);
        if let Some(minimum) = minimum {
            lease["spec"]["minimumDuration"] = minimum;
        }
        let stored = accepts(create(&tenant.client, &lease).await);
        assert_eq!(stored.data["spec"]["minimumDuration"], "24h");
    }
}

#[tokio::test]
async fn a_day_written_as_one_is_refused_with_the_form_that_is_meant() {
    let world = world().await;
    let tenant = world.tenant("form").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    for field in ["minimumDuration", "maximumDuration"] {
        let mut lease = tenant.lease("l", &class);
        lease["spec"][field] = "2d".into();
        let said = rejects(
            create(&tenant.client, &lease).await,
            ["[duration-form]", field, "24h, 90m, 36h30m", "a day is 24h"],
        );
        assert!(!said.message.contains("google.protobuf"), "{}", said.message);
    }
}

/// The hand-over table of durations: what may stand in spec.minimumDuration, and how many seconds it is.
const DURATIONS: [(&str, Option<u64>); 34] = [
    ("24h", Some(86_400)),
    ("86400s", Some(86_400)),
    ("1440m", Some(86_400)),
    ("24h0m0s", Some(86_400)),
    ("48h", Some(172_800)),
    ("24h30m", Some(88_200)),
    ("23h60m", Some(86_400)),
    ("+24h", None),
    ("1d", None),
    ("23h59m59s", None),
    ("86399s", None),
    ("-24h", None),
    ("0", None),
    ("0s", None),
    ("", None),
    ("24", None),
    ("P1D", None),
    ("PT24H", None),
    ("24H", None),
    (" 24h", None),
    ("24h ", None),
    ("24 h", None),
    ("\u{ff12}\u{ff14}h", None),
    ("1.0e2h", None),
    ("0x18h", None),
    ("24h-1s", None),
    ("NaNh", None),
    ("infh", None),
    ("2562048h", None),
    ("99999999999999999999h", None),
    ("86399999ms", None),
    ("86400000ms", None),
    ("24h\n", None),
    ("1440m0.5s", None),
];

#[tokio::test]
async fn schema_and_parser_give_every_duration_the_same_verdict() {
    let world = world().await;
    let tenant = world.tenant("durations").await;
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    for (n, (text, seconds)) in DURATIONS.into_iter().enumerate() {
        let mut lease = tenant.lease(&format!("l{n}"), &class);
        lease["spec"]["minimumDuration"] = json!(text);
        let parsed = text.parse::<Span>().ok().filter(|span| *span >= FLOOR);
        assert_eq!(parsed.map(Span::seconds), seconds, "the parser on {text:?}");
        let asked = create(&tenant.client, &lease).await;
        match seconds {
            Some(_) => _ = accepts(asked),
            None => _ = rejects(asked, "spec.minimumDuration"),
        }
    }
    // the longest one, and one more
    for (text, fits) in [("8784h", true), ("8784h1s", false), ("9000h", false)] {
        let mut lease = tenant.lease(&format!("long-{}", unique()), &class);
        lease["spec"]["minimumDuration"] = json!(text);
        assert_eq!(text.parse::<Span>().is_ok(), fits, "{text}");
        let asked = create(&tenant.client, &lease).await;
        if fits {
            _ = accepts(asked)
        } else {
            _ = rejects(asked, "[duration-bound] spec.minimumDuration: at most 8784h")
        }
    }
}

#[tokio::test]
async fn a_bound_lease_keeps_its_class_and_serial() {
    let world = world().await;
    let tenant = world.tenant("keeps").await;
    let (class, other) = (node_class(), node_class());
    let (one, two) = (mac(&class), mac(&class));
    for object in [&class, &other, &one, &two] {
        create(&world.admin, object).await.unwrap();
    }
    let mut lease = tenant.lease("l", &class);
    lease["spec"]["serial"] = one["spec"]["serial"].clone();
    accepts(create(&tenant.client, &lease).await);
    // before it is bound both may change
    accepts(patch(&tenant.client, &lease, json!({"spec": {"serial": two["spec"]["serial"]}})).await);
    world.bind(&lease, two["spec"]["serial"].as_str().unwrap(), 0).await;
    rejects(
        patch(&tenant.client, &lease, json!({"spec": {"serial": one["spec"]["serial"]}})).await,
        "[serial-fixed-once-bound] spec.serial",
    );
    rejects(
        patch(&tenant.client, &lease, json!({"spec": {"serial": null}})).await,
        "[serial-fixed-once-bound] spec.serial",
    );
    let moved = json!({"spec": {"nodeClassName": name(&other), "serial": null}});
    rejects(patch(&tenant.client, &lease, moved).await, "[class-fixed-once-bound] spec.nodeClassName");
}

/// Bound three hours ago, with the finalizer that the operator puts on it.
async fn bound(world: &World, tenant: &crate::world::Tenant, lease: &str) -> Value {
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    let lease = tenant.lease(lease, &class);
    create(&tenant.client, &lease).await.unwrap();
    patch(&world.operator, &lease, json!({"metadata": {"finalizers": ["rack.macrack.io/release"]}})).await.unwrap();
    world.bind(&lease, &format!("H4XK{:06}", unique()), 3).await;
    lease
}

#[tokio::test]
async fn a_deleted_lease_changes_no_more() {
    let world = world().await;
    let tenant = world.tenant("frozen").await;
    let lease = bound(&world, &tenant, "l").await;
    accepts(patch(&tenant.client, &lease, json!({"spec": {"minimumDuration": "36h"}})).await);
    api_of(&tenant.client, &lease).delete("l", &Default::default()).await.unwrap();
    for change in
        [json!({"minimumDuration": "48h"}), json!({"maximumDuration": "36h"}), json!({"prefetchImageNames": ["x"]})]
    {
        for client in [&tenant.client, &world.operator, &world.admin] {
            rejects(
                patch(client, &lease, json!({ "spec": change })).await,
                format!(
                    "[lease-frozen] macnodelease {}/l: spec is final once the lease is deleted; make a new lease",
                    tenant.ns()
                )
                .as_str(),
            );
        }
    }
    // the operator's own part goes on
    accepts(patch_status(&world.operator, &lease, json!({"phase": "Held"})).await);
    accepts(patch(&world.operator, &lease, json!({"metadata": {"finalizers": null}})).await);
}

#[tokio::test]
async fn kubectl_delete_says_until_when_a_lease_is_held() {
    let world = world().await;
    let tenant = world.tenant("warned").await;
    let token = world.plane.token(tenant.ns(), "tenant", None).await.unwrap();
    let kubeconfig = world.plane.kubeconfig_for(&token).unwrap();
    let delete = async |lease: &str| {
        let args = ["-n", tenant.ns(), "delete", "macnodelease", lease, "--wait=false"];
        let said = world.plane.kubectl_as(&kubeconfig, &args).await.unwrap();
        assert!(said.status.success(), "{}", said.stderr);
        said.stderr
    };
    let lease = bound(&world, &tenant, "ios-ci").await;
    let stored = api_of(&world.admin, &lease).get("ios-ci").await.unwrap();
    let floor = stored.data["status"]["earliestReleaseAt"].as_str().unwrap().to_owned();
    let said = delete("ios-ci").await;
    for part in [
        "Warning: ",
        format!("ios-ci is Held until {floor}").as_str(),
        "the Mac stays yours, is counted, and takes new instances until then; kubectl waits for the end, Ctrl-C is safe, --wait=false returns at once",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }

    // past the floor, as the operator says, and without a Mac there is nothing to warn of
    let past = bound(&world, &tenant, "past").await;
    let elapsed = json!({"conditions": [{"type": "FloorElapsed", "status": "True", "reason": "FloorElapsed", "lastTransitionTime": moment(0)}]});
    patch_status(&world.operator, &past, elapsed).await.unwrap();
    assert_eq!(delete("past").await, "");
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    create(&tenant.client, &tenant.lease("pending", &class)).await.unwrap();
    assert_eq!(delete("pending").await, "");
}
