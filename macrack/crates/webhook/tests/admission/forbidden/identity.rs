//! Tokens, names, certificates, events: who an agent can be.

use macrack_testkit::expect::{self, accepts};
use serde_json::{Value, json};

use super::{Ask, Stage, delete, get, hold, patch, post, row, send};
use crate::{
    agents::{bound_to, reported},
    world::{SOON, create},
};

#[tokio::test]
async fn an_agent_asks_for_its_own_tokens_and_is_nobody_else() {
    let s = Stage::set().await;
    let own = || post(s.token("agent"), s.asking(bound_to(&s.node, 86_400)));
    let of = |account: &str, spec: Value| {
        post(format!("/api/v1/namespaces/macrack-agents/serviceaccounts/{account}/token"), s.asking(spec))
    };
    let agent = format!("macrack-agent-{}", s.own);
    let other = format!("macrack-agent-{}", s.foreign);
    let tokens = "cannot create resource \"serviceaccounts/token\"";
    let poses = |user: &str| Ask { poses_as: Some(user.to_owned()), ..get(s.kube_node("")) };
    let asked = format!("macrack-serving-{}", s.own);
    let request = |name: &str, signer: &str, usage: &str| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"signerName": signer, "usages": [usage], "request": CSR},
        })
    };
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let serving = "kubernetes.io/kubelet-serving";
    accepts(create(&s.world.admin, &request(&asked, serving, "server auth")).await);
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}});
    let event = |kind: &str, about: &str, by: &str| {
        post(
            "/api/v1/namespaces/default/events",
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "x-"},
            "involvedObject": {"apiVersion": "v1", "kind": kind, "name": about}, "reason": "X", "message": "x",
            "action": "X", "type": "Normal", "eventTime": "2026-03-02T09:00:00.000000Z",
            "reportingComponent": by, "reportingInstance": s.node}),
        )
    };
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "mine"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": agent, "namespace": "macrack-agents"}]});
    let policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/macrack-agent-mac";
    let rows = vec![
        row(
            "a token bound to nothing",
            of(&agent, json!({"audiences": [], "expirationSeconds": 3600})),
            "[token-bound-to-node]",
            Some("[token-bound-to-node]"),
            own(),
        ),
        row(
            "a token bound to another Node",
            of(&agent, bound_to(&s.foreign_node, 3600)),
            "[token-bound-to-node]",
            Some("[token-bound-to-node]"),
            own(),
        ),
        row(
            "a token for ten years",
            of(&agent, bound_to(&s.node, 315_360_000)),
            "[token-one-day]",
            Some("[token-one-day]"),
            own(),
        ),
        row("a token of another agent", of(&other, bound_to(&s.node, 3600)), tokens, Some("[own-token]"), own()),
        row(
            "a token of its enrolment",
            post(s.token("enroll"), s.asking(bound_to(&s.node, 3600))),
            tokens,
            Some("[own-token]"),
            own(),
        ),
        row(
            "a token of the operator",
            post(
                "/api/v1/namespaces/macrack-system/serviceaccounts/macrack-operator/token",
                s.asking(bound_to(&s.node, 3600)),
            ),
            tokens,
            Some("[own-token]"),
            own(),
        ),
        row(
            "another account",
            post(
                "/api/v1/namespaces/macrack-agents/serviceaccounts",
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mine"}}),
            ),
            "cannot create resource \"serviceaccounts\"",
            Some("[agent-nothing-else]"),
            own(),
        ),
        row(
            "the name of another agent",
            poses(&format!("system:serviceaccount:macrack-agents:{other}")),
            "cannot impersonate",
            None,
            get(s.kube_node("")),
        ),
        row("the name of an admin", poses("kubernetes-admin"), "cannot impersonate", None, get(s.kube_node(""))),
        row(
            "more rights",
            post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
            "cannot create resource \"clusterrolebindings\"",
            Some("[agent-nothing-else]"),
            own(),
        ),
        row(
            "the end of a policy",
            delete(policy),
            "cannot delete resource \"validatingadmissionpolicies\"",
            None,
            own(),
        ),
        row(
            "a client certificate",
            post(requests, request(&asked, "kubernetes.io/kube-apiserver-client", "client auth")),
            "[serving-only]",
            Some("[serving-only]"),
            own(),
        ),
        row(
            "a node's client certificate",
            post(requests, request(&asked, "kubernetes.io/kube-apiserver-client-kubelet", "client auth")),
            "[serving-only]",
            Some("[serving-only]"),
            own(),
        ),
        row(
            "a serving certificate for clients",
            post(requests, request(&asked, serving, "client auth")),
            "[serving-only]",
            Some("[serving-only]"),
            own(),
        ),
        row(
            "another Mac's certificate",
            post(requests, request("macrack-serving-other", serving, "server auth")),
            "[own-certificate]",
            Some("[own-certificate]"),
            own(),
        ),
        row(
            "its own approval",
            patch(format!("{requests}/{asked}/approval"), approved),
            "cannot patch resource \"certificatesigningrequests/approval\"",
            Some("[own-certificate]"),
            own(),
        ),
        row(
            "an event about another Node",
            event("Node", &s.foreign_node, "macrack-agent"),
            "cannot create resource \"events\"",
            Some("[agent-own-events]"),
            own(),
        ),
        row(
            "an event in the operator's name",
            event("Node", &s.node, "macrack-operator"),
            "cannot create resource \"events\"",
            Some("[agent-own-events]"),
            own(),
        ),
        row(
            "a namespace",
            post("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}})),
            "cannot create resource \"namespaces\"",
            Some("[agent-nothing-else]"),
            own(),
        ),
        row(
            "a ConfigMap",
            post(
                "/api/v1/namespaces/macrack-agents/configmaps",
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}),
            ),
            "cannot create resource \"configmaps\"",
            Some("[agent-nothing-else]"),
            own(),
        ),
    ];
    s.holds(rows).await;
}

#[tokio::test]
async fn an_enrolment_account_asks_for_one_token_and_does_nothing_else() {
    let s = Stage::set().await;
    let account = format!("macrack-enroll-{}", s.own);
    let enroll = s.world.plane.as_service_account("macrack-agents", &account).await.unwrap();
    let user = format!("system:serviceaccount:macrack-agents:{account}");
    let almighty = s.world.plane.as_user_with(&user, &["system:masters"], Default::default()).await.unwrap();
    let own = || post(s.token("agent"), s.asking(bound_to(&s.node, 86_400)));
    let status = json!({"status": {"phase": "Running"}});
    let rows = vec![
        row(
            "the Node's status",
            patch(s.kube_node("/status"), status),
            "cannot patch resource \"nodes/status\"",
            Some("[agent-nothing-else]"),
            own(),
        ),
        row(
            "the Mac's report",
            patch(s.mac_node("/status"), json!({"status": {"agent": reported()}})),
            "cannot patch resource \"macnodes/status\"",
            // macrack-owned refuses it too, and whichever is first is told
            Some("denied request: ["),
            own(),
        ),
        row(
            "the heartbeat",
            patch(s.heartbeat(&s.node), json!({"spec": {"leaseDurationSeconds": 1}})),
            "cannot patch resource \"leases\"",
            Some("[agent-nothing-else]"),
            own(),
        ),
        row(
            "its own renewal",
            post(s.token("enroll"), s.asking(bound_to(&s.node, 3600))),
            "cannot create resource \"serviceaccounts/token\"",
            Some("[own-token]"),
            own(),
        ),
        row(
            "a token for ten years",
            post(s.token("agent"), s.asking(bound_to(&s.node, 315_360_000))),
            "[token-one-day]",
            Some("[token-one-day]"),
            own(),
        ),
        row(
            "a token bound to nothing",
            post(s.token("agent"), s.asking(json!({"audiences": [], "expirationSeconds": 3600}))),
            "[token-bound-to-node]",
            Some("[token-bound-to-node]"),
            own(),
        ),
        row(
            "a Secret",
            get(s.secret(&s.tenant, "/boot")),
            "cannot get resource \"secrets\"",
            None,
            get(s.kube_node("")),
        ),
        row("who leases the Mac", get(s.mac_node("")), "cannot get resource \"macnodes\"", None, get(s.kube_node(""))),
    ];
    let asks = async || send(&enroll, &own()).await.is_ok();
    expect::until_effective("the enrolment's role", SOON, asks).await;
    hold(&enroll, &almighty, rows).await;
}

/// A PKCS#10 request for CN system:node:x, which is all that its form must be: none of these is ever approved.
const CSR: &str = include_str!("request.csr");
