//! Four simulated Macs, each with a real agent.
//!
//! What is simulated is the metal: hardware facts, the kernel's count of VMs, the hypervisor, the guest's boot. What
//! runs on it is the product: `macrack-agent`, `macrack-hostd`, one `macrack-vm` per VM, `macrack-guest` inside.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use kube::Api;
use macrack_api::{MacNode, MacOSImage, condition, names};
use macrack_testkit::{Child, Program};
use macrack_vm::sim::{Chassis, ChassisSpec, HostPrepared};
use macrack_wire::VmDir;
use macrack_wire::vm::LastState;
use serde_json::json;

use crate::cluster::Cluster;
use crate::seen::until;

/// Serial and class of each.
pub(crate) const MACS: [(&str, &str); 4] = [
    ("H4XK29Q0LW", "mini-m4pro-64"),
    ("J2LM00AAAA", "mini-m4pro-64"),
    ("KX81PQ77ZD", "studio-m4max-128"),
    ("M0V6T4C2RE", "studio-m4max-128"),
];

/// The golden that the samples name.
pub(crate) const GOLDEN: &str = "tahoe-xcode26";

const GIB: u64 = 1 << 30;
const TB: u64 = 1_000_000_000_000;

/// One simulated Mac and its agent.
pub(crate) struct Mac {
    pub(crate) serial: &'static str,
    pub(crate) chassis: Chassis,
    pub(crate) agent: Child,
    /// What reboots it.
    pub(crate) _hostd: Child,
    pub(crate) state_dir: PathBuf,
}

impl Mac {
    /// Where its VM of that uid lives.
    pub(crate) fn vm(&self, uid: &str) -> VmDir {
        VmDir::new(self.state_dir.join("vms").join(uid))
    }

    /// What the VM's own process last wrote.
    pub(crate) fn vm_state(&self, uid: &str) -> Result<LastState> {
        self.vm(uid).read_state()?.ok_or_else(|| anyhow!("VM {uid} on {} has written no state", self.serial))
    }
}

/// The catalogue that tenants order from: classes, sizes, the golden as its push printed it.
pub(crate) async fn catalogue(cluster: &Cluster, golden: &str) -> Result<()> {
    let admin = cluster.admin_person();
    for sample in ["macnodeclass", "instanceclass", "rackconfig"] {
        cluster.kubectl(&admin, &format!("apply -f samples/{sample}.yaml")).await?.worked()?;
    }
    cluster.run(&admin, &["apply", "-f", "-"], golden).await?.worked()?;
    let images: Api<MacOSImage> = Api::all(cluster.admin().await?);
    until(&images, GOLDEN, "Ready", |image: &MacOSImage| {
        image.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
    })
    .await?;
    Ok(())
}

/// A Mac out of its box: its MacNode, its bootstrap file by `kubectl macrack enroll`, its agent.
pub(crate) async fn enrol(
    cluster: &Cluster,
    bin_dir: &Path,
    logs: &Path,
    (serial, class): (&'static str, &'static str),
) -> Result<Mac> {
    let name = names::mac_node(serial);
    // sockets live in it, and their paths may be 103 bytes long
    let state_dir = macrack_testkit::run::current()?.dir().join(&name[..4]);
    let chassis = Chassis::create(&state_dir, spec(serial, class))
        .with_context(|| format!("making a simulated Mac in {}", state_dir.display()))?;
    let node = json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
        "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": "demo" } },
        "spec": { "serial": serial, "nodeClassName": class },
    });
    let admin = cluster.admin_person();
    cluster.run(&admin, &["apply", "-f", "-"], &node.to_string()).await?.worked()?;
    let bootstrap = state_dir.join("bootstrap.json");
    let enroll = ["macrack", "enroll", serial, "-o", &bootstrap.display().to_string()];
    cluster.run(&admin, &enroll, "").await?.worked().context("kubectl macrack enroll")?;
    let hostd = Program::new(bin_dir.join("macrack-hostd"))
        .args(["serve", "--agent-uid", &rustix::process::geteuid().as_raw().to_string(), "--state-dir"])
        .arg(&state_dir)
        .arg("--dhcp-leases")
        .arg(state_dir.join("dhcpd_leases"))
        .start_logging_to("macrack-hostd", &logs.join(format!("hostd-{name}.log")))?;
    let agent = Program::new(bin_dir.join("macrack-agent"))
        .args(["run", "--bootstrap"])
        .arg(&bootstrap)
        .arg("--state-dir")
        .arg(&state_dir)
        .arg("--image-store=oci")
        .start_logging_to("macrack-agent", &logs.join(format!("agent-{name}.log")))?;
    let nodes: Api<MacNode> = Api::all(cluster.admin().await?);
    until(&nodes, &name, "Ready", |node: &MacNode| {
        node.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
    })
    .await?;
    Ok(Mac { serial, chassis, agent, _hostd: hostd, state_dir })
}

fn spec(serial: &str, class: &str) -> ChassisSpec {
    let studio = class.starts_with("studio");
    ChassisSpec {
        serial: serial.to_owned(),
        chip: if studio { "Apple M4 Max" } else { "Apple M4 Pro" }.to_owned(),
        model: if studio { "Mac16,9" } else { "Mac16,11" }.to_owned(),
        cpu_cores: if studio { 16 } else { 14 },
        memory_bytes: if studio { 128 * GIB } else { 64 * GIB },
        disk_bytes: if studio { 2 * TB } else { TB },
        link_bits_per_second: 10_000_000_000,
        host_version: "26.1".to_owned(),
        host_prepared: HostPrepared::default(),
    }
}
