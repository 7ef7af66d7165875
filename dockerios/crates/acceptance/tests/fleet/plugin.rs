//! `kubectl dockerios`, as a person runs it: by kubectl, on the cluster that is there.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, MacOSMachinePool};
use dockerios_kubevirt::{DataVolume, VirtualMachine, VirtualMachineInstance, vmi::VmiPhase};
use dockerios_testkit::{Proc, apply_file, bin};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::fleet;

/// What it said.
pub(crate) struct Said {
    pub(crate) good: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs `kubectl dockerios` with these words as the cluster's admin, in that directory.
pub(crate) async fn plugin(dir: &Path, words: &[&str]) -> Result<Said> {
    let binary = tokio::task::spawn_blocking(|| bin("kubectl-dockerios")).await??;
    let mut kubectl = fleet().await?.plane.kubectl()?;
    // kubectl finds its plugins by PATH
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = binary.parent().context("a binary lies in a folder")?;
    kubectl
        .env("PATH", format!("{}:{path}", beside.display()))
        .current_dir(dir)
        .arg("dockerios")
        .args(words);
    let output = tokio::task::spawn_blocking(move || kubectl.output()).await??;
    Ok(Said {
        good: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[track_caller]
fn says(said: &Said, good: bool, fragments: &[&str]) -> Result<()> {
    let whole = format!("{}{}", said.out, said.err);
    ensure!(
        said.good == good,
        "ended {}: {whole}",
        if said.good { "well" } else { "badly" }
    );
    for fragment in fragments {
        ensure!(whole.contains(fragment), "no {fragment:?} in: {whole}");
    }
    Ok(())
}

pub(crate) async fn the_plugin_claims_a_machine_says_why_another_waits_and_shows_a_screen() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("plugin").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let dir = tempfile::tempdir()?;
    let run = async |words: &[&str]| plugin(dir.path(), &[words, &["-n", ns]].concat()).await;

    let _: IdentityPool = make::cluster(client, make::identities("plugin", 1, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("plugin", "plugin")).await?;
    let _: MacOSMachinePool = make::within(client, ns, make::pool("ci", "plugin", 0, 3)).await?;
    let claimed = run(&[
        "claim",
        "--pool",
        "ci",
        "--ttl",
        "90m",
        "--name",
        "job",
        "--timeout",
        "2m",
    ])
    .await?;
    says(
        &claimed,
        true,
        &[
            "claim     job\nmachine   mac-",
            "expires   in 1h",
            "it stays when you interrupt this",
        ],
    )?;
    let refused = run(&["claim", "--pool", "ci", "--ttl", "1d"]).await?;
    says(&refused, false, &["--ttl \"1d\"", "1h30m"])?;

    // the one identity is taken
    let _: MacOSMachine = make::within(client, ns, make::machine("waits", "plugin")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::reason(&machines, "waits", "Ready", "IdentityExhausted").await?;
    let why = run(&["why", "mac/waits"]).await?;
    says(
        &why,
        true,
        &["is Pending, not Ready (IdentityExhausted)", "raise spec.maxSize"],
    )?;
    says(
        &run(&["why", "macclaim", "job"]).await?,
        true,
        &["is Bound and waits for nothing"],
    )?;
    says(
        &run(&["why", "macs/none"]).await?,
        false,
        &["has no MacOSMachine none; `kubectl get macosmachines -n "],
    )?;
    let screen = run(&["status"]).await?;
    says(&screen, true, &["platform: Ready, NVMe Native", "IdentityExhausted"])?;
    // pools of other scenes stand beside it, and columns are as wide as the longest name
    let pool = |line: &str| line.split_whitespace().take(2).eq(["plugin", "1/1"]);
    ensure!(
        screen.out.lines().any(pool),
        "no row of its identity pool in: {}",
        screen.out
    );
    says(
        &run(&["identities", "plugin"]).await?,
        true,
        &["Allocated", &format!("{ns}/mac-")],
    )?;

    let machine = claimed
        .out
        .lines()
        .find_map(|line| line.strip_prefix("machine   "))
        .context("its machine")?;
    says(
        &run(&["screenshot", machine, "-o", "now.png"]).await?,
        true,
        &["screen of ", "now.png"],
    )?;
    ensure!(
        std::fs::read(dir.path().join("now.png"))?.starts_with(b"\x89PNG"),
        "no picture was written"
    );
    says(
        &run(&["screenshot", machine, "-o", "now.png"]).await?,
        false,
        &["is there already; give -o FILE, or --force"],
    )?;
    says(
        &run(&["snapshot", machine]).await?,
        false,
        &["is Ready: stop it first", "powerState"],
    )?;
    let stop = Patch::Merge(json!({"spec": {"powerState": "Stopped"}}));
    machines.patch(machine, &PatchParams::default(), &stop).await?;
    see::until(
        &machines,
        machine,
        "Stopped, and its guest's word that it went in order",
        |machine| {
            let guest = machine.status.as_ref().and_then(|status| status.guest.as_ref());
            see::machine_phase(machine) == Some(MachinePhase::Stopped)
                && guest.and_then(|guest| guest.clean_shutdown) == Some(true)
        },
    )
    .await?;
    says(
        &run(&["why", &format!("macs/{machine}")]).await?,
        true,
        &["is Stopped", "Its guest shut down cleanly the last time, as it saw it."],
    )?;
    let absent = run(&["snapshot", machine]).await?;
    says(
        &absent,
        false,
        &["serves no VirtualMachineSnapshot", "feature gate Snapshot"],
    )?;
    let definition = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../../shared/crds/kubevirt/virtualmachinesnapshots.snapshot.kubevirt.io.yaml");
    if definition.is_file() {
        apply_file(client, definition).await?;
        let definitions = fleet.all::<CustomResourceDefinition>();
        see::condition(
            &definitions,
            "virtualmachinesnapshots.snapshot.kubevirt.io",
            "Established",
            "True",
        )
        .await?;
        let caught = run(&["snapshot", machine, "--name", "kept"]).await?;
        says(&caught, true, &["VirtualMachineSnapshot ", "/kept made"])?;
    } else {
        eprintln!("KubeVirt's own definition of snapshots is not at hand: none is made");
    }
    Ok(())
}

pub(crate) async fn the_hook_takes_the_disks_of_a_bench_and_nothing_is_left_when_it_is_interrupted() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("bench").await?;
    let ns = scratch.name();
    let image = format!("registry.example.com/linux@sha256:{}", "c".repeat(64));
    let binary = tokio::task::spawn_blocking(|| bin("kubectl-dockerios")).await??;
    let mut command = std::process::Command::new(binary);
    command.env("KUBECONFIG", fleet.plane.kubeconfig()).args([
        "bench",
        "--storage-class",
        make::STORAGE,
        "--size",
        "1Gi",
        "--image",
        &image,
        "-n",
        ns,
    ]);
    let dir = tempfile::tempdir()?;
    let bench = Proc::spawn("bench", command, dir.path().join("bench.log"))?;
    // nobody serves its console here: it waits for it until it is told to end
    let instances = fleet.api::<VirtualMachineInstance>(ns);
    let up = see::count(&instances, "its instance runs, so the hook took its disk", |all| {
        let phase = |vmi: &VirtualMachineInstance| vmi.status.as_ref().and_then(|status| status.phase);
        matches!(all, [one] if phase(one) == Some(VmiPhase::Running))
    });
    if let Err(error) = up.await {
        let all = instances.list(&ListParams::default()).await?.items;
        let statuses: Vec<_> = all.iter().map(|vmi| &vmi.status).collect();
        return Err(error.context(format!("{}\n{}", bench.log(), serde_json::to_string(&statuses)?)));
    }
    let ended = bench.terminate(see::PATIENCE).await?;
    ensure!(ended.code() == Some(130), "{ended}: {}", bench.log());
    // deleted is not gone at once: a VirtualMachine stays until its instance has ended
    let gone = "nothing of the bench is left";
    see::count(&fleet.api::<VirtualMachine>(ns), gone, <[_]>::is_empty).await?;
    see::count(&instances, gone, <[_]>::is_empty).await?;
    see::count(&fleet.api::<DataVolume>(ns), gone, <[_]>::is_empty).await?;
    see::count(&fleet.api::<PersistentVolumeClaim>(ns), gone, <[_]>::is_empty).await?;
    let ours = |one: &ConfigMap| one.labels().contains_key("bench.dockerios.io/run");
    see::count(&fleet.api::<ConfigMap>(ns), gone, |all| !all.iter().any(ours)).await?;
    Ok(())
}

pub(crate) async fn the_doctor_finds_what_the_cluster_has_and_what_nobody_asked() -> Result<()> {
    fleet().await?;
    let dir = tempfile::tempdir()?;
    let judged = plugin(dir.path(), &["doctor", "-o", "json"]).await?;
    let findings: Value = serde_json::from_str(&judged.out).with_context(|| format!("{}{}", judged.out, judged.err))?;
    let of = |check: &str| -> Vec<&str> {
        let all = findings.as_array().into_iter().flatten();
        all.filter(|one| one["check"] == check)
            .filter_map(|one| one["verdict"].as_str())
            .collect()
    };
    ensure!(of("kvm") == ["ok"], "{findings:#}");
    ensure!(of("ignore_msrs") == ["warning"], "{findings:#}");
    ensure!(
        !of("platform").is_empty() && !of("platform").contains(&"missing"),
        "{findings:#}"
    );
    Ok(())
}
