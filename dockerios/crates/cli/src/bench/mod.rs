//! `bench`: NVMe against SATA on your own storage, in a Linux guest. The specification says to measure, not to assume.
//!
//! ```text
//! per bus: blank DataVolume on the storage class ─▶ VM (disk as SATA, or made NVMe by the domain hook) ─▶ fio in the
//! guest ─▶ lines on its serial console ─▶ the launcher pod's guest-console-log ─▶ ratios
//! ```
//!
//! Not yet run on real nodes. What is made carries one label and is removed at the end, by Ctrl-C too.

mod fio;
mod render;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use dockerios_api::config::platform_config::Nvme;
use dockerios_api::{PlatformConfig, names};
use dockerios_kubevirt::{DataVolume, VirtualMachine};
use futures::{AsyncBufReadExt as _, TryStreamExt as _, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::discovery::ApiResource;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};

use crate::access::{Access, Cluster, interrupted, plain, said};
use fio::{Figures, Line};
use render::{Bus, Run};

/// Measure NVMe against SATA on a storage class, in a Linux guest
///
/// Two virtual machines one after the other, each with a blank disk of the class: once as SATA, once made NVMe by the
/// domain hook. About five minutes. The image is a containerDisk of a Linux cloud image with fio, or with a network to
/// install it from.
#[derive(clap::Args, Debug)]
pub(crate) struct Bench {
    /// The storage class to measure
    #[arg(long, value_name = "NAME")]
    storage_class: String,
    /// A containerDisk with a Linux cloud image
    #[arg(long, value_name = "IMAGE")]
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
        let span: dockerios_api::Span = self
            .timeout
            .parse()
            .map_err(|why| anyhow!("--timeout {:?}: {why}", self.timeout))?;
        let cluster = access.open().await?;
        let platform = cluster
            .all::<PlatformConfig>()
            .get_opt(names::PLATFORM)
            .await
            .map_err(|error| said(error, "reading the PlatformConfig"))?
            .context("there is no PlatformConfig default: the domain hook's image stands in it")?;
        let (hook, mode) = hook(&platform)?;
        let mut measured = Vec::new();
        // nobody else's run is met, or removed
        let id = format!("{:06x}", Timestamp::now().subsec_nanosecond() & 0xff_ffff);
        for bus in [Bus::Sata, Bus::Nvme(mode)] {
            let run = Run {
                bus,
                id: id.clone(),
                namespace: cluster.namespace.clone(),
                storage_class: self.storage_class.clone(),
                image: self.image.clone(),
                size: self.size.clone(),
                seconds: self.seconds,
                hook: hook.clone(),
            };
            eprintln!(
                "{}: a blank disk of {} on {}, fio for {} s",
                bus.word(),
                self.size,
                self.storage_class,
                self.seconds * 5
            );
            // made first: what bears the run's name from here on is this run's
            cluster
                .here::<ConfigMap>()
                .create(&PostParams::default(), &run.key()?)
                .await
                .map_err(|error| said(error, "making the ConfigMap"))?;
            let figures = tokio::select! {
                figures = measure(&cluster, &run) => figures,
                () = tokio::time::sleep(Duration::from_secs(span.seconds())) => Err(anyhow!(
                    "{}: no last figure within {}; kubectl get vm,vmi,dv -n {} -l {}",
                    bus.word(), self.timeout, cluster.namespace, render::LABEL
                )),
                () = interrupted() => Err(anyhow!("interrupted")),
            };
            remove(&cluster, &run).await;
            measured.push(figures.with_context(|| bus.word().to_owned())?);
        }
        let [sata, nvme] = &measured[..] else {
            bail!("two measurements were expected, {} were made", measured.len());
        };
        print!("{}", fio::comparison(sata, nvme));
        println!("ratios of one run on one storage class; run it again before you decide");
        Ok(ExitCode::SUCCESS)
    }
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

async fn measure(cluster: &Cluster, run: &Run) -> Result<Figures> {
    let post = PostParams::default();
    let here = Some(&*cluster.namespace);
    cluster
        .untyped(here, &ApiResource::erase::<DataVolume>(&()))
        .create(&post, &run.disk()?)
        .await
        .map_err(|error| said(error, "making the disk"))?;
    cluster
        .untyped(here, &ApiResource::erase::<VirtualMachine>(&()))
        .create(&post, &run.machine()?)
        .await
        .map_err(|error| said(error, "making the VM"))?;
    let pod = launcher(cluster, run).await?;
    let follow = LogParams {
        container: Some(render::CONSOLE_CONTAINER.to_owned()),
        follow: true,
        ..LogParams::default()
    };
    let pods: Api<Pod> = cluster.here();
    let log = pods
        .log_stream(&pod, &follow)
        .await
        .map_err(|error| said(error, "following the guest's console"))?;
    let mut lines = log.lines();
    let mut figures = Figures::default();
    while let Some(line) = lines.try_next().await? {
        match fio::read(&line).with_context(|| format!("the guest's console said {line:?}"))? {
            Some(Line::Figure(name, figure)) => {
                eprintln!("  {name}: {}", figure.words());
                figures.insert(name, figure);
            }
            Some(Line::Failed(why)) => bail!("the guest: {}", plain(&why)),
            Some(Line::Done) => return Ok(figures),
            None => {}
        }
    }
    bail!("the guest's console ended before its last figure")
}

/// The launcher pod, once the console's container runs.
async fn launcher(cluster: &Cluster, run: &Run) -> Result<String> {
    let only = watcher::Config::default().labels(&format!("vm.kubevirt.io/name={}", run.name()));
    let changes = watcher(cluster.here::<Pod>(), only).default_backoff().touched_objects();
    pin_mut!(changes);
    while let Some(pod) = changes.try_next().await? {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let runs = statuses.into_iter().flatten().any(|container| {
            let state = container.state.as_ref();
            container.name == render::CONSOLE_CONTAINER && state.is_some_and(|state| state.running.is_some())
        });
        if runs {
            return Ok(pod.name_any());
        }
    }
    bail!("the watch of the launcher pod ended")
}

/// Removes what a run made; what cannot be removed is named.
async fn remove(cluster: &Cluster, run: &Run) {
    let labels = ListParams::default().labels(&format!("{}={}", render::LABEL, run.name()));
    let background = DeleteParams::background();
    let failed = [
        cluster
            .here::<VirtualMachine>()
            .delete_collection(&background, &labels)
            .await
            .err(),
        cluster
            .here::<DataVolume>()
            .delete_collection(&background, &labels)
            .await
            .err(),
        cluster
            .here::<ConfigMap>()
            .delete_collection(&background, &labels)
            .await
            .err(),
    ];
    for error in failed.into_iter().flatten() {
        eprintln!(
            "{:#}",
            said(
                error,
                &format!(
                    "removing what {} made (kubectl delete vm,dv,cm -l {}={0})",
                    run.name(),
                    render::LABEL
                )
            )
        );
    }
}
