//! The status of a placeholder: Running once its VM runs, and never a terminal phase. What others write there is put
//! right: the node controller calls the pods of a Node that was silent not ready, and leaves it to the Node to end that.
//!
//! It has no address of its own: a guest's is behind its Mac's NAT, the same on every Mac, and nobody's word but the
//! guest's; named here it would become an endpoint of Services.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::state;
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

/// Renders what is done about `pod`, which is bound to this Node at `host`; `None`: nothing, it says what it should.
pub fn render(pod: &Pod, host: Option<IpAddr>, facts: Option<&Facts>, say: Option<&Say>) -> Option<PodReport> {
    let uid = pod.metadata.uid.clone()?;
    if pod.metadata.deletion_timestamp.is_some() && say == Some(&Say::Wiped) {
        return Some(PodReport { uid, act: PodAct::Finish });
    }
    let runs = facts.is_some_and(|facts| facts.life == Life::Running);
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    // before its VM ran for the first time it stays Pending; afterwards only its readiness changes
    let begun = runs || phase == Some("Running");
    let waits = (!begun).then(|| format!("VM{:?}", state(facts.map(|facts| &facts.life), say).0));
    let mut told = status(pod, facts, runs, waits);
    if let Some(host) = host {
        told["hostIP"] = json!(host.to_string());
    }
    (!shows(pod, &told)).then_some(PodReport { uid, act: PodAct::Tell(told) })
}

/// Whether the status of `pod` is as it should be, times aside.
fn shows(pod: &Pod, told: &Value) -> bool {
    let status = json!(pod.status);
    let same = |have: &Value, want: &Value, keys: &[&str]| keys.iter().all(|key| have[*key] == want[*key]);
    let each = |list: &str, name: &str, keys: &[&str]| {
        let (have, want) = (status[list].as_array(), told[list].as_array());
        want.into_iter().flatten().all(|want| {
            let found = have.into_iter().flatten().find(|have| have[name] == want[name]);
            found.is_some_and(|have| {
                same(have, want, keys) && have["state"]["waiting"]["reason"] == want["state"]["waiting"]["reason"]
            })
        })
    };
    same(&status, told, &["phase"])
        && (told["hostIP"].is_null() || status["hostIP"] == told["hostIP"])
        && each("conditions", "type", &["status", "reason"])
        && each("containerStatuses", "name", &["ready", "started", "restartCount"])
}

/// `waits`: why its VM has not run yet.
fn status(pod: &Pod, facts: Option<&Facts>, runs: bool, waits: Option<String>) -> Value {
    let started = facts.and_then(|facts| facts.report.as_ref()).map(|report| report.started_at);
    let since = facts.map(|facts| Time(facts.since));
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
                "state": match &waits {
                    Some(reason) => json!({ "waiting": { "reason": reason }, "running": null }),
                    None => json!({ "running": { "startedAt": started.map(Time) }, "waiting": null }),
                },
            })
        })
        .collect();
    json!({
        "phase": if waits.is_some() { "Pending" } else { "Running" },
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
    use jiff::Timestamp;

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

    fn render(pod: &Pod, facts: Option<&Facts>, say: Option<&Say>) -> Option<PodReport> {
        super::render(pod, Some("10.0.0.7".parse().unwrap()), facts, say)
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
        let waiting = Some(("Pending".to_owned(), "False".to_owned()));
        assert_eq!(told(render(&pod("Pending", false), Some(&facts(Life::Starting)), None)), waiting);
        let stopped = facts(Life::AtRest(Rest::Ready));
        let not_ready = Some(("Running".to_owned(), "False".to_owned()));
        for deleted in [false, true] {
            assert_eq!(told(render(&pod("Running", deleted), Some(&stopped), None)), not_ready);
        }
    }

    #[test]
    fn a_placeholder_says_where_it_is_and_why_its_vm_has_not_run_yet() {
        let told = |facts: Option<&Facts>, say: Option<&Say>| {
            let Some(PodReport { act: PodAct::Tell(status), .. }) = render(&pod("Pending", false), facts, say) else {
                panic!("nothing is told")
            };
            status
        };
        let reason = |status: Value| status["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
        assert_eq!(told(None, None)["hostIP"], "10.0.0.7");
        assert_eq!(reason(told(None, Some(&Say::Waiting("for room".to_owned())))), "VMWaiting");
        assert_eq!(reason(told(Some(&facts(Life::Cloning)), None)), "VMCloning");
        assert_eq!(reason(told(Some(&facts(Life::Running)), None)), Value::Null);
    }

    #[test]
    fn a_placeholder_that_says_what_it_should_is_left_and_what_others_wrote_is_put_right() {
        let running = facts(Life::Running);
        let mut pod = pod("Pending", false);
        let Some(PodReport { act: PodAct::Tell(status), .. }) = render(&pod, Some(&running), None) else {
            panic!("it is to be told")
        };
        pod.status = serde_json::from_value(status).unwrap();
        assert_eq!(render(&pod, Some(&running), None), None);
        let others = json!({ "type": "PodScheduled", "status": "True" });
        let status = pod.status.as_mut().unwrap();
        status.conditions.as_mut().unwrap().push(serde_json::from_value(others).unwrap());
        assert_eq!(render(&pod, Some(&running), None), None, "what others add is theirs");
        // as the node controller does it after an outage
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.iter_mut().find(|condition| condition.type_ == "Ready").unwrap().status = "False".to_owned();
        assert!(told(render(&pod, Some(&running), None)) == Some(("Running".to_owned(), "True".to_owned())));
        let again = Facts { starts: 2, ..running };
        let status = pod.status.as_mut().unwrap();
        status.conditions.as_mut().unwrap().iter_mut().for_each(|c| c.status = "True".to_owned());
        assert!(render(&pod, Some(&again), None).is_some(), "it was started again");
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
