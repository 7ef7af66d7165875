//! Objects that an older, looser schema let in and that cannot be decoded: the good are worked on, the bad are named in
//! an event, and what hangs on them stays as it is. On a control plane of its own, since it loosens a kind.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, ResourceExt, api::ListParams, runtime::watcher};
use macrack_acceptance::{Operator, Rack, SOON, Scene, objects, rack::deploy};
use macrack_api::{MacNode, instance::macos_instance::MacOSInstancePhase, rack::lease::MacNodeLeasePhase};
use macrack_testkit::{Namespace, expect};

const LOOSE: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: macnodeleases.rack.macrack.io}
spec:
  group: rack.macrack.io
  scope: Namespaced
  names: {plural: macnodeleases, singular: macnodelease, kind: MacNodeLease, shortNames: [mnl], categories: [macrack]}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"#;

fn lease(name: &str, rest: &str) -> String {
    format!("apiVersion: rack.macrack.io/v1alpha1\nkind: MacNodeLease\nmetadata: {{name: {name}}}\n{rest}\n")
}

#[tokio::test]
async fn one_bad_object_stops_nobody_and_frees_nothing() -> Result<()> {
    let rack = Rack::bare();
    let operator = Operator { no_webhook: true, ..Operator::default() };
    rack.start(&operator).await?;
    let scene = Scene::set(rack, "bad", 3, 95).await?;
    let ns = Namespace::fresh(rack.plane, "bad").await?;
    let held = scene.lease(ns.name(), "held").await?;
    scene.instance(ns.name(), "i", "held").await?;
    rack.kill_operator()?;

    // the schema was looser once: bad objects get into the store, and the bound lease becomes one
    rack.plane.kubectl_with(&["replace", "-f", "-"], LOOSE).await?.success()?;
    let bad = [
        lease("bad-duration", "spec: {nodeClassName: bad, minimumDuration: one day}"),
        lease("bad-enum", "spec: {nodeClassName: bad, minimumDuration: 24h}\nstatus: {phase: PhaseFromTheFuture}"),
        lease("bad-null", "spec: null"),
        lease("bad-type", "spec: {nodeClassName: bad, minimumDuration: 1440}"),
    ]
    .join("---\n");
    let loose_now = async || {
        rack.plane.kubectl_with(&["apply", "-n", ns.name(), "-f", "-"], &bad).await.is_ok_and(|o| o.success().is_ok())
    };
    expect::until_effective("the loose schema", Duration::from_secs(30), loose_now).await;
    let broken =
        ["patch", "mnl", "held", "-n", ns.name(), "--type=merge", "-p", r#"{"spec":{"minimumDuration":1440}}"#];
    rack.plane.kubectl(&broken).await?.success()?;
    let crd = deploy().join("crds/macnodeleases.rack.macrack.io.yaml");
    rack.plane.kubectl(&["replace", "-f", &crd.display().to_string()]).await?.success()?;

    let uid = held.uid();
    let stays = |nodes: &expect::Objects<MacNode>| {
        let holder = |n: &MacNode| {
            n.status.as_ref().and_then(|s| s.lease_ref.as_ref()).is_some_and(|r| Some(&r.uid) == uid.as_ref())
        };
        if nodes.values().any(holder) { Ok(()) } else { Err("the chassis of an unreadable lease was freed".into()) }
    };
    let goes_on = async {
        rack.start(&operator).await?;
        objects::make_in(&scene.admin, ns.name(), &objects::lease("good", "bad")).await?;
        scene.until_lease(ns.name(), "good", MacNodeLeasePhase::Bound).await;
        // a text that is no duration counts as 24 hours, and says so; the ones that cannot be decoded are named
        let events: Api<Event> = Api::namespaced(scene.admin.clone(), ns.name());
        for name in ["bad-enum", "bad-null", "bad-type", "held"] {
            let about = |list: &[Event]| {
                list.iter().any(|e| {
                    e.involved_object.name.as_deref() == Some(name) && e.reason.as_deref() == Some("Unreadable")
                })
            };
            expect::until_effective(&format!("the event about {name}"), SOON, async || {
                events.list(&ListParams::default()).await.is_ok_and(|l| about(&l.items))
            })
            .await;
        }
        assert!(rack.operator_lives());
        anyhow::Ok(())
    };
    expect::always(&scene.nodes(), watcher::Config::default(), "held by the unreadable lease", stays, goes_on).await?;
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Ready).await;
    Ok(())
}
