//! `IdentityPool`: identities are made ahead of demand, and never because a machine asks.
//!
//! Invariants: nothing is minted while the fleet could not be read, since only a whole list says which values are
//! taken; never more than `maxSize` exist, quarantined ones counted; an identity whose bootdisk fails counts as one on
//! its way, or a broken builder would fill the pool. Identities belong to no pool by owner reference: the pool's pass
//! deletes those without a machine when the pool goes, the others stay with their machines.

use std::sync::Arc;

use dockerios_api::{
    IdentityPool, IdentityPoolStatus, MacOSMachine, MachineIdentity, MachineIdentitySpec, Name, PlatformConfig,
    condition::{Verdict, of},
    identity::pool::{IdentityPoolCondition as Condition, IdentityPoolReason as Reason},
    machine::macos_machine::MachineCondition,
    names::MINTED,
};
use dockerios_identity::{Filled, Generator, Identity, Keys, Model, Reserved, fill};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::identity::{Standing, standing};
use crate::{Kind, News, Object, Plan, Seen, Step, Target, render::bootdisk::fields, report::Report};

/// Identities made in one pass at most.
pub const BATCH: usize = 20;
/// Unacceptable draws of the generator after which a pass gives up.
const SPARE: usize = 40;
const AGAIN: SignedDuration = SignedDuration::from_mins(2);

/// What the decision reads.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The pool.
    pub pool: Arc<IdentityPool>,
    /// All identities, of every pool and in every phase.
    pub fleet: Seen<Vec<Arc<MachineIdentity>>>,
    /// PlatformConfig `default`.
    pub platform: Seen<Arc<PlatformConfig>>,
    /// Machines of the classes that take identities of this pool.
    pub machines: Seen<Vec<Arc<MacOSMachine>>>,
    /// Randomness of the system, new for each pass.
    pub seed: [u8; 32],
}

/// Identities by what they count as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    total: usize,
    preparing: usize,
    available: usize,
    allocated: usize,
    quarantined: usize,
    failed: usize,
}

/// Decides about one pool.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let pool = &*facts.pool;
    let mut plan = Plan::default();
    let before = pool.status.clone().unwrap_or_default();
    let mut report = Report::after(&before.conditions, pool.metadata.generation, now);
    let fleet = match &facts.fleet {
        Seen::Present(fleet) => fleet.as_slice(),
        Seen::Absent => &[],
        Seen::Unknown(why) => {
            let message = format!("cannot see the identities now ({why}); none is minted");
            for condition in [Condition::Ready, Condition::Replenished, Condition::Available] {
                report.say(condition, Verdict::Unknown, Reason::Unreadable, &message);
            }
            let conditions = report.done();
            plan.report(&IdentityPoolStatus { conditions, ..before });
            plan.wake_at(later(now, AGAIN));
            return plan;
        }
    };
    let name = pool.name_any();
    let mine: Vec<_> = fleet.iter().filter(|one| one.spec.pool_name.0 == name).collect();
    let counts = count(&mine);
    if pool.metadata.deletion_timestamp.is_some() {
        leave(pool, &mine, &mut plan);
        report.say(
            Condition::Ready,
            false,
            Reason::Deleting,
            "identities that have no machine go with the pool",
        );
    } else if !pool.finalizers().iter().any(|finalizer| finalizer == MINTED) {
        plan.then(Step::AddFinalizer(
            Target::exactly(Kind::IdentityPool, &pool.metadata),
            MINTED,
        ));
        return plan;
    } else {
        let coming = replenish(facts, fleet, counts, &mut plan, now);
        judge(facts, counts, &coming, &mut report);
        plan.news.extend(report.news(Condition::Available));
        plan.news.extend(report.news(Condition::Replenished));
    }
    let size = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    plan.report(&IdentityPoolStatus {
        observed_generation: pool.metadata.generation,
        total: size(counts.total),
        preparing: size(counts.preparing),
        available: size(counts.available),
        allocated: size(counts.allocated),
        quarantined: size(counts.quarantined),
        failed: size(counts.failed),
        // unknown is not none: what was said before stays
        waiting: facts
            .machines
            .present()
            .map_or(before.waiting, |machines| size(waiting(machines))),
        conditions: report.done(),
    });
    plan
}

fn later(now: Timestamp, span: SignedDuration) -> Timestamp {
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}

fn count(mine: &[&Arc<MachineIdentity>]) -> Counts {
    let mut counts = Counts {
        total: mine.len(),
        ..Counts::default()
    };
    for identity in mine {
        match standing(identity) {
            Standing::Preparing => counts.preparing += 1,
            Standing::Available => counts.available += 1,
            Standing::Allocated => counts.allocated += 1,
            Standing::Quarantined => counts.quarantined += 1,
            Standing::Failed => counts.failed += 1,
            Standing::Leaving => {}
        }
    }
    counts
}

/// Machines that wait for an identity: their own words, and they still want one.
fn waiting(machines: &[Arc<MacOSMachine>]) -> usize {
    let waits = |machine: &&Arc<MacOSMachine>| {
        let Some(status) = &machine.status else { return false };
        let allocated = of(&status.conditions, MachineCondition::IdentityAllocated.word());
        machine.metadata.deletion_timestamp.is_none()
            && status.failure.is_none()
            && allocated.is_some_and(|condition| condition.status == Verdict::False)
    };
    machines.iter().filter(waits).count()
}

/// What a pass did about the level of the pool.
enum Coming {
    /// As many as are wanted are ready or on their way.
    Enough,
    /// So many were made, and this is why others were not.
    Made(usize, Option<String>),
    /// `maxSize` leaves no room.
    NoRoom,
    /// The model has no identities.
    NoModel(String),
}

fn replenish(facts: &Facts, fleet: &[Arc<MachineIdentity>], counts: Counts, plan: &mut Plan, now: Timestamp) -> Coming {
    let spec = &facts.pool.spec;
    if let Err(why) = Model::find(&spec.model) {
        return Coming::NoModel(why.to_string());
    }
    let wanted = usize::try_from(spec.min_available).unwrap_or(0);
    let missing = wanted.saturating_sub(counts.available + counts.preparing + counts.failed);
    if missing == 0 {
        return Coming::Enough;
    }
    let room = usize::try_from(spec.max_size).unwrap_or(0).saturating_sub(counts.total);
    let batch = missing.min(room).min(BATCH);
    if batch == 0 {
        return Coming::NoRoom;
    }
    let filled = mint(&spec.model, batch, fleet, facts.seed);
    let pool = facts.pool.name_any();
    let mut made = 0;
    for identity in &filled.made {
        // a kind of ours that is no JSON would be a defect: it is then not made
        if let Ok(object) = Object::of(Kind::MachineIdentity, &object(&pool, identity)) {
            plan.then(Step::Create(object));
            made += 1;
        }
    }
    let short = (filled.short > 0).then(|| filled.to_string());
    if short.is_some() || missing.min(room) > batch {
        plan.wake_at(later(now, AGAIN));
    }
    Coming::Made(made, short)
}

/// A batch whose values nothing in the fleet has, in whatever case they are written there.
pub fn mint(model: &str, wanted: usize, fleet: &[Arc<MachineIdentity>], seed: [u8; 32]) -> Filled<Identity> {
    let mut reserved = Reserved::of(fleet.iter().map(|one| Keys::from(&fields(one))));
    let mut generator = Generator::seeded(seed);
    fill(wanted, SPARE, &mut reserved, || generator.mint(model))
}

/// The object of a new identity. Its name is its serial, so the API server itself refuses a second one.
fn object(pool: &str, identity: &Identity) -> MachineIdentity {
    let fields = dockerios_identity::Fields::from(identity.clone());
    MachineIdentity::new(
        &fields.serial.to_ascii_lowercase(),
        MachineIdentitySpec {
            pool_name: Name(pool.to_owned()),
            model: fields.model,
            mlb: fields.mlb,
            rom: fields.rom,
            system_uuid: fields.system_uuid,
            mac_address: fields.mac_address,
            serial: fields.serial,
        },
    )
}

fn judge(facts: &Facts, counts: Counts, coming: &Coming, report: &mut Report<'_>) {
    let spec = &facts.pool.spec;
    let wanted = usize::try_from(spec.min_available).unwrap_or(0);
    let levels = format!(
        "{} of {} identities available ({} allocated, {} preparing, {} quarantined, {} failed)",
        counts.available, counts.total, counts.allocated, counts.preparing, counts.quarantined, counts.failed
    );
    let named = spec.boot_disk.template;
    let builder = facts
        .platform
        .present()
        .map(|platform| platform.spec.boot_disk_builder.as_ref());
    let known = facts.platform.unreadable().is_none();
    let no_builder = known && builder.flatten().is_none();
    let no_template = builder
        .flatten()
        .is_some_and(|builder| builder.template(named).is_none());
    let (reason, message) = match coming {
        Coming::NoModel(why) => (Reason::ModelUnknown, why.clone()),
        _ if counts.available >= wanted => (Reason::Replenished, levels.clone()),
        _ if no_builder => (
            Reason::BuilderMissing,
            format!("{levels}; PlatformConfig default names no bootDiskBuilder, so none gets a bootdisk: set it"),
        ),
        _ if no_template => (
            Reason::TemplateMissing,
            format!(
                "{levels}; PlatformConfig default has no {}, which this pool is built from, so none gets a bootdisk: set it",
                named.field()
            ),
        ),
        _ if counts.failed > 0 => (
            Reason::BuildsFailing,
            format!(
                "{levels}; see why: kubectl get machineidentity --field-selector spec.poolName={}",
                facts.pool.name_any()
            ),
        ),
        Coming::NoRoom => (
            Reason::AtMaxSize,
            format!(
                "{levels}, {wanted} wanted; maxSize {} is reached: raise spec.maxSize, or free some",
                spec.max_size
            ),
        ),
        Coming::Made(made, Some(short)) => (Reason::Replenishing, format!("{levels}; {made} begun; {short}")),
        Coming::Made(made, None) => (Reason::Replenishing, format!("{levels}; {made} begun")),
        Coming::Enough => (Reason::Replenishing, levels.clone()),
    };
    report.say(Condition::Replenished, reason == Reason::Replenished, reason, &message);
    let (serves, reason, message) = serving(facts, counts, coming, reason, &levels, message);
    report.say(Condition::Available, serves, reason, &message);
    report.say(Condition::Ready, serves, reason, message);
}

/// Whether a machine could take one now, and if not why.
fn serving(
    facts: &Facts,
    counts: Counts,
    coming: &Coming,
    level: Reason,
    levels: &str,
    message: String,
) -> (bool, Reason, String) {
    let waits = facts.machines.present().map_or(0, |machines| waiting(machines));
    let full = counts.total >= usize::try_from(facts.pool.spec.max_size).unwrap_or(0);
    let prefix = format!(
        "pool {} has {levels}; {waits} machines wait, none is minted for them",
        facts.pool.name_any()
    );
    if counts.available > 0 {
        (true, Reason::Available, levels.to_owned())
    } else if !full || counts.preparing + counts.failed > 0 || matches!(coming, Coming::NoModel(_)) {
        if level == Reason::Replenished {
            (
                false,
                Reason::Exhausted,
                format!("{prefix}: spec.minAvailable is 0; raise it to have some made"),
            )
        } else {
            (false, level, message)
        }
    } else if counts.quarantined > 0 && counts.quarantined >= counts.allocated {
        let way = "release or delete quarantined ones, or raise spec.maxSize";
        (false, Reason::Quarantined, format!("{prefix}; {way}"))
    } else {
        (
            false,
            Reason::Exhausted,
            format!("{prefix}; one is free when a machine goes, or raise spec.maxSize"),
        )
    }
}

/// The pool goes: so do the identities that no machine has. The finalizer is the last.
fn leave(pool: &IdentityPool, mine: &[&Arc<MachineIdentity>], plan: &mut Plan) {
    let free: Vec<_> = mine
        .iter()
        .filter(|one| standing(one) != Standing::Allocated && one.metadata.deletion_timestamp.is_none())
        .collect();
    for identity in &free {
        plan.then(Step::Delete(Target::exactly(Kind::MachineIdentity, &identity.metadata)));
    }
    if !free.is_empty() {
        let note = format!("{} identities without a machine are deleted with the pool", free.len());
        plan.news.push(News::normal(Reason::Deleting, note));
    } else if pool.finalizers().iter().any(|finalizer| finalizer == MINTED) {
        let target = Target::exactly(Kind::IdentityPool, &pool.metadata);
        plan.then(Step::RemoveFinalizer(target, MINTED, None));
    }
}
