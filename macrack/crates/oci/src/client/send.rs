//! One request and everything that it takes to get its answer.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;

use super::url::{Origin, escaped, is_safe, resolve, same_server};
use super::{Body, CachedToken, Client, common_headers};
use crate::auth::{Challenge, Login, Token};
use crate::error::Error;
use crate::retry::{Tries, is_transient, retry_after};

/// Most places that one request is sent on to.
const MOST_REDIRECTS: u32 = 5;
/// Longest answer of a token server, in bytes.
const MAX_TOKEN: u64 = 256 << 10;

/// A request.
pub(super) struct Request<'a> {
    /// For whoever reads of its failure.
    pub(super) what: &'a str,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The right that it needs.
    pub(super) scope: String,
    /// It cannot be sent a second time: what it was sent to is used up.
    pub(super) once: bool,
}

impl<'a> Request<'a> {
    /// A GET; the rest is set by who wants more.
    pub(super) fn get(what: &'a str, uri: Uri, scope: String) -> Request<'a> {
        let (headers, body) = (common_headers(), Bytes::new());
        Request { what, method: Method::GET, uri, headers, body, scope, once: false }
    }

    /// Whether an answer with this status sends it elsewhere.
    fn is_sent_on(&self, status: StatusCode) -> bool {
        matches!(self.method, Method::GET | Method::HEAD) && matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
    }
}

impl Client {
    /// Sends until there is an answer that another try would not change: its status is never one that
    /// [`is_transient`] knows. Each try in vain is one of `tries`.
    pub(super) async fn send(
        &self,
        origin: &Origin,
        request: Request<'_>,
        tries: &mut Tries,
    ) -> Result<Response<Incoming>, Error> {
        let mut proved = false;
        loop {
            let error = match self.follow(origin, &request).await {
                Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED && !proved => {
                    match self.prove(origin, &request, answer).await {
                        Ok(()) => {
                            proved = true;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Ok(answer) if is_transient(answer.status()) => Error::Transient {
                    what: request.what.to_owned(),
                    why: format!("the registry answers {}", answer.status()),
                    after: retry_after(answer.headers(), SystemTime::now()),
                },
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if request.once {
                return Err(error);
            }
            tries.wait(error, "tried again").await?;
            // a token server may have been busy, and a token may have run out meanwhile
            proved = false;
        }
    }

    /// Sends it, and on to where the registry keeps what was asked for.
    async fn follow(&self, origin: &Origin, request: &Request<'_>) -> Result<Response<Incoming>, Error> {
        let mut uri = request.uri.clone();
        for _ in 0..=MOST_REDIRECTS {
            let mut headers = request.headers.clone();
            if same_server(&uri, &origin.uri("", "")) && is_safe(&uri, &self.options.insecure) {
                headers.extend(self.proof(origin, request).map(|proof| (header::AUTHORIZATION, proof)));
            }
            let answer = self.once(request, &uri, headers).await?;
            if !request.is_sent_on(answer.status()) {
                return Ok(answer);
            }
            let location = answer.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| resolve(&uri, location));
            let next = next.ok_or_else(|| Error::transient(request.what, "it is sent on to nowhere"))?;
            if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(downgraded(request.what, &next));
            }
            uri = next;
        }
        Err(Error::transient(request.what, "it is sent on without end"))
    }

    async fn once(&self, request: &Request<'_>, uri: &Uri, headers: HeaderMap) -> Result<Response<Incoming>, Error> {
        let mut sent = http::Request::new(Full::new(request.body.clone()));
        *sent.method_mut() = request.method.clone();
        *sent.uri_mut() = uri.clone();
        *sent.headers_mut() = headers;
        // the answer to an upload comes when all of it is there
        let megabytes = request.body.len() as u64 >> 20;
        let patience = self.options.stall + Duration::from_secs(megabytes);
        match tokio::time::timeout(patience, self.http.request(sent)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Error::transient(request.what, chain(&error))),
            Err(_) => Err(Error::transient(request.what, format!("no answer for {} s", patience.as_secs()))),
        }
    }

    /// What proves us to the registry itself, as far as it is known.
    fn proof(&self, origin: &Origin, request: &Request<'_>) -> Option<HeaderValue> {
        let key = (origin.host().to_owned(), request.scope.clone());
        let tokens = self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cached = tokens.get(&key).filter(|token| token.until > Instant::now());
        cached.map(|token| token.header.clone())
    }

    /// Gets what the registry wants to see.
    async fn prove(&self, origin: &Origin, request: &Request<'_>, answer: Response<Incoming>) -> Result<(), Error> {
        let denied = |why: String| Error::Denied { what: request.what.to_owned(), why };
        let challenges = answer.headers().get_all(header::WWW_AUTHENTICATE);
        let challenge = challenges.iter().filter_map(|value| Challenge::read(value.to_str().ok()?)).next();
        let login = self.credentials.login(origin.host());
        let (proof, lasts) = match (challenge, login) {
            (_, Some(Login::Bearer(token))) => (format!("Bearer {token}"), Duration::from_secs(300)),
            (Some(Challenge::Basic), Some(login)) => (login.header(), Duration::from_secs(300)),
            (Some(Challenge::Basic), None) => {
                return Err(denied(format!("it wants a name and a password, and there is none for {}", origin.host())));
            }
            (Some(Challenge::Bearer { realm, service, scope }), login) => {
                let scope = scope.unwrap_or_else(|| request.scope.clone());
                self.token(request, &realm, service.as_deref(), &scope, login).await?
            }
            (None, _) => return Err(denied("it does not say what it wants to see".to_owned())),
        };
        let mut header = HeaderValue::from_str(&proof).map_err(|_| denied("its token is no token".to_owned()))?;
        header.set_sensitive(true);
        let key = (origin.host().to_owned(), request.scope.clone());
        let token = CachedToken { header, until: Instant::now() + lasts };
        self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(key, token);
        Ok(())
    }

    /// Asks the token server that the registry named.
    async fn token(
        &self,
        request: &Request<'_>,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        login: Option<&Login>,
    ) -> Result<(String, Duration), Error> {
        let denied = |why: String| Error::Denied { what: request.what.to_owned(), why };
        let joint = if realm.contains('?') { '&' } else { '?' };
        let service = service.map(|service| format!("&service={}", escaped(service))).unwrap_or_default();
        let uri: Uri = format!("{realm}{joint}scope={}{service}", escaped(scope))
            .parse()
            .map_err(|_| denied(format!("the token server that it names is no URL: {realm:.100}")))?;
        if !is_safe(&uri, &self.options.insecure) {
            return Err(denied(format!("the token server that it names is not https: {realm:.100}")));
        }
        let mut headers = common_headers();
        if let Some(login) = login {
            let value =
                HeaderValue::from_str(&login.header()).map_err(|_| denied("the login is no header".to_owned()))?;
            headers.insert(header::AUTHORIZATION, value);
        }
        let asked = Request::get(request.what, uri.clone(), String::new());
        let answer = self.once(&asked, &uri, headers).await?;
        let (status, after) = (answer.status(), retry_after(answer.headers(), SystemTime::now()));
        if is_transient(status) {
            let why = format!("the token server answers {status}");
            return Err(Error::Transient { what: request.what.to_owned(), why, after });
        }
        if status != StatusCode::OK {
            return Err(denied(format!("the token server answers {status}")));
        }
        let bytes = Body::new(answer.into_body(), self.options.stall).whole(request.what, MAX_TOKEN).await?;
        let token: Token = serde_json::from_slice(&bytes)
            .map_err(|_| denied("the token server's answer holds no token".to_owned()))?;
        // not to the last second: the request that uses it takes its time
        let lasts = Duration::from_secs(token.expires_in.unwrap_or(60).min(3600) * 9 / 10);
        let text = token.into_text().ok_or_else(|| denied("the token server's answer holds no token".to_owned()))?;
        Ok((format!("Bearer {text}"), lasts))
    }
}

/// A refusal to leave https. Of the place only the host is told: what stands behind it often opens it.
fn downgraded(what: &str, place: &Uri) -> Error {
    let host = place.host().unwrap_or_default();
    Error::Invalid(format!("{what}: it is sent on from https to plain http://{host}; refused"))
}

/// An error with what is behind it, without repeating itself.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        source = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_place_is_not_told_to_whoever_reads_of_a_refusal() {
        let place: Uri = "http://user:word@cdn.example/blob?X-Amz-Signature=abc".parse().unwrap();
        let said = downgraded("sha256:ab of r.example/x", &place).to_string();
        assert!(said.contains("http://cdn.example;"), "{said}");
        assert!(!said.contains("abc") && !said.contains("word@"), "{said}");
    }
}
