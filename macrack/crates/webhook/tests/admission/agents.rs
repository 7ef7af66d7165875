//! What the agent of a Mac may write.
//!
//! Two ways in: real tokens of real accounts with the roles that the operator hands out (what holds together), and
//! the agent's name with every right of RBAC and a node claim (what the policies alone hold).

use std::collections::HashMap;

use k8s_openapi::api::{
    authentication::v1::BoundObjectReference,
    core::v1::{Node, Pod, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use macrack_core::render::access;
use macrack_testkit::expect::{self, accepts, rejects};
use serde_json::{Value, json};

use crate::{
    pods::{node, placeholder},
    world::{SOON, World, api_of, create, mac, moment, name, node_class, patch, patch_status, read, world},
};

/// An agent's name with all of RBAC and, if one is given, a node claim.
pub(crate) async fn almighty(world: &World, serial: &str, claim: Option<&str>) -> Client {
    let extra: HashMap<_, _> = claim
        .map(|node| ("authentication.kubernetes.io/node-name".to_owned(), vec![node.to_owned()]))
        .into_iter()
        .collect();
    let user = format!("system:serviceaccount:macrack-agents:macrack-agent-{serial}");
    world.plane.as_user_with(&user, &["system:masters"], extra).await.unwrap()
}

/// A Mac, its Node, and its agent as above.
pub(crate) async fn chassis(world: &World) -> (Value, String, Client) {
    let class = node_class();
    let mac = mac(&class);
    for object in [&class, &mac] {
        create(&world.admin, object).await.unwrap();
    }
    let node = format!("macrack-{}", name(&mac));
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"macrack.io/serial": name(&mac)}},
        "spec": {"taints": [{"key": "macrack.io/unleased", "value": "true", "effect": "NoSchedule"}]}});
    accepts(create(&world.operator, &object).await);
    let agent = almighty(world, name(&mac), Some(&node)).await;
    (mac, node, agent)
}

pub(crate) fn reported() -> Value {
    json!({"version": "0.1.0", "bootID": "b", "vms": []})
}

#[tokio::test]
async fn an_agent_reports_in_its_own_part_of_its_own_mac() {
    let world = world().await;
    let (mac, node, agent) = chassis(&world).await;
    // before the operator wrote anything, and after
    accepts(patch_status(&agent, &mac, json!({"agent": reported()})).await);
    accepts(patch_status(&world.operator, &mac, json!({"phase": "Ready", "nodeName": node, "slots": []})).await);
    accepts(patch_status(&agent, &mac, json!({"agent": reported()})).await);
    let own_part = "[agent-own-part]";
    rejects(
        patch_status(&agent, &mac, json!({"phase": "Leased"})).await,
        [own_part, "an agent writes status.agent alone"],
    );
    rejects(patch_status(&agent, &mac, json!({"nodeName": null})).await, own_part);
    let lease_ref = json!({"namespace": "a", "name": "l", "uid": "11111111-1111-1111-1111-111111111111",
        "boundAt": moment(0), "earliestReleaseAt": moment(24)});
    rejects(patch_status(&agent, &mac, json!({"leaseRef": lease_ref})).await, own_part);
    let slot = json!([{"slot": 0, "uid": "11111111-1111-1111-1111-111111111111", "namespace": "a", "name": "n", "order": "Wipe"}]);
    rejects(patch_status(&agent, &mac, json!({"slots": slot})).await, own_part);
    rejects(patch(&agent, &mac, json!({"spec": {"unschedulable": true}})).await, "[agent-writes-status]");
    rejects(patch(&agent, &mac, json!({"metadata": {"labels": {"a": "b"}}})).await, "[agent-writes-status]");
    rejects(api_of(&agent, &mac).delete(name(&mac), &DeleteParams::default()).await, "[agent-writes-status]");
    let class = node_class();
    rejects(create(&agent, &class).await, "[agent-writes-status]");

    let (other, ..) = chassis(&world).await;
    rejects(
        patch_status(&agent, &other, json!({"agent": reported()})).await,
        ["[agent-own-mac]", "writes its own MacNode alone"],
    );
}

#[tokio::test]
async fn a_token_that_is_not_bound_to_the_own_node_does_nothing() {
    let world = world().await;
    let (mac, node, _) = chassis(&world).await;
    let (_, foreign, _) = chassis(&world).await;
    for claim in [None, Some(foreign.as_str()), Some("macrack-")] {
        let agent = almighty(&world, name(&mac), claim).await;
        let refusal = ["[agent-token-bound]", "kubectl macrack enroll"];
        rejects(patch_status(&agent, &mac, json!({"agent": reported()})).await, refusal);
        let own = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        rejects(patch_status(&agent, &own, json!({"phase": "Running"})).await, refusal);
    }
}

#[tokio::test]
async fn an_agent_writes_about_instances_on_its_own_mac_for_people() {
    let world = world().await;
    let tenant = world.tenant("guests").await;
    let rack = world.rack(&tenant).await;
    let (_, node, agent) = chassis(&world).await;
    let (_, _, stranger) = chassis(&world).await;
    let instance = tenant.instance("vm", &rack);
    create(&tenant.client, &instance).await.unwrap();
    let guest = json!({"guest": {"stage": "Booting"}});
    rejects(patch_status(&agent, &instance, guest.clone()).await, ["[agent-own-mac]", "is not on macrack-"]);
    accepts(patch_status(&world.operator, &instance, json!({"nodeName": node, "phase": "Scheduled"})).await);
    accepts(patch_status(&agent, &instance, guest.clone()).await);
    accepts(patch_status(&agent, &instance, json!({"vm": {"starts": 1}})).await);
    rejects(patch_status(&stranger, &instance, guest).await, "[agent-own-mac]");
    rejects(
        patch_status(&agent, &instance, json!({"phase": "Ready"})).await,
        ["[agent-own-part]", "status.vm and status.guest"],
    );
    rejects(patch_status(&agent, &instance, json!({"nodeName": null})).await, "[agent-own-part]");
    rejects(
        patch(&agent, &instance, json!({"metadata": {"finalizers": ["instance.macrack.io/vm"]}})).await,
        "[agent-writes-status]",
    );
    rejects(patch(&agent, &instance, json!({"spec": {"powerState": "Stopped"}})).await, "[agent-writes-status]");
    rejects(api_of(&agent, &instance).delete("vm", &DeleteParams::default()).await, "[agent-writes-status]");
}

#[tokio::test]
async fn an_agent_brings_its_node_to_life_without_marking_it() {
    let world = world().await;
    let (_, own, agent) = chassis(&world).await;
    let (_, foreign, _) = chassis(&world).await;
    let nodes: Api<Node> = Api::all(agent.clone());
    let status = async |node: &str, change: Value| {
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&change)).await
    };
    let capacity = |n: &str| json!({"macrack.io/macos-vm": n, "cpu": "14", "memory": "64Gi", "pods": "110"});
    accepts(status(&own, json!({"status": {"capacity": capacity("2"), "allocatable": capacity("2")}})).await);
    for n in ["3", "1", "0", "2k"] {
        rejects(
            status(&own, json!({"status": {"capacity": capacity(n)}})).await,
            ["[two-per-mac]", "exactly two macrack.io/macos-vm"],
        );
        rejects(status(&own, json!({"status": {"allocatable": capacity(n)}})).await, "[two-per-mac]");
    }
    for marked in [
        json!({"metadata": {"labels": {"macrack.io/lease": "mine"}}}),
        json!({"metadata": {"labels": {"macrack.io/serial": null}}}),
        json!({"metadata": {"annotations": {"macrack.io/cordoned": "true"}}}),
    ] {
        rejects(status(&own, marked).await, ["[agent-no-labels]", "send status alone"]);
    }
    // taints are no part of a status: sent along, they are left as they are
    let tainted = status(&own, json!({"spec": {"taints": null}, "status": {"phase": "Running"}})).await;
    assert_eq!(accepts(tainted).spec.unwrap().taints.unwrap()[0].key, "macrack.io/unleased");
    let whole =
        nodes.patch(&own, &PatchParams::default(), &Patch::Merge(&json!({"spec": {"unschedulable": true}}))).await;
    rejects(whole, "[agent-writes-status]");
    rejects(nodes.delete(&own, &DeleteParams::default()).await, "[agent-writes-status]");
    rejects(status(&foreign, json!({"status": {"phase": "Running"}})).await, ["[agent-own-node]", &own]);
    rejects(status(&foreign, json!({"metadata": {"labels": {"a": "b"}}})).await, "[agent-own-node]");
}

#[tokio::test]
async fn an_agent_renews_its_own_heartbeat() {
    let world = world().await;
    let (_, own, agent) = chassis(&world).await;
    let (_, foreign, _) = chassis(&world).await;
    let lease = |name: &str, namespace: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace}})
    };
    rejects(create(&agent, &lease(&own, "kube-node-lease")).await, ["[agent-writes-status]", "the operator makes"]);
    for (object, client) in [
        (lease(&own, "kube-node-lease"), &world.operator),
        (lease(&foreign, "kube-node-lease"), &world.operator),
        (lease(&own, "default"), &world.admin),
    ] {
        accepts(create(client, &object).await);
    }
    let renew = |holder: &str| json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": "2026-03-02T09:00:00.000000Z"}});
    accepts(patch(&agent, &lease(&own, "kube-node-lease"), renew(&own)).await);
    rejects(patch(&agent, &lease(&own, "kube-node-lease"), renew("another")).await, "[agent-own-node]");
    rejects(patch(&agent, &lease(&foreign, "kube-node-lease"), renew(&foreign)).await, "[agent-own-node]");
    rejects(patch(&agent, &lease(&own, "default"), renew(&own)).await, "[agent-own-node]");
    rejects(
        api_of(&agent, &lease(&own, "kube-node-lease")).delete(&own, &DeleteParams::default()).await,
        "[agent-writes-status]",
    );
}

#[tokio::test]
async fn an_agent_reports_on_its_placeholders_and_ends_none_of_them() {
    let world = world().await;
    let tenant = world.tenant("reports").await;
    let on = node(&world).await;
    let agent = almighty(&world, on.strip_prefix("macrack-").unwrap(), Some(&on)).await;
    let elsewhere = node(&world).await;
    let stranger = almighty(&world, elsewhere.strip_prefix("macrack-").unwrap(), Some(&elsewhere)).await;
    let own = placeholder(&world, &tenant, &on).await;
    let pods = |client: &Client| Api::<Pod>::namespaced(client.clone(), tenant.ns());
    let status = async |client: &Client, change: Value| {
        pods(client).patch_status(name(&own), &PatchParams::default(), &Patch::Merge(&change)).await
    };
    accepts(
        status(&agent, json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}))
            .await,
    );
    rejects(
        status(&stranger, json!({"status": {"phase": "Pending"}})).await,
        ["[agent-own-pods]", "no placeholder on"],
    );
    for phase in ["Succeeded", "Failed"] {
        rejects(
            status(&agent, json!({"status": {"phase": phase}})).await,
            ["[placeholder-never-ends]", "no terminal phase"],
        );
    }
    for marked in [
        json!({"metadata": {"finalizers": null}}),
        json!({"metadata": {"labels": {"macrack.io/instance-uid": "another"}}}),
    ] {
        rejects(status(&agent, marked).await, "[agent-no-labels]");
    }
    rejects(patch(&agent, &own, json!({"metadata": {"annotations": {"a": "b"}}})).await, "[agent-writes-status]");
    rejects(create(&agent, &crate::world::pod("macrack-vm-new", tenant.ns())).await, "[agent-");
    rejects(pods(&agent).evict(name(&own), &Default::default()).await, "[agent-writes-status]");
    rejects(
        pods(&agent).delete(name(&own), &DeleteParams::default()).await,
        ["[agent-own-pods]", "wait for its deletionTimestamp"],
    );
    accepts(pods(&world.operator).delete(name(&own), &DeleteParams::default()).await);
    let at_once = DeleteParams::default().grace_period(0);
    rejects(pods(&stranger).delete(name(&own), &at_once).await, "[agent-own-pods]");
    accepts(pods(&agent).delete(name(&own), &at_once).await);
    // a pod of a tenant is none of its business
    accepts(create(&tenant.client, &crate::world::pod("theirs", tenant.ns())).await);
    let theirs = pods(&agent)
        .patch_status("theirs", &PatchParams::default(), &Patch::Merge(&json!({"status": {"phase": "Failed"}})))
        .await;
    rejects(theirs, "[agent-own-pods]");
}

/// Asks for a token of `account` as `client`.
async fn ask(client: &Client, account: &str, spec: Value) -> kube::Result<Value> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "macrack-agents");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    accounts.create_subresource("token", account, &PostParams::default(), &request).await
}

pub(crate) fn bound_to(node: &str, seconds: u64) -> Value {
    json!({"audiences": [], "expirationSeconds": seconds, "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}})
}

/// Everything that the operator hands a chassis, made by the operator: it may grant no more than it has.
pub(crate) async fn enrolled(world: &World, serial: &str) {
    for (_, body) in access::chassis(serial) {
        let params = PatchParams::apply("macrack-operator").force();
        let api = api_of(&world.operator, &body);
        api.patch(name(&body), &params, &Patch::Apply(&read(&body))).await.unwrap_or_else(|e| panic!("{body}: {e}"));
    }
}

#[tokio::test]
async fn whatever_rbac_says_tokens_are_asked_for_the_own_account_alone() {
    let world = world().await;
    let (mac, own, agent) = chassis(&world).await;
    let (other, foreign, _) = chassis(&world).await;
    for serial in [name(&mac), name(&other)] {
        enrolled(&world, serial).await;
    }
    let theirs = format!("macrack-agent-{}", name(&other));
    let as_account = async |account: &str| {
        let user = format!("system:serviceaccount:macrack-agents:{account}");
        world.plane.as_user_with(&user, &["system:masters"], HashMap::new()).await.unwrap()
    };
    let enroll = as_account(&format!("macrack-enroll-{}", name(&mac))).await;
    for client in [&agent, &enroll] {
        for node in [&own, &foreign] {
            rejects(ask(client, &theirs, bound_to(node, 3600)).await, "denied request");
        }
        rejects(
            ask(client, &theirs, bound_to(&own, 3600)).await,
            ["[own-token]", "asks for tokens of macrack-agents/macrack-agent-"],
        );
        // an enrolment account mints no second credential of its own kind
        let itself = format!("macrack-enroll-{}", name(&mac));
        rejects(ask(client, &itself, bound_to(&own, 3600)).await, "[own-token]");
    }
    accepts(ask(&enroll, &format!("macrack-agent-{}", name(&mac)), bound_to(&own, 3600)).await);
    // neither an agent nor an enrolment
    let stray = as_account("default").await;
    rejects(ask(&stray, &theirs, bound_to(&foreign, 3600)).await, "denied request");
}

#[tokio::test]
async fn with_its_real_account_an_agent_enrols_renews_and_reports() {
    let world = world().await;
    let (mac, own, _) = chassis(&world).await;
    let (other, foreign, _) = chassis(&world).await;
    let (serial, other_serial) = (name(&mac), name(&other));
    enrolled(&world, serial).await;
    enrolled(&world, other_serial).await;
    let account = format!("macrack-agent-{serial}");

    // the bootstrap credential asks for one token and does nothing else
    let enroll = world.plane.as_service_account("macrack-agents", &format!("macrack-enroll-{serial}")).await.unwrap();
    let first = async || ask(&enroll, &account, bound_to(&own, 86_400)).await.is_ok();
    expect::until_effective("the enrolment's role", SOON, first).await;
    rejects(ask(&enroll, &account, bound_to(&own, 86_401)).await, ["[token-one-day]", "86400 seconds or fewer"]);
    rejects(ask(&enroll, &account, bound_to(&foreign, 3600)).await, ["[token-bound-to-node]", &own]);
    rejects(ask(&enroll, &account, json!({"audiences": [], "expirationSeconds": 3600})).await, "[token-bound-to-node]");
    rejects(ask(&enroll, &format!("macrack-agent-{other_serial}"), bound_to(&foreign, 3600)).await, "forbidden");
    rejects(patch_status(&enroll, &mac, json!({"agent": reported()})).await, "forbidden");

    // the agent's own token, bound to its Node
    let uid = Api::<Node>::all(world.admin.clone()).get(&own).await.unwrap().metadata.uid;
    let bound = BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(own.clone()),
        uid,
    };
    let token = world.plane.token("macrack-agents", &account, Some(bound)).await.unwrap();
    let agent = macrack_testkit::client_from(&world.plane.kubeconfig_for(&token).unwrap()).await.unwrap();
    let reports = async || patch_status(&agent, &mac, json!({"agent": reported()})).await.is_ok();
    expect::until_effective("the agent's role", SOON, reports).await;
    accepts(ask(&agent, &account, bound_to(&own, 86_400)).await);
    rejects(ask(&agent, &account, bound_to(&own, 315_360_000)).await, "[token-one-day]");
    rejects(ask(&agent, &account, bound_to(&foreign, 3600)).await, "[token-bound-to-node]");
    rejects(ask(&agent, &format!("macrack-agent-{other_serial}"), bound_to(&foreign, 3600)).await, "forbidden");
    let nodes: Api<Node> = Api::all(agent.clone());
    let labelled = json!({"metadata": {"labels": {"macrack.io/lease": "mine"}}});
    rejects(nodes.patch_status(&own, &PatchParams::default(), &Patch::Merge(&labelled)).await, "[agent-no-labels]");
    rejects(nodes.patch_status(&foreign, &PatchParams::default(), &Patch::Merge(&labelled)).await, "forbidden");
    rejects(patch_status(&agent, &other, json!({"agent": reported()})).await, "forbidden");
    accepts(api_of(&agent, &world_image()).list(&Default::default()).await);

    // a token of the same account that is bound to nothing is worth nothing, and renews nothing
    let loose = world.plane.as_service_account("macrack-agents", &account).await.unwrap();
    rejects(patch_status(&loose, &mac, json!({"agent": reported()})).await, "[agent-token-bound]");
    rejects(ask(&loose, &account, bound_to(&own, 3600)).await, "[agent-token-bound]");

    // with its Node the token dies; the bootstrap credential asks for one bound to the Node that was made again
    world.plane.kubectl(&["delete", "node", &own]).await.unwrap().success().unwrap();
    let dead = async || matches!(nodes.get(&own).await, Err(kube::Error::Api(s)) if s.code == 401);
    expect::until_effective("the end of the token", SOON, dead).await;
    rejects(ask(&enroll, &account, bound_to(&own, 3600)).await, "not found");
}

fn world_image() -> Value {
    json!({"apiVersion": "image.macrack.io/v1alpha1", "kind": "MacOSImage", "metadata": {}})
}

#[tokio::test]
async fn the_operator_hands_out_the_rights_of_a_lease_without_escalating() {
    let world = world().await;
    let tenant = world.tenant("handed").await;
    let rack = world.rack(&tenant).await;
    let (mac, node, _) = chassis(&world).await;
    enrolled(&world, name(&mac)).await;
    let instance = tenant.instance("vm", &rack);
    create(&tenant.client, &instance).await.unwrap();
    accepts(patch_status(&world.operator, &instance, json!({"nodeName": node})).await);
    let ((_, role), (_, binding)) = access::lease(name(&mac), tenant.ns(), &["vm"], &["boot".to_owned()]);
    for body in [&role, &binding] {
        let params = PatchParams::apply("macrack-operator").force();
        accepts(api_of(&world.operator, body).patch(name(body), &params, &Patch::Apply(&read(body))).await);
    }
    // more than it has it cannot grant
    let mut more = role.clone();
    more["metadata"]["name"] = json!("more");
    more["rules"] = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}]);
    rejects(create(&world.operator, &more).await, "attempting to grant RBAC permissions not currently held");

    let uid = Api::<Node>::all(world.admin.clone()).get(&node).await.unwrap().metadata.uid;
    let bound =
        BoundObjectReference { api_version: Some("v1".into()), kind: Some("Node".into()), name: Some(node), uid };
    let token =
        world.plane.token("macrack-agents", &format!("macrack-agent-{}", name(&mac)), Some(bound)).await.unwrap();
    let agent = macrack_testkit::client_from(&world.plane.kubeconfig_for(&token).unwrap()).await.unwrap();
    let writes = async || patch_status(&agent, &instance, json!({"guest": {"stage": "Booting"}})).await.is_ok();
    expect::until_effective("the agent's role in the tenant's namespace", SOON, writes).await;
    rejects(patch_status(&agent, &instance, json!({"phase": "Ready"})).await, "[agent-own-part]");
    let others = tenant.instance("another", &rack);
    rejects(patch_status(&agent, &others, json!({"guest": {"stage": "Booting"}})).await, "forbidden");
}
