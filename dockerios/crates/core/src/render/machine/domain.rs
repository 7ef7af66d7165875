//! The instance: board, processors, memory, devices, networks.
//!
//! Invariant: every value that KubeVirt would choose otherwise than macOS needs is said here (one socket, no hotplug,
//! no secure boot, no balloon), so that nothing of it is written back into the spec later.

use std::collections::BTreeMap;

use dockerios_api::{
    config::platform_config::PermittedGpu,
    machine::class::{
        Cpu as ClassCpu, CpuFeature as ClassFeature, FeaturePolicy, NicModel, TaintEffect, Toleration as Accepted,
        TolerationOperator,
    },
};
use dockerios_kubevirt::{
    Present,
    domain::{
        Bootloader, Clock, Cpu, CpuFeature, Devices, Domain, Efi, Firmware, HostDevice, Hugepages, Input as Pointer,
        Interface, Machine, Memory, Multus, Network, Numa, Timer, Timers, Utc, Video,
    },
    names::CPU_VENDOR_INTEL,
    vmi::VirtualMachineInstanceSpec,
};
use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::api::resource::Quantity};

use super::{Input, Rendered, Who, class_field, grace_seconds, vendor_by_hook, volumes};
use crate::admit::version;

/// The NIC on the pod network.
const DEFAULT: &str = "default";
/// The second NIC, for reports.
const MANAGEMENT: &str = "management";

pub(super) fn instance(input: &Input, who: &Who) -> Rendered<VirtualMachineInstanceSpec> {
    let placement = &input.class.placement;
    let grace = grace_seconds(input.class)?;
    Ok(VirtualMachineInstanceSpec {
        architecture: Some("amd64".to_owned()),
        eviction_strategy: Some("External".to_owned()),
        termination_grace_period_seconds: i64::try_from(grace).ok(),
        node_selector: node_selector(input),
        tolerations: placement.tolerations.iter().map(toleration).collect(),
        domain: Domain {
            machine: Some(Machine {
                type_: Some("q35".to_owned()),
            }),
            firmware: Some(firmware(who)),
            clock: Some(clock()),
            cpu: Some(cpu(&input.class.cpu, &input.image.os_version)),
            memory: Some(memory(input)),
            devices: devices(input, who)?,
            ..Domain::default()
        },
        networks: networks(input),
        volumes: volumes::volumes(input)?,
        ..VirtualMachineInstanceSpec::default()
    })
}

/// The class's, and Intel hosts where the processor shows the host's own vendor.
fn node_selector(input: &Input) -> BTreeMap<String, String> {
    let class = &input.class.placement.node_selector;
    let mut all: BTreeMap<String, String> = class
        .iter()
        .map(|(key, value)| (key.clone(), value.0.clone()))
        .collect();
    if !vendor_by_hook(input) {
        all.entry(CPU_VENDOR_INTEL.to_owned())
            .or_insert_with(|| "true".to_owned());
    }
    all
}

fn firmware(who: &Who) -> Firmware {
    Firmware {
        bootloader: Some(Bootloader {
            efi: Some(Efi {
                secure_boot: Some(false),
                persistent: None,
            }),
        }),
        uuid: Some(who.uuid.clone()),
        serial: Some(who.serial.clone()),
    }
}

fn clock() -> Clock {
    let policy = |policy: &str| {
        Some(Timer {
            tick_policy: Some(policy.to_owned()),
            present: None,
        })
    };
    Clock {
        utc: Some(Utc::default()),
        timer: Some(Timers {
            hpet: Some(Timer {
                present: Some(false),
                tick_policy: None,
            }),
            pit: policy("delay"),
            rtc: policy("catchup"),
            kvm: None,
        }),
    }
}

fn cpu(class: &ClassCpu, os_version: &str) -> Cpu {
    let count = |n: i32| u32::try_from(n).ok();
    Cpu {
        sockets: Some(1),
        max_sockets: Some(1),
        cores: count(class.cores),
        threads: count(class.threads),
        model: Some(class.model.clone()),
        features: features(class, os_version),
        dedicated_cpu_placement: class.dedicated.then_some(true),
        isolate_emulator_thread: class.isolate_emulation.then_some(true),
        numa: class.numa.map(|_| Numa {
            guest_mapping_passthrough: Some(Present {}),
        }),
    }
}

/// The class's, and what macOS needs beside them unless the class speaks of it: a TSC that does not drift, and AVX2. A
/// node without is then never chosen, where otherwise a guest would hang in its loader until its timeout.
fn features(class: &ClassCpu, os_version: &str) -> Vec<CpuFeature> {
    let said = |name: &str| class.features.iter().any(|feature| feature.name == name);
    let mut all: Vec<CpuFeature> = class.features.iter().map(feature).collect();
    // an image whose version cannot be read is judged where it stands; it is surely no older macOS
    let modern = version::major(os_version).is_none_or(|major| major >= version::FIRST_WITH_AVX2);
    for (name, needed) in [("avx2", modern), ("invtsc", true)] {
        if needed && !said(name) {
            all.push(CpuFeature {
                name: name.to_owned(),
                policy: Some("require".to_owned()),
            });
        }
    }
    all
}

fn feature(class: &ClassFeature) -> CpuFeature {
    let policy = match class.policy {
        FeaturePolicy::Require => "require",
        FeaturePolicy::Disable => "disable",
    };
    CpuFeature {
        name: class.name.clone(),
        policy: Some(policy.to_owned()),
    }
}

fn memory(input: &Input) -> Memory {
    let class = &input.class.memory;
    let size = Quantity(class.size.0.clone());
    // with NUMA passthrough KubeVirt refuses maxGuest; without it, it would reserve for hotplug
    let fixed = input.class.cpu.numa.is_none();
    Memory {
        max_guest: fixed.then(|| size.clone()),
        guest: Some(size),
        hugepages: class.hugepages.map(|pages| Hugepages {
            page_size: Some(Quantity(pages.text().to_owned())),
        }),
    }
}

fn devices(input: &Input, who: &Who) -> Rendered<Devices> {
    Ok(Devices {
        autoattach_mem_balloon: Some(false),
        autoattach_serial_console: Some(false),
        autoattach_vsock: Some(false),
        disable_hotplug: Some(true),
        video: Some(Video {
            type_: Some("vga".to_owned()),
        }),
        disks: volumes::disks(who),
        interfaces: interfaces(input, who),
        gpus: gpus(input)?,
        inputs: vec![Pointer {
            name: "tablet".to_owned(),
            type_: "tablet".to_owned(),
            bus: Some("usb".to_owned()),
        }],
        ..Devices::default()
    })
}

/// The card and its audio function. Both stand under `gpus`, which takes any permitted PCI device: `hostDevices` would
/// need one more feature gate of KubeVirt.
fn gpus(input: &Input) -> Rendered<Vec<HostDevice>> {
    let Some(gpu) = &input.class.gpu else {
        return Ok(Vec::new());
    };
    let permitted = &input.platform.permitted_gpus;
    let card: &PermittedGpu = permitted
        .iter()
        .find(|card| card.device_name == gpu.device_name)
        .ok_or_else(|| {
            let problem = format!("{} is not in permittedGPUs of PlatformConfig default", gpu.device_name);
            class_field("gpu.deviceName", problem, "name one that is, or add it there")
        })?;
    let device = |name: &str, device: &str| HostDevice {
        name: name.to_owned(),
        device_name: device.to_owned(),
        tag: None,
    };
    let mut all = vec![device("gpu0", &card.device_name)];
    all.extend(card.audio_device_name.iter().map(|audio| device("gpu0-audio", audio)));
    Ok(all)
}

fn interfaces(input: &Input, who: &Who) -> Vec<Interface> {
    let model = match input.class.network.model {
        // the hook puts the variant in, which KubeVirt's own list does not have
        NicModel::E1000 | NicModel::E1000_82545em => "e1000",
        NicModel::Virtio => "virtio",
    };
    let mut all = vec![Interface {
        name: DEFAULT.to_owned(),
        model: Some(model.to_owned()),
        mac_address: who.mac.clone(),
        masquerade: Some(Present {}),
        ..Interface::default()
    }];
    if attachment(input).is_some() {
        all.push(Interface {
            name: MANAGEMENT.to_owned(),
            model: Some(model.to_owned()),
            bridge: Some(Present {}),
            ..Interface::default()
        });
    }
    all
}

fn networks(input: &Input) -> Vec<Network> {
    let mut all = vec![Network {
        name: DEFAULT.to_owned(),
        pod: Some(Present {}),
        multus: None,
    }];
    all.extend(attachment(input).map(|network_name| Network {
        name: MANAGEMENT.to_owned(),
        pod: None,
        multus: Some(Multus {
            network_name,
            default: None,
        }),
    }));
    all
}

/// `namespace/name` of the management network, if there is one.
fn attachment(input: &Input) -> Option<String> {
    let management = input.platform.management.as_ref()?;
    let named = management.network_attachment_ref.as_ref()?;
    Some(format!("{}/{}", named.namespace, named.name))
}

fn toleration(class: &Accepted) -> Toleration {
    let operator = class.operator.map(|operator| match operator {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    });
    let effect = class.effect.map(|effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    });
    Toleration {
        key: class.key.clone(),
        operator: operator.map(str::to_owned),
        value: class.value.as_ref().map(|value| value.0.clone()),
        effect: effect.map(str::to_owned),
        toleration_seconds: None,
    }
}
