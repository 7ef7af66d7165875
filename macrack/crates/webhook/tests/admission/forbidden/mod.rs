//! Agents can do nothing but their part: one row per act.
//!
//! Each act is tried twice: by the agent's real token, with the rights that the operator hands out (`refused`), and by
//! its name and node claim with every right of RBAC (`policy`), as if a role had granted it by mistake. Beside it
//! stands the nearest act that is the agent's to do, and succeeds by the real token: so a row cannot pass because
//! nothing works. Reading is RBAC's alone, admission does not see it: those rows have no `policy`.

mod identity;
mod mac;
mod tenant;

use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::DeleteParams};
use macrack_core::render::access;
use macrack_testkit::expect::{self, accepts};
use serde_json::{Value, json};

use crate::{
    agents::{bound_to, chassis, enrolled, reported},
    world::{SOON, Tenant, World, api_of, create, name, patch_status, pod, world},
};

/// One request, as it goes over the wire.
struct Ask {
    verb: &'static str,
    path: String,
    body: Value,
    /// Whom it says to be.
    poses_as: Option<String>,
}

fn ask(verb: &'static str, path: impl Into<String>, body: Value) -> Ask {
    Ask { verb, path: path.into(), body, poses_as: None }
}

fn get(path: impl Into<String>) -> Ask {
    ask("GET", path, Value::Null)
}

fn patch(path: impl Into<String>, body: Value) -> Ask {
    ask("PATCH", path, body)
}

fn post(path: impl Into<String>, body: Value) -> Ask {
    ask("POST", path, body)
}

fn delete(path: impl Into<String>) -> Ask {
    ask("DELETE", path, json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}))
}

async fn send(client: &Client, ask: &Ask) -> kube::Result<String> {
    let kind = if ask.verb == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if ask.body.is_null() { Vec::new() } else { ask.body.to_string().into_bytes() };
    let begun = std::time::Instant::now();
    loop {
        let mut request = axum::http::Request::builder().method(ask.verb).uri(&ask.path).header("content-type", kind);
        if let Some(user) = &ask.poses_as {
            request = request.header("impersonate-user", user);
        }
        match client.request_text(request.body(body.clone()).unwrap()).await {
            // the storage of a kind that was made a moment ago is being opened: the API server asks to come again
            Err(kube::Error::Api(status)) if status.code == 429 && begun.elapsed() < SOON => {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
            answer => return answer,
        }
    }
}

/// One act.
struct Row {
    act: &'static str,
    tried: Ask,
    refused: &'static str,
    policy: Option<&'static str>,
    beside: Ask,
}

/// What is wrong with an answer that must be a refusal for that reason.
fn unlike(answer: kube::Result<String>, reason: &str) -> Option<String> {
    match answer {
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.message.contains(reason) => None,
        Err(kube::Error::Api(status)) => {
            Some(format!("refused for another reason: {} {}", status.code, status.message))
        }
        Err(error) => Some(format!("no answer: {error}")),
        Ok(_) => Some("it was accepted".to_owned()),
    }
}

/// Two Macs, two tenants; on the first Mac an instance, its placeholder and one that goes, on the second a tenant's.
struct Stage {
    world: World,
    own: String,
    node: String,
    foreign: String,
    foreign_node: String,
    tenant: Tenant,
    other: Tenant,
    /// By its real token.
    agent: Client,
    /// By its name, with all of RBAC.
    almighty: Client,
}

impl Stage {
    async fn set() -> Stage {
        let world = world().await;
        let (mac, node, almighty) = chassis(&world).await;
        let (foreign, foreign_node, _) = chassis(&world).await;
        let (own, foreign) = (name(&mac).to_owned(), name(&foreign).to_owned());
        // a pod is given more only by a Node that has something
        let room = json!({"cpu": "14", "memory": "64Gi", "pods": "110", "macrack.io/macos-vm": "2"});
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        accepts(patch_status(&world.admin, &object, json!({"capacity": room, "allocatable": room})).await);
        enrolled(&world, &own).await;
        enrolled(&world, &foreign).await;
        let (tenant, other) = (world.tenant("mine").await, world.tenant("theirs").await);
        for (tenant, instances) in
            [(&tenant, vec![("vm", &node), ("moved", &foreign_node)]), (&other, vec![("theirs", &foreign_node)])]
        {
            let rack = world.rack(tenant).await;
            for (instance, on) in instances {
                let object = tenant.instance(instance, &rack);
                accepts(create(&tenant.client, &object).await);
                accepts(patch_status(&world.operator, &object, json!({"nodeName": on})).await);
                placeholder(&world, tenant, instance, on).await;
            }
        }
        placeholder(&world, &tenant, "going", &node).await;
        let going = api_of(&world.operator, &pod("macrack-vm-going", tenant.ns()));
        accepts(going.delete("macrack-vm-going", &DeleteParams::default()).await);
        for (tenant, secret) in [(&tenant, "boot"), (&tenant, "private"), (&other, "boot")] {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"script": "true"},
                "metadata": {"name": secret, "namespace": tenant.ns()}});
            accepts(create(&world.admin, &secret).await);
        }
        let ((_, role), (_, binding)) =
            access::lease(&own, tenant.ns(), &["vm", "moved", "going"], &["boot".to_owned()]);
        for body in [&role, &binding] {
            accepts(create(&world.operator, body).await);
        }
        let uid = Api::<Node>::all(world.admin.clone()).get(&node).await.unwrap().metadata.uid;
        let bound = BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.clone()),
            uid,
        };
        let token = world.plane.token("macrack-agents", &format!("macrack-agent-{own}"), Some(bound)).await.unwrap();
        let agent = macrack_testkit::client_from(&world.plane.kubeconfig_for(&token).unwrap()).await.unwrap();
        let stage = Stage { world, own, node, foreign, foreign_node, tenant, other, agent, almighty };
        stage.in_effect().await;
        stage
    }

    /// Each of the agent's roles is read by the authorizer from a cache.
    async fn in_effect(&self) {
        for one in [
            patch(self.mac_node("/status"), json!({"status": {"agent": reported()}})),
            get(self.kube_node("")),
            get(self.heartbeat(&self.node)),
            post(self.token("agent"), self.asking(bound_to(&self.node, 3600))),
            get(self.secret(&self.tenant, "/boot")),
        ] {
            expect::until_effective(&one.path, SOON, async || send(&self.agent, &one).await.is_ok()).await;
        }
    }

    fn mac_node(&self, sub: &str) -> String {
        format!("/apis/rack.macrack.io/v1alpha1/macnodes/{}{sub}", self.own)
    }
    fn kube_node(&self, sub: &str) -> String {
        format!("/api/v1/nodes/{}{sub}", self.node)
    }
    fn heartbeat(&self, node: &str) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}")
    }
    fn token(&self, of: &str) -> String {
        format!("/api/v1/namespaces/macrack-agents/serviceaccounts/macrack-{of}-{}/token", self.own)
    }
    fn asking(&self, spec: Value) -> Value {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    }
    fn secret(&self, tenant: &Tenant, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/secrets{rest}", tenant.ns())
    }
    fn pod(&self, tenant: &Tenant, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/pods{rest}", tenant.ns())
    }
    fn instance(&self, tenant: &Tenant, rest: &str) -> String {
        format!("/apis/instance.macrack.io/v1alpha1/namespaces/{}/macosinstances{rest}", tenant.ns())
    }

    /// Every row holds, or all that does not is said at once.
    async fn holds(&self, rows: Vec<Row>) {
        hold(&self.agent, &self.almighty, rows).await;
    }
}

/// The same of any account and its almighty double.
async fn hold(account: &Client, almighty: &Client, rows: Vec<Row>) {
    let mut wrong = Vec::new();
    for Row { act, tried, refused, policy, beside } in &rows {
        let by_token = unlike(send(account, tried).await, refused);
        wrong.extend(by_token.map(|why| format!("{act}, by its token ({refused}): {why}")));
        if let Some(rule) = policy {
            let almighty = unlike(send(almighty, tried).await, rule);
            wrong.extend(almighty.map(|why| format!("{act}, with all of RBAC ({rule}): {why}")));
        }
        if let Err(error) = send(account, beside).await {
            wrong.push(format!("{act}: what stands beside it was refused: {} {}: {error}", beside.verb, beside.path));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// A placeholder on that Node, placed there by the operator itself: a scheduler is not what is tried here.
async fn placeholder(world: &World, tenant: &Tenant, instance: &str, node: &str) {
    let mut object = pod(&format!("macrack-vm-{instance}"), tenant.ns());
    object["metadata"]["finalizers"] = json!(["macrack.io/slot"]);
    object["spec"]["nodeName"] = json!(node);
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2m"}});
    accepts(create(&world.operator, &object).await);
}

fn row(act: &'static str, tried: Ask, refused: &'static str, policy: Option<&'static str>, beside: Ask) -> Row {
    Row { act, tried, refused, policy, beside }
}
