//! A simulated chassis in a directory of its own, and what tests do with its VMs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use macrack_vm::sim::{Chassis, ChassisSpec};
use macrack_wire::{GuestStage, MacAddress, VmClient, VmDescription, VmDir, VmReport, VmState};
use tempfile::TempDir;
use tokio::time::timeout;

/// How long a test waits for what must happen; none of them takes nearly as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const VM: &str = env!("CARGO_BIN_EXE_macrack-vm");

/// The guest's program beside the VM's, built once: it belongs to another package, which Cargo does not
/// build for these tests.
pub(crate) fn guest_binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/Cargo.toml");
        cargo.args(["build", "--quiet", "--manifest-path", manifest]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "macrack-guest must build");
        let binary = Path::new(VM).with_file_name("macrack-guest");
        assert!(binary.exists(), "{}", binary.display());
        binary
    })
}

/// Each VM's own, and the same each time.
fn address(uid: &str) -> MacAddress {
    let folded = uid.bytes().fold([0_u8; 5], |mut sum, byte| {
        sum.rotate_left(1);
        sum[0] = sum[0].wrapping_mul(31).wrapping_add(byte);
        sum
    });
    MacAddress::locally_administered([2, folded[0], folded[1], folded[2], folded[3], folded[4]])
}

pub(crate) struct Rack {
    state_dir: TempDir,
    pub(crate) chassis: Chassis,
}

impl Rack {
    pub(crate) fn new() -> Self {
        guest_binary();
        let state_dir = tempfile::tempdir().unwrap();
        let spec = ChassisSpec {
            serial: "H4XK29Q0LW".into(),
            chip: "Apple M4 Pro".into(),
            model: "Mac16,11".into(),
            cpu_cores: 14,
            memory_bytes: 64 << 30,
            disk_bytes: 1_000_000_000_000,
            link_bits_per_second: 10_000_000_000,
            host_version: "26.1".into(),
            host_prepared: Default::default(),
        };
        let chassis = Chassis::create(state_dir.path(), spec).unwrap();
        Rack { state_dir, chassis }
    }

    pub(crate) fn dir(&self, uid: &str) -> VmDir {
        let path = self.state_dir.path().canonicalize().unwrap();
        VmDir::new(path.join("vms").join(uid))
    }

    pub(crate) fn description(&self, uid: &str) -> VmDescription {
        VmDescription {
            uid: uid.into(),
            namespace: "team-a".into(),
            name: format!("build-{uid}"),
            cpu_cores: 4,
            memory_bytes: 8 << 30,
            disk: "disk.img".into(),
            aux: "aux.img".into(),
            hardware_model: None,
            machine_identifier: format!("identifier of {uid}"),
            mac_address: address(uid),
            display: None,
            first_boot: false,
        }
    }

    /// A clone with everything that the agent would have put there.
    pub(crate) fn make(&self, uid: &str) -> VmDir {
        let dir = self.dir(uid);
        fs::create_dir_all(dir.path()).unwrap();
        for image in ["disk.img", "aux.img"] {
            File::create(dir.path().join(image)).unwrap().set_len(1 << 20).unwrap();
        }
        let manifest = r#"{"contents": [{"kind": "macOS", "version": "26.1", "build": "25B78"},
            {"kind": "Xcode", "version": "26.0.1", "build": "17A400"}]}"#;
        fs::write(dir.manifest(), manifest).unwrap();
        dir.write_description(&self.description(uid)).unwrap();
        dir
    }

    /// A clone with a first-boot script.
    pub(crate) fn make_with_script(&self, uid: &str, script: &str) -> VmDir {
        let dir = self.make(uid);
        let description = VmDescription { first_boot: true, ..self.description(uid) };
        dir.write_description(&description).unwrap();
        fs::write(dir.first_boot(), script).unwrap();
        dir
    }

    /// Starts the VM process and returns its id.
    pub(crate) fn start(&self, uid: &str) -> u32 {
        macrack_vm::spawn(Path::new(VM), self.dir(uid).path()).unwrap()
    }

    pub(crate) async fn client(&self, uid: &str) -> VmClient {
        VmClient::connect(&self.dir(uid).socket(), PATIENCE).await.unwrap()
    }

    /// Watches the VM until its report is as `wanted`, over the end of its process if need be.
    pub(crate) async fn until(&self, uid: &str, wanted: impl Fn(&VmReport) -> bool) -> VmReport {
        let mut last = None;
        let watched = timeout(PATIENCE, async {
            // a VM that ends meanwhile leaves its last report in its state
            if let Ok(client) = VmClient::connect(&self.dir(uid).socket(), PATIENCE).await
                && let Ok(mut reports) = client.watch().await
            {
                while let Ok(Some(report)) = reports.next().await {
                    if wanted(&report) {
                        return Some(report);
                    }
                    last = Some(report);
                }
            }
            let state = self.dir(uid).read_state().unwrap()?;
            wanted(&state.report).then_some(state.report)
        })
        .await;
        match watched {
            Ok(Some(report)) => report,
            _ => panic!(
                "{uid} never was as wanted; last: {last:?}; log:\n{}",
                fs::read_to_string(self.dir(uid).log()).unwrap_or_default()
            ),
        }
    }

    pub(crate) async fn running(&self, uid: &str) -> VmReport {
        self.until(uid, |report| report.state == VmState::Running).await
    }

    pub(crate) async fn ready(&self, uid: &str) -> VmReport {
        self.until(uid, |report| stage(report) == Some(GuestStage::Ready)).await
    }

    pub(crate) async fn ended(&self, uid: &str) -> VmReport {
        self.until(uid, |report| report.state.is_final()).await
    }

    pub(crate) async fn stop(&self, uid: &str, grace_seconds: u32) -> VmReport {
        let stopping = self.client(uid).await.stop(grace_seconds).await.unwrap();
        assert_eq!(stopping.state, VmState::Stopping);
        self.ended(uid).await
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        self.chassis.reboot().unwrap();
    }
}

pub(crate) fn stage(report: &VmReport) -> Option<GuestStage> {
    report.guest.as_ref().map(|guest| guest.stage)
}
