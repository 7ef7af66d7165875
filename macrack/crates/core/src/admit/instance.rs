//! `MacOSInstance`: on a lease of its own namespace that has a Mac and has not ended, beside at most one other,
//! of a size that fits beside it, from an image that exists.
//!
//! A foreign lease and a missing one read the same: leases are looked for in the request's namespace alone.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use macrack_api::{
    InstanceClass, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance, condition,
    image::macos_image::MacOSImagePhase,
    names::VMS_PER_MAC,
    rack::lease::{LeaseEndReason, MacNodeLeasePhase},
};

use super::{Refusal, Subject, Verdict, listed};
use crate::{
    clock,
    seen::Seen,
    size::{NoQuantity, Size},
};

/// What is known when a MacOSInstance is created.
///
/// On update there is nothing to judge: all that these rules speak of is immutable (the schema's rules).
#[derive(Clone, Debug)]
pub struct Facts {
    /// As it is asked for, with its namespace.
    pub instance: MacOSInstance,
    /// The operator's clock.
    pub now: Timestamp,
    /// The lease of that name in that namespace.
    pub lease: Seen<MacNodeLease>,
    /// All instances in that namespace that name the lease, the new one not among them.
    pub others: Seen<Vec<MacOSInstance>>,
    /// The instance classes that it and the others name.
    pub classes: BTreeMap<String, Seen<InstanceClass>>,
    /// The class of the leased Mac.
    pub node_class: Seen<MacNodeClass>,
    /// The image it names.
    pub image: Seen<MacOSImage>,
    /// The macOS of the leased Mac, as its agent says. Absent while no Mac is leased or its agent has not said:
    /// then the agent judges.
    pub host_version: Seen<String>,
}

/// Judges the creation of a MacOSInstance.
pub fn admit(facts: &Facts) -> Verdict {
    judge(facts).into()
}

fn judge(facts: &Facts) -> Result<Vec<String>, Refusal> {
    let subject = Subject::of(&facts.instance);
    let namespace = facts.instance.namespace().unwrap_or_default();
    let name = &facts.instance.spec.lease_name;
    let lease = subject.known(&facts.lease, &format!("lease {name}"))?.ok_or_else(|| {
        subject.refuse(
            "lease-in-namespace",
            format!("namespace {namespace} has no lease \"{name}\""),
            "create one, or correct spec.leaseName",
        )
    })?;
    usable(&subject, lease, facts.now)?;
    let holders = holders(&subject, facts, lease)?;
    two_per_lease(&subject, lease, &holders)?;
    fits(&subject, facts, lease, &holders)?;
    let image = image_ready(&subject, facts)?;
    runs_there(&subject, facts, image)?;
    Ok(Vec::new())
}

/// The lease has a Mac, and has not ended.
fn usable(subject: &Subject, lease: &MacNodeLease, now: Timestamp) -> Result<(), Refusal> {
    let name = lease.name_any();
    let ended = |why: String| Err(subject.refuse("lease-ended", format!("lease {name} {why}"), "make a new lease"));
    let status = lease.status.as_ref();
    if let Some(end) = status.and_then(|s| s.end.as_ref()) {
        let how = match end.reason {
            LeaseEndReason::Expired => "expired",
            LeaseEndReason::Broken => "was broken, its Mac was retired,",
        };
        return ended(format!("{how} at {}", clock::rfc3339(end.at.0)));
    }
    let deleted = lease.metadata.deletion_timestamp.is_some();
    let bound = status.and_then(|s| Some((s.serial.as_ref()?, s.bound_at.as_ref()?, s.earliest_release_at.as_ref()?)));
    let Some((_, bound_at, floor)) = bound else {
        if deleted {
            return ended("was deleted before it had a Mac".into());
        }
        let ready = status.and_then(|s| condition::find(&s.conditions, "Ready")).map(|c| c.message.as_str());
        let why = ready.filter(|m| !m.is_empty()).map(|m| format!(" ({m})")).unwrap_or_default();
        return Err(subject.refuse(
            "lease-bound",
            format!("lease {name} is Pending and has no Mac yet{why}"),
            format!(
                "wait until it is bound: kubectl wait --for=condition=Bound macnodelease/{name} -n {}",
                lease.namespace().unwrap_or_default()
            ),
        ));
    };
    // the phase is asked only for what nothing else in the lease says: that the release has begun
    let releasing = status.and_then(|s| s.phase) == Some(MacNodeLeasePhase::Releasing);
    if (deleted && now >= floor.0) || releasing {
        return ended(format!("was yours until {}, its Mac is being given back", clock::rfc3339(floor.0)));
    }
    let maximum = lease.spec.maximum_duration.as_deref().and_then(|text| text.parse().ok());
    match maximum.map(|span| clock::after(bound_at.0, span)) {
        Some(end) if now >= end => ended(format!("has reached spec.maximumDuration at {}", clock::rfc3339(end))),
        _ => Ok(()),
    }
}

/// Those that hold a slot or will: not the losers of a race, not those of an earlier lease of the same name, not
/// those on their way out (their slot comes free, a newcomer waits for it).
fn holders<'a>(subject: &Subject, facts: &'a Facts, lease: &MacNodeLease) -> Result<Vec<&'a MacOSInstance>, Refusal> {
    let others =
        subject.known(&facts.others, "the instances of this namespace")?.map(Vec::as_slice).unwrap_or_default();
    let of_this_lease = |i: &MacOSInstance| {
        let uid = i.status.as_ref().and_then(|s| s.lease_uid.as_deref());
        uid.is_none() || uid == lease.uid().as_deref()
    };
    let mut holders: Vec<_> = others
        .iter()
        .filter(|i| i.spec.lease_name == lease.name_any() && of_this_lease(i))
        .filter(|i| i.metadata.deletion_timestamp.is_none() && !i.status.as_ref().is_some_and(|s| s.lease_full))
        .filter(|i| i.name_any() != facts.instance.name_any())
        .collect();
    holders.sort_by_key(|i| i.name_any());
    Ok(holders)
}

fn two_per_lease(subject: &Subject, lease: &MacNodeLease, holders: &[&MacOSInstance]) -> Result<(), Refusal> {
    if holders.len() < VMS_PER_MAC {
        return Ok(());
    }
    let names: Vec<String> = holders.iter().map(|i| i.name_any()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Err(subject.refuse(
        "two-per-lease",
        format!("lease {} already holds {}; a Mac carries two macOS VMs, never more", lease.name_any(), listed(&names)),
        "delete one of them, or lease another Mac",
    ))
}

/// The new one and the actual holders together fit beside the host's reserve.
fn fits(subject: &Subject, facts: &Facts, lease: &MacNodeLease, holders: &[&MacOSInstance]) -> Result<(), Refusal> {
    let own = &facts.instance.spec.instance_class_name;
    let class = class(subject, facts, own)?.ok_or_else(|| {
        subject.refuse(
            "class-exists",
            format!("there is no InstanceClass \"{own}\""),
            "correct spec.instanceClassName (kubectl get instanceclasses)",
        )
    })?;
    let node_class_name = &lease.spec.node_class_name;
    let node_class =
        subject.known(&facts.node_class, &format!("MacNodeClass {node_class_name}"))?.ok_or_else(|| {
            subject.refuse(
                "class-fits",
                format!("MacNodeClass {node_class_name} of the leased Mac does not exist, so its size is not known"),
                "ask an admin to restore it",
            )
        })?;
    let unreadable = |kind: &str, name: &str, no: NoQuantity| {
        subject.refuse(
            "class-fits",
            format!("{} of {kind} {name} is {:?}, which is no quantity", no.field, no.text),
            "ask an admin to correct it",
        )
    };
    let mut wanted = Size::of(&class.spec).map_err(|no| unreadable("InstanceClass", own, no))?;
    for holder in holders {
        let name = &holder.spec.instance_class_name;
        let class = self::class(subject, facts, name)?.ok_or_else(|| {
            subject.refuse(
                "class-fits",
                format!("InstanceClass {name} of {} does not exist, so its size is not known", holder.name_any()),
                "ask an admin to restore it",
            )
        })?;
        wanted = wanted.plus(Size::of(&class.spec).map_err(|no| unreadable("InstanceClass", name, no))?);
    }
    let room = Size::left_by(&node_class.spec).map_err(|no| unreadable("MacNodeClass", node_class_name, no))?;
    let Some((what, wanted, there)) = wanted.exceeds(room) else {
        return Ok(());
    };
    let beside = holders.first().map(|h| format!(" beside {}", h.name_any())).unwrap_or_default();
    Err(subject.refuse(
        "class-fits",
        format!("class {own}{beside} takes {wanted} {what}, a {node_class_name} leaves {there} to its VMs"),
        "choose a smaller InstanceClass, or lease a larger Mac",
    ))
}

fn class<'a>(subject: &Subject, facts: &'a Facts, name: &str) -> Result<Option<&'a InstanceClass>, Refusal> {
    match facts.classes.get(name) {
        Some(seen) => subject.known(seen, &format!("InstanceClass {name}")),
        // nobody looked: that is not the same as absent
        None => Err(subject.unread(&format!("InstanceClass {name}"), "it was not looked up")),
    }
}

fn image_ready<'a>(subject: &Subject, facts: &'a Facts) -> Result<&'a MacOSImage, Refusal> {
    let name = &facts.instance.spec.image_name;
    let image = subject.known(&facts.image, &format!("MacOSImage {name}"))?.ok_or_else(|| {
        subject.refuse(
            "image-ready",
            format!("there is no MacOSImage \"{name}\""),
            "correct spec.imageName (kubectl get macosimages)",
        )
    })?;
    if image.metadata.deletion_timestamp.is_some() {
        return Err(subject.refuse("image-ready", format!("MacOSImage {name} is being deleted"), "choose another"));
    }
    let status = image.status.as_ref();
    if status.and_then(|s| s.phase) == Some(MacOSImagePhase::Ready) {
        return Ok(image);
    }
    let ready = status.and_then(|s| condition::find(&s.conditions, "Ready"));
    let why = ready.map(|c| format!(" ({}: {})", c.reason, c.message)).unwrap_or_default();
    Err(subject.refuse(
        "image-ready",
        format!("MacOSImage {name} is not Ready{why}"),
        format!("wait for it (kubectl wait --for=condition=Ready macosimage/{name}), or choose another"),
    ))
}

/// Nothing is pulled or started that the Mac's macOS cannot run.
fn runs_there(subject: &Subject, facts: &Facts, image: &MacOSImage) -> Result<(), Refusal> {
    let Some(host) = subject.known(&facts.host_version, "the leased Mac")? else { return Ok(()) };
    image.spec.runs_on(host).map_err(|unfit| {
        subject.refuse(
            "host-too-old",
            format!("MacOSImage {} {unfit}", facts.instance.spec.image_name),
            "choose another image, or ask an admin to upgrade the Mac",
        )
    })
}

#[cfg(test)]
#[path = "instance_tests.rs"]
mod tests;
