//! Plays the launcher towards the hook: starts the real program as the sidecar would be, waits for its socket, asks
//! Info, calls OnDefineDomain twice with what is lost in between, says Shutdown.
//!
//! Invariant: the key is in one file of mode 0600 while the hook runs and nowhere else; nothing here prints it. The
//! sidecar of a real pod lives as long as the machine; this one is told Shutdown once the domain is defined, so that
//! a hundred machines stay cheap.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use dockerios_domain_hook::proto::{info, v1alpha3};
use dockerios_kubevirt::VirtualMachineInstance;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use tokio::{net::UnixStream, process::Child, time::Instant};
use tonic::transport::{Channel, Endpoint};

use crate::{
    child::dies_with_us,
    domain,
    domains::SOCKET_LOOK,
    faults::Fault,
    kubevirt::launcher::{HookFile, Sidecar, sidecars},
    world::World,
};

/// How long the launcher collects sockets. KubeVirt waits about 240 s; nothing here takes that long.
const COLLECT: Duration = Duration::from_secs(20);
/// How long Info may take before the launcher panics.
const INFO: Duration = Duration::from_secs(1);
/// How long a call may take.
const CALL: Duration = Duration::from_secs(60);
/// How long a hook that was told Shutdown may take to end.
const END: Duration = Duration::from_secs(6);

/// Directory of one instance's files.
pub(crate) fn directory(root: &Path, uid: &str) -> PathBuf {
    root.join("machines").join(uid)
}

/// Removes what an instance left.
pub(crate) fn clean(root: &Path, uid: &str) {
    let directory = directory(root, uid);
    if let Err(error) = fs::remove_dir_all(&directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{}: {error}", directory.display());
    }
}

/// Makes a directory that is readable by this user only.
pub(crate) fn private(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Defines the domain of an instance; gives back the XML with which QEMU starts.
pub(crate) async fn define(world: &World, vmi: &VirtualMachineInstance) -> Result<String, String> {
    let mut xml = domain::write(vmi);
    for (at, sidecar) in sidecars(vmi)?.iter().enumerate() {
        let mut hook = Hook::start(world, vmi, sidecar, at).await?;
        let done = hook.passes(vmi, &xml).await;
        hook.end().await;
        xml = done?;
    }
    let lacks = world.instance_fault(Fault::LacksDevice, vmi);
    let missing: Vec<_> = domain::needs(&xml)?
        .into_iter()
        .filter(|device| !world.options.launcher_devices.contains(device) || lacks.as_ref() == Some(device))
        .collect();
    match missing.first() {
        None => Ok(xml),
        Some(device) => Err(format!(
            "internal error: qemu: '{device}' is not a valid device model name"
        )),
    }
}

struct Hook {
    process: Child,
    directory: PathBuf,
    channel: Option<Channel>,
    sockets: Sockets,
}

/// The directory of a hook's socket, gone with it.
struct Sockets(PathBuf);

impl Drop for Sockets {
    fn drop(&mut self) {
        // what cannot be removed is removed before the next try
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Hook {
    async fn start(world: &World, vmi: &VirtualMachineInstance, sidecar: &Sidecar, at: usize) -> Result<Self, String> {
        let uid = vmi.uid().unwrap_or_default();
        let directory = directory(&world.options.dir, &uid).join(format!("hook-{at}"));
        let said = |error: std::io::Error| format!("{}: {error}", directory.display());
        // a try before this one may have left a socket
        if let Err(error) = fs::remove_dir_all(&directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(said(error));
        }
        private(&directory).map_err(said)?;
        // a socket's path has 107 bytes at most (sun_path), and the simulator's directory may be deep
        let sockets = Sockets(std::env::temp_dir().join(format!("dsim-{}-{at}", uid.replace('-', ""))));
        if let Err(error) = fs::remove_dir_all(&sockets.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(format!("{}: {error}", sockets.0.display()));
        }
        private(&sockets.0).map_err(|error| format!("{}: {error}", sockets.0.display()))?;
        let mut arguments = sidecar.args.clone();
        if let Some(file) = &sidecar.config_map {
            let path = directory.join("file");
            write_file(world, vmi, file, &path).await?;
            for argument in &mut arguments {
                *argument = argument.replace(&file.hook_path, &path.to_string_lossy());
            }
        }
        let log = fs::File::create(directory.join("log")).map_err(said)?;
        let program = match world.instance_fault(Fault::HookSilent, vmi) {
            // a container that runs and never serves
            Some(_) => PathBuf::from("/bin/cat"),
            None => world.options.programs.hook.clone(),
        };
        let mut command = tokio::process::Command::new(&program);
        if world.instance_fault(Fault::HookSilent, vmi).is_none() {
            command.args(&arguments).arg("--socket-directory").arg(&sockets.0);
        }
        let process = dies_with_us(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut hook = Self {
            process,
            directory,
            channel: None,
            sockets,
        };
        let socket = hook.socket().await?;
        hook.channel = Some(connect(socket).await?);
        hook.info().await?;
        Ok(hook)
    }

    /// Waits for the socket's file to appear.
    async fn socket(&mut self) -> Result<PathBuf, String> {
        let until = Instant::now() + COLLECT;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.process.try_wait() {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or("nothing said").to_owned();
                return Err(format!("the hook's container ended with {status}: {last}"));
            }
            let found = fs::read_dir(&self.sockets.0)
                .ok()
                .and_then(|mut entries| entries.next());
            if let Some(Ok(entry)) = found {
                return Ok(entry.path());
            }
            tokio::time::sleep(SOCKET_LOOK).await;
        }
        Err("Timed out waiting for hook sidecars: no socket appeared".to_owned())
    }

    fn channel(&self) -> Result<Channel, String> {
        self.channel
            .clone()
            .ok_or_else(|| "the hook is not connected".to_owned())
    }

    async fn info(&self) -> Result<(), String> {
        let mut client = info::info_client::InfoClient::new(self.channel()?);
        let answer = tokio::time::timeout(INFO, client.info(info::InfoParams {}))
            .await
            .map_err(|_| "panic: the hook's Info took over one second".to_owned())?
            .map_err(|status| format!("panic: the hook's Info failed: {}", status.message()))?
            .into_inner();
        let points = answer.hook_points.iter().any(|point| point.name == "OnDefineDomain");
        if !points || !answer.versions.iter().any(|version| version == "v1alpha3") {
            return Err(format!(
                "hook {:?} serves {:?} in {:?}",
                answer.name, answer.hook_points, answer.versions
            ));
        }
        Ok(())
    }

    async fn call(&self, xml: &str, vmi: &[u8]) -> Result<String, String> {
        let mut client = v1alpha3::callbacks_client::CallbacksClient::new(self.channel()?)
            .max_decoding_message_size(16 << 20)
            .max_encoding_message_size(16 << 20);
        let parameters = v1alpha3::OnDefineDomainParams {
            domain_xml: xml.as_bytes().to_vec(),
            vmi: vmi.to_vec(),
        };
        let answer = tokio::time::timeout(CALL, client.on_define_domain(parameters))
            .await
            .map_err(|_| "OnDefineDomain took over 60 s".to_owned())?
            .map_err(|status| format!("OnDefineDomain: {}", status.message()))?;
        String::from_utf8(answer.into_inner().domain_xml).map_err(|error| format!("the hook's answer: {error}"))
    }

    async fn passes(&self, vmi: &VirtualMachineInstance, xml: &str) -> Result<String, String> {
        let json = serde_json::to_vec(vmi).map_err(|error| error.to_string())?;
        let first = self.call(xml, &json).await?;
        domain::judge(&first, vmi)?;
        let second = self.call(&domain::lose(&first)?, &json).await?;
        domain::judge(&second, vmi)?;
        if self.call(&second, &json).await? != second {
            return Err("the hook changed what it had already changed".to_owned());
        }
        Ok(second)
    }

    async fn end(&mut self) {
        if let Ok(channel) = self.channel() {
            let mut client = v1alpha3::callbacks_client::CallbacksClient::new(channel);
            let _ = tokio::time::timeout(END, client.shutdown(v1alpha3::ShutdownParams {})).await;
        }
        self.channel = None;
        let ended = tokio::time::timeout(END, self.process.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => {}
            other => tracing::warn!("the hook did not end with success after Shutdown: {other:?}"),
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::warn!("{}: {error}", self.directory.display());
        }
    }
}

async fn connect(socket: PathBuf) -> Result<Channel, String> {
    let endpoint = Endpoint::from_static("http://hook.invalid");
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| format!("panic: the hook's socket: {error}"))
}

/// The file that the kubelet would mount out of the ConfigMap.
async fn write_file(world: &World, vmi: &VirtualMachineInstance, file: &HookFile, path: &Path) -> Result<(), String> {
    let namespace = vmi.namespace().unwrap_or_default();
    let map = world.api::<ConfigMap>(&namespace).get(&file.name).await;
    let map = map.map_err(|error| format!("ConfigMap {namespace}/{}: {error}", file.name))?;
    let binary = map
        .binary_data
        .as_ref()
        .and_then(|data| data.get(&file.key))
        .map(|bytes| bytes.0.clone());
    let text = map
        .data
        .as_ref()
        .and_then(|data| data.get(&file.key))
        .map(|text| text.clone().into_bytes());
    let content = binary
        .or(text)
        .ok_or_else(|| format!("ConfigMap {namespace}/{} has no key {:?}", file.name, file.key))?;
    let mut opened = fs::OpenOptions::new();
    let opened = opened.create_new(true).write(true).mode(0o600).open(path);
    let written = opened.and_then(|mut opened| std::io::Write::write_all(&mut opened, &content));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
