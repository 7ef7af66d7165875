//! A simulated Mac with the product's own agent, enrolled as an admin enrols one.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use macrack_agent::images::store::{Spec, publish};
use macrack_api::{MacNode, condition, names};
use macrack_testkit::{Child, Output, Program, bin, expect};
use macrack_vm::sim::{Chassis, ChassisSpec, HostPrepared};
use macrack_wire::VmDir;

use crate::{Rack, objects};

/// One Mac.
pub struct Mac {
    /// The simulated hardware and kernel.
    pub chassis: Chassis,
    /// Its agent.
    pub agent: Child,
    /// What reboots it.
    pub hostd: Child,
    /// Its serial.
    pub serial: String,
    dir: tempfile::TempDir,
}

impl Mac {
    /// Makes the MacNode, enrols the Mac with `kubectl macrack enroll`, starts its agent and waits until it is Leasable.
    pub async fn enrol(rack: &Rack, serial: &str, class: &str) -> Result<Mac> {
        let admin = rack.plane.admin().await?;
        objects::make(&admin, &objects::mac_node(serial, class)).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), names::AGENT_NAMESPACE);
        let name = names::mac_node(serial);
        let soon = Duration::from_secs(30);
        expect::until_seen(&accounts, &names::enroll_account(&name), "made by the operator", soon, |_| true).await;
        let dir = tempfile::tempdir()?;
        let (state, bootstrap) = (dir.path().join("state"), dir.path().join("bootstrap.json"));
        let chassis = Chassis::create(&state, spec(serial))?;
        let hostd = Program::new(bin("macrack-hostd")?)
            .args(["serve", "--agent-uid", &rustix::process::geteuid().as_raw().to_string(), "--state-dir"])
            .arg(&state)
            .arg("--dhcp-leases")
            .arg(dir.path().join("dhcpd_leases"))
            .start(&format!("hostd-{name}"))?;
        hostd.until_logged("serves", soon).await?;
        print_bootstrap(rack, serial, &bootstrap).await?.success().context("enrolling")?;
        for needed in ["macrack-vm", "macrack-guest"] {
            bin(needed)?;
        }
        let agent = Program::new(bin("macrack-agent")?)
            .arg("run")
            .arg("--bootstrap")
            .arg(&bootstrap)
            .arg("--state-dir")
            .arg(&state)
            .arg(format!("--image-store=dir:{}", rack.store().display()))
            .start(&format!("agent-{name}"))?;
        let nodes: Api<MacNode> = Api::all(admin);
        expect::until_seen(&nodes, &name, "Leasable", soon, |n| {
            condition::is_true(&n.status.clone().unwrap_or_default().conditions, "Leasable")
        })
        .await;
        Ok(Mac { chassis, agent, hostd, serial: serial.into(), dir })
    }

    /// Waits until the Mac has gone down in its `boots`-th boot, and with it the agent.
    pub async fn goes_down(&self, boots: u32, limit: Duration) -> Result<()> {
        self.agent.wait(limit).await?;
        let now = self.chassis.read()?.boots;
        anyhow::ensure!(now == boots + 1, "the agent ended in boot {now}, not with the reboot after boot {boots}");
        Ok(())
    }

    /// Prints its bootstrap file anew in the place of the old, as an admin does for a Mac that nobody knows any more.
    pub async fn enrol_again(&self, rack: &Rack) -> Result<Output> {
        print_bootstrap(rack, &self.serial, &self.dir.path().join("bootstrap.json")).await
    }

    /// What launchd does once the Mac is up again.
    pub fn comes_up(&mut self) -> Result<()> {
        self.agent.restart()
    }

    /// Where its VM of that uid lives.
    pub fn vm(&self, uid: &str) -> VmDir {
        VmDir::new(self.state_dir().join("vms").join(uid))
    }

    /// The agent's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }
}

async fn print_bootstrap(rack: &Rack, serial: &str, file: &Path) -> Result<Output> {
    bin("kubectl-macrack")?;
    rack.plane.kubectl(&["macrack", "enroll", serial, "-o", &file.display().to_string()]).await
}

/// The hardware of the class that [`objects::node_class`] describes.
fn spec(serial: &str) -> ChassisSpec {
    ChassisSpec {
        serial: serial.into(),
        chip: "M4 Pro".into(),
        model: "Mac16,11".into(),
        cpu_cores: 14,
        memory_bytes: 64 << 30,
        disk_bytes: 1_000_000_000_000,
        link_bits_per_second: 10_000_000_000,
        host_version: "26.1".into(),
        host_prepared: HostPrepared::default(),
    }
}

/// Publishes a small golden with simulated contents and makes its image; waits until it is Ready.
pub async fn golden(rack: &Rack, name: &str) -> Result<()> {
    golden_of(rack, name, 1).await
}

/// The same, with a macOS version of its own.
pub async fn golden_of(rack: &Rack, name: &str, minor: u32) -> Result<()> {
    let spec = Spec { disk_bytes: 8 << 20, ..Spec::default() };
    let reference = publish(rack.store(), &format!("registry.example.com/golden/{name}"), &spec)?;
    let admin = rack.plane.admin().await?;
    objects::make(&admin, &objects::image(name, &reference.to_string(), minor)).await?;
    let images: Api<macrack_api::MacOSImage> = Api::all(admin);
    expect::until_seen(&images, name, "Ready", Duration::from_secs(30), |i| {
        i.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, "Ready"))
    })
    .await;
    Ok(())
}
