//! Identities that are brought along, on the real API server.

use anyhow::{Result, ensure};
use dockerios_api::MachineIdentity;
use dockerios_testkit::{ControlPlane, Options};
use kube::Api;
use kube::api::ListParams;

use crate::{definitions, plugin, run};

const ONE: &str = "apiVersion: identity.dockerios.io/v1alpha1
kind: MachineIdentity
metadata: {name: c02xg0fdh7jy}
spec: {poolName: own, model: 'iMacPro1,1', serial: C02XG0FDH7JY, mlb: C02839303QXH69FJA, rom: '0A1B2C3D4E5F',
  systemUUID: 5B4E0A6E-4E4C-4E5B-8A5C-0B7D0B5B0C11, macAddress: '0a:1b:2c:3d:4e:5f'}
";

#[tokio::test]
async fn a_field_that_nobody_knows_is_refused_by_its_name_and_the_identity_not_made_without_it() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let client = plane.client().await?;
    definitions(&client).await?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("own.yaml");
    let import = async |text: &str| {
        std::fs::write(&file, text)?;
        let words = ["identities", "import", "-f", &file.to_string_lossy()];
        run(plugin(Some(plane.kubeconfig()), &words)).await
    };
    let api: Api<MachineIdentity> = Api::all(client);
    for (from, to, field) in [
        ("{poolName: own,", "{poolName: own, romm: x,", "spec.romm"),
        ("metadata: {", "metadata: {lables: {}, ", "metadata.lables"),
        ("spec: {", "sepc: {}\nspec: {", "sepc"),
    ] {
        let said = import(&ONE.replace(from, to)).await?;
        said.expect(
            1,
            &[
                "identity c02xg0fdh7jy: ",
                &format!("unknown field \"{field}\""),
                "1 of 1 identities were refused",
            ],
        )?;
        let there = api.list(&ListParams::default()).await?.items;
        ensure!(there.is_empty(), "made all the same: {there:?}");
    }
    import(ONE).await?.expect(0, &["identity c02xg0fdh7jy created"])?;
    ensure!(api.get("c02xg0fdh7jy").await?.spec.pool_name.to_string() == "own");
    Ok(())
}
