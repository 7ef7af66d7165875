//! AdmissionReview in, AdmissionReview out. Invariant: whatever the body holds, the answer is an HTTP response: 400 for
//! what is no review, 408 for what does not arrive, 413 for what is too large, a verdict for the rest.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest as _, Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dockerios_core::admit::{Refusal, Verdict};
use http::StatusCode;
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    response::{StatusCause, StatusDetails, StatusSummary},
};

use crate::{Answer, Observe, facts::Eyes, judge::judge};

/// Where reviews are sent.
pub(crate) const PATH: &str = "/admit";

/// The API server takes requests of up to 3 MiB; a review holds the object as it was and as it is to be.
const LARGEST: usize = 8 << 20;

/// For the body of a request: the API server gives its webhook up after that (`timeoutSeconds`). A peer that begins and
/// does not end would hold one of a few places for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Desk {
    pub(crate) eyes: Eyes,
    pub(crate) observe: Option<Observe>,
    /// For the body of a request.
    pub(crate) patience: Duration,
}

pub(crate) fn router(desk: Desk) -> Router {
    Router::new()
        .route(PATH, post(answer))
        .route("/healthz", get(async || "ok"))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(Arc::new(desk))
}

async fn answer(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let body = match tokio::time::timeout(desk.patience, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => body,
        Ok(Err(why)) => return why.into_response(),
        Err(_) => {
            let why = format!("the body did not arrive within {:?}; send it at once\n", desk.patience);
            return (StatusCode::REQUEST_TIMEOUT, why).into_response();
        }
    };
    let began = Instant::now();
    let request = match read(&body) {
        Ok(request) => request,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let verdict = judge(&desk.eyes, &request).await;
    let user = request.user_info.username.as_deref().unwrap_or_default();
    let resource = &request.resource.resource;
    if !verdict.admits() {
        tracing::info!(
            user,
            resource,
            dry_run = request.dry_run,
            "refused: {}",
            verdict.reason()
        );
    }
    if let Some(observe) = &desk.observe {
        observe(&Answer {
            resource,
            user,
            dry_run: request.dry_run,
            verdict: &verdict,
            took: began.elapsed(),
        });
    }
    Json(respond(&request, verdict).into_review()).into_response()
}

fn read(body: &[u8]) -> Result<AdmissionRequest<DynamicObject>, String> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|e| format!("the body is no AdmissionReview: {e}\n"))?;
    review
        .try_into()
        .map_err(|_| "the AdmissionReview holds no request\n".to_owned())
}

fn respond(request: &AdmissionRequest<DynamicObject>, verdict: Verdict) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    if !verdict.admits() {
        let for_now = verdict.only_for_now();
        response = response.deny(verdict.reason());
        // without these the API server answers 400 and no reason
        let (code, reason) = if for_now {
            (503, "ServiceUnavailable")
        } else {
            (422, "Invalid")
        };
        response.result.status = Some(StatusSummary::Failure);
        response.result.code = code;
        response.result.reason = reason.to_owned();
        response.result.details = Some(StatusDetails {
            name: request.name.clone(),
            group: request.kind.group.clone(),
            kind: request.kind.kind.clone(),
            uid: String::new(),
            causes: verdict.refusals.iter().map(cause).collect(),
            // clients that honour Retry-After ask again by themselves
            retry_after_seconds: u32::from(for_now),
        });
    }
    response.warnings = Some(verdict.warnings).filter(|warnings| !warnings.is_empty());
    response
}

/// Of an object that is Invalid, kubectl prints the causes and never the message.
fn cause(refusal: &Refusal) -> StatusCause {
    StatusCause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!("[{}] {}; {}", refusal.rule, refusal.problem, refusal.way_out),
        field: refusal.field.to_owned(),
    }
}

#[cfg(test)]
#[path = "review_tests.rs"]
mod tests;
