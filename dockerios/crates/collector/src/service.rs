//! One request, from its head to its answer.
//!
//! Invariants: nothing about a machine is said before the token fits it; what cannot be read or written is answered
//! with "try again" and never with "gone"; an answer is given after the report was written, not before.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dockerios_wire::{LARGEST_REPORT, Problem, Reason, Reply, Report, is_uid};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
};
use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};

use crate::{
    Limits,
    counts::Counts,
    heard::{Heard, Memory},
    key::{ReportKey, Tag},
    machines::{Known, Look, Machines, Recorded},
    pace::Pace,
    policy::{guest_of, worth_writing, younger},
};

/// What all requests share.
pub(crate) struct Service {
    pub(crate) key: ReportKey,
    pub(crate) machines: Arc<dyn Machines>,
    pub(crate) limits: Limits,
    pub(crate) counts: Arc<Counts>,
    pub(crate) memory: Memory,
    /// Looking for a token's owner costs a look at every machine: a courtesy with a limit.
    pub(crate) courtesy: Mutex<Pace>,
    /// Turns true when the collector ends: held answers are then given.
    pub(crate) ending: watch::Receiver<bool>,
}

/// An answer that is not 200.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    reason: Reason,
    message: String,
    retry: Option<Duration>,
}

impl Refused {
    fn new(status: StatusCode, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            message: message.into(),
            retry: None,
        }
    }

    fn unavailable(message: &str) -> Self {
        Self {
            retry: Some(Duration::from_secs(5)),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, Reason::Unavailable, message)
        }
    }

    fn gone() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            Reason::NotFound,
            "this machine is gone: its object was deleted, or is another one now",
        )
    }
}

type Answer = Response<Full<Bytes>>;

impl Service {
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        match self.hear(request).await {
            Ok(reply) => json(StatusCode::OK, &reply),
            Err(refused) => {
                let mut answer = json(
                    refused.status,
                    &Problem {
                        reason: refused.reason,
                        message: refused.message,
                    },
                );
                if let Some(wait) = refused.retry {
                    answer.headers_mut().insert(RETRY_AFTER, wait.as_secs().max(1).into());
                }
                if refused.status == StatusCode::METHOD_NOT_ALLOWED {
                    answer
                        .headers_mut()
                        .insert(ALLOW, hyper::header::HeaderValue::from_static("POST"));
                }
                answer
            }
        }
    }

    async fn hear(&self, request: Request<Incoming>) -> Result<Reply, Refused> {
        let uid = addressed(&request)?;
        self.authorize(&uid, &request)?;
        let heard = self.memory.of(&uid, Instant::now());
        heard.pace(Instant::now()).map_err(|wait| {
            self.counts.too_often.one();
            Refused {
                retry: Some(wait),
                ..Refused::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    Reason::TooOften,
                    "a machine reports at most once a second, five times at once; wait and send the newest report",
                )
            }
        })?;
        let report = self.read(request).await?;
        // subscribed before looking: a change between the two is not missed
        let changes = self.machines.changed(&uid);
        let known = self.look(&uid)?;
        self.write(&uid, &known, &report, &heard).await?;
        self.hold(&uid, known.order, report.seen_revision.as_deref(), changes)
            .await
    }

    fn authorize(&self, uid: &str, request: &Request<Incoming>) -> Result<(), Refused> {
        let tag = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| Tag::of_header(value.as_bytes()));
        let Some(tag) = tag else {
            self.counts.unauthorized.one();
            return Err(unauthorized(
                "no token: send `Authorization: Bearer <64 hexadecimal digits>` from the config volume",
            ));
        };
        if self.key.fits(uid, &tag) {
            return Ok(());
        }
        let now = Instant::now();
        let may_search = self
            .courtesy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(now)
            .is_ok();
        if may_search
            && let Some(owner) = self
                .machines
                .uids()
                .into_iter()
                .find(|other| self.key.fits(other, &tag))
        {
            self.counts.foreign_token.one();
            tracing::warn!(spoke_for = uid, token_of = %owner, "a guest used its token for another machine; refused");
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                Reason::TokenOfAnotherMachine,
                "this token belongs to another machine: a guest speaks for itself only; take machine-id and token from \
                 the same config volume",
            ));
        }
        self.counts.unauthorized.one();
        Err(unauthorized(
            "this token does not belong to this machine; take both from the same config volume",
        ))
    }

    fn look(&self, uid: &str) -> Result<Known, Refused> {
        match self.machines.look(uid) {
            Look::Known(known) => Ok(*known),
            Look::Unknown => {
                self.counts.gone.one();
                Err(Refused::gone())
            }
            Look::Unreadable => {
                self.counts.unreadable.one();
                Err(Refused::unavailable(
                    "machines cannot be read at the moment; nothing was decided, try again",
                ))
            }
        }
    }

    async fn read(&self, request: Request<Incoming>) -> Result<Report, Refused> {
        let too_large = || {
            self.counts.too_large.one();
            Refused::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                Reason::TooLarge,
                format!("the body is larger than {LARGEST_REPORT} bytes; report fewer programs"),
            )
        };
        let length = request
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|n| n > LARGEST_REPORT as u64) {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), LARGEST_REPORT).collect();
        let body = match tokio::time::timeout(self.limits.body, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(e)) if e.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(e)) => {
                self.counts.malformed.one();
                return Err(Refused::new(
                    StatusCode::BAD_REQUEST,
                    Reason::Malformed,
                    format!("the body broke off: {e}"),
                ));
            }
            Err(_) => {
                self.counts.too_slow.one();
                let within = self.limits.body.as_secs();
                return Err(Refused::new(
                    StatusCode::REQUEST_TIMEOUT,
                    Reason::TooSlow,
                    format!("the body did not arrive within {within} s; send it at once"),
                ));
            }
        };
        Report::parse(&body).map_err(|refusal| {
            self.counts.malformed.one();
            Refused::new(StatusCode::BAD_REQUEST, Reason::Malformed, refusal.to_string())
        })
    }

    /// Writes the report down if it is news, and lets the same machine's next one wait until it stands.
    async fn write(&self, uid: &str, known: &Known, report: &Report, heard: &Heard) -> Result<(), Refused> {
        let mut told = heard.told.lock().await;
        if !told.newest(&report.run, report.sequence) {
            return Ok(());
        }
        self.counts.accepted.one();
        let guest = guest_of(report, known.identity.as_ref(), Timestamp::now());
        if guest.identity_mismatch == Some(true) {
            self.counts.identity_mismatch.one();
        }
        if !worth_writing(younger(told.written.as_ref(), known.recorded.as_ref()), &guest) {
            return Ok(());
        }
        match self.machines.record(uid, known, guest.clone()).await {
            Ok(Recorded::Written) => {
                self.counts.written.one();
                told.written = Some(guest);
                Ok(())
            }
            Ok(Recorded::Gone) => {
                self.counts.gone.one();
                Err(Refused::gone())
            }
            Err(why) => {
                self.counts.not_written.one();
                told.again();
                tracing::warn!(machine = %known.name, namespace = %known.namespace, %why, "a report could not be written");
                Err(Refused::unavailable("the report could not be written down; try again"))
            }
        }
    }

    /// Waits until the order is another than the guest has seen, but not for ever.
    async fn hold(
        &self,
        uid: &str,
        mut order: Reply,
        seen: Option<&str>,
        mut changes: watch::Receiver<()>,
    ) -> Result<Reply, Refused> {
        let until = Instant::now() + self.limits.hold;
        let mut ending = self.ending.clone();
        while seen == Some(order.revision.as_str()) {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        changes = self.machines.changed(uid);
                    }
                }
                _ = ending.wait_for(|ends| *ends) => break,
                () = tokio::time::sleep_until(until) => break,
            }
            match self.machines.look(uid) {
                Look::Known(known) => order = known.order,
                Look::Unknown => return Err(Refused::gone()),
                // the report stands; the order is what it was as far as anyone can tell
                Look::Unreadable => {}
            }
        }
        Ok(order)
    }
}

/// The machine that a request speaks for.
fn addressed(request: &Request<Incoming>) -> Result<String, Refused> {
    let path = request.uri().path();
    let uid = path
        .strip_prefix("/v1/machines/")
        .and_then(|rest| rest.strip_suffix("/report"));
    let Some(uid) = uid.filter(|uid| is_uid(uid)) else {
        return Err(Refused::new(
            StatusCode::NOT_FOUND,
            Reason::NotFound,
            "no such path; reports go to /v1/machines/<uid>/report",
        ));
    };
    if request.method() != Method::POST {
        return Err(Refused::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Reason::MethodNotAllowed,
            "reports are sent with POST",
        ));
    }
    Ok(uid.to_owned())
}

fn unauthorized(message: &str) -> Refused {
    Refused::new(StatusCode::UNAUTHORIZED, Reason::Unauthorized, message)
}

fn json(status: StatusCode, body: &impl serde::Serialize) -> Answer {
    let (status, body) = match serde_json::to_vec(body) {
        Ok(body) => (status, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("application/json"),
    );
    answer
}
