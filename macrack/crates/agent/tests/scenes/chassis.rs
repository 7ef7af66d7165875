//! One simulated chassis and the tasks of its VMs.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use macrack_agent::bell::Bell;
use macrack_agent::host::{Host, HostFacts, SimulatedHost, VmProcess, random};
use macrack_agent::images::store::{Spec, publish};
use macrack_agent::images::{Cache, DirectoryStore, Measure, Puller, Source, Want, Wishes};
use macrack_agent::life::{Facts, Life, Rest};
use macrack_agent::state_dir::StateDir;
use macrack_agent::vms::{Command, Making, Shape, Surroundings, Vm};
use macrack_testkit::child::bin;
use macrack_vm::sim::{Chassis, ChassisSpec, HostPrepared};
use macrack_wire::MacAddress;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

const SOON: Duration = Duration::from_secs(30);

/// A chassis; dropping it kills what still runs on it.
pub(crate) struct Bench {
    pub(crate) chassis: Chassis,
    pub(crate) state_dir: StateDir,
    pub(crate) around: Surroundings,
    pub(crate) golden: PathBuf,
    _dir: tempfile::TempDir,
}

pub(crate) fn uid(n: u8) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

impl Bench {
    /// A chassis with one golden.
    pub(crate) async fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("s");
        let chassis = Chassis::create(&root, spec()).unwrap();
        let state_dir = StateDir::open(&root).unwrap();
        let host: Arc<dyn Host> = Arc::new(SimulatedHost::open(state_dir.path()).unwrap());
        bin("macrack-guest").unwrap();
        let around = Surroundings {
            host: host.clone(),
            vm_binary: bin("macrack-vm").unwrap(),
            boot_id: chassis.boot_id().unwrap(),
            bell: Bell::default(),
        };
        let golden = pull(dir.path().join("store"), &state_dir, host).await;
        Bench { chassis, state_dir, around, golden, _dir: dir }
    }

    /// A VM with a disk of its own, at rest.
    pub(crate) async fn made(&self, n: u8) -> Vm {
        let vm = Vm::make(self.state_dir.vm(&uid(n)), self.around.clone(), self.making(n, None));
        until(&vm, "made", |facts| facts.life == Life::AtRest(Rest::Ready)).await;
        vm
    }

    /// A VM that runs and whose guest is ready.
    pub(crate) async fn running(&self, n: u8) -> Vm {
        let vm = self.made(n).await;
        vm.order(Command::Start);
        until_ready(&vm).await;
        vm
    }

    pub(crate) fn making(&self, n: u8, script: Option<Result<String, String>>) -> Making {
        let shape = Shape {
            uid: uid(n),
            namespace: "tenant".to_owned(),
            name: format!("build-{n}"),
            cpu_cores: 4,
            memory_bytes: 8 << 30,
            display: None,
            first_boot: script.is_some(),
        };
        let address = MacAddress::locally_administered(random().unwrap());
        Making {
            description: shape.described(format!("machine-{n}"), address),
            disk_bytes: 8 << 20,
            golden: self.golden.file_name().unwrap().to_string_lossy().into_owned(),
            golden_dir: self.golden.clone(),
            script: script.map(|script| async { script }.boxed()),
        }
    }

    /// What a new agent makes of the VM's directory.
    pub(crate) fn adopted(&self, n: u8) -> Vm {
        Vm::adopt(self.state_dir.vm(&uid(n)), self.around.clone())
    }

    pub(crate) fn pid(&self, n: u8) -> u32 {
        self.state_dir.vm(&uid(n)).read_state().unwrap().unwrap().report.pid
    }

    pub(crate) fn signal(&self, n: u8, signal: Signal) {
        send(self.pid(n), signal);
    }

    /// Has the guest shut itself down, as its own user would.
    pub(crate) fn power_button(&self, n: u8) {
        let pid = self.pid(n);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let guest = children.split_whitespace().next().expect("the VM process has a guest");
        send(guest.parse().unwrap(), Signal::TERM);
    }

    /// From now on VMs are made on a host whose processes can be hidden.
    pub(crate) fn blindfold(&mut self) -> Arc<AtomicBool> {
        let blind = Arc::new(AtomicBool::new(false));
        self.around.host = Arc::new(Blindfolded { inner: self.around.host.clone(), blind: blind.clone() });
        blind
    }
}

/// A host that at times cannot list its processes.
struct Blindfolded {
    inner: Arc<dyn Host>,
    blind: Arc<AtomicBool>,
}

impl Host for Blindfolded {
    fn facts(&self) -> io::Result<HostFacts> {
        self.inner.facts()
    }
    fn disk_free(&self) -> io::Result<u64> {
        self.inner.disk_free()
    }
    fn vm_processes(&self) -> io::Result<Vec<VmProcess>> {
        match self.blind.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the processes are hidden")),
            false => self.inner.vm_processes(),
        }
    }
    fn machine_identifier(&self) -> io::Result<String> {
        self.inner.machine_identifier()
    }
    fn going_down(&self) -> io::Result<bool> {
        self.inner.going_down()
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

impl Drop for Bench {
    fn drop(&mut self) {
        for (pid, _) in self.chassis.running().unwrap() {
            // one that has just ended is as good as killed
            let _gone = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
        }
    }
}

pub(crate) async fn until(vm: &Vm, what: &str, holds: impl Fn(&Facts) -> bool) -> Facts {
    let mut facts = vm.watch();
    let seen = tokio::time::timeout(SOON, facts.wait_for(|facts| holds(facts))).await;
    let seen = seen.map(|seen| seen.unwrap().clone());
    seen.unwrap_or_else(|_| panic!("still not {what}: {:?}", vm.facts()))
}

pub(crate) async fn until_ready(vm: &Vm) -> Facts {
    until(vm, "ready", |facts| facts.life == Life::Running && facts.guest_ready).await
}

fn spec() -> ChassisSpec {
    ChassisSpec {
        serial: "ZZSCENE001".to_owned(),
        chip: "M4 Pro".to_owned(),
        model: "Mac16,11".to_owned(),
        cpu_cores: 14,
        memory_bytes: 64 << 30,
        disk_bytes: 1_000_000_000_000,
        link_bits_per_second: 10_000_000_000,
        host_version: "26.1".to_owned(),
        host_prepared: HostPrepared::default(),
    }
}

async fn pull(store: PathBuf, state_dir: &StateDir, host: Arc<dyn Host>) -> PathBuf {
    let reference = publish(&store, "r.example/tahoe", &Spec { disk_bytes: 4 << 20, ..Spec::default() }).unwrap();
    let (wishes, wished) = watch::channel(Wishes {
        known: true,
        wants: vec![Want { source: Source { reference: reference.clone(), pull_secret: None }, for_instance: true }],
        cloned: Default::default(),
        reserve: 0,
        max_goldens: 2,
        evict_after: jiff::SignedDuration::from_hours(1),
    });
    let cache = Cache::open(state_dir.images()).unwrap();
    let free: Measure = Arc::new(move || host.disk_free());
    let store = Arc::new(DirectoryStore::new(store));
    let (puller, mut seen) = Puller::new(cache.clone(), store, free, wished, Bell::default()).unwrap();
    let puller = tokio::spawn(puller.run());
    seen.wait_for(|situation| situation.goldens.contains_key(reference.hex())).await.unwrap();
    drop(wishes);
    puller.await.unwrap();
    cache.dir(reference.hex())
}
