//! `screenshot`: the kept last screen of a machine that failed, else the screen as it is.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use dockerios_api::{MacOSMachine, names};
use futures::{AsyncRead, AsyncReadExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::access::{Access, Cluster, found};
use crate::answer::{said, wrong_words};
use crate::out;
use crate::target::Target;
use crate::times::duration;

/// The key of the picture in the ConfigMap.
const PICTURE: &str = "screen.png";
/// The first bytes of every PNG, and its last chunk, IEND (PNG specification, 5.2 and 11.2.5).
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const END: &[u8] = b"\0\0\0\0IEND\xaeB`\x82";
/// A screen of 5120 x 2880 that compresses badly has less.
const LIMIT: u64 = 32 << 20;

/// Save a machine's screen: the last one of a failed machine, else the present one
#[derive(clap::Args, Debug)]
pub(crate) struct Screenshot {
    /// The machine
    #[arg(value_name = "macs/NAME")]
    machine: String,
    /// Where to; by default NAME.png here, - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long)]
    force: bool,
    /// How long to wait for the picture
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: String,
}

impl Screenshot {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let name = Target::machine(&self.machine).map_err(wrong_words)?;
        let patience = duration("--timeout", &self.timeout)?;
        let to = match &self.output {
            Some(file) if file.as_os_str() == "-" => None,
            Some(file) => Some(file.clone()),
            None => Some(PathBuf::from(format!("{name}.png"))),
        };
        match &to {
            // looked at before anything is asked, and again when it is written
            Some(file) if !self.force && file.symlink_metadata().is_ok() => return Err(wrong_words(taken(file))),
            None if std::io::stdout().is_terminal() => {
                return Err(wrong_words(
                    "a picture is nothing for a terminal; send it on, or give -o FILE",
                ));
            }
            _ => {}
        }
        let cluster = access.open().await?;
        let machines = cluster.here::<MacOSMachine>();
        let machine = found(&machines, "MacOSMachine", "macs", Some(&cluster.namespace), &name).await?;
        let (picture, what) = tokio::time::timeout(patience, picture(&cluster, &machine))
            .await
            .map_err(|_| anyhow!("no picture of {name} within {}; --timeout waits longer", self.timeout))??;
        if let Some(why) = no_picture(&picture) {
            bail!("what was answered for the screen of {name} {why}; nothing was written");
        }
        let about = |place: &str| {
            format!(
                "{what} of {}/{name}: {place} ({} bytes)",
                cluster.namespace,
                picture.len()
            )
        };
        match &to {
            Some(file) => {
                write(file, &picture, self.force)?;
                out::line(&about(&file.display().to_string()))?;
            }
            None => {
                out::bytes(&picture)?;
                out::note(&about("standard output"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn taken(file: &Path) -> String {
    format!("{} is there already; give -o FILE, or --force", file.display())
}

/// Why these bytes are not written as a picture.
fn no_picture(bytes: &[u8]) -> Option<String> {
    if !bytes.starts_with(PNG) {
        Some(format!("is no PNG ({} bytes)", bytes.len()))
    } else if !bytes.ends_with(END) {
        Some(format!("is cut short: a PNG without its end ({} bytes)", bytes.len()))
    } else {
        None
    }
}

/// Writes a whole file or none.
fn write(file: &Path, picture: &[u8], force: bool) -> Result<()> {
    let mut open = File::options();
    if force {
        open.create(true).truncate(true);
    } else {
        // whoever made it since is not overwritten either
        open.create_new(true);
    }
    let mut opened = match open.write(true).open(file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!("{}", taken(file)),
        other => other.with_context(|| format!("writing {}", file.display()))?,
    };
    opened.write_all(picture).with_context(|| {
        // half a picture is worth nothing; a device or a link that was named with --force is not ours to remove
        let ours = file.symlink_metadata().is_ok_and(|there| there.is_file());
        let removed = ours && std::fs::remove_file(file).is_ok();
        let left = if removed { "" } else { "; half of it is left" };
        format!("writing {}{left}", file.display())
    })
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
    let stream = cluster
        .client
        .request_stream(request)
        .await
        .map_err(|error| said(error, "taking the screen (is the machine running?)"))?;
    bounded(stream).await
}

/// All of it, unless it is more than a screen can be.
async fn bounded(stream: impl AsyncRead + Unpin) -> Result<Vec<u8>> {
    let mut picture = Vec::new();
    let read = stream.take(LIMIT + 1).read_to_end(&mut picture).await;
    let read = read.context("the picture was cut off on its way")?;
    if read as u64 > LIMIT {
        bail!(
            "what was answered for the screen is larger than {} MiB: that is no screen",
            LIMIT >> 20
        );
    }
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_png_is_written() {
        let whole = [PNG, b"chunks", END].concat();
        assert_eq!(no_picture(&whole), None);
        let text = no_picture(b"<html>").unwrap();
        assert_eq!(text, "is no PNG (6 bytes)");
        let cut = no_picture(&whole[..whole.len() - 1]).unwrap();
        assert!(cut.starts_with("is cut short"), "{cut}");
        assert!(no_picture(b"").is_some());
    }

    #[test]
    fn a_file_that_is_there_is_overwritten_only_when_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.png");
        write(&file, b"one", false).unwrap();
        let refused = write(&file, b"two", false).unwrap_err().to_string();
        assert!(
            refused.ends_with("m.png is there already; give -o FILE, or --force"),
            "{refused}"
        );
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
        // a link that leads nowhere is somebody's too
        let link = dir.path().join("link.png");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(write(&link, b"two", false).is_err());
        // what a device refuses costs nobody the device, nor the link to it
        let full = dir.path().join("full");
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        assert!(write(&full, b"x", true).is_err());
        assert!(full.symlink_metadata().is_ok(), "the link is still there");
        write(&file, b"x", true).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"x");
    }

    #[tokio::test]
    async fn what_is_larger_than_a_screen_can_be_is_not_read_to_its_end() {
        let endless = futures::io::repeat(0);
        let refused = bounded(endless).await.unwrap_err().to_string();
        assert!(refused.contains("larger than 32 MiB"), "{refused}");
        assert_eq!(bounded(&b"picture"[..]).await.unwrap(), b"picture");
    }
}
