//! One instance: it waits for a slot of its lease's chassis, has a placeholder pod while it holds one, and goes when
//! its slot is empty. Whether a VM is gone is decided from the chassis' slots and its agent's report alone.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use macrack_api::{
    InstanceClassSpec, MacNode, MacNodeClassSpec, MacNodeLease, MacOSImageSpec, MacOSInstance, MacOSInstanceStatus,
    condition,
    instance::macos_instance::MacOSInstanceReason,
    names::{self, FINALIZER_INSTANCE, FINALIZER_POD},
    rack::node::{Order, Slot, Vm, VmState},
};
use serde_json::json;

use super::node::maximum;
use crate::{
    clock::Clocks,
    plan::{Kind, Plan, Ref, Step},
    render::pod,
    seen::Seen,
};

mod guest;
mod words;

/// What was seen of one instance.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Both clocks.
    pub clocks: Clocks,
    /// The instance.
    pub instance: MacOSInstance,
    /// The lease of that name in its namespace, whatever its uid.
    pub lease: Seen<MacNodeLease>,
    /// The chassis that the lease holds (by leaseRef uid), or, when none does, the chassis with a slot of this uid.
    pub chassis: Seen<MacNode>,
    /// The instances in the other slots of that chassis, those that are gone left out.
    pub neighbours: Vec<MacOSInstance>,
    /// The pod of the placeholder's name, whoever made it.
    pub pod: Seen<Pod>,
    /// Whether the VM that this pod stands for, by its label, is in a slot of any chassis.
    pub pod_in_slot: Seen<bool>,
    /// Its size.
    pub size: Seen<InstanceClassSpec>,
    /// The golden it is made from.
    pub image: Seen<MacOSImageSpec>,
    /// The sizes of the neighbours.
    pub neighbour_sizes: Vec<InstanceClassSpec>,
    /// The class of the chassis.
    pub node_class: Seen<MacNodeClassSpec>,
    /// Whether its namespace is being deleted.
    pub namespace_ending: bool,
    /// Whether the agent of the chassis answers.
    pub agent_answers: bool,
}

impl Facts {
    fn uid(&self) -> String {
        self.instance.uid().unwrap_or_default()
    }
    fn status(&self) -> MacOSInstanceStatus {
        self.instance.status.clone().unwrap_or_default()
    }
    fn deleted(&self) -> bool {
        self.instance.metadata.deletion_timestamp.is_some()
    }
    /// Its slot on the chassis.
    fn slot(&self) -> Option<&Slot> {
        let uid = self.uid();
        self.chassis.present()?.status.as_ref()?.slots.iter().find(|s| s.uid == uid)
    }
    /// What the agent says of its VM.
    fn vm(&self) -> Option<&Vm> {
        let uid = self.uid();
        let agent = self.chassis.present()?.status.as_ref()?.agent.as_ref()?;
        agent.vms.iter().find(|vm| vm.uid == uid)
    }
    /// The lease it was made for, if that one is there.
    fn own_lease(&self) -> Option<&MacNodeLease> {
        let wanted = self.status().lease_uid;
        self.lease.present().filter(|l| wanted.is_none() || l.uid() == wanted)
    }
    fn retired(&self) -> bool {
        self.chassis.present().is_some_and(|c| c.spec.retirement.is_some())
    }
    fn own_ref(&self) -> Ref {
        Ref::namespaced(Kind::MacOSInstance, &self.instance.namespace().unwrap_or_default(), &self.instance.name_any())
    }
    /// The placeholder, if the pod of that name is this instance's.
    fn placeholder(&self) -> Option<&Pod> {
        self.pod.present().filter(|p| p.labels().get(names::LABEL_INSTANCE) == Some(&self.uid()))
    }
    /// The placeholder of an earlier instance of this name, once its VM is in no slot: nobody else looks after it.
    fn left_behind(&self) -> Option<&Pod> {
        let other = |p: &&Pod| p.labels().get(names::LABEL_INSTANCE).is_some_and(|uid| *uid != self.uid());
        self.pod.present().filter(other).filter(|_| self.pod_in_slot == Seen::Present(false))
    }
}

/// What is to be done about one instance.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let has_finalizer = facts.instance.finalizers().iter().any(|f| f == FINALIZER_INSTANCE);
    let finalizers = facts.instance.finalizers().to_vec();
    let resource_version = facts.instance.resource_version().unwrap_or_default();

    if let Some(pod) = facts.left_behind() {
        remove(pod, &mut plan);
    }
    if !facts.deleted() && !has_finalizer {
        plan.steps.push(Step::AddFinalizer {
            of: facts.own_ref(),
            finalizer: FINALIZER_INSTANCE,
            finalizers,
            resource_version,
        });
    } else if let Some(step) = own(facts) {
        plan.steps.push(step);
    } else if facts.slot().is_some() && !facts.retired() {
        place(facts, &mut plan);
    } else if over(facts) {
        clear_up(facts, &mut plan);
        if facts.deleted() && has_finalizer && !facts.pod.is_unknown() {
            plan.steps.push(Step::RemoveFinalizer {
                of: facts.own_ref(),
                uid: facts.instance.uid(),
                finalizer: FINALIZER_INSTANCE,
                finalizers,
            });
        }
    }
    words::write(facts, &mut plan);
    plan
}

/// It holds no slot, for certain, and its Mac reports nothing of it; or its Mac was retired and is wiped if it returns.
fn over(facts: &Facts) -> bool {
    let on_disk = facts.vm().is_some_and(|vm| vm.state != VmState::Wiped);
    match &facts.chassis {
        Seen::Unknown(_) => false,
        Seen::Absent => true,
        Seen::Present(_) => facts.retired() || (facts.slot().is_none() && !on_disk),
    }
}

/// Until its lease is being deleted, the lease owns it: then it is collected with the lease. One made after that is
/// not owned, or a foreground delete would take it at once although the Held lease accepts it.
fn own(facts: &Facts) -> Option<Step> {
    let lease = facts.own_lease()?;
    let uid = lease.uid()?;
    let owners = facts.instance.owner_references();
    let bound = facts.status().lease_uid.as_ref() == Some(&uid);
    if !bound || lease.metadata.deletion_timestamp.is_some() || facts.deleted() || owners.iter().any(|o| o.uid == uid) {
        return None;
    }
    let mut all = owners.to_vec();
    all.push(k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        api_version: "rack.macrack.io/v1alpha1".into(),
        kind: "MacNodeLease".into(),
        name: lease.name_any(),
        uid,
        controller: Some(false),
        block_owner_deletion: None,
    });
    Some(Step::Own {
        instance: facts.own_ref(),
        resource_version: facts.instance.resource_version().unwrap_or_default(),
        owners: json!(all),
    })
}

/// With a slot that is not being wiped there is a placeholder. One that goes gets no new one: its VM is not started again.
fn place(facts: &Facts, plan: &mut Plan) {
    let (Some(slot), Some(chassis)) = (facts.slot(), facts.chassis.present()) else {
        return;
    };
    let Some(lease_ref) = chassis.status.as_ref().and_then(|s| s.lease_ref.as_ref()) else {
        return;
    };
    if slot.order == Order::Wipe || facts.deleted() || facts.namespace_ending || !facts.pod.is_absent() {
        return;
    }
    let namespace = facts.instance.namespace().unwrap_or_default();
    let object = Ref::namespaced(Kind::Pod, &namespace, &names::placeholder(&facts.instance.name_any()));
    plan.steps
        .push(Step::Create { object, body: pod::placeholder(&facts.instance, &chassis.name_any(), &lease_ref.uid) });
}

/// Without a slot there is no placeholder.
fn clear_up(facts: &Facts, plan: &mut Plan) {
    if let Some(pod) = facts.placeholder() {
        remove(pod, plan);
    }
}

fn remove(pod: &Pod, plan: &mut Plan) {
    let of = Ref::namespaced(Kind::Pod, &pod.namespace().unwrap_or_default(), &pod.name_any());
    if pod.metadata.deletion_timestamp.is_none() {
        plan.steps.push(Step::Delete { object: of.clone(), uid: pod.uid() });
    }
    if pod.finalizers().iter().any(|f| f == FINALIZER_POD) {
        plan.steps.push(Step::RemoveFinalizer {
            of,
            uid: pod.uid(),
            finalizer: FINALIZER_POD,
            finalizers: pod.finalizers().to_vec(),
        });
    }
}

/// Whether the lease still takes instances, and if not why not.
fn lease_over(facts: &Facts) -> bool {
    let Some(lease) = facts.own_lease() else {
        return facts.status().lease_uid.is_some() && !facts.lease.is_unknown();
    };
    let status = lease.status.clone().unwrap_or_default();
    let past_floor = status.earliest_release_at.as_ref().is_some_and(|t| facts.clocks.operator >= t.0);
    let past_maximum = status.bound_at.and_then(|b| maximum(lease, b.0)).is_some_and(|m| facts.clocks.operator >= m);
    status.end.is_some() || past_maximum || (lease.metadata.deletion_timestamp.is_some() && past_floor)
}

/// Both slots are held by others, and none of them is on its way out: it never gets one.
fn full(facts: &Facts) -> bool {
    let status = facts.status();
    if facts.slot().is_some() {
        return false;
    }
    if status.lease_full {
        return true;
    }
    let Some(chassis) = facts.chassis.present() else {
        return false;
    };
    let slots = chassis.status.as_ref().map(|s| s.slots.as_slice()).unwrap_or_default();
    let going = |slot: &Slot| {
        let holder = facts.neighbours.iter().find(|n| n.uid().as_ref() == Some(&slot.uid));
        slot.order == Order::Wipe || holder.is_none_or(|h| h.metadata.deletion_timestamp.is_some())
    };
    slots.len() >= names::VMS_PER_MAC && !slots.iter().any(going) && !facts.deleted() && status.lease_uid.is_some()
}

/// The status of a plan whose placeholder the API server refused, in its words: a quota of the namespace, another
/// webhook. Without this nobody would learn what a person has to change.
pub fn placeholder_refused(plan: &mut Plan, why: &str) {
    let Some(conditions) = plan.status.as_mut().and_then(|status| status["conditions"].as_array_mut()) else {
        return;
    };
    let words = format!("its placeholder pod is refused, and made again until it is not: {why}");
    for condition in conditions.iter_mut().filter(|c| c["type"] == "Ready" || c["type"] == "Scheduled") {
        condition["reason"] = MacOSInstanceReason::PlaceholderRefused.as_str().into();
        condition["message"] = condition::bounded(&words).into();
    }
}

/// What is to be done about a placeholder whose instance is gone and whose VM is in no slot.
pub fn orphaned(pod: &Pod) -> Plan {
    let mut plan = Plan::default();
    remove(pod, &mut plan);
    plan
}
