//! `GET /metrics`, as plain HTTP. Invariant: a peer that says nothing, or says it slowly, costs a place for a bounded
//! time only, and no answer is made for more than a few at a time.

use std::{convert::Infallible, io, net::SocketAddr, str::FromStr, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::Metrics;

/// For the head of a request, also while a connection idles between two scrapes: Prometheus' longest usual interval.
const HEAD: Duration = Duration::from_secs(65);
/// A connection lives so long at most, whatever its peer does.
const LONGEST: Duration = Duration::from_secs(600);
/// Connections at a time; a Prometheus keeps one.
const ROOM: usize = 32;
/// Before a failed accept is tried again: out of file descriptors, others have to end first.
const PAUSE: Duration = Duration::from_secs(1);
/// The text that is spoken (prometheus.io/docs/specs/om/open_metrics_spec).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where to listen, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// There.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address = text.parse();
        address.map(Self::At).map_err(|_| {
            format!("{text:?} is neither ADDRESS:PORT, such as 0.0.0.0:8080 or [::]:8080, nor the word off")
        })
    }
}

/// Begins to listen.
///
/// # Errors
/// When the address cannot be had.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers for as long as the process lives.
pub async fn serve(listener: TcpListener, metrics: Metrics) -> Infallible {
    let room = Arc::new(Semaphore::new(ROOM));
    loop {
        // the semaphore is never closed
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            continue;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    // cut off: nothing is lost, a Prometheus comes again
                    tokio::time::timeout(LONGEST, converse(stream, metrics)).await.ok();
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a scrape could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, metrics: Metrics) {
    let answer = service_fn(move |request| {
        let metrics = metrics.clone();
        async move { Ok::<_, Infallible>(answer(&request, &metrics).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a scrape ended badly");
    }
}

async fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<String> {
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "only /metrics is here\n");
    }
    if request.method() != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        refused
            .headers_mut()
            .insert(header::ALLOW, header::HeaderValue::from_static("GET"));
        return refused;
    }
    match metrics.render().await {
        Ok(text) => with_type(StatusCode::OK, OPEN_METRICS, text),
        Err(why) => {
            tracing::error!(%why, "a scrape is answered with a failure");
            plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n"))
        }
    }
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    with_type(status, "text/plain; charset=utf-8", text.to_owned())
}

fn with_type(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
