//! Stopping, evacuating, losing.

use anyhow::Result;
use dockerios_kubevirt::{VirtualMachine, VirtualMachineInstance, is_true, names, vmi::VmiPhase};
use dockerios_testkit::{History, expect};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, ListParams},
};

use crate::stage::{Stage, phase_of, run, stage};

#[test]
fn under_once_a_finished_machine_stays_as_it_ended_and_halted_then_once_boots_again() {
    run(async {
        let stage = stage("once").await?;
        stage.machine("one", "mac-csi", 30).await?;
        let first = stage.in_phase("one", VmiPhase::Running).await?;
        stage.fault("poweroff", "one", "")?;
        stage.in_phase("one", VmiPhase::Succeeded).await?;
        stage.clear("poweroff", "one")?;
        // an edit makes the controller look again; it must leave the finished instance alone
        stage.apply(&crate::stage::machine("one", 60)).await?;
        expect::until(
            stage.api::<VirtualMachine>()?,
            "one",
            "the edit observed",
            |vm: &VirtualMachine| {
                vm.status.as_ref().and_then(|status| status.observed_generation) == vm.metadata.generation
            },
        )
        .await?;
        let same = stage.api::<VirtualMachineInstance>()?.get("one").await?;
        assert_eq!((same.uid(), phase_of(&same)), (first.uid(), VmiPhase::Succeeded));

        stage.strategy("one", "Halted").await?;
        expect::gone(stage.api::<VirtualMachineInstance>()?, "one").await?;
        stage.strategy("one", "Once").await?;
        let second = stage.in_phase("one", VmiPhase::Running).await?;
        assert_ne!(second.uid(), first.uid());
        Ok(())
    });
}

#[test]
fn a_guest_that_ignores_the_power_button_is_killed_after_its_grace_and_one_that_obeys_ends_well() {
    run(async {
        let stage = stage("grace").await?;
        let history = History::<VirtualMachineInstance>::start(stage.api()?).await?;
        stage.machine("deaf", "mac-csi", 30).await?;
        stage.machine("meek", "mac-csi", 30).await?;
        stage.fault("ignore-acpi", "deaf", "")?;
        for (name, end) in [("deaf", VmiPhase::Failed), ("meek", VmiPhase::Succeeded)] {
            stage.in_phase(name, VmiPhase::Running).await?;
            stage.strategy(name, "Halted").await?;
            expect::gone(stage.api::<VirtualMachineInstance>()?, name).await?;
            history.catch_up().await?;
            let last = history
                .versions_of(name)
                .into_iter()
                .rev()
                .map(|version| phase_of(&version.object))
                .next();
            assert_eq!(last, Some(end), "{name}");
        }
        let pods = stage.api::<Pod>()?.list(&ListParams::default()).await?;
        assert!(
            pods.items
                .iter()
                .all(|pod| !pod.labels().contains_key(names::CREATED_BY)),
            "a launcher is left"
        );
        Ok(())
    });
}

async fn launcher(stage: &Stage) -> Result<Pod> {
    let pods = stage
        .api::<Pod>()?
        .list(&ListParams::default().labels("kubevirt.io=virt-launcher"))
        .await?;
    Ok(pods.items.into_iter().next().expect("there is a launcher pod"))
}

#[test]
fn an_eviction_is_denied_and_marked_and_the_mark_can_be_taken_away() {
    run(async {
        let stage = stage("evict").await?;
        stage.machine("one", "mac-csi", 30).await?;
        stage.in_phase("one", VmiPhase::Running).await?;
        let pod = launcher(&stage).await?;
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .expect("it runs somewhere");
        let evicted = stage
            .api::<Pod>()?
            .evict(&pod.name_any(), &EvictParams::default())
            .await;
        expect::refused(evicted, 429, &["Eviction triggered evacuation of VMI"])?;
        let marked = expect::until(
            stage.api::<VirtualMachineInstance>()?,
            "one",
            "EvictionRequested",
            |vmi: &VirtualMachineInstance| {
                is_true(
                    &vmi.status.clone().unwrap_or_default().conditions,
                    names::EVICTION_REQUESTED,
                )
            },
        )
        .await?;
        assert_eq!(
            marked.status.and_then(|status| status.evacuation_node_name),
            Some(node.clone())
        );

        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/one/evacuate/cancel",
            stage.namespace()
        );
        let cancel = |node: &str| {
            let body = serde_json::json!({"evacuationNodeName": node}).to_string().into_bytes();
            http_put(&path, body)
        };
        let client = stage.client.clone();
        let other = client.request_text(cancel("elsewhere")).await;
        expect::refused(other, 409, &["is asked to leave node"])?;
        expect::accepted(client.request_text(cancel(&node)).await)?;
        expect::until(
            stage.api::<VirtualMachineInstance>()?,
            "one",
            "no mark",
            |vmi: &VirtualMachineInstance| {
                let status = vmi.status.clone().unwrap_or_default();
                status.evacuation_node_name.is_none() && !is_true(&status.conditions, names::EVICTION_REQUESTED)
            },
        )
        .await?;
        Ok(())
    });
}

fn http_put(path: &str, body: Vec<u8>) -> axum::http::Request<Vec<u8>> {
    axum::http::Request::put(path)
        .header("content-type", "application/json")
        .body(body)
        .expect("a request")
}

#[test]
fn the_screen_of_a_running_machine_is_a_picture_and_of_another_a_conflict() {
    run(async {
        let stage = stage("screen").await?;
        stage.fault("hang-at", "one", "Booting")?;
        stage.machine("one", "mac-csi", 30).await?;
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/one/vnc/screenshot",
            stage.namespace()
        );
        let ask = || axum::http::Request::get(&path).body(Vec::new()).expect("a request");
        stage.in_phase("one", VmiPhase::Running).await?;
        let client = stage.client.clone();
        let request = ask().map(kube::client::Body::from);
        let answer = client.send(request).await?;
        assert_eq!(answer.status(), 200);
        let bytes = axum::body::to_bytes(axum::body::Body::new(answer.into_body()), 1 << 20).await?;
        assert!(bytes.starts_with(b"\x89PNG"), "{} bytes", bytes.len());
        stage.strategy("one", "Halted").await?;
        expect::gone(stage.api::<VirtualMachineInstance>()?, "one").await?;
        let gone = client.request_text(ask()).await;
        expect::refused(gone, 404, &["not found"])?;
        Ok(())
    });
}

#[test]
fn a_machine_on_a_lost_node_stays_running_and_ends_when_the_node_is_back() {
    run(async {
        let stage = stage("lost").await?;
        stage.machine("one", "mac-csi", 30).await?;
        let vmi = stage.in_phase("one", VmiPhase::Running).await?;
        let pod = launcher(&stage).await?;
        let history = History::<VirtualMachineInstance>::start(stage.api()?).await?;
        // the one machine only: other tests use the node
        stage.fault("stranded", "one", "")?;
        let pods = stage.api::<Pod>()?;
        pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
        stage.strategy("one", "Halted").await?;
        expect::until(
            stage.api::<VirtualMachineInstance>()?,
            "one",
            "deletion",
            |vmi: &VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_some(),
        )
        .await?;
        // somebody forces the pod away; nobody can tell whether the guest still runs
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
            .await?;
        expect::gone(pods.clone(), &pod.name_any()).await?;
        history
            .assert_always("runs", |vmi| phase_of(vmi) == VmiPhase::Running)
            .await?;
        stage.clear("stranded", "one")?;
        expect::gone(stage.api::<VirtualMachineInstance>()?, "one").await?;
        assert!(vmi.uid().is_some());
        Ok(())
    });
}
