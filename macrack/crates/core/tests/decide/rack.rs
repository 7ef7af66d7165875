//! A small rack to decide about: one chassis, its lease, its instances, told in a few words.
//! Every plan about a chassis is judged by `check` before a test sees it.

// what a library of the tests beside it would be, with a test's right to stop at the first surprise
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;
use macrack_api::{
    InstanceClassSpec, MacNode, MacNodeClass, MacNodeClassSpec, MacNodeLease, MacNodeLeaseSpec, MacNodeSpec,
    MacNodeStatus, MacOSImageSpec, MacOSInstance, MacOSInstanceSpec, MacOSInstanceStatus, RackConfigSpec, Span,
    instance::macos_instance::{PowerState, Resources},
    names,
    rack::{
        node::{
            AgentStatus, Hardware, HostFacts, LeaseRef, Order, Quarantine, QuarantineReason, QuotaFacts, Retirement,
            Slot, Vm, VmState,
        },
        node_class::Chassis,
    },
};
use macrack_core::{
    check,
    clock::Clocks,
    decide::{instance, lease, node},
    plan::{Kind, Plan, Ref, Step},
    render::{access, node as render},
    seen::Seen,
};
use serde_json::{Value, json};

pub const SERIAL: &str = "ZZSERIALN1";
pub const NAME: &str = "zzserialn1";
pub const TEAM: &str = "team-a";
pub const LEASE: &str = "ci";

/// `+3h`, `-1s`: that long after the binding.
pub fn at(offset: &str) -> Timestamp {
    let bound: Timestamp = "2026-03-02T09:00:00Z".parse().unwrap();
    let seconds = i64::try_from(offset[1..].parse::<Span>().unwrap().seconds()).unwrap();
    let seconds = if offset.starts_with('-') { -seconds } else { seconds };
    bound.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

pub fn time(offset: &str) -> Time {
    Time(at(offset))
}

/// A uid that can be recognised.
pub fn uid(name: &str) -> String {
    format!("{name:0>36}")
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[derive(Clone)]
pub struct Rack {
    pub clocks: Clocks,
    pub node: MacNode,
    pub class: MacNodeClass,
    pub lease: Seen<MacNodeLease>,
    pub namespace_ending: Seen<bool>,
    pub instances: Vec<MacOSInstance>,
    /// Instances that a slot names and that cannot be read.
    pub unreadable: Vec<String>,
    pub sizes: BTreeMap<String, InstanceClassSpec>,
    pub kube_node: Seen<Node>,
    pub claim: Seen<MacNodeLease>,
    pub pod: Seen<Pod>,
    pub pod_in_slot: Seen<bool>,
    pub agent_answers: bool,
    pub image: Seen<MacOSImageSpec>,
    pub config: RackConfigSpec,
    pub policy_reboots: Seen<Vec<Timestamp>>,
    pub pull_secrets: BTreeMap<String, String>,
}

pub fn class() -> MacNodeClass {
    let spec = MacNodeClassSpec {
        chassis: Chassis::MacMini,
        model: "Mac16,11".into(),
        chip: "M4 Pro".into(),
        cpu_cores: 14,
        memory: "64Gi".into(),
        storage: "2T".into(),
        link_speed: "10G".into(),
        host_reserve: Default::default(),
    };
    MacNodeClass::new("mini", spec)
}

pub fn agent() -> AgentStatus {
    AgentStatus {
        version: "0.1.0".into(),
        boot_id: "boot-1".into(),
        hardware: Some(Hardware {
            serial: SERIAL.into(),
            model: "Mac16,11".into(),
            chip: "M4 Pro".into(),
            cpu_cores: 14,
            memory: "64Gi".into(),
            storage: "2T".into(),
            link_speed: Some("10G".into()),
        }),
        host: Some(HostFacts { entitled: true, keychain_unlocked: true, auto_login: true, ..HostFacts::default() }),
        quota: QuotaFacts { checked_boot_id: Some("boot-1".into()), ..Default::default() },
        ..Default::default()
    }
}

pub fn lease_ref() -> LeaseRef {
    LeaseRef {
        namespace: TEAM.into(),
        name: LEASE.into(),
        uid: uid(LEASE),
        bound_at: time("+0s"),
        earliest_release_at: time("+24h"),
        releasing: false,
    }
}

/// A lease as its tenant wrote it, accepted and not bound.
pub fn new_lease(namespace: &str, name: &str) -> MacNodeLease {
    let spec = MacNodeLeaseSpec {
        node_class_name: "mini".into(),
        serial: None,
        minimum_duration: "24h".into(),
        maximum_duration: None,
        prefetch_image_names: Vec::new(),
    };
    let mut lease = MacNodeLease::new(name, spec);
    lease.metadata.namespace = Some(namespace.into());
    lease.metadata.uid = Some(uid(name));
    lease.metadata.resource_version = Some("1".into());
    lease.metadata.creation_timestamp = Some(time("-1m"));
    lease.metadata.finalizers = Some(vec![names::FINALIZER_LEASE.into()]);
    lease
}

/// The lease as it stands once its binding is told in its own status.
pub fn bound_lease() -> MacNodeLease {
    let mut lease = new_lease(TEAM, LEASE);
    lease.status = Some(object(json!({
        "phase": "Bound", "serial": SERIAL, "nodeName": names::node(NAME),
        "boundAt": time("+0s"), "earliestReleaseAt": time("+24h"),
    })));
    lease
}

pub fn new_instance(name: &str, made: &str) -> MacOSInstance {
    let spec = MacOSInstanceSpec {
        lease_name: LEASE.into(),
        instance_class_name: "small".into(),
        image_name: "sequoia".into(),
        power_state: PowerState::Running,
        resources: Resources::default(),
        first_boot: None,
        restart_policy: Default::default(),
    };
    let mut instance = MacOSInstance::new(name, spec);
    instance.metadata.namespace = Some(TEAM.into());
    instance.metadata.uid = Some(uid(name));
    instance.metadata.resource_version = Some("1".into());
    instance.metadata.creation_timestamp = Some(time(made));
    instance.metadata.finalizers = Some(vec![names::FINALIZER_INSTANCE.into()]);
    instance.status = Some(MacOSInstanceStatus { lease_uid: Some(uid(LEASE)), ..Default::default() });
    instance
}

pub fn kube_node(mac_node: &MacNode, lease: Option<&LeaseRef>) -> Node {
    let mut node: Node = object(render::new(mac_node, lease));
    node.metadata.resource_version = Some("1".into());
    node.status = Some(object(json!({ "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": time("-1h") },
    ] })));
    node
}

impl Rack {
    /// A chassis that nobody leases, as it should be.
    pub fn free() -> Self {
        let spec = MacNodeSpec {
            serial: SERIAL.into(),
            node_class_name: "mini".into(),
            unschedulable: false,
            drain: false,
            retirement: None,
            approved_reboot: None,
            cleared_quarantine: None,
        };
        let mut node = MacNode::new(NAME, spec);
        node.metadata.uid = Some(uid("node"));
        node.metadata.resource_version = Some("1".into());
        let node_name = Some(names::node(NAME));
        node.status = Some(MacNodeStatus { node_name, agent: Some(agent()), ..Default::default() });
        let size = |cores, memory: &str| InstanceClassSpec {
            cpu_cores: cores,
            memory: memory.into(),
            disk: "100G".into(),
            display: None,
        };
        let sizes = [("small".to_owned(), size(4, "16Gi")), ("large".to_owned(), size(8, "28Gi"))];
        Self {
            clocks: Clocks { operator: at("+0s"), server: Seen::Absent },
            kube_node: Seen::Present(kube_node(&node, None)),
            node,
            class: class(),
            lease: Seen::Absent,
            namespace_ending: Seen::Present(false),
            instances: Vec::new(),
            unreadable: Vec::new(),
            sizes: sizes.into(),
            claim: Seen::Absent,
            pod: Seen::Absent,
            pod_in_slot: Seen::Absent,
            agent_answers: true,
            image: Seen::Absent,
            config: RackConfigSpec::default(),
            policy_reboots: Seen::Absent,
            pull_secrets: BTreeMap::new(),
        }
    }

    /// A chassis that team-a's lease `ci` holds since `+0s`, with nothing on it.
    pub fn leased() -> Self {
        let mut rack = Self::free();
        rack.node.metadata.finalizers = Some(vec![names::FINALIZER_NODE.into()]);
        rack.status().lease_ref = Some(lease_ref());
        rack.kube_node = Seen::Present(kube_node(&rack.node, Some(&lease_ref())));
        rack.lease = Seen::Present(bound_lease());
        rack
    }

    pub fn status(&mut self) -> &mut MacNodeStatus {
        self.node.status.get_or_insert_default()
    }
    pub fn agent(&mut self) -> &mut AgentStatus {
        self.status().agent.get_or_insert_with(agent)
    }
    pub fn the_lease(&mut self) -> &mut MacNodeLease {
        match &mut self.lease {
            Seen::Present(lease) => lease,
            _ => panic!("this rack has no lease"),
        }
    }

    // what a test says of its situation

    /// Both clocks say so.
    pub fn at(mut self, offset: &str) -> Self {
        self.clocks = Clocks { operator: at(offset), server: Seen::Present(at(offset)) };
        self
    }
    pub fn clocks(mut self, operator: &str, server: Seen<&str>) -> Self {
        self.clocks = Clocks { operator: at(operator), server: server.map(at) };
        self
    }
    pub fn lease_deleted(mut self, offset: &str) -> Self {
        self.the_lease().metadata.deletion_timestamp = Some(time(offset));
        self
    }
    pub fn lease_gone(mut self) -> Self {
        self.lease = Seen::Absent;
        self
    }
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
    pub fn instance(mut self, name: &str, made: &str) -> Self {
        self.instances.push(new_instance(name, made));
        self
    }
    pub fn change(mut self, name: &str, change: impl FnOnce(&mut MacOSInstance)) -> Self {
        change(self.instances.iter_mut().find(|i| i.name_any() == name).unwrap());
        self
    }
    pub fn instance_deleted(self, name: &str, offset: &str) -> Self {
        self.change(name, |i| i.metadata.deletion_timestamp = Some(time(offset)))
    }
    /// An instance of that name holds the next slot.
    pub fn slot(mut self, name: &str, order: Order) -> Self {
        let slots = &mut self.status().slots;
        let slot = Slot {
            slot: i32::try_from(slots.len()).unwrap(),
            uid: uid(name),
            namespace: TEAM.into(),
            name: name.into(),
            order,
        };
        slots.push(slot);
        self
    }
    /// The agent reports a VM in that state.
    pub fn vm(mut self, name: &str, state: VmState) -> Self {
        let vms = &mut self.agent().vms;
        vms.retain(|vm| vm.uid != uid(name));
        vms.push(Vm {
            uid: uid(name),
            state,
            guest_ready: state == VmState::Running,
            message: None,
            since: None,
            cloned_by: None,
            wipe: None,
        });
        self
    }
    /// An instance with a slot and a VM that does what it is told.
    pub fn running(self, name: &str, made: &str) -> Self {
        self.instance(name, made).slot(name, Order::Run).vm(name, VmState::Running)
    }
    pub fn quarantined(mut self, reason: QuarantineReason) -> Self {
        let entry = Quarantine { reason: reason.into(), since: time("+1h"), boot_id: "boot-1".into() };
        self.status().quarantine.push(entry);
        self
    }
    pub fn retired(mut self) -> Self {
        self.node.spec.retirement = Some(Retirement { reason: "HardwareFailure".into() });
        self
    }

    // what is decided

    fn holder(&self, slot: &Slot) -> Seen<MacOSInstance> {
        if self.unreadable.contains(&slot.name) {
            return Seen::Unknown("this object cannot be read".into());
        }
        self.instances
            .iter()
            .find(|i| i.name_any() == slot.name && i.namespace() == Some(slot.namespace.clone()))
            .cloned()
            .into()
    }

    fn readable(&self) -> Vec<MacOSInstance> {
        self.instances.iter().filter(|i| !self.unreadable.contains(&i.name_any())).cloned().collect()
    }

    /// Everything that a pass applies once and then leaves alone.
    fn existing(&self) -> BTreeMap<Ref, String> {
        let mut all: Vec<(Ref, Value)> = Vec::new();
        let status = self.node.status.clone().unwrap_or_default();
        if let Some(lease_ref) = &status.lease_ref {
            let names: Vec<&str> = status.slots.iter().map(|s| s.name.as_str()).collect();
            let (role, binding) = access::lease(NAME, &lease_ref.namespace, &names, &[]);
            all.extend([role, binding]);
        }
        let chassis = access::chassis_refs(NAME).into_iter().map(|object| (object, access::chassis_hash().to_owned()));
        all.into_iter().map(|(object, body)| (object, access::hash(&body))).chain(chassis).collect()
    }

    pub fn node_facts(&self) -> node::Facts {
        let slots = self.node.status.clone().unwrap_or_default().slots;
        node::Facts {
            clocks: self.clocks.clone(),
            node: self.node.clone(),
            class: Seen::Present(self.class.clone()),
            lease: self.lease.clone(),
            namespace_ending: self.namespace_ending.clone(),
            instances: Seen::Present(self.readable()),
            holders: slots.iter().map(|s| (s.uid.clone(), self.holder(s))).collect(),
            sizes: self.sizes.clone(),
            kube_node: self.kube_node.clone(),
            existing: self.existing(),
            claim: self.claim.clone(),
            config: self.config.clone(),
            policy_reboots: self.policy_reboots.clone(),
            pull_secrets: self.pull_secrets.clone(),
        }
    }

    /// The pass over the chassis.
    #[track_caller]
    pub fn node_pass(&self) -> Decided {
        let facts = self.node_facts();
        let plan = node::decide(&facts);
        assert_eq!(check::node(&facts, &plan), Ok(()), "the plan breaks an invariant: {plan:?}");
        Decided { plan, slots: self.node.status.clone().unwrap_or_default().slots }
    }

    pub fn lease_facts(&self) -> lease::Facts {
        let lease = self.lease.present().cloned().unwrap();
        let held = self.node.status.as_ref().and_then(|s| s.lease_ref.as_ref());
        let holds = held.is_some_and(|r| Some(&r.uid) == lease.uid().as_ref());
        lease::Facts {
            clocks: self.clocks.clone(),
            holder: holds.then(|| self.node.clone()).into(),
            named: Seen::Present(self.node.clone()),
            class: Seen::Present(()),
            candidates: vec![self.candidate()],
            ahead: 0,
            lease,
        }
    }

    pub fn candidate(&self) -> lease::Candidate {
        lease::Candidate {
            name: NAME.into(),
            uid: uid("node"),
            serial: SERIAL.into(),
            leasable: self.leasable(),
            free_at: lease::free_at(&self.node),
            remembered: node::remembered_floor(&self.node),
        }
    }

    pub fn leasable(&self) -> node::Leasable {
        let class = Seen::Present(self.class.clone());
        node::leasable(&self.node, &class, &self.kube_node, !self.claim.is_absent(), self.clocks.operator)
    }

    /// The pass over the lease.
    pub fn lease_pass(&self) -> Decided {
        Decided::from(lease::decide(&self.lease_facts()))
    }

    pub fn instance_facts(&self, name: &str) -> instance::Facts {
        let instance = self.instances.iter().find(|i| i.name_any() == name).cloned().unwrap();
        let slots = self.node.status.clone().unwrap_or_default().slots;
        let neighbours: Vec<MacOSInstance> =
            slots.iter().filter(|s| s.uid != uid(name)).filter_map(|s| self.holder(s).present().cloned()).collect();
        let size = |i: &MacOSInstance| self.sizes.get(&i.spec.instance_class_name).cloned();
        instance::Facts {
            clocks: self.clocks.clone(),
            lease: self.lease.clone(),
            chassis: Seen::Present(self.node.clone()),
            pod: self.pod.clone(),
            pod_in_slot: self.pod_in_slot.clone(),
            size: size(&instance).into(),
            image: self.image.clone(),
            neighbour_sizes: neighbours.iter().filter_map(size).collect(),
            node_class: Seen::Present(self.class.spec.clone()),
            namespace_ending: self.namespace_ending.present() == Some(&true),
            agent_answers: self.agent_answers,
            instance,
            neighbours,
        }
    }

    /// The pass over an instance.
    pub fn instance_pass(&self, name: &str) -> Decided {
        Decided::from(instance::decide(&self.instance_facts(name)))
    }
}

/// A plan, as a test reads it.
#[derive(Debug)]
pub struct Decided {
    pub plan: Plan,
    slots: Vec<Slot>,
}

impl From<Plan> for Decided {
    fn from(plan: Plan) -> Self {
        Self { plan, slots: Vec::new() }
    }
}

impl Decided {
    /// The steps in short words, in order.
    pub fn steps(&self) -> Vec<String> {
        self.plan.steps.iter().map(word).collect()
    }
    /// The slots after this pass: `i1:Run`.
    pub fn slots(&self) -> Vec<String> {
        let set = self.plan.steps.iter().find_map(|s| if let Step::SetSlots { to, .. } = s { Some(to) } else { None });
        set.unwrap_or(&self.slots).iter().map(|s| format!("{}:{:?}", s.uid.trim_start_matches('0'), s.order)).collect()
    }
    pub fn text(&self, field: &str) -> String {
        let status = self.plan.status.clone().unwrap_or_default();
        status[field].as_str().map_or_else(|| status[field].to_string(), str::to_owned)
    }
    pub fn phase(&self) -> String {
        self.text("phase")
    }
    fn condition(&self, type_: &str) -> Value {
        let status = self.plan.status.clone().unwrap_or_default();
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
    }
    /// `True Bound`, `False HeldUntilFloor`.
    pub fn says(&self, type_: &str) -> String {
        let c = self.condition(type_);
        format!("{} {}", c["status"].as_str().unwrap_or("-"), c["reason"].as_str().unwrap_or("-"))
    }
    pub fn message(&self, type_: &str) -> String {
        self.condition(type_)["message"].as_str().unwrap_or_default().to_owned()
    }
    /// The leaseRef that this pass writes.
    pub fn bound(&self) -> Option<&LeaseRef> {
        self.plan.steps.iter().find_map(|s| if let Step::Bind { lease_ref, .. } = s { Some(lease_ref) } else { None })
    }
    pub fn wakes(&self) -> Option<Timestamp> {
        self.plan.wake
    }
}

fn slots(slots: &[Slot]) -> String {
    let one = |s: &Slot| format!("{}:{:?}", s.uid.trim_start_matches('0'), s.order);
    slots.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn word(step: &Step) -> String {
    match step {
        Step::AddFinalizer { finalizer, .. } => format!("add {finalizer}"),
        Step::RemoveFinalizer { finalizer, .. } => format!("remove {finalizer}"),
        Step::Bind { mac_node, lease_ref, .. } => format!("bind {mac_node} to {}", lease_ref.name),
        Step::RaiseFloor { to, .. } => format!("raise floor to {to}"),
        Step::SetSlots { to, .. } => format!("slots [{}]", slots(to)),
        Step::KeepWipes { to, .. } => {
            let uids: Vec<&str> = to.iter().map(|w| w.uid.trim_start_matches('0')).collect();
            format!("keep wipes [{}]", uids.join(" "))
        }
        Step::MarkReleasing { .. } => "mark releasing".into(),
        Step::ClearLease { .. } => "clear lease".into(),
        Step::Create { object, body } if object.kind == Kind::Node => format!("create Node {}", taints(body)),
        Step::Create { object, .. } => format!("create {:?}", object.kind),
        Step::Apply { object, .. } => format!("apply {:?}", object.kind),
        Step::PatchNode { patch, .. } if patch["spec"].get("taints").is_some() => {
            format!("patch Node {}", taints(patch))
        }
        Step::PatchNode { patch, .. } => format!("patch Node {patch}"),
        Step::Own { .. } => "own".into(),
        Step::Delete { object, .. } => format!("delete {:?}", object.kind),
    }
}

fn taints(node: &Value) -> String {
    let all = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let one = |t: &Value| {
        let value = t["value"].as_str().unwrap_or_default().trim_start_matches('0');
        format!("{}={value}", t["key"].as_str().unwrap_or_default())
    };
    all.iter().map(one).collect::<Vec<_>>().join(" ")
}
