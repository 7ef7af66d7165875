//! The status of a placeholder: Running once its VM runs, and never a terminal phase.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::life::{Facts, Life};
use crate::orders::Say;
use crate::writer::Report;

/// What is done about a placeholder.
#[derive(Debug, Clone, PartialEq)]
pub struct PodReport {
    /// uid of the pod: a later one of the same name is another.
    pub uid: String,
    /// What.
    pub act: PodAct,
}

/// What is done about a placeholder.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAct {
    /// Its status is written.
    Tell(Value),
    /// It is being deleted and its VM is wiped: its graceful deletion is over.
    Finish,
}

impl Report for PodReport {
    fn is_news(&self, _: &Self) -> bool {
        true
    }
}

/// Renders what is done about `pod`, which is bound to this Node; `None`: nothing.
pub fn render(pod: &Pod, facts: Option<&Facts>, say: Option<&Say>) -> Option<PodReport> {
    let uid = pod.metadata.uid.clone()?;
    if pod.metadata.deletion_timestamp.is_some() && say == Some(&Say::Wiped) {
        return Some(PodReport { uid, act: PodAct::Finish });
    }
    let runs = facts.is_some_and(|facts| facts.life == Life::Running);
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    // before its VM ran for the first time it stays Pending; afterwards only its readiness changes
    if !runs && phase != Some("Running") {
        return None;
    }
    Some(PodReport { uid, act: PodAct::Tell(status(pod, facts, runs)) })
}

fn status(pod: &Pod, facts: Option<&Facts>, runs: bool) -> Value {
    let started = facts.and_then(|facts| facts.report.as_ref()).map(|report| report.started_at);
    let since = Time(facts.map_or(Timestamp::UNIX_EPOCH, |facts| facts.since));
    let ready = if runs { "True" } else { "False" };
    let reason = (!runs).then_some("VMNotRunning");
    let condition = |type_: &str, status: &str, reason: Option<&str>| json!({ "type": type_, "status": status, "reason": reason, "lastTransitionTime": since });
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let starts = facts.map_or(0, |facts| facts.starts.saturating_sub(1));
    let containers: Vec<Value> = containers
        .iter()
        .map(|container| {
            json!({
                "name": container.name,
                "image": container.image.as_deref().unwrap_or_default(),
                "imageID": "",
                "ready": runs,
                "started": runs,
                "restartCount": starts,
                "state": { "running": { "startedAt": started.map(Time) } },
            })
        })
        .collect();
    json!({
        "phase": "Running",
        "conditions": [
            condition("Initialized", "True", None),
            condition("ContainersReady", ready, reason),
            condition("Ready", ready, reason),
        ],
        "containerStatuses": containers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::Rest;

    fn pod(phase: &str, deleted: bool) -> Pod {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": { "uid": "pod-uid", "deletionTimestamp": deleted },
            "spec": { "containers": [{ "name": "vm" }] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn facts(life: Life) -> Facts {
        Facts::new(life, Timestamp::UNIX_EPOCH)
    }

    fn told(report: Option<PodReport>) -> Option<(String, String)> {
        let PodAct::Tell(status) = report?.act else { panic!("finished") };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((text(&status["phase"]), text(&status["conditions"][2]["status"])))
    }

    #[test]
    fn a_placeholder_runs_once_its_vm_does_and_never_ends_before_it_is_wiped() {
        let running = Some(("Running".to_owned(), "True".to_owned()));
        assert_eq!(told(render(&pod("Pending", false), Some(&facts(Life::Running)), None)), running);
        assert_eq!(told(render(&pod("Pending", false), Some(&facts(Life::Starting)), None)), None);
        let stopped = facts(Life::AtRest(Rest::Ready));
        let not_ready = Some(("Running".to_owned(), "False".to_owned()));
        for deleted in [false, true] {
            assert_eq!(told(render(&pod("Running", deleted), Some(&stopped), None)), not_ready);
        }
    }

    #[test]
    fn a_deleted_placeholder_is_finished_only_when_its_vm_is_wiped() {
        let finished = |deleted, say: Option<&Say>| {
            render(&pod("Running", deleted), None, say).is_some_and(|report| report.act == PodAct::Finish)
        };
        assert!(finished(true, Some(&Say::Wiped)));
        assert!(!finished(false, Some(&Say::Wiped)), "the agent never deletes a pod on its own");
        assert!(!finished(true, None));
    }
}
