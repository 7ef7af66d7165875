//! A registry over HTTP, as the OCI distribution specification says: tokens, redirects, mirrors, retries.
//!
//! ```text
//!   request ─▶ 401 ─▶ token ─▶ again        3xx ─▶ the other place, without our credentials if it is another host
//!           ─▶ 429, 5xx, silence ─▶ pause (Retry-After, or doubled and drawn) ─▶ again, as often as patience lasts
//!           ─▶ anything else: the answer
//! ```
//!
//! Invariants: a password or token goes only to the registry that it is for, and to the token server that this
//! registry names; never over plain HTTP but to loopback or where it was asked for by name. A mirror that has
//! nothing, or something wrong, is passed over: the digest decides, not the place.

mod body;
mod send;
mod url;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::Full;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::auth::Credentials;
use crate::digest;
use crate::error::Error;
use crate::layout::{Blob, MANIFEST, MAX_MANIFEST};
use crate::reference::{Reference, Target};
use crate::resume::Reply;
use crate::retry::{Patience, Tries};

pub use body::Body;
use send::Request;
use url::Origin;

/// How often something is fetched anew at one place when what came was wrong.
pub(crate) const RESTARTS: u32 = 1;

/// How registries are reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// Mirrors of a registry, asked before it, in this order.
    pub mirrors: BTreeMap<String, Vec<Mirror>>,
    /// Registries that are spoken to in plain HTTP. Loopback is, always.
    pub insecure: BTreeSet<String>,
    /// How often a piece of work is tried: a request, the upload of a blob, a download that does not come forward.
    pub patience: Patience,
    /// How long nothing may come before a connection is given up.
    pub stall: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mirrors: BTreeMap::new(),
            insecure: BTreeSet::new(),
            patience: Patience::default(),
            stall: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// With these mirrors, each registry's in their order, and these registries in plain HTTP.
    pub fn reaching(mirrors: impl IntoIterator<Item = Mirror>, insecure: impl IntoIterator<Item = String>) -> Options {
        let mut options = Options { insecure: insecure.into_iter().collect(), ..Options::default() };
        for mirror in mirrors {
            options.mirrors.entry(mirror.of.clone()).or_default().push(mirror);
        }
        options
    }
}

/// A mirror, `registry=URL` on the command line: `ghcr.io=https://mirror.example:5000`, or with a path in front of
/// every repository: `ghcr.io=https://mirror.example/ghcr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The registry that it stands for.
    pub of: String,
    /// Its scheme and authority.
    pub(crate) base: String,
    /// What comes before each repository; empty, or ends with `/`.
    pub(crate) prefix: String,
}

impl FromStr for Mirror {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |why: &str| {
            format!(
                "{text:?} is no mirror: {why}; write registry=https://host[:port][/path], e.g. ghcr.io=https://mirror.example"
            )
        };
        let (of, url) = text.split_once('=').ok_or_else(|| refused("there is no ="))?;
        let uri: Uri = url.parse().map_err(|_| refused("what follows = is no URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(refused("what follows = is no whole URL"));
        };
        if !matches!(scheme, "https" | "http") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(refused("it must be https or http, without a query and a password"));
        }
        if of.is_empty() || of.contains('/') {
            return Err(refused("before = stands a registry's name"));
        }
        let path = uri.path().trim_matches('/');
        Ok(Mirror {
            of: of.to_owned(),
            base: format!("{scheme}://{authority}"),
            prefix: if path.is_empty() { String::new() } else { format!("{path}/") },
        })
    }
}

type Http = hyper_util::client::legacy::Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Registries, with one set of credentials. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: Http,
    options: Arc<Options>,
    credentials: Arc<Credentials>,
    tokens: Arc<Mutex<HashMap<(String, String), CachedToken>>>,
}

#[derive(Clone)]
struct CachedToken {
    header: HeaderValue,
    until: Instant,
}

/// A blob that is being read, from `from` on or from its start, as `reply` says.
pub struct Opened {
    /// What the registry answered.
    pub reply: Reply,
    /// What follows.
    pub body: Body,
}

/// Something that is read whole and hashes to its digest.
struct Small {
    /// For whoever reads of its failure.
    what: String,
    /// `manifests` or `blobs`.
    kind: &'static str,
    digest: String,
    /// More bytes are refused.
    most: u64,
    accept: Option<HeaderValue>,
}

impl Client {
    /// A client without credentials.
    ///
    /// # Errors
    /// When the machine's trusted certificates cannot be read.
    pub fn new(options: Options) -> Result<Client, Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(provider)
            .map_err(Error::io("read this machine's trusted certificates"))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Client {
            http: hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector),
            options: Arc::new(options),
            credentials: Arc::default(),
            tokens: Arc::default(),
        })
    }

    /// The same connections with other credentials; tokens are not shared.
    #[must_use]
    pub fn with(&self, credentials: Credentials) -> Client {
        Client { credentials: Arc::new(credentials), tokens: Arc::default(), ..self.clone() }
    }

    /// The tries of one piece of work.
    pub(crate) fn tries(&self) -> Tries {
        self.options.patience.tries()
    }

    /// Places that have what is in `registry`, the registry itself last.
    pub(crate) fn origins(&self, registry: &str) -> Vec<Origin> {
        let mirrors = self.options.mirrors.get(registry).into_iter().flatten().map(Origin::mirror);
        mirrors.chain([Origin::of(registry, &self.options.insecure)]).collect()
    }

    /// The manifest of a golden; its bytes hash to the reference's digest.
    ///
    /// # Errors
    /// As the registry itself answers; mirrors only help.
    pub async fn manifest(&self, reference: &Reference) -> Result<Vec<u8>, Error> {
        let digest = reference.digest();
        let accept = Some(HeaderValue::from_static(MANIFEST));
        self.small(
            reference,
            Small { what: reference.to_string(), kind: "manifests", digest, most: MAX_MANIFEST, accept },
        )
        .await
    }

    /// A small blob, whole and checked.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn small_blob(&self, reference: &Reference, blob: &Blob) -> Result<Vec<u8>, Error> {
        let (what, digest) = (format!("{} of {reference}", blob.digest), blob.digest.clone());
        self.small(reference, Small { what, kind: "blobs", digest, most: blob.size, accept: None }).await
    }

    /// Asks place number `place` for a blob from byte `from` on. A refusal is an answer; silence and trouble that
    /// outlast `tries` are errors.
    ///
    /// # Errors
    /// As said.
    pub(crate) async fn open(
        &self,
        reference: &Reference,
        blob: &Blob,
        from: u64,
        place: usize,
        tries: &mut Tries,
    ) -> Result<Opened, Error> {
        let origins = self.origins(reference.registry());
        let origin = &origins[place.min(origins.len() - 1)];
        let what = format!("{} of {reference}", blob.digest);
        let uri = origin.uri(reference.path(), &format!("blobs/{}", blob.digest));
        let mut request = Request::get(&what, uri, scope(origin, reference.path(), false));
        if from > 0 {
            let range = HeaderValue::from_str(&format!("bytes={from}-")).map_err(|e| Error::Invalid(e.to_string()))?;
            request.headers.insert(header::RANGE, range);
        }
        let response = self.send(origin, request, tries).await?;
        let reply = Reply::read(response.status(), response.headers());
        Ok(Opened { reply, body: Body::new(response.into_body(), self.options.stall) })
    }

    /// Number of places that have what is in the registry of `reference`.
    pub fn places(&self, reference: &Reference) -> usize {
        self.origins(reference.registry()).len()
    }

    /// Whether the registry has a blob.
    ///
    /// # Errors
    /// When it does not answer that.
    async fn has_blob(&self, target: &Target, digest: &str, tries: &mut Tries) -> Result<bool, Error> {
        let origin = Origin::of(&target.registry, &self.options.insecure);
        let what = format!("{digest} of {target}");
        let uri = origin.uri(&target.path, &format!("blobs/{digest}"));
        let mut request = Request::get(&what, uri, scope(&origin, &target.path, true));
        request.method = Method::HEAD;
        let response = self.send(&origin, request, tries).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            status => Err(unexpected(&what, status)),
        }
    }

    /// Puts a blob into the registry, unless it is there.
    ///
    /// # Errors
    /// When the registry does not take it.
    pub async fn put_blob(&self, target: &Target, digest: &str, bytes: Bytes) -> Result<bool, Error> {
        let mut tries = self.tries();
        if self.has_blob(target, digest, &mut tries).await? {
            return Ok(false);
        }
        let origin = Origin::of(&target.registry, &self.options.insecure);
        let what = format!("{digest} to {target}");
        // an upload that was cut is begun anew: a registry need not keep its place
        loop {
            match self.upload(&origin, target, &what, (digest, bytes.clone()), &mut tries).await {
                Ok(()) => return Ok(true),
                Err(error) => tries.wait(error, "an upload is begun anew").await?,
            }
        }
    }

    async fn upload(
        &self,
        origin: &Origin,
        target: &Target,
        what: &str,
        (digest, bytes): (&str, Bytes),
        tries: &mut Tries,
    ) -> Result<(), Error> {
        let begin = origin.uri(&target.path, "blobs/uploads/");
        let mut request = Request::get(what, begin.clone(), scope(origin, &target.path, true));
        request.method = Method::POST;
        let begun = self.send(origin, request, tries).await?;
        if begun.status() != StatusCode::ACCEPTED {
            return Err(refused(what, begun.status(), Body::new(begun.into_body(), self.options.stall)).await);
        }
        let location = begun.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        let place = location
            .and_then(|location| url::resolve(&begin, location))
            .and_then(|place| url::with_parameter(&place, "digest", digest))
            .ok_or_else(|| Error::transient(what, format!("the registry names no place to upload to: {location:?}")))?;
        let mut request = Request::get(what, place, scope(origin, &target.path, true));
        request.method = Method::PUT;
        request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        request.body = bytes;
        request.once = true;
        let done = self.send(origin, request, tries).await?;
        match done.status() {
            StatusCode::CREATED => Ok(()),
            // the place is gone: the registry was restarted, or another replica answers
            StatusCode::NOT_FOUND => Err(Error::transient(what, "the registry has lost the upload")),
            status => Err(refused(what, status, Body::new(done.into_body(), self.options.stall)).await),
        }
    }

    /// Puts a manifest into the registry, under its digest or a tag.
    ///
    /// # Errors
    /// When the registry does not take it.
    pub async fn put_manifest(&self, target: &Target, bytes: Vec<u8>) -> Result<Reference, Error> {
        let origin = Origin::of(&target.registry, &self.options.insecure);
        let (what, digest) = (target.to_string(), digest::of(&bytes));
        let uri = origin.uri(&target.path, &format!("manifests/{}", target.tag));
        let mut request = Request::get(&what, uri, scope(&origin, &target.path, true));
        request.method = Method::PUT;
        request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MANIFEST));
        request.body = bytes.into();
        let done = self.send(&origin, request, &mut self.tries()).await?;
        if done.status() != StatusCode::CREATED {
            return Err(refused(&what, done.status(), Body::new(done.into_body(), self.options.stall)).await);
        }
        format!("{}/{}@{digest}", target.registry, target.path)
            .parse()
            .map_err(|error: crate::reference::NotAReference| Error::Invalid(error.to_string()))
    }

    /// Asks each place in turn; the registry's own answer is the one that counts.
    async fn small(&self, reference: &Reference, asked: Small) -> Result<Vec<u8>, Error> {
        let mut last = None;
        for origin in self.origins(reference.registry()) {
            match self.small_from(&origin, reference, &asked).await {
                Ok(found) => return Ok(found),
                Err(error) => {
                    tracing::debug!(place = origin.name(), %error, "asked in vain");
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::Invalid(format!("{:?} is no registry", reference.registry()))))
    }

    /// All of it from one place. What was cut on its way is asked for again, within the one budget of tries, and what
    /// came wrong is asked for once more.
    async fn small_from(&self, origin: &Origin, reference: &Reference, asked: &Small) -> Result<Vec<u8>, Error> {
        let (mut tries, mut restarts) = (self.tries(), 0);
        loop {
            match self.small_once(origin, reference, asked, &mut tries).await {
                Err(Error::NotAGolden(why)) if restarts < RESTARTS => {
                    restarts += 1;
                    tracing::warn!(why, "fetched anew");
                }
                Err(error @ Error::Transient { .. }) => tries.wait(error, "all of it is asked for again").await?,
                ended => return ended,
            }
        }
    }

    async fn small_once(
        &self,
        origin: &Origin,
        reference: &Reference,
        asked: &Small,
        tries: &mut Tries,
    ) -> Result<Vec<u8>, Error> {
        let uri = origin.uri(reference.path(), &format!("{}/{}", asked.kind, asked.digest));
        let mut request = Request::get(&asked.what, uri, scope(origin, reference.path(), false));
        request.headers.extend(asked.accept.clone().map(|accept| (header::ACCEPT, accept)));
        let response = self.send(origin, request, tries).await?;
        let status = response.status();
        let body = Body::new(response.into_body(), self.options.stall);
        match status {
            StatusCode::OK => checked(&asked.what, &asked.digest, body.whole(&asked.what, asked.most).await?),
            StatusCode::NOT_FOUND => Err(Error::NotFound(asked.what.clone())),
            status => Err(refused(&asked.what, status, body).await),
        }
    }
}

/// The right that is asked for.
fn scope(origin: &Origin, path: &str, push: bool) -> String {
    format!("repository:{}{path}:{}", origin.prefix(), if push { "pull,push" } else { "pull" })
}

fn checked(what: &str, digest: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    let found = digest::of(&bytes);
    if found == digest {
        return Ok(bytes);
    }
    Err(Error::NotAGolden(format!("{what} has the digest {found}: it was changed on its way or in the registry")))
}

/// An answer of [`Client::send`] that was not wanted; trouble that passes is none, for that is waited out there.
fn unexpected(what: &str, status: StatusCode) -> Error {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Error::Denied { what: what.to_owned(), why: status.to_string() }
        }
        StatusCode::NOT_FOUND => Error::NotFound(what.to_owned()),
        status => Error::Invalid(format!("{what}: the registry answers {status}")),
    }
}

/// What a registry's refusal says (`errors[].message` of the distribution specification), bounded.
pub(crate) async fn refused(what: &str, status: StatusCode, body: Body) -> Error {
    #[derive(serde::Deserialize)]
    struct Refusal {
        errors: Vec<Words>,
    }
    #[derive(serde::Deserialize)]
    struct Words {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let words = body.whole(what, 16 << 10).await.unwrap_or_default();
    let said = serde_json::from_slice::<Refusal>(&words)
        .ok()
        .and_then(|refusal| refusal.errors.into_iter().next())
        .map(|words| format!("{status}: {:.60} {:.200}", words.code, words.message).replace(char::is_control, " "));
    let why = said.unwrap_or_else(|| status.to_string());
    match unexpected(what, status) {
        Error::Denied { what, .. } => Error::Denied { what, why },
        Error::Invalid(_) => Error::Invalid(format!("{what}: the registry answers {why}")),
        other => other,
    }
}

/// Headers that every request has.
fn common_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("macrack/", env!("CARGO_PKG_VERSION"))));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_a_registry_and_a_whole_url() {
        let mirror: Mirror = "ghcr.io=https://mirror.example:5000/ghcr/".parse().unwrap();
        assert_eq!((mirror.base.as_str(), mirror.prefix.as_str()), ("https://mirror.example:5000", "ghcr/"));
        let mut options = Options::default();
        options.mirrors.entry(mirror.of.clone()).or_default().push(mirror);
        let client = Client::new(options).unwrap();
        let [first, last] = client.origins("ghcr.io").try_into().unwrap_or_else(|_| panic!("two places"));
        assert_eq!(first.uri("acme/tahoe", "x"), "https://mirror.example:5000/v2/ghcr/acme/tahoe/x");
        assert_eq!(last.uri("acme/tahoe", "x"), "https://ghcr.io/v2/acme/tahoe/x");
        assert_eq!(client.origins("r.example").len(), 1, "of another registry");
        for bad in [
            "ghcr.io",
            "ghcr.io=mirror",
            "=https://m",
            "a/b=https://m",
            "a=ftp://m",
            "a=https://u:p@m",
            "a=https://m?x",
        ] {
            assert!(bad.parse::<Mirror>().unwrap_err().contains("is no mirror"), "{bad}");
        }
    }
}
