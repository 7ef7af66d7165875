//! `MacOSMachineClass`: ready when what it names is there and ready, and possible on this platform.
//!
//! Invariant: the judgement is that of admission ([`crate::admit::class`]), made again whenever something that the
//! class names changes; a class is never changed or refused here, it only stops being Ready.

use std::sync::Arc;

use dockerios_api::{
    IdentityPool, MacOSImage, MacOSMachineClass, MacOSMachineClassStatus, PlatformConfig,
    condition::{Verdict, holds, of},
    image::macos_image::ImageCondition,
    machine::class::{ClassCondition, ClassReason},
};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::{Plan, Seen, admit, report::Report};

/// What the decision reads.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The class.
    pub class: Arc<MacOSMachineClass>,
    /// PlatformConfig `default`.
    pub platform: Seen<Arc<PlatformConfig>>,
    /// The image that it names.
    pub image: Seen<Arc<MacOSImage>>,
    /// The identity pool that it names; absent for a Shared class.
    pub pool: Seen<Arc<IdentityPool>>,
    /// The storage class of its system disk.
    pub storage: Seen<Arc<StorageClass>>,
}

/// Decides about one class.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let class = &*facts.class;
    let mut plan = Plan::default();
    let before = class.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut report = Report::after(before, class.metadata.generation, now);
    let (verdict, reason, message) = judge(facts);
    report.say(ClassCondition::Ready, verdict, reason, message);
    plan.news.extend(report.news(ClassCondition::Ready));
    plan.report(&MacOSMachineClassStatus {
        observed_generation: class.metadata.generation,
        conditions: report.done(),
    });
    plan
}

fn judge(facts: &Facts) -> (Verdict, ClassReason, String) {
    let spec = &facts.class.spec;
    let unseen = [
        ("PlatformConfig default", facts.platform.unreadable()),
        ("its MacOSImage", facts.image.unreadable()),
        ("its IdentityPool", facts.pool.unreadable()),
        ("its StorageClass", facts.storage.unreadable()),
    ];
    if let Some((what, why)) = unseen.iter().find_map(|(what, why)| Some((what, (*why)?))) {
        let message = format!("cannot see {what} now ({why}); nothing is decided from it");
        return (Verdict::Unknown, ClassReason::Unreadable, message);
    }
    let no = |reason, message: String| (Verdict::False, reason, message);
    let Some(image) = facts.image.present() else {
        let message = format!(
            "MacOSImage {} is not there; make it, or name another one",
            spec.image_name
        );
        return no(ClassReason::ImageNotFound, message);
    };
    if let Some(own) = spec.identity.per_machine.as_ref().filter(|_| facts.pool.absent()) {
        let message = format!(
            "IdentityPool {} is not there; make it, or name another one",
            own.pool_name
        );
        return no(ClassReason::PoolNotFound, message);
    }
    if facts.storage.absent() {
        let name = &spec.system_disk.storage_class_name;
        let message = format!("StorageClass {name} is not there; make it, or name another one");
        return no(ClassReason::StorageClassNotFound, message);
    }
    let verdict = admit::class::judge(&admit::class::Facts {
        class: MacOSMachineClass::clone(&facts.class),
        platform: owned(&facts.platform),
        image: owned(&facts.image),
        pool: owned(&facts.pool),
        storage: owned(&facts.storage),
    });
    if !verdict.admits() {
        return no(ClassReason::NotPossible, verdict.reason());
    }
    let conditions = image.status.as_ref().map_or(&[][..], |status| &status.conditions);
    if !holds(conditions, ImageCondition::Ready.word()) {
        let said = of(conditions, ImageCondition::Ready.word()).map_or("nothing yet", |said| said.message.as_str());
        let message = format!("MacOSImage {} is not Ready; it says: {said}", spec.image_name);
        return no(ClassReason::ImageNotReady, message);
    }
    (
        Verdict::True,
        ClassReason::Ready,
        "machines can be made of it".to_owned(),
    )
}

fn owned<T: Clone>(seen: &Seen<Arc<T>>) -> Seen<T> {
    seen.as_ref().map(|one| T::clone(one))
}
