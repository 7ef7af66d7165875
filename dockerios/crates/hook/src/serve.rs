//! KubeVirt's hook server. Invariant: the socket appears only when every call can be answered, since a launcher
//! that connects and gets no Info within a second panics; and the process outlives SIGTERM, which the kubelet
//! sends to all containers at the *start* of the grace period, until the launcher says Shutdown or the grace
//! is over. Then it ends with success, so that the pod can.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::UnixListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::{
    Osk, Vmi,
    proto::{info, v1alpha1, v1alpha2, v1alpha3},
    transform,
};

/// Where the launcher looks, seen from inside the sidecar (KubeVirt, pkg/hooks, HookSocketsSharedDirectory).
pub const SOCKET_DIRECTORY: &str = "/var/run/kubevirt-hooks";

/// What the hook is called in the launcher's log.
pub const NAME: &str = "dockerios-domain-hook";

/// Largest message in bytes, and what a filter reads at most: a domain with its VirtualMachineInstance is below 2 MiB.
pub const LARGEST_MESSAGE: usize = 16 << 20;

/// How long open connections may delay the end.
const DRAIN: Duration = Duration::from_secs(5);

/// The signals, taken before anything else is done: a PID 1 that has not asked for SIGTERM never gets it.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Asks for them.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

/// Serves on a socket of a random name in `directory` until the launcher's Shutdown, or `grace` after SIGTERM.
pub async fn serve(directory: &Path, osk: Osk, grace: Duration, signals: Signals) -> io::Result<()> {
    let hook = Hook {
        osk: Arc::new(osk),
        shutdown: Arc::new(Notify::new()),
    };
    let stop = Arc::new(Notify::new());
    let router = Server::builder()
        .add_service(info::info_server::InfoServer::new(hook.clone()))
        .add_service(
            v1alpha1::callbacks_server::CallbacksServer::new(hook.clone())
                .max_decoding_message_size(LARGEST_MESSAGE)
                .max_encoding_message_size(LARGEST_MESSAGE),
        )
        .add_service(
            v1alpha2::callbacks_server::CallbacksServer::new(hook.clone())
                .max_decoding_message_size(LARGEST_MESSAGE)
                .max_encoding_message_size(LARGEST_MESSAGE),
        )
        .add_service(
            v1alpha3::callbacks_server::CallbacksServer::new(hook.clone())
                .max_decoding_message_size(LARGEST_MESSAGE)
                .max_encoding_message_size(LARGEST_MESSAGE),
        );

    let socket = Socket(directory.join(random_name()?));
    let connections = UnixListenerStream::new(UnixListener::bind(&socket.0)?);
    say(&format!("serving on {}", socket.0.display()));
    let stopped = stop.clone();
    let serving = router.serve_with_incoming_shutdown(connections, async move { stopped.notified().await });
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended.map_err(io::Error::other),
        why = end(&hook.shutdown, grace, signals) => say(why),
    }
    stop.notify_one();
    match tokio::time::timeout(DRAIN, serving).await {
        Ok(ended) => ended.map_err(io::Error::other),
        Err(_) => {
            say("a connection is still open; ending without it");
            Ok(())
        }
    }
}

/// Returns when it is time to end, and says why.
async fn end(shutdown: &Notify, grace: Duration, mut signals: Signals) -> &'static str {
    tokio::select! {
        () = shutdown.notified() => return "the launcher says Shutdown: ending",
        _ = signals.interrupt.recv() => return "interrupted: ending",
        _ = signals.terminate.recv() => {}
    }
    say(&format!(
        "SIGTERM: serving on until the launcher says Shutdown, for at most {} s",
        grace.as_secs()
    ));
    tokio::select! {
        () = shutdown.notified() => "the launcher says Shutdown: ending",
        () = tokio::time::sleep(grace) => "the grace period is over: ending",
    }
}

/// A line for the container's log.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{NAME}: {line}");
}

/// Sockets of all hooks are told apart by file name alone, across containers.
fn random_name() -> io::Result<String> {
    let mut random = [0; 8];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)?;
    Ok(format!("dockerios-{:016x}.sock", u64::from_ne_bytes(random)))
}

/// The socket's file, gone with the server.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // never bound, or removed with its volume: nothing is left to do
        let _ = fs::remove_file(&self.0);
    }
}

#[derive(Clone)]
struct Hook {
    osk: Arc<Osk>,
    shutdown: Arc<Notify>,
}

impl Hook {
    fn define(&self, domain_xml: &[u8], vmi: &[u8]) -> Result<Vec<u8>, Status> {
        let answer = Vmi::from_json(vmi).and_then(|vmi| {
            let changed = transform(crate::text_of(domain_xml)?, &vmi, &self.osk)?;
            say(&format!(
                "OnDefineDomain {}: {}",
                vmi.called,
                told(domain_xml, &changed)
            ));
            Ok(changed.into_bytes())
        });
        answer.map_err(|refusal| {
            say(&format!("OnDefineDomain refused: {refusal}"));
            Status::failed_precondition(refusal.to_string())
        })
    }
}

fn told(before: &[u8], after: &str) -> &'static str {
    if before == after.as_bytes() {
        "nothing was missing"
    } else {
        "changed"
    }
}

#[tonic::async_trait]
impl info::info_server::Info for Hook {
    async fn info(&self, _: Request<info::InfoParams>) -> Result<Response<info::InfoResult>, Status> {
        let point = |name: &str| info::HookPoint {
            name: name.to_owned(),
            priority: 0,
        };
        Ok(Response::new(info::InfoResult {
            name: NAME.to_owned(),
            hook_points: vec![point("OnDefineDomain"), point("Shutdown")],
            versions: ["v1alpha1", "v1alpha2", "v1alpha3"].map(str::to_owned).to_vec(),
        }))
    }
}

#[tonic::async_trait]
impl v1alpha1::callbacks_server::Callbacks for Hook {
    async fn on_define_domain(
        &self,
        request: Request<v1alpha1::OnDefineDomainParams>,
    ) -> Result<Response<v1alpha1::OnDefineDomainResult>, Status> {
        let asked = request.get_ref();
        let domain_xml = self.define(&asked.domain_xml, &asked.vmi)?;
        Ok(Response::new(v1alpha1::OnDefineDomainResult { domain_xml }))
    }
}

#[tonic::async_trait]
impl v1alpha2::callbacks_server::Callbacks for Hook {
    async fn on_define_domain(
        &self,
        request: Request<v1alpha2::OnDefineDomainParams>,
    ) -> Result<Response<v1alpha2::OnDefineDomainResult>, Status> {
        let asked = request.get_ref();
        let domain_xml = self.define(&asked.domain_xml, &asked.vmi)?;
        Ok(Response::new(v1alpha2::OnDefineDomainResult { domain_xml }))
    }

    /// Not subscribed to; asked all the same, it gives back what it got.
    async fn pre_cloud_init_iso(
        &self,
        request: Request<v1alpha2::PreCloudInitIsoParams>,
    ) -> Result<Response<v1alpha2::PreCloudInitIsoResult>, Status> {
        let asked = request.into_inner();
        Ok(Response::new(v1alpha2::PreCloudInitIsoResult {
            cloud_init_no_cloud_source: asked.cloud_init_no_cloud_source,
            cloud_init_data: asked.cloud_init_data,
        }))
    }
}

#[tonic::async_trait]
impl v1alpha3::callbacks_server::Callbacks for Hook {
    async fn on_define_domain(
        &self,
        request: Request<v1alpha3::OnDefineDomainParams>,
    ) -> Result<Response<v1alpha3::OnDefineDomainResult>, Status> {
        let asked = request.get_ref();
        let domain_xml = self.define(&asked.domain_xml, &asked.vmi)?;
        Ok(Response::new(v1alpha3::OnDefineDomainResult { domain_xml }))
    }

    /// Not subscribed to; asked all the same, it gives back what it got.
    async fn pre_cloud_init_iso(
        &self,
        request: Request<v1alpha3::PreCloudInitIsoParams>,
    ) -> Result<Response<v1alpha3::PreCloudInitIsoResult>, Status> {
        let asked = request.into_inner();
        Ok(Response::new(v1alpha3::PreCloudInitIsoResult {
            cloud_init_no_cloud_source: asked.cloud_init_no_cloud_source,
            cloud_init_data: asked.cloud_init_data,
        }))
    }

    /// The machine is gone. The answer still goes out: the server drains before it ends.
    async fn shutdown(
        &self,
        _: Request<v1alpha3::ShutdownParams>,
    ) -> Result<Response<v1alpha3::ShutdownResult>, Status> {
        self.shutdown.notify_one();
        Ok(Response::new(v1alpha3::ShutdownResult {}))
    }
}
