//! The samples as they are shipped: admitted in their order, the tenant's part with the team role alone.

use anyhow::{Context as _, Result, ensure};
use dockerios_testkit::expect;
use kube::api::{Patch, PatchParams};
use serde_json::Value;

use crate::cluster::{api, cluster, create, deploy, object};

/// The documents of every sample, by file name.
fn samples() -> Result<Vec<(String, Vec<Value>)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(deploy("samples"))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let documents = serde_yaml::Deserializer::from_str(&text).map(serde::Deserialize::deserialize);
        let documents = documents
            .collect::<Result<Vec<Value>, _>>()
            .with_context(|| path.display().to_string())?;
        files.push((
            path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            documents,
        ));
    }
    files.sort_by(|(a, _): &(String, Vec<Value>), (b, _)| a.cmp(b));
    Ok(files)
}

#[tokio::test]
async fn every_sample_is_admitted_and_tenants_need_the_team_role_alone() -> Result<()> {
    let plane = cluster().await?;
    let admin = plane.client().await?;
    let files = samples()?;
    ensure!(files.len() >= 10, "{} samples", files.len());
    // the namespace and its role come first
    for document in files
        .iter()
        .filter(|(file, _)| file.starts_with("08"))
        .flat_map(|(_, documents)| documents)
    {
        expect::accepted(create(&admin, document).await)?;
    }
    let team = plane.client_as("ann", &["team-checkout"]).await?;
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::apply("samples").force()
    };
    for (file, documents) in &files {
        for document in documents {
            let tenants = ["MacOSMachine", "MacOSMachinePool", "MacOSMachineClaim"];
            let theirs = document["kind"].as_str().is_some_and(|kind| tenants.contains(&kind));
            let client = if theirs { &team } else { &admin };
            let name = document["metadata"]["name"].as_str().context("a name")?;
            let applied = api(client, document)
                .patch(name, &dry, &Patch::Apply(object(document)))
                .await;
            expect::accepted(applied).with_context(|| file.clone())?;
        }
    }
    Ok(())
}
