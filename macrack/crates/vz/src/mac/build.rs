//! From data to the framework's configuration, object by object. Decides nothing.

use std::path::Path;

use macrack_wire::VmError;
use objc2::AnyThread;
use objc2::rc::Retained;
use objc2_foundation::{NSArray, NSData, NSProcessInfo, NSString, NSURL};
use objc2_virtualization::{
    VZDiskImageCachingMode, VZDiskImageStorageDeviceAttachment, VZDiskImageSynchronizationMode, VZMACAddress,
    VZMacAuxiliaryStorage, VZMacGraphicsDeviceConfiguration, VZMacGraphicsDisplayConfiguration, VZMacHardwareModel,
    VZMacMachineIdentifier, VZMacOSBootLoader, VZMacPlatformConfiguration, VZNATNetworkDeviceAttachment,
    VZStorageDeviceConfiguration, VZUSBKeyboardConfiguration, VZUSBScreenCoordinatePointingDeviceConfiguration,
    VZVirtioBlockDeviceConfiguration, VZVirtioEntropyDeviceConfiguration, VZVirtioNetworkDeviceConfiguration,
    VZVirtioSocketDeviceConfiguration, VZVirtualMachineConfiguration,
};

use super::error::vm_error_of;
use crate::configuration::{
    Attachment, BootLoader, Caching, Configuration, Disk, Network, Platform, Screen, Synchronization, decode,
    model_unsupported,
};

/// The configuration, as the framework itself finds it valid.
pub(super) fn build(of: &Configuration) -> Result<Retained<VZVirtualMachineConfiguration>, VmError> {
    // SAFETY: new objects that are used on this thread; `caught` holds what misuse would raise
    unsafe {
        let made = VZVirtualMachineConfiguration::new();
        made.setPlatform(&*platform(&of.platform)?);
        match of.boot_loader {
            BootLoader::MacOs => made.setBootLoader(Some(&VZMacOSBootLoader::new())),
        }
        made.setCPUCount(of.cpu_count as usize);
        made.setMemorySize(of.memory_bytes);
        let disks = of.disks.iter().map(disk).collect::<Result<Vec<_>, _>>()?;
        made.setStorageDevices(&NSArray::from_retained_slice(&disks));
        let networks = of.networks.iter().map(network).collect::<Result<Vec<_>, _>>()?;
        let networks: Vec<_> = networks.into_iter().map(Retained::into_super).collect();
        made.setNetworkDevices(&NSArray::from_retained_slice(&networks));
        if of.vsock {
            let socket = Retained::into_super(VZVirtioSocketDeviceConfiguration::new());
            made.setSocketDevices(&NSArray::from_retained_slice(&[socket]));
        }
        if of.entropy {
            let entropy = Retained::into_super(VZVirtioEntropyDeviceConfiguration::new());
            made.setEntropyDevices(&NSArray::from_retained_slice(&[entropy]));
        }
        if let Some(screen) = &of.display {
            let graphics = Retained::into_super(graphics(*screen));
            made.setGraphicsDevices(&NSArray::from_retained_slice(&[graphics]));
        }
        if of.keyboard_and_pointing_device {
            let keyboard = Retained::into_super(VZUSBKeyboardConfiguration::new());
            made.setKeyboards(&NSArray::from_retained_slice(&[keyboard]));
            let pointer = Retained::into_super(VZUSBScreenCoordinatePointingDeviceConfiguration::new());
            made.setPointingDevices(&NSArray::from_retained_slice(&[pointer]));
        }
        // `of.memory_balloon` is never set, and no balloon is made
        made.validateWithError().map_err(vm_error_of)?;
        Ok(made)
    }
}

unsafe fn platform(of: &Platform) -> Result<Retained<VZMacPlatformConfiguration>, VmError> {
    let made = unsafe { VZMacPlatformConfiguration::new() };
    let model = hardware_model(&of.hardware_model)?;
    let identifier = bytes("machineIdentifier", &of.machine_identifier)?;
    unsafe {
        let identifier =
            VZMacMachineIdentifier::initWithDataRepresentation(VZMacMachineIdentifier::alloc(), &identifier)
                .ok_or_else(|| VmError::invalid("machineIdentifier is none of VZMacMachineIdentifier's"))?;
        let aux =
            VZMacAuxiliaryStorage::initWithURL(VZMacAuxiliaryStorage::alloc(), &*file_url(&of.auxiliary_storage)?);
        made.setHardwareModel(&model);
        made.setMachineIdentifier(&identifier);
        made.setAuxiliaryStorage(Some(&aux));
    }
    Ok(made)
}

/// The hardware model, if this host can be it.
pub(super) fn hardware_model(text: &str) -> Result<Retained<VZMacHardwareModel>, VmError> {
    let data = bytes("hardwareModel", text)?;
    // SAFETY: a new object
    let model = unsafe { VZMacHardwareModel::initWithDataRepresentation(VZMacHardwareModel::alloc(), &data) };
    let model = model.ok_or_else(|| VmError::invalid("hardwareModel is none of VZMacHardwareModel's"))?;
    // SAFETY: a property
    if !unsafe { model.isSupported() } {
        let macos = NSProcessInfo::processInfo().operatingSystemVersion().majorVersion;
        return Err(model_unsupported(u32::try_from(macos).unwrap_or(0)));
    }
    Ok(model)
}

fn disk(of: &Disk) -> Result<Retained<VZStorageDeviceConfiguration>, VmError> {
    let caching = match of.caching {
        Caching::Automatic => VZDiskImageCachingMode::Automatic,
    };
    let synchronization = match of.synchronization {
        Synchronization::Fsync => VZDiskImageSynchronizationMode::Fsync,
        Synchronization::Full => VZDiskImageSynchronizationMode::Full,
    };
    let url = file_url(&of.image)?;
    // SAFETY: new objects
    unsafe {
        let image = VZDiskImageStorageDeviceAttachment::initWithURL_readOnly_cachingMode_synchronizationMode_error(
            VZDiskImageStorageDeviceAttachment::alloc(),
            &url,
            of.read_only,
            caching,
            synchronization,
        )
        .map_err(vm_error_of)?;
        let block =
            VZVirtioBlockDeviceConfiguration::initWithAttachment(VZVirtioBlockDeviceConfiguration::alloc(), &image);
        Ok(Retained::into_super(block))
    }
}

fn network(of: &Network) -> Result<Retained<VZVirtioNetworkDeviceConfiguration>, VmError> {
    let address = NSString::from_str(&of.mac_address.to_string());
    // SAFETY: new objects
    unsafe {
        let made = VZVirtioNetworkDeviceConfiguration::new();
        match of.attachment {
            Attachment::Nat => made.setAttachment(Some(&VZNATNetworkDeviceAttachment::new())),
        }
        let address = VZMACAddress::initWithString(VZMACAddress::alloc(), &address)
            .ok_or_else(|| VmError::invalid("macAddress is none of VZMACAddress's"))?;
        made.setMACAddress(&address);
        Ok(made)
    }
}

fn graphics(screen: Screen) -> Retained<VZMacGraphicsDeviceConfiguration> {
    // SAFETY: new objects
    unsafe {
        let display = VZMacGraphicsDisplayConfiguration::initWithWidthInPixels_heightInPixels_pixelsPerInch(
            VZMacGraphicsDisplayConfiguration::alloc(),
            screen.width as isize,
            screen.height as isize,
            screen.pixels_per_inch as isize,
        );
        let made = VZMacGraphicsDeviceConfiguration::new();
        made.setDisplays(&NSArray::from_retained_slice(&[display]));
        made
    }
}

fn bytes(field: &str, text: &str) -> Result<Retained<NSData>, VmError> {
    let bytes = decode(text).map_err(|why| VmError::invalid(format!("{field} is not base64: {why}")))?;
    Ok(NSData::with_bytes(&bytes))
}

/// A URL of a file, of a path that is UTF-8: others were refused before, and are not bent into shape here.
pub(super) fn file_url(path: &Path) -> Result<Retained<NSURL>, VmError> {
    let text = path.to_str().ok_or_else(|| VmError::invalid(format!("{}: not UTF-8", path.display())))?;
    Ok(NSURL::fileURLWithPath(&NSString::from_str(text)))
}
