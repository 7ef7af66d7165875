//! `MacOSMachineClass`: combinations that can never work are refused with the reason.

use dockerios_api::{
    IdentityPool, MacOSImage, MacOSMachineClass, PlatformConfig,
    config::platform_config::VendorReset,
    identity::pool::BootDiskTemplate,
    machine::class::{Bus, NicModel},
};
use dockerios_identity::Model;
use dockerios_kubevirt::names::{CPU_VENDOR_AMD, CPU_VENDOR_INTEL};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::{
    Bench, Verdict,
    cpu::{Avx2, avx2, foreign, of_host},
    names, storage, version,
};
use crate::seen::Seen;

/// The least memory that a macOS is installed with: Apple asks for 2 GB up to macOS 10.14, and for 4 GB since. What is less
/// is mostly a number whose unit was forgotten, and KubeVirt would refuse every machine of it.
const LEAST_MEMORY: u64 = 2 << 30;
const POOL_NAME: &str = "spec.identity.perMachine.poolName";

/// What the rules look at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The class as it is to be.
    pub class: MacOSMachineClass,
    /// PlatformConfig `default`.
    pub platform: Seen<PlatformConfig>,
    /// The image that it names.
    pub image: Seen<MacOSImage>,
    /// The identity pool that it names; absent for a Shared class.
    pub pool: Seen<IdentityPool>,
    /// The storage class of its system disk.
    pub storage: Seen<StorageClass>,
}

/// Judges a class.
pub fn judge(facts: &Facts) -> Verdict {
    let mut bench = Bench::of(&facts.class);
    memory(&mut bench, facts);
    network(&mut bench, facts);
    vendor(&mut bench, facts);
    if let Some(platform) = bench.see(&facts.platform, "spec", "PlatformConfig default") {
        hook(&mut bench, facts, platform);
        gpu(&mut bench, facts, platform);
    }
    let own = facts.class.spec.identity.per_machine.as_ref();
    let pool = own.and_then(|own| bench.see(&facts.pool, POOL_NAME, &format!("IdentityPool {}", own.pool_name)));
    if let Some(pool) = pool {
        template(&mut bench, facts, pool);
    }
    if let Some(image) = bench.see(
        &facts.image,
        "spec.imageName",
        &format!("MacOSImage {}", facts.class.spec.image_name),
    ) {
        disk(&mut bench, facts, image);
        processors(&mut bench, facts, image);
        if let Some(pool) = pool {
            identity(&mut bench, pool, image);
        }
    }
    let wanted = &facts.class.spec.system_disk.storage_class_name;
    if let Some(class) = bench.see(
        &facts.storage,
        "spec.systemDisk.storageClassName",
        &format!("StorageClass {wanted}"),
    ) && !storage::discards(class)
    {
        let advice = format!(
            "volumes of {wanted} ({}) are not known to discard, so what guests delete is never given back; if they \
             do, say so: kubectl annotate storageclass {wanted} {}=true",
            class.provisioner,
            storage::DISCARDS
        );
        bench.warn("spec.systemDisk.storageClassName", advice);
    }
    bench.done()
}

fn memory(bench: &mut Bench, facts: &Facts) {
    let (memory, cpu) = (&facts.class.spec.memory, &facts.class.spec.cpu);
    let bytes = match memory.size.bytes() {
        Ok(bytes) => bytes,
        Err(why) => return bench.refuse("class-memory", "spec.memory.size", why.to_string(), "correct it"),
    };
    if bytes < LEAST_MEMORY {
        bench.refuse(
            "class-memory",
            "spec.memory.size",
            format!(
                "{} is less than any macOS boots with (a number without a unit is bytes)",
                memory.size
            ),
            "use 2Gi or more",
        );
    }
    if let Some(page) = memory.hugepages
        && bytes % page.bytes() != 0
    {
        bench.refuse(
            "hugepages-divide-memory",
            "spec.memory.hugepages",
            format!("pages of {} do not divide {}", page.text(), memory.size),
            format!("choose a size that is a multiple of {}", page.text()),
        );
    }
    if cpu.numa.is_some() && memory.hugepages.is_none() {
        bench.refuse(
            "numa-needs-hugepages",
            "spec.cpu.numa",
            "KubeVirt passes the host's NUMA layout on only with hugepages",
            "set spec.memory.hugepages, or leave numa out",
        );
    }
}

fn network(bench: &mut Bench, facts: &Facts) {
    if facts.class.spec.network.model == NicModel::Virtio {
        bench.refuse(
            "nic-without-driver",
            "spec.network.model",
            "macOS has no driver for virtio on x86 that Apple documents, and a guest without network never gets Ready",
            "use e1000, or e1000-82545em",
        );
    }
}

/// macOS knows Intel's processors alone. A named model gets their vendor from the domain hook wherever it runs; the
/// host's own does not, and neither does any model without the hook: such machines run on Intel hosts only.
fn vendor(bench: &mut Bench, facts: &Facts) {
    let spec = &facts.class.spec;
    let model = &spec.cpu.model;
    if foreign(model) {
        return bench.refuse(
            "cpu-vendor-intel",
            "spec.cpu.model",
            format!("{model} is no processor of Intel's, and macOS has no kernel for others"),
            "use one of Intel's, such as Haswell-noTSX: the domain hook gives it their vendor on AMD hosts, too",
        );
    }
    let hookless = |platform: &PlatformConfig| platform.spec.domain_hook.is_none();
    let why = if of_host(model) {
        format!("{model} is the host's own processor")
    } else if facts.platform.present().is_some_and(hookless) {
        format!("{model} shows the host's vendor without the domain hook, and PlatformConfig names none")
    } else {
        return;
    };
    let label = |key: &str| spec.placement.node_selector.get(key).map(|value| &*value.0);
    if label(CPU_VENDOR_AMD) == Some("true") || label(CPU_VENDOR_INTEL).is_some_and(|value| value != "true") {
        bench.refuse(
            "cpu-vendor-node",
            "spec.placement.nodeSelector",
            format!("{why}, macOS boots on Intel's alone, and the class asks for other nodes"),
            format!(
                "take {CPU_VENDOR_AMD} and {CPU_VENDOR_INTEL} out, or name a model of Intel's with the domain hook set"
            ),
        );
    }
}

fn hook(bench: &mut Bench, facts: &Facts, platform: &PlatformConfig) {
    if platform.spec.domain_hook.is_some() {
        return;
    }
    let spec = &facts.class.spec;
    let way_out = "set spec.domainHook.image of PlatformConfig default";
    if spec.system_disk.bus == Bus::Nvme {
        bench.refuse(
            "nvme-needs-hook",
            "spec.systemDisk.bus",
            "nvme is put in by the domain hook, and PlatformConfig names none",
            format!("{way_out}, or use sata"),
        );
    }
    if spec.network.model == NicModel::E1000_82545em {
        bench.refuse(
            "nic-needs-hook",
            "spec.network.model",
            "e1000-82545em is put in by the domain hook, and PlatformConfig names none",
            format!("{way_out}, or use e1000"),
        );
    }
}

fn gpu(bench: &mut Bench, facts: &Facts, platform: &PlatformConfig) {
    let Some(gpu) = &facts.class.spec.gpu else { return };
    let field = "spec.gpu.deviceName";
    let permitted = &platform.spec.permitted_gpus;
    let Some(found) = permitted.iter().find(|card| card.device_name == gpu.device_name) else {
        let all: Vec<&str> = permitted.iter().map(|card| card.device_name.as_str()).collect();
        return bench.refuse(
            "gpu-permitted",
            field,
            format!(
                "{} is not in permittedGPUs of PlatformConfig default ({})",
                gpu.device_name,
                names(&all, 8)
            ),
            "name one of these, or add it there",
        );
    };
    if found.vendor_reset == VendorReset::Unacknowledged {
        bench.refuse(
            "gpu-vendor-reset",
            field,
            format!(
                "nobody has said whether {} can be reset between two guests; many AMD cards cannot, and the next guest \
                 gets a dead card until the host reboots",
                gpu.device_name
            ),
            "set vendorReset of that card in PlatformConfig default to Installed (the hosts load vendor-reset) or NotNeeded",
        );
    }
}

fn disk(bench: &mut Bench, facts: &Facts, image: &MacOSImage) {
    let disk = &facts.class.spec.system_disk;
    let field = "spec.systemDisk.size";
    let bytes = match disk.size.bytes() {
        Ok(bytes) => bytes,
        Err(why) => return bench.refuse("class-disk", field, why.to_string(), "correct it"),
    };
    // an image past its schema says so in its own condition
    let Ok(golden) = image.spec.size.bytes() else { return };
    let name = image.name_any();
    if bytes < golden {
        bench.refuse(
            "disk-holds-image",
            field,
            format!(
                "{} is less than the {} of MacOSImage {name}, which no clone can shrink",
                disk.size, image.spec.size
            ),
            format!("use {}", image.spec.size),
        );
    } else if bytes > golden {
        bench.warn(
            field,
            format!(
                "larger than MacOSImage {name} ({}): each clone costs a pod in the platform namespace that grows it, \
                 and the guest has to grow its own file system",
                image.spec.size
            ),
        );
    }
    if disk.storage_class_name != image.spec.storage_class_name {
        bench.warn(
            "spec.systemDisk.storageClassName",
            format!(
                "MacOSImage {name} is kept in {}: clones into another storage class are full copies",
                image.spec.storage_class_name
            ),
        );
    }
}

fn processors(bench: &mut Bench, facts: &Facts, image: &MacOSImage) {
    let Some(major) = version::major(&image.spec.os_version).filter(|major| *major >= version::FIRST_WITH_AVX2) else {
        return;
    };
    let cpu = &facts.class.spec.cpu;
    let (rule, field) = ("cpu-runs-macos", "spec.cpu.model");
    let needs = format!("macOS {major} (MacOSImage {}) needs AVX2", image.name_any());
    match avx2(cpu) {
        Avx2::Has => {}
        Avx2::Lacks => bench.refuse(
            rule,
            field,
            format!("{needs}, which {} does not have", cpu.model),
            "use Haswell-noTSX or newer, or an image of macOS 12 or older",
        ),
        Avx2::Disabled => bench.refuse(
            rule,
            "spec.cpu.features",
            format!("{needs}, and the class disables it"),
            "remove avx2 from the features, or use an image of macOS 12 or older",
        ),
        Avx2::Unknown => bench.warn(
            field,
            format!(
                "{needs}; whether {} has it is not known here: add the feature {{name: avx2, policy: require}}",
                cpu.model
            ),
        ),
    }
}

fn identity(bench: &mut Bench, pool: &IdentityPool, image: &MacOSImage) {
    // an unknown model or version is said where it stands
    let (Ok(model), Some(major)) = (Model::find(&pool.spec.model), version::major(&image.spec.os_version)) else {
        return;
    };
    if !model.runs_macos(major) {
        bench.refuse(
            "identity-runs-macos",
            POOL_NAME,
            format!(
                "pool {} makes identities of {}, whose last macOS is {}; MacOSImage {} is macOS {}",
                pool.name_any(),
                model.name,
                model.newest_macos,
                image.name_any(),
                image.spec.os_version
            ),
            format!(
                "use a pool of another model ({}), or an older image",
                names(&able(major), 12)
            ),
        );
    }
}

/// The boot-args that a card wants are in its own template, never in the machine.
fn template(bench: &mut Bench, facts: &Facts, pool: &IdentityPool) {
    if let Some((problem, way_out)) = without_gpu_template(&facts.class, pool) {
        bench.refuse("gpu-own-template", POOL_NAME, problem, way_out);
    } else if facts.class.spec.gpu.is_none() && pool.spec.boot_disk.template == BootDiskTemplate::GPU {
        let advice = format!(
            "the bootdisks of pool {} have the boot-args of a card, and this class asks for none: give it a pool of its own",
            pool.name_any()
        );
        bench.warn(POOL_NAME, advice);
    }
}

/// Why a machine of that class cannot boot from a bootdisk of that pool, and the way out; none when it can.
pub(crate) fn without_gpu_template(class: &MacOSMachineClass, pool: &IdentityPool) -> Option<(String, String)> {
    if class.spec.gpu.is_none() || pool.spec.boot_disk.template == BootDiskTemplate::GPU {
        return None;
    }
    let name = pool.name_any();
    let problem = format!(
        "pool {name} builds its bootdisks from {}, and a machine with a card needs boot-args of its own, which are in {}",
        BootDiskTemplate::Default.field(),
        BootDiskTemplate::GPU.field()
    );
    let way_out = format!("name a pool with spec.bootDisk.template: GPU, or set that in pool {name}");
    Some((problem, way_out))
}

fn able(major: u8) -> Vec<&'static str> {
    Model::mintable()
        .filter(|model| model.runs_macos(major))
        .map(|model| model.name)
        .collect()
}
