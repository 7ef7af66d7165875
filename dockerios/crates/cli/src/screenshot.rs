//! `screenshot`: the kept last screen of a machine that failed, else the screen as it is.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use dockerios_api::{MacOSMachine, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::access::{Access, Cluster, found, said};
use crate::target::Target;

/// The key of the picture in the ConfigMap.
const PICTURE: &str = "screen.png";
/// The first bytes of every PNG (RFC 2083, 3.1).
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Save a machine's screen: the last one of a failed machine, else the present one
#[derive(clap::Args, Debug)]
pub(crate) struct Screenshot {
    /// The machine
    #[arg(value_name = "macs/NAME")]
    machine: String,
    /// Where to; by default NAME.png here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long)]
    force: bool,
}

impl Screenshot {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let name = Target::machine(&self.machine).map_err(|why| anyhow!(why))?;
        let file = self
            .output
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("{name}.png")));
        if file.exists() && !self.force {
            bail!("{} is there already; give -o FILE, or --force", file.display());
        }
        let cluster = access.open().await?;
        let machines = cluster.here::<MacOSMachine>();
        let machine = found(&machines, "MacOSMachine", "macs", Some(&cluster.namespace), &name).await?;
        let (picture, what) = picture(&cluster, &machine).await?;
        if !picture.starts_with(PNG) {
            bail!(
                "what was answered for the screen of {name} is no PNG ({} bytes)",
                picture.len()
            );
        }
        std::fs::write(&file, &picture).with_context(|| format!("writing {}", file.display()))?;
        println!(
            "{what} of {}/{name}: {} ({} bytes)",
            cluster.namespace,
            file.display(),
            picture.len()
        );
        Ok(ExitCode::SUCCESS)
    }
}

async fn picture(cluster: &Cluster, machine: &MacOSMachine) -> Result<(Vec<u8>, String)> {
    let failure = machine.status.as_ref().and_then(|status| status.failure.clone());
    let Some(failure) = failure else {
        return Ok((live(cluster, machine).await?, "screen".to_owned()));
    };
    let Some(kept) = failure.screen else {
        bail!(
            "{} failed ({}) before it had a screen that could be kept",
            machine.name_any(),
            failure.reason
        );
    };
    let map = found(
        &cluster.here::<ConfigMap>(),
        "ConfigMap",
        "configmaps",
        Some(&cluster.namespace),
        &kept,
    )
    .await?;
    let picture = map.binary_data.and_then(|mut data| data.remove(PICTURE));
    let picture = picture.with_context(|| format!("ConfigMap {kept} has no {PICTURE}"))?;
    Ok((picture.0, format!("last screen ({})", failure.reason)))
}

/// KubeVirt's own subresource; whoever may not use it is told so by the API server.
async fn live(cluster: &Cluster, machine: &MacOSMachine) -> Result<Vec<u8>> {
    let uid = machine.uid().unwrap_or_default();
    let instance = names::of_machine(&machine.name_any(), &uid, "vm");
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{instance}/vnc/screenshot?moveCursor=false",
        cluster.namespace
    );
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, "image/png")
        .body(Vec::new())?;
    let mut stream = cluster
        .client
        .request_stream(request)
        .await
        .map_err(|error| said(error, "taking the screen (is the machine running?)"))?;
    let mut picture = Vec::new();
    futures::AsyncReadExt::read_to_end(&mut stream, &mut picture).await?;
    Ok(picture)
}
