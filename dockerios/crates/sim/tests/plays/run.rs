//! From a wish to a machine that runs.

use anyhow::ensure;
use dockerios_kubevirt::{VirtualMachine, VirtualMachineInstance, condition, names, vmi::VmiPhase};
use dockerios_testkit::{History, expect};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};

use crate::stage::{machine, phase_of, run, stage};

#[test]
fn a_machine_comes_up_through_the_real_hook_in_the_real_order_of_phases() {
    run(async {
        let stage = stage("run").await?;
        let history = History::<VirtualMachineInstance>::start(stage.api()?).await?;
        stage.machine("one", "mac-csi", 30).await?;
        let vmi = stage.in_phase("one", VmiPhase::Running).await?;
        let xml = stage
            .sim
            .domain(stage.namespace(), "one")
            .expect("a running machine has a domain");
        for part in [
            "isa-applesmc,osk=",
            "bus=\"nvme\"",
            "acpi-pci-hotplug-with-bridge-support=off",
        ] {
            ensure!(xml.contains(part), "the domain has no {part}");
        }
        history.catch_up().await?;
        let mut phases: Vec<_> = history
            .versions_of("one")
            .iter()
            .map(|version| phase_of(&version.object))
            .collect();
        phases.dedup();
        use VmiPhase::{Pending, Running, Scheduled, Scheduling, Unset};
        assert_eq!(phases, [Unset, Pending, Scheduling, Scheduled, Running]);

        let status = vmi.status.clone().expect("a status");
        assert!(status.since(Running).is_some() && status.node_name.is_some());
        assert!(status.interfaces[0].ip_address.is_some(), "{:?}", status.interfaces);
        let pods = stage
            .api::<Pod>()?
            .list(&ListParams::default().labels("kubevirt.io=virt-launcher"))
            .await?;
        assert_eq!(pods.items.len(), 1);
        assert_eq!(pods.items[0].labels()[names::CREATED_BY], vmi.uid().expect("a uid"));
        assert_eq!(pods.items[0].labels()["identity.dockerios.io/name"], "c02xx");
        let vm = expect::until(
            stage.api::<VirtualMachine>()?,
            "one",
            "Running",
            |vm: &VirtualMachine| {
                vm.status.as_ref().and_then(|status| status.printable_status.as_deref()) == Some("Running")
            },
        );
        assert!(vm.await?.finalizers().contains(&names::VM_FINALIZER.to_owned()));
        Ok(())
    });
}

#[test]
fn a_hook_that_refuses_keeps_the_machine_scheduled_with_its_words_and_then_fails_it() {
    run(async {
        let stage = stage("refused").await?;
        stage
            .apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: hook}, binaryData: {osk: c2hvcnQ=}}")
            .await?;
        stage.machine("one", "mac-csi", 30).await?;
        let vmi = expect::until(
            stage.api::<VirtualMachineInstance>()?,
            "one",
            "Synchronized=False",
            |vmi: &VirtualMachineInstance| {
                let conditions = vmi.status.clone().unwrap_or_default().conditions;
                condition(&conditions, names::SYNCHRONIZED).is_some_and(|condition| condition.status == "False")
            },
        )
        .await?;
        assert_eq!(phase_of(&vmi), VmiPhase::Scheduled);
        let conditions = vmi.status.expect("a status").conditions;
        let message = condition(&conditions, names::SYNCHRONIZED)
            .and_then(|c| c.message.clone())
            .expect("a message");
        assert!(message.contains("the key's file holds 5 bytes, not 64"), "{message}");
        assert!(!message.contains("short"), "the key is in a message");
        stage.in_phase("one", VmiPhase::Failed).await?;
        expect::until(
            stage.api::<VirtualMachine>()?,
            "one",
            "CrashLoopBackOff",
            |vm: &VirtualMachine| {
                vm.status.as_ref().and_then(|status| status.printable_status.as_deref()) == Some("CrashLoopBackOff")
            },
        )
        .await?;
        Ok(())
    });
}

#[test]
fn a_missing_hook_configmap_is_failed_create_until_it_is_there() {
    run(async {
        let stage = stage("nohook").await?;
        stage
            .api::<ConfigMap>()?
            .delete("hook", &DeleteParams::default())
            .await?;
        stage.machine("one", "mac-csi", 30).await?;
        let vmi = expect::until(
            stage.api::<VirtualMachineInstance>()?,
            "one",
            "FailedCreate",
            |vmi: &VirtualMachineInstance| {
                let conditions = vmi.status.clone().unwrap_or_default().conditions;
                condition(&conditions, names::SYNCHRONIZED).is_some_and(|c| c.reason.as_deref() == Some("FailedCreate"))
            },
        )
        .await?;
        assert_eq!(phase_of(&vmi), VmiPhase::Pending);
        stage
            .apply(&format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: hook}}, binaryData: {{osk: {}}}}}",
                crate::stage::KEY
            ))
            .await?;
        stage.in_phase("one", VmiPhase::Running).await?;
        Ok(())
    });
}

#[test]
fn a_machine_that_no_node_takes_carries_the_schedulers_words() {
    run(async {
        let stage = stage("nonode").await?;
        stage.clone_of_golden("one-system", "mac-csi").await?;
        let text = machine("one", 30).replace("8Gi", "9Ti");
        stage.apply(&text).await?;
        let vmi = expect::until(
            stage.api::<VirtualMachineInstance>()?,
            "one",
            "Unschedulable",
            |vmi: &VirtualMachineInstance| {
                let conditions = vmi.status.clone().unwrap_or_default().conditions;
                condition(&conditions, names::POD_SCHEDULED)
                    .is_some_and(|c| c.reason.as_deref() == Some("Unschedulable"))
            },
        )
        .await?;
        assert_eq!(phase_of(&vmi), VmiPhase::Scheduling);
        let conditions = vmi.status.expect("a status").conditions;
        let message = condition(&conditions, names::POD_SCHEDULED)
            .and_then(|c| c.message.clone())
            .unwrap_or_default();
        assert!(message.contains("Insufficient memory"), "{message}");
        Ok(())
    });
}

#[test]
fn what_virt_api_refuses_is_refused_with_its_field() {
    run(async {
        let stage = stage("api").await?;
        let api = stage.api::<VirtualMachine>()?;
        for (from, to, reason) in [
            (
                "{bus: sata, readonly: false}",
                "{bus: nvme, readonly: false}",
                "unrecognized bus nvme",
            ),
            (
                "model: e1000",
                "model: vmxnet3",
                "uses model vmxnet3 that is not supported",
            ),
            ("secureBoot: false", "secureBoot: true", "SecureBoot requires SMM"),
        ] {
            let text = machine("one", 30).replace(from, to);
            let vm: VirtualMachine = serde_yaml::from_str(&text)?;
            expect::refused(
                api.create(&PostParams::default(), &vm).await,
                422,
                &["spec.template.spec.domain", reason],
            )?;
        }
        Ok(())
    });
}
