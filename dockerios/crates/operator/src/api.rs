//! The API server, as plans use it: raw JSON in and out, and what its answers mean.
//!
//! Invariant: every request ends. kube's client waits for an answer without limit, and a connection that was lost on the
//! way says nothing: whoever waits on it would hold its object, and its place, for ever.

use std::time::Duration;

use dockerios_core::{Id, Kind};
use http::{Method, Request, header::CONTENT_TYPE};
use kube::Client;
use serde_json::{Value, json};

/// What an answer means for the pass.
#[derive(Debug)]
pub enum Fault {
    /// The object has changed or gone since it was decided on: decide again at once.
    Conflict(String),
    /// An object has the name already.
    Exists,
    /// Quota, admission, schema or rights: waits for a person.
    Refused(String),
    /// The API server could not do it now: later again.
    Later(String),
}

/// A thin client for raw objects.
#[derive(Clone)]
pub struct Api {
    client: Client,
    patience: Duration,
}

/// An answer that has not come by then does not come: the API server gives a request up after a minute
/// (kube-apiserver, `--request-timeout`).
pub const PATIENCE: Duration = Duration::from_secs(65);

/// Field manager, for writes that have one.
const MANAGER: &str = dockerios_api::names::OPERATOR;

impl Api {
    /// Over that client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            patience: PATIENCE,
        }
    }

    /// The client itself.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// POST.
    pub async fn create(&self, id: &Id, object: &Value) -> Result<Value, Fault> {
        let path = format!("{}?fieldManager={MANAGER}", collection(id.kind, &id.namespace));
        self.send(Method::POST, path, "application/json", object).await
    }

    /// PUT of the object, or of its `/status`.
    pub async fn replace(&self, id: &Id, subresource: &str, object: &Value) -> Result<Value, Fault> {
        let path = format!("{}{subresource}?fieldManager={MANAGER}", path(id));
        self.send(Method::PUT, path, "application/json", object).await
    }

    /// JSON merge patch.
    pub async fn merge(&self, id: &Id, patch: &Value) -> Result<Value, Fault> {
        let path = format!("{}?fieldManager={MANAGER}", path(id));
        self.send(Method::PATCH, path, "application/merge-patch+json", patch)
            .await
    }

    /// Server-side apply of the status, as our manager, by force.
    pub async fn apply_status(&self, id: &Id, object: &Value) -> Result<Value, Fault> {
        let path = format!("{}/status?fieldManager={MANAGER}&force=true", path(id));
        self.send(Method::PATCH, path, "application/apply-patch+yaml", object)
            .await
    }

    /// DELETE in the background, with preconditions.
    pub async fn delete(&self, id: &Id, uid: &str, version: Option<&str>) -> Result<Value, Fault> {
        let mut preconditions = json!({"uid": uid});
        if let Some(version) = version {
            preconditions["resourceVersion"] = version.into();
        }
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions",
            "propagationPolicy": "Background", "preconditions": preconditions});
        self.send(Method::DELETE, path(id), "application/json", &options).await
    }

    /// DELETE of all that have the label.
    pub async fn delete_labelled(&self, kind: Kind, namespace: &str, label: &str) -> Result<Value, Fault> {
        let path = format!("{}?labelSelector={}", collection(kind, namespace), encoded(label));
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        self.send(Method::DELETE, path, "application/json", &options).await
    }

    /// What [`Api::delete_labelled`] would delete, by a dry run: shows objects of ours where nothing may be read.
    pub async fn would_delete_labelled(&self, kind: Kind, namespace: &str, label: &str) -> Result<Vec<Value>, Fault> {
        // the API server reads the body; whoever looks at the request from outside, its query
        let path = format!(
            "{}?dryRun=All&labelSelector={}",
            collection(kind, namespace),
            encoded(label)
        );
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]});
        let mut list = self.send(Method::DELETE, path, "application/json", &options).await?;
        Ok(match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        })
    }

    /// GET.
    pub async fn get(&self, id: &Id) -> Result<Option<Value>, Fault> {
        match self.ask(path(id)).await {
            Err(Fault::Conflict(_)) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// One object of those with the labels, by a consistent read (no resourceVersion, so never from a cache); an empty
    /// namespace means everywhere.
    ///
    /// A page may be empty though more follow, where what it held was filtered out (Kubernetes' API conventions,
    /// ListOptions.limit): only the last page shows that there is none.
    pub async fn any(&self, kind: Kind, namespace: &str, labels: &str) -> Result<Option<Value>, Fault> {
        let first = format!(
            "{}?limit=1&labelSelector={}",
            collection(kind, namespace),
            encoded(labels)
        );
        let mut more = String::new();
        loop {
            let mut page = self.ask(format!("{first}{more}")).await?;
            if let Some(object) = page["items"].get_mut(0) {
                return Ok(Some(object.take()));
            }
            match next_page(&page) {
                Some(next) => more = next,
                None => return Ok(None),
            }
        }
    }

    /// All objects of a kind, by a consistent list.
    pub async fn all(&self, kind: Kind) -> Result<Vec<Value>, Fault> {
        let (mut found, mut more) = (Vec::new(), String::new());
        loop {
            let mut page = self.ask(format!("{}?limit=500{more}", collection(kind, ""))).await?;
            if let Value::Array(items) = page["items"].take() {
                found.extend(items);
            }
            match next_page(&page) {
                Some(next) => more = next,
                None => return Ok(found),
            }
        }
    }

    /// PUT of a subresource that is not the object.
    pub async fn put(&self, path: String, body: &Value) -> Result<(), Fault> {
        let request = request(Method::PUT, path, "application/json", body)?;
        let answer = async { self.client.request_text(request).await.map(drop).map_err(fault) };
        in_time(self.patience, answer).await
    }

    /// GET of bytes, at most `limit` of them, all within `patience`.
    pub async fn bytes(&self, path: String, limit: usize, patience: Duration) -> Result<Vec<u8>, Fault> {
        in_time(patience, self.read(path, limit)).await
    }

    async fn read(&self, path: String, limit: usize) -> Result<Vec<u8>, Fault> {
        let request = Request::get(path)
            .body(Vec::new())
            .map_err(|e| Fault::Refused(e.to_string()))?;
        let answer = self
            .client
            .send(request.map(kube::client::Body::from))
            .await
            .map_err(fault)?;
        if !answer.status().is_success() {
            return Err(Fault::Later(format!("answered {}", answer.status())));
        }
        let mut bytes = Vec::new();
        let mut body = http_body_util::BodyExt::into_data_stream(answer.into_body());
        while let Some(chunk) = futures::StreamExt::next(&mut body).await {
            bytes.extend_from_slice(&chunk.map_err(fault)?);
            if bytes.len() > limit {
                return Err(Fault::Refused(format!("longer than {limit} bytes")));
            }
        }
        Ok(bytes)
    }

    async fn ask(&self, path: String) -> Result<Value, Fault> {
        let request = Request::get(path)
            .body(Vec::new())
            .map_err(|e| Fault::Refused(e.to_string()))?;
        let answer = async { self.client.request(request).await.map_err(fault) };
        in_time(self.patience, answer).await
    }

    async fn send(&self, method: Method, path: String, content: &str, body: &Value) -> Result<Value, Fault> {
        let request = request(method, path, content, body)?;
        let answer = async { self.client.request(request).await.map_err(fault) };
        in_time(self.patience, answer).await
    }
}

/// Whether a write that is given up here was made all the same, nobody knows: the next pass starts from facts, as after
/// a crash.
async fn in_time<T>(patience: Duration, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let given_up = |_| {
        Err(Fault::Later(format!(
            "the API server gave no answer within {patience:?}"
        )))
    };
    tokio::time::timeout(patience, answer).await.unwrap_or_else(given_up)
}

/// What a query takes for the page after that one; none: it was the last. Tokens are base64 as URLs have it.
fn next_page(page: &Value) -> Option<String> {
    let token = page["metadata"]["continue"]
        .as_str()
        .filter(|token| !token.is_empty())?;
    Some(format!("&continue={token}"))
}

fn request(method: Method, path: String, content: &str, body: &Value) -> Result<Request<Vec<u8>>, Fault> {
    let body = serde_json::to_vec(body).map_err(|e| Fault::Refused(e.to_string()))?;
    let built = Request::builder()
        .method(method)
        .uri(path)
        .header(CONTENT_TYPE, content)
        .body(body);
    built.map_err(|e| Fault::Refused(e.to_string()))
}

/// What an error means.
fn fault(error: kube::Error) -> Fault {
    match error {
        kube::Error::Api(status) => {
            let message = status.message.clone();
            match (status.code, status.reason.as_str()) {
                (409, "AlreadyExists") => Fault::Exists,
                (404 | 409 | 410, _) => Fault::Conflict(message),
                (400 | 401 | 403 | 405 | 413 | 415 | 422, _) => Fault::Refused(message),
                _ => Fault::Later(message),
            }
        }
        other => Fault::Later(dockerios_pki::words(&other)),
    }
}

fn collection(kind: Kind, namespace: &str) -> String {
    let at = kind.address();
    let root = if at.group.is_empty() {
        "/api".to_owned()
    } else {
        format!("/apis/{}", at.group)
    };
    if namespace.is_empty() {
        format!("{root}/{}/{}", at.version, at.plural)
    } else {
        format!("{root}/{}/namespaces/{namespace}/{}", at.version, at.plural)
    }
}

/// Path of one object.
pub fn path(id: &Id) -> String {
    format!("{}/{}", collection(id.kind, &id.namespace), id.name)
}

/// For a query: selectors hold letters, digits and a handful of signs.
fn encoded(selector: &str) -> String {
    selector
        .replace('%', "%25")
        .replace('=', "%3D")
        .replace(',', "%2C")
        .replace('/', "%2F")
        .replace('!', "%21")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Answer, answering};

    #[tokio::test]
    async fn an_empty_page_with_more_behind_it_does_not_show_that_there_is_none() {
        let client = answering(|request| {
            Answer::Json(if request.contains("continue=abc") {
                json!({"metadata": {}, "items": [{"metadata": {"name": "runs"}}]})
            } else {
                json!({"metadata": {"continue": "abc"}, "items": []})
            })
        })
        .await;
        let found = Api::new(client)
            .any(Kind::VirtualMachine, "", "identity.dockerios.io/name=c02")
            .await;
        let found = found.expect("it is answered");
        assert_eq!(found.map(|vm| vm["metadata"]["name"].clone()), Some(json!("runs")));
    }

    #[tokio::test]
    async fn a_request_that_is_never_answered_ends() {
        let mut api = Api::new(answering(|_| Answer::Never).await);
        api.patience = Duration::from_millis(50);
        let id = Id::new(Kind::MacOSMachine, "team", "m");
        let path = "/apis/subresources.kubevirt.io/v1/x".to_owned();
        let all = async {
            [
                api.get(&id).await.map(drop),
                api.merge(&id, &json!({})).await.map(drop),
                api.put(path.clone(), &json!({})).await,
                api.bytes(path, 9, Duration::from_millis(50)).await.map(drop),
            ]
        };
        let all = tokio::time::timeout(Duration::from_secs(60), all).await;
        for answer in all.expect("none waits without end") {
            let Err(Fault::Later(why)) = answer else {
                panic!("{answer:?}")
            };
            assert_eq!(why, "the API server gave no answer within 50ms");
        }
    }
}
