//! `status.guest` on a real API server: one manager, one field, one object.

use std::sync::Arc;

use anyhow::Context as _;
use dockerios_api::{
    MacOSMachine, MachineIdentity, crds,
    machine::macos_machine::{Guest, GuestStage},
    names::OPERATOR,
};
use dockerios_collector::{Known, KubeMachines, Look, Machines, Recorded, Stores};
use dockerios_testkit::{Scratch, apply_yaml, expect, shared};
use dockerios_wire::Order;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::rbac::v1::RoleBinding, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use serde_json::{Value, json};

/// Rights of the collector and not one more.
const ROLE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: collector}
rules:
- {apiGroups: [machine.dockerios.io], resources: [macosmachines], verbs: [get]}
- {apiGroups: [machine.dockerios.io], resources: [macosmachines/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: collector}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: collector}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: collector}]
";

struct World {
    machines: Api<MacOSMachine>,
    collector: Arc<KubeMachines>,
    scratch: Scratch,
    watching: tokio::task::JoinHandle<()>,
}

/// The kinds, a namespace, the caches as an operator keeps them, and a collector with its own rights.
async fn world(stem: &str) -> anyhow::Result<World> {
    let plane = shared().await?;
    let admin = plane.client().await?;
    install(&admin).await?;
    let scratch = Scratch::new(plane, stem).await?;
    apply_yaml(&scratch.client()?, ROLE).await?;
    let machines: Api<MacOSMachine> = Api::namespaced(admin.clone(), scratch.name());
    let (store, writer) = reflector::store();
    let (identities, identity_writer) = reflector::store::<MachineIdentity>();
    let client = plane.client_as("collector", &[]).await?;
    let collector = Arc::new(KubeMachines::new(client, Arc::new(Stores::new(store, identities))));
    let heeding = Arc::clone(&collector);
    let events = reflector(
        writer,
        watcher(machines.clone(), watcher::Config::default()).default_backoff(),
    );
    let watching = tokio::spawn(events.for_each(move |event| {
        match event {
            Ok(watcher::Event::Apply(m) | watcher::Event::Delete(m)) => heeding.touched(&m.uid().unwrap_or_default()),
            Ok(watcher::Event::InitDone) => heeding.all_touched(),
            _ => {}
        }
        std::future::ready(())
    }));
    let all = Api::<MachineIdentity>::all(admin);
    let events = reflector(
        identity_writer,
        watcher(all, watcher::Config::default()).default_backoff(),
    );
    tokio::spawn(events.for_each(|_| std::future::ready(())));
    Ok(World {
        machines,
        collector,
        scratch,
        watching,
    })
}

async fn install(admin: &Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for crd in crds()? {
        let name = crd.name_any();
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&crd))
            .await?;
        expect::until(
            api.clone(),
            &name,
            "its establishment",
            |crd: &CustomResourceDefinition| {
                let conditions = crd.status.iter().flat_map(|s| s.conditions.iter().flatten());
                conditions
                    .into_iter()
                    .any(|c| c.type_ == "Established" && c.status == "True")
            },
        )
        .await?;
    }
    Ok(())
}

impl World {
    async fn make(&self, name: &str) -> anyhow::Result<MacOSMachine> {
        let machine = json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
            "metadata": {"name": name}, "spec": {"machineClassName": "small"}});
        Ok(self
            .machines
            .create(&PostParams::default(), &serde_json::from_value(machine)?)
            .await?)
    }

    /// What the operator has to say, without `guest`.
    async fn operator_says(&self, name: &str, status: Value) -> anyhow::Result<MacOSMachine> {
        let body = json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine", "status": status});
        let params = PatchParams::apply(OPERATOR).force();
        Ok(self.machines.patch_status(name, &params, &Patch::Apply(&body)).await?)
    }

    /// Waits until the collector's view of a machine is as wanted, woken by the cache alone.
    async fn view(&self, uid: &str, what: &str, wanted: impl Fn(&Look) -> bool) -> anyhow::Result<Look> {
        let mut changes = self.collector.changed(uid);
        let seen = async {
            loop {
                let look = self.collector.look(uid);
                if wanted(&look) {
                    return look;
                }
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), seen)
            .await
            .with_context(|| format!("no sign of {what}: {:?}", self.collector.look(uid)))
    }

    async fn known(&self, uid: &str) -> anyhow::Result<Known> {
        match self
            .view(uid, "the machine", |look| matches!(look, Look::Known(_)))
            .await?
        {
            Look::Known(known) => Ok(*known),
            other => anyhow::bail!("{other:?}"),
        }
    }
}

fn guest(stage: GuestStage) -> Guest {
    Guest {
        stage: Some(stage),
        ready: stage == GuestStage::Ready,
        agent_version: Some("1".into()),
        disk_free: Some(7),
        last_report: Some(Time(Timestamp::from_second(1_772_442_000).expect("a time"))),
        ..Guest::default()
    }
}

#[tokio::test]
async fn the_collector_owns_status_guest_and_nothing_else_and_the_operator_keeps_its_own() -> anyhow::Result<()> {
    let world = world("guest-owner").await?;
    let uid = world.make("one").await?.uid().context("a uid")?;
    world
        .operator_says("one", json!({"phase": "Starting", "nodeName": "kvm-1"}))
        .await?;
    let known = world.known(&uid).await?;
    let shutting = Guest {
        clean_shutdown: Some(true),
        ..guest(GuestStage::ShuttingDown)
    };
    assert_eq!(world.collector.record(&uid, &known, shutting).await?, Recorded::Written);
    world.operator_says("one", json!({"phase": "Stopping"})).await?;
    let ready = guest(GuestStage::Ready);
    assert_eq!(
        world.collector.record(&uid, &known, ready.clone()).await?,
        Recorded::Written
    );

    let machine = world.machines.get("one").await?;
    let status = machine.status.clone().context("a status")?;
    assert_eq!(status.guest, Some(ready), "what the guest no longer says is gone");
    assert_eq!(format!("{:?}", status.phase), "Some(Stopping)");
    assert_eq!(
        status.node_name, None,
        "the operator took it back; the collector does not hold it"
    );
    let managed = machine.managed_fields().iter();
    let ours: Vec<_> = managed
        .filter(|m| m.manager.as_deref() == Some("dockerios-collector"))
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0].subresource.as_deref(), Some("status"));
    let fields = serde_json::to_value(ours[0].fields_v1.as_ref().context("fields")?)?;
    let top = fields.as_object().context("an object")?;
    assert_eq!(top.keys().collect::<Vec<_>>(), ["f:status"], "{fields}");
    assert_eq!(
        top["f:status"]
            .as_object()
            .context("an object")?
            .keys()
            .collect::<Vec<_>>(),
        ["f:guest"],
        "{fields}"
    );
    world.scratch.delete().await
}

#[tokio::test]
async fn a_machine_made_again_under_the_name_does_not_get_the_old_guest_s_words() -> anyhow::Result<()> {
    let world = world("guest-again").await?;
    let uid = world.make("db").await?.uid().context("a uid")?;
    let known = world.known(&uid).await?;
    // from here on the cache shows the old machine, as one that lags does
    world.watching.abort();
    world.machines.delete("db", &DeleteParams::default()).await?;
    expect::gone(world.machines.clone(), "db").await?;
    let words = guest(GuestStage::Ready);
    assert_eq!(
        world.collector.record(&uid, &known, words.clone()).await?,
        Recorded::Gone,
        "deleted"
    );
    assert!(
        world.machines.get_opt("db").await?.is_none(),
        "and not made again by the write"
    );

    world.make("db").await?;
    assert_eq!(
        world.collector.record(&uid, &known, words).await?,
        Recorded::Gone,
        "another one now"
    );
    assert!(
        world.machines.get("db").await?.status.is_none_or(|s| s.guest.is_none()),
        "it was written"
    );
    world.scratch.delete().await
}

#[tokio::test]
async fn a_cache_that_lags_behind_the_operator_s_writes_delays_no_report() -> anyhow::Result<()> {
    let world = world("guest-lag").await?;
    let uid = world.make("one").await?.uid().context("a uid")?;
    let known = world.known(&uid).await?;
    world.watching.abort();
    world.operator_says("one", json!({"phase": "Starting"})).await?;
    assert_eq!(
        world.collector.record(&uid, &known, guest(GuestStage::Ready)).await?,
        Recorded::Written
    );
    let status = world.machines.get("one").await?.status.context("a status")?;
    assert_eq!(
        (status.guest, format!("{:?}", status.phase)),
        (Some(guest(GuestStage::Ready)), "Some(Starting)".into())
    );
    world.scratch.delete().await
}

#[tokio::test]
async fn a_machine_that_goes_is_unknown_once_the_cache_says_so() -> anyhow::Result<()> {
    let world = world("guest-goes").await?;
    let uid = world.make("db").await?.uid().context("a uid")?;
    let known = world.known(&uid).await?;
    world.machines.delete("db", &DeleteParams::default()).await?;
    world
        .view(&uid, "its end", |look| matches!(look, Look::Unknown))
        .await?;
    assert_eq!(
        world.collector.record(&uid, &known, guest(GuestStage::Ready)).await?,
        Recorded::Gone
    );
    let again = world.make("db").await?.uid().context("a uid")?;
    world.known(&again).await?;
    world.scratch.delete().await
}

#[tokio::test]
async fn a_requested_stop_becomes_the_order_and_wakes_whoever_waits() -> anyhow::Result<()> {
    let world = world("guest-order").await?;
    let uid = world.make("one").await?.uid().context("a uid")?;
    let known = world.known(&uid).await?;
    assert_eq!((known.order.order, known.order.revision.as_str()), (Order::Run, "run"));
    assert_eq!(known.identity, None, "no identity yet, nothing to compare");
    assert!(world.collector.uids().contains(&uid));
    let status = json!({"stopRequestedAt": "2026-03-02T09:00:00Z", "identityRef": "zztest000001"});
    world.operator_says("one", status).await?;
    let seen = world
        .view(
            &uid,
            "the order",
            |look| matches!(look, Look::Known(k) if k.order.order == Order::Shutdown),
        )
        .await?;
    let Look::Known(known) = seen else {
        anyhow::bail!("{seen:?}")
    };
    assert_eq!(known.order.revision, "shutdown-1772442000");
    assert_eq!(
        known.identity.map(|i| (i.serial, i.system_uuid)),
        Some(("zztest000001".into(), None))
    );
    world.scratch.delete().await
}

#[tokio::test]
async fn what_has_not_been_listed_is_not_unknown() -> anyhow::Result<()> {
    let client = shared().await?.client_as("collector", &[]).await?;
    let (store, _writer) = reflector::store();
    let (identities, _identity_writer) = reflector::store::<MachineIdentity>();
    let collector = KubeMachines::new(client, Arc::new(Stores::new(store, identities)));
    assert_eq!(collector.look("6f0c1d1e-0000-4000-8000-000000000001"), Look::Unreadable);
    assert!(collector.uids().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_report_that_the_api_server_does_not_take_is_an_error_and_not_the_machine_s_end() -> anyhow::Result<()> {
    let world = world("guest-denied").await?;
    let uid = world.make("one").await?.uid().context("a uid")?;
    let known = world.known(&uid).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(world.scratch.client()?, world.scratch.name());
    bindings.delete("collector", &DeleteParams::default()).await?;
    let write = || async {
        match world.collector.record(&uid, &known, guest(GuestStage::Ready)).await {
            Err(why) => Some(why.to_string()),
            Ok(_) => None,
        }
    };
    // the authorizer's own cache takes a moment
    let refused = async {
        loop {
            if let Some(why) = write().await {
                return why;
            }
            tokio::task::yield_now().await;
        }
    };
    let why = tokio::time::timeout(std::time::Duration::from_secs(30), refused).await?;
    assert!(why.contains("cannot patch resource \"macosmachines/status\""), "{why}");
    world.scratch.delete().await
}
