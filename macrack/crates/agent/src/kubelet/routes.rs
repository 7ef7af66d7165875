//! The paths of a kubelet that are answered here, and words for those that are not.

use std::sync::Arc;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use macrack_wire::session::MAX_SESSIONS;
use tokio::sync::{Semaphore, watch};

use super::{Target, Targets, exec, logs};

/// Logs that are followed at once.
const FOLLOWERS: usize = 32;

/// What stands behind the paths.
#[derive(Clone)]
pub(super) struct Kubelet {
    targets: watch::Receiver<Targets>,
    sessions: Arc<Semaphore>,
    followers: Arc<Semaphore>,
}

impl Kubelet {
    pub(super) fn new(targets: watch::Receiver<Targets>) -> Kubelet {
        Kubelet {
            targets,
            sessions: Arc::new(Semaphore::new(MAX_SESSIONS)),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        }
    }

    /// The VM behind a container.
    fn target(&self, namespace: &str, pod: &str, container: Option<&str>) -> Result<Target, String> {
        let targets = self.targets.borrow();
        let target = targets
            .get(&(namespace.to_owned(), pod.to_owned()))
            .ok_or_else(|| format!("pod {namespace}/{pod} is no placeholder whose VM is on this Mac"))?;
        if let Some(container) = container
            && !target.containers.iter().any(|known| known == container)
        {
            let known = target.containers.join(", ");
            return Err(format!("pod {namespace}/{pod} has no container {container}; it has {known}"));
        }
        Ok(target.clone())
    }
}

/// A query, in which a key may stand several times.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn read(text: Option<&str>) -> Query {
        Query(form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    pub(super) fn one(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn all(&self, key: &str) -> Vec<String> {
        self.0.iter().filter(|(name, _)| name == key).map(|(_, value)| value.clone()).collect()
    }

    /// As the API server writes them: `1` of streams, `true` of options.
    pub(super) fn flag(&self, key: &str) -> bool {
        matches!(self.one(key), Some("1" | "true"))
    }
}

/// An answer of words.
pub(super) fn refusal(status: StatusCode, why: String) -> Response {
    (status, why + "\n").into_response()
}

/// The router.
pub(super) fn router(kubelet: Kubelet) -> Router {
    // the uid that a path may hold is the pod's, whose name is unique on this Mac
    Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
        .route("/exec/{namespace}/{pod}/{container}", get(exec_short).post(spdy))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", get(exec_long).post(spdy))
        .route("/attach/{*rest}", get(no_attach).post(no_attach))
        .route("/portForward/{*rest}", get(no_forward).post(no_forward))
        .route("/healthz", get(|| async { "ok\n" }))
        .fallback(|| async {
            refusal(
                StatusCode::NOT_FOUND,
                "this Mac answers /exec and /containerLogs of placeholders, and /healthz".to_owned(),
            )
        })
        .with_state(kubelet)
}

async fn container_logs(
    State(kubelet): State<Kubelet>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let target = match kubelet.target(&namespace, &pod, Some(&container)) {
        Ok(target) => target,
        Err(why) => return refusal(StatusCode::NOT_FOUND, why),
    };
    match logs::parse(&Query::read(query.as_deref()), Timestamp::now()) {
        Ok(request) => logs::answer(&target, request, &kubelet.followers).await,
        Err(why) => refusal(StatusCode::BAD_REQUEST, why),
    }
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn exec_short(
    State(kubelet): State<Kubelet>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    upgrade: Upgrade,
) -> Response {
    exec_in(kubelet, &namespace, &pod, &container, query.as_deref(), upgrade)
}

async fn exec_long(
    State(kubelet): State<Kubelet>,
    Path((namespace, pod, _uid, container)): Path<(String, String, String, String)>,
    RawQuery(query): RawQuery,
    upgrade: Upgrade,
) -> Response {
    exec_in(kubelet, &namespace, &pod, &container, query.as_deref(), upgrade)
}

fn exec_in(
    kubelet: Kubelet,
    namespace: &str,
    pod: &str,
    container: &str,
    query: Option<&str>,
    upgrade: Upgrade,
) -> Response {
    match upgrade {
        Ok(upgrade) => {
            let target = kubelet.target(namespace, pod, Some(container));
            exec::answer(target, &Query::read(query), upgrade, kubelet.sessions)
        }
        Err(_) => no_spdy(),
    }
}

async fn spdy() -> Response {
    no_spdy()
}

fn no_spdy() -> Response {
    refusal(
        StatusCode::BAD_REQUEST,
        "exec: this Mac speaks WebSocket (v5.channel.k8s.io), not SPDY; it needs an API server of Kubernetes 1.36 or later with the feature ExtendWebSocketsToKubelet"
            .to_owned(),
    )
}

async fn no_attach() -> Response {
    let why = "attach: a VM has no process to attach to; use kubectl exec -it POD -- zsh";
    refusal(StatusCode::NOT_IMPLEMENTED, why.to_owned())
}

async fn no_forward() -> Response {
    let why = "port-forward: not spoken by this Mac; copy through kubectl exec, or reach the guest by an ssh that it opens itself";
    refusal(StatusCode::NOT_IMPLEMENTED, why.to_owned())
}

#[cfg(test)]
mod tests {
    use macrack_wire::VmDir;

    use super::*;

    #[test]
    fn a_session_reaches_the_container_that_it_names_or_nothing() {
        let target = Target { dir: VmDir::new("/s/vms/a"), containers: vec!["vm".to_owned()], alive: true };
        let (_set, targets) =
            watch::channel(Targets::from([(("team".to_owned(), "macrack-vm-b".to_owned()), target.clone())]));
        let kubelet = Kubelet::new(targets);
        assert_eq!(kubelet.target("team", "macrack-vm-b", Some("vm")), Ok(target));
        let refused = kubelet.target("team", "macrack-vm-b", Some("sidecar")).unwrap_err();
        assert!(refused.contains("no container sidecar; it has vm"), "{refused}");
        let refused = kubelet.target("other", "macrack-vm-b", Some("vm")).unwrap_err();
        assert!(refused.contains("other/macrack-vm-b is no placeholder"), "{refused}");
    }

    #[test]
    fn a_command_is_read_argument_by_argument() {
        let query = Query::read(Some("command=sh&command=-c&command=echo+a%26b&input=1&output=1&tty=false"));
        assert_eq!(query.all("command"), ["sh", "-c", "echo a&b"]);
        assert!(query.flag("input") && query.flag("output") && !query.flag("tty") && !query.flag("error"));
    }
}
