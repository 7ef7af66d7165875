use std::fs;

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn node(status: Value) -> MacNode {
    let node = json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": "h4xk29q0lw", "uid": "m1" },
        "spec": { "serial": "H4XK29Q0LW", "nodeClassName": "mini" }, "status": status,
    });
    serde_json::from_value(node).unwrap()
}

fn lease(uid: &str) -> Value {
    json!({
        "namespace": "team-a", "name": "ios", "uid": uid,
        "boundAt": "2026-03-02T09:00:00Z", "earliestReleaseAt": "2026-03-03T09:00:00Z",
    })
}

fn leased(uid: &str) -> MacNode {
    node(json!({ "leaseRef": lease(uid) }))
}

fn wiped(order: &str) -> MacNode {
    let receipt = json!({
        "startedAt": "2026-03-02T10:00:00Z", "finishedAt": "2026-03-02T10:00:01Z", "agentVersion": "0.1.0",
        "items": [{ "what": "disks", "count": 2, "bytes": 7, "verifiedBy": "listing" }],
    });
    node(json!({
        "leaseRef": lease("one"),
        "slots": [{ "slot": 0, "uid": "i1", "namespace": "team-a", "name": "build-1", "order": order }],
        "agent": { "version": "0.1.0", "bootID": "b", "vms": [{ "uid": "i1", "state": "Wiped", "wipe": receipt }] },
    }))
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn whats(path: &Path) -> Vec<String> {
    lines(path).iter().map(|line| line["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_lease_is_told_from_when_to_when_and_a_wipe_with_its_receipt_each_once_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let passes = [
        node(json!({})),
        leased("one"),
        leased("one"),
        wiped("Wipe"),
        wiped("Wipe"),
        leased("one"),
        node(json!({})),
        leased("two"),
        // released and bound again while nobody looked
        leased("three"),
    ];
    for pass in passes {
        // killed after every pass: nothing is lost, nothing told twice
        Audit::open(&path).unwrap().observe(&pass, NOW).unwrap();
    }
    let expected =
        ["LeaseBound", "Wiped", "LeaseReleased", "LeaseBound", "LeaseReleased", "LeaseBound"].map(str::to_owned);
    assert_eq!(whats(&path), expected);
    let lines = lines(&path);
    assert_eq!(lines[1]["receipt"]["items"][0]["what"], "disks");
    assert_eq!(lines[1]["instance"]["name"], "build-1");
    assert_eq!(
        (&lines[2]["serial"], &lines[2]["lease"]["boundAt"]),
        (&json!("H4XK29Q0LW"), &json!("2026-03-02T09:00:00Z"))
    );
    assert_eq!(
        fs::metadata(&path).map(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()) & 0o777).unwrap(),
        0o600
    );
}

#[test]
fn a_mac_node_that_was_made_again_ends_no_lease_until_another_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = Audit::open(&path).unwrap();
    let again = |mut node: MacNode| {
        node.metadata.uid = Some("m2".to_owned());
        node
    };
    for pass in [leased("one"), again(node(json!({}))), again(leased("one"))] {
        audit.observe(&pass, NOW).unwrap();
    }
    assert_eq!(whats(&path), ["LeaseBound"]);
    audit.observe(&again(leased("two")), NOW).unwrap();
    assert_eq!(whats(&path), ["LeaseBound", "LeaseReleased", "LeaseBound"]);
}

#[test]
fn what_is_not_wiped_by_order_is_no_receipt() {
    assert_eq!(news(&Known::default(), &wiped("Stop"), NOW).len(), 1, "the lease alone");
}

#[test]
fn a_changed_removed_or_moved_line_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = Audit::open(&path).unwrap();
    for pass in [leased("one"), wiped("Wipe"), node(json!({}))] {
        audit.observe(&pass, NOW).unwrap();
    }
    let whole = fs::read_to_string(&path).unwrap();
    let all: Vec<&str> = whole.lines().collect();
    for (what, text, line) in [
        ("changed", whole.replacen("team-a", "team-b", 1), 2),
        ("removed", [all[0], all[2]].join("\n"), 2),
        ("moved", [all[1], all[0], all[2]].join("\n"), 1),
        ("the first removed", [all[1], all[2]].join("\n"), 1),
        ("two that are no JSON", format!("{whole}{{\n{{\n"), 5),
        ("one that is no JSON, and nobody says so", format!("{{\n{whole}"), 2),
    ] {
        fs::write(&path, text).unwrap();
        let refused = Audit::open(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("line {line} ")) && refused.contains("as evidence"), "{what}: {refused}");
    }
}

#[test]
fn a_line_that_a_crash_cut_stays_as_it_is_and_the_trail_goes_on_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    Audit::open(&path).unwrap().observe(&leased("one"), NOW).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{whole}{{\"at\":\"2026")).unwrap();
    Audit::open(&path).unwrap().observe(&node(json!({})), NOW).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let all: Vec<&str> = text.lines().collect();
    assert_eq!((all.len(), all[1]), (4, "{\"at\":\"2026"), "{text}");
    assert!(all[2].contains("TornLine") && all[3].contains("LeaseReleased"), "{text}");
    Audit::open(&path).unwrap();
}
