//! Serving certificates of Macs: approves or denies what their agents ask for. What to do is core's
//! ([`macrack_core::decide::csr`]); a request that waits is judged again whenever anything in the caches changes.
//!
//! Invariant: what is judged is what is signed. The signer reads the request with another parser, so whatever two
//! parsers could read in two ways is refused.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use macrack_api::names;
use macrack_core::clock::rfc3339;
use macrack_core::decide::csr::{Content, Facts, Request, SIGNER, Verdict, addresses, decide, of_mac};
use serde_json::json;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::cache::Key;
use crate::world::World;

/// Where a token says which Node it is bound to.
const TOKEN_NODE: &str = "authentication.kubernetes.io/node-name";
/// Around a request's base64 (RFC 7468, section 7).
const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";
/// Nodes that are read at once.
const PAGE: u32 = 500;

/// Judges the requests of Macs, for as long as it is polled.
pub async fn approve(client: Client, world: Arc<World>) {
    world.whole().await;
    let (api, nodes): (Api<CertificateSigningRequest>, Api<Node>) = (Api::all(client.clone()), Api::all(client));
    let ours = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
    let events = watcher(api.clone(), ours).default_backoff();
    let mut events = std::pin::pin!(events);
    // each with what was read in it when it came
    let mut waiting: BTreeMap<String, (CertificateSigningRequest, Request)> = BTreeMap::new();
    loop {
        // before the caches are looked at: a change meanwhile is then no missed one
        let mut changed = std::pin::pin!(world.changed.notified());
        changed.as_mut().enable();
        let mut settled = Vec::new();
        for (name, (csr, request)) in &waiting {
            if judge((&api, &nodes), &world, csr, request).await {
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
                        let request = read(&csr);
                        waiting.insert(csr.name_any(), (csr, request));
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
async fn judge(
    (api, nodes): (&Api<CertificateSigningRequest>, &Api<Node>),
    world: &World,
    csr: &CertificateSigningRequest,
    request: &Request,
) -> bool {
    let name = csr.name_any();
    let mut facts = gather(world, request.clone());
    let mut verdict = decide(&facts);
    if verdict == Verdict::Approve {
        verdict = match sharing(nodes, &facts).await {
            Ok(sharing) => {
                facts.sharing = sharing;
                decide(&facts)
            }
            Err(error) => Verdict::Wait(format!("the addresses of the other Nodes cannot be read: {error}")),
        };
    }
    let (type_, reason, message) = match verdict {
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
        Ok(_) => {
            tracing::info!(csr = name, type_, message, "a request for a serving certificate is decided");
            true
        }
        Err(error) => {
            tracing::warn!(csr = name, %error, "a decision about a certificate was not taken");
            is_final(&error)
        }
    }
}

/// Whether asking again would be answered the same: the request has changed, and its next state arrives by the watch,
/// or the right is missing. What the network or a busy API server said is no answer.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

fn gather(world: &World, request: Request) -> Facts {
    let mac_node = of_mac(&request.username).unwrap_or_default().to_owned();
    let own = names::node(&mac_node);
    Facts {
        mac_node: world.nodes.get(&Key::cluster(&mac_node)).map(|node| node.as_ref().clone()),
        node: world.kube_nodes.get(&Key::cluster(&own)).map(|node| node.as_ref().clone()),
        sharing: Vec::new(),
        request,
    }
}

/// Who else has an address that the request names. All Nodes are looked at, at the API server itself: the cache holds
/// the Macs' alone, and with the address of another Node a certificate would answer in that one's place.
async fn sharing(nodes: &Api<Node>, facts: &Facts) -> kube::Result<Vec<String>> {
    let named = facts.request.content.as_ref().map(|content| content.addresses.as_slice()).unwrap_or_default();
    let own = names::node(of_mac(&facts.request.username).unwrap_or_default());
    let api_server = std::env::var("KUBERNETES_SERVICE_HOST").ok().and_then(|host| host.parse().ok());
    let mut found: Vec<String> =
        api_server.filter(|address| named.contains(address)).map(|_| "the API server".to_owned()).into_iter().collect();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = nodes.list(&page).await?;
        found.extend(
            list.items.iter().filter(|node| shares(node, &own, named)).map(|n| format!("Node {}", n.name_any())),
        );
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

fn shares(node: &Node, own: &str, named: &[IpAddr]) -> bool {
    // simulated Macs share the loopback of one machine
    let shared = |address: &IpAddr| !address.is_loopback() && named.contains(address);
    node.name_any() != own && addresses(node).iter().any(shared)
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
    one_block(pem)?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|error| error.to_string())?;
    let (rest, csr) = X509CertificationRequest::from_der(&pem.contents).map_err(|error| error.to_string())?;
    if !rest.is_empty() {
        return Err("bytes follow the request".to_owned());
    }
    let attributes = csr.certification_request_info.iter_attributes().count();
    if attributes > 1 {
        return Err(format!("{attributes} attributes, at most one is read"));
    }
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

/// Refuses what is not one block of PEM and nothing else: a parser that passes over a block with a wrong end, and one
/// that does not, would read two requests.
fn one_block(pem: &[u8]) -> Result<(), String> {
    let wrong = || format!("it must be one block from {BEGIN} to {END}, with nothing around it");
    let text = std::str::from_utf8(pem).map_err(|_| wrong())?;
    let body = text.trim_ascii_end().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)).ok_or_else(wrong)?;
    let body = body.strip_prefix('\n').or_else(|| body.strip_prefix("\r\n")).ok_or_else(wrong)?;
    let plain = |line: &str| line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    if !body.ends_with('\n') || !body.lines().all(plain) {
        return Err(wrong());
    }
    Ok(())
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

    #[test]
    fn a_decision_that_could_not_be_written_is_written_again_and_one_that_was_refused_is_not() {
        let api = |code: u16| {
            let mut status = kube::core::Status::failure("no", "Test");
            status.code = code;
            kube::Error::Api(Box::new(status))
        };
        for (code, last) in
            [(403, true), (404, true), (409, true), (422, true), (429, false), (500, false), (503, false)]
        {
            assert_eq!(is_final(&api(code)), last, "{code}");
        }
        let cut = kube::Error::Service(Box::new(std::io::Error::other("connection reset")));
        assert!(!is_final(&cut));
    }

    #[test]
    fn what_two_parsers_could_read_in_two_ways_is_refused() {
        let pem = |address: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new([address.to_owned()]).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:macrack-x");
            params.serialize_request(&key).unwrap().pem().unwrap()
        };
        let (own, foreign) = (pem("10.0.0.7"), pem("10.96.0.1"));
        assert!(content(own.as_bytes()).is_ok() && content(own.replace("\r\n", "\n").as_bytes()).is_ok());
        for (why, read_in_two_ways) in [
            (
                "Go passes over a block with another end",
                own.replace("END CERTIFICATE", "END NO CERTIFICATE") + &foreign,
            ),
            ("a second block", format!("{own}{foreign}")),
            ("words before it", format!("x\n{own}")),
            (
                "a header",
                own.replacen("REQUEST-----\r\n", "REQUEST-----\r\nA: b\r\n\r\n", 1).replacen(
                    "REQUEST-----\n",
                    "REQUEST-----\nA: b\n\n",
                    1,
                ),
            ),
            ("another kind", own.replace("CERTIFICATE REQUEST", "CERTIFICATE")),
        ] {
            let refused = content(read_in_two_ways.as_bytes()).unwrap_err();
            assert!(refused.contains("one block"), "{why}: {refused}");
        }
    }

    #[test]
    fn an_address_of_any_other_node_is_not_a_macs_own() {
        let node = |name: &str, address: &str| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": name },
                "status": { "addresses": [{ "type": "InternalIP", "address": address }] } }))
            .unwrap()
        };
        let named = ["10.0.0.7".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        assert!(shares(&node("worker-1", "10.0.0.7"), "macrack-x", &named), "it is no Mac, and has its kubelet there");
        assert!(!shares(&node("macrack-x", "10.0.0.7"), "macrack-x", &named));
        assert!(!shares(&node("worker-1", "10.0.0.8"), "macrack-x", &named));
        assert!(!shares(&node("macrack-y", "127.0.0.1"), "macrack-x", &named));
    }
}
