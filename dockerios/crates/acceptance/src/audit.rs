//! What the operator asked of the API server, as the API server itself wrote it down: each request, in the order of
//! the answers, with its code. It tells of refusals that nobody logged, and of deletions that left no trace.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The operator's user.
pub(crate) const OPERATOR: &str = "system:serviceaccount:dockerios-system:dockerios-operator";

/// One answered request of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `get`, `create`, `delete`, …
    pub verb: String,
    /// `machine.dockerios.io`; empty for the core group.
    pub group: String,
    /// `macosmachines`, or `macosmachines/status`.
    pub resource: String,
    /// Namespace; empty for cluster-wide objects.
    pub namespace: String,
    /// Name; empty for lists and creations under a generated name.
    pub name: String,
    /// Status code of the answer.
    pub code: u64,
    /// True when the authorizer refused it: a right is missing, whatever admission would have said.
    pub unauthorized: bool,
    /// Which token was shown, as the API server names it: an operator has one of its own for all its life.
    pub credential: String,
    /// The whole line, for messages.
    pub line: String,
}

/// Arguments of the API server with which it writes down the operator's requests.
pub(crate) fn arguments(dir: &Path) -> Result<Vec<String>> {
    let policy = dir.join("audit-policy.yaml");
    let rules = format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules:\n\
         - {{level: Metadata, users: [\"{OPERATOR}\"]}}\n- {{level: None}}\n"
    );
    std::fs::write(&policy, rules).with_context(|| format!("write {}", policy.display()))?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", path(dir).display()),
        // each line as it happens
        "--audit-log-mode=blocking".to_owned(),
    ])
}

fn path(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

/// The operator's requests so far.
///
/// # Errors
/// When a line cannot be read.
pub(crate) fn requests(dir: &Path) -> Result<Vec<Request>> {
    let text = std::fs::read_to_string(path(dir)).context("read the audit log")?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(request).collect()
}

impl Request {
    /// Whether it changes what is stored.
    pub fn writes(&self) -> bool {
        matches!(
            &*self.verb,
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

fn request(line: &str) -> Result<Request> {
    let value: Value = serde_json::from_str(line).with_context(|| format!("an audit line is no JSON: {line}"))?;
    let of = |field: &str| value["objectRef"][field].as_str().unwrap_or_default().to_owned();
    let mut resource = of("resource");
    let subresource = of("subresource");
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    Ok(Request {
        verb: value["verb"].as_str().unwrap_or_default().to_owned(),
        group: of("apiGroup"),
        resource,
        namespace: of("namespace"),
        name: of("name"),
        code: value["responseStatus"]["code"].as_u64().unwrap_or_default(),
        unauthorized: value["annotations"]["authorization.k8s.io/decision"] == "forbid",
        credential: value["user"]["extra"]["authentication.kubernetes.io/credential-id"][0]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        line: line.to_owned(),
    })
}
