//! The one loop: take an object, gather and decide, judge, act, report. The kinds differ only in `gather` and in
//! what core decides.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{
    Client, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use macrack_api::condition;
use macrack_core::{
    decide::{self, node::pulls},
    plan::{Kind, Step},
};
use serde_json::Value;

use crate::{
    act::{Actor, Failure, resource},
    foreign,
    gather::{self, Pass, Sources},
    queue::Queue,
    route::Work,
};

/// How many objects are worked on at once.
const WORKERS: usize = 16;
/// An object is not looked at again for time's sake sooner than this.
const SHORTEST_WAIT: Duration = Duration::from_millis(500);

/// From this backoff on a conflict is told.
const PERSISTENT: Duration = Duration::from_secs(5);

/// Works until it is cancelled.
pub async fn work(sources: Sources, queue: Arc<Queue<Work>>) {
    sources.world.whole().await;
    tracing::info!("caches are whole, deciding begins");
    let worker = Arc::new(Worker {
        actor: Actor::new(sources.client.clone()),
        recorder: recorder(sources.client.clone()),
        told: Mutex::default(),
        sources,
        queue,
    });
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let worker = worker.clone();
        workers.spawn(async move { worker.run().await });
    }
    workers.spawn(async move { foreign::tell(&worker.sources, &worker.recorder).await });
    workers.join_all().await;
}

/// Tells events in the operator's name.
pub(crate) fn recorder(client: Client) -> Recorder {
    Recorder::new(client, Reporter { controller: "macrack-operator".into(), instance: None })
}

struct Worker {
    actor: Actor,
    recorder: Recorder,
    /// News of pulls that were told, and when.
    told: Mutex<BTreeMap<String, Timestamp>>,
    sources: Sources,
    queue: Arc<Queue<Work>>,
}

impl Worker {
    async fn run(&self) {
        loop {
            let work = self.queue.next().await;
            match self.pass(&work).await {
                Ok(again) => {
                    self.queue.done(&work);
                    if let Some(wait) = again {
                        self.queue.add_after(work, wait);
                    }
                }
                Err(failure) => {
                    let wait = self.queue.failed(&work);
                    if is_told(&failure, wait) {
                        tracing::warn!(?work, why = %failure, ?wait, "tried again");
                    } else {
                        tracing::debug!(?work, why = %failure, ?wait, "decided anew");
                    }
                }
            }
        }
    }

    /// One pass over one object; when to look again though nothing changes.
    async fn pass(&self, work: &Work) -> Result<Option<Duration>, Failure> {
        let (sources, key) = (&self.sources, &work.key);
        let pass = match work.kind {
            Kind::MacNode => gather::node(sources, key).await,
            Kind::MacNodeLease => gather::lease(sources, key).await,
            Kind::MacOSInstance => gather::instance(sources, key).await,
            Kind::MacOSImage => gather::image(sources, key).await,
            Kind::MacNodeClass => gather::node_class(sources, key).await,
            Kind::InstanceClass => gather::size(sources, key).await,
            Kind::RackConfig => gather::config(sources, key).await,
            _ => None,
        };
        let Some(mut pass) = pass else { return Ok(None) };
        if let Err(broken) = &pass.verdict {
            // a defect of ours: nothing of this plan is carried out
            tracing::error!(of = %pass.of, broken, plan = ?pass.plan, "a plan that breaks an invariant was refused");
            return Err(Failure::Transient(format!("the plan would break an invariant: {broken}")));
        }
        self.audit(work)?;
        let (mut acted, mut refused) = (Ok(()), None);
        for step in &pass.plan.steps {
            tracing::debug!(of = %pass.of, ?step, "step");
            acted = self.actor.step(step).await;
            if let Err(failure) = &acted {
                if let (Failure::Refused(why), Step::Create { object, .. }) = (failure, step)
                    && object.kind == Kind::Pod
                {
                    refused = Some(why.clone());
                }
                break;
            }
            self.tell_of(&pass, step).await;
        }
        self.tell_of_pulls(&pass, work).await;
        if let Some(why) = refused {
            decide::instance::placeholder_refused(&mut pass.plan, &why);
        }
        // the status is told also after a failure: it says what is waited for
        self.report(&pass).await?;
        acted?;
        let now = sources.clock.now();
        Ok(pass.plan.wake.map(|moment| {
            let wait = Duration::try_from(moment.duration_since(now)).unwrap_or_default();
            wait.max(SHORTEST_WAIT)
        }))
    }

    /// Writes to the audit trail what is seen of a chassis, before anything is done that would take it out of sight.
    fn audit(&self, work: &Work) -> Result<(), Failure> {
        let (Some(audit), Kind::MacNode) = (&self.sources.audit, work.kind) else { return Ok(()) };
        // not older than what was decided on
        let seen = self.sources.world.nodes.get(&work.key);
        let Some(node) = seen.present() else { return Ok(()) };
        audit.observe(node, self.sources.clock.now()).map_err(|error| Failure::Transient(error.to_string()))
    }

    /// Events about what was just done.
    async fn tell_of(&self, pass: &Pass, step: &Step) {
        let Step::KeepWipes { new, .. } = step else { return };
        for (record, receipt) in new {
            let message = macrack_core::decide::node::in_words(record, receipt);
            // two wipes in one minute are two events, not a series of the first
            let wiped = ObjectReference {
                namespace: Some(record.namespace.clone()),
                name: Some(record.name.clone()),
                uid: Some(record.uid.clone()),
                ..reference(Kind::MacOSInstance)
            };
            self.tell(pass, Some(wiped), "Wiped", message).await;
        }
    }

    /// Events about a chassis' pulls, which its agent reports as facts: each once, while it is news.
    async fn tell_of_pulls(&self, pass: &Pass, work: &Work) {
        let (world, now) = (&self.sources.world, self.sources.clock.now());
        if work.kind != Kind::MacNode {
            return;
        }
        let seen = world.nodes.get(&work.key);
        let Some(agent) = seen.present().and_then(|node| node.status.as_ref()?.agent.as_ref()) else { return };
        if agent.pulls.is_empty() {
            return;
        }
        let name = |digest: &str| {
            let images = world.images.all();
            images.iter().find(|image| image.spec.source.oci.digest() == Some(digest)).map(|image| image.name_any())
        };
        let fresh: Vec<_> = {
            let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            told.retain(|_, moment| pulls::is_news(*moment, now));
            let news = pulls::news(agent, now, &name).into_iter();
            news.filter(|news| told.insert(format!("{} {}", pass.uid, news.key), now).is_none()).collect()
        };
        for news in fresh {
            self.tell(pass, None, news.reason, news.message).await;
        }
    }

    /// Writes the status if it differs, and an event when the summary's reason changed.
    async fn report(&self, pass: &Pass) -> Result<(), Failure> {
        let Some(status) = &pass.plan.status else { return Ok(()) };
        let status = without_nulls(status);
        let was = without_nulls(&pass.status);
        if status == was {
            return Ok(());
        }
        self.actor.status(&pass.of, &pass.uid, &was, &status).await?;
        for type_ in TOLD {
            let (before, Some(after)) = (said(&pass.status, type_), said(&status, type_)) else { continue };
            let same = before.as_ref().is_some_and(|before| before.reason == after.reason);
            // a condition that is good as soon as it is known is no news, but the summary of a new object is
            let first = before.is_none_or(|before| before.status == "Unknown");
            if !same && (!first || after.status != "True" || *type_ == "Ready") {
                self.tell(pass, None, &after.reason, after.message).await;
            }
        }
        Ok(())
    }

    /// Tells of the object of this pass, and of another that has to do with it.
    async fn tell(&self, pass: &Pass, secondary: Option<ObjectReference>, reason: &str, message: String) {
        let reference = ObjectReference {
            name: Some(pass.of.name.clone()),
            namespace: Some(pass.of.namespace.clone()).filter(|n| !n.is_empty()),
            uid: Some(pass.uid.clone()),
            ..reference(pass.of.kind)
        };
        let event = Event {
            type_: if is_trouble(reason) { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: note(&message),
            action: "Reconcile".into(),
            secondary,
        };
        if let Err(error) = self.recorder.publish(&event, &reference).await {
            // a namespace on its way out takes no events
            tracing::debug!(of = %pass.of, %error, "event not told");
        }
    }
}

/// Whether somebody should read of a pass that failed. What was decided on changes all the time; a write that is refused
/// for so long that it waits for [`PERSISTENT`] is no race, but something that a schema or a policy does not let us do.
fn is_told(failure: &Failure, wait: Duration) -> bool {
    match failure {
        Failure::Conflict(_) => wait >= PERSISTENT,
        Failure::Refused(_) | Failure::Transient(_) => true,
    }
}

/// The note of an event. The API server takes 1024 bytes (events.k8s.io/v1) and refuses the whole event beyond that.
fn note(message: &str) -> Option<String> {
    Some(condition::bounded(message)).filter(|note| !note.is_empty())
}

/// Some object of that kind.
pub(crate) fn reference(kind: Kind) -> ObjectReference {
    let resource = resource(kind);
    ObjectReference { api_version: Some(resource.api_version), kind: Some(resource.kind), ..ObjectReference::default() }
}

/// Reasons that somebody should act on.
fn is_trouble(reason: &str) -> bool {
    const TROUBLE: &[&str] = &[
        "LeaseFull",
        "LeaseEnded",
        "VMFailed",
        "VMUnknown",
        "HostUnreachable",
        "WipeFailed",
        "ChassisQuarantined",
        "DoesNotFit",
        "ClassNotFound",
        "NotFound",
        "NotAGolden",
        "NodeNotReady",
        "QuotaStuck",
        "AwaitsApproval",
        "RebootTimedOut",
        "ReattachFailed",
        "SerialMismatch",
        "ForeignVM",
        "Differs",
        "Broken",
        "ChassisMissing",
        "PlaceholderRefused",
        "ChassisRetired",
        "KeychainLocked",
        "EntitlementMissing",
        "AutoLoginOff",
        "NotPrepared",
        "HostTooOld",
        "ContentsDiffer",
        "ScriptFailed",
        "GuestNotHeard",
        "ClockSkewed",
        "ForeignPod",
    ];
    TROUBLE.contains(&reason)
}

/// Conditions of which each new reason is told as an event.
const TOLD: &[&str] = &["Ready", "ContentsMatch", "RebootSettled", "ClockInStep"];

/// What a condition says.
struct Said {
    status: String,
    reason: String,
    message: String,
}

fn said(status: &Value, type_: &str) -> Option<Said> {
    let condition = status.get("conditions")?.as_array()?.iter().find(|c| c["type"] == type_)?;
    Some(Said {
        status: condition["status"].as_str()?.to_owned(),
        reason: condition["reason"].as_str()?.to_owned(),
        message: condition["message"].as_str().unwrap_or_default().to_owned(),
    })
}

/// A status as it is sent: what is null is left out.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_story_is_told_as_far_as_an_event_holds_it() {
        assert_eq!(note(""), None);
        assert!(note(&"disks, ".repeat(300)).is_some_and(|note| note.len() <= 1024 && note.ends_with('…')));
    }

    #[test]
    fn whatever_keeps_a_mac_from_being_leased_is_trouble() {
        for reason in ["EntitlementMissing", "KeychainLocked", "AutoLoginOff", "NotPrepared", "Differs"] {
            assert!(is_trouble(reason), "{reason}");
        }
        assert!(!is_trouble("Available"));
    }

    #[test]
    fn a_race_is_no_news_and_a_write_that_is_refused_again_and_again_is() {
        let conflict = Failure::Conflict("status.slots: one uid in both slots".into());
        assert!(!is_told(&conflict, Duration::from_millis(50)));
        assert!(is_told(&conflict, Duration::from_secs(30)));
        assert!(is_told(&Failure::Transient("timeout".into()), Duration::from_millis(50)));
    }
}
