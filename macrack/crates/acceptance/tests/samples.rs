//! Every sample in deploy/samples is what it says it is: accepted, or refused for its reason, by the product itself.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use kube::Api;
use macrack_acceptance::{Puppet, Rack, rack::deploy};
use macrack_api::{
    MacNode, MacNodeLease, MacOSImage, MacOSInstance, condition, instance::macos_instance::MacOSInstancePhase,
};
use macrack_testkit::{Namespace, expect};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

fn samples() -> PathBuf {
    deploy().join("samples")
}

fn ready(conditions: &[condition::Condition]) -> bool {
    condition::is_true(conditions, "Ready")
}

/// The golden of the sample is in the store (its bytes matter to agents, not to a puppet).
fn stored(rack: &Rack) -> Result<()> {
    let text = fs::read_to_string(samples().join("macosimage.yaml"))?;
    let line = text.lines().find_map(|l| l.trim().strip_prefix("image: ")).context("the sample names an image")?;
    let (repository, digest) = line.split_once('@').context("the sample's image is pinned")?;
    let folder = rack.store().join(repository).join(digest.replace(':', "-"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("manifest.json"), json!({ "diskBytes": 64u64 << 30 }).to_string())?;
    Ok(())
}

#[tokio::test]
async fn every_sample_is_accepted_or_refused_as_its_comment_says() -> Result<()> {
    let rack = Rack::shared();
    let admin = rack.plane.admin().await?;
    stored(rack)?;
    let mut seen = BTreeSet::new();
    let mut file = |name: &str| {
        seen.insert(name.to_owned());
        samples().join(name).display().to_string()
    };

    for name in ["macnodeclass.yaml", "instanceclass.yaml", "rackconfig.yaml", "macosimage.yaml", "macnode.yaml"] {
        rack.plane.kubectl(&["apply", "-f", &file(name)]).await?.success().context(name.to_owned())?;
    }
    let images: Api<MacOSImage> = Api::all(admin.clone());
    expect::until_seen(&images, "tahoe-xcode26", "Ready", SOON, |i| {
        i.status.as_ref().is_some_and(|s| ready(&s.conditions))
    })
    .await;
    // a second Mac for the lease of a week
    let second = json!({ "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
        "metadata": { "name": "samplemac2" }, "spec": { "serial": "SAMPLEMAC2", "nodeClassName": "mini-m4pro-64" } });
    rack.plane.kubectl_with(&["apply", "-f", "-"], &second.to_string()).await?.success()?;
    let _puppets = [Puppet::start(rack.plane, "H4XK29Q0LW").await?, Puppet::start(rack.plane, "SAMPLEMAC2").await?];
    let nodes: Api<MacNode> = Api::all(admin.clone());
    for name in ["h4xk29q0lw", "samplemac2"] {
        expect::until_seen(&nodes, name, "Ready", SOON, |n| n.status.as_ref().is_some_and(|s| ready(&s.conditions)))
            .await;
    }

    let [home, other] = [Namespace::fresh(rack.plane, "home").await?, Namespace::fresh(rack.plane, "other").await?];
    let leases: Api<MacNodeLease> = Api::namespaced(admin.clone(), home.name());
    for (name, lease) in [("lease.yaml", "ios-ci"), ("lease-for-a-week.yaml", "release-week")] {
        rack.plane.kubectl(&["apply", "-n", home.name(), "-f", &file(name)]).await?.success()?;
        expect::until_seen(&leases, lease, "bound", SOON, |l| l.status.as_ref().is_some_and(|s| ready(&s.conditions)))
            .await;
    }
    for name in ["instances.yaml", "first-boot.yaml"] {
        rack.plane.kubectl(&["apply", "-n", home.name(), "-f", &file(name)]).await?.success().context(name)?;
    }
    let instances: Api<MacOSInstance> = Api::namespaced(admin, home.name());
    for name in ["build-1", "build-2", "provisioned"] {
        expect::until_seen(&instances, name, "Ready", SOON, |i| {
            i.status.as_ref().is_some_and(|s| s.phase == Some(MacOSInstancePhase::Ready))
        })
        .await;
    }
    for (namespace, name, rule) in [
        (home.name(), "third.yaml", "[two-per-lease]"),
        (other.name(), "on-foreign-lease.yaml", "[lease-in-namespace]"),
    ] {
        let refused = rack.plane.kubectl(&["apply", "-n", namespace, "-f", &file(name)]).await?;
        assert!(!refused.status.success() && refused.stderr.contains(rule), "{name}: {refused:?}");
    }

    let all: BTreeSet<String> =
        fs::read_dir(samples())?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    assert_eq!(all, seen, "a sample that no test applies");
    Ok(())
}
