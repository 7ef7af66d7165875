//! Its own Node, heartbeat and MacNode.

use serde_json::{Value, json};

use super::{Stage, delete, get, patch, post, row};
use crate::{
    agents::reported,
    world::{image, moment},
};

#[tokio::test]
async fn of_its_node_and_heartbeat_an_agent_writes_its_own_status_alone() {
    let s = Stage::set().await;
    let room = |n: &str| json!({"macrack.io/macos-vm": n, "cpu": "14", "memory": "64Gi", "pods": "110"});
    let alive = || patch(s.kube_node("/status"), json!({"status": {"phase": "Running"}}));
    let two = || patch(s.kube_node("/status"), json!({"status": {"capacity": room("2"), "allocatable": room("2")}}));
    let renew = || {
        let body = json!({"spec": {"holderIdentity": s.node, "leaseDurationSeconds": 40, "renewTime": "2026-03-02T09:00:00.000000Z"}});
        patch(s.heartbeat(&s.node), body)
    };
    let theirs = |sub: &str| format!("/api/v1/nodes/{}{sub}", s.foreign_node);
    let labels = json!({"metadata": {"labels": {"macrack.io/lease": "mine"}}});
    let (nodes, status) = ("cannot patch resource \"nodes\"", "cannot patch resource \"nodes/status\"");
    let rows = vec![
        row(
            "another Node's status",
            patch(theirs("/status"), json!({"status": {"phase": "Running"}})),
            status,
            Some("[agent-own-node]"),
            alive(),
        ),
        row(
            "labels by way of status",
            patch(s.kube_node("/status"), labels.clone()),
            "[agent-no-labels]",
            Some("[agent-no-labels]"),
            alive(),
        ),
        row(
            "another's labels by way of status",
            patch(theirs("/status"), labels.clone()),
            status,
            Some("[agent-own-node]"),
            alive(),
        ),
        row("labels", patch(s.kube_node(""), labels), nodes, Some("[agent-writes-status]"), alive()),
        row(
            "taints",
            patch(s.kube_node(""), json!({"spec": {"taints": null}})),
            nodes,
            Some("[agent-writes-status]"),
            get(s.kube_node("")),
        ),
        row(
            "the cordon",
            patch(s.kube_node(""), json!({"spec": {"unschedulable": true}})),
            nodes,
            Some("[agent-writes-status]"),
            alive(),
        ),
        row(
            "annotations",
            patch(s.kube_node("/status"), json!({"metadata": {"annotations": {"macrack.io/cordoned": "x"}}})),
            "[agent-no-labels]",
            Some("[agent-no-labels]"),
            alive(),
        ),
        row(
            "a capacity of three",
            patch(s.kube_node("/status"), json!({"status": {"capacity": room("3")}})),
            "[two-per-mac]",
            Some("[two-per-mac]"),
            two(),
        ),
        row(
            "three allocatable",
            patch(s.kube_node("/status"), json!({"status": {"allocatable": room("3")}})),
            "[two-per-mac]",
            Some("[two-per-mac]"),
            two(),
        ),
        row(
            "the deletion of its own Node",
            delete(s.kube_node("")),
            "cannot delete resource \"nodes\"",
            Some("[agent-writes-status]"),
            alive(),
        ),
        row(
            "a Node",
            post("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "macrack-new"}})),
            "cannot create resource \"nodes\"",
            Some("[agent-"),
            alive(),
        ),
        row("what other Nodes say", get(theirs("")), "cannot get resource \"nodes\"", None, get(s.kube_node(""))),
        row("a list of Nodes", get("/api/v1/nodes"), "cannot list resource \"nodes\"", None, get(s.kube_node(""))),
        row(
            "its kubelet port by way of the API server",
            get(s.kube_node("/proxy/metrics")),
            "cannot get resource \"nodes/proxy\"",
            Some("[agent-nothing-else]"),
            alive(),
        ),
        row(
            "another's heartbeat",
            patch(s.heartbeat(&s.foreign_node), json!({"spec": {"leaseDurationSeconds": 40}})),
            "cannot patch resource \"leases\"",
            Some("[agent-own-node]"),
            renew(),
        ),
        row(
            "its heartbeat in another's name",
            patch(s.heartbeat(&s.node), json!({"spec": {"holderIdentity": "another"}})),
            "[agent-own-node]",
            Some("[agent-own-node]"),
            renew(),
        ),
        row(
            "the end of its heartbeat",
            delete(s.heartbeat(&s.node)),
            "cannot delete resource \"leases\"",
            Some("[agent-writes-status]"),
            renew(),
        ),
        row(
            "another Lease",
            post(
                "/apis/coordination.k8s.io/v1/namespaces/default/leases",
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}),
            ),
            "cannot create resource \"leases\"",
            Some("[agent-"),
            renew(),
        ),
    ];
    s.holds(rows).await;
}

#[tokio::test]
async fn of_its_mac_node_an_agent_writes_its_report_alone() {
    let s = Stage::set().await;
    let report = || patch(s.mac_node("/status"), json!({"status": {"agent": reported()}}));
    let status = |status: Value| patch(s.mac_node("/status"), json!({ "status": status }));
    let theirs = format!("/apis/rack.macrack.io/v1alpha1/macnodes/{}/status", s.foreign);
    let uid = "11111111-1111-1111-1111-111111111111";
    let lease_ref =
        json!({"namespace": "a", "name": "l", "uid": uid, "boundAt": moment(0), "earliestReleaseAt": moment(24)});
    let slots = json!([{"slot": 0, "uid": uid, "namespace": "a", "name": "n", "order": "Wipe"}]);
    let own_part = "[agent-own-part]";
    let node = "cannot patch resource \"macnodes\"";
    let rows = vec![
        row(
            "another Mac's report",
            patch(theirs.clone(), json!({"status": {"agent": reported()}})),
            "cannot patch resource \"macnodes/status\"",
            Some("[agent-own-mac]"),
            report(),
        ),
        row("the phase", status(json!({"phase": "Ready"})), own_part, Some(own_part), report()),
        row("who holds it", status(json!({"leaseRef": lease_ref})), own_part, Some(own_part), report()),
        row("what runs on it", status(json!({"slots": slots})), own_part, Some(own_part), report()),
        row(
            "the end of its quarantine",
            status(json!({"quarantine": [{"reason": "ForeignVM", "since": moment(0), "bootID": "b"}]})),
            own_part,
            Some(own_part),
            report(),
        ),
        row(
            "its conditions",
            status(
                json!({"conditions": [{"type": "Leasable", "status": "True", "reason": "Mine", "message": "", "lastTransitionTime": moment(0)}]}),
            ),
            own_part,
            Some(own_part),
            report(),
        ),
        row(
            "a reboot",
            status(json!({"reboot": {"reason": "QuotaStuck", "requestedAt": moment(0)}})),
            own_part,
            Some(own_part),
            report(),
        ),
        row(
            "its finalizers",
            patch(s.mac_node(""), json!({"metadata": {"finalizers": ["rack.macrack.io/leased"]}})),
            node,
            Some("[agent-writes-status]"),
            report(),
        ),
        row(
            "its own approval of a reboot",
            patch(s.mac_node(""), json!({"spec": {"approvedReboot": moment(0)}})),
            node,
            Some("[agent-writes-status]"),
            report(),
        ),
        row(
            "the end of its retirement",
            patch(s.mac_node(""), json!({"spec": {"retirement": null}})),
            node,
            Some("[agent-writes-status]"),
            report(),
        ),
        row(
            "its end",
            delete(s.mac_node("")),
            "cannot delete resource \"macnodes\"",
            Some("[agent-writes-status]"),
            report(),
        ),
        row(
            "what others lease",
            get("/apis/rack.macrack.io/v1alpha1/macnodes"),
            "cannot list resource \"macnodes\"",
            None,
            get(s.mac_node("")),
        ),
        row(
            "the leases of its tenant",
            get(format!("/apis/rack.macrack.io/v1alpha1/namespaces/{}/macnodeleases", s.tenant.ns())),
            "cannot list resource \"macnodeleases\"",
            None,
            get("/apis/image.macrack.io/v1alpha1/macosimages"),
        ),
        row(
            "an image",
            post("/apis/image.macrack.io/v1alpha1/macosimages", image()),
            "cannot create resource \"macosimages\"",
            Some("[agent-writes-status]"),
            get("/apis/image.macrack.io/v1alpha1/macosimages"),
        ),
        row(
            "the settings",
            post(
                "/apis/config.macrack.io/v1alpha1/rackconfigs",
                json!({"apiVersion": "config.macrack.io/v1alpha1", "kind": "RackConfig", "metadata": {"name": "default"}, "spec": {}}),
            ),
            "cannot create resource \"rackconfigs\"",
            Some("[agent-writes-status]"),
            get("/apis/config.macrack.io/v1alpha1/rackconfigs"),
        ),
    ];
    s.holds(rows).await;
}
