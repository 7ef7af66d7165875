//! Programs that are really run, and the guest that shuts itself down.

use anyhow::{Context, Result};
use dockerios_kubevirt::vmi::VmiPhase;
use dockerios_sim::Stage;
use dockerios_testkit::expect;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{ResourceExt, api::ListParams};

use crate::stage::{comes_true, run, stage};

fn last_words(pod: &Pod) -> Option<(i32, String)> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some((ended.exit_code, ended.message.clone().unwrap_or_default()))
}

async fn pod_of(stage: &crate::stage::Stage, job: &str) -> Result<Pod> {
    let pods = stage
        .api::<Pod>()?
        .list(&ListParams::default().labels(&format!("job-name={job}")))
        .await?;
    pods.items.into_iter().next().context("the job has a pod")
}

fn ended(job: &Job, how: &str) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    conditions.iter().any(|one| one.type_ == how && one.status == "True")
}

fn builder(name: &str, sha256: &str) -> String {
    let identity = r#"{"model":"iMacPro1,1","serial":"C02XY0AAHX87","mlb":"C02721302CDHG93AH","rom":"0ACAFE000001","systemUUID":"5D307CA9-B3EF-428C-8861-06E72D69F223","macAddress":"0A:CA:FE:00:00:01"}"#;
    format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: mac-wffc, resources: {{requests: {{storage: 384Mi}}}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  backoffLimit: 0
  template:
    metadata: {{annotations: {{values: '{identity}'}}}}
    spec:
      restartPolicy: Never
      containers:
      - name: builder
        image: ghcr.io/example/dockerios-bootdisk@sha256:{zeros}
        args: [build, --template, /template, --template-sha256, "{sha256}", --identity, /identity/identity.json, --output, /dev/bootdisk, --report, /dev/termination-log]
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts: [{{name: template, mountPath: /template, readOnly: true}}, {{name: identity, mountPath: /identity}}]
        volumeDevices: [{{name: bootdisk, devicePath: /dev/bootdisk}}]
      volumes:
      - {{name: template, image: {{reference: "ghcr.io/example/opencore-template@sha256:{zeros}"}}}}
      - {{name: identity, downwardAPI: {{items: [{{path: identity.json, fieldRef: {{fieldPath: "metadata.annotations['values']"}}}}]}}}}
      - {{name: bootdisk, persistentVolumeClaim: {{claimName: {name}}}}}
"#,
        zeros = "0".repeat(64)
    )
}

#[test]
fn a_builder_job_runs_the_real_program_and_a_wrong_template_fails_it_with_its_words() {
    run(async {
        let stage = stage("builder").await?;
        stage.apply(&builder("wrong", &"0".repeat(64))).await?;
        expect::until(stage.api::<Job>()?, "wrong", "Failed", |job: &Job| ended(job, "Failed")).await?;
        let (code, message) = last_words(&pod_of(&stage, "wrong").await?).context("it ended")?;
        assert_ne!(code, 0);
        assert!(message.contains("mount that template or name this one"), "{message}");
        Ok(())
    });
}

#[test]
fn a_launcher_image_answers_what_its_qemu_can_do() {
    run(async {
        let stage = stage("probe").await?;
        stage
            .apply(
                r#"
apiVersion: batch/v1
kind: Job
metadata: {name: probe}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: probe
        image: ghcr.io/example/virt-launcher@sha256:00
        command: [/bin/sh, -c, "{ /usr/libexec/qemu-kvm -device help; /usr/sbin/virtqemud --version; } > /dev/termination-log"]
"#,
            )
            .await?;
        expect::until(stage.api::<Job>()?, "probe", "Complete", |job: &Job| {
            ended(job, "Complete")
        })
        .await?;
        let (_, message) = last_words(&pod_of(&stage, "probe").await?).context("it ended")?;
        for part in ["name \"nvme\"", "name \"isa-applesmc\"", "12.9.0"] {
            assert!(message.contains(part), "{message}");
        }
        Ok(())
    });
}

#[test]
fn an_image_that_nothing_stands_for_is_not_pulled() {
    run(async {
        let stage = stage("image").await?;
        stage
            .apply(
                "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: c, image: 'busybox:1'}]}}",
            )
            .await?;
        let pod = expect::until(stage.api::<Pod>()?, "x", "ErrImagePull", |pod: &Pod| {
            serde_json::to_string(&pod.status)
                .unwrap_or_default()
                .contains("ErrImagePull")
        })
        .await?;
        assert!(
            serde_json::to_string(&pod.status)?.contains("the simulator plays no image"),
            "{:?}",
            pod.status
        );
        Ok(())
    });
}

#[test]
fn a_guest_comes_up_by_stages_and_its_shutdown_command_ends_the_machine_well() {
    run(async {
        let stage = stage("guest").await?;
        stage.machine("one", "mac-csi", 30).await?;
        let vmi = stage.in_phase("one", VmiPhase::Running).await?;
        let directory = stage
            .sim
            .options()
            .dir
            .join("machines")
            .join(vmi.uid().context("a uid")?);
        comes_true("the guest has a user's session", || async {
            stage.sim.stage(stage.namespace(), "one") == Some(Stage::UserSession)
        })
        .await?;
        assert_eq!(std::fs::read_to_string(directory.join("probe/serial"))?, "C02XXXXXXXXX");
        assert_eq!(
            std::fs::read_to_string(directory.join("config/machine-id"))?,
            "0b9f2c1e"
        );
        assert!(
            tokio::process::Command::new(directory.join("shutdown"))
                .status()
                .await?
                .success()
        );
        stage.in_phase("one", VmiPhase::Succeeded).await?;
        Ok(())
    });
}
