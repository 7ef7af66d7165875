//! What a pool says about itself: counts, `Ready`, `Degraded`, events on transitions.

use dockerios_api::{
    MacOSMachinePool, MacOSMachinePoolStatus, Verdict,
    condition::{Condition, clip_to},
    machine::pool::{MachinePoolCondition, MachinePoolReason},
    names::{CLAIMED, POOL_UID},
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{Facts, backoff::Pace, census::Census};
use crate::{Kind, Plan, report::Report};

/// Bytes of a machine's failure that a pool repeats, so that what follows is never cut off.
const TOLD: usize = 600;

/// A reason with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    reason: MachinePoolReason,
    message: String,
}

impl Word {
    pub(super) fn new(reason: MachinePoolReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Something could not be read.
    pub(super) fn unseen(why: &str) -> Self {
        let message = format!("{why}; nothing is decided until it can be read again");
        Self::new(MachinePoolReason::Unreadable, message)
    }

    fn verdict(&self, enough: bool) -> Verdict {
        match self.reason {
            MachinePoolReason::Unreadable => Verdict::Unknown,
            MachinePoolReason::Deleting => Verdict::False,
            _ => enough.into(),
        }
    }
}

fn before(pool: &MacOSMachinePool) -> &[Condition] {
    pool.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// Nothing was counted: the counts stay, and the verdict is Unknown.
pub(super) fn unreadable(pool: &MacOSMachinePool, why: &str, now: Timestamp) -> Plan {
    let word = Word::unseen(why);
    let mut status = pool.status.clone().unwrap_or_default();
    let mut report = Report::after(before(pool), pool.metadata.generation, now);
    for kept in before(pool)
        .iter()
        .filter(|c| c.kind != MachinePoolCondition::Ready.word())
    {
        report.say(&kept.kind, kept.status, &kept.reason, &kept.message);
    }
    report.say(MachinePoolCondition::Ready, Verdict::Unknown, word.reason, word.message);
    status.conditions = report.done();
    let mut plan = Plan::default();
    plan.report(&status);
    plan
}

pub(super) fn report(
    plan: &mut Plan,
    facts: &Facts,
    census: &Census,
    pace: &Pace,
    hindered: Option<&Word>,
    now: Timestamp,
) {
    let pool = facts.pool.as_ref();
    let enough = census.warm() >= usize::try_from(pool.spec.replicas).unwrap_or_default();
    let word = summary(facts, census, pace, hindered);
    let mut report = Report::after(before(pool), pool.metadata.generation, now);
    report.say(
        MachinePoolCondition::Ready,
        word.verdict(enough),
        word.reason,
        &word.message,
    );
    degraded(&mut report, census, pace);
    plan.news.extend(report.news(MachinePoolCondition::Ready).map(|news| {
        let ordinary = matches!(
            word.reason,
            MachinePoolReason::Warm
                | MachinePoolReason::Warming
                | MachinePoolReason::Rolling
                | MachinePoolReason::Deleting
        );
        crate::News {
            warning: !ordinary,
            ..news
        }
    }));
    plan.news.extend(
        report
            .news(MachinePoolCondition::Degraded)
            .filter(|news| news.reason == MachinePoolReason::MachinesFailing.word() || !before(pool).is_empty())
            .map(|news| crate::News {
                warning: news.reason == MachinePoolReason::MachinesFailing.word(),
                ..news
            }),
    );
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    plan.report(&MacOSMachinePoolStatus {
        observed_generation: pool.metadata.generation,
        replicas: number(census.replicas()),
        // not `!=`: clients that make a LabelSelector of it, `kubectl scale` and autoscalers, cannot read that
        selector: pool.uid().map(|uid| format!("{POOL_UID}={uid},{CLAIMED} notin (true)")),
        warm: number(census.warm()),
        claimed: number(census.claimed.len()),
        waiting: number(census.waiting),
        failed: number(census.failed.len()),
        conditions: report.done(),
    });
}

/// The first of these that holds.
fn summary(facts: &Facts, census: &Census, pace: &Pace, hindered: Option<&Word>) -> Word {
    let pool = facts.pool.as_ref();
    let (warm, wanted) = (census.warm(), pool.spec.replicas);
    let counts = format!("{warm} of {wanted} warm");
    if pool.metadata.deletion_timestamp.is_some() {
        let message = format!(
            "unclaimed machines go with the pool, {} claimed ones stay with their claims",
            census.claimed.len()
        );
        return Word::new(MachinePoolReason::Deleting, message);
    }
    if let Some(word) = hindered {
        return word.clone();
    }
    let missing = census.deficit(pool) + census.unserved.len();
    let room = census.room(pool);
    let refused = facts
        .refusal
        .as_ref()
        .filter(|refusal| refusal.of.kind == Kind::MacOSMachine);
    if let Some(refusal) = refused.filter(|_| missing > 0 && room > 0) {
        return Word::new(
            MachinePoolReason::CreationRefused,
            format!("{counts}: {}", refusal.message),
        );
    }
    if let Pace::Careful { .. } = pace
        && missing > 0
    {
        return Word::new(
            MachinePoolReason::MachinesFailing,
            format!("{counts}: {}", failing(census, pace)),
        );
    }
    // `deficit` is already cut to what fits beside the claimed ones
    let short = usize::try_from(wanted)
        .unwrap_or_default()
        .saturating_sub(census.replicas());
    if short.max(census.unserved.len()) > room && short + census.unserved.len() > 0 {
        let message = format!(
            "{counts}: {} machines of maxMachines {} are there ({} claimed); claims must end first, or raise \
             maxMachines",
            census.population(),
            pool.spec.max_machines,
            census.claimed.len()
        );
        return Word::new(MachinePoolReason::AtMaxMachines, message);
    }
    if census.outdated() > 0 {
        let message = format!("{counts}; {} of an older class are being replaced", census.outdated());
        return Word::new(MachinePoolReason::Rolling, message);
    }
    if warm >= usize::try_from(wanted).unwrap_or_default() {
        return Word::new(MachinePoolReason::Warm, counts);
    }
    let fallen = match census.fallen() {
        0 => String::new(),
        some => format!(
            "; {some} were warm and are not Ready now, and are not replaced while they may come back: see `kubectl get \
             macs`, and delete those that will not"
        ),
    };
    let coming = census.warming() + census.deficit(pool);
    Word::new(
        MachinePoolReason::Warming,
        format!("{counts}, {coming} on their way{fallen}"),
    )
}

fn degraded(report: &mut Report, census: &Census, pace: &Pace) {
    let kind = MachinePoolCondition::Degraded;
    match pace {
        Pace::Careful { .. } => report.say(kind, true, MachinePoolReason::MachinesFailing, failing(census, pace)),
        Pace::Free => report.say(
            kind,
            false,
            MachinePoolReason::AsExpected,
            "no machine failed since one was Ready",
        ),
    }
}

/// What failed last, and when the next is tried.
fn failing(census: &Census, pace: &Pace) -> String {
    let last = census.failed.first().and_then(|machine| {
        let failure = machine.status.as_ref()?.failure.as_ref()?;
        let name = machine.name_any();
        Some(format!(
            "machine {name} failed: {}: {}",
            failure.reason,
            clip_to(&failure.message, TOLD)
        ))
    });
    let next = match pace {
        Pace::Careful { next, now: false, .. } => {
            format!("the next is tried at {next:.0}, or once the failed ones are deleted")
        }
        Pace::Careful { .. } | Pace::Free => "one is tried at a time".to_owned(),
    };
    let look = "see kubectl describe macs on it";
    format!(
        "{}; {look}; {next}",
        last.unwrap_or_else(|| "machines failed".to_owned())
    )
}
