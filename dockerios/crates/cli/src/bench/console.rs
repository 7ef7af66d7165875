//! Hearing what the guest says on its serial console, through the log of the launcher pod.
//!
//! Invariant: a connection that is cut costs nothing. The log is read anew from its begin, and a figure is the same the
//! second time; only a console that has ended, read to its end, is missing what it did not say.

use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use dockerios_kubevirt::VirtualMachineInstance;
use futures::{AsyncBufRead, AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::api::LogParams;
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::fio::{self, Figures, Line};
use super::render::{CONSOLE_CONTAINER, LABEL, Run};
use crate::access::{Cluster, get};
use crate::answer::{plain, said, words};
use crate::follow::{self, Met};
use crate::out;

/// All figures of a run whose VM was made, within that time.
///
/// # Errors
/// When the guest says that it cannot, or nothing within the time.
pub(super) async fn figures(cluster: &Cluster, run: &Run, patience: Duration) -> Result<Figures> {
    let begun = tokio::time::Instant::now();
    let pods: Api<Pod> = cluster.here();
    let look = format!(
        "kubectl get vm,vmi,dv,pod -n {} -l {LABEL}={}",
        cluster.namespace,
        run.name()
    );
    let pod = tokio::select! {
        pod = launcher(&pods, run, patience, &look) => pod?,
        why = fails(cluster, run) => return Err(why),
    };
    let left = patience.saturating_sub(begun.elapsed());
    tokio::select! {
        heard = tokio::time::timeout(left, hear(&pods, &pod)) => {
            heard.map_err(|_| anyhow!("no last figure in time; {look} (--timeout waits longer)"))?
        }
        why = fails(cluster, run) => Err(why),
    }
}

/// Ends when the instance has failed, with what KubeVirt says of it. Who may not see it does not hear of it.
async fn fails(cluster: &Cluster, run: &Run) -> Error {
    let instances = cluster.untyped(
        Some(&cluster.namespace),
        &ApiResource::erase::<VirtualMachineInstance>(&()),
    );
    let only = watcher::Config::default().fields(&format!("metadata.name={}", run.name()));
    let met = follow::until(instances, only, "the instance", Duration::MAX, |event| match event {
        Event::Apply(vmi) | Event::InitApply(vmi) => Ok(failure(&vmi)),
        Event::Delete(_) => Ok(Some("its instance was deleted by somebody else".to_owned())),
        Event::Init | Event::InitDone => Ok(None),
    });
    match met.await {
        Ok(Met::Seen(why)) => anyhow!(why),
        Ok(Met::TooLate(_)) | Err(_) => std::future::pending().await,
    }
}

fn failure(vmi: &DynamicObject) -> Option<String> {
    if vmi.data.pointer("/status/phase")? != "Failed" {
        return None;
    }
    let conditions = vmi.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut all = conditions.into_iter().flatten();
    let of = all.find(|one| one["type"] == "Synchronized" && one["status"] == "False");
    let said = of.and_then(|one| one["message"].as_str()).map(plain);
    Some(format!(
        "its instance failed: {}",
        said.as_deref().unwrap_or("KubeVirt does not say why")
    ))
}

/// The launcher pod, once the console's container runs.
async fn launcher(pods: &Api<Pod>, run: &Run, patience: Duration, look: &str) -> Result<String> {
    let only = watcher::Config::default().labels(&format!("vm.kubevirt.io/name={}", run.name()));
    let mut waits = "there is no launcher pod".to_owned();
    let met = follow::until(pods.clone(), only, "the launcher pod", patience, |event| {
        if let Event::Apply(pod) | Event::InitApply(pod) = event {
            // one that has ended already has said all the same
            if console(&pod).is_some_and(|state| state.running.is_some() || state.terminated.is_some()) {
                return Ok(Some(pod.name_any()));
            }
            waits = waiting(&pod);
        }
        Ok(None)
    })
    .await?;
    match met {
        Met::Seen(name) => Ok(name),
        Met::TooLate(trouble) => bail!("its guest did not start in time: {waits}{trouble}; {look}"),
    }
}

/// The container of the console: a sidecar among the init containers in newer releases of KubeVirt.
fn console(pod: &Pod) -> Option<&ContainerState> {
    let status = pod.status.as_ref()?;
    let of = [&status.init_container_statuses, &status.container_statuses];
    let mut all = of.into_iter().flatten().flatten();
    all.find(|container| container.name == CONSOLE_CONTAINER)?
        .state
        .as_ref()
}

/// Why a pod does not run yet, as far as it says.
fn waiting(pod: &Pod) -> String {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut held = conditions.into_iter().flatten().filter(|one| one.status != "True");
    let said = held.find_map(|one| one.message.as_deref());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let phase = phase.unwrap_or("not looked at yet");
    match said {
        Some(said) => format!("pod {} is {phase}: {}", pod.name_any(), plain(said)),
        None => format!("pod {} is {phase}", pod.name_any()),
    }
}

async fn hear(pods: &Api<Pod>, pod: &str) -> Result<Figures> {
    let follow = LogParams {
        container: Some(CONSOLE_CONTAINER.to_owned()),
        follow: true,
        ..LogParams::default()
    };
    let mut figures = Figures::default();
    let mut pauses = DefaultBackoff::default();
    loop {
        // looked at before the log is: what ended then is read to its end below
        let over = has_ended(pods, pod).await?;
        let heard = match pods.log_stream(pod, &follow).await {
            Ok(log) => listen(log, &mut figures).await?,
            // a node that cannot be reached just now is answered as an error of the server's
            Err(error) if is_refused(&error) => return Err(said(error, "following the guest's console")),
            Err(error) => Heard::Cut(anyhow!("{}", words(&error))),
        };
        match heard {
            Heard::All => return Ok(figures),
            Heard::Cut(why) if over => return Err(why.context("the guest's console ended before its last figure")),
            Heard::Cut(_) => tokio::time::sleep(pauses.next().unwrap_or(Duration::from_secs(30))).await,
        }
    }
}

/// Whether asking again would be answered the same.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}

/// Whether the console's container has ended. What cannot be seen has not.
async fn has_ended(pods: &Api<Pod>, name: &str) -> Result<bool> {
    match get(pods, name).await {
        Ok(None) => bail!("its launcher pod {name} is gone: somebody ended its VM"),
        Ok(Some(pod)) => Ok(console(&pod).is_some_and(|state| state.terminated.is_some())),
        Err(_) => Ok(false),
    }
}

/// How far a log was heard.
enum Heard {
    All,
    /// It ended before the guest was done; with what was wrong at the last.
    Cut(Error),
}

/// Takes the figures out of a log.
///
/// # Errors
/// What the guest says went wrong, and a whole line of ours that cannot be read.
async fn listen(log: impl AsyncBufRead + Unpin, figures: &mut Figures) -> Result<Heard> {
    let mut lines = log.lines();
    // the last line may be half of one
    let mut wrong: Option<Error> = None;
    while let Some(line) = lines.next().await {
        if let Some(wrong) = wrong.take() {
            return Err(wrong);
        }
        let Ok(line) = line else {
            return Ok(Heard::Cut(anyhow!("the connection was cut")));
        };
        match fio::read(&line) {
            Ok(None) => {}
            Ok(Some(Line::Figure(name, figure))) => {
                let told = figures.insert(name.clone(), figure).is_some();
                if !told {
                    out::note(&format!("  {name}: {}", figure.words()));
                }
            }
            Ok(Some(Line::Failed(why))) => bail!("the guest: {}", plain(&why)),
            Ok(Some(Line::Done)) => {
                let missing = fio::missing(figures);
                if !missing.is_empty() {
                    bail!("the guest is done without {}; run it again", missing.join(", "));
                }
                return Ok(Heard::All);
            }
            Err(error) => {
                let shown: String = plain(&line).chars().take(200).collect();
                wrong = Some(error.context(format!("the guest's console said {shown:?}")));
            }
        }
    }
    Ok(Heard::Cut(wrong.unwrap_or_else(|| anyhow!("it said no more"))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RUN: &str = include_str!("fio-3.33.txt");

    fn whole() -> String {
        let figures: String = RUN
            .lines()
            .map(|line| format!("[ 9.1] dockerios-bench: {line}\r\n"))
            .collect();
        format!("Linux version 6.1\n{figures}dockerios-bench: done\n")
    }

    #[tokio::test]
    async fn a_log_that_is_cut_anywhere_and_read_anew_gives_the_same_figures() {
        let whole = whole();
        let mut undisturbed = Figures::default();
        assert!(matches!(
            listen(whole.as_bytes(), &mut undisturbed).await.unwrap(),
            Heard::All
        ));
        assert_eq!(undisturbed.len(), 5);
        for end in (0..whole.len() - "done\n".len()).step_by(97) {
            let mut figures = Figures::default();
            let cut = listen(&whole.as_bytes()[..end], &mut figures).await;
            assert!(matches!(cut, Ok(Heard::Cut(_))), "cut at {end}");
            assert!(matches!(
                listen(whole.as_bytes(), &mut figures).await.unwrap(),
                Heard::All
            ));
            assert_eq!(figures, undisturbed, "cut at {end}");
        }
    }

    #[tokio::test]
    async fn a_whole_line_that_cannot_be_read_ends_the_run() {
        let broken = "dockerios-bench: 3;fio\n[ 9.2] systemd: more\n";
        let refused = listen(broken.as_bytes(), &mut Figures::default()).await.err().unwrap();
        assert!(format!("{refused:#}").contains("field 3 is not there"), "{refused:#}");
        let failed = "dockerios-bench: failed the image has no fio\n";
        let refused = listen(failed.as_bytes(), &mut Figures::default()).await.err().unwrap();
        assert_eq!(refused.to_string(), "the guest: the image has no fio");
    }

    #[tokio::test]
    async fn a_guest_that_is_done_too_early_is_not_believed() {
        let lines: Vec<_> = whole()
            .lines()
            .filter(|line| !line.contains("synced-write"))
            .map(str::to_owned)
            .collect();
        let refused = listen(lines.join("\n").as_bytes(), &mut Figures::default())
            .await
            .err()
            .unwrap();
        assert_eq!(
            refused.to_string(),
            "the guest is done without synced-write-4k; run it again"
        );
    }

    #[test]
    fn an_instance_that_failed_is_not_waited_for() {
        let vmi = |status: Value| -> DynamicObject {
            serde_json::from_value(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "i"}, "status": status}))
            .unwrap()
        };
        let sync = json!([{"type": "Synchronized", "status": "False", "message": "the hook refused\nit"}]);
        assert_eq!(failure(&vmi(json!({"phase": "Running", "conditions": sync}))), None);
        let failed = failure(&vmi(json!({"phase": "Failed", "conditions": sync}))).unwrap();
        assert_eq!(failed, "its instance failed: the hook refused it");
        let silent = failure(&vmi(json!({"phase": "Failed"}))).unwrap();
        assert_eq!(silent, "its instance failed: KubeVirt does not say why");
        assert_eq!(failure(&vmi(json!({}))), None);
    }

    #[test]
    fn the_console_is_found_as_a_container_and_as_a_sidecar() {
        let pod = |place: &str, state: Value| -> Pod {
            let other = json!({"name": "compute", "image": "x", "imageID": "", "ready": true, "restartCount": 0});
            let mut one = other.clone();
            one["name"] = json!("guest-console-log");
            one["state"] = state;
            serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}],
                place: [other, one]}}))
            .unwrap()
        };
        for place in ["containerStatuses", "initContainerStatuses"] {
            let runs = pod(place, json!({"running": {}}));
            assert!(console(&runs).unwrap().running.is_some(), "{place}");
        }
        let waits = pod("containerStatuses", json!({"waiting": {}}));
        assert_eq!(waiting(&waits), "pod p is Pending: 0/3 nodes");
    }
}
