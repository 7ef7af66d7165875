//! `bench`: NVMe against SATA on your own storage, in a Linux guest. The specification says to measure, not to assume.
//!
//! ```text
//! per bus: blank DataVolume on the storage class ─▶ VM (disk as SATA, or made NVMe by the domain hook) ─▶ fio in the
//! guest ─▶ lines on its serial console ─▶ the launcher pod's guest-console-log ─▶ ratios
//! ```
//!
//! Invariant: what is made is removed at the end, whichever end that is; what could not be removed is named. Not yet
//! run on real nodes.

mod console;
mod fio;
mod objects;
mod render;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use dockerios_api::config::platform_config::Nvme;
use dockerios_api::{PinnedImage, PlatformConfig, names};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::access::{Access, Cluster, get, is_name};
use crate::answer::{said, wrong_words};
use crate::interrupt::{Interrupt, Interrupted};
use crate::out;
use crate::times::duration;
use fio::Figures;
use objects::Unmade;
use render::{Bus, Run};

/// Measure NVMe against SATA on a storage class, in a Linux guest
///
/// Two virtual machines one after the other, each with a blank disk of the class: once as SATA, once made NVMe by the
/// domain hook. About five minutes. What it made is removed at the end, by Ctrl-C too.
#[derive(clap::Args, Debug)]
pub(crate) struct Bench {
    /// The storage class to measure
    #[arg(long, value_name = "NAME")]
    storage_class: String,
    /// A containerDisk of a Linux cloud image with fio, or with a network to install it from; pinned by its digest
    #[arg(long, value_name = "IMAGE@sha256:…")]
    image: String,
    /// Size of the blank disks
    #[arg(long, default_value = "20Gi")]
    size: String,
    /// Seconds of each of the five measurements
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(5..=600))]
    seconds: u32,
    /// How long one of the machines may take from its creation to its last figure
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    timeout: String,
}

impl Bench {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let patience = duration("--timeout", &self.timeout)?;
        pinned(&self.image)?;
        if !is_name(&self.storage_class) {
            return Err(wrong_words(format!(
                "--storage-class {:?} is no name of a StorageClass",
                self.storage_class
            )));
        }
        let cluster = access.open().await?;
        let platform = get(&cluster.all::<PlatformConfig>(), names::PLATFORM)
            .await
            .map_err(|error| said(error, "reading the PlatformConfig"))?
            .context("there is no PlatformConfig default: the domain hook's image stands in it")?;
        let (hook, mode) = hook(&platform)?;
        self.storage(&cluster).await?;
        // heard from before anything is made
        let mut interrupt = Interrupt::listen();
        // nobody else's run is met, or removed
        let id = format!("{:06x}", Timestamp::now().subsec_nanosecond() & 0xff_ffff);
        let run = |bus| Run {
            bus,
            id: id.clone(),
            namespace: cluster.namespace.clone(),
            storage_class: self.storage_class.clone(),
            image: self.image.clone(),
            size: self.size.clone(),
            seconds: self.seconds,
            hook: hook.clone(),
        };
        let sata = self.one(&cluster, &run(Bus::Sata), patience, &mut interrupt).await?;
        let nvme = self
            .one(&cluster, &run(Bus::Nvme(mode)), patience, &mut interrupt)
            .await?;
        out::print(&fio::comparison(&sata, &nvme))?;
        out::line("ratios of one run on one storage class; run it again before you decide")?;
        Ok(ExitCode::SUCCESS)
    }

    /// One of the two runs, from nothing to nothing.
    async fn one(
        &self,
        cluster: &Cluster,
        run: &Run,
        patience: Duration,
        interrupt: &mut Interrupt,
    ) -> Result<Figures> {
        let bus = run.bus.word();
        out::note(&format!(
            "{bus}: a blank disk of {} on {}, fio for {} s",
            self.size,
            self.storage_class,
            self.seconds * fio::JOBS.len() as u32
        ));
        let during = || format!("the {bus} run");
        let measured = match objects::make(cluster, run, interrupt).await {
            Err(Unmade::Nothing(error)) => return Err(error.context(during())),
            Err(Unmade::InPart(error)) => Err(error),
            Ok(()) => tokio::select! {
                figures = console::figures(cluster, run, patience) => figures,
                () = interrupt.happened() => Err(Interrupted.into()),
            },
        };
        objects::remove(cluster, run, interrupt).await;
        measured.with_context(during)
    }

    /// Told before a VM waits for a disk that nobody will ever make. Who may not look is not held up.
    async fn storage(&self, cluster: &Cluster) -> Result<()> {
        let there = get(&cluster.all::<StorageClass>(), &self.storage_class).await;
        match there {
            Ok(None) => bail!(
                "there is no StorageClass {}; `kubectl get storageclass` lists those that are there",
                self.storage_class
            ),
            Ok(Some(_)) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            Err(error) => Err(said(error, "reading the storage class")),
        }
    }
}

/// Two runs are compared only when they ran the same bytes; a tag may move in between.
fn pinned(image: &str) -> Result<()> {
    let pinned = PinnedImage(image.to_owned());
    let digits = pinned.digest().strip_prefix("sha256:").unwrap_or_default();
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() == 64 && digits.bytes().all(hex) && !image.starts_with('@') {
        return Ok(());
    }
    Err(wrong_words(format!(
        "--image {image:?} is not pinned by digest: write IMAGE@sha256:<64 hex digits>; a tag can move between two runs \
         (skopeo inspect --format '{{{{.Digest}}}}' docker://IMAGE prints it)"
    )))
}

/// The hook's image and the mode that the present launcher needs.
fn hook(platform: &PlatformConfig) -> Result<(String, Nvme)> {
    let hook = platform.spec.domain_hook.as_ref();
    let hook = hook.context("PlatformConfig default has no spec.domainHook.image: NVMe is its work")?;
    let launcher = platform.status.as_ref().and_then(|status| status.launchers.first());
    match launcher.map(|launcher| launcher.nvme) {
        Some(Nvme::Missing) => {
            bail!("the launcher's QEMU has no nvme device: there is nothing to compare; see docs/launcher.md")
        }
        Some(mode) => Ok((hook.image.to_string(), mode)),
        None => bail!("no launcher was probed yet (status.launchers of PlatformConfig default)"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_that_may_move_is_refused_with_the_way_to_pin_it() {
        let digest = "a".repeat(64);
        assert!(pinned(&format!("quay.io/containerdisks/fedora:42@sha256:{digest}")).is_ok());
        for image in [
            "quay.io/containerdisks/fedora:42".to_owned(),
            format!("fedora@sha256:{}", &digest[1..]),
            format!("fedora@sha256:{}", digest.to_uppercase()),
            format!("@sha256:{digest}"),
            String::new(),
        ] {
            let refused = pinned(&image).unwrap_err().to_string();
            assert!(refused.contains("is not pinned by digest"), "{refused}");
            assert!(
                refused.ends_with("--format '{{.Digest}}' docker://IMAGE prints it)"),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_mode_is_the_launchers_and_without_nvme_there_is_nothing_to_compare() {
        let platform = |nvme: Option<&str>| -> PlatformConfig {
            let launchers = nvme.map(|nvme| {
                json!([{"digest": "sha256:1", "image": "x", "nvme": nvme, "smc": true,
                "nicModels": [], "probedAt": "2026-03-01T12:00:00Z"}])
            });
            serde_json::from_value(json!({
                "apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig", "metadata": {"name": "default"},
                "spec": {"domainHook": {"image": "hook@sha256:1"}},
                "status": {"launchers": launchers.unwrap_or(json!([]))},
            }))
            .unwrap()
        };
        assert_eq!(hook(&platform(Some("Override"))).unwrap().1, Nvme::Override);
        let missing = hook(&platform(Some("Missing"))).unwrap_err().to_string();
        assert!(
            missing.contains("has no nvme device") && missing.contains("docs/launcher.md"),
            "{missing}"
        );
        let unprobed = hook(&platform(None)).unwrap_err().to_string();
        assert!(unprobed.starts_with("no launcher was probed yet"), "{unprobed}");
    }
}
