//! Races against the three rules, watched all along.

use std::collections::BTreeMap;

use anyhow::Result;
use futures::future::join_all;
use kube::{Api, api::ListParams, runtime::watcher};
use macrack_acceptance::{Rack, SOON, Scene, objects, reason};
use macrack_api::{
    MacNode, MacNodeLease, MacOSInstance, instance::macos_instance::MacOSInstancePhase, rack::lease::MacNodeLeasePhase,
};
use macrack_testkit::{Namespace, expect};

/// Of each chassis: who holds it must never change to somebody else without being nobody in between, and every slot is
/// of the holder's namespace.
fn never_shared(holders: &mut BTreeMap<String, String>, nodes: &expect::Objects<MacNode>) -> Result<(), String> {
    for (name, node) in nodes {
        let status = node.status.clone().unwrap_or_default();
        let Some(lease_ref) = status.lease_ref else {
            holders.remove(name);
            continue;
        };
        if let Some(before) = holders.insert(name.clone(), lease_ref.uid.clone())
            && before != lease_ref.uid
        {
            return Err(format!("{name} went from lease {before} to {}", lease_ref.uid));
        }
        if let Some(slot) = status.slots.iter().find(|s| s.namespace != lease_ref.namespace) {
            return Err(format!("{name} is held by {} and has a slot of {}", lease_ref.namespace, slot.namespace));
        }
    }
    Ok(())
}

#[tokio::test]
async fn two_namespaces_racing_fifty_leases_for_ten_chassis_never_share_one() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "race", 10, 11).await?;
    let (a, b) =
        (Namespace::fresh(scene.rack.plane, "race-a").await?, Namespace::fresh(scene.rack.plane, "race-b").await?);
    let mut holders = BTreeMap::new();
    let race = async {
        let made = (0..50).map(|n| {
            let namespace = if n % 2 == 0 { a.name() } else { b.name() };
            let (admin, lease) = (scene.admin.clone(), objects::lease(&format!("l{n}"), "race"));
            async move { objects::make_in(&admin, namespace, &lease).await }
        });
        for made in join_all(made).await {
            expect::accepts(made);
        }
        // the ten oldest get the ten chassis; who comes later waits and says why
        for serial in &scene.serials {
            let held = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.lease_ref.is_some());
            expect::until_seen(&scene.nodes(), &serial.to_lowercase(), "leased", SOON, held).await;
        }
        let all: Api<MacNodeLease> = Api::all(scene.admin.clone());
        let mut bound = Vec::new();
        for lease in
            all.list(&ListParams::default()).await?.items.into_iter().filter(|l| l.spec.node_class_name == "race")
        {
            let (namespace, name) =
                (lease.metadata.namespace.unwrap_or_default(), lease.metadata.name.unwrap_or_default());
            let settled =
                expect::until_seen(&scene.leases(&namespace), &name, "bound or waiting with a reason", SOON, |l| {
                    let status = l.status.clone().unwrap_or_default();
                    status.serial.is_some() || reason(&status.conditions) == "NoChassisFree"
                })
                .await;
            bound.extend(settled.status.and_then(|s| s.serial));
        }
        bound.sort();
        let count = bound.len();
        bound.dedup();
        assert_eq!((count, bound.len()), (10, 10), "ten leases, ten different chassis");
        anyhow::Ok(())
    };
    expect::always(
        &scene.nodes(),
        watcher::Config::default(),
        "never two holders",
        |n| never_shared(&mut holders, n),
        race,
    )
    .await
}

#[tokio::test]
async fn fifty_concurrent_creates_on_one_lease_never_make_three_live() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "fifty", 1, 12).await?;
    let ns = Namespace::fresh(scene.rack.plane, "fifty").await?;
    scene.lease(ns.name(), "l").await?;
    let race = async {
        let made = join_all((0..50).map(|n| {
            let (admin, namespace) = (scene.admin.clone(), ns.name());
            let instance = objects::instance(&format!("i{n}"), "l", "fifty", "fifty");
            async move {
                loop {
                    match objects::make_in(&admin, namespace, &instance).await {
                        // on a machine that is at its end admission cannot look in time, says so and changes nothing
                        Err(kube::Error::Api(status)) if status.message.contains("[try-again]") => {}
                        made => return made,
                    }
                }
            }
        }))
        .await;
        for refused in made.into_iter().filter(Result::is_err) {
            expect::rejects(refused, "[two-per-lease]");
        }
        let instances = scene.instances(ns.name());
        let mut live = 0;
        for instance in instances.list(&ListParams::default()).await? {
            let name = instance.metadata.name.unwrap_or_default();
            let settled = expect::until_seen(&instances, &name, "Ready or LeaseFull", SOON, |i| {
                let status = i.status.clone().unwrap_or_default();
                status.phase == Some(MacOSInstancePhase::Ready) || reason(&status.conditions) == "LeaseFull"
            })
            .await;
            live += usize::from(settled.status.and_then(|s| s.phase) == Some(MacOSInstancePhase::Ready));
        }
        assert_eq!(live, 2, "two win, the rest are told LeaseFull");
        anyhow::Ok(())
    };
    let two = |objects: &expect::Objects<MacOSInstance>| {
        let live = objects.values().filter(|i| i.status.as_ref().is_some_and(|s| s.node_name.is_some())).count();
        if live <= 2 { Ok(()) } else { Err(format!("{live} instances have a place")) }
    };
    expect::always(&scene.instances(ns.name()), watcher::Config::default(), "never three live", two, race).await
}

#[tokio::test]
async fn a_cross_namespace_schedule_is_rejected() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "cross", 1, 13).await?;
    let (a, b) =
        (Namespace::fresh(scene.rack.plane, "cross-a").await?, Namespace::fresh(scene.rack.plane, "cross-b").await?);
    scene.lease(a.name(), "ios-ci").await?;
    let stranger = scene.rack.tenant(b.name()).await?;
    let foreign = objects::make_in(&stranger, b.name(), &objects::instance("i", "ios-ci", "cross", "cross")).await;
    let foreign = expect::rejects(foreign, ["[lease-in-namespace]", "has no lease \"ios-ci\""]);
    let missing = objects::make_in(&stranger, b.name(), &objects::instance("i", "no-such", "cross", "cross")).await;
    let missing = expect::rejects(missing, "[lease-in-namespace]");
    assert_eq!(
        foreign.message,
        missing.message.replace("no-such", "ios-ci"),
        "a foreign lease reads like a missing one"
    );
    assert_eq!(
        scene
            .until_lease(a.name(), "ios-ci", MacNodeLeasePhase::Bound)
            .await
            .status
            .and_then(|s| s.instances)
            .as_deref(),
        Some("0/2")
    );
    Ok(())
}

#[tokio::test]
async fn a_third_instance_is_rejected() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "third", 1, 14).await?;
    let ns = Namespace::fresh(scene.rack.plane, "third").await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "one", "l").await?;
    scene.instance(ns.name(), "two", "l").await?;
    expect::rejects(scene.create(ns.name(), "three", "l").await, ["[two-per-lease]", "one", "two", "never more"]);
    Ok(())
}
