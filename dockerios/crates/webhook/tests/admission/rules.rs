//! The webhook's own rules.

use anyhow::Result;
use dockerios_testkit::expect;
use serde_json::{Value, json};

use crate::cluster::{
    Row, change, claim, class, cluster, create, dry, hold, identity, image, machine, machine_pool, platform, pool, with,
};

/// A class with a card and that pool.
fn carded(pool: &str) -> Value {
    json!({"spec": {"gpu": {"deviceName": "amd.com/rx580"},
        "identity": {"type": "PerMachine", "shared": null, "perMachine": {"poolName": pool}}}})
}

fn row(base: Value, bad: Value, said: &'static [&'static str], good: Value) -> Row {
    Row { base, bad, said, good }
}

#[tokio::test]
async fn a_class_that_can_never_work_is_refused_with_the_reason_and_its_neighbour_is_not() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let of = || class("c");
    let spec = |spec: Value| json!({"spec": spec});
    let per_machine = |pool: &str| {
        spec(json!({"imageName": "tahoe", "identity":
            {"type": "PerMachine", "shared": null, "perMachine": {"poolName": pool}}}))
    };
    hold(
        &admin,
        vec![
            row(
                of(),
                spec(json!({"cpu": {"model": "Penryn"}})),
                &[
                    "[cpu-runs-macos] macosmachineclass c spec.cpu.model",
                    "macOS 14",
                    "sonoma",
                    "AVX2",
                    "Haswell",
                ],
                spec(json!({"cpu": {"model": "Penryn"}, "imageName": "monterey"})),
            ),
            row(
                of(),
                spec(json!({"cpu": {"model": "IvyBridge-IBRS"}})),
                &["[cpu-runs-macos]", "IvyBridge-IBRS does not have"],
                spec(json!({"cpu": {"model": "IvyBridge-IBRS", "features": [{"name": "avx2", "policy": "require"}]}})),
            ),
            row(
                of(),
                spec(json!({"cpu": {"features": [{"name": "avx2", "policy": "disable"}]}})),
                &["[cpu-runs-macos]", "spec.cpu.features", "the class disables it"],
                spec(json!({"cpu": {"features": [{"name": "avx", "policy": "disable"}]}})),
            ),
            row(
                of(),
                spec(json!({"cpu": {"model": "EPYC"}})),
                &[
                    "[cpu-vendor-intel]",
                    "spec.cpu.model",
                    "EPYC is no processor of Intel's",
                    "use one of Intel's",
                ],
                spec(json!({"cpu": {"model": "Haswell-noTSX-IBRS"}})),
            ),
            row(
                of(),
                spec(json!({"cpu": {"model": "host-passthrough"},
                    "placement": {"nodeSelector": {"cpu-vendor.node.kubevirt.io/AMD": "true"}}})),
                &[
                    "[cpu-vendor-node]",
                    "spec.placement.nodeSelector",
                    "host-passthrough is the host's own processor",
                    "name a model of Intel's",
                ],
                spec(json!({"placement": {"nodeSelector": {"cpu-vendor.node.kubevirt.io/AMD": "true"}}})),
            ),
            row(
                of(),
                spec(json!({"memory": {"size": "8193Mi", "hugepages": "1Gi"}})),
                &[
                    "[hugepages-divide-memory]",
                    "spec.memory.hugepages",
                    "pages of 1Gi do not divide 8193Mi",
                ],
                spec(json!({"memory": {"size": "8192Mi", "hugepages": "1Gi"}})),
            ),
            row(
                of(),
                spec(json!({"cpu": {"dedicated": true, "numa": "Passthrough"}})),
                &["[numa-needs-hugepages]", "set spec.memory.hugepages"],
                spec(json!({"cpu": {"dedicated": true, "numa": "Passthrough"}, "memory": {"hugepages": "2Mi"}})),
            ),
            row(
                of(),
                spec(json!({"network": {"model": "virtio"}})),
                &["[nic-without-driver]", "spec.network.model", "use e1000"],
                spec(json!({"network": {"model": "e1000-82545em"}})),
            ),
            row(
                of(),
                spec(json!({"gpu": {"deviceName": "amd.com/w6900x"}})),
                &[
                    "[gpu-permitted]",
                    "amd.com/w6900x is not in permittedGPUs",
                    "amd.com/rx580 and amd.com/vega64",
                ],
                spec(json!({"gpu": {"deviceName": "amd.com/rx580"}})),
            ),
            row(
                of(),
                spec(json!({"gpu": {"deviceName": "amd.com/vega64"}})),
                &[
                    "[gpu-vendor-reset]",
                    "spec.gpu.deviceName",
                    "dead card",
                    "vendorReset",
                    "Installed",
                ],
                spec(json!({"gpu": {"deviceName": "amd.com/rx580"}})),
            ),
            row(
                of(),
                carded("imacpro"),
                &[
                    "[gpu-own-template]",
                    "spec.identity.perMachine.poolName",
                    "pool imacpro builds its bootdisks from spec.bootDiskBuilder.template",
                    "name a pool with spec.bootDisk.template: GPU",
                ],
                carded("cards"),
            ),
            row(
                of(),
                spec(json!({"systemDisk": {"size": "99Gi"}})),
                &["[disk-holds-image]", "99Gi is less than the 100Gi of MacOSImage sonoma"],
                spec(json!({"systemDisk": {"size": "100Gi"}})),
            ),
            row(
                of(),
                per_machine("imacpro"),
                &[
                    "[identity-runs-macos]",
                    "iMacPro1,1, whose last macOS is 15",
                    "tahoe is macOS 26.0",
                    "MacPro7,1",
                ],
                per_machine("macpro"),
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn a_class_whose_references_are_not_there_yet_is_admitted() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let early = json!({"spec": {
        "imageName": "not-yet", "cpu": {"model": "Penryn"},
        "identity": {"type": "PerMachine", "shared": null, "perMachine": {"poolName": "not-yet"}},
        "systemDisk": {"storageClassName": "not-yet", "size": "1Gi"},
    }});
    expect::accepted(dry(&admin, &with(class("early"), &early)).await)?;
    expect::accepted(
        dry(
            &admin,
            &with(machine("early"), &json!({"spec": {"machineClassName": "not-yet"}})),
        )
        .await,
    )?;
    Ok(())
}

#[tokio::test]
async fn what_was_admitted_once_keeps_its_labels_and_loses_its_finalizers_when_the_rules_are_against_it_now()
-> Result<()> {
    let admin = cluster().await?.client().await?;
    let early = json!({"metadata": {"finalizers": ["example.com/kept"]},
        "spec": {"imageName": "came-later", "cpu": {"model": "Penryn"}}});
    let early = with(class("overtaken"), &early);
    expect::accepted(create(&admin, &early).await)?;
    let later = json!({"spec": {"osVersion": "15.6"}});
    expect::accepted(create(&admin, &with(image("came-later"), &later)).await)?;
    // the webhook has seen the image once it refuses for it
    let cores = json!({"spec": {"cpu": {"cores": 2}}});
    expect::until_refused(|| change(&admin, &early, &cores), 422, &["[cpu-runs-macos]"]).await?;
    let labelled = json!({"metadata": {"labels": {"team": "a"}}});
    expect::accepted(change(&admin, &early, &labelled).await)?;
    expect::accepted(change(&admin, &early, &json!({"metadata": {"finalizers": null}})).await)?;
    Ok(())
}

#[tokio::test]
async fn every_fault_of_an_object_is_said_at_once() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let bad =
        json!({"spec": {"cpu": {"model": "Penryn"}, "systemDisk": {"size": "1Gi"}, "network": {"model": "virtio"}}});
    let said = &["[cpu-runs-macos]", "[disk-holds-image]", "[nic-without-driver]"];
    expect::refused(dry(&admin, &with(class("bad"), &bad)).await, 422, said)?;
    Ok(())
}

#[tokio::test]
async fn an_identity_that_breaks_a_published_rule_or_doubles_another_is_refused() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let stored = identity(7);
    expect::accepted(create(&admin, &stored).await)?;
    let taken = |field: &str| json!({"spec": {field: stored["spec"][field]}});
    let address = |rom: &str, mac: &str| json!({"spec": {"rom": rom, "macAddress": mac}});
    let rom = stored["spec"]["rom"].as_str().unwrap_or_default();
    let mac = stored["spec"]["macAddress"].as_str().unwrap_or_default();
    let same = json!({});
    hold(
        &admin,
        vec![
            row(
                identity(8),
                taken("mlb"),
                &["[identity-unique]", "spec.mlb", "every value exists once"],
                same.clone(),
            ),
            row(
                identity(8),
                taken("systemUUID"),
                &["[identity-unique]", "spec.systemUUID"],
                same.clone(),
            ),
            row(
                identity(8),
                address(rom, mac),
                &["[identity-unique]", "spec.rom", "spec.macAddress"],
                same.clone(),
            ),
            row(
                identity(8),
                json!({"spec": {"mlb": "C02000000000000AA"}}),
                &["[identity-valid]", "spec.mlb", "checksum", "copy it again"],
                same.clone(),
            ),
            row(
                identity(8),
                json!({"spec": {"macAddress": "02:00:5e:10:00:01"}}),
                &["[identity-valid]", "spec.macAddress", "not the ROM"],
                same.clone(),
            ),
            row(
                identity(8),
                json!({"metadata": {"name": "c02tw0wahx87"}, "spec": {"serial": "C02TW0WAHX87"}}),
                &["[identity-valid]", "spec.serial", "published as a sample"],
                same.clone(),
            ),
            row(
                identity(8),
                json!({"spec": {"poolName": "macpro"}}),
                &["[identity-of-pool]", "pool macpro is one of MacPro7,1"],
                json!({"spec": {"poolName": "imacpro"}}),
            ),
            row(
                identity(8),
                json!({"spec": {"poolName": "full"}}),
                &["[identity-pool-full]", "pool full has 0 identities", "maxSize of 0"],
                json!({"spec": {"poolName": "not-yet"}}),
            ),
            row(
                pool("p"),
                json!({"spec": {"model": "iMac20,2"}}),
                &[
                    "[identity-model] identitypool p spec.model",
                    "no board code",
                    "choose one of",
                ],
                json!({"spec": {"model": "iMac20,1"}}),
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn a_namespace_gets_machines_of_classes_that_allow_it_only() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let blue = json!({"spec": {"machineClassName": "only-blue"}});
    let at_home = json!({"metadata": {"namespace": "blue"}, "spec": {"machineClassName": "only-blue"}});
    let said: &[&str] = &[
        "[class-allows-namespace]",
        "spec.machineClassName",
        "only-blue is not for namespace red",
    ];
    let direct = json!({"poolName": null});
    let cold = |namespace: &str| {
        let change = json!({"metadata": {"namespace": namespace}, "spec": {"machineClassName": "only-blue"}});
        with(change, &json!({"spec": direct}))
    };
    let mut claiming = claim("c");
    claiming["spec"] = json!({"machineClassName": "only-blue"});
    hold(
        &admin,
        vec![
            row(machine("m"), blue.clone(), said, at_home.clone()),
            row(machine_pool("p"), blue, said, at_home),
            row(claiming, cold("red"), said, cold("blue")),
        ],
    )
    .await
}

#[tokio::test]
async fn a_claims_ttl_stays_within_the_platforms_bounds_and_is_never_lowered() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let ttl = |text: &str| json!({"spec": {"ttl": text}});
    hold(
        &admin,
        vec![
            row(
                claim("c"),
                ttl("8h1s"),
                &["[ttl-bounds]", "spec.ttl", "longer than the platform's maxTTL of 8h"],
                ttl("8h"),
            ),
            row(
                claim("c"),
                ttl("59s"),
                &["[ttl-bounds]", "over before", "at least 1m"],
                ttl("60s"),
            ),
        ],
    )
    .await?;
    let stored = with(claim("lasting"), &ttl("3h"));
    expect::accepted(create(&admin, &stored).await)?;
    let lowered: &[&str] = &["[ttl-never-lowered]", "the 3h that was promised", "delete the claim"];
    expect::refused(change(&admin, &stored, &ttl("2h")).await, 422, lowered)?;
    expect::refused(
        change(&admin, &stored, &json!({"spec": {"ttl": null}})).await,
        422,
        lowered,
    )?;
    expect::refused(change(&admin, &stored, &ttl("9h")).await, 422, &["[ttl-bounds]", "8h"])?;
    expect::accepted(change(&admin, &stored, &ttl("4h")).await)?;
    Ok(())
}

#[tokio::test]
async fn the_platforms_own_ttls_and_devices_are_judged() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let short = json!({"spec": {"claims": {"defaultTTL": "30s"}}});
    let refused = change(&admin, &platform(), &short).await;
    expect::refused(
        refused,
        422,
        &[
            "[ttl-bounds] platformconfig default spec.claims.defaultTTL",
            "at least 1m",
        ],
    )?;
    let twice = json!({"spec": {"permittedGPUs": [
        {"deviceName": "amd.com/rx580", "audioDeviceName": "amd.com/vega64"}, {"deviceName": "amd.com/vega64"},
    ]}});
    expect::refused(
        change(&admin, &platform(), &twice).await,
        422,
        &["[gpu-audio-apart]", "amd.com/vega64"],
    )?;
    expect::accepted(change(&admin, &platform(), &json!({"spec": {"drainDeadline": "90m"}})).await)?;
    Ok(())
}

#[tokio::test]
async fn an_image_of_a_macos_that_no_intel_mac_runs_is_refused() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let version = |text: &str| json!({"spec": {"osVersion": text}});
    let said: &[&str] = &["[image-for-intel]", "spec.osVersion", "macOS 26 is the last"];
    hold(&admin, vec![row(image("i"), version("27.0"), said, version("26.4"))]).await
}
