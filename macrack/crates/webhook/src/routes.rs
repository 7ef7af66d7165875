//! AdmissionReview in, AdmissionReview out.
//!
//! Invariant: whatever the body holds, the answer is an HTTP response: 400 for what is no AdmissionReview, 408 for what
//! does not come, 413 for what is too large, and a review with a verdict for everything else.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use k8s_openapi::jiff::Timestamp;
use kube::core::{
    DynamicObject, Resource,
    admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation},
    response::{StatusDetails, StatusSummary},
};
use macrack_api::{InstanceClass, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance};
use macrack_core::admit::{self, Refusal, TRY_AGAIN, Verdict};
use serde::de::DeserializeOwned;

use crate::{Answered, FactSource, Observer};

/// The API server accepts requests of up to 3 MiB, and a review holds the object and the old one.
const BODY: usize = 8 << 20;

/// All facts together; less than the five seconds that the API server waits for us.
const FACTS: Duration = Duration::from_millis(4200);

/// One request, from its headers to its answer: later the API server reads none (`timeoutSeconds`), and whoever sends a
/// body in drops is not waited for.
const WHOLE: Duration = Duration::from_secs(5);

pub(crate) struct Context<F> {
    pub(crate) facts: Arc<F>,
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) observer: Option<Observer>,
}

pub(crate) fn router<F: FactSource>(context: Context<F>) -> Router {
    let context = Arc::new(context);
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route(&path::<MacOSInstance>(), post(review::<MacOSInstance, F>))
        .route(&path::<MacNodeLease>(), post(review::<MacNodeLease, F>))
        .route(&path::<MacOSImage>(), post(review::<MacOSImage, F>))
        .route(&path::<InstanceClass>(), post(review::<InstanceClass, F>))
        .route(&path::<MacNodeClass>(), post(review::<MacNodeClass, F>))
        .layer(DefaultBodyLimit::max(BODY))
        .layer(middleware::from_fn(in_time))
        .with_state(context)
}

async fn in_time(request: Request, next: Next) -> Response {
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the request did not come whole in time\n").into_response();
    tokio::time::timeout(WHOLE, next.run(request)).await.unwrap_or_else(late)
}

/// Where reviews of a kind are sent.
pub(crate) fn path<K: Resource<DynamicType = ()>>() -> String {
    format!("/validate/{}", K::plural(&()))
}

/// A kind with rules of its own.
pub(crate) trait Judged: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static {
    fn judge<F: FactSource>(self, old: Option<Self>, context: &Context<F>) -> impl Future<Output = Verdict> + Send;
}

impl Judged for MacOSInstance {
    async fn judge<F: FactSource>(self, old: Option<Self>, context: &Context<F>) -> Verdict {
        if old.is_some() {
            // all that its rules speak of is immutable
            return Verdict::Allow { warnings: Vec::new() };
        }
        admit::instance::admit(&context.facts.instance(self, (context.clock)()).await)
    }
}

impl Judged for MacNodeLease {
    async fn judge<F: FactSource>(self, old: Option<Self>, context: &Context<F>) -> Verdict {
        admit::lease::admit(&context.facts.lease(self, old).await)
    }
}

impl Judged for MacOSImage {
    async fn judge<F: FactSource>(self, old: Option<Self>, context: &Context<F>) -> Verdict {
        admit::image::admit(&context.facts.image(self, old).await)
    }
}

impl Judged for InstanceClass {
    async fn judge<F: FactSource>(self, _: Option<Self>, context: &Context<F>) -> Verdict {
        admit::class::admit_instance_class(&context.facts.instance_class(self).await)
    }
}

impl Judged for MacNodeClass {
    async fn judge<F: FactSource>(self, _: Option<Self>, context: &Context<F>) -> Verdict {
        admit::class::admit_node_class(&context.facts.node_class(self).await)
    }
}

async fn review<K: Judged, F: FactSource>(State(context): State<Arc<Context<F>>>, body: Bytes) -> Response {
    let began = std::time::Instant::now();
    let request = match read::<K>(&body) {
        Ok(request) => request,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let verdict = verdict::<K, F>(&request, &context).await;
    let kind = K::kind(&());
    let answered = Answered {
        kind: &kind,
        namespace: request.namespace.as_deref(),
        name: &request.name,
        user: request.user_info.username.as_deref().unwrap_or_default(),
        dry_run: request.dry_run,
        verdict: &verdict,
        took: began.elapsed(),
    };
    if let Verdict::Deny(refusal) = &verdict {
        tracing::info!(rule = refusal.rule, user = answered.user, dry_run = answered.dry_run, "refused {refusal}");
    }
    if let Some(observer) = &context.observer {
        observer(&answered);
    }
    axum::Json(response(&request, verdict).into_review()).into_response()
}

fn read<K: Judged>(body: &[u8]) -> Result<AdmissionRequest<DynamicObject>, String> {
    let kind = K::kind(&());
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|e| format!("the body is no AdmissionReview: {e}\n"))?;
    let request: AdmissionRequest<DynamicObject> =
        review.try_into().map_err(|_| "the AdmissionReview holds no request\n".to_owned())?;
    if request.kind.kind != kind || request.kind.group != K::group(&()) {
        return Err(format!("{} is for {kind}, not for {}\n", path::<K>(), request.kind.kind));
    }
    if request.object.is_none() && matches!(request.operation, Operation::Create | Operation::Update) {
        return Err("the request holds no object\n".to_owned());
    }
    Ok(request)
}

async fn verdict<K: Judged, F: FactSource>(request: &AdmissionRequest<DynamicObject>, context: &Context<F>) -> Verdict {
    let (object, old) =
        match (typed::<K>(request, request.object.as_ref()), typed::<K>(request, request.old_object.as_ref())) {
            (Ok(Some(object)), Ok(old)) => (object, old),
            // a deletion, for which we are not registered
            (Ok(None), _) => {
                return Verdict::Allow { warnings: Vec::new() };
            }
            // an old object that this version cannot read does not excuse the new one from its rules
            (Ok(Some(object)), Err(_)) => (object, None),
            (Err(refusal), _) => return Verdict::Deny(refusal),
        };
    match tokio::time::timeout(FACTS, object.judge(old, context)).await {
        Ok(verdict) => verdict,
        Err(_) => Verdict::Deny(Refusal {
            rule: TRY_AGAIN,
            object: subject(request),
            problem: "what its rules need could not be read in time".to_owned(),
            way_out: "nothing was changed, try again".to_owned(),
        }),
    }
}

/// The object as this version knows the kind. The schema has admitted it, so it differs only where the schema is
/// of another version than we are.
fn typed<K: Judged>(
    request: &AdmissionRequest<DynamicObject>,
    object: Option<&DynamicObject>,
) -> Result<Option<K>, Refusal> {
    let Some(object) = object else {
        return Ok(None);
    };
    serde_json::to_value(object).and_then(serde_json::from_value).map(Some).map_err(|e| Refusal {
        rule: "readable",
        object: subject(request),
        problem: format!("this version of MacRack does not read it: {e}"),
        way_out: "correct that field, or bring the operator to the version of the CRDs".to_owned(),
    })
}

fn subject(request: &AdmissionRequest<DynamicObject>) -> String {
    let kind = request.kind.kind.to_lowercase();
    match &request.namespace {
        Some(namespace) => format!("{kind} {namespace}/{}", request.name),
        None => format!("{kind} {}", request.name),
    }
}

fn response(request: &AdmissionRequest<DynamicObject>, verdict: Verdict) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    match verdict {
        Verdict::Allow { warnings } => response.warnings = Some(warnings).filter(|w| !w.is_empty()),
        Verdict::Deny(refusal) => {
            response = response.deny(&refusal);
            // without these the API server answers 400 and gives no reason
            response.result.status = Some(StatusSummary::Failure);
            (response.result.code, response.result.reason) = (422, "Invalid".to_owned());
            if refusal.is_for_now() {
                // clients that honour Retry-After ask again by themselves
                (response.result.code, response.result.reason) = (503, "ServiceUnavailable".to_owned());
                response.result.details = Some(StatusDetails {
                    name: request.name.clone(),
                    group: request.kind.group.clone(),
                    kind: request.kind.kind.clone(),
                    uid: String::new(),
                    causes: Vec::new(),
                    retry_after_seconds: 1,
                });
            }
        }
    }
    response
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
