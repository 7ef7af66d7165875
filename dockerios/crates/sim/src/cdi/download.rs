//! An import over HTTP, really made where a server of this machine is named: what it serves is held against the checksum.
//!
//! Invariant: nothing is asked of other machines; what they would serve is taken to be right.

use dockerios_kubevirt::{DataVolume, datavolume::Http};
use futures::TryStreamExt;
use kube::{Client, Config, client::Body};
use sha2::{Digest, Sha256};

/// The source, if it is a server of this machine.
pub(super) fn within_reach(volume: &DataVolume) -> Option<Http> {
    let source = volume.spec.source.as_ref()?.http.clone()?;
    source.url.starts_with("http://127.0.0.1:").then_some(source)
}

/// Downloads it and holds it against its checksum.
pub(super) async fn checked(source: &Http) -> Result<(), String> {
    let bytes = download(&source.url).await?;
    let Some(wanted) = &source.checksum else { return Ok(()) };
    let found = format!("sha256:{:x}", Sha256::digest(&bytes));
    if *wanted == found {
        Ok(())
    } else {
        Err(format!("checksum mismatch: expected {wanted}, got {found}"))
    }
}

async fn download(url: &str) -> Result<Vec<u8>, String> {
    let said = |error: &dyn std::fmt::Display| format!("{url}: {error}");
    const SCHEME: &str = "http://";
    let rest = url.strip_prefix(SCHEME).unwrap_or(url);
    let (server, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let server: http::Uri = format!("{SCHEME}{server}")
        .parse()
        .map_err(|error: http::uri::InvalidUri| said(&error))?;
    let client = Client::try_from(Config::new(server)).map_err(|error| said(&error))?;
    let request = http::Request::get(path).body(Body::empty());
    let request = request.map_err(|error| said(&error))?;
    let answer = client.send(request).await.map_err(|error| said(&error))?;
    if !answer.status().is_success() {
        return Err(format!("{url}: expected status code 200, got {}", answer.status()));
    }
    let body = http_body_util::BodyExt::into_data_stream(answer.into_body());
    let read = body.try_fold(Vec::new(), |mut all, chunk| async move {
        all.extend_from_slice(&chunk);
        Ok(all)
    });
    read.await.map_err(|error| said(&error))
}
