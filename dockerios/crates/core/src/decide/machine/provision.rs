//! From nothing to a VirtualMachine: gates, room, identity, then everything together.
//!
//! Invariant: DataVolumes and VirtualMachine are made in one go, the ConfigMap first (waiting for the clone would be
//! a deadlock where volumes bind to their first consumer). Nothing is made again that exists, and no second identity
//! is taken while anything carries a first.

use std::sync::Arc;

use dockerios_api::{
    MacOSImage, MacOSMachineClass, MachineIdentity, PlatformConfig, Verdict,
    condition::of,
    config::platform_config::{Launcher, Nvme, PlatformCondition, PlatformReason},
    identity::pool::BootDiskTemplate,
    image::macos_image::Published,
    machine::{
        class::{Bus, IdentityKind, NicModel},
        macos_machine::{MachineCondition as Condition, MachinePhase as Phase, MachineReason as Reason},
    },
    names::{IDENTITY, NVME, PLATFORM},
};
use dockerios_kubevirt::{VirtualMachine, names::HOOK_SIDECARS};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;

use super::{
    cards::Cards,
    facts::{Facts, Objects},
    headroom::{Room, Share, gib},
    line::{Turn, turn},
    status::Pass,
};
use crate::{
    Object, Seen, Step,
    admit::class::without_gpu_template,
    decide::{clone_right, identity, platform::current},
    render::machine as render,
};

/// What a machine is made of, all of it there and ready.
#[derive(Clone, Copy, Debug)]
pub struct Open<'f> {
    pub(super) class: &'f MacOSMachineClass,
    pub(super) image: &'f MacOSImage,
    pub(super) published: &'f Published,
    pub(super) platform: &'f PlatformConfig,
    pub(super) nvme: Nvme,
}

/// Why a machine cannot be made now: the reason and a sentence; the reason is Unreadable when that is all.
pub type Shut = (Reason, String);

/// Whether class, namespace, image and platform let a machine be made.
///
/// `right`: whether the operator may clone from where the image is published, if that is another namespace.
///
/// # Errors
/// The first that does not.
pub fn gates<'f>(
    class_name: &str,
    class: &'f Seen<Arc<MacOSMachineClass>>,
    namespace: &Seen<Arc<Namespace>>,
    image: &'f Seen<Arc<MacOSImage>>,
    platform: &'f Seen<Arc<PlatformConfig>>,
    right: &Seen<bool>,
) -> Result<Open<'f>, Shut> {
    let missing = format!(
        "MacOSMachineClass {class_name} does not exist; create it, or delete the machine and name one that does"
    );
    let class = see(class, Reason::ClassNotFound, &missing)?;
    if let Some(allowed) = &class.spec.allowed_namespaces {
        let namespace = see(namespace, Reason::NamespaceNotAllowed, "the namespace does not exist")?;
        if !allowed.takes(namespace.labels()) {
            let name = namespace.name_any();
            let message = format!(
                "class {class_name} is not for namespace {name}; name a class that is, or ask the platform team to widen \
                 its allowedNamespaces"
            );
            return Err((Reason::NamespaceNotAllowed, message));
        }
    }
    let wanted = &class.spec.image_name;
    let missing = format!("MacOSImage {wanted}, which class {class_name} names, does not exist; create it");
    let image = see(image, Reason::ImageNotReady, &missing)?;
    let Some(published) = image.status.as_ref().and_then(|status| status.published.as_ref()) else {
        let message = format!("MacOSImage {wanted} is not Ready yet: kubectl describe mimg/{wanted}");
        return Err((Reason::ImageNotReady, message));
    };
    let missing = format!("PlatformConfig {PLATFORM} does not exist; create it");
    let platform = see(platform, Reason::PlatformNotReady, &missing)?;
    let nvme = launcher(platform, class)?;
    let home = &published.namespace;
    clone_right::judge(right, home, home).map_err(|shut| match shut {
        clone_right::Shut::Denied(message) => (Reason::CloneNotPermitted, message),
        clone_right::Shut::Unknown(why) => (Reason::Unreadable, why),
    })?;
    Ok(Open {
        class,
        image,
        published,
        platform,
        nvme,
    })
}

fn see<'f, T>(seen: &'f Seen<Arc<T>>, reason: Reason, missing: &str) -> Result<&'f T, Shut> {
    match seen {
        Seen::Present(object) => Ok(object),
        Seen::Absent => Err((reason, missing.to_owned())),
        Seen::Unknown(why) => Err((Reason::Unreadable, why.clone())),
    }
}

/// How the launcher gives an NVMe disk; refused while the platform cannot do what the class asks of it.
fn launcher(platform: &PlatformConfig, class: &MacOSMachineClass) -> Result<Nvme, Shut> {
    let nvme = class.spec.system_disk.bus == Bus::Nvme;
    capable(platform, platform.spec.domain_hook.is_some(), nvme)?;
    match current(platform) {
        Some(launcher) => has_nic(launcher, class).map(|()| launcher.nvme),
        None if !nvme => Ok(Nvme::Native),
        None => {
            let message = format!(
                "class {} wants an NVMe disk, and no virt-launcher image has been probed yet for whether it has one; \
                 PlatformConfig {PLATFORM} says when, or use bus: sata",
                class.name_any()
            );
            Err((Reason::PlatformNotReady, message))
        }
    }
}

/// Whether its QEMU has the NIC that the hook puts in: one that it lacks it refuses when the machine starts.
fn has_nic(launcher: &Launcher, class: &MacOSMachineClass) -> Result<(), Shut> {
    const VARIANT: &str = "e1000-82545em";
    let wanted = class.spec.network.model == NicModel::E1000_82545em;
    if !wanted || launcher.nic_models.iter().any(|model| model == VARIANT) {
        return Ok(());
    }
    let message = format!(
        "class {} wants the NIC {VARIANT}, which the QEMU of the virt-launcher image {} does not have: build one that \
         does (docs/launcher.md), or use e1000",
        class.name_any(),
        launcher.digest
    );
    Err((Reason::PlatformNotReady, message))
}

/// Whether KubeVirt starts what a machine is made of: with the hook, or with an NVMe disk. A launcher that was not probed
/// yet is waited for, since a VirtualMachine is rendered once for what its launcher can do; what cannot be read just
/// now leaves what is known.
fn capable(platform: &PlatformConfig, hooked: bool, nvme: bool) -> Result<(), Shut> {
    let conditions = platform.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let stops = |said: &dockerios_api::Condition| match (said.status, said.reason.as_str()) {
        // all that a SATA disk needs is there
        (Verdict::False, reason) if reason == PlatformReason::NvmeMissing.word() => nvme,
        (Verdict::False, _) => hooked || nvme,
        (_, reason) => reason == PlatformReason::NotProbed.word() && (hooked || nvme),
    };
    let needed = [PlatformCondition::GatesEnabled, PlatformCondition::LauncherCapable];
    let shut = needed.into_iter().find_map(|kind| {
        let said = of(conditions, kind.word()).filter(|said| stops(said))?;
        Some(format!("PlatformConfig {PLATFORM}, {kind}: {}", said.message))
    });
    shut.map_or(Ok(()), |message| Err((Reason::PlatformNotReady, message)))
}

/// Whether a VirtualMachine that exists can be started with the launcher that KubeVirt has now, which may be another than
/// the one it was rendered for.
///
/// # Errors
/// It would not start.
pub(super) fn startable(facts: &Facts, vm: &VirtualMachine) -> Result<(), Shut> {
    let platform = match &facts.platform {
        Seen::Present(platform) => platform,
        // nothing is known against it
        Seen::Absent => return Ok(()),
        Seen::Unknown(why) => return Err((Reason::Unreadable, why.clone())),
    };
    let metadata = vm.spec.template.metadata.as_ref();
    let note = |key: &str| {
        metadata
            .and_then(|metadata| metadata.annotations.get(key))
            .map(String::as_str)
    };
    // what the hook is told says whether it gives an NVMe disk; a machine without a hook has a SATA disk
    let hooked = note(HOOK_SIDECARS).is_some();
    capable(platform, hooked, hooked && note(NVME) != Some("off"))
}

/// Nothing of the machine runs and it has no VirtualMachine: makes it, or says what it waits for.
pub(super) fn proceed(pass: &mut Pass, objects: &Objects) {
    let facts = pass.facts;
    // disks that are there need no right, and that they were cloned must stay known: else one that is lost is cloned anew
    let right = match pass.held(Condition::DiskCloned) {
        true => &Seen::Present(true),
        false => &facts.clone_right,
    };
    let open = match gates(
        &facts.machine.spec.machine_class_name,
        &facts.class,
        &facts.namespace,
        &facts.image,
        &facts.platform,
        right,
    ) {
        Ok(open) => open,
        Err((reason, message)) => {
            if reason == Reason::CloneNotPermitted {
                pass.say(Condition::DiskCloned, false, reason, &message);
            }
            return wait(pass, reason, message);
        }
    };
    let held = match held(facts) {
        Ok(held) => held,
        Err(why) => return pass.unreadable(&why),
    };
    if let Err((reason, why)) = fit(facts, open.class) {
        return wait(pass, reason, why);
    }
    let per_machine = open.class.spec.identity.kind == IdentityKind::PerMachine;
    if per_machine && held.is_none() {
        if let Some(name) = carried(facts, objects) {
            let message = format!("its objects carry identity {name}, whose record of it is being restored");
            return allocating(pass, message);
        }
        return queue(pass, &open, true);
    }
    if held.is_none() && objects.none() {
        return queue(pass, &open, false);
    }
    make(pass, objects, &open, held);
}

/// Whether the bootdisks of its pool are any for its class: the pool may have changed since the class was admitted.
fn fit(facts: &Facts, class: &MacOSMachineClass) -> Result<(), Shut> {
    if class.spec.gpu.is_none() || class.spec.identity.per_machine.is_none() {
        return Ok(());
    }
    let problem = match &facts.pool {
        Seen::Present(pool) => without_gpu_template(class, pool),
        Seen::Absent => None,
        Seen::Unknown(why) => return Err((Reason::Unreadable, why.clone())),
    };
    problem.map_or(Ok(()), |(problem, way_out)| {
        let message = format!("class {}: {problem}; {way_out}", class.name_any());
        Err((Reason::PoolUnfit, message))
    })
}

/// Whether an identity's bootdisk is of the template for cards that holds now; while there is none, of one that held once.
/// The pool, or the template, may have changed a moment ago, and the identity is still Available until its own pass takes
/// its bootdisk away.
fn built_for_card(open: &Open, given: &MachineIdentity) -> bool {
    let builder = open.platform.spec.boot_disk_builder.as_ref();
    let template = builder.and_then(|builder| builder.template(BootDiskTemplate::GPU));
    let built = given.status.as_ref().and_then(|status| status.boot_disk.as_ref());
    match (template, built) {
        (Some(template), Some(built)) => built.template_sha256 == template.sha256,
        (None, Some(built)) => built.template == BootDiskTemplate::GPU,
        // without a bootdisk none is taken
        (_, None) => false,
    }
}

/// The identity that names the machine in its claimRef.
pub(super) fn held(facts: &Facts) -> Result<Option<&MachineIdentity>, String> {
    match &facts.held {
        Seen::Present(held) => Ok(held.first().map(AsRef::as_ref)),
        Seen::Absent => Ok(None),
        Seen::Unknown(why) => Err(why.clone()),
    }
}

/// The identity that objects of the machine carry by label.
fn carried(facts: &Facts, objects: &Objects) -> Option<String> {
    let template = |vm: &&VirtualMachine| {
        vm.spec
            .template
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.labels.get(IDENTITY).cloned())
    };
    let labelled = |labels: &std::collections::BTreeMap<String, String>| labels.get(IDENTITY).cloned();
    let of_vm = objects.vm.iter().find_map(template);
    let of_vmi = || objects.vmi.and_then(|vmi| labelled(vmi.labels()));
    let of_pod = || objects.pods.iter().find_map(|pod| labelled(pod.labels()));
    let of_disk = || {
        facts
            .data_volumes
            .present()?
            .iter()
            .find_map(|volume| labelled(volume.labels()))
    };
    of_vm.or_else(of_vmi).or_else(of_pod).or_else(of_disk)
}

/// In the line for room and, when asked for, an identity.
fn queue(pass: &mut Pass, open: &Open, identity: bool) {
    let facts = pass.facts;
    let rules = open
        .platform
        .spec
        .storage
        .as_ref()
        .map_or(&[][..], |storage| &storage.headroom);
    let uid = facts.machine.uid().unwrap_or_default();
    match turn(&facts.line, rules, &uid) {
        Turn::Unreadable(why) => pass.unreadable(&why),
        Turn::Behind(class) => {
            let message = format!("an older machine waits for room in storage class {class}; first come, first served");
            pass.say(Condition::StorageHeadroom, false, Reason::BelowThreshold, &message);
            pass.draft.awaits_room_in = Some(class.into());
            wait(pass, Reason::BelowThreshold, message);
        }
        Turn::NoRoom(class, room) => {
            let (reason, message) = short(&class, &room);
            let verdict = match room {
                // what is not known opens no class that was closed
                Room::Unknown(_) => Verdict::Unknown,
                _ => {
                    pass.draft.awaits_room_in = Some(class.into());
                    Verdict::False
                }
            };
            pass.say(Condition::StorageHeadroom, verdict, reason, &message);
            wait(pass, reason, message);
        }
        Turn::NoCard(device, cards) => {
            roomy(
                pass,
                rules.is_empty(),
                "there is room for it now; it is not let in yet, for want of a card",
            );
            wait(pass, Reason::NoCardFree, no_card(&device, &cards));
        }
        Turn::NoIdentity => {
            roomy(
                pass,
                rules.is_empty(),
                "there is room for it now; it is not let in yet, for want of an identity",
            );
            let message = exhausted(facts, open);
            pass.say(Condition::IdentityAllocated, false, Reason::IdentityExhausted, &message);
            wait(pass, Reason::IdentityExhausted, message);
        }
        Turn::Go(given) => {
            roomy(pass, rules.is_empty(), "there was room when it was let in");
            match (identity, given) {
                (false, _) => make(pass, &Objects::default(), open, None),
                (true, Some(given)) => {
                    let given = preferred(facts).unwrap_or(given);
                    if open.class.spec.gpu.is_some() && !built_for_card(open, &given) {
                        let message = format!(
                            "identity {} would be its own, and is built again from {} first; it is taken once that is done",
                            given.name_any(),
                            BootDiskTemplate::GPU.field()
                        );
                        return wait(pass, Reason::IdentityExhausted, message);
                    }
                    take(pass, &given)
                }
                (true, None) => pass.unreadable("the class changed while it was looked at"),
            }
        }
    }
}

/// The identity that the machine had by its status, if it can be taken: a cache that shows it free is then behind,
/// and the write at its resourceVersion says so.
fn preferred(facts: &Facts) -> Option<Arc<MachineIdentity>> {
    let name = facts.machine.status.as_ref()?.identity_ref.as_ref()?;
    let known = facts.line.identities.present()?;
    known
        .iter()
        .find(|i| *i.name_any() == **name && identity::takeable(i).is_ok())
        .cloned()
}

fn take(pass: &mut Pass, given: &MachineIdentity) {
    match identity::take(given, pass.machine(), pass.now) {
        Ok(step) => {
            pass.plan.then(step);
            let message = match &pass.facts.refusal {
                Some(refusal) => format!("taking identity {}: {}", given.name_any(), refusal.message),
                None => format!("taking identity {}", given.name_any()),
            };
            allocating(pass, message);
        }
        Err(why) => wait(
            pass,
            Reason::IdentityExhausted,
            format!("identity {}: {why}", given.name_any()),
        ),
    }
}

fn allocating(pass: &mut Pass, message: String) {
    pass.say(
        Condition::IdentityAllocated,
        false,
        Reason::AllocatingIdentity,
        &message,
    );
    pass.sum_up(Phase::AllocatingIdentity, Reason::AllocatingIdentity, message);
}

pub(super) fn wait(pass: &mut Pass, reason: Reason, message: String) {
    if reason == Reason::Unreadable {
        return pass.unreadable(&message);
    }
    pass.look_again();
    pass.sum_up(Phase::Pending, reason, message);
}

fn roomy(pass: &mut Pass, unruled: bool, message: &str) {
    pass.draft.awaits_room_in = None;
    let (reason, message) = match unruled {
        true => (Reason::NotConfigured, "no headroom is asked for"),
        false => (Reason::Sufficient, message),
    };
    pass.say(Condition::StorageHeadroom, true, reason, message);
}

fn short(class: &str, room: &Room) -> (Reason, String) {
    match room {
        Room::Below {
            free,
            reserved,
            floor,
            opens,
            held,
        } => {
            let share = |share: &Share| format!("{} ({} %)", gib(share.bytes), share.percent);
            let (floor, opens) = (share(floor), share(opens));
            let limit = if *held {
                format!("{opens} at which it opens again, closed as it was below its threshold of {floor}")
            } else {
                format!("{floor} that must stay free; it opens again at {opens}")
            };
            let (free, reserved) = (gib(*free), gib(*reserved));
            let message = format!(
                "storage class {class}: {free} free less {reserved} reserved for machines that are being made and this \
                 one is below the {limit}. Nothing that runs is touched. Delete machines or images, or add storage"
            );
            (Reason::BelowThreshold, message)
        }
        Room::Unknown(why) => (
            Reason::CapacityUnknown,
            format!(
                "storage class {class}: how much is free is not known ({why}), and that is not plenty; mend its source in PlatformConfig {PLATFORM}"
            ),
        ),
        Room::Enough { .. } | Room::NotConfigured => (Reason::Sufficient, format!("storage class {class} has room")),
    }
}

fn no_card(device: &str, cards: &Cards) -> String {
    let Cards { total, used, shut } = cards;
    match (total, shut) {
        (0, 0) => format!(
            "no node offers a card {device}: bind one to vfio-pci on its host and permit it in KubeVirt, with its audio \
             function if PlatformConfig names one (docs/gpu.md)"
        ),
        (0, shut) => format!(
            "no node that takes machines offers a card {device}; {shut} are on nodes that are cordoned or not ready: \
             uncordon or mend them"
        ),
        (total, shut) => {
            let free = total.saturating_sub(*used);
            let beside = match shut {
                0 => String::new(),
                shut => format!(" ({shut} more are on nodes that are cordoned or not ready, and do not count)"),
            };
            format!(
                "{free} of {total} cards {device} are free, {used} are other machines'{beside}; a card is never shared. \
                 It waits until a machine with one goes, first come, first served"
            )
        }
    }
}

fn exhausted(facts: &Facts, open: &Open) -> String {
    let name = open
        .class
        .spec
        .identity
        .per_machine
        .as_ref()
        .map_or("", |identity| &identity.pool_name);
    let way_out = "it waits, none is minted. Frees when a machine goes, or raise spec.maxSize";
    match &facts.pool {
        Seen::Present(pool) => {
            let count = pool.status.clone().unwrap_or_default();
            let limit = pool.spec.max_size;
            format!(
                "pool {name} has {} of {} identities available ({} allocated, {} quarantined, {} being made; maxSize {limit}); {way_out}",
                count.available, count.total, count.allocated, count.quarantined, count.preparing
            )
        }
        Seen::Absent => format!("IdentityPool {name} does not exist; create it"),
        Seen::Unknown(why) => format!("pool {name} has none to give, and cannot be read ({why}); {way_out}"),
    }
}

/// Makes all of it that is not there.
pub(super) fn make(pass: &mut Pass, objects: &Objects, open: &Open, identity: Option<&MachineIdentity>) {
    let steps = match render_all(pass.facts, open, identity) {
        Ok(steps) => steps,
        Err(problem) => return wait(pass, Reason::PlatformNotReady, problem.to_string()),
    };
    let exists = |object: &Object| {
        let name = object.id().name;
        objects.volumes.contains_key(&name)
            || objects.data_volumes.contains_key(&name)
            || objects.vms.iter().any(|vm| vm.name_any() == name)
    };
    let missing = steps
        .into_iter()
        .filter(|step| !matches!(step, Step::Create(object) if exists(object)));
    pass.plan.steps.extend(missing);
    if let Some((reason, message)) = pass.refused() {
        if reason == Reason::CloneNotPermitted {
            pass.say(Condition::DiskCloned, false, reason, &message);
        }
        return pass.sum_up(Phase::Pending, reason, message);
    }
    let message = format!(
        "its disks are being cloned from image {}; the guest gets its system disk as {}",
        open.image.name_any(),
        bus_words(open)
    );
    if !pass.held(Condition::DiskCloned) {
        pass.say(Condition::DiskCloned, false, Reason::Cloning, &message);
    }
    pass.sum_up(Phase::Cloning, Reason::Cloning, message);
}

/// How the guest sees its system disk, and by which means.
fn bus_words(open: &Open) -> String {
    match (open.class.spec.system_disk.bus, open.nvme) {
        (Bus::Sata, _) => "SATA, as its class says".to_owned(),
        (Bus::Nvme, Nvme::Override) => "NVMe (Override: QEMU's frontend of a SATA disk is replaced)".to_owned(),
        (Bus::Nvme, mode) => format!("NVMe ({mode:?}, by libvirt itself)"),
    }
}

fn render_all(facts: &Facts, open: &Open, identity: Option<&MachineIdentity>) -> render::Rendered<Vec<Step>> {
    let management = open.platform.spec.management.as_ref();
    let address = management.and_then(|management| management.collector_address.as_deref());
    let input = render::Input {
        machine: &facts.machine,
        class: &open.class.spec,
        image: &open.image.spec,
        published: open.published,
        identity,
        platform: &open.platform.spec,
        nvme: open.nvme,
        collector_url: address.unwrap_or(&facts.collector_url),
        platform_namespace: &facts.platform_namespace,
    };
    let mut steps: Vec<Step> = render::hook_config(&input)?
        .map(Step::CreateHookConfig)
        .into_iter()
        .collect();
    steps.push(Step::CreateGuestConfig(render::guest_config(&input)?));
    steps.extend(render::data_volumes(&input)?.into_iter().map(Step::Create));
    steps.push(Step::Create(render::virtual_machine(&input)?));
    Ok(steps)
}
