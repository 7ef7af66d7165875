//! `identities`: lists, releases and imports.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use dockerios_api::MachineIdentity;
use dockerios_api::identity::machine_identity::IdentityPhase;
use dockerios_api::names::RELEASE;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::access::{Access, found, is_name};
use crate::answer::{CannotBegin, said, wrong_words};
use crate::out::{self, Output};
use crate::table::table;

/// List identities, give a quarantined one out again, or import some that you own
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Identities {
    /// Of this IdentityPool only
    pool: Option<String>,
    /// How they are printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Give a quarantined identity out again
    ///
    /// Not safe when somebody has signed in to Apple's services on it: the next machine is then the same machine to
    /// Apple.
    Release {
        /// Its name: the serial in lower case
        name: String,
    },
    /// Create identities that you own from a YAML file of MachineIdentity objects
    Import {
        /// The file
        #[arg(short, long, value_name = "FILE")]
        filename: PathBuf,
    },
}

impl Identities {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let cluster = access.open().await?;
        let api: Api<MachineIdentity> = cluster.all();
        match &self.verb {
            None => list(&api, self.pool.as_deref(), self.output).await,
            Some(Verb::Release { name }) => release(&api, name).await,
            Some(Verb::Import { filename }) => import(&cluster.client, filename).await,
        }
    }
}

async fn list(api: &Api<MachineIdentity>, pool: Option<&str>, output: Output) -> Result<ExitCode> {
    let all = api
        .list(&ListParams::default())
        .await
        .map_err(|error| said(error, "listing identities"))?;
    let mine: Vec<_> = all
        .items
        .into_iter()
        .filter(|identity| pool.is_none_or(|pool| *identity.spec.pool_name == *pool))
        .collect();
    if let Some(text) = out::objects(&mine, output)? {
        out::program(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if mine.is_empty() {
        let of = pool.map(|pool| format!(" of pool {pool}")).unwrap_or_default();
        out::line(&format!(
            "there is no identity{of}; `kubectl get idpool` lists the pools"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    out::print(&rows(&mine))?;
    Ok(ExitCode::SUCCESS)
}

fn rows(identities: &[MachineIdentity]) -> String {
    let rows = identities.iter().map(|identity| {
        let status = identity.status.clone().unwrap_or_default();
        let phase = status
            .phase
            .map_or_else(|| "NotSeen".to_owned(), |phase| format!("{phase:?}"));
        let machine = status
            .claim_ref
            .map(|machine| format!("{}/{}", machine.namespace, machine.name))
            .unwrap_or_default();
        let bootdisk = status.boot_disk.map(|disk| disk.pvc.to_string()).unwrap_or_default();
        let spec = &identity.spec;
        vec![
            identity.name_any(),
            spec.pool_name.to_string(),
            spec.model.clone(),
            phase,
            machine,
            bootdisk,
        ]
    });
    table(
        &["IDENTITY", "POOL", "MODEL", "PHASE", "MACHINE", "BOOTDISK"],
        &rows.collect::<Vec<_>>(),
    )
}

async fn release(api: &Api<MachineIdentity>, name: &str) -> Result<ExitCode> {
    let name = name.to_ascii_lowercase();
    if !is_name(&name) {
        return Err(wrong_words(format!("{name:?} is no name of an identity")));
    }
    let identity = found(api, "MachineIdentity", "machineidentities", None, &name).await?;
    if let Some(why) = not_releasable(&identity) {
        bail!("{why}");
    }
    // on this very object, as it was judged
    let patch = json!({"metadata": {"resourceVersion": identity.resource_version(), "annotations": {RELEASE: "true"}}});
    api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(|error| said(error, &format!("releasing {name}")))?;
    out::line(&format!(
        "identity {name} will be given out again; the operator takes the annotation off when it is Available"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn not_releasable(identity: &MachineIdentity) -> Option<String> {
    let phase = identity.status.as_ref().and_then(|status| status.phase);
    (phase != Some(IdentityPhase::Quarantined)).then(|| {
        let now = phase.map_or_else(|| "not looked at yet".to_owned(), |phase| format!("{phase:?}"));
        format!(
            "identity {} is {now}; only a Quarantined one is released",
            identity.name_any()
        )
    })
}

async fn import(client: &Client, file: &PathBuf) -> Result<ExitCode> {
    let wrong = |why: String| wrong_words(format!("--filename {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let identities = read(&text).map_err(|error| wrong(format!("{error:#}")))?;
    let (mut refused, all) = (0, identities.len());
    for identity in &identities {
        match create(client, &identity.whole).await {
            Ok(()) => out::line(&format!("identity {} created", identity.name))?,
            Err(error) => {
                let why = said(error, &format!("identity {}", identity.name));
                // nobody answers: the next one would not be answered either
                if why.is::<CannotBegin>() {
                    return Err(why);
                }
                refused += 1;
                out::note(&format!("{why:#}"));
            }
        }
    }
    if refused > 0 {
        let others = if refused < all { "; the others are there" } else { "" };
        bail!("{refused} of {all} identities were refused{others}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates it as it was written, for the server to judge: a field that it does not know is refused, as by kubectl, and
/// not dropped. kube has no parameter for that.
async fn create(client: &Client, whole: &Value) -> Result<(), kube::Error> {
    let path = format!("{}?fieldValidation=Strict", MachineIdentity::url_path(&(), None));
    let body = serde_json::to_vec(whole).map_err(kube::Error::SerdeError)?;
    let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
    let request = request.body(body).map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await.map(drop)
}

/// An identity of a file.
#[derive(Debug)]
struct Written {
    name: String,
    /// All that was written, fields too that nobody knows.
    whole: Value,
}

/// The objects of a file with one or more YAML documents.
fn read(text: &str) -> Result<Vec<Written>> {
    let mut identities = Vec::new();
    for (place, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        // by way of YAML's own value: JSON's takes the last of two fields of one name
        let value = serde_yaml::Value::deserialize(document).with_context(|| format!("document {}", place + 1))?;
        let value = serde_json::to_value(value).with_context(|| format!("document {}", place + 1))?;
        if value.is_null() {
            continue;
        }
        if value["kind"] != "MachineIdentity" {
            bail!(
                "document {}: kind is {}, only MachineIdentity is imported",
                place + 1,
                value["kind"]
            );
        }
        let wanted = MachineIdentity::api_version(&());
        if value["apiVersion"] != *wanted {
            bail!(
                "document {}: apiVersion is {}, only {wanted} is imported",
                place + 1,
                value["apiVersion"]
            );
        }
        let identity = MachineIdentity::deserialize(&value).with_context(|| format!("document {}", place + 1))?;
        identities.push(Written {
            name: identity.name_any(),
            whole: value,
        });
    }
    if identities.is_empty() {
        bail!("there is no MachineIdentity in it");
    }
    Ok(identities)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "apiVersion: identity.dockerios.io/v1alpha1\nkind: MachineIdentity\nmetadata: {name: c02xg0fdh7jy}\n\
                       spec: {poolName: own, model: 'iMacPro1,1', serial: C02XG0FDH7JY, mlb: C02839303QXH69FJA, rom: \
                       '0A1B2C3D4E5F', systemUUID: 5B4E0A6E-4E4C-4E5B-8A5C-0B7D0B5B0C11, macAddress: '0a:1b:2c:3d:4e:5f'}\n";

    #[test]
    fn a_file_holds_one_or_more_identities_and_nothing_else() {
        assert_eq!(
            read(&format!("{ONE}---\n{}", ONE.replace("c02xg0fdh7jy", "b")))
                .unwrap()
                .len(),
            2
        );
        for (text, why) in [
            ("", "no MachineIdentity"),
            ("kind: Secret\n", "document 1: kind is \"Secret\""),
            (&format!("{ONE}---\nkind: MachineIdentity\n"), "document 2"),
            (
                &ONE.replace("identity.dockerios.io/v1alpha1", "example.com/v1"),
                "document 1: apiVersion is \"example.com/v1\", only identity.dockerios.io/v1alpha1",
            ),
            ("{", "document 1"),
            (
                &ONE.replace("{poolName: own,", "{poolName: own, poolName: other,"),
                "duplicate entry with key \"poolName\"",
            ),
        ] {
            let refused = format!("{:#}", read(text).unwrap_err());
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn only_a_quarantined_identity_is_released() {
        let mut identity: MachineIdentity = serde_yaml::from_str(ONE).unwrap();
        assert!(not_releasable(&identity).unwrap().contains("is not looked at yet"));
        let mut status = dockerios_api::MachineIdentityStatus {
            phase: Some(IdentityPhase::Allocated),
            ..Default::default()
        };
        identity.status = Some(status.clone());
        assert!(
            not_releasable(&identity)
                .unwrap()
                .contains("is Allocated; only a Quarantined one")
        );
        status.phase = Some(IdentityPhase::Quarantined);
        identity.status = Some(status);
        assert_eq!(not_releasable(&identity), None);
    }
}
