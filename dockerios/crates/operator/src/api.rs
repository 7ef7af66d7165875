//! The API server, as plans use it: raw JSON in and out, and what its answers mean.

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
}

/// Field manager, for writes that have one.
const MANAGER: &str = dockerios_api::names::OPERATOR;

impl Api {
    /// Over that client.
    pub fn new(client: Client) -> Self {
        Self { client }
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
    pub async fn any(&self, kind: Kind, namespace: &str, labels: &str) -> Result<Option<Value>, Fault> {
        let path = format!(
            "{}?limit=1&labelSelector={}",
            collection(kind, namespace),
            encoded(labels)
        );
        let mut page = self.ask(path).await?;
        Ok(page["items"].get_mut(0).map(Value::take))
    }

    /// All objects of a kind, by a consistent list.
    pub async fn all(&self, kind: Kind) -> Result<Vec<Value>, Fault> {
        let (mut found, mut more) = (Vec::new(), String::new());
        loop {
            let mut path = format!("{}?limit=500", collection(kind, ""));
            if !more.is_empty() {
                path.push_str("&continue=");
                path.push_str(&more);
            }
            let mut page = self.ask(path).await?;
            if let Value::Array(items) = page["items"].take() {
                found.extend(items);
            }
            more = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if more.is_empty() {
                return Ok(found);
            }
        }
    }

    /// PUT of a subresource that is not the object.
    pub async fn put(&self, path: String, body: &Value) -> Result<(), Fault> {
        let request = request(Method::PUT, path, "application/json", body)?;
        self.client.request_text(request).await.map(drop).map_err(fault)
    }

    /// GET of bytes, at most `limit` of them.
    pub async fn bytes(&self, path: String, limit: usize) -> Result<Vec<u8>, Fault> {
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
        self.client.request(request).await.map_err(fault)
    }

    async fn send(&self, method: Method, path: String, content: &str, body: &Value) -> Result<Value, Fault> {
        let request = request(method, path, content, body)?;
        self.client.request(request).await.map_err(fault)
    }
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
