//! `PlatformConfig`: what this cluster lacks for macOS machines, in one place.
//!
//! Invariants: nothing is changed in KubeVirt or CDI, only said; `status.launchers[0]` is the image that KubeVirt
//! starts machines with as long as `LauncherCapable` is not NotProbed; what could not be seen is Unknown, and Ready
//! waits for it.

mod launcher;

use std::sync::Arc;

use dockerios_api::{
    PlatformConfig, PlatformConfigStatus,
    condition::Verdict,
    config::platform_config::{Launcher, PermittedGpu, PlatformCondition as Condition, PlatformReason as Reason},
};
use dockerios_kubevirt::{KubeVirt, Plugin, platform::PermittedHostDevices};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::ResourceExt;

use crate::{
    News, Plan, Seen,
    admit::{LICENCE, SUNSET},
    plan::Refusal,
    report::Report,
};

pub use launcher::{current, image_of};

const AGAIN: SignedDuration = SignedDuration::from_mins(2);
/// KubeVirt's feature gates without which no machine of ours is admitted.
const GATES: [&str; 2] = ["Sidecar", "CPUManager"];
/// CDI's gate that makes clones wait for the machine's node.
const FIRST_CONSUMER: &str = "HonorWaitForFirstConsumer";

/// What the decision reads.
#[derive(Clone, Debug)]
pub struct Facts {
    /// PlatformConfig `default`.
    pub platform: Arc<PlatformConfig>,
    /// KubeVirt's own objects; there is one.
    pub kubevirts: Seen<Vec<Arc<KubeVirt>>>,
    /// Plugins that change every domain.
    pub plugins: Seen<Vec<Arc<Plugin>>>,
    /// CDI's feature gates (`CDIConfig.spec.featureGates`).
    pub cdi_gates: Seen<Vec<String>>,
    /// Whether there are identity pools, which need a builder.
    pub identity_pools: Seen<bool>,
    /// Jobs that probe launcher images.
    pub jobs: Seen<Vec<Arc<Job>>>,
    /// Their pods.
    pub pods: Seen<Vec<Arc<Pod>>>,
    /// Where probes run.
    pub platform_namespace: String,
    /// What the API server refused in the last pass.
    pub refusal: Option<Refusal>,
}

/// A judgement: verdict, reason, message.
type Said = (Verdict, Reason, String);

/// Decides about the platform.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let platform = &*facts.platform;
    let before = platform.status.clone().unwrap_or_default();
    let mut plan = Plan::default();
    let mut report = Report::after(&before.conditions, platform.metadata.generation, now);
    let (launchers, launcher) = launcher::judge(facts, &before.launchers, &mut plan, now);
    let judged = [
        (Condition::LauncherCapable, launcher),
        (Condition::GatesEnabled, gates(facts)),
        (Condition::GPUsPermitted, gpus(facts)),
        (Condition::NoForeignPlugin, plugin(facts)),
        (Condition::HonorsWaitForFirstConsumer, first_consumer(facts)),
        (
            Condition::EndOfLife,
            (Verdict::True, Reason::IntelSunset, format!("{SUNSET}. {LICENCE}")),
        ),
    ];
    let (verdict, reason, message) = summary(facts, &judged);
    report.say(Condition::Ready, verdict, reason, message);
    for (kind, (verdict, reason, message)) in &judged {
        report.say(kind, *verdict, reason, message);
    }
    for kind in [Condition::Ready, Condition::LauncherCapable, Condition::NoForeignPlugin] {
        plan.news.extend(report.news(kind));
    }
    plan.news.extend(another_mode(&before.launchers, &launchers, &report));
    plan.report(&PlatformConfigStatus {
        observed_generation: platform.metadata.generation,
        launchers,
        conditions: report.done(),
    });
    plan
}

/// A launcher that gives NVMe disks in another way than the one before, where nothing else is news of it.
fn another_mode(before: &[Launcher], now: &[Launcher], report: &Report) -> Option<News> {
    let (before, now) = (before.first()?, now.first()?);
    let said = report.said(Condition::LauncherCapable)?;
    let silent = report.news(Condition::LauncherCapable).is_none() && said.status == Verdict::True;
    (silent && before.nvme != now.nvme).then(|| News::normal(&said.reason, &said.message))
}

/// The first thing without which no machine can be made. A plugin and how CDI binds are warnings: they may do harm.
fn summary(facts: &Facts, judged: &[(Condition, Said)]) -> Said {
    let spec = &facts.platform.spec;
    let no = |reason, message: &str| (Verdict::False, reason, message.to_owned());
    if spec.domain_hook.is_none() {
        return no(
            Reason::DomainHookMissing,
            "set spec.domainHook.image: without the hook macOS has no SMC and no NVMe disk",
        );
    }
    if spec.smc.is_none() {
        return no(
            Reason::OskMissing,
            "set spec.smc.oskSecretRef: a key of a Secret in the platform namespace, which you supply",
        );
    }
    if spec.boot_disk_builder.is_none() && facts.identity_pools.present() == Some(&true) {
        return no(
            Reason::BuilderMissing,
            "set spec.bootDiskBuilder: the identities of the pools get no bootdisk without it",
        );
    }
    let needed = [
        Condition::GatesEnabled,
        Condition::LauncherCapable,
        Condition::GPUsPermitted,
    ];
    let bad = judged
        .iter()
        .find(|(kind, (verdict, ..))| needed.contains(kind) && *verdict != Verdict::True);
    let cdi_missing = || judged.iter().find(|(_, (_, reason, _))| *reason == Reason::CdiNotFound);
    match bad.or_else(cdi_missing) {
        Some((_, said)) => said.clone(),
        None => (Verdict::True, Reason::Ready, "all is as machines need it".to_owned()),
    }
}

fn unreadable(what: &str, why: &str) -> Said {
    let message = format!("cannot see {what} now ({why}); nothing is decided from it");
    (Verdict::Unknown, Reason::Unreadable, message)
}

/// KubeVirt's object, or what is to be said without it.
fn kubevirt(facts: &Facts) -> Result<&KubeVirt, Said> {
    match &facts.kubevirts {
        Seen::Unknown(why) => Err(unreadable("KubeVirt's own object", why)),
        seen => seen
            .present()
            .and_then(|all| all.first())
            .map(AsRef::as_ref)
            .ok_or_else(|| {
                let message = "there is no object of kind KubeVirt: install KubeVirt 1.6 or newer first";
                (Verdict::False, Reason::KubeVirtNotFound, message.to_owned())
            }),
    }
}

fn gates(facts: &Facts) -> Said {
    let kubevirt = match kubevirt(facts) {
        Ok(kubevirt) => kubevirt,
        Err(said) => return said,
    };
    let configuration = kubevirt
        .spec
        .configuration
        .as_ref()
        .and_then(|c| c.developer_configuration.as_ref());
    let lists = configuration.map(|c| (&c.feature_gates, &c.disabled_feature_gates));
    let on = |gate: &str| lists.is_some_and(|(on, off)| on.iter().any(|g| g == gate) && !off.iter().any(|g| g == gate));
    let off: Vec<_> = GATES.into_iter().filter(|gate| !on(gate)).collect();
    if off.is_empty() {
        return (Verdict::True, Reason::Enabled, format!("{} are on", GATES.join(", ")));
    }
    let (namespace, name) = (kubevirt.namespace().unwrap_or_default(), kubevirt.name_any());
    let list = off.iter().map(|gate| {
        format!(r#"{{"op":"add","path":"/spec/configuration/developerConfiguration/featureGates/-","value":"{gate}"}}"#)
    });
    let way_out = if configuration.is_some_and(|c| !c.feature_gates.is_empty()) {
        let patch = list.collect::<Vec<_>>().join(",");
        format!("kubectl patch kubevirt {name} -n {namespace} --type=json -p '[{patch}]'")
    } else {
        let names = off.iter().map(|gate| format!("{gate:?}")).collect::<Vec<_>>().join(",");
        format!(
            "kubectl patch kubevirt {name} -n {namespace} --type=merge -p \
             '{{\"spec\":{{\"configuration\":{{\"developerConfiguration\":{{\"featureGates\":[{names}]}}}}}}}}'"
        )
    };
    (
        Verdict::False,
        Reason::GateDisabled,
        format!(
            "KubeVirt's feature gates {} are off; turn them on: {way_out}",
            off.join(", ")
        ),
    )
}

fn gpus(facts: &Facts) -> Said {
    let wanted: Vec<&str> = facts
        .platform
        .spec
        .permitted_gpus
        .iter()
        .flat_map(PermittedGpu::devices)
        .collect();
    if wanted.is_empty() {
        return (Verdict::True, Reason::Permitted, "no GPU is asked for".to_owned());
    }
    let kubevirt = match kubevirt(facts) {
        Ok(kubevirt) => kubevirt,
        Err(said) => return said,
    };
    let permitted = kubevirt
        .spec
        .configuration
        .as_ref()
        .and_then(|c| c.permitted_host_devices.as_ref());
    let there: Vec<_> = permitted
        .into_iter()
        .flat_map(PermittedHostDevices::resources)
        .collect();
    let lacking: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|device| !there.contains(device))
        .collect();
    if lacking.is_empty() {
        return (
            Verdict::True,
            Reason::Permitted,
            format!("{} are permitted", wanted.join(", ")),
        );
    }
    let message = format!(
        "KubeVirt does not permit {}: add it to spec.configuration.permittedHostDevices.pciHostDevices of KubeVirt {}/{}, \
         or take it off permittedGPUs",
        lacking.join(", "),
        kubevirt.namespace().unwrap_or_default(),
        kubevirt.name_any()
    );
    (Verdict::False, Reason::NotPermitted, message)
}

fn plugin(facts: &Facts) -> Said {
    match &facts.plugins {
        Seen::Unknown(why) => unreadable("KubeVirt's Plugins", why),
        Seen::Present(plugins) if !plugins.is_empty() => {
            let names: Vec<_> = plugins.iter().take(4).map(|plugin| plugin.name_any()).collect();
            let message = format!(
                "Plugin {} is installed: KubeVirt 1.9.0 then loses what the domain hook adds, so macOS finds no SMC; \
                 remove it, or use a KubeVirt that keeps it",
                names.join(", ")
            );
            (Verdict::False, Reason::PluginInstalled, message)
        }
        Seen::Present(_) | Seen::Absent => (Verdict::True, Reason::None, "no Plugin is installed".to_owned()),
    }
}

fn first_consumer(facts: &Facts) -> Said {
    match &facts.cdi_gates {
        Seen::Unknown(why) => unreadable("CDI's configuration", why),
        Seen::Present(gates) if gates.iter().any(|gate| gate == FIRST_CONSUMER) => (
            Verdict::True,
            Reason::Honored,
            "CDI waits until a machine has a node".to_owned(),
        ),
        Seen::Absent => {
            let message = format!(
                "CDI is not there (it has no CDIConfig), so no disk can be cloned: install CDI and its CDI object, with \
                 {FIRST_CONSUMER} in spec.config.featureGates"
            );
            (Verdict::False, Reason::CdiNotFound, message)
        }
        Seen::Present(_) => {
            let message = format!(
                "CDI binds volumes at once, so a clone may land where its machine cannot run; add {FIRST_CONSUMER} to \
                 spec.config.featureGates of the CDI object"
            );
            (Verdict::False, Reason::NotHonored, message)
        }
    }
}
