//! One control plane and one simulator for all tests of this binary, and what a machine is made of.

use std::{future::Future, sync::LazyLock, time::Duration};

use anyhow::{Context, Result};
use dockerios_kubevirt::{VirtualMachine, VirtualMachineInstance, vmi::VmiPhase};
use dockerios_sim::{Options, Programs, Sim};
use dockerios_testkit::{ControlPlane, Scratch, apply_yaml, expect, shared};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use tokio::{runtime::Runtime, sync::OnceCell};

/// A key of the right length; not Apple's.
pub(crate) const KEY: &str = "bm90LWFwcGxlcy1rZXktYnV0LW9mLXRoZS1yaWdodC1sZW5ndGgtMDEyMzQ1Njc4OS1hYmNkZWZnaGlqa2xtbg==";

const BEAT: Duration = Duration::from_millis(25);

// tasks of the simulator outlive the test that was first to ask for it
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// Runs a test on the runtime that all share.
#[track_caller]
pub(crate) fn run<T: Future<Output = Result<()>>>(test: T) {
    if let Err(error) = RUNTIME.block_on(test) {
        panic!("{error:?}");
    }
}

pub(crate) struct Stage {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) sim: &'static Sim,
    pub(crate) scratch: Scratch,
    pub(crate) client: kube::Client,
}

pub(crate) fn programs() -> Result<Programs> {
    Ok(Programs {
        hook: dockerios_testkit::bin("dockerios-domain-hook")?,
        guest: dockerios_testkit::bin("dockerios-guest")?,
        bootdisk: dockerios_testkit::bin("dockerios-bootdisk")?,
    })
}

async fn sim(plane: &'static ControlPlane) -> Result<&'static Sim> {
    static SIM: OnceCell<Sim> = OnceCell::const_new();
    let start = || async {
        let programs = tokio::task::spawn_blocking(programs).await??;
        let mut options = Options::new(plane.dir().join("sim"), programs);
        // as much of a template as shows the builder which one it was given
        let template = plane.dir().join("template");
        std::fs::create_dir_all(&template)?;
        std::fs::write(template.join("MANIFEST.sha256"), "")?;
        options.images.insert("*".to_owned(), template);
        let definitions = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/crds");
        if definitions.exists() {
            options.crds = Some(definitions);
        } else {
            eprintln!("the real definitions are not beside the repository: the product's own are used");
        }
        Sim::start(plane.client().await?, options).await
    };
    SIM.get_or_try_init(start).await
}

pub(crate) async fn stage(stem: &str) -> Result<Stage> {
    let plane = shared().await?;
    let sim = sim(plane).await?;
    let scratch = Scratch::new(plane, stem).await?;
    let client = plane.client().await?;
    let stage = Stage {
        plane,
        sim,
        scratch,
        client,
    };
    stage
        .apply(&format!(
            r#"
apiVersion: v1
kind: Secret
metadata: {{name: config}}
stringData: {{machine-id: 0b9f2c1e, collector: "https://127.0.0.1:9", token: "{}", ca.crt: "none"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: hook}}
binaryData: {{osk: {KEY}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: golden}}
spec: {{accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: mac-csi, resources: {{requests: {{storage: 200Gi}}}}}}
"#,
            "0".repeat(64)
        ))
        .await?;
    Ok(stage)
}

impl Stage {
    pub(crate) fn namespace(&self) -> &str {
        self.scratch.name()
    }

    pub(crate) async fn apply(&self, yaml: &str) -> Result<()> {
        apply_yaml(&self.scratch.client()?, yaml).await.map(drop)
    }

    pub(crate) fn api<K>(&self) -> Result<Api<K>>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Ok(Api::namespaced(self.client.clone(), self.namespace()))
    }

    /// A DataVolume that clones the golden claim.
    pub(crate) async fn clone_of_golden(&self, name: &str, class: &str) -> Result<()> {
        let namespace = self.namespace();
        self.apply(&format!(
            "
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: {name}, labels: {{machine.dockerios.io/uid: u1}}}}
spec:
  source: {{pvc: {{namespace: {namespace}, name: golden}}}}
  storage: {{accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: {class}, resources: {{requests: {{storage: 200Gi}}}}}}
"
        ))
        .await
    }

    /// A machine with its disks, as the operator renders them.
    pub(crate) async fn machine(&self, name: &str, class: &str, grace: u32) -> Result<()> {
        self.clone_of_golden(&format!("{name}-system"), class).await?;
        self.apply(&machine(name, grace)).await
    }

    pub(crate) async fn strategy(&self, name: &str, strategy: &str) -> Result<()> {
        let patch = serde_json::json!({"spec": {"runStrategy": strategy}});
        let api = self.api::<VirtualMachine>()?;
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(crate) async fn in_phase(&self, name: &str, phase: VmiPhase) -> Result<VirtualMachineInstance> {
        expect::until(self.api()?, name, &format!("phase {phase:?}"), move |vmi| {
            phase_of(vmi) == phase
        })
        .await
    }

    pub(crate) fn fault(&self, fault: &str, name: &str, value: &str) -> Result<()> {
        self.sim
            .fault(&format!("{fault} {}/{name} {value}", self.namespace()))
            .context("the fault is known")
    }

    pub(crate) fn clear(&self, fault: &str, name: &str) -> Result<()> {
        self.sim
            .clear(&format!("{fault} {}/{name}", self.namespace()))
            .context("the fault is known")
    }
}

/// Asks again until the answer is yes: for what no watch tells. `what` is said when it stays no.
pub(crate) async fn comes_true<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) -> Result<()> {
    let asking = async {
        let mut beat = tokio::time::interval(BEAT);
        while !ask().await {
            beat.tick().await;
        }
    };
    tokio::time::timeout(expect::DEADLINE, asking)
        .await
        .with_context(|| format!("still not so after {:?}: {what}", expect::DEADLINE))
}

pub(crate) fn phase_of(vmi: &VirtualMachineInstance) -> VmiPhase {
    vmi.status.as_ref().and_then(|status| status.phase).unwrap_or_default()
}

/// The VirtualMachine alone.
pub(crate) fn machine(name: &str, grace: u32) -> String {
    format!(
        r#"
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}, labels: {{identity.dockerios.io/name: c02xx}}}}
spec:
  runStrategy: Once
  template:
    metadata:
      labels: {{identity.dockerios.io/name: c02xx}}
      annotations:
        hooks.kubevirt.io/hookSidecars: '[{{"image":"ghcr.io/example/domain-hook@sha256:00","args":["serve","--osk-file=/osk/key"],"configMap":{{"name":"hook","key":"osk","hookPath":"/osk/key"}}}}]'
        kubevirt.io/placePCIDevicesOnRootComplex: "true"
        dockerios.io/system-disk: system
        dockerios.io/bootdisk: bootdisk
    spec:
      architecture: amd64
      evictionStrategy: External
      terminationGracePeriodSeconds: {grace}
      domain:
        firmware: {{bootloader: {{efi: {{secureBoot: false}}}}, uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223, serial: C02XXXXXXXXX}}
        machine: {{type: q35}}
        cpu: {{sockets: 1, maxSockets: 1, cores: 4, threads: 1, model: Skylake-Client-noTSX-IBRS, features: [{{name: avx2, policy: require}}]}}
        memory: {{guest: 8Gi, maxGuest: 8Gi}}
        devices:
          autoattachMemBalloon: false
          disableHotplug: true
          video: {{type: vga}}
          disks:
          - {{name: bootdisk, bootOrder: 1, disk: {{bus: sata, readonly: false}}}}
          - {{name: system, bootOrder: 2, serial: c02xxxxxxxxx, disk: {{bus: sata}}, cache: none, io: native, errorPolicy: stop}}
          - {{name: config, cdrom: {{bus: sata, readonly: true}}}}
          interfaces:
          - {{name: default, masquerade: {{}}, model: e1000, macAddress: "02:00:00:00:00:0a"}}
          inputs: [{{name: tablet, type: tablet, bus: usb}}]
      networks: [{{name: default, pod: {{}}}}]
      volumes:
      - {{name: bootdisk, containerDisk: {{image: "ghcr.io/example/opencore@sha256:00", imagePullPolicy: IfNotPresent}}}}
      - {{name: system, dataVolume: {{name: {name}-system}}}}
      - {{name: config, secret: {{secretName: config, volumeLabel: DOCKERIOS}}}}
"#
    )
}
