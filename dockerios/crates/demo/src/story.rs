//! The account, step by step. What takes a minute by itself (a guest that never gets ready, a claim that runs out)
//! begins early and is shown in its turn.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::eye::{self, condition, number, phase, ready, text};
use crate::{say, story::ending::teardown};

mod ending;

pub(crate) const OPENING: &str = "\
DockerIOS demo: a real Kubernetes control plane; KubeVirt and CDI are played (no VM boots here);
hook, bootdisk builder, guest agent and operator are the real ones. Loopback only.
Apple's licence does not cover macOS on hardware that is not Apple's: for learning, and for Intel
Macs while they last. The x86 path ends with macOS 26.";

/// All of it.
pub(crate) async fn tell(cluster: &Cluster) -> Result<()> {
    let began = Instant::now();
    platform(cluster).await?;
    image(cluster).await?;
    let slow = begin_what_takes_long(cluster).await?;
    identities(cluster).await?;
    warm_pool(cluster).await?;
    warm_claim(cluster).await?;
    cold_claim(cluster).await?;
    eight(cluster).await?;
    late(cluster).await?;
    runs_out(cluster, slow).await?;
    teardown(cluster).await?;
    say::line(format!("\nTold in {}.", say::seconds(began.elapsed())));
    Ok(())
}

async fn platform(cluster: &Cluster) -> Result<()> {
    say::line("");
    cluster.done(&["apply", "-f", "team.yaml", "-f", "teams.yaml"]).await?;
    let warning = cluster.apply("platform.yaml").await?;
    warning.lines().for_each(say::note);
    let what = (eye::PLATFORM, "", "default");
    let met = eye::until(&cluster.client, what, "Ready", reason, ready).await?;
    for kind in ["LauncherCapable", "GatesEnabled"] {
        let message = condition(&met.object, kind, "message");
        say::note(format!("{kind}: {message}"));
    }
    say::note(format!("PlatformConfig default: Ready in {}", say::seconds(met.took)));
    Ok(())
}

fn reason(object: &Value) -> Option<String> {
    Some(condition(object, "Ready", "reason").to_owned()).filter(|reason| !reason.is_empty())
}

async fn image(cluster: &Cluster) -> Result<()> {
    say::step(1, "An image is imported, once; classes point at it");
    // identities are made ahead of demand: nothing asks for one yet
    cluster.done(&["apply", "-f", "identities.yaml"]).await?;
    cluster.apply("image.yaml").await?;
    let progress = |image: &Value| {
        let told = [text(image, "/status/phase"), text(image, "/status/progress")].join(" ");
        Some(told.trim().to_owned()).filter(|told| !told.is_empty())
    };
    let what = (eye::IMAGE, "", "sequoia-15-6");
    let met = eye::until(&cluster.client, what, "Ready", progress, ready).await?;
    // every percent was seen; a few of them tell it
    let (first, rest) = met.trail.split_at(met.trail.len().min(2));
    let middle = rest.get(rest.len() / 2).filter(|_| rest.len() > 2);
    let way: Vec<&str> = first
        .iter()
        .chain(middle)
        .chain(rest.last())
        .map(String::as_str)
        .collect();
    say::note(format!(
        "sequoia-15-6: {} ({})",
        way.join(" > "),
        say::seconds(met.took)
    ));
    Ok(())
}

/// When the short claim was made.
struct Slow {
    claimed: Instant,
}

async fn begin_what_takes_long(cluster: &Cluster) -> Result<Slow> {
    if let Some(sim) = &cluster.sim {
        sim.fault("hang-at team-trial/macs-late-* LoginWindow")?;
    }
    let files = [
        "apply",
        "-f",
        "class.yaml",
        "-f",
        "classes.yaml",
        "-f",
        "late.yaml",
        "-f",
        "short.yaml",
    ];
    cluster.done(&files).await?;
    for class in ["build", "iservice", "trial"] {
        eye::until(&cluster.client, (eye::CLASS, "", class), "Ready", reason, ready).await?;
    }
    Ok(Slow {
        claimed: Instant::now(),
    })
}

async fn identities(cluster: &Cluster) -> Result<()> {
    say::step(
        2,
        "Identities and their bootdisks are made ahead of need, none on demand",
    );
    say::command("kubectl apply -f identities.yaml");
    let full = |pool: &Value| {
        let (all, most) = (number(pool, "/status/total"), number(pool, "/spec/maxSize"));
        let at_work = number(pool, "/status/preparing");
        all == most && at_work == 0 && number(pool, "/status/available") == most
    };
    let counts = |pool: &Value| {
        let of = |field: &str| number(pool, &format!("/status/{field}"));
        Some(format!("{} being made, {} available", of("preparing"), of("available")))
    };
    let what = (eye::IDENTITIES, "", "imacpro");
    eye::until(&cluster.client, what, "five available identities", counts, full).await?;
    cluster
        .table(&["get", "machineidentities", "--field-selector", "spec.poolName=imacpro"])
        .await
}

/// Where a machine is: its phase, and its guest's stage while it starts.
fn whereabouts(machine: &Value) -> Option<String> {
    let (phase, stage) = (text(machine, "/status/phase"), text(machine, "/status/guest/stage"));
    let word = if phase == "Starting" && !stage.is_empty() {
        stage
    } else {
        phase
    };
    Some(word.to_owned()).filter(|word| !word.is_empty())
}

async fn warm_pool(cluster: &Cluster) -> Result<()> {
    say::step(3, "A warm pool of three");
    cluster.apply("pool.yaml").await?;
    let team = "team-checkout";
    let client = &cluster.client;
    let made = eye::all_until(client, (eye::MACHINE, team), "a machine of the pool", |all| {
        !all.is_empty()
    })
    .await?;
    let first = text(made.first().context("a machine")?, "/metadata/name").to_owned();
    let met = eye::until(client, (eye::MACHINE, team, &first), "Ready", whereabouts, ready).await?;
    say::note(format!("{first}   {}   ({})", met.way(), say::seconds(met.took)));
    let three = |pool: &Value| number(pool, "/status/warm") == 3;
    eye::until(client, (eye::POOL, team, "ci"), "three warm machines", |_| None, three).await?;
    cluster.table(&["get", "macpool", "-n", team]).await
}

/// Makes the claim of the sample through the API, so that kubectl's own start is not measured.
async fn warm_claim(cluster: &Cluster) -> Result<()> {
    say::step(4, "A claim, served warm");
    let team = "team-checkout";
    let claims = eye::api(&cluster.client, eye::CLAIM, team);
    let wanted = json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
        "metadata": {"name": "job-4711"}, "spec": {"poolName": "ci", "ttl": "90m"},
    });
    let began = Instant::now();
    claims
        .create(&PostParams::default(), &serde_json::from_value(wanted)?)
        .await?;
    let bound = eye::until(
        &cluster.client,
        (eye::CLAIM, team, "job-4711"),
        "Bound",
        phase,
        is_bound,
    )
    .await?;
    say::note(format!(
        "job-4711   {}   to {} in {} from the request; it expires at {}",
        bound.way(),
        text(&bound.object, "/status/machineRef/name"),
        say::seconds(began.elapsed()),
        text(&bound.object, "/status/expiresAt"),
    ));
    let counts = |pool: &Value| Some(format!("WARM {}", number(pool, "/status/warm")));
    let refilled = |pool: &Value| number(pool, "/status/warm") == 3 && number(pool, "/status/claimed") == 1;
    let met = eye::until(
        &cluster.client,
        (eye::POOL, team, "ci"),
        "three warm again",
        counts,
        refilled,
    )
    .await?;
    say::note(format!(
        "the pool refills   {}   ({})",
        met.way(),
        say::seconds(met.took)
    ));
    cluster.table(&["get", "macclaim", "-n", team]).await?;
    cluster.table(&["get", "macs", "-n", team]).await
}

fn is_bound(claim: &Value) -> bool {
    text(claim, "/status/phase") == "Bound" && !text(claim, "/status/machineRef/name").is_empty()
}

async fn cold_claim(cluster: &Cluster) -> Result<()> {
    say::step(5, "A claim where no pool is: served cold");
    let began = Instant::now();
    cluster.apply("cold.yaml").await?;
    let what = (eye::CLAIM, "team-trial", "job-4712");
    let bound = eye::until(&cluster.client, what, "Bound", phase, is_bound).await?;
    say::note(format!(
        "job-4712   {}   to {} in {}, made for it",
        bound.way(),
        text(&bound.object, "/status/machineRef/name"),
        say::seconds(began.elapsed())
    ));
    Ok(())
}

async fn eight(cluster: &Cluster) -> Result<()> {
    say::step(6, "Eight machines, five identities");
    cluster.apply("eight.yaml").await?;
    let team = "team-signing";
    let waits = |machine: &Value| {
        text(machine, "/status/phase") == "Pending" && !text(machine, "/status/conditions/0/type").is_empty()
    };
    let settled = |all: &[Value]| {
        let waiting = all.iter().filter(|machine| waits(machine)).count();
        all.iter().filter(|machine| ready(machine)).count() == 5 && waiting == 3
    };
    let all = eye::all_until(
        &cluster.client,
        (eye::MACHINE, team),
        "five Ready and three that wait",
        settled,
    )
    .await?;
    cluster.table(&["get", "macs", "-n", team]).await?;
    let last = all.iter().find(|machine| waits(machine)).context("one that waits")?;
    let name = text(last, "/metadata/name");
    let why = condition(last, "Ready", "reason").to_owned();
    let about = |event: &Value| text(event, "/regarding/name") == name && text(event, "/reason") == why;
    let what = (eye::EVENT, team);
    let events = eye::all_until(&cluster.client, what, "the event of one that waits", |all| {
        all.iter().any(about)
    })
    .await?;
    let newest = events
        .iter()
        .filter(|event| about(event))
        .max_by_key(|event| text(event, "/metadata/creationTimestamp"));
    let event = newest.context("the event")?;
    say::note(format!(
        "event {name}, {}, when it began to wait: {}",
        text(event, "/reason"),
        text(event, "/note")
    ));
    let now = eye::api(&cluster.client, eye::MACHINE, team).get(name).await?;
    let now = serde_json::to_value(now)?;
    let message = condition(&now, "Ready", "message");
    if message != text(event, "/note") {
        say::note(format!("by now: {message}"));
    }
    Ok(())
}

async fn late(cluster: &Cluster) -> Result<()> {
    say::step(
        7,
        "A machine that never gets ready: its guest stays at the login window (on purpose)",
    );
    say::note("The demo's class allows 60 s, the least there is; by default it is 15 min.");
    let team = "team-trial";
    let client = &cluster.client;
    let what = (eye::MACHINE, team, "late");
    let failed = |machine: &Value| text(machine, "/status/phase") == "Failed";
    let met = eye::until(client, what, "Failed", whereabouts, failed).await?;
    say::note(format!(
        "late   {}: {}",
        met.way(),
        text(&met.object, "/status/failure/message")
    ));
    let uid = text(&met.object, "/metadata/uid");
    let own = |object: &Value| text(object, "/metadata/labels/machine.dockerios.io~1uid") == uid;
    for (kind, name) in [(eye::VM, "VM"), (eye::DISK, "disk")] {
        let none = |all: &[Value]| !all.iter().any(own);
        eye::all_until(client, (kind, team), &format!("the end of its {name}"), none).await?;
    }
    let free = |pool: &Value| number(pool, "/status/available") == 1;
    eye::until(
        client,
        (eye::IDENTITIES, "", "trial"),
        "the identity back",
        |_| None,
        free,
    )
    .await?;
    say::note("given back: its VM, its disks, its identity (available again, for it was never used)");
    let screen = text(&met.object, "/status/failure/screen");
    if screen.is_empty() {
        bail!("no last screen of late was kept; see kubectl get macs late -n {team} -o yaml");
    }
    say::note("its last screen is kept:");
    say::command(&format!("kubectl get cm {screen} -n {team} \\"));
    say::line("         -o jsonpath='{.binaryData.screen\\.png}' | base64 -d > screen.png");
    Ok(())
}

async fn runs_out(cluster: &Cluster, slow: Slow) -> Result<()> {
    say::step(8, "A claim runs out: its ttl is one minute, the least there is");
    let team = "team-trial";
    let what = (eye::CLAIM, team, "job-4713");
    let expired = |claim: &Value| text(claim, "/status/phase") == "Expired";
    let met = eye::until(&cluster.client, what, "Expired", phase, expired).await?;
    let machine = text(&met.object, "/status/machineRef/name").to_owned();
    let (from, to) = (
        text(&met.object, "/status/boundAt"),
        text(&met.object, "/status/end/at"),
    );
    say::note(format!(
        "job-4713   bound {from}, expired {to}, {} after it was asked for: {}",
        say::seconds(slow.claimed.elapsed()),
        condition(&met.object, "Ready", "message")
    ));
    let gone = |all: &[Value]| !all.iter().any(|one| text(one, "/metadata/name") == machine);
    let began = Instant::now();
    eye::all_until(&cluster.client, (eye::MACHINE, team), "the end of its machine", gone).await?;
    say::note(format!(
        "its machine {machine} is deleted, never given to another   ({})",
        say::seconds(began.elapsed())
    ));
    cluster.table(&["get", "macclaim", "-n", team]).await?;
    cluster.table(&["get", "macs", "-n", team]).await
}

/// Deletes a machine as a person would.
async fn delete(cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
    say::command(&format!("kubectl delete macs/{name} -n {namespace}"));
    let machines = eye::api(&cluster.client, eye::MACHINE, namespace);
    machines.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// What a person can do now; each line works as it is printed.
pub(crate) fn yours(cluster: &Cluster, assets: &Path, bin_dir: &Path) {
    say::line("\nYours until Ctrl-C. In another terminal:");
    say::line(format!("  export KUBECONFIG={}", cluster.kubeconfig().display()));
    say::line(format!(
        "  export PATH={}:{}:$PATH",
        assets.display(),
        bin_dir.display()
    ));
    for (command, about) in [
        ("kubectl get macs -A -w", "every machine, as it goes"),
        (
            "kubectl scale macpool/ci -n team-checkout --replicas=5",
            "two more warm ones",
        ),
        (
            "kubectl dockerios status -A",
            "the platform on one screen, and who waits for what",
        ),
        (
            "kubectl dockerios screenshot macs/late -n team-trial",
            "the last screen of the machine that never got ready",
        ),
        (
            "kubectl delete macclaim/job-4711 -n team-checkout",
            "the machine goes with its claim",
        ),
        (
            "kubectl explain macosmachineclass.spec.systemDisk.bus",
            "what a field means",
        ),
        ("kubectl get events -A -w", "every transition, as it happens"),
        (
            "dockerios-domain-hook filter --help",
            "the hook on a domain of your own",
        ),
    ] {
        say::line(format!("  {command:<58}# {about}"));
    }
    if let Some(metrics) = &cluster.metrics {
        let command = format!("curl -s {metrics} | grep ^dockerios");
        say::line(format!("  {command:<58}# what Prometheus would scrape"));
    }
}

/// Longest wait for a teardown: a guest may take its three minutes of grace.
const TEARDOWN: Duration = Duration::from_secs(240);
