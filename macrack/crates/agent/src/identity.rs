//! Who this agent is to the API server: a token of its own ServiceAccount, bound to its own Node.
//!
//! ```text
//!   bootstrap token ──(get Node, TokenRequest)──▶ own token ──(half of its life)──▶ own token …
//!         ▲                                           │ 401, or the Node was made again
//!         └───────────────────────────────────────────┘
//! ```
//!
//! Invariant: requests carry the newest token from the moment it is known; a token that was refused is
//! never the end of anything but itself.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
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
use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tower::util::{MapRequestLayer, MapResponseLayer};

use crate::backoff::Backoff;
use crate::bootstrap::Bootstrap;
use crate::gather::{Seen, words};

/// Seconds that a token is asked for: what the policies allow at most.
const TOKEN_SECONDS: i64 = 86_400;
/// The longest that one request for a token may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// The token that requests carry.
#[derive(Debug, Default)]
pub struct Credential {
    header: RwLock<Option<HeaderValue>>,
    refused: Notify,
}

impl Credential {
    fn set(&self, token: &str) -> Result<(), http::header::InvalidHeaderValue> {
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
        header.set_sensitive(true);
        *self.header.write().unwrap_or_else(PoisonError::into_inner) = Some(header);
        Ok(())
    }

    fn get(&self) -> Option<HeaderValue> {
        self.header.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A client whose requests carry what `credential` holds at that moment, and which reads no managedFields.
///
/// # Errors
/// When TLS cannot be set up from the bootstrap file.
pub fn client(config: kube::Config, credential: Arc<Credential>) -> kube::Result<Client> {
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
        response
    });
    // the types of the layers' closures are the client's own stack
    Ok(ClientBuilder::try_from(config)?.with_layer(&carry).with_layer(&notice).with_layer(&macrack_thin::thin()).build())
}

/// What a token says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claims {
    expires: Timestamp,
    issued: Timestamp,
    node_uid: Option<String>,
}

/// Reads a token's claims without checking its signature: it is our own, and the API server checks.
fn claims(token: &str) -> Option<Claims> {
    #[derive(Deserialize)]
    struct Payload {
        exp: i64,
        iat: i64,
        #[serde(rename = "kubernetes.io")]
        kubernetes: Option<Kubernetes>,
    }
    #[derive(Deserialize)]
    struct Kubernetes {
        node: Option<Bound>,
    }
    #[derive(Deserialize)]
    struct Bound {
        uid: String,
    }
    let payload = token.trim().split('.').nth(1)?;
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
    let payload: Payload = serde_json::from_slice(&bytes).ok()?;
    Some(Claims {
        expires: Timestamp::from_second(payload.exp).ok()?,
        issued: Timestamp::from_second(payload.iat).ok()?,
        node_uid: payload.kubernetes.and_then(|k| k.node).map(|node| node.uid),
    })
}

/// Why no token was had.
#[derive(Debug, thiserror::Error)]
enum NoToken {
    #[error("Node {0} does not exist; the operator makes it while MacNode {1} is enrolled")]
    NoNode(String, String),
    #[error(
        "the API server refused the token that was shown ({0}); if this lasts, enrol again: kubectl macrack enroll {1}"
    )]
    Refused(String, String),
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
    #[error("the bootstrap file is of no use: {0}")]
    Config(#[from] kube::config::KubeconfigError),
}

/// The task that keeps the token.
pub struct Identity {
    credential: Arc<Credential>,
    own: Client,
    bootstrap_file: PathBuf,
    bootstrap: Bootstrap,
    token_file: PathBuf,
    claims: Option<Claims>,
    ready: watch::Sender<bool>,
}

impl Identity {
    /// An identity from the token that an earlier life left, if it is still good; the flag turns true
    /// once there is a token.
    pub fn new(
        bootstrap_file: PathBuf,
        bootstrap: Bootstrap,
        token_file: PathBuf,
        credential: Arc<Credential>,
        own: Client,
    ) -> (Self, watch::Receiver<bool>) {
        let (ready, is_ready) = watch::channel(false);
        let mut identity = Identity { credential, own, bootstrap_file, bootstrap, token_file, claims: None, ready };
        if let Ok(token) = std::fs::read_to_string(&identity.token_file)
            && let Some(claims) = claims(&token)
            && claims.expires > Timestamp::now()
        {
            identity.take(&token, claims);
        }
        (identity, is_ready)
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
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut own_is_good = self.claims.is_some();
        loop {
            if self.claims.is_some() && own_is_good {
                own_is_good = self.until_due(&mut node).await;
            }
            match self.renew(own_is_good).await {
                Ok(()) => {
                    tracing::info!("has a token bound to its Node");
                    own_is_good = true;
                    backoff.reset();
                    continue;
                }
                Err(NoToken::Refused(..)) if own_is_good => {}
                Err(error) => tracing::warn!(%error, "no token"),
            }
            own_is_good = false;
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Resolves when the token should be renewed; false when it is of no use any more.
    async fn until_due(&self, node: &mut watch::Receiver<Seen<Node>>) -> bool {
        let Some(claims) = &self.claims else { return false };
        let half = claims.issued + claims.expires.duration_since(claims.issued) / 2;
        let left = Duration::try_from(half.duration_since(Timestamp::now())).unwrap_or_default();
        let other_node = node.wait_for(|node| match node {
            Seen::Present(node) => claims.node_uid.is_some() && node.metadata.uid != claims.node_uid,
            _ => false,
        });
        tokio::select! {
            () = tokio::time::sleep(left) => true,
            () = self.credential.refused.notified() => {
                tracing::warn!("the API server refused the token: falling back to the bootstrap token");
                false
            }
            Ok(_) = other_node => {
                tracing::info!("the Node was made again: its tokens are of no use any more");
                false
            }
        }
    }

    async fn renew(&mut self, with_own: bool) -> Result<(), NoToken> {
        let client = if with_own { self.own.clone() } else { self.enrolling().await? };
        let asked = tokio::time::timeout(PATIENCE, self.ask(client)).await;
        let token = asked.map_err(|_| NoToken::Silence)??;
        let claims = claims(&token).ok_or(NoToken::Empty)?;
        write_whole(&self.token_file, token.as_bytes())?;
        self.take(&token, claims);
        Ok(())
    }

    /// A client with the bootstrap token of the file as it is now: it may have been replaced.
    async fn enrolling(&mut self) -> Result<Client, NoToken> {
        let bootstrap = Bootstrap::read(&self.bootstrap_file)?;
        if bootstrap.serial == self.bootstrap.serial {
            self.bootstrap = bootstrap;
        }
        let credential = Arc::new(Credential::default());
        credential.set(&self.bootstrap.token).map_err(|_| NoToken::Empty)?;
        Ok(client(self.bootstrap.config().await?, credential)?)
    }

    async fn ask(&self, client: Client) -> Result<String, NoToken> {
        let (mac_node, name) = (self.bootstrap.mac_node(), self.bootstrap.node());
        let refused = |error: kube::Error| match &error {
            kube::Error::Api(status) if status.code == 401 => {
                NoToken::Refused(status.message.clone(), self.bootstrap.serial.clone())
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_when_it_ends_and_to_which_node_it_is_bound() {
        let payload = r#"{"exp":86400,"iat":0,"kubernetes.io":{"node":{"name":"macrack-x","uid":"u-1"}}}"#;
        let token = format!("h.{}.s\n", BASE64_URL_SAFE_NO_PAD.encode(payload));
        let read = claims(&token).unwrap();
        assert_eq!(read.expires, Timestamp::from_second(86_400).unwrap());
        assert_eq!(read.node_uid.as_deref(), Some("u-1"));
        for nonsense in ["", "a.b", "a.!!.c", "a.e30.c"] {
            assert_eq!(claims(nonsense), None, "{nonsense:?}");
        }
    }
}
