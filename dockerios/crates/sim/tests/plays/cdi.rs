//! Volumes that are filled, wait, are refused, fail.

use dockerios_kubevirt::{CdiConfig, DataVolume, condition, datavolume::DataVolumePhase, names, vmi::VmiPhase};
use dockerios_testkit::{History, expect};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt, api::PostParams};

use crate::stage::{comes_true, machine, run, stage};

fn phase(volume: &DataVolume) -> DataVolumePhase {
    volume
        .status
        .as_ref()
        .and_then(|status| status.phase)
        .unwrap_or_default()
}

#[test]
fn a_clone_says_how_it_was_made_and_its_claim_has_its_labels() {
    run(async {
        let stage = stage("clone").await?;
        for (name, class, how) in [("a", "mac-csi", "csi-clone"), ("b", "mac-snapshot", "copy")] {
            stage.clone_of_golden(name, class).await?;
            let done = expect::until(stage.api::<DataVolume>()?, name, "Succeeded", |volume: &DataVolume| {
                phase(volume) == DataVolumePhase::Succeeded && volume.annotations().contains_key(names::CLONE_TYPE)
            })
            .await?;
            // the golden claim is of another driver than the second class
            assert_eq!(done.annotations()[names::CLONE_TYPE], how);
            let claim = stage.api::<PersistentVolumeClaim>()?.get(name).await?;
            assert_eq!(claim.labels()["machine.dockerios.io/uid"], "u1");
            assert_eq!(claim.owner_references()[0].uid, done.uid().expect("a uid"));
        }
        Ok(())
    });
}

#[test]
fn a_volume_that_waits_for_its_consumer_is_filled_when_a_machine_uses_it() {
    run(async {
        let stage = stage("wffc").await?;
        stage.clone_of_golden("one-system", "mac-wffc").await?;
        let volumes = stage.api::<DataVolume>()?;
        expect::until(
            volumes.clone(),
            "one-system",
            "PendingPopulation",
            |volume: &DataVolume| phase(volume) == DataVolumePhase::PendingPopulation,
        )
        .await?;
        let history = History::<DataVolume>::start(volumes).await?;
        stage.apply(&machine("one", 30)).await?;
        stage.in_phase("one", VmiPhase::Running).await?;
        history.catch_up().await?;
        let mut phases: Vec<_> = history
            .versions_of("one-system")
            .iter()
            .map(|v| phase(&v.object))
            .collect();
        phases.dedup();
        assert_eq!(phases.first(), Some(&DataVolumePhase::PendingPopulation));
        assert_eq!(phases.last(), Some(&DataVolumePhase::Succeeded));
        assert!(phases.contains(&DataVolumePhase::CsiCloneInProgress), "{phases:?}");
        Ok(())
    });
}

#[test]
fn a_clone_that_fails_or_hangs_never_becomes_failed_and_goes_on_when_it_can() {
    run(async {
        let stage = stage("broken").await?;
        stage.fault("clone-error", "torn", "token is expired")?;
        stage.fault("stuck", "slow", "")?;
        let history = History::<DataVolume>::start(stage.api()?).await?;
        stage.clone_of_golden("torn", "mac-csi").await?;
        stage.clone_of_golden("slow", "mac-csi").await?;
        let torn = expect::until(
            stage.api::<DataVolume>()?,
            "torn",
            "the error",
            |volume: &DataVolume| {
                let conditions = volume.status.clone().unwrap_or_default().conditions;
                condition(&conditions, names::RUNNING).is_some_and(|c| c.reason.as_deref() == Some("Error"))
            },
        )
        .await?;
        assert_eq!(phase(&torn), DataVolumePhase::CsiCloneInProgress);
        let claim = stage.api::<PersistentVolumeClaim>()?.get("torn").await?;
        assert_eq!(claim.annotations()[names::CLONE_ERROR], "token is expired");
        expect::until(
            stage.api::<DataVolume>()?,
            "slow",
            "CSICloneInProgress",
            |volume: &DataVolume| phase(volume) == DataVolumePhase::CsiCloneInProgress,
        )
        .await?;
        stage.clear("clone-error", "torn")?;
        stage.clear("stuck", "slow")?;
        for name in ["torn", "slow"] {
            expect::until(stage.api::<DataVolume>()?, name, "Succeeded", |volume: &DataVolume| {
                phase(volume) == DataVolumePhase::Succeeded
            })
            .await?;
        }
        history
            .assert_always("is not Failed", |volume| phase(volume) != DataVolumePhase::Failed)
            .await
    });
}

#[test]
fn an_import_that_fails_says_why_and_stays_failed() {
    run(async {
        let stage = stage("import").await?;
        stage.fault("import-fails", "bad", "the server answers 404")?;
        for name in ["good", "bad"] {
            stage
                .apply(&format!(
                    "
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: {name}}}
spec:
  source: {{http: {{url: \"https://images.example.com/sequoia.raw\"}}}}
  storage: {{accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: mac-csi, resources: {{requests: {{storage: 200Gi}}}}}}
"
                ))
                .await?;
        }
        let history = History::<DataVolume>::start(stage.api()?).await?;
        expect::until(
            stage.api::<DataVolume>()?,
            "good",
            "Succeeded",
            |volume: &DataVolume| phase(volume) == DataVolumePhase::Succeeded,
        )
        .await?;
        let bad = expect::until(stage.api::<DataVolume>()?, "bad", "Failed", |volume: &DataVolume| {
            phase(volume) == DataVolumePhase::Failed
        })
        .await?;
        let conditions = bad.status.expect("a status").conditions;
        let words = condition(&conditions, names::RUNNING).and_then(|c| c.message.clone());
        assert_eq!(words.as_deref(), Some("the server answers 404"));
        history.catch_up().await?;
        let told = history.versions_of("good").iter().any(|version| {
            let progress = version
                .object
                .status
                .clone()
                .and_then(|status| status.progress)
                .unwrap_or_default();
            progress.ends_with('%') && progress != "100.0%"
        });
        assert!(told, "no progress was told");
        Ok(())
    });
}

#[test]
fn an_import_that_is_to_bind_at_once_needs_no_machine_and_one_that_is_not_waits_for_it() {
    run(async {
        let stage = stage("atonce").await?;
        for (name, asked) in [("image", "true"), ("waiting", "false")] {
            stage
                .apply(&format!(
                    "
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: {name}, annotations: {{{}: \"{asked}\"}}}}
spec:
  source: {{http: {{url: \"https://images.example.com/sequoia.raw\"}}}}
  storage: {{accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: mac-copy, resources: {{requests: {{storage: 200Gi}}}}}}
",
                    names::IMMEDIATE_BINDING
                ))
                .await?;
        }
        for (name, reached) in [
            ("image", DataVolumePhase::Succeeded),
            ("waiting", DataVolumePhase::PendingPopulation),
        ] {
            expect::until(
                stage.api::<DataVolume>()?,
                name,
                "its phase",
                move |volume: &DataVolume| phase(volume) == reached,
            )
            .await?;
        }
        let claims = stage.api::<PersistentVolumeClaim>()?;
        let bound = claims.get("image").await?.spec.and_then(|spec| spec.volume_name);
        assert!(bound.is_some(), "a DataVolume succeeded without a volume");
        let waiting = claims.get("waiting").await?.spec.and_then(|spec| spec.volume_name);
        assert_eq!(waiting, None, "a volume was made without a consumer");
        Ok(())
    });
}

#[test]
fn the_installed_cdi_leaves_a_claim_to_its_first_consumer() {
    run(async {
        let stage = stage("gates").await?;
        let config = Api::<CdiConfig>::all(stage.client.clone()).get("config").await?;
        assert_eq!(config.spec.feature_gates, ["HonorWaitForFirstConsumer"]);
        Ok(())
    });
}

#[test]
fn cloning_out_of_another_namespace_takes_the_right_there() {
    run(async {
        let (stage, source) = (stage("tenant").await?, stage("source").await?);
        let namespace = source.namespace();
        stage
            .apply(
                "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: volumes}
rules: [{apiGroups: [cdi.kubevirt.io], resources: [datavolumes, datavolumes/source], verbs: ['*']}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: volumes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: volumes}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}]
",
            )
            .await?;
        let volume: DataVolume = serde_yaml::from_str(&format!(
            "
metadata: {{name: taken}}
spec:
  source: {{pvc: {{namespace: {namespace}, name: golden}}}}
  storage: {{accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: mac-csi, resources: {{requests: {{storage: 200Gi}}}}}}
"
        ))?;
        let eve = stage.plane.client_as("eve", &[]).await?;
        let api: Api<DataVolume> = Api::namespaced(eve, stage.namespace());
        let words = format!("User eve has insufficient permissions in clone source namespace {namespace}");
        expect::refused(api.create(&PostParams::default(), &volume).await, 403, &[&words])?;
        source
            .apply(
                "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: clone}
rules: [{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: clone}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: clone}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}]
",
            )
            .await?;
        // the authoriser sees the new binding through a watch of its own
        comes_true("eve may clone", || async {
            api.create(&PostParams::default(), &volume).await.is_ok()
        })
        .await
    });
}

#[test]
fn an_older_cdi_removes_the_datavolume_and_leaves_the_claim() {
    run(async {
        let stage = stage("collected").await?;
        stage.fault("collected", "one", "")?;
        stage.clone_of_golden("one", "mac-csi").await?;
        expect::until(
            stage.api::<PersistentVolumeClaim>()?,
            "one",
            "no owner",
            |claim: &PersistentVolumeClaim| {
                let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
                bound && claim.owner_references().is_empty()
            },
        )
        .await?;
        expect::gone(stage.api::<DataVolume>()?, "one").await?;
        assert!(
            stage
                .api::<PersistentVolumeClaim>()?
                .get("one")
                .await?
                .metadata
                .deletion_timestamp
                .is_none()
        );
        Ok(())
    });
}
