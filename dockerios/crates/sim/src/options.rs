//! What the simulated installation looks like and how fast it is. Times are wall-clock times of the simulation.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

/// Everything that can be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of its own: sockets, volumes, guests' files.
    pub dir: PathBuf,
    /// The real programs that are run.
    pub programs: Programs,
    /// Directory with the real definitions (`kubevirt/`, `cdi/`, `snapshot/`); without it, the product's own are used.
    pub crds: Option<PathBuf>,
    /// Nodes with KVM.
    pub nodes: Vec<NodeShape>,
    /// Storage classes.
    pub classes: Vec<ClassShape>,
    /// Gates that the KubeVirt installation has on.
    pub feature_gates: Vec<String>,
    /// PCI devices that machines may ask for: resource name and vendor:device.
    pub permitted_devices: BTreeMap<String, String>,
    /// Images mounted as volumes, by reference: the directory that stands for what is in them. `*` stands for all others.
    pub images: BTreeMap<String, PathBuf>,
    /// Image of the launcher, as KubeVirt records it. A name with `virt-launcher` in it is played.
    pub launcher_image: String,
    /// QEMU devices that the launcher's QEMU has, as `-device help` prints their names.
    pub launcher_devices: Vec<String>,
    /// What libvirt in the launcher says its version is.
    pub launcher_libvirt: String,
    /// Where webhooks and the aggregated API are served. Loopback: the API server is on this machine.
    pub listen: SocketAddr,
    /// How long things take.
    pub timings: Timings,
}

/// Programs of this workspace.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `dockerios-domain-hook`.
    pub hook: PathBuf,
    /// `dockerios-guest`, built with `probe-directory`.
    pub guest: PathBuf,
    /// `dockerios-bootdisk`.
    pub bootdisk: PathBuf,
}

impl Programs {
    /// All from one directory, such as `target/debug`.
    pub fn of(directory: &std::path::Path) -> Self {
        Self {
            hook: directory.join("dockerios-domain-hook"),
            guest: directory.join("dockerios-guest"),
            bootdisk: directory.join("dockerios-bootdisk"),
        }
    }
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// Name.
    pub name: String,
    /// Allocatable resources: Kubernetes quantities.
    pub resources: BTreeMap<String, String>,
}

impl NodeShape {
    /// A node with room for many small machines.
    pub fn large(name: &str) -> Self {
        let resources = [
            ("cpu", "256"),
            ("memory", "4Ti"),
            ("ephemeral-storage", "4Ti"),
            ("pods", "500"),
            ("devices.kubevirt.io/kvm", "1k"),
            ("devices.kubevirt.io/tun", "1k"),
        ];
        Self {
            name: name.to_owned(),
            resources: resources
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    /// The same with one resource set.
    #[must_use]
    pub fn with(mut self, resource: &str, quantity: &str) -> Self {
        self.resources.insert(resource.to_owned(), quantity.to_owned());
        self
    }
}

/// One storage class, with what CDI makes of it.
#[derive(Clone, Debug)]
pub struct ClassShape {
    /// Name.
    pub name: String,
    /// CSI driver.
    pub provisioner: String,
    /// Whether it binds when a pod uses the claim.
    pub waits_for_consumer: bool,
    /// `copy`, `snapshot` or `csi-clone`.
    pub clone_strategy: String,
    /// The driver's parameters.
    pub parameters: BTreeMap<String, String>,
    /// `discard` among them: freed blocks are given back.
    pub mount_options: Vec<String>,
    /// Free space that the driver tells, a Kubernetes quantity; `None`: it tells nothing.
    pub capacity: Option<String>,
}

impl ClassShape {
    /// A class of a driver that clones by itself.
    pub fn new(name: &str, provisioner: &str, clone_strategy: &str) -> Self {
        Self {
            name: name.to_owned(),
            provisioner: provisioner.to_owned(),
            waits_for_consumer: false,
            clone_strategy: clone_strategy.to_owned(),
            parameters: BTreeMap::new(),
            mount_options: vec!["discard".to_owned()],
            capacity: Some("10Ti".to_owned()),
        }
    }

    /// The same, bound when a pod uses the claim.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.waits_for_consumer = true;
        self
    }
}

/// How long things take.
#[derive(Clone, Debug)]
pub struct Timings {
    /// From a pod on a node to a running pod.
    pub pod_start: Duration,
    /// An import.
    pub import: Duration,
    /// A clone by the driver or from a snapshot.
    pub clone: Duration,
    /// A clone by copying.
    pub copy: Duration,
    /// From a running domain to an agent that speaks.
    pub boot: Duration,
    /// From there to the login window.
    pub login: Duration,
    /// From there to a user's session, which is the last stage that is played: readiness is the agent's to say.
    pub session: Duration,
    /// From the power button or a shutdown in the guest to the end.
    pub shutdown: Duration,
    /// How long the launcher tries to get a domain defined (KubeVirt: about four minutes).
    pub define: Duration,
    /// How long one second of a grace period takes.
    pub grace_second: Duration,
    /// How often a node renews its lease (kubelet: 10 s).
    pub heartbeat: Duration,
}

impl Timings {
    /// As fast as it makes sense, for tests.
    pub fn fast() -> Self {
        let ms = Duration::from_millis;
        Self {
            pod_start: ms(10),
            import: ms(200),
            clone: ms(50),
            copy: ms(150),
            boot: ms(300),
            login: ms(50),
            session: ms(50),
            shutdown: ms(100),
            define: ms(3000),
            grace_second: ms(20),
            heartbeat: Duration::from_secs(10),
        }
    }

    /// So that a person can follow.
    pub fn demo() -> Self {
        let ms = Duration::from_millis;
        Self {
            pod_start: ms(200),
            import: ms(4000),
            clone: ms(400),
            copy: ms(3000),
            boot: ms(2000),
            login: ms(1000),
            session: ms(1000),
            shutdown: ms(1500),
            define: ms(10_000),
            grace_second: ms(1000),
            heartbeat: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// Two nodes, four classes (driver's clone, the same waiting for its consumer, snapshot, copy), fast.
    pub fn new(dir: PathBuf, programs: Programs) -> Self {
        let devices = [
            "nvme",
            "nvme-ns",
            "isa-applesmc",
            "virtio-net-pci",
            "e1000",
            "e1000-82545em",
            "e1000e",
            "vmxnet3",
            "ide-hd",
            "ich9-ahci",
        ];
        Self {
            dir,
            programs,
            crds: None,
            nodes: vec![NodeShape::large("kvm-1"), NodeShape::large("kvm-2")],
            classes: vec![
                ClassShape::new("mac-csi", "rbd.csi.ceph.com", "csi-clone"),
                ClassShape::new("mac-wffc", "rbd.csi.ceph.com", "csi-clone").waiting(),
                ClassShape::new("mac-snapshot", "linstor.csi.linbit.com", "snapshot"),
                ClassShape::new("mac-copy", "topolvm.io", "copy").waiting(),
            ],
            feature_gates: ["Sidecar", "CPUManager", "HostDevices"].map(str::to_owned).to_vec(),
            permitted_devices: BTreeMap::new(),
            images: BTreeMap::new(),
            launcher_image:
                "ghcr.io/example/virt-launcher@sha256:5b1f3f0c7a0d4e6c9b8a7d6e5f4c3b2a1908f7e6d5c4b3a29180f7e6d5c4b3a2"
                    .to_owned(),
            launcher_devices: devices.map(str::to_owned).to_vec(),
            launcher_libvirt: "12.9.0".to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            timings: Timings::fast(),
        }
    }
}

impl Options {
    /// What the KubeVirt object says of permitted devices.
    pub(crate) fn permitted(&self) -> Vec<serde_json::Value> {
        let devices = self.permitted_devices.iter();
        devices
            .map(|(name, selector)| serde_json::json!({"resourceName": name, "pciVendorSelector": selector}))
            .collect()
    }
}
