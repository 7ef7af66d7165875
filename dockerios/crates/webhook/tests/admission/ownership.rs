//! What is the operator's alone: the policies of `deploy/policies`, against a cluster admin too.

use anyhow::Result;
use dockerios_testkit::expect;
use kube::{
    Client,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::cluster::{
    OPERATOR, api, change, cluster, create, dry, identity, image, machine, object, pod, vm, vmi, with,
};

async fn operator() -> Result<Client> {
    cluster().await?.client_of_service_account(OPERATOR.0, OPERATOR.1).await
}

/// Somebody who has joined the break-glass group as docs/force-removal.md says, with no other rights than the group's.
async fn break_glass() -> Result<Client> {
    cluster().await?.client_as("ann", &["dockerios:break-glass"]).await
}

async fn status(client: &Client, base: &Value, status: Value) -> kube::Result<()> {
    let api = api(client, base);
    let name = base["metadata"]["name"].as_str().expect("a name");
    let mut stored = serde_json::to_value(api.get(name).await?).expect("JSON");
    stored["status"] = status;
    api.replace_status(name, &PostParams::default(), &object(&stored))
        .await
        .map(|_| ())
}

#[tokio::test]
async fn claim_finalizer_and_counting_labels_of_a_machine_are_the_operators() -> Result<()> {
    let (admin, operator) = (cluster().await?.client().await?, operator().await?);
    let base = machine("owned");
    let claimed = json!({"spec": {"claimRef": {"name": "c", "uid": "u"}}});
    let finalizer = json!({"metadata": {"finalizers": ["machine.dockerios.io/teardown"]}});
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let claim_owned: &[&str] = &[
        "[claim-owned] macosmachine red/owned spec.claimRef",
        "MacOSMachineClaim",
    ];
    let teardown: &[&str] = &["[teardown-owned] macosmachine red/owned", "docs/force-removal.md"];

    expect::refused(dry(&admin, &with(base.clone(), &claimed)).await, 403, claim_owned)?;
    expect::refused(dry(&admin, &with(base.clone(), &finalizer)).await, 403, teardown)?;
    for key in ["pool", "pool-uid", "claimed", "claim-uid", "template-hash"] {
        let forged = with(base.clone(), &label(&format!("machine.dockerios.io/{key}")));
        expect::refused(dry(&admin, &forged).await, 403, &["[labels-owned]", "red/owned"])?;
    }
    expect::accepted(create(&admin, &with(base.clone(), &label("example.com/mine"))).await)?;

    expect::refused(change(&admin, &base, &claimed).await, 403, claim_owned)?;
    expect::accepted(change(&operator, &base, &finalizer).await)?;
    expect::accepted(change(&operator, &base, &claimed).await)?;
    expect::accepted(change(&admin, &base, &json!({"spec": {"powerState": "Stopped"}})).await)?;
    let stripped = json!({"metadata": {"finalizers": null}});
    expect::refused(change(&admin, &base, &stripped).await, 403, teardown)?;
    let with_another = json!({"metadata": {"finalizers": ["example.com/mine", "machine.dockerios.io/teardown"]}});
    expect::accepted(change(&admin, &base, &with_another).await)?;

    // deleted, it is still held
    expect::accepted(api(&admin, &base).delete("owned", &DeleteParams::foreground()).await)?;
    expect::refused(change(&admin, &base, &stripped).await, 403, teardown)?;
    expect::accepted(change(&break_glass().await?, &base, &stripped).await)?;
    expect::gone(api(&admin, &base), "owned").await
}

#[tokio::test]
async fn finalizers_of_images_and_identities_are_the_operators() -> Result<()> {
    let (admin, operator) = (cluster().await?.client().await?, operator().await?);
    for (base, finalizer) in [
        (image("held"), "image.dockerios.io/in-use"),
        (identity(60), "identity.dockerios.io/allocated"),
    ] {
        let held = json!({"metadata": {"finalizers": [finalizer]}});
        let free = json!({"metadata": {"finalizers": null}});
        let said: &[&str] = &["[finalizer-owned]", finalizer, "docs/force-removal.md"];
        expect::accepted(create(&admin, &base).await)?;
        expect::refused(change(&admin, &base, &held).await, 403, said)?;
        expect::accepted(change(&operator, &base, &held).await)?;
        expect::refused(change(&admin, &base, &free).await, 403, said)?;
        expect::accepted(change(&operator, &base, &free).await)?;
        expect::accepted(change(&break_glass().await?, &base, &held).await)?;
    }
    Ok(())
}

#[tokio::test]
async fn an_image_in_use_cannot_be_deleted_and_a_published_one_not_changed() -> Result<()> {
    let (admin, operator) = (cluster().await?.client().await?, operator().await?);
    let base = image("used");
    expect::accepted(create(&admin, &base).await)?;
    let used = |verdict: &str| {
        json!({
            "published": {"kind": "PersistentVolumeClaim", "namespace": "dockerios-system", "name": "image-used"},
            "conditions": [{"type": "InUse", "status": verdict, "reason": "NamedByClass", "message": "class build-8",
                            "lastTransitionTime": "2026-03-02T09:00:00Z"}],
        })
    };
    expect::accepted(status(&operator, &base, used("True")).await)?;
    let other =
        json!({"spec": {"source": {"registry": {"url": format!("docker://e.com/x@{}", crate::cluster::DIGEST)}}}});
    expect::refused(
        change(&admin, &base, &other).await,
        422,
        &["[image-immutable-once-ready]", "new image"],
    )?;

    let params = DeleteParams::default();
    let said: &[&str] = &[
        "[image-in-use] macosimage used",
        "NamedByClass (class build-8)",
        "repoint",
    ];
    expect::refused(api(&admin, &base).delete("used", &params).await, 403, said)?;
    let dry = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    expect::accepted(api(&break_glass().await?, &base).delete("used", &dry).await)?;
    expect::accepted(status(&operator, &base, used("False")).await)?;
    expect::accepted(api(&admin, &base).delete("used", &params).await)?;
    Ok(())
}

#[tokio::test]
async fn status_is_written_by_the_operator_alone() -> Result<()> {
    let (admin, operator) = (cluster().await?.client().await?, operator().await?);
    let base = identity(61);
    expect::accepted(create(&admin, &base).await)?;
    let taken = json!({"claimRef": {"namespace": "red", "name": "m", "uid": "u"}});
    expect::accepted(status(&operator, &base, taken.clone()).await)?;
    let name = base["metadata"]["name"].as_str().unwrap_or_default();
    expect::refused(
        status(&admin, &base, json!({})).await,
        403,
        &["[status-owned] machineidentity", name],
    )?;
    let moved = json!({"claimRef": {"namespace": "red", "name": "m", "uid": "another"}});
    expect::refused(status(&operator, &base, moved).await, 422, &["[identity-claimed-once]"])?;
    expect::accepted(status(&break_glass().await?, &base, json!({})).await)?;
    Ok(())
}

#[tokio::test]
async fn a_virtualmachine_with_an_identity_is_made_and_changed_by_the_operator_alone() -> Result<()> {
    let (admin, operator) = (cluster().await?.client().await?, operator().await?);
    let base = vm("owned");
    let said: &[&str] = &["[vm-owned] virtualmachine red/owned"];
    expect::refused(dry(&admin, &base).await, 403, said)?;
    // by its template alone, too
    expect::refused(
        dry(&admin, &with(base.clone(), &json!({"metadata": {"labels": null}}))).await,
        403,
        said,
    )?;
    expect::accepted(create(&operator, &base).await)?;

    let spec = json!({"spec": {"runStrategy": "Once"}});
    expect::refused(
        change(&admin, &base, &spec).await,
        403,
        &["[vm-owned]", "spec.powerState"],
    )?;
    for label in [json!(null), json!("another")] {
        let change_of = json!({"metadata": {"labels": {"identity.dockerios.io/name": label}}});
        expect::refused(
            change(&admin, &base, &change_of).await,
            403,
            &["[vm-owned]", "metadata.labels"],
        )?;
    }
    // KubeVirt's own writes: finalizer, annotation, a label of its own, status
    let theirs = json!({"metadata": {"finalizers": ["kubevirt.io/virtualMachineControllerFinalize"],
                                      "annotations": {"kubevirt.io/latest-observed-api-version": "v1"},
                                      "labels": {"kubevirt.io/x": "y"}}});
    expect::accepted(change(&admin, &base, &theirs).await)?;
    expect::accepted(status(&admin, &base, json!({"printableStatus": "Running", "ready": true})).await)?;
    expect::accepted(change(&operator, &base, &spec).await)?;
    expect::accepted(
        change(
            &break_glass().await?,
            &base,
            &json!({"spec": {"runStrategy": "Halted"}}),
        )
        .await,
    )?;
    Ok(())
}

#[tokio::test]
async fn a_foreign_virtualmachine_is_not_looked_at_until_it_takes_our_label() -> Result<()> {
    let admin = cluster().await?.client().await?;
    for (name, template) in [
        ("plain", json!({"spec": {"domain": {}}})),
        ("nulls", json!({"metadata": null, "spec": {"domain": {}}})),
    ] {
        let mut theirs = vm(name);
        theirs["metadata"]["labels"] = json!({"app": "db"});
        theirs["spec"]["template"] = template;
        expect::accepted(create(&admin, &theirs).await)?;
        expect::accepted(change(&admin, &theirs, &json!({"spec": {"runStrategy": "Always"}})).await)?;
        let takes = json!({"metadata": {"labels": {"identity.dockerios.io/name": "c02x"}}});
        expect::refused(
            change(&admin, &theirs, &takes).await,
            403,
            &["[vm-owned]", "metadata.labels"],
        )?;
    }
    Ok(())
}

#[tokio::test]
async fn instances_and_launcher_pods_with_an_identity_are_kubevirts() -> Result<()> {
    let plane = cluster().await?;
    let (admin, dev) = (
        plane.client().await?,
        plane.client_as("dev", &["kubevirt-users"]).await?,
    );
    let right = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "kubevirt-users", "namespace": "red"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubevirt-user"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "kubevirt-users"}]});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "kubevirt-user"}, "rules": [
            {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachineinstances"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]});
    for right in [role, right] {
        expect::accepted(create(&admin, &right).await)?;
    }
    let said: &[&str] = &["[instance-owned]", "made by KubeVirt"];
    let launcher = with(
        pod(),
        &json!({"metadata": {"ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "name": "owned", "uid": "22222222-2222-2222-2222-222222222222", "controller": true}]}}),
    );
    // a tenant with every right over instances of its namespace, even with KubeVirt's own shape
    for forged in [vmi("owned"), pod(), launcher.clone()] {
        // the API server hears of a new right a moment later
        expect::until_refused(|| dry(&dev, &forged), 403, said).await?;
        let unlabelled = with(forged, &json!({"metadata": {"labels": null}}));
        expect::accepted(dry(&dev, &unlabelled).await)?;
    }
    // who may make instances everywhere (virt-controller may), in KubeVirt's shape
    let bare = with(vmi("owned"), &json!({"metadata": {"ownerReferences": null}}));
    expect::refused(dry(&admin, &bare).await, 403, said)?;
    expect::accepted(create(&admin, &vmi("owned")).await)?;
    expect::accepted(dry(&admin, &launcher).await)?;
    let off = json!({"metadata": {"labels": null}});
    expect::refused(
        change(&admin, &vmi("owned"), &off).await,
        403,
        &["[instance-owned]", "stay as they are"],
    )?;
    expect::accepted(change(&admin, &vmi("owned"), &json!({"status": {"phase": "Running"}})).await)?;
    expect::accepted(change(&break_glass().await?, &vmi("owned"), &off).await)?;
    let more: &[&str] = &["ann", "cannot create resource \"pods\""];
    expect::refused(dry(&break_glass().await?, &pod()).await, 403, more)?;
    Ok(())
}

#[tokio::test]
async fn the_namespaces_own_end_is_not_held_up_by_the_policies() -> Result<()> {
    let (admin, operator) = (cluster().await?.client().await?, operator().await?);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ending"}});
    expect::accepted(create(&admin, &namespace).await)?;
    let here = json!({"metadata": {"namespace": "ending"}});
    expect::accepted(create(&admin, &with(machine("m"), &here)).await)?;
    expect::accepted(create(&operator, &with(vm("m"), &here)).await)?;
    expect::accepted(api(&admin, &namespace).delete("ending", &DeleteParams::default()).await)?;
    expect::gone(api(&admin, &namespace), "ending").await
}
