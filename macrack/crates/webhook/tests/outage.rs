//! While the webhook is down: what needs it is refused, everything else goes on.

// a test ends at the first thing that is not as it should be, its helpers too
#![allow(clippy::unwrap_used)]

#[path = "admission/world.rs"]
#[allow(dead_code)]
mod world;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, api::DeleteParams};
use macrack_testkit::{
    Namespace,
    expect::{self, accepts},
    shared,
};
use macrack_webhook::install::CONFIGURATION;
use serde_json::{Value, json};
use world::{
    OPERATOR, SOON, api_of, create, image, install_all, instance_class, mac, name, node_class, patch, patch_status,
    pod, webhook,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_webhook_down_our_kinds_are_refused_and_nothing_else_stops() {
    let plane = shared();
    install_all(plane).await;
    let admin = plane.admin().await.unwrap();
    let operator = plane.as_service_account(OPERATOR.0, OPERATOR.1).await.unwrap();
    let ns = Namespace::fresh(plane, "outage").await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = webhook(operator.clone()).await;
    let serving = tokio::spawn(serving.run(async {
        let _ = stopped.await;
    }));
    let lease = |lease: &str, class: &Value| {
        json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
        "metadata": {"name": lease, "namespace": ns.name()}, "spec": {"nodeClassName": name(class)}})
    };
    let missing = lease("nothing", &json!({"metadata": {"name": "no-such-class"}}));
    let judged = async || matches!(create(&admin, &missing).await, Err(kube::Error::Api(s)) if s.message.contains("[class-exists]"));
    expect::until_effective("the webhook", SOON, judged).await;

    // one of every kind, while it serves
    let (class, size, golden) = (node_class(), instance_class(6, "28Gi", "250G"), image());
    let (mac, held) = (mac(&class), lease("l", &class));
    for object in [&class, &size, &golden, &mac, &held] {
        accepts(create(&admin, object).await);
    }
    accepts(patch_status(&operator, &golden, json!({"phase": "Ready"})).await);
    let bound = json!({"phase": "Bound", "serial": "H4XKOUT001", "boundAt": world::moment(0), "earliestReleaseAt": world::moment(24)});
    accepts(patch_status(&operator, &held, bound).await);
    let instance = |instance: &str| {
        json!({"apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
        "metadata": {"name": instance, "namespace": ns.name()},
        "spec": {"leaseName": "l", "instanceClassName": name(&size), "imageName": name(&golden)}})
    };
    accepts(create(&admin, &instance("vm")).await);
    let config = json!({"apiVersion": "config.macrack.io/v1alpha1", "kind": "RackConfig", "metadata": {"name": "default"}, "spec": {}});
    accepts(create(&admin, &config).await);

    // facts that cannot be read refuse, and say that it is for now
    let unbind = ["delete", "clusterrolebinding", "macrack:operator"];
    plane.kubectl(&unbind).await.unwrap().success().unwrap();
    let blind = async || match create(&admin, &instance("blind")).await {
        Err(kube::Error::Api(s)) => {
            s.code == 503 && s.message.contains("[try-again]") && s.message.contains("403 Forbidden")
        }
        _ => false,
    };
    expect::until_effective("the loss of its rights", SOON, blind).await;
    plane.kubectl(&["apply", "--server-side", "-f", &world::deploy("rbac")]).await.unwrap().success().unwrap();
    expect::until_effective("its rights", SOON, judged).await;

    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(admin.clone());
    assert!(configurations.get(CONFIGURATION).await.is_ok(), "it stays registered");

    // refused: it fails closed
    for object in [lease("new", &class), instance("new")] {
        let asked = create(&admin, &object).await;
        let Err(kube::Error::Api(status)) = asked else { panic!("{} was not refused: {asked:?}", object["kind"]) };
        assert!(status.message.contains("failed calling webhook"), "{}", status.message);
    }
    // going on: the rest of the cluster
    accepts(
        create(&admin, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "born-in-outage"}})).await,
    );
    accepts(create(&admin, &pod("ordinary", ns.name())).await);
    let heartbeat = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "some-node", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "some-node"}});
    accepts(create(&admin, &heartbeat).await);
    accepts(patch(&admin, &heartbeat, json!({"spec": {"renewTime": "2026-03-02T09:00:00.000000Z"}})).await);
    // going on: status, metadata and finalizers of our own kinds
    accepts(patch_status(&operator, &held, json!({"instances": "1/2"})).await);
    accepts(patch(&operator, &held, json!({"metadata": {"finalizers": ["rack.macrack.io/release"]}})).await);
    accepts(patch(&admin, &instance("vm"), json!({"spec": {"powerState": "Stopped"}})).await);
    // going on: every deletion
    for object in [&instance("vm"), &held, &mac, &golden, &size, &class, &config] {
        accepts(api_of(&admin, object).delete(name(object), &DeleteParams::default()).await);
    }
    accepts(patch(&operator, &held, json!({"metadata": {"finalizers": null}})).await);
}
