use serde_json::{Value, json};

use super::*;

const LEASE: &str = "11111111-1111-1111-1111-111111111111";
const EARLIER_LEASE: &str = "22222222-2222-2222-2222-222222222222";

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn instance(name: &str, class: &str) -> MacOSInstance {
    read(json!({
        "metadata": {"namespace": "team-a", "name": name},
        "spec": {"leaseName": "ios-ci", "instanceClassName": class, "imageName": "tahoe"},
    }))
}

/// Bound at nine, a day's floor.
fn lease(metadata: Value, status: Value) -> MacNodeLease {
    let mut meta = json!({"namespace": "team-a", "name": "ios-ci", "uid": LEASE});
    let mut state = json!({
        "phase": "Bound", "serial": "H4XK29Q0LW",
        "boundAt": "2026-03-02T09:00:00Z", "earliestReleaseAt": "2026-03-03T09:00:00Z",
    });
    for (into, from) in [(&mut meta, metadata), (&mut state, status)] {
        for (key, value) in from.as_object().unwrap() {
            into[key] = value.clone();
        }
    }
    read(json!({"metadata": meta, "spec": {"nodeClassName": "mini"}, "status": state}))
}

fn bound() -> MacNodeLease {
    lease(json!({}), json!({}))
}

fn deleted_at_three_hours() -> MacNodeLease {
    lease(json!({"deletionTimestamp": "2026-03-02T12:00:00Z"}), json!({"phase": "Held"}))
}

fn class(memory: &str, disk: &str) -> InstanceClass {
    read(json!({"metadata": {"name": "c"}, "spec": {"cpuCores": 6, "memory": memory, "disk": disk}}))
}

fn image(phase: &str) -> MacOSImage {
    read(json!({
        "metadata": {"name": "tahoe"},
        "spec": {"source": {"oci": {"image": "r/p@sha256:0"}}, "contents": []},
        "status": {"phase": phase, "conditions": [{
            "type": "Ready", "status": "False", "lastTransitionTime": "2026-03-02T09:00:00Z",
            "reason": "NotFound", "message": "the store has no such image",
        }]},
    }))
}

fn good() -> Facts {
    let node_class: MacNodeClass = read(json!({"metadata": {"name": "mini"}, "spec": {
        "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
        "memory": "64Gi", "storage": "1T", "linkSpeed": "10G"}}));
    Facts {
        instance: instance("build-3", "half"),
        now: "2026-03-02T10:00:00Z".parse().unwrap(),
        lease: Seen::Present(bound()),
        others: Seen::Present(vec![]),
        classes: [
            ("half", class("28Gi", "250G")),
            ("large", class("40Gi", "250G")),
            ("wide", class("8Gi", "600G")),
            ("huge", class("64Gi", "250G")),
        ]
        .map(|(name, class)| (name.to_owned(), Seen::Present(class)))
        .into(),
        node_class: Seen::Present(node_class),
        image: Seen::Present(image("Ready")),
        host_version: Seen::Present("26.1".into()),
    }
}

fn says(facts: &Facts) -> String {
    match admit(facts) {
        Verdict::Allow { warnings } => format!("allowed {}", warnings.join("|")),
        Verdict::Deny(refusal) => refusal.to_string(),
    }
}

fn with_lease(lease: MacNodeLease, now: &str) -> String {
    says(&Facts { lease: Seen::Present(lease), now: now.parse().unwrap(), ..good() })
}

fn beside(others: Vec<MacOSInstance>) -> Facts {
    Facts { others: Seen::Present(others), ..good() }
}

fn with_status(mut instance: MacOSInstance, status: Value) -> MacOSInstance {
    instance.status = Some(read(status));
    instance
}

#[test]
fn a_foreign_lease_and_a_missing_one_read_the_same() {
    let said = says(&Facts { lease: Seen::Absent, ..good() });
    assert_eq!(
        said,
        "[lease-in-namespace] macosinstance team-a/build-3: namespace team-a has no lease \"ios-ci\"; \
         create one, or correct spec.leaseName"
    );
}

#[test]
fn a_lease_takes_instances_from_its_binding_to_its_end() {
    let pending = json!({"phase": "Pending", "serial": null, "boundAt": null, "earliestReleaseAt": null,
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-03-02T09:00:00Z",
                        "reason": "NoChassisFree", "message": "all 4 are leased"}]});
    let deletion = json!({"deletionTimestamp": "2026-03-02T12:00:00Z"});
    let end = |reason: &str| json!({"end": {"reason": reason, "at": "2026-03-02T09:30:00Z"}});
    let mut short = bound();
    short.spec.maximum_duration = Some("48h".into());
    let mut garbled = bound();
    garbled.spec.maximum_duration = Some("two days".into());
    for (case, lease, now, expected) in [
        ("bound", bound(), "2026-03-02T10:00:00Z", "allowed "),
        ("bound, long past its floor", bound(), "2026-04-02T10:00:00Z", "allowed "),
        ("held", deleted_at_three_hours(), "2026-03-02T19:00:00Z", "allowed "),
        ("held, a second before the floor", deleted_at_three_hours(), "2026-03-03T08:59:59Z", "allowed "),
        (
            "held, at the floor",
            deleted_at_three_hours(),
            "2026-03-03T09:00:00Z",
            "[lease-ended] macosinstance team-a/build-3: lease ios-ci was yours until 2026-03-03T09:00:00Z, its Mac is being given back; make a new lease",
        ),
        (
            "releasing by another's clock",
            lease(deletion.clone(), json!({"phase": "Releasing"})),
            "2026-03-03T08:59:59Z",
            "[lease-ended]",
        ),
        (
            "pending",
            lease(json!({}), pending.clone()),
            "2026-03-02T10:00:00Z",
            "[lease-bound] macosinstance team-a/build-3: lease ios-ci is Pending and has no Mac yet (all 4 are leased); wait until it is bound",
        ),
        (
            "pending and deleted",
            lease(deletion, pending),
            "2026-03-02T13:00:00Z",
            "[lease-ended] macosinstance team-a/build-3: lease ios-ci was deleted before it had a Mac; make a new lease",
        ),
        (
            "expired",
            lease(json!({}), end("Expired")),
            "2026-03-02T10:00:00Z",
            "[lease-ended] macosinstance team-a/build-3: lease ios-ci expired at 2026-03-02T09:30:00Z; make a new lease",
        ),
        (
            "broken",
            lease(json!({}), end("Broken")),
            "2026-03-02T10:00:00Z",
            "[lease-ended] macosinstance team-a/build-3: lease ios-ci was broken, its Mac was retired, at 2026-03-02T09:30:00Z",
        ),
        ("before its maximum", short.clone(), "2026-03-04T08:59:59Z", "allowed "),
        (
            "at its maximum",
            short,
            "2026-03-04T09:00:00Z",
            "[lease-ended] macosinstance team-a/build-3: lease ios-ci has reached spec.maximumDuration at 2026-03-04T09:00:00Z",
        ),
        ("a stored maximum that is no duration ends nothing", garbled, "2026-03-04T09:00:00Z", "allowed "),
    ] {
        let said = with_lease(lease, now);
        assert!(said.starts_with(expected), "{case}: {said}");
    }
}

#[test]
fn a_third_is_refused_and_the_two_are_named() {
    let facts = beside(vec![instance("build-2", "half"), instance("build-1", "half")]);
    assert_eq!(
        says(&facts),
        "[two-per-lease] macosinstance team-a/build-3: lease ios-ci already holds build-1 and build-2; \
         a Mac carries two macOS VMs, never more; delete one of them, or lease another Mac"
    );
}

#[test]
fn only_those_that_hold_a_slot_or_will_are_counted() {
    let one = || instance("build-1", "half");
    let mut going = instance("build-2", "huge");
    going.metadata.deletion_timestamp = Some(crate::clock::time("2026-03-02T09:30:00Z".parse().unwrap()));
    let full = with_status(instance("build-2", "huge"), json!({"leaseFull": true}));
    let earlier = with_status(instance("build-2", "huge"), json!({"leaseUID": EARLIER_LEASE}));
    let mut elsewhere = instance("build-2", "huge");
    elsewhere.spec.lease_name = "other".into();
    for (case, other) in [
        ("on its way out", going),
        ("lost the race", full),
        ("of an earlier lease of that name", earlier),
        ("of another lease", elsewhere),
        ("the very same, asked for again", instance("build-3", "huge")),
    ] {
        assert_eq!(says(&beside(vec![one(), other])), "allowed ", "{case}");
    }
    for (case, other) in [
        ("stopped", with_status(instance("build-2", "half"), json!({"phase": "Stopped", "leaseUID": LEASE}))),
        ("failed", with_status(instance("build-2", "half"), json!({"phase": "Failed", "leaseUID": LEASE}))),
    ] {
        let said = says(&beside(vec![one(), other]));
        assert!(said.starts_with("[two-per-lease]"), "{case}: {said}");
    }
}

#[test]
fn what_does_not_fit_beside_the_reserve_and_the_holder_is_refused() {
    let new = |class: &str, others| Facts { instance: instance("build-3", class), ..beside(others) };
    for (case, facts, expected) in [
        ("two halves", new("half", vec![instance("build-1", "half")]), "allowed "),
        ("a large one alone", new("large", vec![]), "allowed "),
        (
            "a huge one on a small Mac",
            new("huge", vec![]),
            "[class-fits] macosinstance team-a/build-3: class huge takes 64Gi memory, a mini leaves 56Gi to its VMs; choose a smaller InstanceClass",
        ),
        (
            "a large one beside a half",
            new("large", vec![instance("build-1", "half")]),
            "[class-fits] macosinstance team-a/build-3: class large beside build-1 takes 68Gi memory, a mini leaves 56Gi",
        ),
        (
            "two wide ones",
            new("wide", vec![instance("build-1", "wide")]),
            "[class-fits] macosinstance team-a/build-3: class wide beside build-1 takes 1200G disk, a mini leaves 850G",
        ),
        (
            "no such class",
            Facts { classes: [("half".to_owned(), Seen::Absent)].into(), ..good() },
            "[class-exists] macosinstance team-a/build-3: there is no InstanceClass \"half\"; correct spec.instanceClassName",
        ),
        (
            "a class of the holder that is gone",
            Facts {
                classes: [("half".to_owned(), Seen::Present(class("28Gi", "250G"))), ("lost".to_owned(), Seen::Absent)]
                    .into(),
                ..beside(vec![instance("build-1", "lost")])
            },
            "[class-fits] macosinstance team-a/build-3: InstanceClass lost of build-1 does not exist",
        ),
        (
            "a stored size that is no quantity",
            Facts { classes: [("half".to_owned(), Seen::Present(class("much", "250G")))].into(), ..good() },
            "[class-fits] macosinstance team-a/build-3: spec.memory of InstanceClass half is \"much\", which is no quantity",
        ),
        (
            "no node class",
            Facts { node_class: Seen::Absent, ..good() },
            "[class-fits] macosinstance team-a/build-3: MacNodeClass mini of the leased Mac does not exist",
        ),
    ] {
        let said = says(&facts);
        assert!(said.starts_with(expected), "{case}: {said}");
    }
}

#[test]
fn an_image_that_is_not_there_or_not_ready_is_refused() {
    let mut going = image("Ready");
    going.metadata.deletion_timestamp = Some(crate::clock::time("2026-03-02T09:30:00Z".parse().unwrap()));
    for (case, seen, expected) in [
        (
            "missing",
            Seen::Absent,
            "[image-ready] macosinstance team-a/build-3: there is no MacOSImage \"tahoe\"; correct spec.imageName",
        ),
        (
            "failed",
            Seen::Present(image("Failed")),
            "[image-ready] macosinstance team-a/build-3: MacOSImage tahoe is not Ready (NotFound: the store has no such image); wait for it",
        ),
        ("pending", Seen::Present(image("Pending")), "[image-ready]"),
        (
            "going",
            Seen::Present(going),
            "[image-ready] macosinstance team-a/build-3: MacOSImage tahoe is being deleted",
        ),
    ] {
        let said = says(&Facts { image: seen, ..good() });
        assert!(said.starts_with(expected), "{case}: {said}");
    }
}

#[test]
fn nothing_is_admitted_because_a_read_failed() {
    let blind = || "etcd is away".to_owned();
    for (case, facts) in [
        ("lease", Facts { lease: Seen::Unknown(blind()), ..good() }),
        ("others", Facts { others: Seen::Unknown(blind()), ..good() }),
        ("class", Facts { classes: [("half".to_owned(), Seen::Unknown(blind()))].into(), ..good() }),
        ("a class nobody looked up", Facts { classes: BTreeMap::new(), ..good() }),
        ("node class", Facts { node_class: Seen::Unknown(blind()), ..good() }),
        ("image", Facts { image: Seen::Unknown(blind()), ..good() }),
    ] {
        let Verdict::Deny(refusal) = admit(&facts) else { panic!("{case}: allowed") };
        assert!(refusal.is_for_now(), "{case}: {refusal}");
        assert!(refusal.to_string().ends_with("; nothing was changed, try again"), "{case}: {refusal}");
    }
}

#[test]
fn a_golden_newer_than_the_leased_mac_is_refused_before_anything_is_pulled() {
    let with = |host: Seen<String>, minimum: Option<&str>| {
        let mut image = image("Ready");
        image.spec.minimum_host_version = minimum.map(str::to_owned);
        says(&Facts { image: Seen::Present(image), host_version: host, ..good() })
    };
    for (host, minimum, expected) in [
        ("15.5", Some("15.0"), "allowed "),
        (
            "15.5",
            Some("26.0"),
            "[host-too-old] macosinstance team-a/build-3: MacOSImage tahoe needs macOS 26.0 or newer on its Mac, which \
             has 15.5; choose another image, or ask an admin to upgrade the Mac",
        ),
        ("9.9", Some("15.0"), "[host-too-old]"),
        ("15.10", Some("15.9"), "allowed "),
        ("15", Some("15.0.0"), "allowed "),
        ("26.0-beta3", Some("26.0"), "[host-too-old]"),
        (
            "",
            Some("15.0"),
            "[host-too-old] macosinstance team-a/build-3: MacOSImage tahoe cannot be judged: its Mac does",
        ),
        ("15.5", None, "allowed "),
        ("15.5", Some("fifteen"), "[host-too-old]"),
    ] {
        let said = with(Seen::Present(host.into()), minimum);
        assert!(said.starts_with(expected), "host {host:?}, minimum {minimum:?}: {said}");
    }
    assert_eq!(with(Seen::Absent, Some("26.0")), "allowed ", "the agent judges once it has said what it runs");
    let said = with(Seen::Unknown("timeout".into()), Some("26.0"));
    assert!(said.starts_with("[try-again] macosinstance team-a/build-3: "), "{said}");
}

#[test]
fn a_golden_of_a_later_macos_than_the_leased_mac_is_refused_too() {
    let mut image = image("Ready");
    image.spec.contents = read(json!([{"kind": "macOS", "version": "26.1"}]));
    let said = says(&Facts { image: Seen::Present(image), host_version: Seen::Present("15.6".into()), ..good() });
    assert!(said.starts_with("[host-too-old]") && said.contains("needs macOS 26 or newer"), "{said}");
}
