//! Who this agent is to the API server: a token of its own ServiceAccount, bound to its own Node.
//!
//! ```text
//!   bootstrap token ──(get Node, TokenRequest)──▶ own token ──(2/3 of its life)──▶ own token …
//!         ▲                                           │ 401, or the Node was made again
//!         └───────────────────────────────────────────┘
//!                 │ refused too: nobody. VMs stay as they are, no order is carried out; the bootstrap
//!                 ▼ file is looked at again until it holds a token that is taken
//! ```
//!
//! Invariants:
//! - requests carry the newest token from the moment it is known, and it is on the disk (0600) before that;
//! - only a refusal ends a token: not an outage, not this Mac's clock;
//! - a token that was refused is never the end of anything but itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::PostParams;
use kube::client::{Body, ClientBuilder};
use kube::{Api, Client};
use macrack_api::names;
use macrack_wire::layout::write_whole;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tower::util::{MapRequestLayer, MapResponseLayer};

use crate::backoff::Backoff;
use crate::bell::Bell;
use crate::bootstrap::Bootstrap;
use crate::gather::{Seen, words};
use crate::skew::ServerClock;

mod token;

use token::{Claims, Failures, With};

/// Seconds that a token is asked for: what the policies allow at most.
const TOKEN_SECONDS: i64 = 86_400;
/// The shortest time between two tokens.
const BETWEEN: Duration = Duration::from_secs(2);
/// The longest that one request for a token may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest pause between attempts; of a Mac that waits for its Node an admin sees no more of it than that.
const PAUSE: Duration = Duration::from_secs(5);
/// The same pause, once both tokens were refused: nothing but an admin changes that, and a rack full of such Macs must not
/// storm the API server.
const NOBODY_PAUSE: Duration = Duration::from_secs(60);
/// Between looks at the bootstrap file in such a pause.
const FILE_LOOK: Duration = Duration::from_secs(1);

/// The token that requests carry.
#[derive(Debug, Default)]
pub struct Credential {
    header: RwLock<Option<HeaderValue>>,
    refused: Notify,
    clock: Arc<ServerClock>,
}

impl Credential {
    fn set(&self, token: &str) -> Result<(), http::header::InvalidHeaderValue> {
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
        header.set_sensitive(true);
        *self.header.write().unwrap_or_else(PoisonError::into_inner) = Some(header);
        Ok(())
    }

    /// The API server's clock, as its answers show it.
    pub fn server_clock(&self) -> Arc<ServerClock> {
        self.clock.clone()
    }

    fn get(&self) -> Option<HeaderValue> {
        self.header.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A client whose requests carry what `credential` holds at that moment, and which reads no managedFields; `now` is
/// this Mac's clock.
///
/// # Errors
/// When TLS cannot be set up from the bootstrap file.
pub fn client(
    config: kube::Config,
    credential: Arc<Credential>,
    now: impl Fn() -> Timestamp + Clone + Send + Sync + 'static,
) -> kube::Result<Client> {
    let noticed = credential.clone();
    let carry = MapRequestLayer::new(move |mut request: Request<Body>| {
        if let Some(header) = credential.get() {
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        request
    });
    let notice = MapResponseLayer::new(move |response: Response<_>| {
        if response.status() == StatusCode::UNAUTHORIZED {
            noticed.refused.notify_one();
        }
        noticed.clock.note(response.headers(), now());
        response
    });
    // the types of the layers' closures are the client's own stack
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&carry)
        .with_layer(&notice)
        .with_layer(&macrack_thin::thin())
        .build())
}

/// Why no token was had.
#[derive(Debug, thiserror::Error)]
enum NoToken {
    #[error("Node {0} does not exist; the operator makes it while MacNode {1} is enrolled")]
    NoNode(String, String),
    #[error("the API server refused the token that was shown ({0})")]
    Refused(String),
    #[error("{}", words(.0))]
    Api(#[from] kube::Error),
    #[error("no answer within {PATIENCE:?}")]
    Silence,
    #[error("the answer holds no usable token")]
    Empty,
    #[error("the token cannot be kept: {0}")]
    Kept(#[from] io::Error),
    #[error(transparent)]
    Bootstrap(#[from] crate::bootstrap::BootstrapError),
    #[error("bootstrap file {}: it is for {found}, this agent serves {own}; print the one of {own}", file.display())]
    OtherMac { file: PathBuf, found: String, own: String },
    #[error("the token in the bootstrap file cannot be sent; print a new one")]
    Unsendable,
    #[error("the bootstrap file is of no use: {0}")]
    Config(#[from] kube::config::KubeconfigError),
}

impl NoToken {
    /// Whether it is the end of the token that was shown, or there was none to show.
    fn is_dead(&self) -> bool {
        matches!(
            self,
            NoToken::Refused(_)
                | NoToken::Bootstrap(_)
                | NoToken::OtherMac { .. }
                | NoToken::Unsendable
                | NoToken::Config(_)
        )
    }
}

/// Why this Mac is nobody to the API server, in words; `None` while nobody says so.
pub type Nobody = Option<String>;

/// The task that keeps the token.
pub struct Identity {
    credential: Arc<Credential>,
    own: Client,
    bootstrap_file: PathBuf,
    bootstrap: Bootstrap,
    token_file: PathBuf,
    claims: Option<Claims>,
    ready: watch::Sender<bool>,
    nobody: watch::Sender<Nobody>,
    bell: Bell,
}

/// What others learn of the identity.
pub struct Told {
    /// Turns true once there is a token.
    pub ready: watch::Receiver<bool>,
    /// Why no order is carried out, if that is so.
    pub nobody: watch::Receiver<Nobody>,
}

impl Identity {
    /// An identity, by the token that an earlier life left if there is one. Whether that is still good is the API
    /// server's to say: by this Mac's clock a good one may seem to have expired.
    pub fn new(
        bootstrap_file: PathBuf,
        bootstrap: Bootstrap,
        token_file: PathBuf,
        credential: Arc<Credential>,
        own: Client,
        bell: Bell,
    ) -> (Self, Told) {
        let ((ready, is_ready), (nobody, is_nobody)) = (watch::channel(false), watch::channel(None));
        let claims = None;
        let mut identity =
            Identity { credential, own, bootstrap_file, bootstrap, token_file, claims, ready, nobody, bell };
        if let Some((token, claims)) = identity.kept() {
            identity.take(&token, claims);
        }
        (identity, Told { ready: is_ready, nobody: is_nobody })
    }

    /// The token that an earlier life left.
    fn kept(&self) -> Option<(String, Claims)> {
        let token = match std::fs::read_to_string(&self.token_file) {
            Ok(token) => token,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %self.token_file.display(), %error, "the kept token cannot be read; asks for another");
                return None;
            }
        };
        let account = names::agent_account(&self.bootstrap.mac_node());
        let subject = format!("system:serviceaccount:{}:{account}", names::AGENT_NAMESPACE);
        match Claims::read(&token) {
            Some(claims) if claims.subject == subject => Some((token, claims)),
            Some(claims) => {
                tracing::warn!(of = claims.subject, "the kept token is another Mac's; asks for one of this Mac");
                None
            }
            None => {
                tracing::warn!(file = %self.token_file.display(), "the kept token is none; asks for another");
                None
            }
        }
    }

    fn take(&mut self, token: &str, claims: Claims) {
        match self.credential.set(token) {
            Ok(()) => {
                self.claims = Some(claims);
                self.ready.send_replace(true);
            }
            Err(error) => tracing::warn!(%error, "a token cannot be sent"),
        }
    }

    /// Keeps a good token for as long as the agent runs; `node` is what is seen of the own Node.
    pub async fn keep(mut self, mut node: watch::Receiver<Seen<Node>>) {
        let mut backoff = Backoff::new(Duration::from_millis(200), PAUSE);
        let mut failures = Failures::default();
        // one that an earlier life left is renewed at once: how much of its life is left is not known by this clock
        let mut with = if self.claims.is_some() { With::Own } else { With::Bootstrap };
        loop {
            match self.renew(with).await {
                Ok(claims) => {
                    tracing::info!("has a token bound to its Node");
                    backoff = Backoff::new(Duration::from_millis(200), PAUSE);
                    failures = Failures::default();
                    self.is_nobody(None);
                    let taken = Instant::now();
                    with = until_due(&claims, &self.credential.refused, &mut node).await;
                    // one that is refused as soon as it is given, as by API servers of two keys, is no reason to mint
                    // them without pause
                    if let Some(early) = BETWEEN.checked_sub(taken.elapsed()) {
                        self.pause(early).await;
                    }
                }
                Err(error) => {
                    let (refused, has_own) = (with, self.claims.is_some());
                    with = failures.note(with, error.is_dead(), has_own);
                    if failures.is_nobody(has_own) {
                        backoff.at_most(NOBODY_PAUSE);
                        self.is_nobody(Some(self.way_out(&error)));
                    } else {
                        tracing::warn!(%error, shown = ?refused, "no token");
                    }
                    // the other token is tried at once, but not both in turns without end
                    if with == refused || self.nobody.borrow().is_some() {
                        self.pause(backoff.next_delay()).await;
                    }
                }
            }
        }
    }

    /// Tells once that both tokens are dead, and once that one is taken again.
    fn is_nobody(&self, why: Nobody) {
        let news = self.nobody.send_if_modified(|old| {
            let changed = old.is_some() != why.is_some();
            if changed {
                old.clone_from(&why);
            }
            changed
        });
        if !news {
            return;
        }
        match why {
            Some(why) => tracing::error!("{why}"),
            None => tracing::info!("the API server knows this Mac again: its orders are carried out"),
        }
        self.bell.ring();
    }

    /// What a person is told who finds this Mac cut off.
    fn way_out(&self, error: &NoToken) -> String {
        let expired = Claims::read(&self.bootstrap.token)
            .filter(|claims| claims.expires < Timestamp::now())
            .map(|claims| format!(", which expired at {}", claims.expires.strftime("%Y-%m-%dT%H:%M:%SZ")))
            .unwrap_or_default();
        format!(
            "the API server takes neither this Mac's own token nor that of {file}{expired} ({error}): its MacNode was \
             retired or deleted, or this Mac was away for longer than both live. Its VMs stay as they are; nothing is \
             started, stopped or wiped. Where you have kubectl, see `kubectl macrack why mn/{mac_node}`; once it is \
             not retired, `kubectl macrack enroll {serial}` prints a new file: put it in that place, it is read \
             without a restart",
            file = self.bootstrap_file.display(),
            mac_node = self.bootstrap.mac_node(),
            serial = self.bootstrap.serial,
        )
    }

    /// Waits, but no longer than until the bootstrap file is another.
    async fn pause(&self, delay: Duration) {
        let (before, until) = (modified(&self.bootstrap_file), Instant::now() + delay);
        while Instant::now() < until && modified(&self.bootstrap_file) == before {
            tokio::time::sleep_until(until.min(Instant::now() + FILE_LOOK)).await;
        }
    }

    async fn renew(&mut self, with: With) -> Result<Claims, NoToken> {
        let client = match with {
            With::Own => self.own.clone(),
            With::Bootstrap => self.enrolling().await?,
        };
        let asked = tokio::time::timeout(PATIENCE, self.ask(client)).await;
        let token = asked.map_err(|_| NoToken::Silence)??;
        let claims = Claims::read(&token).ok_or(NoToken::Empty)?;
        write_whole(&self.token_file, token.as_bytes())?;
        self.take(&token, claims.clone());
        Ok(claims)
    }

    /// A client with the bootstrap token of the file as it is now: it may have been replaced.
    async fn enrolling(&mut self) -> Result<Client, NoToken> {
        let bootstrap = Bootstrap::read(&self.bootstrap_file)?;
        if bootstrap.mac_node() != self.bootstrap.mac_node() {
            let (file, own) = (self.bootstrap_file.clone(), self.bootstrap.serial.clone());
            return Err(NoToken::OtherMac { file, found: bootstrap.serial, own });
        }
        self.bootstrap = bootstrap;
        let credential = Arc::new(Credential::default());
        credential.set(&self.bootstrap.token).map_err(|_| NoToken::Unsendable)?;
        Ok(client(self.bootstrap.config().await?, credential, Timestamp::now)?)
    }

    async fn ask(&self, client: Client) -> Result<String, NoToken> {
        let (mac_node, name) = (self.bootstrap.mac_node(), self.bootstrap.node());
        let refused = |error: kube::Error| match &error {
            kube::Error::Api(status) if status.code == 401 => NoToken::Refused(status.message.clone()),
            _ => NoToken::Api(error),
        };
        let found = Api::<Node>::all(client.clone()).get_opt(&name).await.map_err(refused)?;
        let Some(uid) = found.and_then(|node| node.metadata.uid) else {
            return Err(NoToken::NoNode(name, mac_node));
        };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(name),
                    uid: Some(uid),
                }),
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client, names::AGENT_NAMESPACE);
        let account = names::agent_account(&mac_node);
        let answer: TokenRequest =
            accounts.create_subresource("token", &account, &PostParams::default(), &request).await.map_err(refused)?;
        answer.status.and_then(|status| status.token).ok_or(NoToken::Empty)
    }
}

/// Resolves when the token should be renewed, with what to ask for the next.
async fn until_due(claims: &Claims, refused: &Notify, node: &mut watch::Receiver<Seen<Node>>) -> With {
    let other_node = node.wait_for(|node| match node {
        Seen::Present(node) => claims.node_uid.is_some() && node.metadata.uid != claims.node_uid,
        _ => false,
    });
    tokio::select! {
        () = tokio::time::sleep(claims.renew_after()) => With::Own,
        () = refused.notified() => {
            tracing::warn!("the API server refused the token: falling back to the bootstrap token");
            With::Bootstrap
        }
        Ok(_) = other_node => {
            tracing::info!("the Node was made again: its tokens are of no use any more");
            With::Bootstrap
        }
    }
}

/// When a file was last changed; `None` when that cannot be read, which is a change too.
fn modified(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok()
}
