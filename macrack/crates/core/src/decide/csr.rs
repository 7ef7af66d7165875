//! A serving certificate for one Mac: whether its request is signed.
//!
//! Invariant: a certificate is approved for a Mac's own agent, for its own Node and for addresses that the Node's status
//! names and that are known to be nobody else's ([`Others`]); what cannot be judged yet waits, everything else is denied
//! with the reason. Requests of anybody else are nobody's business here.

mod others;

use core::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use macrack_api::{MacNode, names};

pub use others::{Block, NoBlock, Others};

use crate::seen::Seen;

/// The signer that a kubelet's serving certificate comes from.
pub const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// What a serving certificate is for; the last may stand beside the first two (kubelet-serving's own rules).
const USAGES: [&str; 3] = ["server auth", "digital signature", "key encipherment"];

/// What is asked, as the API server and the request itself say it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The object's name.
    pub name: String,
    /// Who made it.
    pub username: String,
    /// The Node that the maker's token is bound to.
    pub token_node: Option<String>,
    /// The signer that is asked.
    pub signer: String,
    /// What the certificate is to be for.
    pub usages: Vec<String>,
    /// What stands in the request, or why it cannot be read.
    pub content: Result<Content, String>,
}

/// What stands in a signed request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    /// The subject's common name.
    pub common_name: String,
    /// Its organizations.
    pub organizations: Vec<String>,
    /// Names in the DNS.
    pub dns: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// How many names of other forms (mail, URI).
    pub others: usize,
}

/// What was seen around a request.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The request.
    pub request: Request,
    /// The MacNode of the agent that made it.
    pub mac_node: Seen<MacNode>,
    /// Its Node.
    pub node: Seen<Node>,
    /// Who else is in the network; `None` until somebody looked ([`Verdict::LookAround`]).
    pub others: Option<Others>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not a Mac's.
    NotOurs,
    /// Something must be seen first.
    Wait(String),
    /// Nothing but [`Facts::others`] is missing. It is asked for last, since it takes several reads.
    LookAround,
    /// It is approved.
    Approve,
    /// It is denied, for this reason.
    Deny(String),
}

/// Whom a request of a Mac's agent is from, before its MacNode's name.
fn agents() -> String {
    format!("system:serviceaccount:{}:{}", names::AGENT_NAMESPACE, names::agent_account(""))
}

/// Name of the MacNode whose agent made the request, if one did.
pub fn of_mac(username: &str) -> Option<&str> {
    username.strip_prefix(&agents()).filter(|serial| !serial.is_empty())
}

/// Judges one request.
pub fn decide(facts: &Facts) -> Verdict {
    let request = &facts.request;
    let Some(mac_node) = of_mac(&request.username).filter(|_| request.signer == SIGNER) else {
        return Verdict::NotOurs;
    };
    match form(request, mac_node) {
        Ok(content) => standing(facts, content),
        Err(why) => Verdict::Deny(why),
    }
}

/// Whether the request is one that its maker may make at all.
fn form<'a>(request: &'a Request, mac_node: &str) -> Result<&'a Content, String> {
    let node = names::node(mac_node);
    if request.token_node.as_deref() != Some(&node) {
        return Err(format!("the token that asked is not bound to Node {node}; ask with the agent's own"));
    }
    let name = names::serving_request(mac_node);
    if request.name != name {
        return Err(format!("a Mac's request is named {name}, this one {}", request.name));
    }
    let known = |usage: &String| USAGES.contains(&usage.as_str());
    if !request.usages.iter().all(known) || !request.usages.iter().any(|usage| usage == USAGES[0]) {
        return Err(format!("its usages are {:?}, where server auth with digital signature is wanted", request.usages));
    }
    let content = request.content.as_ref().map_err(|why| format!("it cannot be read: {why}"))?;
    let subject = format!("system:node:{node}");
    if content.common_name != subject || content.organizations != ["system:nodes"] {
        return Err(format!(
            "its subject is {} of {:?}, where {subject} of system:nodes is wanted",
            content.common_name, content.organizations
        ));
    }
    if content.others > 0 || content.dns.iter().any(|name| *name != node) || content.addresses.is_empty() {
        return Err(format!("it may name {node} and addresses of that Node, at least one, and nothing else"));
    }
    Ok(content)
}

/// Whether the Mac is one of ours, and the addresses are its own.
fn standing(facts: &Facts, content: &Content) -> Verdict {
    let wait = |what: &str| Verdict::Wait(what.to_owned());
    let mac_node = match &facts.mac_node {
        Seen::Present(mac_node) => mac_node,
        Seen::Absent => return Verdict::Deny("its MacNode does not exist; create it and enrol the Mac".to_owned()),
        Seen::Unknown(why) => return wait(why),
    };
    let name = mac_node.name_any();
    if mac_node.metadata.deletion_timestamp.is_some() {
        return Verdict::Deny(format!("MacNode {name} is being deleted"));
    }
    if let Some(retirement) = &mac_node.spec.retirement {
        return Verdict::Deny(format!(
            "MacNode {name} is retired ({}); take spec.retirement back first",
            retirement.reason
        ));
    }
    let hardware = mac_node.status.as_ref().and_then(|status| status.agent.as_ref()?.hardware.as_ref());
    let Some(hardware) = hardware else { return wait("its agent has not reported its hardware yet") };
    if hardware.serial != mac_node.spec.serial {
        return Verdict::Deny(format!(
            "the hardware's serial is {}, MacNode {name} was enrolled for {}",
            hardware.serial, mac_node.spec.serial
        ));
    }
    let node = match &facts.node {
        Seen::Present(node) => node,
        Seen::Absent => return wait("its Node does not exist yet"),
        Seen::Unknown(why) => return wait(why),
    };
    let own = addresses(node);
    if own.is_empty() {
        return wait("its Node names no address yet");
    }
    if let Some(foreign) = content.addresses.iter().find(|address| !own.contains(&address.to_canonical())) {
        return Verdict::Deny(format!("{foreign} is none of its Node's addresses ({own:?})"));
    }
    let Some(others) = &facts.others else { return Verdict::LookAround };
    match content.addresses.iter().find_map(|address| others.against(*address)) {
        Some(why) => Verdict::Deny(why),
        None => Verdict::Approve,
    }
}

/// The addresses at which the API server reaches a Node.
fn addresses(node: &Node) -> Vec<IpAddr> {
    of_type(node, |type_| type_ == "InternalIP")
}

/// Every address of a Node, whatever it is for.
pub fn all_addresses(node: &Node) -> Vec<IpAddr> {
    of_type(node, |_| true)
}

/// An IPv4 address that is written as IPv6 is that IPv4 address to whoever checks a certificate, and so it is here.
fn of_type(node: &Node, wanted: impl Fn(&str) -> bool) -> Vec<IpAddr> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_ref()).map(Vec::as_slice).unwrap_or_default();
    let parsed = all.iter().filter(|a| wanted(&a.type_)).filter_map(|a| a.address.parse::<IpAddr>().ok());
    parsed.map(|address| address.to_canonical()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> Facts {
        let content = Content {
            common_name: "system:node:macrack-h4xk29q0lw".into(),
            organizations: vec!["system:nodes".into()],
            dns: vec!["macrack-h4xk29q0lw".into()],
            addresses: vec!["10.0.0.7".parse().unwrap()],
            others: 0,
        };
        let hardware = json!({
            "serial": "H4XK29Q0LW", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
            "memory": "64Gi", "storage": "1T", "linkSpeed": "10G",
        });
        Facts {
            request: Request {
                name: "macrack-serving-h4xk29q0lw".into(),
                username: agents() + "h4xk29q0lw",
                token_node: Some("macrack-h4xk29q0lw".into()),
                signer: SIGNER.into(),
                usages: vec!["digital signature".into(), "server auth".into()],
                content: Ok(content),
            },
            mac_node: Seen::Present(
                serde_json::from_value(json!({
                    "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
                    "metadata": { "name": "h4xk29q0lw" },
                    "spec": { "serial": "H4XK29Q0LW", "nodeClassName": "mini" },
                    "status": { "agent": { "version": "0.1.0", "bootID": "b", "hardware": hardware } },
                }))
                .unwrap(),
            ),
            node: Seen::Present(
                serde_json::from_value(json!({
                    "metadata": { "name": "macrack-h4xk29q0lw" },
                    "status": { "addresses": [
                        { "type": "Hostname", "address": "macrack-h4xk29q0lw" },
                        { "type": "InternalIP", "address": "10.0.0.7" },
                    ]},
                }))
                .unwrap(),
            ),
            others: Some(Others {
                api_server: vec!["10.0.0.1".parse().unwrap()],
                nodes: vec![("worker-1".into(), "10.0.0.8".parse().unwrap())],
                blocks: Vec::new(),
            }),
        }
    }

    #[test]
    fn a_macs_own_request_for_its_own_address_is_approved() {
        assert_eq!(decide(&facts()), Verdict::Approve);
        let nobody_looked = Facts { others: None, ..facts() };
        assert_eq!(decide(&nobody_looked), Verdict::LookAround, "nothing is approved before somebody looked");
    }

    #[test]
    fn the_address_of_another_node_is_denied_also_when_it_is_written_as_ipv6() {
        let mut facts = facts();
        let Seen::Present(node) = &mut facts.node else { unreachable!() };
        let own = node.status.as_mut().unwrap().addresses.as_mut().unwrap();
        own[1].address = "::ffff:10.0.0.8".into();
        facts.request.content.as_mut().unwrap().addresses = vec!["::ffff:10.0.0.8".parse().unwrap()];
        let said = decide(&facts);
        assert_eq!(said, Verdict::Deny("Node worker-1 has 10.0.0.8; give each machine its own".into()));
    }

    #[test]
    fn whoever_else_asks_is_left_to_others() {
        for (username, signer) in [
            ("system:node:worker-1", SIGNER),
            ("system:serviceaccount:team-a:macrack-agent-h4xk29q0lw", SIGNER),
            (agents().as_str(), SIGNER),
            ("system:serviceaccount:macrack-agents:macrack-agent-h4xk29q0lw", "example.com/mine"),
        ] {
            let mut facts = facts();
            (facts.request.username, facts.request.signer) = (username.into(), signer.into());
            assert_eq!(decide(&facts), Verdict::NotOurs, "{username} {signer}");
        }
    }

    #[test]
    fn what_is_not_the_macs_own_is_denied_with_the_reason() {
        type Change = fn(&mut Facts);
        fn content(facts: &mut Facts) -> &mut Content {
            facts.request.content.as_mut().unwrap()
        }
        let cases: [(&str, Change); 15] = [
            ("not bound to Node macrack-h4xk29q0lw", |f| f.request.token_node = None),
            ("not bound to Node macrack-h4xk29q0lw", |f| f.request.token_node = Some("macrack-other".into())),
            ("is named macrack-serving-h4xk29q0lw", |f| f.request.name = "macrack-serving-other".into()),
            ("server auth", |f| f.request.usages.push("client auth".into())),
            ("server auth", |f| f.request.usages.retain(|usage| usage != "server auth")),
            ("cannot be read: truncated", |f| f.request.content = Err("truncated".into())),
            ("its subject is system:node:macrack-other", |f| {
                content(f).common_name = "system:node:macrack-other".into()
            }),
            ("system:masters", |f| content(f).organizations.push("system:masters".into())),
            ("nothing else", |f| content(f).dns.push("kubernetes.default.svc".into())),
            ("nothing else", |f| content(f).others = 1),
            ("at least one", |f| content(f).addresses.clear()),
            ("10.0.0.8 is none of its Node's addresses", |f| content(f).addresses.push("10.0.0.8".parse().unwrap())),
            ("Node other has 10.0.0.7", |f| {
                f.others.as_mut().unwrap().nodes.push(("other".into(), "10.0.0.7".parse().unwrap()))
            }),
            ("does not exist; create it", |f| f.mac_node = Seen::Absent),
            ("the hardware's serial is ZZ", |f| {
                let Seen::Present(mac_node) = &mut f.mac_node else { unreachable!() };
                let agent = mac_node.status.as_mut().unwrap().agent.as_mut().unwrap();
                agent.hardware.as_mut().unwrap().serial = "ZZ".into();
            }),
        ];
        for (why, change) in cases {
            let mut facts = facts();
            change(&mut facts);
            let Verdict::Deny(words) = decide(&facts) else { panic!("{why}: {:?}", decide(&facts)) };
            assert!(words.contains(why), "{words}");
        }
    }

    #[test]
    fn what_is_not_seen_yet_waits() {
        let waits = |change: fn(&mut Facts)| {
            let mut facts = facts();
            change(&mut facts);
            matches!(decide(&facts), Verdict::Wait(_))
        };
        assert!(waits(|f| f.mac_node = Seen::Unknown("no list yet".into())));
        assert!(waits(|f| f.node = Seen::Absent));
        assert!(waits(|f| {
            let Seen::Present(node) = &mut f.node else { unreachable!() };
            node.status = None;
        }));
        assert!(waits(|f| {
            let Seen::Present(mac_node) = &mut f.mac_node else { unreachable!() };
            mac_node.status = None;
        }));
    }
}
