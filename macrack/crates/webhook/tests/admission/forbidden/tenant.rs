//! What an agent touches in its tenant's namespace.

use serde_json::{Value, json};

use super::{Stage, delete, get, patch, post, row};
use crate::world::pod;

#[tokio::test]
async fn in_a_tenants_namespace_an_agent_touches_what_runs_on_its_mac_alone() {
    let s = Stage::set().await;
    let (mine, theirs) = (&s.tenant, &s.other);
    let booting = || json!({"status": {"guest": {"stage": "Booting"}}});
    let guest = || patch(s.instance(mine, "/vm/status"), booting());
    let running = || patch(s.pod(mine, "/macrack-vm-vm/status"), json!({"status": {"phase": "Running"}}));
    let boot = || get(s.secret(mine, "/boot"));
    let instances = "cannot patch resource \"macosinstances\"";
    let instances_status = "cannot patch resource \"macosinstances/status\"";
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "macrack-vm-vm"}, "target": {"kind": "Node", "name": s.foreign_node}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "macrack-vm-vm", "namespace": mine.ns()}});
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
    let bigger = json!({"spec": {"containers": [{"name": "c", "image": "example.invalid/c", "resources": {"requests": {"cpu": "1m"}}}]}});
    let rows = vec![
        row(
            "an instance on another Mac",
            patch(s.instance(mine, "/moved/status"), booting()),
            "[agent-own-mac]",
            Some("[agent-own-mac]"),
            guest(),
        ),
        row(
            "an instance of another tenant",
            patch(s.instance(theirs, "/theirs/status"), booting()),
            instances_status,
            Some("[agent-own-mac]"),
            guest(),
        ),
        row(
            "the phase of an instance",
            patch(s.instance(mine, "/vm/status"), json!({"status": {"phase": "Ready"}})),
            "[agent-own-part]",
            Some("[agent-own-part]"),
            guest(),
        ),
        row(
            "the Node of an instance",
            patch(s.instance(mine, "/vm/status"), json!({"status": {"nodeName": s.foreign_node}})),
            "[agent-own-part]",
            Some("[agent-own-part]"),
            guest(),
        ),
        row(
            "the spec of an instance",
            patch(s.instance(mine, "/vm"), json!({"spec": {"powerState": "Stopped"}})),
            instances,
            Some("[agent-writes-status]"),
            get(s.instance(mine, "/vm")),
        ),
        row(
            "the finalizers of an instance",
            patch(s.instance(mine, "/vm"), json!({"metadata": {"finalizers": ["instance.macrack.io/vm"]}})),
            instances,
            Some("[agent-writes-status]"),
            guest(),
        ),
        row(
            "the end of an instance",
            delete(s.instance(mine, "/vm")),
            "cannot delete resource \"macosinstances\"",
            Some("[agent-writes-status]"),
            guest(),
        ),
        row(
            "an instance that is not on its Mac",
            get(s.instance(theirs, "/theirs")),
            "cannot get resource \"macosinstances\"",
            None,
            get(s.instance(mine, "/vm")),
        ),
        row(
            "a list of instances",
            get(s.instance(mine, "")),
            "cannot list resource \"macosinstances\"",
            None,
            get(s.instance(mine, "?fieldSelector=metadata.name%3Dvm")),
        ),
        row(
            "a placeholder on another Mac",
            patch(s.pod(mine, "/macrack-vm-moved/status"), json!({"status": {"phase": "Running"}})),
            "[agent-own-pods]",
            Some("[agent-own-pods]"),
            running(),
        ),
        row(
            "a pod of another tenant",
            patch(s.pod(theirs, "/macrack-vm-theirs/status"), json!({"status": {"phase": "Running"}})),
            "cannot patch resource \"pods/status\"",
            Some("[agent-own-pods]"),
            running(),
        ),
        row(
            "the end of a VM that has not stopped",
            patch(s.pod(mine, "/macrack-vm-vm/status"), json!({"status": {"phase": "Failed"}})),
            "[placeholder-never-ends]",
            Some("[placeholder-never-ends]"),
            running(),
        ),
        row(
            "a placeholder's finalizer",
            patch(s.pod(mine, "/macrack-vm-vm/status"), json!({"metadata": {"finalizers": null}})),
            "[agent-no-labels]",
            Some("[agent-no-labels]"),
            running(),
        ),
        row(
            "whose placeholder it is",
            patch(
                s.pod(mine, "/macrack-vm-vm/status"),
                json!({"metadata": {"labels": {"macrack.io/instance-uid": "x"}}}),
            ),
            "[agent-no-labels]",
            Some("[agent-no-labels]"),
            running(),
        ),
        row(
            "a placeholder that nobody deleted",
            delete(s.pod(mine, "/macrack-vm-vm")),
            "[agent-own-pods]",
            Some("[agent-own-pods]"),
            delete(s.pod(mine, "/macrack-vm-going")),
        ),
        row(
            "all pods",
            delete(s.pod(mine, "")),
            "cannot deletecollection resource \"pods\"",
            Some("[agent-own-pods]"),
            running(),
        ),
        row(
            "a pod",
            post(s.pod(mine, ""), pod("macrack-vm-new", mine.ns())),
            "cannot create resource \"pods\"",
            Some("[agent-"),
            running(),
        ),
        row(
            "a pod bound to a Mac",
            post(s.pod(mine, "/macrack-vm-vm/binding"), binding),
            "cannot create resource \"pods/binding\"",
            Some("[agent-writes-status]"),
            get(s.pod(mine, "/macrack-vm-vm")),
        ),
        row(
            "an eviction",
            post(s.pod(mine, "/macrack-vm-vm/eviction"), eviction),
            "cannot create resource \"pods/eviction\"",
            Some("[agent-writes-status]"),
            running(),
        ),
        row(
            "a container to look inside",
            patch(s.pod(mine, "/macrack-vm-vm/ephemeralcontainers"), debug),
            "cannot patch resource \"pods/ephemeralcontainers\"",
            Some("[agent-writes-status]"),
            running(),
        ),
        row(
            "more of the Mac",
            patch(s.pod(mine, "/macrack-vm-vm/resize"), bigger),
            "cannot patch resource \"pods/resize\"",
            Some("[agent-writes-status]"),
            running(),
        ),
        row(
            "a shell in a VM",
            post(s.pod(mine, "/macrack-vm-vm/exec?command=sh&stdout=true"), Value::Null),
            "cannot create resource \"pods/exec\"",
            Some("[agent-nothing-else]"),
            running(),
        ),
        row(
            "a list of pods",
            get(s.pod(mine, "")),
            "cannot list resource \"pods\"",
            None,
            get(s.pod(mine, "?fieldSelector=metadata.name%3Dmacrack-vm-vm")),
        ),
        row("another Secret", get(s.secret(mine, "/private")), "cannot get resource \"secrets\"", None, boot()),
        row(
            "another tenant's Secret of that name",
            get(s.secret(theirs, "/boot")),
            "cannot get resource \"secrets\"",
            None,
            boot(),
        ),
        row("a list of Secrets", get(s.secret(mine, "")), "cannot list resource \"secrets\"", None, boot()),
        row(
            "a watch that would outlive its role",
            get(s.secret(mine, "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dboot")),
            "cannot watch resource \"secrets\"",
            None,
            boot(),
        ),
        row(
            "a list of one Secret",
            get(s.secret(mine, "?fieldSelector=metadata.name%3Dboot")),
            "cannot list resource \"secrets\"",
            None,
            boot(),
        ),
        row(
            "a Secret's content",
            patch(s.secret(mine, "/boot"), json!({"stringData": {"script": "false"}})),
            "cannot patch resource \"secrets\"",
            Some("[agent-nothing-else]"),
            boot(),
        ),
        row(
            "the operator's Secrets",
            get("/api/v1/namespaces/macrack-system/secrets"),
            "cannot list resource \"secrets\"",
            None,
            boot(),
        ),
    ];
    s.holds(rows).await;
}
