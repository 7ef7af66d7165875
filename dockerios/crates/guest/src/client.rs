//! The line to the collector. Invariants: the token goes only to whom the config volume's certificates vouch for;
//! a report that is given up leaves no half-used connection behind; no answer is read beyond its bound.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use dockerios_wire::{LONGEST_POLL, Problem, Reply, Report, Volume, report_path, shown};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::trust::pinned;

/// Time to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// An answer that takes longer than the longest poll and this is not coming.
const SLACK: Duration = Duration::from_secs(15);
/// No answer of the protocol is larger, in bytes.
const LARGEST_ANSWER: usize = 64 * 1024;

/// Why a report did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody answered, or not to the end.
    #[error("the collector {0} cannot be reached: {1}")]
    Unreachable(String, String),
    /// Somebody answered whom the config volume's certificates do not vouch for. Nothing was sent.
    #[error("whoever answers at {0} is not the collector that the config volume's ca.crt vouches for: {1}")]
    Untrusted(String, String),
    /// The collector does not take the report.
    #[error("refused ({status}): {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The collector's words.
        message: String,
    },
    /// The collector asks to come again later.
    #[error("come again later ({status}): {message}")]
    Later {
        /// HTTP status.
        status: u16,
        /// The collector's words.
        message: String,
        /// How much later, if it says so.
        wait: Option<Duration>,
    },
    /// The answer is not of this protocol.
    #[error("the collector's answer makes no sense: {0}")]
    Garbled(String),
}

/// Sends reports for one machine.
pub struct Client {
    volume: Volume,
    connector: TlsConnector,
    name: ServerName<'static>,
    authorization: HeaderValue,
    idle: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A line that opens with the first report.
    ///
    /// # Errors
    /// When the volume's certificates or address cannot be used: which file, and why.
    pub fn new(volume: Volume) -> Result<Self, String> {
        let tls = pinned(&volume.ca)?;
        let name = ServerName::try_from(volume.server_name.clone()).map_err(|_| {
            let name = shown(&volume.server_name);
            format!("server-name (or, without it, collector): {name} is neither a DNS name nor an address")
        })?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", volume.token.reveal()))
            .map_err(|_| "token: cannot stand in a header".to_owned())?;
        authorization.set_sensitive(true);
        Ok(Self {
            volume,
            connector: TlsConnector::from(Arc::new(tls)),
            name,
            authorization,
            idle: None,
        })
    }

    /// Sends one report and waits for the answer. May be dropped at any time; the next one then uses a new connection.
    ///
    /// # Errors
    /// Why it did not arrive or was not taken.
    pub async fn send(&mut self, report: &Report) -> Result<Reply, Failure> {
        let body = serde_json::to_vec(report).map_err(|e| Failure::Garbled(e.to_string()))?;
        let body = Bytes::from(body);
        let answer = match self.idle.take() {
            // the collector may have closed it meanwhile: that is no failure of its
            Some(line) if line.is_ready() => match self.ask(line, body.clone()).await {
                Err(Failure::Unreachable(..)) => self.ask_anew(body).await?,
                answer => answer?,
            },
            _ => self.ask_anew(body).await?,
        };
        understood(answer)
    }

    async fn ask_anew(&mut self, body: Bytes) -> Result<Whole, Failure> {
        let line = match tokio::time::timeout(CONNECT, self.connect()).await {
            Ok(line) => line?,
            Err(_) => return Err(self.unreachable(format!("no connection within {} s", CONNECT.as_secs()))),
        };
        self.ask(line, body).await
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let to = &self.volume.collector;
        let stream = TcpStream::connect((to.host.as_str(), to.port))
            .await
            .map_err(|e| self.unreachable(e))?;
        stream.set_nodelay(true).map_err(|e| self.unreachable(e))?;
        let stream = self.connector.connect(self.name.clone(), stream).await.map_err(|e| {
            match e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(_)) => Failure::Untrusted(to.to_string(), e.to_string()),
                _ => self.unreachable(e),
            }
        })?;
        let (line, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.unreachable(e))?;
        // ends when the line is dropped or the collector closes it; whoever waits on the line learns of errors
        tokio::spawn(connection);
        Ok(line)
    }

    async fn ask(&mut self, mut line: SendRequest<Full<Bytes>>, body: Bytes) -> Result<Whole, Failure> {
        let request = Request::post(report_path(&self.volume.machine_id))
            .header(HOST, self.volume.collector.authority())
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| Failure::Garbled(e.to_string()))?;
        let whole = async {
            let answer = line.send_request(request).await.map_err(|e| self.unreachable(e))?;
            Whole::read(answer).await
        };
        let answer = match tokio::time::timeout(LONGEST_POLL + SLACK, whole).await {
            Ok(answer) => answer?,
            Err(_) => return Err(self.unreachable("no answer in time")),
        };
        self.idle = Some(line);
        Ok(answer)
    }

    fn unreachable(&self, why: impl ToString) -> Failure {
        Failure::Unreachable(self.volume.collector.to_string(), why.to_string())
    }
}

/// An answer that arrived to its end.
struct Whole {
    status: StatusCode,
    wait: Option<Duration>,
    body: Bytes,
}

impl Whole {
    async fn read(answer: Response<Incoming>) -> Result<Self, Failure> {
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await;
        let wait = head
            .headers
            .get(RETRY_AFTER)
            .and_then(|v| v.to_str().ok()?.parse().ok());
        Ok(Self {
            status: head.status,
            wait: wait.map(Duration::from_secs),
            body: body.map_err(|e| Failure::Garbled(e.to_string()))?.to_bytes(),
        })
    }
}

fn understood(answer: Whole) -> Result<Reply, Failure> {
    let status = answer.status;
    if status == StatusCode::OK {
        let reply: Reply = serde_json::from_slice(&answer.body).map_err(|e| Failure::Garbled(e.to_string()))?;
        if reply.revision.len() > 128 {
            return Err(Failure::Garbled("its revision has more than 128 bytes".into()));
        }
        return Ok(reply);
    }
    let message = match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) => problem.message.chars().take(500).collect(),
        Err(_) => "no reason given".to_owned(),
    };
    if status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT) {
        return Err(Failure::Later {
            status: status.as_u16(),
            message,
            wait: answer.wait,
        });
    }
    Err(Failure::Refused {
        status: status.as_u16(),
        message,
    })
}
