//! Which serving certificates the operator approves, with its own rights on a real API server: a Mac's address is its
//! agent's word, and none that is known to be somebody else's is signed for it.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
        core::v1::Node,
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use macrack_api::{MacNode, names};
use macrack_operator::{feed::feed, queue::Queue, serving::approve, world::World};
use macrack_testkit::{ControlPlane, expect, shared};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// How the operator reaches the API server in this test, as its kubeconfig would say.
const REACHED_AT: &str = "203.0.113.9";

/// Each Mac claims one address; what must come of it.
const MACS: &[(&str, &str, Result<(), &str>)] = &[
    ("CSRMAC0001", "192.0.2.7", Ok(())),
    ("CSRMAC0002", "192.0.2.8", Err("Node csr-worker has 192.0.2.8")),
    ("CSRMAC0003", "198.51.100.8", Err("Node csr-worker has 198.51.100.8")),
    ("CSRMAC0004", "::ffff:192.0.2.8", Err("Node csr-worker has 192.0.2.8")),
    ("CSRMAC0005", "203.0.113.9", Err("the API server has 203.0.113.9")),
    ("CSRMAC0006", "203.0.113.5", Err("the API server has 203.0.113.5")),
    ("CSRMAC0007", "10.96.0.1", Err("the API server has 10.96.0.1")),
    ("CSRMAC0008", "10.96.77.7", Err("one of the addresses of Services (ServiceCIDR kubernetes)")),
    ("CSRMAC0009", "10.244.9.3", Err("one of the addresses of pods (podCIDR of Node csr-worker)")),
    ("CSRMAC0010", "127.0.0.1", Err("127.0.0.1 is every machine's own")),
    ("CSRMAC0011", "169.254.169.254", Err("169.254.169.254 is no single machine's")),
];

async fn apply(plane: &ControlPlane, path: &str) {
    let path = format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
    plane.kubectl(&["apply", "--server-side", "-f", &path]).await.unwrap().success().unwrap();
}

async fn node(client: &Client, name: &str, labels: Value, spec: Value, addresses: Value) {
    let nodes: Api<Node> = Api::all(client.clone());
    let object = json!({ "metadata": { "name": name, "labels": labels }, "spec": spec });
    expect::accepts(nodes.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await);
    let status = Patch::Merge(json!({ "status": { "addresses": addresses } }));
    expect::accepts(nodes.patch_status(name, &PatchParams::default(), &status).await);
}

/// A Mac whose agent has reported, and wrote that address into its Node.
async fn mac(client: &Client, serial: &str, address: &str) {
    let name = names::mac_node(serial);
    let labels = json!({ names::LABEL_SERIAL: name });
    let addresses = json!([{ "type": "InternalIP", "address": address }]);
    node(client, &names::node(&name), labels, json!({}), addresses).await;
    let macs: Api<MacNode> = Api::all(client.clone());
    let object = json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": name },
        "spec": { "serial": serial, "nodeClassName": "mini" },
    });
    expect::accepts(macs.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await);
    let hardware = json!({
        "serial": serial, "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14, "memory": "64Gi", "storage": "1T",
    });
    let status = json!({ "status": { "agent": { "version": "0.1.0", "bootID": "b", "hardware": hardware } } });
    expect::accepts(macs.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await);
}

/// What its agent asks for, with the claim of a token that is bound to its Node; what became of it.
async fn asked(plane: &ControlPlane, serial: &str, address: &str) -> CertificateSigningRequestCondition {
    let name = names::mac_node(serial);
    let user = format!("system:serviceaccount:{}:{}", names::AGENT_NAMESPACE, names::agent_account(&name));
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{}", names::AGENT_NAMESPACE)];
    let claim = HashMap::from([("authentication.kubernetes.io/node-name".to_owned(), vec![names::node(&name)])]);
    let agent = plane.as_user_with(&user, &groups, claim).await.unwrap();
    let mut params = rcgen::CertificateParams::new([names::node(&name), address.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{}", names::node(&name)));
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let request = json!({
        "metadata": { "name": names::serving_request(&name) },
        "spec": {
            "request": ByteString(pem.into_bytes()), "signerName": "kubernetes.io/kubelet-serving",
            "usages": ["digital signature", "server auth"],
        },
    });
    let asks: Api<CertificateSigningRequest> = Api::all(agent);
    expect::accepts(asks.create(&PostParams::default(), &serde_json::from_value(request).unwrap()).await);
    let seen: Api<CertificateSigningRequest> = Api::all(plane.admin().await.unwrap());
    let decided = |csr: &CertificateSigningRequest| csr.status.as_ref().and_then(|s| s.conditions.clone()?.pop());
    let name = names::serving_request(&name);
    let csr = expect::until_seen(&seen, &name, "decided", SOON, |csr| decided(csr).is_some()).await;
    decided(&csr).unwrap()
}

#[tokio::test]
async fn a_mac_gets_a_certificate_for_no_address_that_is_known_to_be_somebody_elses() {
    let plane = shared();
    apply(plane, "crds").await;
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    plane.kubectl(&established).await.unwrap().success().unwrap();
    apply(plane, "rbac/namespaces.yaml").await;
    apply(plane, "rbac").await;
    let admin = plane.admin().await.unwrap();

    let addresses = json!([
        { "type": "InternalIP", "address": "192.0.2.8" }, { "type": "ExternalIP", "address": "198.51.100.8" },
    ]);
    node(
        &admin,
        "csr-worker",
        json!({}),
        json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] }),
        addresses,
    )
    .await;
    let slices: Api<EndpointSlice> = Api::namespaced(admin.clone(), "default");
    let slice = json!({
        "metadata": { "name": "kubernetes", "labels": { "kubernetes.io/service-name": "kubernetes" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["203.0.113.5"] }],
    });
    expect::accepts(slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await);
    for (serial, address, _) in MACS {
        mac(&admin, serial, address).await;
    }

    // as the operator, with exactly its rights
    let operator = plane.as_service_account(names::SYSTEM_NAMESPACE, names::OPERATOR_ACCOUNT).await.unwrap();
    let (world, queue) = (Arc::new(World::new()), Arc::new(Queue::default()));
    let feeding = tokio::spawn(feed(operator.clone(), world.clone(), queue));
    let approving = tokio::spawn(approve(operator, world, Some(REACHED_AT.to_owned())));
    for (serial, address, expected) in MACS {
        let decided = asked(plane, serial, address).await;
        let message = decided.message.unwrap_or_default();
        match expected {
            Ok(()) => assert_eq!(decided.type_, "Approved", "{address}: {message}"),
            Err(why) => {
                assert_eq!(decided.type_, "Denied", "{address}: {message}");
                assert!(message.contains(why), "{address}: {message}");
            }
        }
    }
    approving.abort();
    feeding.abort();
}
