//! Writes kubeconfig files. Certificates are embedded, so that a file can be handed on alone.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine as _;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::pki::Pair;

/// Who the file's user is.
pub(crate) enum Identity<'a> {
    Certificate(&'a Pair),
    Token(&'a str),
    /// The server at the other end knows: a proxy that has the identity.
    Nobody,
}

/// Writes a kubeconfig with one cluster, user and context. `ca` is PEM.
pub(crate) fn write(path: &Path, server: &str, ca: Option<&[u8]>, identity: &Identity<'_>) -> Result<()> {
    let mut cluster = json!({ "server": server });
    if let Some(ca) = ca {
        cluster["certificate-authority-data"] = base64(ca);
    }
    let user = user(identity)?;
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "plane", "cluster": cluster }],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "plane", "context": { "cluster": "plane", "user": "user" } }],
        "current-context": "plane",
    });
    write_private(path, &serde_json::to_string_pretty(&file)?)
}

/// Writes a kubeconfig for the clusters of `base`, each of its users being `identity`.
pub(crate) fn derive(base: &Path, path: &Path, identity: &Identity<'_>) -> Result<()> {
    let read = Kubeconfig::read_from(base).with_context(|| format!("read {}", base.display()))?;
    let user = user(identity)?;
    let names: Vec<String> = read.auth_infos.iter().map(|named| named.name.clone()).collect();
    let mut file = serde_json::to_value(read)?;
    file["users"] = names
        .into_iter()
        .map(|name| json!({ "name": name, "user": user }))
        .collect();
    write_private(path, &serde_json::to_string_pretty(&file)?)
}

fn user(identity: &Identity<'_>) -> Result<Value> {
    Ok(match identity {
        Identity::Certificate(pair) => json!({
            "client-certificate-data": base64(&read(&pair.cert)?),
            "client-key-data": base64(&read(&pair.key)?),
        }),
        Identity::Token(token) => json!({ "token": token }),
        Identity::Nobody => json!({}),
    })
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<()> {
    std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}

fn base64(bytes: &[u8]) -> Value {
    base64::engine::general_purpose::STANDARD.encode(bytes).into()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}
