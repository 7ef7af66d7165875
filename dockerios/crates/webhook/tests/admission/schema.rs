//! What schema and CEL hold, each with its reason, on the generated definitions.

use anyhow::Result;
use dockerios_testkit::expect;
use serde_json::{Value, json};

use crate::cluster::{
    DIGEST, Row, change, claim, class, cluster, create, dry, hold, identity, image, machine, machine_pool, platform,
    pool, with,
};

fn row(base: Value, bad: Value, said: &'static [&'static str], good: Value) -> Row {
    Row { base, bad, said, good }
}

#[tokio::test]
async fn each_rule_of_the_schemas_refuses_and_admits_its_neighbour() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let spec = |spec: Value| json!({"spec": spec});
    let none = json!({});
    let boot = |image: &str| spec(json!({"identity": {"shared": {"bootDiskImage": image}}}));
    let pinned = format!("ghcr.io/example/boot:v1@{DIGEST}");
    let tagged_url = json!({"source": {"registry": {"url": "docker://registry.example.com/golden/sonoma:latest"}}});
    let both = json!({"source": {"pvc": {"namespace": "a", "name": "b"}}});
    let mut direct = claim("c");
    direct["spec"] = json!({"machineClassName": "open"});
    hold(
        &admin,
        vec![
            row(
                class("c"),
                spec(json!({"cpu": {"cores": 6}})),
                &["[cpu-cores-power-of-two]", "choose"],
                spec(json!({"cpu": {"cores": 8}})),
            ),
            row(
                class("c"),
                spec(json!({"cpu": {"isolateEmulation": true}})),
                &["[cpu-isolate-needs-dedicated]"],
                spec(json!({"cpu": {"isolateEmulation": true, "dedicated": true}})),
            ),
            row(
                class("c"),
                spec(json!({"cpu": {"numa": "Passthrough"}, "memory": {"hugepages": "1Gi"}})),
                &["[cpu-numa-needs-dedicated]"],
                spec(json!({"cpu": {"numa": "Passthrough", "dedicated": true}, "memory": {"hugepages": "1Gi"}})),
            ),
            row(
                class("c"),
                boot("ghcr.io/example/boot:latest"),
                &["[image-pinned]", "pinned by digest", "@sha256:"],
                boot(&pinned),
            ),
            row(
                class("c"),
                spec(json!({"identity": {"perMachine": {"poolName": "imacpro"}}})),
                &["[identity-union]"],
                none.clone(),
            ),
            row(
                class("c"),
                spec(json!({"terminationGracePeriod": "179s"})),
                &["[class-grace]", "180s"],
                spec(json!({"terminationGracePeriod": "180s"})),
            ),
            row(
                class("c"),
                spec(json!({"terminationGracePeriod": "1d"})),
                &["spec.terminationGracePeriod"],
                spec(json!({"terminationGracePeriod": "24h"})),
            ),
            row(
                class("c"),
                spec(json!({"cloneTimeout": "29s"})),
                &["[class-clone]", "30s"],
                spec(json!({"cloneTimeout": "30s"})),
            ),
            row(
                class("c"),
                spec(json!({"readinessTimeout": "0s"})),
                &["[class-readiness]", "60s"],
                spec(json!({"readinessTimeout": "1m"})),
            ),
            row(
                class("c"),
                spec(json!({"placement": {"tolerations": [{"effect": "NoSchedule"}]}})),
                &["[toleration-key]", "set operator: Exists"],
                spec(json!({"placement": {"tolerations": [{"operator": "Exists"}, {"key": "example.com/macos"}]}})),
            ),
            row(
                class("c"),
                spec(json!({"placement": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}})),
                &["[toleration-value]", "leave value out"],
                spec(json!({"placement": {"tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]}})),
            ),
            row(
                class("c"),
                spec(json!({"network": {"model": "vmxnet3"}})),
                &["spec.network.model", "e1000"],
                spec(json!({"network": {"model": "e1000"}})),
            ),
            row(
                class("c"),
                spec(json!({"systemDisk": {"bus": "virtio"}})),
                &["spec.systemDisk.bus", "nvme", "sata"],
                spec(json!({"systemDisk": {"bus": "sata"}})),
            ),
            row(
                image("i"),
                spec(tagged_url),
                &["[image-pinned]", "docker://"],
                none.clone(),
            ),
            row(image("i"), spec(both), &["[image-one-source]"], none.clone()),
            row(
                pool("p"),
                spec(json!({"minAvailable": 6})),
                &["[pool-min-within-max]", "spec.maxSize"],
                spec(json!({"minAvailable": 5})),
            ),
            row(
                identity(1),
                json!({"metadata": {"name": "another"}}),
                &["[identity-named-by-serial]"],
                none.clone(),
            ),
            row(
                machine_pool("p"),
                spec(json!({"replicas": 3})),
                &["[pool-replicas-within-max]"],
                spec(json!({"replicas": 2})),
            ),
            row(
                claim("c"),
                spec(json!({"machineClassName": "open"})),
                &["[claim-pool-or-class]"],
                none.clone(),
            ),
            row(
                direct,
                spec(json!({"machineClassName": null})),
                &["[claim-pool-or-class]"],
                none,
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn there_is_one_platform_and_its_defaults_fit_its_maximum() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let second = with(platform(), &json!({"metadata": {"name": "second"}}));
    expect::refused(
        dry(&admin, &second).await,
        422,
        &["[platform-singleton]", "named default"],
    )?;
    let long = json!({"spec": {"claims": {"defaultTTL": "9h"}}});
    expect::refused(
        change(&admin, &platform(), &long).await,
        422,
        &["[ttl-default-within-max]"],
    )?;
    let tag = json!({"spec": {"domainHook": {"image": "ghcr.io/example/hook:latest"}}});
    expect::refused(change(&admin, &platform(), &tag).await, 422, &["[image-pinned]"])?;
    Ok(())
}

#[tokio::test]
async fn what_is_immutable_stays() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let spec = |spec: Value| json!({"spec": spec});
    let table = [
        (
            identity(40),
            spec(json!({"systemUUID": "00000000-0000-4000-8000-000000000001"})),
            "[identity-immutable]",
        ),
        (
            pool("kept"),
            spec(json!({"model": "MacPro7,1"})),
            "[pool-model-immutable]",
        ),
        (
            machine("kept"),
            spec(json!({"machineClassName": "only-blue"})),
            "[machine-class-immutable]",
        ),
        (
            claim("kept"),
            spec(json!({"poolName": "other"})),
            "[claim-target-immutable]",
        ),
    ];
    for (base, bad, said) in table {
        expect::accepted(create(&admin, &base).await)?;
        expect::refused(change(&admin, &base, &bad).await, 422, &[said])?;
    }
    Ok(())
}

/// Rows of the hand-over's table of durations that are about form; its minimum of a day is another product's.
#[tokio::test]
async fn durations_have_one_form_in_the_schema_too() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let ttl = |text: &str| with(claim("c"), &json!({"spec": {"ttl": text}}));
    for good in ["2h", "7200s", "120m", "2h0m0s", "1h30m", "1h60m"] {
        expect::accepted(dry(&admin, &ttl(good)).await)?;
    }
    let bad = [
        "1d",
        "-2h",
        "0",
        "",
        "24",
        "P1D",
        "PT2H",
        "2H",
        " 2h",
        "2h ",
        "2 h",
        "\u{ff12}h",
        "1.0e2h",
        "0x18h",
        "2h-1s",
        "NaNh",
        "infh",
        "2562048h",
        "99999999999999999999h",
        "7200000ms",
        "2h\n",
        "1.5h",
        "1m1h",
        "+2h",
        "1440m0.5s",
    ];
    for bad in bad {
        expect::refused(dry(&admin, &ttl(bad)).await, 422, &["spec.ttl"])?;
    }
    Ok(())
}
