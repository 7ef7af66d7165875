//! No replica of the operator runs: creations of our kinds are refused, and everything else goes on, deletions of our
//! own kinds first of all.

use anyhow::Result;
use dockerios_pki::Authority;
use dockerios_testkit::{ControlPlane, Options, apply_file, apply_yaml, expect};
use dockerios_webhook::{CONFIGURATION, Reach, register};
use k8s_openapi::{ByteString, api::admissionregistration::v1::ValidatingWebhookConfiguration};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

fn deploy(path: &str) -> String {
    format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn of(group: &str, kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": format!("{group}/v1alpha1"), "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    if ["MacOSMachine", "MacOSMachinePool", "MacOSMachineClaim"].contains(&kind) {
        object["metadata"]["namespace"] = json!("default");
    }
    object
}

/// One of each kind, with its plural.
fn kinds() -> Vec<(&'static str, Value)> {
    let digest = format!("@sha256:{}", "a".repeat(64));
    let identity = dockerios_identity::Generator::seeded([3; 32])
        .mint("iMacPro1,1")
        .expect("an identity");
    let mut fields = serde_json::to_value(dockerios_identity::Fields::from(identity)).expect("fields");
    fields["poolName"] = json!("imacpro");
    let serial = fields["serial"].as_str().unwrap_or_default().to_lowercase();
    let (config, image) = ("config.dockerios.io", "image.dockerios.io");
    let (identities, machines) = ("identity.dockerios.io", "machine.dockerios.io");
    vec![
        ("platformconfigs", of(config, "PlatformConfig", "default", json!({}))),
        (
            "macosimages",
            of(
                image,
                "MacOSImage",
                "sonoma",
                json!({
                    "source": {"pvc": {"namespace": "a", "name": "b"}}, "size": "1Gi", "storageClassName": "fast",
                    "osVersion": "14.5",
                }),
            ),
        ),
        (
            "identitypools",
            of(
                identities,
                "IdentityPool",
                "imacpro",
                json!({
                    "model": "iMacPro1,1", "minAvailable": 0, "maxSize": 1, "bootDisk": {"storageClassName": "fast"},
                }),
            ),
        ),
        ("machineidentities", of(identities, "MachineIdentity", &serial, fields)),
        (
            "macosmachineclasses",
            of(
                machines,
                "MacOSMachineClass",
                "c",
                json!({
                    "imageName": "sonoma", "cpu": {"cores": 4, "model": "Haswell-noTSX"}, "memory": {"size": "8Gi"},
                    "identity": {"type": "Shared", "shared": {"bootDiskImage": format!("ghcr.io/e/b{digest}")}},
                    "systemDisk": {"size": "1Gi", "storageClassName": "fast"},
                }),
            ),
        ),
        (
            "macosmachines",
            of(machines, "MacOSMachine", "m", json!({"machineClassName": "c"})),
        ),
        (
            "macosmachinepools",
            of(machines, "MacOSMachinePool", "p", json!({"machineClassName": "c"})),
        ),
        (
            "macosmachineclaims",
            of(machines, "MacOSMachineClaim", "c", json!({"poolName": "p"})),
        ),
    ]
}

fn api(client: &Client, plural: &str, object: &Value) -> Api<DynamicObject> {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let kind = GroupVersionKind::gvk(group, version, &text(&object["kind"]));
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

#[tokio::test]
async fn with_the_webhook_away_nothing_new_of_ours_gets_in_and_all_else_goes_on() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    assert!(
        !plane.is_existing(),
        "this test makes the cluster that it runs in refuse our kinds: unset DOCKERIOS_TEST_KUBECONFIG"
    );
    let admin = plane.client().await?;
    for crd in dockerios_api::crds()? {
        let mut crd = serde_json::to_value(crd)?;
        crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
        crd["kind"] = json!("CustomResourceDefinition");
        apply_yaml(&admin, &crd.to_string()).await?;
    }
    for file in ["rbac/namespace.yaml", "rbac/operator.yaml"] {
        apply_file(&admin, deploy(file)).await?;
    }
    let create = async |plural: &str, object: &Value| {
        let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        let value = serde_json::to_value(&object).expect("JSON");
        api(&admin, plural, &value)
            .create(&PostParams::default(), &object)
            .await
    };
    // made before the registration
    for (plural, object) in kinds() {
        expect::accepted(create(plural, &object).await)?;
    }
    let operator = plane
        .client_of_service_account("dockerios-system", "dockerios-operator")
        .await?;
    let early = register(&operator, &Reach::Service, "")
        .await
        .expect_err("nothing is installed");
    assert!(
        early
            .to_string()
            .contains("Is deploy/webhook/configuration.yaml of this version installed?"),
        "{early}"
    );
    for file in ["webhook/service.yaml", "webhook/configuration.yaml"] {
        apply_file(&admin, deploy(file)).await?;
    }
    for file in ["machines", "finalizers", "images", "status", "instances"] {
        apply_file(&admin, deploy(&format!("policies/{file}.yaml"))).await?;
    }
    registered(&admin).await?;
    injected(&plane).await?;

    for (plural, object) in kinds() {
        let mut another = object.clone();
        if !["platformconfigs", "machineidentities"].contains(&plural) {
            another["metadata"]["name"] = json!("another");
        }
        // the API server looks at names last: a second default is refused by the webhook first
        let said = &[&*format!("failed calling webhook \"{plural}."), "dockerios-webhook"];
        expect::refused(create(plural, &another).await, 500, said)?;
    }

    let operator = plane
        .client_of_service_account("dockerios-system", "dockerios-operator")
        .await?;
    for (plural, object) in kinds() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // a label, a finalizer, status: no changed spec
        let ours = api(&operator, plural, &object);
        if ["macosimages", "machineidentities", "macosmachines"].contains(&plural) {
            let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
            let patched = ours.patch(name, &PatchParams::default(), &Patch::Merge(&held)).await;
            expect::accepted(patched)?;
        }
        let seen = json!({"status": {"observedGeneration": 1}});
        expect::accepted(
            ours.patch_status(name, &PatchParams::default(), &Patch::Merge(&seen))
                .await,
        )?;
        // and its end, finalizer and all
        let theirs = api(&admin, plural, &object);
        expect::accepted(theirs.delete(name, &DeleteParams::default()).await)?;
        if ["macosimages", "machineidentities", "macosmachines"].contains(&plural) {
            let free = json!({"metadata": {"finalizers": null}});
            expect::accepted(ours.patch(name, &PatchParams::default(), &Patch::Merge(&free)).await)?;
        }
        expect::gone(theirs, name).await?;
    }

    let others = [
        (
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}),
        ),
        (
            "pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
                   "spec": {"containers": [{"name": "c", "image": "example.com/c"}]}}),
        ),
        (
            "leases",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                   "metadata": {"name": "node-1", "namespace": "kube-node-lease"}, "spec": {}}),
        ),
        (
            "nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}),
        ),
    ];
    for (plural, object) in others {
        expect::accepted(create(plural, &object).await)?;
    }
    Ok(())
}

/// The operator's own rights let it add the authorities to what is installed, and it owns nothing else there.
async fn injected(plane: &ControlPlane) -> Result<()> {
    let operator = plane
        .client_of_service_account("dockerios-system", "dockerios-operator")
        .await?;
    let authority = Authority::open(operator.clone(), "dockerios-system", "dockerios-authority").await?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(operator.clone());
    let before = configurations.get(CONFIGURATION).await?;
    for _ in 0..2 {
        register(&operator, &Reach::Service, &authority.ca_pem()).await?;
    }
    let after = configurations.get(CONFIGURATION).await?;
    let mut expected = before.webhooks.clone().unwrap_or_default();
    assert!(expected.iter().all(|webhook| webhook.client_config.ca_bundle.is_none()));
    for webhook in &mut expected {
        webhook.client_config.ca_bundle = Some(ByteString(authority.ca_pem().into_bytes()));
    }
    assert_eq!(after.webhooks, Some(expected));
    let managers = after.metadata.managed_fields.unwrap_or_default();
    let ours = managers
        .iter()
        .find(|entry| entry.manager.as_deref() == Some("dockerios-operator"));
    let owned = serde_json::to_string(&ours.and_then(|entry| entry.fields_v1.as_ref()))?;
    assert!(
        owned.contains("f:caBundle") && !owned.contains("f:rules") && !owned.contains("f:service"),
        "{owned}"
    );
    Ok(())
}

/// A registration takes a moment until it holds.
async fn registered(admin: &Client) -> Result<()> {
    let claim = of(
        "machine.dockerios.io",
        "MacOSMachineClaim",
        "probe",
        json!({"poolName": "p"}),
    );
    let api = api(admin, "macosmachineclaims", &claim);
    let claim: DynamicObject = serde_json::from_value(claim)?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for _ in 0..300 {
        if api.create(&dry, &claim).await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    anyhow::bail!("the registration does not hold after 30 s")
}
