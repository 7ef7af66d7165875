//! What a Mac may ask a certificate with.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use macrack_testkit::expect::{accepts, rejects};
use serde_json::json;

use crate::{
    agents::{almighty, chassis},
    world::{name, world},
};

const SERVING: &str = "kubernetes.io/kubelet-serving";

async fn ask(client: &Client, name: &str, signer: &str, usages: &[&str]) -> kube::Result<CertificateSigningRequest> {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["macrack-any".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:macrack-any");
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = k8s_openapi::ByteString(request.into_bytes());
    let csr = json!({
        "metadata": { "name": name }, "spec": { "request": request, "signerName": signer, "usages": usages },
    });
    let all: Api<CertificateSigningRequest> = Api::all(client.clone());
    all.create(&PostParams::default(), &serde_json::from_value(csr).unwrap()).await
}

#[tokio::test]
async fn an_agent_asks_for_its_own_macs_serving_certificate_alone() {
    let world = world().await;
    let (mac, node, agent) = chassis(&world).await;
    let own = format!("macrack-serving-{}", name(&mac));
    let serving = ["digital signature", "server auth"];
    rejects(ask(&agent, "macrack-serving-other", SERVING, &serving).await, ["[own-certificate]", &own, "name it so"]);
    let client = ["digital signature", "client auth"];
    rejects(ask(&agent, &own, "kubernetes.io/kube-apiserver-client", &client).await, "[serving-only]");
    rejects(ask(&agent, &own, SERVING, &client).await, "[serving-only]");
    let unbound = almighty(&world, name(&mac), None).await;
    rejects(ask(&unbound, &own, SERVING, &serving).await, ["[agent-token-bound]", &node]);
    accepts(ask(&agent, &own, SERVING, &serving).await);

    let all: Api<CertificateSigningRequest> = Api::all(agent.clone());
    accepts(all.delete(&own, &DeleteParams::default()).await);
    accepts(ask(&world.admin, "somebody-elses", SERVING, &serving).await);
    rejects(all.delete("somebody-elses", &DeleteParams::default()).await, "[own-certificate]");
}
