//! Which CPU models have AVX2, and which are Intel's. From libvirt's `cpu_map` (x86 models) and QEMU's model documentation; the part of a
//! name behind the family (`-noTSX`, `-IBRS`, `-v4`) changes nothing about AVX2.

use dockerios_api::machine::class::{Cpu, FeaturePolicy};

/// What is known of AVX2 on a class's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Avx2 {
    /// The guest has it, or the machine is not scheduled.
    Has,
    /// The model is older than AVX2 and the class asks for no more.
    Lacks,
    /// The class takes it away.
    Disabled,
    /// Nobody here knows the model.
    Unknown,
}

/// Families with AVX2. `host-passthrough` and `host-model` are the host's own.
const WITH: &[&str] = &[
    "Haswell",
    "Broadwell",
    "Skylake",
    "Cascadelake",
    "Cooperlake",
    "Icelake",
    "SapphireRapids",
    "GraniteRapids",
    "SierraForest",
    "ClearwaterForest",
    "KnightsMill",
    "EPYC",
    "Dhyana",
    "YongFeng",
    "host",
];

/// Families without.
const WITHOUT: &[&str] = &[
    "486",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "coreduo",
    "n270",
    "core2duo",
    "Conroe",
    "Penryn",
    "Nehalem",
    "Westmere",
    "SandyBridge",
    "IvyBridge",
    "Denverton",
    "Snowridge",
    "athlon",
    "phenom",
    "Opteron_G1",
    "Opteron_G2",
    "Opteron_G3",
    "Opteron_G4",
    "Opteron_G5",
    "qemu32",
    "qemu64",
    "kvm32",
    "kvm64",
    "cpu64",
];

/// Families of other makers.
const NOT_INTEL: &[&str] = &[
    "EPYC",
    "Dhyana",
    "YongFeng",
    "athlon",
    "phenom",
    "Opteron_G1",
    "Opteron_G2",
    "Opteron_G3",
    "Opteron_G4",
    "Opteron_G5",
];

/// Whether the model is the host's own processor, whatever that is.
pub(crate) fn of_host(model: &str) -> bool {
    matches!(model, "host-passthrough" | "host-model")
}

/// Whether the model is one of another maker than Intel.
pub(super) fn foreign(model: &str) -> bool {
    NOT_INTEL.contains(&family(model))
}

fn family(model: &str) -> &str {
    model.split('-').next().unwrap_or_default()
}

pub(super) fn avx2(cpu: &Cpu) -> Avx2 {
    match cpu
        .features
        .iter()
        .find(|feature| feature.name == "avx2")
        .map(|feature| feature.policy)
    {
        Some(FeaturePolicy::Require) => return Avx2::Has,
        Some(FeaturePolicy::Disable) => return Avx2::Disabled,
        None => {}
    }
    let family = family(&cpu.model);
    if WITH.contains(&family) {
        Avx2::Has
    } else if WITHOUT.contains(&family) {
        Avx2::Lacks
    } else {
        Avx2::Unknown
    }
}
