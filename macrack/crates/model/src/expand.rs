//! From the few bytes of the model to the real API types, on which the real functions of core decide, and back.

use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::{SignedDuration, Timestamp},
};
use macrack_api::{
    InstanceClassSpec, MacNode, MacNodeClass, MacNodeClassSpec, MacNodeLease, MacNodeLeaseSpec, MacNodeLeaseStatus,
    MacNodeSpec, MacNodeStatus, MacOSInstance, MacOSInstanceSpec, MacOSInstanceStatus,
    instance::macos_instance::{PowerState, Resources},
    names,
    rack::{
        lease::{LeaseEnd, LeaseEndReason},
        node::{self, AgentStatus, Hardware, HostFacts, Quarantine, QuarantineReason, QuotaFacts, Retirement, Vm},
        node_class::Chassis,
    },
};
use macrack_core::render::node as render;
use serde_json::json;

use crate::world::{End, Hour, Instance, Lease, LeaseRef, Mac, OWNER, Slot, Uid};

/// The hour 0.
pub fn time(hour: Hour) -> Timestamp {
    let offset = SignedDuration::from_hours(i64::from(hour));
    Timestamp::UNIX_EPOCH.checked_add(SignedDuration::from_hours(490_000) + offset).unwrap_or(Timestamp::MAX)
}

/// The hour of a moment, rounded up.
pub fn hour(moment: Timestamp) -> Hour {
    let seconds = moment.duration_since(time(0)).as_secs().max(0);
    Hour::try_from((seconds + 3599) / 3600).unwrap_or(Hour::MAX)
}

/// uid as the API has it: 36 characters.
pub fn uid(uid: Uid) -> String {
    format!("{uid:0>36}")
}
/// And back; 0 for a text that is none of ours.
pub fn uid_of(text: &str) -> Uid {
    text.trim_start_matches('0').parse().unwrap_or(0)
}
/// Namespace of a tenant.
pub fn namespace(tenant: u8) -> String {
    format!("team-{tenant}")
}
/// Name of every lease.
pub const LEASE: &str = "ci";
/// Name of a MacNode.
pub fn mac_name(n: u8) -> String {
    format!("zzserialn{n}")
}
/// Its serial.
pub fn serial(n: u8) -> String {
    format!("ZZSERIALN{n}")
}
/// The last digit of a name.
pub fn number(name: &str) -> u8 {
    name.bytes().last().map_or(0, |b| b.wrapping_sub(b'0'))
}
/// Name of an instance.
pub fn instance_name(name: u8) -> String {
    format!("build-{name}")
}

fn meta(
    name: String,
    namespace: Option<u8>,
    of: String,
    made: Hour,
    deleted: Option<Hour>,
    fin: Option<&str>,
) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: namespace.map(self::namespace),
        uid: Some(of),
        resource_version: Some("1".into()),
        creation_timestamp: Some(Time(time(made))),
        deletion_timestamp: deleted.map(|h| Time(time(h))),
        finalizers: fin.map(|f| vec![f.to_owned()]),
        ..ObjectMeta::default()
    }
}

/// The one class of Macs.
pub fn class() -> MacNodeClass {
    MacNodeClass::new(
        "mini",
        MacNodeClassSpec {
            chassis: Chassis::MacMini,
            model: "Mac16,11".into(),
            chip: "M4 Pro".into(),
            cpu_cores: 14,
            memory: "64Gi".into(),
            storage: "2T".into(),
            link_speed: "10G".into(),
            host_reserve: Default::default(),
        },
    )
}

/// The one class of instances; two fit.
pub fn size() -> InstanceClassSpec {
    InstanceClassSpec { cpu_cores: 4, memory: "16Gi".into(), disk: "100G".into(), display: None }
}

fn agent(n: u8, mac: &Mac) -> Option<AgentStatus> {
    let report = mac.report.as_ref()?;
    let hardware = Hardware {
        serial: serial(n),
        model: "Mac16,11".into(),
        chip: "M4 Pro".into(),
        cpu_cores: 14,
        memory: "64Gi".into(),
        storage: "2T".into(),
        link_speed: Some("10G".into()),
    };
    let vm = |(of, state): &(Uid, node::VmState)| Vm {
        uid: uid(*of),
        state: *state,
        guest_ready: false,
        message: None,
        since: None,
        cloned_by: None,
        wipe: None,
    };
    Some(AgentStatus {
        boot_id: "boot".into(),
        hardware: Some(hardware),
        host: Some(HostFacts { entitled: true, keychain_unlocked: true, auto_login: true, ..HostFacts::default() }),
        quota: QuotaFacts { checked_boot_id: Some("boot".into()), ..Default::default() },
        vms: report.vms.iter().map(vm).collect(),
        last_lease: report
            .last
            .map(|(lease, floor)| node::LeaseRecord { uid: uid(lease), earliest_release_at: Time(time(floor)) }),
        ..AgentStatus::default()
    })
}

/// leaseRef as the API has it.
pub fn lease_ref(r: &LeaseRef) -> node::LeaseRef {
    node::LeaseRef {
        namespace: namespace(r.tenant),
        name: LEASE.into(),
        uid: uid(r.lease),
        bound_at: Time(time(r.bound)),
        earliest_release_at: Time(time(r.floor)),
        releasing: r.releasing,
    }
}
/// And back.
pub fn lease_ref_of(r: &node::LeaseRef) -> LeaseRef {
    LeaseRef {
        lease: uid_of(&r.uid),
        tenant: number(&r.namespace),
        bound: hour(r.bound_at.0),
        floor: hour(r.earliest_release_at.0),
        releasing: r.releasing,
    }
}

fn slot(s: &Slot) -> node::Slot {
    let (namespace, name) = match s.name {
        Some(name) => (namespace(OWNER[usize::from(name)]), instance_name(name)),
        None => ("none".into(), "orphan".into()),
    };
    node::Slot { slot: i32::from(s.slot), uid: uid(s.uid), namespace, name, order: s.order }
}
/// A slot as the model has it.
pub fn slot_of(s: &node::Slot) -> Slot {
    let name = (s.name != "orphan").then(|| number(&s.name));
    Slot { slot: u8::try_from(s.slot).unwrap_or(u8::MAX), uid: uid_of(&s.uid), name, order: s.order }
}

/// A MacNode.
pub fn mac(n: u8, mac: &Mac) -> MacNode {
    let spec = MacNodeSpec {
        serial: serial(n),
        node_class_name: "mini".into(),
        unschedulable: false,
        drain: false,
        retirement: mac.retired.then(|| Retirement { reason: "HardwareFailure".into() }),
        approved_reboot: None,
        cleared_quarantine: None,
    };
    let mut node = MacNode::new(&mac_name(n), spec);
    let finalizer = mac.finalizer.then_some(names::FINALIZER_NODE);
    node.metadata = meta(mac_name(n), None, uid(mac.uid), 0, mac.deleting.then_some(0), finalizer);
    let lost =
        Quarantine { reason: QuarantineReason::ReattachFailed.into(), since: Time(time(0)), boot_id: "boot".into() };
    node.status = Some(MacNodeStatus {
        lease_ref: mac.lease.as_ref().map(lease_ref),
        slots: mac.slots.iter().map(slot).collect(),
        agent: agent(n, mac),
        quarantine: mac.quarantined.then_some(lost).into_iter().collect(),
        node_name: Some(names::node(&mac_name(n))),
        ..MacNodeStatus::default()
    });
    node
}

/// Its Node, Ready and with the taint that its leaseRef implies: Nodes, access and pods are left out of the model.
pub fn kube_node(of: &MacNode) -> Node {
    let tainting = of.status.as_ref().and_then(|s| s.lease_ref.as_ref()).filter(|r| !r.releasing);
    let mut node: Node = serde_json::from_value(render::new(of, tainting)).unwrap_or_default();
    node.status = serde_json::from_value(json!({ "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": Time(time(0)) },
    ] }))
    .ok();
    node
}

/// A MacNodeLease.
pub fn lease(l: &Lease) -> MacNodeLease {
    let spec = MacNodeLeaseSpec {
        node_class_name: "mini".into(),
        serial: None,
        minimum_duration: format!("{}h", l.minimum),
        maximum_duration: l.maximum.map(|h| format!("{h}h")),
        prefetch_image_names: Vec::new(),
    };
    let mut lease = MacNodeLease::new(LEASE, spec);
    let finalizer = l.finalizer.then_some(names::FINALIZER_LEASE);
    lease.metadata = meta(LEASE.into(), Some(l.tenant), uid(l.uid), l.made, l.deleted, finalizer);
    let end = |end: End| LeaseEnd {
        reason: match end {
            End::Expired => LeaseEndReason::Expired,
            End::Broken => LeaseEndReason::Broken,
        },
        at: Time(time(0)),
    };
    lease.status = Some(MacNodeLeaseStatus {
        serial: l.told.map(|t| serial(t.mac)),
        bound_at: l.told.map(|t| Time(time(t.bound))),
        earliest_release_at: l.told.map(|t| Time(time(t.floor))),
        end: l.end.map(end),
        ..MacNodeLeaseStatus::default()
    });
    lease
}

/// A MacOSInstance.
pub fn instance(name: u8, i: &Instance) -> MacOSInstance {
    let spec = MacOSInstanceSpec {
        lease_name: LEASE.into(),
        instance_class_name: "small".into(),
        image_name: "sequoia".into(),
        power_state: if i.off { PowerState::Stopped } else { PowerState::Running },
        resources: Resources::default(),
        first_boot: None,
        restart_policy: Default::default(),
    };
    let mut instance = MacOSInstance::new(&instance_name(name), spec);
    let finalizer = i.finalizer.then_some(names::FINALIZER_INSTANCE);
    let tenant = OWNER[usize::from(name)];
    instance.metadata = meta(instance_name(name), Some(tenant), uid(i.uid), i.made, i.deleted, finalizer);
    instance.status =
        Some(MacOSInstanceStatus { lease_uid: i.lease.map(uid), lease_full: i.full, ..Default::default() });
    instance
}
