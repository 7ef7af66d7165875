//! One golden: Ready when the store has it, and where it is cached.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use macrack_api::{
    MacNode, MacOSImage, Quantity,
    image::macos_image::{MacOSImagePhase as Phase, MacOSImageReason as Because},
};
use serde_json::json;

use crate::{conditions::Conditions, plan::Plan};

/// Most serials named in `status.replicatedOn`; `cachedOn` counts all.
pub const MOST_SERIALS: usize = 1000;

/// What the store says of an image.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// It is there: the size of the disk once pulled, in bytes.
    Found { bytes: u64 },
    /// It is not there.
    Missing(String),
    /// What is there is no golden.
    Invalid(String),
    /// The store did not answer.
    Unreachable(String),
}

/// What was seen of one image.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The operator's clock.
    pub now: Timestamp,
    /// The image.
    pub image: MacOSImage,
    /// What the store says; `None` when it need not be asked again.
    pub resolution: Option<Resolution>,
    /// Every chassis.
    pub nodes: Vec<MacNode>,
}

/// Whether the store must be asked: only until it has answered for this digest.
pub fn must_resolve(image: &MacOSImage) -> bool {
    let status = image.status.clone().unwrap_or_default();
    status.phase != Some(Phase::Ready) || status.digest.as_deref() != image.spec.source.oci.digest()
}

/// What is to be done about one image: its status is all there is.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let old = facts.image.status.clone().unwrap_or_default();
    let digest = facts.image.spec.source.oci.digest().map(str::to_owned);
    let image = &facts.image.spec.source.oci.image;
    let (phase, because, words, size) = match &facts.resolution {
        None => (Phase::Ready, Because::Resolved, "the store has it".to_owned(), old.size.clone()),
        Some(Resolution::Found { bytes }) => {
            (Phase::Ready, Because::Resolved, "the store has it".into(), Some(Quantity::bytes(*bytes)))
        }
        Some(Resolution::Missing(why)) => {
            (Phase::Failed, Because::NotFound, format!("{image}: {why}; push it, or correct spec.source"), None)
        }
        Some(Resolution::Invalid(why)) => (Phase::Failed, Because::NotAGolden, format!("{image}: {why}"), None),
        Some(Resolution::Unreachable(why)) => (
            Phase::Pending,
            Because::StoreUnreachable,
            format!("the store does not answer: {why}; it is asked again"),
            None,
        ),
    };
    if phase != Phase::Ready {
        let again = if phase == Phase::Pending { 10 } else { 60 };
        plan.wake_at(crate::clock::after(facts.now, macrack_api::Span(again)));
    }
    let mut serials: Vec<String> =
        facts.nodes.iter().filter(|n| caches(n, digest.as_deref())).map(|n| n.spec.serial.clone()).collect();
    serials.sort_unstable();
    let cached_on = format!("{}/{}", serials.len(), facts.nodes.len());
    serials.truncate(MOST_SERIALS);
    let mut conditions = Conditions::over(&old.conditions, facts.image.metadata.generation, facts.now);
    conditions.set("Ready", phase == Phase::Ready, because, words);
    plan.status = Some(json!({
        "observedGeneration": facts.image.metadata.generation,
        "phase": phase,
        "digest": digest,
        "size": size,
        "replicatedOn": (!serials.is_empty()).then_some(serials),
        "cachedOn": cached_on,
        "conditions": conditions.done(),
    }));
    plan
}

fn caches(node: &MacNode, digest: Option<&str>) -> bool {
    let agent = node.status.as_ref().and_then(|s| s.agent.as_ref());
    node.metadata.deletion_timestamp.is_none()
        && !node.name_any().is_empty()
        && agent.is_some_and(|a| a.goldens.iter().any(|g| Some(g.digest.as_str()) == digest))
}
