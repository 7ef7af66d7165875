//! The account as a person reads it, from the first line to the last.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use macrack_testkit::child::{bin, bin_dir};
use macrack_testkit::{ControlPlane, Options, Program, assets};

/// A busy machine's time for the whole of it.
const LIMIT: Duration = Duration::from_secs(300);

/// What must be read, in this order; anything may stand between.
const ACCOUNT: &[&str] = &[
    "macOS runs on Apple hardware only",
    "24 consecutive hours",
    "control plane",
    "golden",
    "pushed 5.0 GB of disk",
    "tenants",
    "1  team-a leases a Mac",
    "$ kubectl apply -n team-a -f samples/lease.yaml",
    "Bound     H4XK29Q0LW, yours until at least",
    "2  two macOS VMs on it",
    "Pulling   tahoe-xcode26",
    "of 5.0 GB",
    "Ready macOS 26.1, Xcode 26.1",
    "pulled 5.0 GB once at",
    "every chunk checked; 2 clones of it run",
    "3  a third",
    "denied [two-per-lease] macosinstance team-a/build-3",
    "Failed (LeaseFull)",
    "status.slots: Too many: 3: must have at most 2 items",
    "Insufficient",
    "(VZErrorDomain code 6)",
    "4  somebody else",
    "denied [lease-in-namespace] macosinstance team-b/visitor",
    "J2LM00AAAA, yours until at least",
    "first-boot script Done",
    "5  the agent is killed",
    "uptime unbroken",
    "6  a kernel's counter sticks",
    "Quarantined (QuotaStuck)",
    "7  team-a lets go after",
    "ios-ci is Held until",
    "Held",
    "build-3",
    "Pending   all 2 mini-m4pro-64 are leased",
    "$ kubectl get mnl -A",
    "HeldUntilFloor",
    "NoChassisFree",
];

async fn demo(dir: &Path, more: &[&str]) -> Result<(bool, String)> {
    let started = ["macrack-operator", "macrack-agent", "macrack-vm", "macrack-guest", "kubectl-macrack"];
    started.into_iter().try_for_each(|name| bin(name).map(drop))?;
    let program = Program::new(bin("macrack-demo")?)
        .arg("--assets")
        .arg(assets::find()?)
        .arg("--bin-dir")
        .arg(bin_dir()?)
        .arg("--dir")
        .arg(dir)
        .args(more);
    let demo = program.start("macrack-demo")?;
    let ended = demo.wait(LIMIT).await.with_context(|| demo.log())?;
    Ok((ended.success(), demo.log()))
}

fn in_order(text: &str) -> Result<()> {
    // lines are broken at blanks
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = flat.as_str();
    for wanted in ACCOUNT {
        let wanted = wanted.split_whitespace().collect::<Vec<_>>().join(" ");
        match rest.split_once(&wanted) {
            Some((_, after)) => rest = after,
            None => bail!("{wanted:?} is not read where it should be, in:\n{text}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_whole_story_happens_on_a_control_plane_of_its_own_and_in_a_cluster_that_is_left_as_it_was() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (done, text) = demo(dir.path(), &["--once"]).await?;
    assert!(done, "{text}");
    in_order(&text)?;
    assert!(!text.contains('\u{1b}'), "colour where nobody sees it:\n{text}");

    // the same store again, in somebody's cluster
    let plane = ControlPlane::start(Options::default())?;
    let kubeconfig = plane.kubeconfig().display().to_string();
    let things = "get nodes,namespaces,crd,clusterroles,clusterrolebindings,validatingadmissionpolicies,\
                  validatingwebhookconfigurations,certificatesigningrequests,pods,roles,serviceaccounts -A -o name";
    let things: Vec<&str> = things.split_whitespace().collect();
    let before = plane.kubectl(&things).await?.success()?;
    let (done, text) = demo(dir.path(), &["--once", "--kubeconfig", &kubeconfig]).await?;
    assert!(done, "{text}");
    in_order(&text)?;
    assert!(text.contains("removed from your cluster"), "{text}");
    let after = plane.kubectl(&things).await?.success()?;
    assert_eq!(before, after, "something is left in the cluster");

    // a cluster that is in use is not touched
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds").display().to_string();
    plane.kubectl(&["apply", "--server-side", "-f", &crds]).await?.success()?;
    plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await?.success()?;
    let class = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/samples/instanceclass.yaml");
    plane.kubectl(&["apply", "-f", &class.display().to_string()]).await?.success()?;
    let (done, text) = demo(dir.path(), &["--once", "--kubeconfig", &kubeconfig]).await?;
    assert!(!done && text.contains("this cluster already uses MacRack (1 objects"), "{text}");
    plane.kubectl(&["get", "instanceclass", "half-mini"]).await?.success()?;
    Ok(())
}
