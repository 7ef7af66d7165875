//! Kills a process between two of its writes to the API server, and holds what it writes to the schemas.
//!
//! A [`WriteCutter`] is a proxy on loopback before the real API server. The identity is the proxy's: it speaks plain
//! HTTP to its caller and, with the credentials of the kubeconfig it was given, TLS to the API server. Reads and
//! watches stream through, also after a cut.
//!
//! Invariant: counted writes go through one at a time, so "after write N" names one state of the cluster: N writes
//! accepted, and no other. Once cut, no write passes until the next [`WriteCutter::arm`] or [`WriteCutter::reset`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use kube::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::access::client_from;
use crate::kubeconfig::{self, Identity};
use crate::run;

/// How long a killed process may take to be gone.
const DYING: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The longest body that is forwarded, in bytes; the API server itself takes 3 MiB.
const LONGEST: usize = 16 << 20;

/// Whether the process learns of its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is killed as soon as the API server has accepted the write: it never sees the answer.
    Lost,
    /// It sees the answer and goes on; it is killed when it asks for the next write, which does not pass.
    Delivered,
}

/// Where to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many writes pass. With [`Answer::Lost`] at least 1; with [`Answer::Delivered`] 0 lets none pass.
    pub after: usize,
    /// Whether the last of them is answered.
    pub answer: Answer,
    /// The process to kill.
    pub pid: u32,
}

/// A write that the API server accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: Method,
    /// Path without query.
    pub path: String,
}

impl std::fmt::Display for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// The proxy. Dropped, it ends.
pub struct WriteCutter {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    upstream: Client,
    /// False while counted writes wait for a test to arm.
    open: watch::Sender<bool>,
    /// Counted writes go on with strict field validation.
    strict: AtomicBool,
    /// Held by the one counted write that is under way.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<Count>,
    /// Once cut: whether the process was killed, or why not.
    outcome: watch::Sender<Option<Result<(), String>>>,
}

#[derive(Default)]
struct Count {
    writes: Vec<Write>,
    cut: Option<Cut>,
}

impl WriteCutter {
    /// Starts a proxy before the cluster, and with the identity, of the kubeconfig file `upstream`. It cuts nothing
    /// until it is armed.
    ///
    /// # Errors
    /// When the file cannot be used or no port be had.
    pub async fn start(upstream: &Path) -> Result<WriteCutter> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("find a free port on 127.0.0.1")?;
        let server = format!("http://{}", listener.local_addr()?);
        let kubeconfig = run::current()?.new_dir("cutter")?.join("kubeconfig");
        kubeconfig::write(&kubeconfig, &server, None, &Identity::Nobody)?;
        let shared = Arc::new(Shared {
            upstream: client_from(upstream).await?,
            open: watch::Sender::new(true),
            strict: AtomicBool::new(false),
            turn: tokio::sync::Mutex::new(()),
            state: Mutex::new(Count::default()),
            outcome: watch::Sender::new(None),
        });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the proxy that cuts writes ended: {error}");
            }
        });
        Ok(WriteCutter {
            kubeconfig,
            shared,
            task,
        })
    }

    /// A kubeconfig file for the process whose writes are counted.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// From now on the API server refuses a counted write with a field that its kind has not. By itself it drops such a
    /// field without a word to whoever does not read warnings, so that what is stored shows nothing of it.
    pub fn hold_to_schemas(&self) {
        self.shared.strict.store(true, Ordering::Relaxed);
    }

    /// Lets counted writes wait until the next [`WriteCutter::arm`] or [`WriteCutter::reset`]: to be said before the
    /// process starts, whose number is known only when it runs and might already write.
    pub fn hold(&self) {
        self.shared.open.send_replace(false);
    }

    /// Counts from zero again, lets writes pass, and cuts as told.
    ///
    /// # Errors
    /// When the cut cannot be made: a lost answer to no write.
    pub fn arm(&self, cut: Cut) -> Result<()> {
        if cut.after == 0 && cut.answer == Answer::Lost {
            bail!("a cut after no write can lose no answer: say Answer::Delivered, or after: 1");
        }
        self.begin(Some(cut));
        Ok(())
    }

    /// Counts from zero again, lets writes pass, and cuts nothing.
    pub fn reset(&self) {
        self.begin(None);
    }

    /// The counted writes that the API server accepted since the last [`WriteCutter::arm`] or
    /// [`WriteCutter::reset`], in order. Not counted: Leases, Events, dry runs, and reviews and tokens, which store
    /// nothing.
    pub fn writes(&self) -> Vec<Write> {
        self.shared.state().writes.clone()
    }

    /// True once writes are cut.
    pub fn is_cut(&self) -> bool {
        self.shared.is_cut()
    }

    /// Waits until the process was killed and has ended.
    ///
    /// # Errors
    /// After `limit`, with the writes that passed; when the process could not be killed, for instance because it had
    /// ended before: nothing is shown then.
    pub async fn until_cut(&self, limit: Duration) -> Result<()> {
        let mut outcome = self.shared.outcome.subscribe();
        let cut = self.shared.state().cut;
        match tokio::time::timeout(limit, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(reached)) => match reached.as_ref() {
                Some(Err(reason)) => bail!("{cut:?} was reached, but the process was not killed: {reason}"),
                _ => Ok(()),
            },
            _ => {
                let passed: String = self.writes().iter().map(|write| format!("\n  {write}")).collect();
                bail!("not cut in {limit:.1?} ({cut:?}); the writes that passed:{passed}")
            }
        }
    }

    fn begin(&self, cut: Option<Cut>) {
        *self.shared.state() = Count {
            writes: Vec::new(),
            cut,
        };
        self.shared.outcome.send_replace(None);
        self.shared.open.send_replace(true);
    }
}

impl Drop for WriteCutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Count> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cut(&self) -> bool {
        self.outcome.borrow().is_some()
    }

    /// The cut that is due now, given when it would fall.
    fn due(&self, answer: Answer) -> Option<Cut> {
        let state = self.state();
        state
            .cut
            .filter(|cut| cut.answer == answer && cut.after == state.writes.len())
    }

    /// Kills, and closes the way for writes. The process has ended when this returns.
    async fn cut(&self, cut: Cut) {
        let killed = kill(cut.pid).await.map_err(|error| format!("{error:#}"));
        self.outcome.send_replace(Some(killed));
    }

    /// A counted write, in its turn.
    async fn write(&self, mut request: Request) -> Response {
        // an error would say that the sender is gone, which is part of self
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        let _turn = self.turn.lock().await;
        if self.is_cut() {
            return closed();
        }
        if let Some(cut) = self.due(Answer::Delivered) {
            self.cut(cut).await;
            return closed();
        }
        let write = Write {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
        };
        if self.strict.load(Ordering::Relaxed) && *request.method() != Method::DELETE {
            match strict(request.uri()) {
                Ok(uri) => *request.uri_mut() = uri,
                Err(error) => return refusal(StatusCode::BAD_REQUEST, &format!("the request's path: {error}")),
            }
        }
        let response = self.forward(request).await;
        if !response.status().is_success() {
            return response;
        }
        self.state().writes.push(write);
        if let Some(cut) = self.due(Answer::Lost) {
            self.cut(cut).await;
            return closed();
        }
        response
    }

    async fn forward(&self, request: Request) -> Response {
        let (mut head, body) = request.into_parts();
        drop_hop_headers(&mut head.headers);
        // whole: a request's body is short, and the caller's end must not tear it
        let body = match axum::body::to_bytes(body, LONGEST).await {
            Ok(body) => body.to_vec(),
            Err(error) => return refusal(StatusCode::BAD_REQUEST, &format!("the request's body: {error}")),
        };
        let request = http::Request::from_parts(head, kube::client::Body::from(body));
        match self.upstream.send(request).await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                drop_hop_headers(&mut head.headers);
                Response::from_parts(head, Body::new(body))
            }
            Err(error) => refusal(
                StatusCode::BAD_GATEWAY,
                &format!("the API server does not answer: {error}"),
            ),
        }
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if request.headers().contains_key(header::UPGRADE) {
        return refusal(
            StatusCode::NOT_IMPLEMENTED,
            "exec, attach and port-forward do not go through this proxy",
        );
    }
    match class(request.method(), request.uri()) {
        Class::Read => shared.forward(request).await,
        Class::Beside if shared.is_cut() => closed(),
        Class::Beside => shared.forward(request).await,
        // in a task of its own: the caller's end must not leave a write half counted
        Class::Counted => match tokio::spawn(async move { shared.write(request).await }).await {
            Ok(response) => response,
            Err(error) => refusal(
                StatusCode::BAD_GATEWAY,
                &format!("the write was not forwarded: {error}"),
            ),
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Read,
    /// Changes nothing that a controller decides on.
    Beside,
    Counted,
}

fn class(method: &Method, uri: &Uri) -> Class {
    if ![Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method) {
        return Class::Read;
    }
    let mut parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let group = match parts.first() {
        Some(&"apis") => parts.get(1).copied().unwrap_or_default(),
        _ => "",
    };
    parts.drain(..parts.len().min(if group.is_empty() { 2 } else { 3 }));
    // a Namespace's own subresources also have three parts; they are no resource of another kind
    if parts.len() > 2 && parts[0] == "namespaces" && !["status", "finalize"].contains(&parts[2]) {
        parts.drain(..2);
    }
    let resource = parts.first().copied().unwrap_or_default();
    let stores_nothing = ["authentication.k8s.io", "authorization.k8s.io"].contains(&group)
        || (resource == "serviceaccounts" && parts.get(2) == Some(&"token"))
        || uri
            .query()
            .unwrap_or_default()
            .split('&')
            .any(|pair| pair.starts_with("dryRun="));
    let aside = matches!(
        (group, resource),
        ("coordination.k8s.io", "leases") | ("" | "events.k8s.io", "events")
    );
    if stores_nothing || aside {
        Class::Beside
    } else {
        Class::Counted
    }
}

/// The same request, with unknown fields refused.
fn strict(uri: &Uri) -> Result<Uri, http::uri::InvalidUri> {
    let join = if uri.query().is_some() { '&' } else { '?' };
    format!("{uri}{join}fieldValidation=Strict").parse()
}

/// Headers of one connection, not of the request; and the proxy's own identity stays its own.
fn drop_hop_headers(headers: &mut HeaderMap) {
    for name in [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::HOST,
    ] {
        headers.remove(name);
    }
    headers.remove(header::AUTHORIZATION);
}

fn closed() -> Response {
    refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "writes are cut until the test lets them pass again",
    )
}

/// As Kubernetes' clients expect it.
fn refusal(code: StatusCode, message: &str) -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": code.canonical_reason().unwrap_or_default().replace(' ', ""), "message": message,
    });
    (code, axum::Json(status)).into_response()
}

/// Kills a process and waits until it has ended, its threads included.
async fn kill(pid: u32) -> Result<()> {
    let target = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| anyhow!("{pid} is no process id"))?;
    let watched = match pidfd_open(target, PidfdFlags::empty()) {
        Err(Errno::SRCH) => bail!("it had ended before"),
        other => other.context("watch it")?,
    };
    pidfd_send_signal(&watched, Signal::KILL).context("signal it")?;
    let ended = tokio::task::spawn_blocking(move || {
        // readable once it has ended
        poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&DYING))
    });
    if ended.await.context("watch it")?.context("watch it")? == 0 {
        bail!("it survives SIGKILL for {} s", DYING.tv_sec);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_unless_it_is_a_lease_an_event_a_dry_run_or_stores_nothing() {
        let table = [
            ("GET", "/api/v1/pods?watch=1", Class::Read),
            ("POST", "/api/v1/namespaces", Class::Counted),
            ("PUT", "/api/v1/namespaces/leases/finalize", Class::Counted),
            (
                "PATCH",
                "/api/v1/namespaces/a/configmaps/events?fieldManager=x",
                Class::Counted,
            ),
            (
                "DELETE",
                "/apis/machine.dockerios.io/v1alpha1/namespaces/a/macosmachines/leases",
                Class::Counted,
            ),
            (
                "PATCH",
                "/apis/identity.dockerios.io/v1alpha1/machineidentities/c02/status",
                Class::Counted,
            ),
            (
                "PATCH",
                "/apis/machine.dockerios.io/v1alpha1/namespaces/a/macosmachines/m?dryRun=All",
                Class::Beside,
            ),
            ("POST", "/api/v1/namespaces/a/events", Class::Beside),
            ("PATCH", "/apis/events.k8s.io/v1/namespaces/a/events/e", Class::Beside),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/l",
                Class::Beside,
            ),
            ("POST", "/api/v1/namespaces/a/serviceaccounts/s/token", Class::Beside),
            (
                "POST",
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                Class::Beside,
            ),
        ];
        for (method, uri, expected) in table {
            let method = method.parse().expect("a method");
            assert_eq!(class(&method, &uri.parse().expect("a URI")), expected, "{method} {uri}");
        }
    }
}
