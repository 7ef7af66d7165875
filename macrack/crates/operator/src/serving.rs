//! Serving certificates of Macs: approves or denies what their agents ask for. What to do is core's
//! ([`macrack_core::decide::csr`]); a request that waits is judged again whenever anything in the caches changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use macrack_api::names;
use macrack_core::clock::rfc3339;
use macrack_core::decide::csr::{Content, Facts, Request, SIGNER, Verdict, addresses, decide, of_mac};
use macrack_core::seen::Seen;
use serde_json::json;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::cache::Key;
use crate::world::World;

/// Where a token says which Node it is bound to.
const TOKEN_NODE: &str = "authentication.kubernetes.io/node-name";

/// Judges the requests of Macs, for as long as it is polled.
pub async fn approve(client: Client, world: Arc<World>) {
    world.whole().await;
    let api: Api<CertificateSigningRequest> = Api::all(client);
    let ours = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
    let events = watcher(api.clone(), ours).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut waiting: BTreeMap<String, CertificateSigningRequest> = BTreeMap::new();
    loop {
        // before the caches are looked at: a change meanwhile is then no missed one
        let mut changed = std::pin::pin!(world.changed.notified());
        changed.as_mut().enable();
        let mut settled = Vec::new();
        for (name, csr) in &waiting {
            if judge(&api, &world, csr).await {
                settled.push(name.clone());
            }
        }
        waiting.retain(|name, _| !settled.contains(name));
        let again = !waiting.is_empty();
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Apply(csr) | Event::InitApply(csr))) => {
                    waiting.remove(&csr.name_any());
                    if is_open(&csr) && of_mac(csr.spec.username.as_deref().unwrap_or_default()).is_some() {
                        waiting.insert(csr.name_any(), csr);
                    }
                }
                Some(Ok(Event::Delete(csr))) => { waiting.remove(&csr.name_any()); }
                Some(Ok(Event::Init)) => waiting.clear(),
                Some(Ok(Event::InitDone)) => {}
                Some(Err(error)) => tracing::warn!(%error, "requests for certificates are not watched; resumed with backoff"),
                None => return,
            },
            () = &mut changed, if again => {}
        }
    }
}

/// Nobody has decided about it.
fn is_open(csr: &CertificateSigningRequest) -> bool {
    csr.status.as_ref().is_none_or(|status| status.conditions.as_ref().is_none_or(Vec::is_empty))
}

/// Judges one; false when it must be judged again.
async fn judge(api: &Api<CertificateSigningRequest>, world: &World, csr: &CertificateSigningRequest) -> bool {
    let name = csr.name_any();
    let (type_, reason, message) = match decide(&gather(world, csr)) {
        Verdict::NotOurs => return true,
        Verdict::Wait(why) => {
            tracing::debug!(csr = name, why, "a request for a certificate waits");
            return false;
        }
        Verdict::Approve => {
            ("Approved", "MacRackApproved", "the Mac, its Node and its address are as enrolled".to_owned())
        }
        Verdict::Deny(why) => ("Denied", "MacRackDenied", why),
    };
    let condition = json!({
        "type": type_, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": rfc3339(Timestamp::now()),
    });
    // onto this very request, on which nobody else has decided
    let patch = json!([
        { "op": "test", "path": "/metadata/uid", "value": csr.uid() },
        { "op": "test", "path": "/metadata/resourceVersion", "value": csr.resource_version() },
        { "op": "add", "path": "/status/conditions", "value": [condition] },
    ]);
    let Ok(patch) = serde_json::from_value(patch) else { return true };
    match api.patch_approval(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
        Ok(_) => tracing::info!(csr = name, type_, message, "a request for a serving certificate is decided"),
        // its next state arrives by the watch
        Err(error) => tracing::warn!(csr = name, %error, "a decision about a certificate was not taken"),
    }
    true
}

fn gather(world: &World, csr: &CertificateSigningRequest) -> Facts {
    let request = read(csr);
    let mac_node = of_mac(&request.username).unwrap_or_default().to_owned();
    let own = names::node(&mac_node);
    let named: Vec<IpAddr> = request.content.as_ref().map(|content| content.addresses.clone()).unwrap_or_default();
    // simulated Macs share the loopback of one machine
    let shares = |address: &IpAddr| !address.is_loopback() && named.contains(address);
    let sharing = world
        .kube_nodes
        .all()
        .iter()
        .filter(|node| node.name_any() != own)
        .filter(|node| addresses(node).iter().any(shares))
        .map(|node| node.name_any())
        .collect();
    Facts {
        mac_node: world.nodes.get(&Key::cluster(&mac_node)).map(|node| node.as_ref().clone()),
        node: match world.kube_nodes.get(&Key::cluster(&own)) {
            Seen::Present(node) => Seen::Present(node.as_ref().clone()),
            Seen::Absent => Seen::Absent,
            Seen::Unknown(why) => Seen::Unknown(why),
        },
        sharing,
        request,
    }
}

fn read(csr: &CertificateSigningRequest) -> Request {
    let spec = &csr.spec;
    let claims = spec.extra.as_ref().and_then(|extra| extra.get(TOKEN_NODE));
    Request {
        name: csr.name_any(),
        username: spec.username.clone().unwrap_or_default(),
        token_node: claims.filter(|nodes| nodes.len() == 1).and_then(|nodes| nodes.first().cloned()),
        signer: spec.signer_name.clone(),
        usages: spec.usages.clone().unwrap_or_default(),
        content: content(&spec.request.0),
    }
}

/// What stands in a request, whose signature is its own key's.
fn content(pem: &[u8]) -> Result<Content, String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|error| error.to_string())?;
    let (_, csr) = X509CertificationRequest::from_der(&pem.contents).map_err(|error| error.to_string())?;
    csr.verify_signature().map_err(|error| format!("its signature: {error}"))?;
    let subject = &csr.certification_request_info.subject;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        value.as_str().map(str::to_owned).map_err(|error| error.to_string())
    };
    let common: Vec<String> = subject.iter_common_name().map(text).collect::<Result<_, _>>()?;
    let [common_name] = common.as_slice() else { return Err(format!("{} common names", common.len())) };
    let mut content = Content {
        common_name: common_name.clone(),
        organizations: subject.iter_organization().map(text).collect::<Result<_, _>>()?,
        ..Content::default()
    };
    let names = csr.requested_extensions().into_iter().flatten().filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    for name in names.flatten() {
        match name {
            GeneralName::DNSName(name) => content.dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match address(bytes) {
                Some(address) => content.addresses.push(address),
                None => content.others += 1,
            },
            _ => content.others += 1,
        }
    }
    Ok(content)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let sixteen = || <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    four().or_else(sixteen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_whole_and_a_broken_one_says_why() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["macrack-x".to_owned(), "10.0.0.7".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:macrack-x");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let read = content(pem.as_bytes()).unwrap();
        assert_eq!(read.common_name, "system:node:macrack-x");
        assert_eq!(read.organizations, ["system:nodes"]);
        assert_eq!(
            (read.dns, read.addresses, read.others),
            (vec!["macrack-x".to_owned()], vec!["10.0.0.7".parse().unwrap()], 0)
        );
        for broken in [&b"nothing"[..], b"", &pem.as_bytes()[..pem.len() / 2]] {
            assert!(content(broken).is_err());
        }
    }
}
