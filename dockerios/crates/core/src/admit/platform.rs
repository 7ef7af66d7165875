//! `PlatformConfig`: says what Apple's licence says, each time.

use std::collections::BTreeSet;

use dockerios_api::{MacOSMachineClass, PlatformConfig, machine::class::Bus};
use kube::ResourceExt;

use super::{Bench, LICENCE, SUNSET, Verdict, names};
use crate::seen::Seen;

/// What the rules look at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The configuration as it is to be.
    pub platform: PlatformConfig,
    /// All classes.
    pub classes: Seen<Vec<MacOSMachineClass>>,
}

/// Judges the configuration.
pub fn judge(facts: &Facts) -> Verdict {
    let mut bench = Bench::of(&facts.platform);
    bench.verdict.warnings.extend([LICENCE.to_owned(), SUNSET.to_owned()]);
    let spec = &facts.platform.spec;
    for (field, span) in [
        ("spec.claims.defaultTTL", &spec.claims.default_ttl),
        ("spec.claims.maxTTL", &spec.claims.max_ttl),
    ] {
        match span.span() {
            Ok(span) if span.seconds() >= super::machine::SHORTEST_TTL.seconds() => {}
            Ok(_) => bench.refuse(
                "ttl-bounds",
                field,
                format!("{span} is over before a machine can be used"),
                format!("at least {}", super::machine::SHORTEST_TTL),
            ),
            Err(why) => bench.refuse("ttl-bounds", field, why.to_string(), "correct it"),
        }
    }
    if spec.smc.is_none() {
        bench.warn(
            "spec.smc",
            "not set: machines wait until it names the Secret with the SMC's key",
        );
    }
    let audio: Vec<&str> = spec
        .permitted_gpus
        .iter()
        .filter_map(|card| card.audio_device_name.as_deref())
        .collect();
    let cards: BTreeSet<&str> = spec
        .permitted_gpus
        .iter()
        .map(|card| card.device_name.as_str())
        .collect();
    if let Some(both) = audio.iter().find(|name| cards.contains(*name)) {
        bench.refuse(
            "gpu-audio-apart",
            "spec.permittedGPUs",
            format!("{both} is named as a card and as the audio function of one"),
            "name each device once",
        );
    }
    if let Some(classes) = bench.advice(&facts.classes, "spec", "the classes") {
        affected(&mut bench, facts, classes);
    }
    bench.done()
}

/// Classes that this configuration makes impossible. They say so themselves; here it is said to who does it.
fn affected(bench: &mut Bench, facts: &Facts, classes: &[MacOSMachineClass]) {
    let spec = &facts.platform.spec;
    let named = |wanted: &dyn Fn(&MacOSMachineClass) -> bool| -> Vec<String> {
        classes
            .iter()
            .filter(|class| wanted(class))
            .map(ResourceExt::name_any)
            .collect()
    };
    let hookless = named(&|class| spec.domain_hook.is_none() && class.spec.system_disk.bus == Bus::Nvme);
    if !hookless.is_empty() {
        bench.warn(
            "spec.domainHook",
            format!("not set, and bus nvme of class {} needs it", names(&hookless, 8)),
        );
    }
    let cardless = named(&|class| {
        let wanted = class.spec.gpu.as_ref().map(|gpu| &gpu.device_name);
        wanted.is_some_and(|wanted| spec.permitted_gpus.iter().all(|card| card.device_name != *wanted))
    });
    if !cardless.is_empty() {
        bench.warn(
            "spec.permittedGPUs",
            format!("lacks the card of class {}", names(&cardless, 8)),
        );
    }
}
