//! `VZMacOSInstaller`: from a restore image to a bundle.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use block2::RcBlock;
use macrack_wire::classify::MACRACK_DOMAIN;
use macrack_wire::{BundleDir, BundleMachine, GoldenBundle, MacAddress, VmError};
use objc2::AnyThread;
use objc2::rc::autoreleasepool;
use objc2_foundation::NSError;
use objc2_virtualization::{
    VZErrorCode, VZMacAuxiliaryStorage, VZMacAuxiliaryStorageInitializationOptions, VZMacOSInstaller,
    VZMacOSRestoreImage,
};
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::build::{file_url, hardware_model};
use super::error::{caught, gone, tried, vm_error, vm_error_of, vz};
use super::machine::{Machine, completion};
use super::queue::Answer;
use super::{host_limits, new_machine_identifier};
use crate::configuration::{Installation, encode, installation};
use crate::event::Event;
use crate::files;
use crate::install::{Progress, Request, Requirements, RestoreImage, SCREEN, percent};

/// How long the machine may take to go down once macOS is installed: the completion comes while it still does.
const GOES_DOWN: Duration = Duration::from_secs(120);
/// Between two looks at how far the installation is; nothing depends on them.
const LOOK: Duration = Duration::from_secs(1);

/// Installs macOS into a new bundle and tells how far it is. `random` makes the network address.
///
/// # Errors
/// As [`Request::check`], what the framework says, or what the operating system does. The folder is then left without
/// `bundle.json`, which says that it is none.
pub async fn install_macos(
    request: &Request,
    random: [u8; 6],
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<GoldenBundle, VmError> {
    let temporary = files::temporary_directories();
    request.check(&temporary)?;
    let host = host_limits()?;
    let image = match &request.from {
        RestoreImage::File(file) => file.canonicalize().map_err(|error| posix(file, &error))?,
        RestoreImage::Latest => {
            tell(Progress::Asking);
            let (_, url) = newest().await?;
            let file = request.download(&url)?;
            if !file.exists() {
                tell(Progress::Downloading(url.clone(), file.clone()));
                download(&url, &file).await?;
            }
            file
        }
    };
    tell(Progress::Reading(image.clone()));
    let wanted = load(&image).await?;
    tell(Progress::Found(wanted.clone()));
    let (cpus, memory) = wanted.machine(&host)?;

    let bundle = make_folder(request, &wanted)?;
    let machine = BundleMachine {
        machine_identifier: new_machine_identifier()?,
        mac_address: MacAddress::locally_administered(random),
    };
    let described = Installation {
        dir: &bundle,
        hardware_model: &wanted.hardware_model,
        machine: &machine,
        cpus,
        memory,
        display: Some(SCREEN),
    };
    let configuration = installation(&described, &host)?;
    files::check(&configuration, &temporary)?;
    run(&Machine::new(&configuration)?, &image, tell).await?;

    let written = GoldenBundle {
        hardware_model: wanted.hardware_model,
        os_version: wanted.os_version,
        cpu_count_min: wanted.cpu_min,
        memory_min: wanted.memory_min,
        disk_bytes: request.disk_bytes,
        display: Some(SCREEN),
    };
    bundle.write_machine(&machine).map_err(|error| posix(&bundle.machine(), &error))?;
    bundle.write(&written).map_err(|error| posix(&bundle.manifest(), &error))?;
    tell(Progress::Done(bundle.path().to_owned()));
    Ok(written)
}

/// The folder with an empty disk and an auxiliary storage of the image's hardware model.
fn make_folder(request: &Request, wanted: &Requirements) -> Result<BundleDir, VmError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&request.into)
        .map_err(|error| posix(&request.into, &error))?;
    let bundle = BundleDir::new(request.into.canonicalize().map_err(|error| posix(&request.into, &error))?);
    let disk = bundle.disk();
    let sparse = fs::File::create_new(&disk).and_then(|file| file.set_len(request.disk_bytes));
    sparse.map_err(|error| posix(&disk, &error))?;
    tried(|| {
        autoreleasepool(|_| {
            let model = hardware_model(&wanted.hardware_model)?;
            let url = file_url(&bundle.aux())?;
            // SAFETY: new objects; the file is there when this returns
            unsafe {
                VZMacAuxiliaryStorage::initCreatingStorageAtURL_hardwareModel_options_error(
                    VZMacAuxiliaryStorage::alloc(),
                    &url,
                    &model,
                    VZMacAuxiliaryStorageInitializationOptions::empty(),
                )
            }
            .map(drop)
            .map_err(vm_error_of)
        })
    })?;
    Ok(bundle)
}

async fn run(machine: &Machine, image: &Path, tell: &mut (dyn FnMut(Progress) + Send)) -> Result<(), VmError> {
    let file = image.to_owned();
    let mut installed = Box::pin(machine.bound.ask(move |objects, answer| {
        let url = file_url(&file)?;
        // SAFETY: on the VM's queue; the installer lives in `objects`, as long as the VM
        unsafe {
            let installer = VZMacOSInstaller::initWithVirtualMachine_restoreImageURL(
                VZMacOSInstaller::alloc(),
                &objects.machine,
                &url,
            );
            let installer = objects.installer.get_or_init(|| installer);
            installer.installWithCompletionHandler(&completion(answer));
        }
        Ok(())
    }));
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut shown = None;
    loop {
        tokio::select! {
            outcome = &mut installed => {
                outcome?;
                break;
            }
            _ = looks.tick() => {
                let fraction = machine.bound.ask(|objects, answer| {
                    // SAFETY: on the VM's queue
                    let fraction = objects.installer.get().map_or(0.0, |installer| unsafe {
                        installer.progress().fractionCompleted()
                    });
                    answer.give(Ok(fraction));
                    Ok(())
                });
                if let Some(new) = percent(fraction.await?, shown) {
                    shown = Some(new);
                    tell(Progress::Installing(new));
                }
            }
        }
    }
    tell(Progress::Stopping);
    loop {
        match timeout(GOES_DOWN, machine.next_event()).await {
            Ok(Event::GuestStopped) => return Ok(()),
            Ok(Event::Crashed(error)) => return Err(error),
            Ok(Event::NetworkLost { error, .. }) => tracing::warn!(%error, "the installer lost its network"),
            // it is installed; the lock on the auxiliary storage goes with this process at the latest
            Err(_) => {
                tracing::warn!("the machine did not go down within {GOES_DOWN:?}; its plug is pulled");
                return machine.stop().await;
            }
        }
    }
}

/// Apple's newest image: what it is, and its address.
async fn newest() -> Result<(Requirements, String), VmError> {
    let (answer, outcome) = Answer::new();
    caught(|| {
        // SAFETY: the block is kept by the framework until it is called, on whatever thread
        unsafe { VZMacOSRestoreImage::fetchLatestSupportedWithCompletionHandler(&described(answer)) }
    })?;
    outcome.await.unwrap_or_else(|_| Err(gone()))
}

/// What the image in `file` is.
async fn load(file: &Path) -> Result<Requirements, VmError> {
    let (answer, outcome) = Answer::new();
    tried(|| {
        let url = file_url(file)?;
        // SAFETY: as above
        unsafe { VZMacOSRestoreImage::loadFileURL_completionHandler(&url, &described(answer)) };
        Ok(())
    })?;
    outcome.await.unwrap_or_else(|_| Err(gone())).map(|(wanted, _)| wanted)
}

type Loaded = RcBlock<dyn Fn(*mut VZMacOSRestoreImage, *mut NSError)>;

/// A completion block that gives what an image is, as data: the object stays on the thread of the block.
fn described(answer: Answer<(Requirements, String)>) -> Loaded {
    RcBlock::new(move |image: *mut VZMacOSRestoreImage, error: *mut NSError| {
        // SAFETY: nil, or valid for the duration of the call
        let (image, error) = unsafe { (image.as_ref(), error.as_ref()) };
        answer.give(match (image, error) {
            (Some(image), _) => tried(|| requirements(image)),
            (None, Some(error)) => Err(vm_error(error)),
            (None, None) => Err(gone()),
        });
    })
}

fn requirements(image: &VZMacOSRestoreImage) -> Result<(Requirements, String), VmError> {
    // SAFETY: properties of an object that is alive
    unsafe {
        let version = image.operatingSystemVersion();
        let os_version = match version.patchVersion {
            0 => format!("{}.{}", version.majorVersion, version.minorVersion),
            patch => format!("{}.{}.{patch}", version.majorVersion, version.minorVersion),
        };
        let Some(wanted) = image.mostFeaturefulSupportedConfiguration() else {
            let words = format!("macOS {os_version} has no virtual Mac that this Mac can be");
            return Err(vz(VZErrorCode::InstallationRequiresUpdate, words));
        };
        let address = image.URL().absoluteString().map(|text| text.to_string()).unwrap_or_default();
        let requirements = Requirements {
            os_version,
            build: image.buildVersion().to_string(),
            hardware_model: encode(&wanted.hardwareModel().dataRepresentation().to_vec()),
            cpu_min: u32::try_from(wanted.minimumSupportedCPUCount()).unwrap_or(u32::MAX),
            memory_min: wanted.minimumSupportedMemorySize(),
        };
        Ok((requirements, address))
    }
}

/// By the system's own curl, which shows its progress and goes on where an earlier run was cut off.
async fn download(url: &str, to: &Path) -> Result<(), VmError> {
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let status = Command::new("/usr/bin/curl")
        .args(["--fail", "--location", "--proto", "=https", "--retry", "5", "--continue-at", "-", "--output"])
        .arg(&part)
        .arg(url)
        .stdin(Stdio::null())
        .status()
        .await
        .map_err(|error| posix(Path::new("/usr/bin/curl"), &error))?;
    if !status.success() {
        let words = format!("downloading {url} ended with {status}; run this again, it goes on where it was cut off");
        return Err(VmError::new(MACRACK_DOMAIN, 1, words));
    }
    fs::rename(&part, to).map_err(|error| posix(to, &error))
}

fn posix(path: &Path, error: &io::Error) -> VmError {
    VmError::os(path.display(), error)
}
