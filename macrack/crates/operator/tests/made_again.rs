//! What was decided for an object is not written onto one that was made again under its name.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use macrack_core::plan::{Kind, Ref, Step};
use macrack_operator::act::{Actor, Failure, resource};
use macrack_testkit::{ControlPlane, Namespace, expect, shared};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const LEASE: &str = "11111111-2222-4333-8444-555555555555";
const HELD: &str = "22222222-2222-4333-8444-555555555555";

/// A control plane with the kinds, and no policies: what holds here is the write alone.
async fn plane() -> (&'static ControlPlane, Client) {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let plane = shared();
    INSTALLED
        .get_or_init(async || {
            let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
            plane.kubectl(&["apply", "--server-side", "-f", crds]).await.unwrap().success().unwrap();
            let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
            plane.kubectl(&established).await.unwrap().success().unwrap();
        })
        .await;
    (plane, plane.admin().await.unwrap())
}

fn api(client: &Client, of: &Ref) -> Api<DynamicObject> {
    let resource = resource(of.kind);
    match of.namespace.as_str() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

/// One object of a kind that the operator reports on.
struct Thing {
    client: Client,
    of: Ref,
    spec: Value,
}

impl Thing {
    fn mac_node(client: &Client, serial: &str) -> Thing {
        let of = Ref::cluster(Kind::MacNode, &serial.to_lowercase());
        Thing { client: client.clone(), of, spec: json!({ "serial": serial, "nodeClassName": "mini" }) }
    }

    fn api(&self) -> Api<DynamicObject> {
        api(&self.client, &self.of)
    }

    /// Makes it; returns its uid.
    async fn make(&self) -> String {
        let mut object = DynamicObject::new(&self.of.name, &resource(self.of.kind));
        object.data = json!({ "spec": self.spec });
        expect::accepts(self.api().create(&PostParams::default(), &object).await).uid().unwrap()
    }

    /// Makes it again under its name; returns the uid of the new one.
    async fn make_again(&self) -> String {
        // nothing holds it: it is gone at once
        expect::accepts(self.api().delete(&self.of.name, &DeleteParams::default()).await);
        self.make().await
    }

    async fn status(&self) -> Value {
        self.api().get(&self.of.name).await.unwrap().data["status"].clone()
    }

    /// As another writer does.
    async fn others_write(&self, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        expect::accepts(self.api().patch_status(&self.of.name, &PatchParams::default(), &patch).await);
    }
}

fn reported(reason: &str) -> Value {
    json!({ "conditions": [{
        "type": "Ready", "status": "False", "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] })
}

fn reason(status: &Value) -> &str {
    status["conditions"][0]["reason"].as_str().unwrap_or_default()
}

fn every_kind(client: &Client, namespace: &str) -> Vec<Thing> {
    let cluster = |kind, name: &str, spec| Thing { client: client.clone(), of: Ref::cluster(kind, name), spec };
    let of_tenant = |kind, spec| Thing { client: client.clone(), of: Ref::namespaced(kind, namespace, "again"), spec };
    vec![
        Thing::mac_node(client, "ZZAGAIN001"),
        of_tenant(Kind::MacNodeLease, json!({ "nodeClassName": "mini", "minimumDuration": "24h" })),
        of_tenant(
            Kind::MacOSInstance,
            json!({ "leaseName": "lease", "instanceClassName": "half", "imageName": "tahoe" }),
        ),
        cluster(
            Kind::MacNodeClass,
            "again",
            json!({
                "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14, "memory": "64Gi",
                "storage": "1T", "linkSpeed": "10G",
                "hostReserve": { "cpuCores": 2, "memory": "8Gi", "storage": "150G" },
            }),
        ),
        cluster(Kind::InstanceClass, "again", json!({ "cpuCores": 6, "memory": "28Gi", "disk": "250G" })),
        cluster(
            Kind::MacOSImage,
            "again",
            json!({
                "source": { "oci": { "image": format!("registry.example/macos@sha256:{}", "a".repeat(64)) } },
                "contents": [
                    { "kind": "macOS", "version": "26.1" }, { "kind": "Xcode", "version": "26.1" },
                    { "kind": "GuestAgent", "version": "0.1.0" },
                ],
            }),
        ),
        cluster(Kind::RackConfig, "default", json!({})),
    ]
}

#[tokio::test]
async fn a_status_of_any_kind_reaches_only_the_object_that_it_was_decided_on() {
    let (plane, client) = plane().await;
    let ns = Namespace::fresh(plane, "made-again").await.unwrap();
    let actor = Actor::new(client.clone());
    for thing in every_kind(&client, ns.name()) {
        let of = &thing.of;
        let nothing = json!({});
        let old = thing.make().await;
        let new = thing.make_again().await;
        assert_ne!(old, new);

        // its successor has no status yet
        let late = actor.status(of, &old, &nothing, &reported("OfOld")).await;
        assert!(matches!(&late, Err(Failure::Conflict(why)) if why.contains(&old)), "{of}: {late:?}");
        assert_eq!(thing.status().await, Value::Null, "{of} inherited a status");

        // and then one of its own
        actor.status(of, &new, &nothing, &reported("OfNew")).await.unwrap();
        let late = actor.status(of, &old, &reported("OfNew"), &reported("OfOld")).await;
        assert!(matches!(&late, Err(Failure::Conflict(why)) if why.contains(&old)), "{of}: {late:?}");
        assert_eq!(reason(&thing.status().await), "OfNew", "{of} inherited a status");

        // and when it is gone there is none to write
        expect::accepts(thing.api().delete(&of.name, &DeleteParams::default()).await);
        actor.status(of, &new, &reported("OfNew"), &reported("Late")).await.unwrap();
    }
}

#[tokio::test]
async fn what_others_write_meanwhile_hinders_no_status_and_is_left_as_it_is() {
    let (_, client) = plane().await;
    let actor = Actor::new(client.clone());
    let thing = Thing::mac_node(&client, "ZZBUSY001");
    let uid = thing.make().await;
    // an agent that was first: there is a status, of which the operator has seen nothing
    let agent = |boot: u32| json!({ "agent": { "version": "1", "bootID": boot.to_string() } });
    thing.others_write(agent(0)).await;
    let was = json!({});
    for boot in 1..20 {
        thing.others_write(agent(boot)).await;
        // decided on the very first view each time, as under a watch that is behind
        actor.status(&thing.of, &uid, &was, &reported(&format!("Pass{boot}"))).await.unwrap();
        let status = thing.status().await;
        assert_eq!((reason(&status), &status["agent"]["bootID"]), (&*format!("Pass{boot}"), &json!(boot.to_string())));
    }
}

#[tokio::test]
async fn what_the_operator_says_no_more_is_taken_away_and_a_refusal_of_the_schema_names_the_field() {
    let (_, client) = plane().await;
    let actor = Actor::new(client.clone());
    let thing = Thing::mac_node(&client, "ZZFIELDS001");
    let uid = thing.make().await;
    let full = json!({ "phase": "Ready", "nodeName": "macrack-zzfields001" });
    actor.status(&thing.of, &uid, &json!({}), &full).await.unwrap();
    let less = json!({ "phase": "Unreachable" });
    // twice: a watch that is behind still shows the field that went
    for _ in 0..2 {
        actor.status(&thing.of, &uid, &full, &less).await.unwrap();
        let status = thing.status().await;
        assert_eq!((&status["phase"], &status["nodeName"]), (&json!("Unreachable"), &Value::Null));
    }
    let refused = actor.status(&thing.of, &uid, &less, &json!({ "phase": "Nonsense" })).await;
    assert!(matches!(&refused, Err(Failure::Transient(why)) if why.contains("status.phase")), "{refused:?}");
}

#[tokio::test]
async fn orders_and_releases_of_a_chassis_do_not_reach_its_successor_that_the_same_lease_holds() {
    let (_, client) = plane().await;
    let actor = Actor::new(client.clone());
    let thing = Thing::mac_node(&client, "ZZORDERS001");
    let old = thing.make().await;
    let new = thing.make_again().await;
    // the operator gave the Mac back to its lease, and an order to it
    let mine = json!({
        "leaseRef": {
            "namespace": "tenant", "name": "lease", "uid": LEASE,
            "boundAt": "2026-01-01T00:00:00Z", "earliestReleaseAt": "2026-01-02T00:00:00Z", "releasing": false,
        },
        "slots": [],
    });
    thing.others_write(mine.clone()).await;
    let steps = |uid: &str| {
        let (mac_node, mac_node_uid, lease_uid) = (thing.of.name.clone(), uid.to_owned(), LEASE.to_owned());
        let to: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        let slot = json!({ "slot": 0, "uid": HELD, "namespace": "tenant", "name": "build", "order": "Run" });
        [
            Step::RaiseFloor {
                mac_node: mac_node.clone(),
                mac_node_uid: mac_node_uid.clone(),
                lease_uid: lease_uid.clone(),
                to,
            },
            Step::SetSlots {
                mac_node: mac_node.clone(),
                mac_node_uid: mac_node_uid.clone(),
                lease_uid: Some(lease_uid.clone()),
                from: Vec::new(),
                to: vec![serde_json::from_value(slot).unwrap()],
            },
            Step::MarkReleasing {
                mac_node: mac_node.clone(),
                mac_node_uid: mac_node_uid.clone(),
                lease_uid: lease_uid.clone(),
            },
            Step::ClearLease { mac_node, mac_node_uid, lease_uid },
        ]
    };
    for step in steps(&old) {
        let late = actor.step(&step).await;
        assert!(matches!(late, Err(Failure::Conflict(_))), "{step:?}: {late:?}");
        let status = thing.status().await;
        assert_eq!((&status["leaseRef"], &status["slots"]), (&mine["leaseRef"], &mine["slots"]), "{step:?}");
    }
    // the same, decided on what is there; what holds a slot is not released
    for step in &steps(&new)[..2] {
        actor.step(step).await.unwrap();
    }
    assert_eq!(thing.status().await["slots"][0]["uid"], HELD);
}
