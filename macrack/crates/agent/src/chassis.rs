//! The one loop of the agent: gather, decide, act, report.
//!
//! Invariant: everything that is done is decided by [`orders::decide`] from one view; this loop holds
//! no other rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use macrack_api::MacNode;
use macrack_api::rack::node::{LeaseRecord, Order, Reboot, Slot, WipeReceipt};
use macrack_wire::MacAddress;
use macrack_wire::layout::{is_uid, write_json, write_json_lasting};
use tokio::sync::watch;

use crate::bell::{Bell, replace};
use crate::gates::Gates;
use crate::gather::{Catalogue, Seen};
use crate::headroom::reserve;
use crate::hold;
use crate::host::{Host, HostFacts, VmProcess, random};
use crate::identity::Nobody;
use crate::images::room::{NewDisk, crowded_out};
use crate::images::{Cache, Situation, Wishes};
use crate::kubelet;
use crate::life::{Facts, Life};
use crate::node::NodeFacts;
use crate::notes;
use crate::orders::{self, Action, Decision, GoldenState, View};
use crate::quota::{self, Alive, Quota, Verdict};
use crate::reboot::{Rebooter, is_busy};
use crate::recipe::{self, Recipe};
use crate::report::agent::{AgentReport, Sources, render};
use crate::report::{instance, pod};
use crate::shutdown;
use crate::skew::ServerClock;
use crate::slots::{SlotLink, placeholder, placeholder_of};
use crate::state_dir::StateDir;
use crate::vms::{Command, Making, Surroundings, Vm, end_process, surplus};

/// Between looks at what nothing announces: the host's facts, free space, foreign VMs.
const LOOK: Duration = Duration::from_secs(10);
/// Looks from one listing of the host's processes to the next, which costs more than the rest.
const LIST_EVERY: u32 = 6;

mod testing;
mod wishes;

/// What the loop works with.
pub struct Chassis {
    /// The state directory.
    pub state_dir: StateDir,
    /// The Mac.
    pub host: Arc<dyn Host>,
    /// What it was when last looked.
    pub facts: HostFacts,
    /// What every VM's task needs.
    pub around: Surroundings,
    /// Every VM on the disk.
    pub vms: BTreeMap<String, Vm>,
    /// Receipts of the last wipes, by uid.
    pub receipts: BTreeMap<String, WipeReceipt>,
    /// The kernel's counter.
    pub quota: Quota,
    /// Asks for approved reboots.
    pub rebooter: Rebooter,
    /// What is on the disk of the kernel's counter is what is known of it.
    pub quota_kept: bool,
    /// The last lease that was seen.
    pub last_lease: Option<LeaseRecord>,
    /// Why the last lease cannot be read or kept.
    pub lease_problem: Option<String>,
    /// The goldens.
    pub cache: Cache,
    /// What is asked of the puller.
    pub wishes: watch::Sender<Wishes>,
    /// What the puller says.
    pub situation: watch::Receiver<Situation>,
    /// The API.
    pub client: Client,
    /// Name of the own Node.
    pub node: String,
    /// The port for `kubectl exec` and `logs`.
    pub kubelet: kubelet::Publisher,
    /// The API server's clock.
    pub server_clock: Arc<ServerClock>,
    /// The own MacNode.
    pub mac_node: watch::Receiver<Seen<MacNode>>,
    /// Why the API server takes no token of this Mac, if it says so.
    pub nobody: watch::Receiver<Nobody>,
    /// Why no order is carried out, if that is so.
    pub held: Option<String>,
    /// Classes, images, settings.
    pub catalogue: Catalogue,
    /// What is watched per slot, by uid.
    pub links: BTreeMap<String, SlotLink>,
    /// `status.agent`, to be written.
    pub report: watch::Sender<Option<AgentReport>>,
    /// The Node's status, to be written.
    pub node_facts: watch::Sender<NodeFacts>,
    /// Rung when anything changes.
    pub bell: Bell,
    /// Whether the MacNode held a report when last seen, and how often it lost one.
    pub reported: (bool, u32),
    /// Looks so far.
    pub looks: u32,
    /// Why the VM counter of this boot waits to be tested, as it was last said.
    pub untested: Option<String>,
}

/// What one pass is decided from, beside what the loop holds.
struct Gathered {
    slots: Vec<Slot>,
    vms: BTreeMap<String, Facts>,
    recipes: BTreeMap<String, Result<Recipe, String>>,
    goldens: BTreeMap<String, GoldenState>,
    situation: Situation,
    disk_free: Option<u64>,
    going_down: bool,
}

impl Gathered {
    /// The disks that are to be cloned, in the order of the slots.
    fn to_be_made(&self) -> Vec<(&str, &Recipe)> {
        let unmade = |slot: &&Slot| {
            let life = self.vms.get(&slot.uid).map(|facts| &facts.life);
            slot.order == Order::Run && matches!(life, None | Some(Life::Partial { .. }))
        };
        let recipe = |slot: &Slot| self.recipes.get(&slot.uid)?.as_ref().ok();
        self.slots.iter().filter(unmade).filter_map(|slot| Some((slot.uid.as_str(), recipe(slot)?))).collect()
    }

    /// Bytes that must stay free for the host and the disks that there are; what was half made is made anew.
    fn promised(&self) -> u64 {
        let anew: BTreeSet<&str> = self.to_be_made().into_iter().map(|(uid, _)| uid).collect();
        reserve(self.vms.iter().filter(|(uid, _)| !anew.contains(uid.as_str())), &self.slots)
    }

    /// Why there is no room for some of these disks, by uid.
    fn without_room(&self, disks: &[NewDisk]) -> BTreeMap<String, String> {
        let crowded = crowded_out(disks, self.disk_free, self.promised(), self.situation.coming);
        crowded.into_iter().map(|(uid, no)| (uid, no.to_string())).collect()
    }
}

fn lives(vms: &BTreeMap<String, Facts>) -> BTreeMap<String, Life> {
    vms.iter().map(|(uid, facts)| (uid.clone(), facts.life.clone())).collect()
}

impl Chassis {
    /// Runs until the agent is told to end.
    pub async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.tick().await;
        // before the first report: that no foreign VM runs would end a quarantine for one
        self.look().await;
        loop {
            let gathered = self.gather();
            let decision = self.decide(&gathered);
            for action in &decision.actions {
                self.act(action, &gathered).await;
            }
            let test_wake = self.self_test(&gathered).await;
            let reboot_wake = self.reboot();
            // what was done shows in the facts, and so in this very report
            self.report(&gathered, &decision);
            let wake = async {
                match [decision.wake, test_wake, reboot_wake].into_iter().flatten().min() {
                    Some(wake) => {
                        let pause = Duration::try_from(wake.duration_since(Timestamp::now()));
                        tokio::time::sleep(pause.unwrap_or_default()).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.bell.heard() => {}
                () = wake => {}
                _ = look.tick() => self.look().await,
            }
        }
    }

    /// Reads what nothing announces.
    async fn look(&mut self) {
        match self.ask(|host| host.facts()).await {
            Ok(facts) => self.facts = facts,
            Err(error) => tracing::error!(%error, "the facts of this Mac cannot be read; the last ones hold"),
        }
        self.looks = self.looks.wrapping_add(1);
        let due = self.looks % LIST_EVERY == 1 || self.quota.foreign > 0;
        if due && let Some(processes) = self.processes().await {
            self.quota.foreign = quota::foreign(&processes, &self.state_dir.vms());
        }
    }

    fn gather(&mut self) -> Gathered {
        self.bury();
        self.hold();
        let slots = self.slots();
        self.forget(&slots);
        self.links.retain(|uid, _| slots.iter().any(|slot| slot.uid == *uid));
        for slot in &slots {
            let link = || SlotLink::new(&self.client, slot, &self.bell);
            self.links.entry(slot.uid.clone()).or_insert_with(link);
        }
        let vms: BTreeMap<String, Facts> = self.vms.iter().map(|(uid, vm)| (uid.clone(), vm.facts())).collect();
        self.remember(&vms);
        let recipes = slots
            .iter()
            .filter_map(|slot| Some((slot, self.links.get(&slot.uid)?)))
            .map(|(slot, link)| {
                (slot.uid.clone(), recipe::read(slot, &link.instance(), &self.catalogue, &self.facts.host_version))
            })
            .collect();
        let mut gathered = Gathered {
            slots,
            vms,
            recipes,
            goldens: BTreeMap::new(),
            situation: self.situation.borrow().clone(),
            disk_free: self.host.disk_free().inspect_err(|e| tracing::error!(error = %e, "free space")).ok(),
            going_down: shutdown::goes_down(&*self.host),
        };
        self.wish(&gathered);
        gathered.goldens = wishes::golden_states(&gathered.situation);
        gathered
    }

    /// Takes leave of the VMs of which nothing is left; their receipts stay.
    fn bury(&mut self) {
        self.vms.retain(|uid, vm| {
            let Facts { receipt, gone, .. } = vm.facts();
            if let Some(receipt) = receipt {
                self.receipts.insert(uid.clone(), receipt);
            }
            !gone
        });
    }

    /// Forgets receipts that are old, of VMs that have no slot: one that has is still to be reported.
    fn forget(&mut self, slots: &[Slot]) {
        if self.held.is_some() || self.mac_node.borrow().present().is_none() {
            return;
        }
        for uid in surplus(&self.receipts, |uid| slots.iter().any(|slot| slot.uid == uid)) {
            self.receipts.remove(&uid);
        }
    }

    /// Finds out whether orders are carried out at all, and says so when that has changed.
    fn hold(&mut self) {
        let held = hold::why(&self.mac_node.borrow(), &self.nobody.borrow());
        if held == self.held {
            return;
        }
        match &held {
            Some(why) => tracing::warn!(vms = self.vms.len(), "every VM stays as it is: {why}"),
            None => tracing::info!("orders are carried out again"),
        }
        self.held = held;
    }

    /// The orders; none where the MacNode cannot be read or nothing is to be done, which stops nothing.
    fn slots(&self) -> Vec<Slot> {
        if self.held.is_some() {
            return Vec::new();
        }
        let seen = self.mac_node.borrow();
        let status = seen.present().and_then(|mac_node| mac_node.status.as_ref());
        let slots = status.map(|status| status.slots.clone()).unwrap_or_default();
        slots.into_iter().filter(|slot| is_uid(&slot.uid)).collect()
    }

    /// Keeps on the disk what must outlive the agent.
    fn remember(&mut self, vms: &BTreeMap<String, Facts>) {
        let before = self.quota.clone();
        for (uid, facts) in vms {
            if facts.life == Life::Running {
                self.quota.started(uid);
            }
        }
        if self.quota != before || !self.quota_kept {
            self.keep_quota();
        }
        let lease = {
            let seen = self.mac_node.borrow();
            let status = seen.present().and_then(|mac_node| mac_node.status.as_ref());
            status.and_then(|status| status.lease_ref.clone())
        };
        let Some(lease) = lease else { return };
        let record = LeaseRecord { uid: lease.uid, earliest_release_at: lease.earliest_release_at };
        let newer = self
            .last_lease
            .as_ref()
            .is_none_or(|last| last.uid != record.uid || last.earliest_release_at < record.earliest_release_at);
        if newer {
            // a rename that the power takes away again would leave a floor that is too early
            match write_json_lasting(&self.state_dir.last_lease(), &record) {
                Ok(()) => (self.last_lease, self.lease_problem) = (Some(record), None),
                Err(error) => {
                    tracing::error!(%error, "the last lease cannot be kept");
                    self.lease_problem = Some(notes::lease_problem(&error));
                }
            }
        }
    }

    /// Keeps what is known of the kernel's counter; where that fails it is tried again in the next pass.
    fn keep_quota(&mut self) {
        let kept = write_json(&self.state_dir.quota(), &self.quota);
        self.quota_kept = kept.is_ok();
        if let Err(error) = kept {
            tracing::error!(%error, "what is known of the kernel's counter cannot be kept");
        }
    }

    fn decide(&self, gathered: &Gathered) -> Decision {
        let lives = lives(&gathered.vms);
        let linked = || gathered.slots.iter().filter_map(|slot| Some((slot, self.links.get(&slot.uid)?)));
        let placeholders =
            linked().map(|(slot, link)| (slot.uid.clone(), placeholder(slot, &link.pod(), &self.node))).collect();
        let wishes = linked()
            .filter_map(|(slot, link)| {
                let recipe = gathered.recipes.get(&slot.uid)?;
                Some((slot.uid.clone(), recipe::wish(slot, &link.instance(), recipe)))
            })
            .collect();
        orders::decide(&View {
            gates: self.gates(&lives, &self.crowded_out(gathered), gathered.going_down),
            slots: &gathered.slots,
            placeholders: &placeholders,
            wishes: &wishes,
            goldens: &gathered.goldens,
        })
    }

    fn gates<'a>(
        &'a self,
        vms: &'a BTreeMap<String, Life>,
        crowded_out: &'a BTreeMap<String, String>,
        going_down: bool,
    ) -> Gates<'a> {
        Gates { now: Timestamp::now(), vms, quota: &self.quota, crowded_out, going_down }
    }

    /// Why there is no room for disks that are to be cloned, by uid.
    fn crowded_out(&self, gathered: &Gathered) -> BTreeMap<String, String> {
        let cached = |recipe: &Recipe| gathered.situation.goldens.contains_key(recipe.golden.hex());
        let disks: Vec<NewDisk> = gathered
            .to_be_made()
            .into_iter()
            .filter(|(_, recipe)| cached(recipe))
            .map(|(uid, recipe)| NewDisk { uid: uid.to_owned(), size: recipe.disk_bytes })
            .collect();
        gathered.without_room(&disks)
    }

    async fn act(&mut self, action: &Action, gathered: &Gathered) {
        tracing::debug!(?action, "does");
        match action {
            Action::Make(uid) => self.make(uid, gathered),
            Action::Judge(uid) => self.judge(uid).await,
            Action::Start(uid) => self.order(uid, Command::Start),
            Action::Stop(uid) => self.order(uid, Command::Stop),
            Action::Forget(uid) => self.order(uid, Command::Forget),
            Action::Wipe(uid) => self.order(uid, Command::Wipe),
        }
    }

    /// Carries out an approved reboot once nothing runs; when to look again.
    fn reboot(&mut self) -> Option<Timestamp> {
        let asked = self.asked_reboot().filter(|_| self.held.is_none());
        let busy = self.vms.values().any(|vm| is_busy(&vm.facts().life));
        self.rebooter.step(asked.as_ref(), &self.around.boot_id, busy)
    }

    fn asked_reboot(&self) -> Option<Reboot> {
        self.mac_node.borrow().present()?.status.as_ref()?.reboot.clone()
    }

    fn order(&self, uid: &str, command: Command) {
        if let Some(vm) = self.vms.get(uid) {
            vm.order(command);
        }
    }

    fn make(&mut self, uid: &str, gathered: &Gathered) {
        let slot = gathered.slots.iter().find(|slot| slot.uid == uid);
        let recipe = gathered.recipes.get(uid).and_then(|recipe| recipe.as_ref().ok());
        let (Some(slot), Some(recipe)) = (slot, recipe) else { return };
        let (identifier, address) = match (self.host.machine_identifier(), self.fresh_address()) {
            (Ok(identifier), Ok(address)) => (identifier, address),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(vm = uid, %error, "no identity can be made for a VM");
                return;
            }
        };
        let hex = recipe.golden.hex();
        let script = recipe.script.clone().map(|key| {
            let secrets = Api::namespaced(self.client.clone(), &slot.namespace);
            recipe::fetch_script(secrets, slot.namespace.clone(), key)
        });
        let making = Making {
            description: recipe.shape(slot).described(identifier, address),
            disk_bytes: recipe.disk_bytes,
            golden: hex.to_owned(),
            golden_dir: self.cache.dir(hex),
            script,
        };
        self.make_of(uid, making);
    }

    fn make_of(&mut self, uid: &str, making: Making) {
        match self.vms.get(uid) {
            Some(partial) => partial.order(Command::Make(Box::new(making))),
            None => {
                let vm = Vm::make(self.state_dir.vm(uid), self.around.clone(), making);
                self.vms.insert(uid.to_owned(), vm);
            }
        }
    }

    /// A MAC address that no VM on this chassis has.
    fn fresh_address(&self) -> std::io::Result<MacAddress> {
        let taken: BTreeSet<String> =
            self.vms.values().filter_map(|vm| Some(vm.facts().mac_address?.to_string())).collect();
        loop {
            let address = MacAddress::locally_administered(random()?);
            if !taken.contains(&address.to_string()) {
                return Ok(address);
            }
        }
    }

    /// Asks the Mac what takes its time to answer: tools of macOS may be run for it, and no worker waits for those.
    async fn ask<T, F>(&self, question: F) -> std::io::Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Host) -> std::io::Result<T> + Send + 'static,
    {
        let host = self.host.clone();
        let answer = tokio::task::spawn_blocking(move || question(&*host)).await;
        answer.unwrap_or_else(|ended| Err(std::io::Error::other(ended)))
    }

    async fn processes(&self) -> Option<Vec<VmProcess>> {
        let listed = self.ask(|host| host.vm_processes()).await;
        listed.inspect_err(|error| tracing::error!(%error, "the processes of this Mac cannot be listed")).ok()
    }

    /// Finds out why the kernel refused the start of `uid`.
    async fn judge(&mut self, uid: &str) {
        let Some(processes) = self.processes().await else { return };
        let lives = self.vms.iter().map(|(uid, vm)| (uid.clone(), vm.facts().life)).collect();
        let alive = Alive::of(&processes, &self.state_dir.vms(), &lives, uid);
        let verdict = self.quota.refused(uid, &alive, Timestamp::now());
        tracing::warn!(vm = uid, ?alive, ?verdict, "the kernel refused a start");
        self.keep_quota();
        if let Verdict::Reap(orphans) = &verdict {
            orphans.iter().copied().for_each(end_process);
        }
        if verdict != Verdict::Stuck {
            self.order(uid, Command::Pardon);
        }
    }

    fn report(&mut self, gathered: &Gathered, decision: &Decision) {
        let vms: BTreeMap<String, Facts> = self.vms.iter().map(|(uid, vm)| (uid.clone(), vm.facts())).collect();
        let reserved = reserve(&vms, &gathered.slots);
        let pressure = gathered.disk_free.is_some_and(|free| free < reserved);
        let facts = NodeFacts {
            host: self.facts.clone(),
            disk_pressure: pressure,
            kubelet_port: self.kubelet.port(),
            going_down: gathered.going_down,
        };
        replace(&self.node_facts, facts);
        let (mut targets, host) = (kubelet::Targets::new(), self.facts.addresses.first().copied());
        for slot in &gathered.slots {
            let Some(link) = self.links.get(&slot.uid) else { continue };
            let (facts, say) = (vms.get(&slot.uid), decision.says.get(&slot.uid));
            let seen = link.pod();
            let bound = placeholder_of(slot, &seen, &self.node);
            let alive = facts.is_some_and(|facts| facts.life.is_alive());
            targets.extend(bound.and_then(|pod| kubelet::target(pod, self.state_dir.vm(&slot.uid), alive)));
            link.tell(Some(instance::render(facts, say)), bound.and_then(|pod| pod::render(pod, host, facts, say)));
        }
        self.kubelet.publish(&self.facts.addresses, targets);
        self.report_agent(gathered, decision, &vms, reserved);
    }

    fn report_agent(
        &mut self,
        gathered: &Gathered,
        decision: &Decision,
        vms: &BTreeMap<String, Facts>,
        disk_reserved: u64,
    ) {
        let seen = self.mac_node.borrow().clone();
        let Some(mac_node) = seen.present() else { return };
        let Some(uid) = mac_node.uid() else { return };
        let status = render(&Sources {
            host: &self.facts,
            clock_skew_seconds: self.server_clock.skew(),
            disk_free: gathered.disk_free,
            quota: &self.quota,
            lease_problem: self.lease_problem.as_deref(),
            slots: &gathered.slots,
            vms,
            says: &decision.says,
            receipts: &self.receipts,
            disk_reserved,
            goldens: &gathered.situation.goldens,
            pulls: &gathered.situation.pulls,
            last_lease: self.last_lease.clone(),
            reboot: self.rebooter.facts(self.asked_reboot().as_ref()),
        });
        // a MacNode restored from a backup has lost what was written to it
        let (had, losses) = self.reported;
        let has = mac_node.status.as_ref().is_some_and(|status| status.agent.is_some());
        let losses = losses + u32::from(had && !has);
        self.reported = (has, losses);
        replace(&self.report, Some(AgentReport { mac_node: uid, losses, status }));
    }
}
