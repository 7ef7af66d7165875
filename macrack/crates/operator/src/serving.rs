//! Serving certificates of Macs: approves or denies what their agents ask for. What to do is core's
//! ([`macrack_core::decide::csr`]); a request that waits is judged again whenever anything in the caches changes.
//!
//! Invariant: what is judged is what is signed. The signer reads the request with another parser, so whatever two
//! parsers could read in two ways is refused.

mod around;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use macrack_api::names;
use macrack_core::clock::rfc3339;
use macrack_core::decide::csr::{Content, Facts, Request, SIGNER, Verdict, decide, of_mac};
use serde_json::json;
use tokio::time::Instant;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::cache::Key;
use crate::world::World;

pub use around::api_server_host;

/// Where a token says which Node it is bound to.
const TOKEN_NODE: &str = "authentication.kubernetes.io/node-name";
/// Around a request's base64 (RFC 7468, section 7).
const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";
/// Before the API server is asked again what it did not answer.
const AGAIN: Duration = Duration::from_secs(10);

/// One request that is not decided.
struct Waiting {
    csr: CertificateSigningRequest,
    /// What was read in it when it came.
    request: Request,
    /// What it waits for, as it was last told.
    told: Option<String>,
    /// Until when nobody is asked about it.
    rests: Option<Instant>,
}

/// What came of judging one.
enum Outcome {
    Settled,
    /// Judged again when anything in the caches changes.
    Waits(String),
    /// Judged again after [`AGAIN`]: what the API server did not answer, no cache will tell.
    Unanswered(String),
}

/// Judges the requests of Macs, for as long as it is polled. `api_server` is the host by which the operator reaches it
/// ([`api_server_host`]).
pub async fn approve(client: Client, world: Arc<World>, api_server: Option<String>) {
    world.whole().await;
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let around = around::Around::new(client, api_server);
    let ours = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
    let events = watcher(api.clone(), ours).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut waiting: BTreeMap<String, Waiting> = BTreeMap::new();
    loop {
        // before the caches are looked at: a change meanwhile is then no missed one
        let mut changed = std::pin::pin!(world.changed.notified());
        changed.as_mut().enable();
        for (name, mut one) in std::mem::take(&mut waiting) {
            if one.rests.is_none_or(|until| until <= Instant::now()) && !judged(&api, &around, &world, &mut one).await {
                continue;
            }
            waiting.insert(name, one);
        }
        let rests = waiting.values().filter_map(|one| one.rests).min();
        let again = !waiting.is_empty();
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Apply(csr) | Event::InitApply(csr))) => {
                    waiting.remove(&csr.name_any());
                    if is_open(&csr) && of_mac(csr.spec.username.as_deref().unwrap_or_default()).is_some() {
                        let request = read(&csr);
                        waiting.insert(csr.name_any(), Waiting { csr, request, told: None, rests: None });
                    }
                }
                Some(Ok(Event::Delete(csr))) => { waiting.remove(&csr.name_any()); }
                Some(Ok(Event::Init)) => waiting.clear(),
                Some(Ok(Event::InitDone)) => {}
                Some(Err(error)) => tracing::warn!(%error, "requests for certificates are not watched; resumed with backoff"),
                None => return,
            },
            () = &mut changed, if again => {}
            () = tokio::time::sleep_until(rests.unwrap_or_else(Instant::now)), if rests.is_some() => {}
        }
    }
}

/// Nobody has decided about it.
fn is_open(csr: &CertificateSigningRequest) -> bool {
    csr.status.as_ref().is_none_or(|status| status.conditions.as_ref().is_none_or(Vec::is_empty))
}

/// Judges one, and says once what it waits for. Whether it still waits.
async fn judged(
    api: &Api<CertificateSigningRequest>,
    around: &around::Around,
    world: &World,
    one: &mut Waiting,
) -> bool {
    let (why, rests) = match judge(api, around, world, one).await {
        Outcome::Settled => return false,
        Outcome::Waits(why) => (why, None),
        Outcome::Unanswered(why) => (why, Some(Instant::now() + AGAIN)),
    };
    one.rests = rests;
    if one.told.as_ref() != Some(&why) {
        tracing::info!(csr = one.csr.name_any(), why, "a request for a serving certificate waits");
        one.told = Some(why);
    }
    true
}

async fn judge(
    api: &Api<CertificateSigningRequest>,
    around: &around::Around,
    world: &World,
    Waiting { csr, request, .. }: &Waiting,
) -> Outcome {
    let name = csr.name_any();
    let mut facts = gather(world, request.clone());
    let mut verdict = decide(&facts);
    if verdict == Verdict::LookAround {
        let own = names::node(of_mac(&request.username).unwrap_or_default());
        match around.others(&own).await {
            Ok(others) => facts.others = Some(others),
            Err(why) => return Outcome::Unanswered(why),
        }
        verdict = decide(&facts);
    }
    let (type_, reason, message) = match verdict {
        Verdict::NotOurs => return Outcome::Settled,
        Verdict::Wait(why) => return Outcome::Waits(why),
        Verdict::LookAround => return Outcome::Unanswered("nobody looked who else is in the network".to_owned()),
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
    let Ok(patch) = serde_json::from_value(patch) else { return Outcome::Settled };
    match api.patch_approval(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
        Ok(_) => {
            tracing::info!(csr = name, type_, message, "a request for a serving certificate is decided");
            Outcome::Settled
        }
        Err(error) => {
            tracing::warn!(csr = name, %error, "a decision about a certificate was not taken");
            if is_final(&error) { Outcome::Settled } else { Outcome::Unanswered(error.to_string()) }
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
        others: None,
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
}
