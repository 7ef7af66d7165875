//! `MacOSImage`: a golden is nobody's in particular, one per pair of macOS and Xcode, and its Xcode runs on its macOS.

use std::collections::BTreeSet;

use kube::ResourceExt;
use macrack_api::{MacOSImage, MacOSImageSpec};

use super::{
    Refusal, Subject, Verdict,
    version::{Runs, parts, xcode_on_macos},
};
use crate::seen::Seen;

/// What is known when a MacOSImage is created or its spec changes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// As it is asked for.
    pub image: MacOSImage,
    /// As it was, on update.
    pub old: Option<MacOSImage>,
    /// Every other MacOSImage.
    pub others: Seen<Vec<MacOSImage>>,
    /// The namespaces that hold leases.
    pub tenants: Seen<BTreeSet<String>>,
}

/// Judges the creation or change of a MacOSImage.
pub fn admit(facts: &Facts) -> Verdict {
    judge(facts).into()
}

fn judge(facts: &Facts) -> Result<Vec<String>, Refusal> {
    let subject = Subject::of(&facts.image);
    let (new, old) = (&facts.image.spec, facts.old.as_ref().map(|o| &o.spec));
    if old.is_none_or(|o| o.source != new.source || o.contents != new.contents) {
        no_tenant(&subject, facts)?;
    }
    if old.is_some_and(|o| o.contents == new.contents) {
        return Ok(Vec::new());
    }
    same_pair(&subject, facts)?;
    xcode_runs(&subject, new)
}

fn version<'a>(spec: &'a MacOSImageSpec, kind: &str) -> &'a str {
    spec.contents.iter().find(|c| c.kind == kind).map(|c| c.version.as_str()).unwrap_or_default()
}

/// A tenant's name is the name of a namespace that holds leases, as a whole path segment or as whole words of one
/// that are separated by dashes: `team-a` stands in `golden/team-a`, `xcode-team-a`, not in `golden/team-ab`.
fn no_tenant(subject: &Subject, facts: &Facts) -> Result<(), Refusal> {
    let Some(tenants) = subject.known(&facts.tenants, "the leases")? else {
        return Ok(());
    };
    let (reference, _digest) =
        facts.image.spec.source.oci.image.rsplit_once('@').unwrap_or((&facts.image.spec.source.oci.image, ""));
    let name = facts.image.name_any();
    let mut texts = vec![("metadata.name", name.as_str()), ("spec.source.oci.image", reference)];
    for content in &facts.image.spec.contents {
        texts.extend([("spec.contents", content.kind.as_str()), ("spec.contents", content.version.as_str())]);
        texts.extend(content.build.as_deref().map(|build| ("spec.contents", build)));
    }
    for (field, text) in texts {
        if let Some(tenant) = tenants.iter().find(|tenant| names(text, tenant)) {
            return Err(subject.refuse(
                "tenant-name",
                format!("{field} {text:?} has the name of the tenant {tenant} in it, but a golden is for every tenant"),
                "rename it; what is a tenant's own is provisioned at first boot (spec.firstBoot of a MacOSInstance)",
            ));
        }
    }
    Ok(())
}

fn names(text: &str, tenant: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.split(['/', ':']).any(|segment| format!("-{segment}-").contains(&format!("-{tenant}-")))
}

fn same_pair(subject: &Subject, facts: &Facts) -> Result<(), Refusal> {
    let others = subject.known(&facts.others, "the other images")?.map(Vec::as_slice).unwrap_or_default();
    let pair = |spec: &MacOSImageSpec| (parts(version(spec, "macOS")), parts(version(spec, "Xcode")));
    let new = pair(&facts.image.spec);
    let twin = others.iter().find(|other| {
        other.name_any() != facts.image.name_any()
            && other.metadata.deletion_timestamp.is_none()
            && pair(&other.spec) == new
    });
    let Some(twin) = twin else { return Ok(()) };
    let (macos, xcode) = (version(&facts.image.spec, "macOS"), version(&facts.image.spec, "Xcode"));
    Err(subject.refuse(
        "same-pair",
        format!("{} already is macOS {macos} with Xcode {xcode}, and there is one golden per pair", twin.name_any()),
        "use that one, or delete it first",
    ))
}

fn xcode_runs(subject: &Subject, spec: &MacOSImageSpec) -> Result<Vec<String>, Refusal> {
    let (macos, xcode) = (version(spec, "macOS"), version(spec, "Xcode"));
    match xcode_on_macos(xcode, macos) {
        Runs::Yes => Ok(Vec::new()),
        Runs::Unlisted => Ok(vec![format!(
            "Xcode {xcode} is not in MacRack's table of Apple's requirements; it was not checked that it runs on macOS {macos}"
        )]),
        Runs::Needs(oldest) => Err(subject.refuse(
            "xcode-on-macos",
            format!(
                "Xcode {xcode} runs on macOS {oldest} or later (developer.apple.com/support/xcode), not on {macos}"
            ),
            "pair it with a newer macOS, or take an older Xcode",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn image(name: &str, path: &str, macos: &str, xcode: &str) -> MacOSImage {
        let digest = "d".repeat(64);
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "source": {"oci": {"image": format!("registry.example.com/{path}@sha256:{digest}")}},
                "contents": [
                    {"kind": "macOS", "version": macos}, {"kind": "Xcode", "version": xcode},
                    {"kind": "GuestAgent", "version": "0.1.0"},
                ],
            },
        }))
        .unwrap()
    }

    fn facts(image: MacOSImage) -> Facts {
        let others = vec![self::image("sequoia-xcode16", "golden/sequoia-xcode16", "15.5", "16.4")];
        let tenants = ["team-a", "ci", "d"].map(str::to_owned).into();
        Facts { image, old: None, others: Seen::Present(others), tenants: Seen::Present(tenants) }
    }

    fn says(facts: &Facts) -> String {
        match admit(facts) {
            Verdict::Allow { warnings } => format!("allowed {}", warnings.join("|")),
            Verdict::Deny(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn each_rule_has_its_refusal() {
        for (case, image, expected) in [
            ("a golden", image("tahoe", "golden/tahoe-xcode26", "26.1", "26.1"), "allowed "),
            (
                "a tenant as path segment",
                image("tahoe", "golden/team-a/tahoe", "26.1", "26.1"),
                "[tenant-name] macosimage tahoe: spec.source.oci.image \"registry.example.com/golden/team-a/tahoe\" has the name of the tenant team-a in it",
            ),
            (
                "a tenant as words of the name",
                image("tahoe-team-a-xcode26", "golden/tahoe", "26.1", "26.1"),
                "[tenant-name] macosimage tahoe-team-a-xcode26: metadata.name",
            ),
            ("a tenant as tag", image("tahoe", "golden/tahoe:ci", "26.1", "26.1"), "[tenant-name]"),
            ("part of a word is no tenant", image("circus-team-ab", "golden/specific", "26.1", "26.1"), "allowed "),
            ("the digest is no name", image("tahoe", "golden/tahoe", "26.1", "26.1"), "allowed "),
            (
                "a second of the pair",
                image("other", "golden/other", "15.5", "16.4"),
                "[same-pair] macosimage other: sequoia-xcode16 already is macOS 15.5 with Xcode 16.4, and there is one golden per pair; use that one",
            ),
            ("a second of the pair, written longer", image("other", "golden/other", "15.5.0", "16.4.0"), "[same-pair]"),
            ("another Xcode on the same macOS", image("other", "golden/other", "15.5", "16.3"), "allowed "),
            (
                "an Xcode too new for its macOS",
                image("other", "golden/other", "15.5", "26.1"),
                "[xcode-on-macos] macosimage other: Xcode 26.1 runs on macOS 15.6 or later (developer.apple.com/support/xcode), not on 15.5; pair it",
            ),
            (
                "an Xcode nobody knows yet",
                image("other", "golden/other", "27.0", "27.0"),
                "allowed Xcode 27.0 is not in MacRack's table",
            ),
        ] {
            let said = says(&facts(image));
            assert!(said.starts_with(expected), "{case}: {said}");
        }
    }

    #[test]
    fn a_golden_on_its_way_out_makes_room_for_its_successor() {
        let mut going = image("tahoe", "golden/tahoe", "26.1", "26.1");
        going.metadata.deletion_timestamp = Some(crate::clock::time("2026-03-02T09:30:00Z".parse().unwrap()));
        let successor = facts(image("tahoe-2", "golden/tahoe-2", "26.1", "26.1"));
        assert_eq!(says(&Facts { others: Seen::Present(vec![going]), ..successor }), "allowed ");
    }

    #[test]
    fn what_could_not_be_read_refuses() {
        let good = || facts(image("tahoe", "golden/tahoe", "26.1", "26.1"));
        for blind in [
            Facts { others: Seen::Unknown("timeout".into()), ..good() },
            Facts { tenants: Seen::Unknown("timeout".into()), ..good() },
        ] {
            let said = says(&blind);
            assert!(said.starts_with("[try-again] macosimage tahoe: ") && said.contains("(timeout)"), "{said}");
        }
    }

    #[test]
    fn an_update_is_judged_by_what_it_changes() {
        let old = image("tahoe", "golden/team-a/tahoe", "26.1", "26.1");
        let mut new = old.clone();
        new.spec.minimum_host_version = Some("15.0".into());
        let update = Facts { old: Some(old), others: Seen::Unknown("timeout".into()), ..facts(new) };
        assert_eq!(says(&update), "allowed ");
        // a new name under the same contents is looked at, the pair is not
        let moved = Facts { old: Some(image("tahoe", "golden/tahoe", "26.1", "26.1")), ..update };
        assert!(says(&moved).starts_with("[tenant-name]"));
    }
}
