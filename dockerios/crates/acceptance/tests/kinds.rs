//! The kinds as a person with kubectl meets them: installed as shipped, on a real API server, without an operator.

use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::make;
use dockerios_api::{
    IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, MachineIdentity,
    PlatformConfig,
};
use dockerios_testkit::{ControlPlane, Scratch, apply_file, expect, shared};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds")
}

async fn plane() -> Result<&'static ControlPlane> {
    static READY: OnceCell<Result<(), String>> = OnceCell::const_new();
    let plane = shared().await?;
    let install = || async {
        let client = plane.client().await?;
        for entry in std::fs::read_dir(deploy())? {
            apply_file(&client, entry?.path()).await?;
        }
        anyhow::Ok(())
    };
    let ready = READY
        .get_or_init(|| async { install().await.map_err(|error| format!("{error:#}")) })
        .await;
    ready.clone().map_err(anyhow::Error::msg)?;
    Ok(plane)
}

async fn kubectl(plane: &ControlPlane, namespace: &str, arguments: &[&str]) -> Result<Output> {
    let mut command = plane.kubectl()?;
    command.args(["-n", namespace]).args(arguments);
    let shown = arguments.join(" ");
    tokio::task::spawn_blocking(move || command.output())
        .await?
        .with_context(|| format!("kubectl {shown}"))
}

async fn said(plane: &ControlPlane, namespace: &str, arguments: &[&str]) -> Result<String> {
    let output = kubectl(plane, namespace, arguments).await?;
    ensure!(
        output.status.success(),
        "kubectl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

async fn status<K>(api: &Api<K>, name: &str, status: Value) -> Result<()>
where
    K: expect::Object,
{
    let patch = Patch::Merge(json!({ "status": status }));
    expect::accepted(api.patch_status(name, &PatchParams::default(), &patch).await).map(drop)
}

fn ready(status: &str, reason: &str) -> Value {
    json!([{"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-03-02T09:00:00Z"}])
}

#[tokio::test]
async fn every_kind_installs_as_shipped_and_is_found_by_its_short_name_and_in_the_category() -> Result<()> {
    let plane = plane().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().await?);
    let shipped = [
        (PlatformConfig::crd_name(), None, false),
        (MacOSImage::crd_name(), Some("mimg"), false),
        (IdentityPool::crd_name(), Some("idpool"), false),
        (MachineIdentity::crd_name(), Some("mid"), false),
        (MacOSMachineClass::crd_name(), Some("macclass"), false),
        (MacOSMachine::crd_name(), Some("macs"), true),
        (MacOSMachinePool::crd_name(), Some("macpool"), true),
        (MacOSMachineClaim::crd_name(), Some("macclaim"), true),
    ];
    for (name, short, namespaced) in shipped {
        let definition = definitions.get(name).await?;
        let names = definition.spec.names;
        ensure!(
            names
                .categories
                .as_ref()
                .is_some_and(|c| c.contains(&"dockerios".to_owned())),
            "{name}: no category"
        );
        ensure!(
            (definition.spec.scope == "Namespaced") == namespaced,
            "{name}: {}",
            definition.spec.scope
        );
        let Some(short) = short else { continue };
        let listed = said(plane, "default", &["get", short, "-o", "name"]).await?;
        ensure!(listed.is_empty(), "{short}: {listed}");
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_shows_of_a_machine_what_where_whose_and_why() -> Result<()> {
    let plane = plane().await?;
    let scratch = Scratch::new(plane, "columns").await?;
    let client = scratch.client()?;
    let machines: Api<MacOSMachine> = Api::namespaced(client.clone(), scratch.name());
    let machine: MacOSMachine = make::within(&client, scratch.name(), make::machine("m", "small")).await?;
    let shown = json!({
        "phase": "Ready", "nodeName": "kvm-1", "identityRef": "c02xy", "guest": {"stage": "UserSession", "ready": true},
        "conditions": ready("True", "Ready"),
    });
    status(&machines, &machine.name_any(), shown).await?;
    let table = said(plane, scratch.name(), &["get", "macs"]).await?;
    let (head, row) = table.split_once('\n').context("a table has a head")?;
    let head: Vec<_> = head.split_whitespace().collect();
    ensure!(
        head == [
            "NAME", "CLASS", "PHASE", "STAGE", "IDENTITY", "NODE", "CLAIM", "REASON", "AGE"
        ],
        "{head:?}"
    );
    let row: Vec<_> = row.split_whitespace().collect();
    ensure!(
        row[..7] == ["m", "small", "Ready", "UserSession", "c02xy", "kvm-1", "Ready"],
        "{row:?}"
    );
    Ok(())
}

#[tokio::test]
async fn columns_of_claims_pools_identities_images_and_platform_answer_what_is_asked_first() -> Result<()> {
    let plane = plane().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().await?);
    let columns: [(&str, &[&str]); 5] = [
        (
            MacOSMachineClaim::crd_name(),
            &["CLASS", "PHASE", "MACHINE", "EXPIRES", "REASON", "AGE"],
        ),
        (
            MacOSMachinePool::crd_name(),
            &["CLASS", "DESIRED", "WARM", "CLAIMED", "WAITING", "REASON", "AGE"],
        ),
        (
            MachineIdentity::crd_name(),
            &["POOL", "PHASE", "NAMESPACE", "MACHINE", "REASON", "AGE"],
        ),
        (
            MacOSImage::crd_name(),
            &["OS", "PHASE", "SIZE", "PROGRESS", "REASON", "AGE"],
        ),
        (
            PlatformConfig::crd_name(),
            &["READY", "LAUNCHER", "GATES", "REASON", "AGE"],
        ),
    ];
    for (name, wanted) in columns {
        let definition = definitions.get(name).await?;
        let all = definition.spec.versions[0]
            .additional_printer_columns
            .clone()
            .unwrap_or_default();
        let shown: Vec<_> = all
            .iter()
            .filter(|c| c.priority.unwrap_or(0) == 0)
            .map(|c| c.name.as_str())
            .collect();
        ensure!(shown == wanted, "{name}: {shown:?}");
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_wait_returns_when_a_claim_is_ready_and_says_so_when_it_is_not() -> Result<()> {
    let plane = plane().await?;
    let scratch = Scratch::new(plane, "wait").await?;
    let client = scratch.client()?;
    let claims: Api<MacOSMachineClaim> = Api::namespaced(client.clone(), scratch.name());
    let _: MacOSMachineClaim = make::within(&client, scratch.name(), make::claim("job", "ci")).await?;
    let arguments = |timeout| ["wait", "--for=condition=Ready", "macclaim/job", timeout];
    let early = kubectl(plane, scratch.name(), &arguments("--timeout=1s")).await?;
    let why = String::from_utf8_lossy(&early.stderr).into_owned();
    ensure!(
        !early.status.success() && why.contains("timed out waiting for the condition"),
        "{why}"
    );
    status(
        &claims,
        "job",
        json!({"phase": "Bound", "conditions": ready("True", "Bound")}),
    )
    .await?;
    let met = said(plane, scratch.name(), &arguments("--timeout=60s")).await?;
    ensure!(met.contains("condition met"), "{met}");
    Ok(())
}

#[tokio::test]
async fn a_pool_is_scaled_through_its_subresource_and_tells_an_autoscaler_whom_it_counts() -> Result<()> {
    let plane = plane().await?;
    let scratch = Scratch::new(plane, "scale").await?;
    let client = scratch.client()?;
    let pools: Api<MacOSMachinePool> = Api::namespaced(client.clone(), scratch.name());
    let _: MacOSMachinePool = make::within(&client, scratch.name(), make::pool("ci", "small", 1, 9)).await?;
    said(plane, scratch.name(), &["scale", "macpool/ci", "--replicas=5"]).await?;
    ensure!(pools.get("ci").await?.spec.replicas == 5);
    // as the operator writes it: kubectl and autoscalers read fewer selectors than the API server does
    let selector = "machine.dockerios.io/pool-uid=7,machine.dockerios.io/claimed notin (true)";
    status(&pools, "ci", json!({"replicas": 4, "selector": selector})).await?;
    let scale = pools.get_scale("ci").await?;
    let status = scale.status.context("the scale has a status")?;
    ensure!(status.replicas == 4, "{status:?}");
    ensure!(status.selector.as_deref() == Some(selector), "{status:?}");
    said(plane, scratch.name(), &["scale", "macpool/ci", "--replicas=6"]).await?;
    ensure!(pools.get("ci").await?.spec.replicas == 6);
    // more than maxMachines is refused on this way too
    let over = kubectl(plane, scratch.name(), &["scale", "macpool/ci", "--replicas=10"]).await?;
    let why = String::from_utf8_lossy(&over.stderr).into_owned();
    ensure!(why.contains("[pool-replicas-within-max]"), "{why}");
    Ok(())
}

#[tokio::test]
async fn machines_are_selected_by_class_and_identities_by_pool_on_the_server() -> Result<()> {
    let plane = plane().await?;
    let scratch = Scratch::new(plane, "fields").await?;
    let client: Client = scratch.client()?;
    for (name, class) in [("a", "small"), ("b", "large"), ("c", "small")] {
        let _: MacOSMachine = make::within(&client, scratch.name(), make::machine(name, class)).await?;
    }
    let machines: Api<MacOSMachine> = Api::namespaced(client.clone(), scratch.name());
    let small = machines
        .list(&ListParams::default().fields("spec.machineClassName=small"))
        .await?;
    let names: Vec<_> = small.iter().map(|machine| machine.name_any()).collect();
    ensure!(names == ["a", "c"], "{names:?}");
    let identities: Api<MachineIdentity> = Api::all(client.clone());
    expect::accepted(
        identities
            .list(&ListParams::default().fields("spec.poolName=none"))
            .await,
    )?;
    expect::refused(
        identities.list(&ListParams::default().fields("spec.serial=x")).await,
        400,
        &["field label not supported"],
    )?;
    Ok(())
}

/// Status that only grows ends in objects that etcd refuses. The schema bounds each list, so none can.
#[tokio::test]
async fn no_status_of_ours_can_grow_past_what_one_object_may_have() -> Result<()> {
    let plane = plane().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().await?);
    let mut judged = 0;
    for definition in definitions.list(&ListParams::default()).await? {
        let name = definition.name_any();
        if !name.ends_with("dockerios.io") {
            continue;
        }
        let schema = serde_json::to_value(&definition.spec.versions[0].schema)?;
        let most = longest(&schema["openAPIV3Schema"]["properties"]["status"], &name)?;
        ensure!(most < 64 << 10, "{name}: a status may have {most} bytes");
        judged += 1;
    }
    ensure!(judged == 8, "{judged} kinds were judged");
    Ok(())
}

/// The most bytes that a value of the schema can take, of one byte per character.
fn longest(schema: &Value, at: &str) -> Result<u64> {
    let number = |field: &str| schema[field].as_u64();
    Ok(match schema["type"].as_str() {
        Some("object") => {
            let mut sum = 2;
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                sum += name.len() as u64 + 4 + longest(property, &format!("{at}.{name}"))?;
            }
            if schema["additionalProperties"].is_object() {
                let each = longest(&schema["additionalProperties"], at)? + 320;
                sum += each * number("maxProperties").with_context(|| format!("{at}: a map without maxProperties"))?;
            }
            sum
        }
        Some("array") => {
            let most = number("maxItems").with_context(|| format!("{at}: a list without maxItems"))?;
            most * (1 + longest(&schema["items"], at)?)
        }
        Some("string") => {
            2 + match (number("maxLength"), schema["enum"].as_array(), &schema["format"]) {
                (Some(most), ..) => most,
                (None, Some(words), _) => {
                    words.iter().filter_map(Value::as_str).map(str::len).max().unwrap_or(0) as u64
                }
                (None, None, format) if format == "date-time" => 40,
                _ => anyhow::bail!("{at}: a text without maxLength"),
            }
        }
        Some("boolean") => 5,
        Some("integer" | "number") => 24,
        _ => anyhow::bail!("{at}: of what type? {schema}"),
    })
}
