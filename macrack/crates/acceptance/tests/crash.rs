//! The operator is killed with SIGKILL after each of its writes in turn, while it binds and while it releases. Whatever
//! it had done, the next one ends the work, and the clock is neither restarted nor shortened.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use kube::{ResourceExt, api::DeleteParams, runtime::watcher};
use macrack_acceptance::{Operator, Rack, SOON, Scene, objects};
use macrack_api::{
    MacNode, MacNodeLease, instance::macos_instance::MacOSInstancePhase, rack::lease::MacNodeLeasePhase,
};
use macrack_testkit::{Namespace, expect};
use tokio::sync::Mutex;

static TURN: Mutex<()> = Mutex::const_new(());

fn at(hours: i64) -> Operator {
    Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() }
}

/// Of each chassis and lease uid: boundAt never changes, the floor never falls, and a chassis goes from one lease to
/// another only through nobody, with both slots empty.
#[derive(Default)]
struct Clocks(BTreeMap<(String, String), (String, String)>, BTreeMap<String, String>);

impl Clocks {
    fn hold(&mut self, nodes: &expect::Objects<MacNode>) -> Result<(), String> {
        for (name, node) in nodes {
            let status = node.status.clone().unwrap_or_default();
            let Some(held) = status.lease_ref else {
                if !status.slots.is_empty() {
                    return Err(format!("{name} is nobody's and has slots"));
                }
                self.1.remove(name);
                continue;
            };
            let now = (held.bound_at.0.to_string(), held.earliest_release_at.0.to_string());
            let before = self.0.entry((name.clone(), held.uid.clone())).or_insert_with(|| now.clone());
            if before.0 != now.0 || before.1 > now.1 {
                return Err(format!("{name}: the clock of lease {} went from {before:?} to {now:?}", held.uid));
            }
            if self.1.insert(name.clone(), held.uid.clone()).is_some_and(|uid| uid != held.uid) {
                return Err(format!("{name} went from one lease to another"));
            }
        }
        Ok(())
    }
}

/// Waits until the doomed operator is dead, or has nothing left to do because what it was to reach is reached.
async fn dead_or(rack: &Rack, reached: impl Future<Output = ()>) -> bool {
    let dead = async {
        while rack.operator_lives() {
            tokio::time::sleep(Duration::from_millis(20)).await; // a process that is not our child's child has no watch
        }
    };
    tokio::select! { () = dead => true, () = reached => false }
}

#[tokio::test]
async fn binding_resumes_after_a_kill_between_any_two_writes() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(0)).await?;
    let scene = Scene::set(rack, "bindk", 1, 31).await?;
    let ns = Namespace::fresh(rack.plane, "bindk").await?;
    let mut clocks = Clocks::default();
    let all = async {
        // one write a life: each is followed by a death, so every state between two writes is started from
        let mut kills = 0;
        for life in 1..60 {
            rack.start_without_waiting(&Operator { kill_after: Some(1), ..at(0) }).await?;
            if life == 1 {
                objects::make_in(&scene.admin, ns.name(), &objects::lease("l", "bindk")).await?;
            }
            let instances = scene.instances(ns.name());
            let ready = async {
                let is = |i: Option<&macrack_api::MacOSInstance>| {
                    i.and_then(|i| i.status.as_ref()).is_some_and(|s| s.phase == Some(MacOSInstancePhase::Ready))
                };
                expect::until(&instances, "i", "Ready", Duration::from_secs(600), is).await;
            };
            if life == 1 {
                scene.create(ns.name(), "i", "l").await?;
            }
            if !dead_or(rack, ready).await {
                break; // it outlived all there was to write
            }
            kills += 1;
        }
        assert!(kills >= 3, "only {kills} kills: the writes were not counted");
        rack.start(&at(0)).await?;
        scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Bound).await;
        scene.until_instance(ns.name(), "i", MacOSInstancePhase::Ready).await;
        anyhow::Ok(())
    };
    expect::always(&scene.nodes(), watcher::Config::default(), "one clock per lease", |n| clocks.hold(n), all).await
}

#[tokio::test]
async fn release_resumes_after_a_kill_between_any_two_writes() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-25)).await?;
    let scene = Scene::set(rack, "relk", 1, 32).await?;
    let ns = Namespace::fresh(rack.plane, "relk").await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "i", "l").await?;
    rack.start(&at(0)).await?;
    let elapsed = |l: &MacNodeLease| {
        macrack_api::condition::is_true(&l.status.clone().unwrap_or_default().conditions, "FloorElapsed")
    };
    let uid = expect::until_seen(&scene.leases(ns.name()), "l", "past its floor", SOON, elapsed).await.uid();
    let mut clocks = Clocks::default();
    let all = async {
        rack.kill_operator()?;
        scene.leases(ns.name()).delete("l", &DeleteParams::default()).await?;
        let mut kills = 0;
        // one write a life: each is followed by a death, so every state between two writes is started from
        loop {
            rack.start_without_waiting(&Operator { kill_after: Some(1), ..at(0) }).await?;
            let leases = scene.leases(ns.name());
            let gone = async {
                let other = |l: Option<&MacNodeLease>| l.is_none_or(|l| l.uid() != uid);
                expect::until(&leases, "l", "gone", Duration::from_secs(600), other).await;
            };
            if !dead_or(rack, gone).await {
                break;
            }
            kills += 1;
            assert!(kills < 60, "a release does not end");
        }
        assert!(kills >= 5, "only {kills} kills: the writes were not counted");
        rack.start(&at(0)).await?;
        scene.until_free(&scene.serials[0]).await;
        expect::until_gone(&scene.instances(ns.name()), "i", SOON).await;
        anyhow::Ok(())
    };
    expect::always(&scene.nodes(), watcher::Config::default(), "one clock per lease", |n| clocks.hold(n), all).await
}
