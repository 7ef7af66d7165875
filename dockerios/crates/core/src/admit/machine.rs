//! What tenants make: `MacOSMachine`, `MacOSMachinePool`, `MacOSMachineClaim`.
//!
//! Invariant: a namespace gets machines only of classes that allow it, by whichever of the three it asks.

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, PlatformConfig,
    config::platform_config::Claims,
    text::{Span, SpanText},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;

use super::{Bench, Verdict};
use crate::seen::Seen;

/// No claim is of use for less.
pub const SHORTEST_TTL: Span = Span(60);

/// A class and the namespace that asks for it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The class that is named; absent when none is.
    pub class: Seen<MacOSMachineClass>,
    /// The namespace of the object.
    pub namespace: Seen<Namespace>,
}

/// What the rules of a claim look at.
#[derive(Clone, Debug)]
pub struct ClaimFacts {
    /// The claim as it is to be.
    pub claim: MacOSMachineClaim,
    /// As it was; none when it is made.
    pub old: Option<MacOSMachineClaim>,
    /// The class that it names itself.
    pub asked: Asked,
    /// PlatformConfig `default`.
    pub platform: Seen<PlatformConfig>,
}

/// Judges a new machine.
pub fn judge(machine: &MacOSMachine, asked: &Asked) -> Verdict {
    let mut bench = Bench::of(machine);
    allowed(&mut bench, asked, &machine.spec.machine_class_name);
    bench.done()
}

/// Judges a pool.
pub fn judge_pool(pool: &MacOSMachinePool, asked: &Asked) -> Verdict {
    let mut bench = Bench::of(pool);
    allowed(&mut bench, asked, &pool.spec.machine_class_name);
    bench.done()
}

/// Judges a claim.
pub fn judge_claim(facts: &ClaimFacts) -> Verdict {
    let mut bench = Bench::of(&facts.claim);
    if let Some(class) = facts
        .claim
        .spec
        .machine_class_name
        .as_ref()
        .filter(|_| facts.old.is_none())
    {
        allowed(&mut bench, &facts.asked, class);
    }
    let new = facts.claim.spec.ttl.as_ref();
    let old = facts.old.as_ref().map(|old| old.spec.ttl.as_ref());
    // a claim whose ttl stays is not judged by a maximum that was lowered since
    if old != Some(new) && (new.is_some() || old.is_some()) {
        ttl(&mut bench, facts, new, old);
    }
    bench.done()
}

fn ttl(bench: &mut Bench, facts: &ClaimFacts, new: Option<&SpanText>, old: Option<Option<&SpanText>>) {
    let field = "spec.ttl";
    let usual = Claims::usual();
    let claims = match &facts.platform {
        Seen::Absent => &usual,
        seen => match bench.see(seen, field, "PlatformConfig default") {
            Some(platform) => &platform.spec.claims,
            None => return,
        },
    };
    // what is left out is the platform's default
    let text = new.unwrap_or(&claims.default_ttl);
    let span = match text.span() {
        Ok(span) => span,
        Err(why) => return bench.refuse("ttl-bounds", field, why.to_string(), "correct it"),
    };
    let before = old
        .map(|old| old.unwrap_or(&claims.default_ttl))
        .and_then(|old| old.span().ok());
    if let Some(before) = before.filter(|before| span < *before) {
        return bench.refuse(
            "ttl-never-lowered",
            field,
            format!("{text} is less than the {before} that was promised"),
            "raise it or leave it; delete the claim when the machine is no longer needed",
        );
    }
    if span < SHORTEST_TTL {
        let problem = format!("{text} is over before a machine can be used");
        return bench.refuse("ttl-bounds", field, problem, format!("at least {SHORTEST_TTL}"));
    }
    // a maximum past its schema is said where it stands
    if let Ok(most) = claims.max_ttl.span()
        && span > most
    {
        bench.refuse(
            "ttl-bounds",
            field,
            format!("{text} is longer than the platform's maxTTL of {most}"),
            format!("ask for at most {most}; it may be raised up to that while the claim is bound"),
        );
    }
}

fn allowed(bench: &mut Bench, asked: &Asked, name: &str) {
    let field = "spec.machineClassName";
    let Some(class) = bench.see(&asked.class, field, &format!("MacOSMachineClass {name}")) else {
        return;
    };
    let Some(wanted) = &class.spec.allowed_namespaces else {
        return;
    };
    let Some(namespace) = bench.see(&asked.namespace, field, "the namespace's labels") else {
        return;
    };
    if !wanted.takes(namespace.labels()) {
        bench.refuse(
            "class-allows-namespace",
            field,
            format!("class {name} is not for namespace {}", namespace.name_any()),
            "name a class that is (kubectl get macosmachineclasses), or ask the platform team to widen its allowedNamespaces",
        );
    }
}
