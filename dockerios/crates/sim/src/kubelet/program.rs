//! Containers that are really run: the bootdisk builder, and a launcher image that is asked what its QEMU can do.
//!
//! Invariant: a container is a process of this machine whose arguments name files of the simulator's directory in
//! place of the paths that would be mounted; an image that is not known is not run. What it wrote to its termination
//! log, and its exit status, are what the API server is told.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, PersistentVolumeClaim, Pod, Secret, Volume,
};
use kube::ResourceExt;
use tokio::task::AbortHandle;

use crate::{child::dies_with_us, faults::Fault, hook::private, options::Options, queue::Key, world::World};

/// How a container ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) message: String,
}

/// Longest message that Kubernetes keeps, in bytes.
const LONGEST_MESSAGE: usize = 4096;
/// Where launcher images keep QEMU and libvirt, and the script that stands for each.
const LAUNCHER_PROGRAMS: [(&str, &str); 6] = [
    ("/usr/libexec/qemu-kvm", "qemu-kvm"),
    ("/usr/bin/qemu-kvm", "qemu-kvm"),
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86_64"),
    ("/usr/sbin/virtqemud", "virtqemud"),
    ("/usr/bin/virtqemud", "virtqemud"),
    ("/usr/sbin/libvirtd", "libvirtd"),
];
const TERMINATION_LOG: &str = "/dev/termination-log";
/// How the ServiceAccount admission plugin names the volume that it adds.
const API_ACCESS: &str = "kube-api-access-";

struct Running {
    outcome: Option<Outcome>,
    task: Option<AbortHandle>,
}

/// What runs, by UID of the pod.
#[derive(Default)]
pub(crate) struct Programs(Mutex<HashMap<String, Running>>);

impl Programs {
    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<String, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: not started; `Some(None)`: runs.
    pub(crate) fn outcome(&self, uid: &str) -> Option<Option<Outcome>> {
        self.all().get(uid).map(|running| running.outcome.clone())
    }

    pub(crate) fn stop(&self, uid: &str) {
        if let Some(task) = self.all().remove(uid).and_then(|running| running.task) {
            task.abort();
        }
    }

    /// Ends all of them: the simulator ends.
    pub(crate) fn abandon(&self) {
        for task in self.all().drain().filter_map(|(_, running)| running.task) {
            task.abort();
        }
    }

    pub(crate) fn start(&self, world: &Arc<World>, pod: &Arc<Pod>) {
        let (world, pod, uid) = (world.clone(), pod.clone(), pod.uid().unwrap_or_default());
        let mut all = self.all();
        let running = Running {
            outcome: None,
            task: None,
        };
        all.insert(uid.clone(), running);
        let task = tokio::spawn({
            let uid = uid.clone();
            async move {
                let outcome = run(&world, &pod).await.unwrap_or_else(|error| Outcome {
                    code: 128,
                    message: format!("{error:#}"),
                });
                if let Some(running) = world.programs.all().get_mut(&uid) {
                    running.outcome = Some(outcome);
                }
                world.queues.pods.add(Key::of(&*pod));
            }
        });
        if let Some(running) = all.get_mut(&uid) {
            running.task = Some(task.abort_handle());
        }
    }
}

fn containers(pod: &Pod) -> Vec<Container> {
    let spec = pod.spec.clone().unwrap_or_default();
    spec.init_containers
        .into_iter()
        .flatten()
        .chain(spec.containers)
        .collect()
}

enum Image {
    Launcher,
    Bootdisk,
    /// The hook's own container: the launcher's part plays it.
    Hook,
}

fn image_of(container: &Container) -> Option<Image> {
    let image = container.image.as_deref().unwrap_or_default();
    let repository = image.split('@').next().unwrap_or_default();
    let has = |word: &str| repository.contains(word);
    if has("virt-launcher") {
        Some(Image::Launcher)
    } else if has("bootdisk") {
        Some(Image::Bootdisk)
    } else if has("domain-hook") {
        Some(Image::Hook)
    } else {
        None
    }
}

/// The first image of a pod that nothing here stands for. Of launcher pods nothing is run here, so all are known.
pub(crate) fn unknown_image(world: &World, pod: &Pod) -> Option<String> {
    if pod.labels().contains_key(dockerios_kubevirt::names::CREATED_BY) {
        return None;
    }
    let known = |container: &Container| {
        image_of(container).is_some()
            || world
                .options
                .images
                .contains_key(container.image.as_deref().unwrap_or_default())
    };
    containers(pod)
        .iter()
        .find(|container| !known(container))
        .map(|container| container.image.clone().unwrap_or_default())
}

/// Writes the programs that a capable launcher image has: they say what the options say.
pub(crate) fn scripts(options: &Options) -> Result<()> {
    scripts_without(None, options, &options.dir.join("bin"))
}

/// The same into another directory, of a launcher whose QEMU lacks that device.
fn scripts_without(lacking: Option<&str>, options: &Options, directory: &Path) -> Result<()> {
    private(directory)?;
    let devices: String = options
        .launcher_devices
        .iter()
        .filter(|device| lacking != Some(device.as_str()))
        .map(|device| format!("name \"{device}\", bus PCI\\n"))
        .collect();
    let version = &options.launcher_libvirt;
    let qemu = format!(
        "#!/bin/sh\ncase \"$*\" in\n*-device*help*) printf '{devices}' ;;\n*--version*|*-version*) echo 'QEMU emulator version 10.1.0' ;;\n*) echo 'the simulator starts no QEMU' >&2; exit 1 ;;\nesac\n"
    );
    let libvirt = format!(
        "#!/bin/sh\ncase \"$*\" in\n*version*|*-V*|*-v*) echo \"$(basename \"$0\") (libvirt) {version}\" ;;\n*) echo 'the simulator runs no libvirt' >&2; exit 1 ;;\nesac\n"
    );
    let virsh = format!("#!/bin/sh\necho {version}\n");
    let qemu_names = ["qemu-kvm", "qemu-system-x86_64"].map(|name| (name, &qemu));
    let libvirt_names = ["libvirtd", "virtqemud"].map(|name| (name, &libvirt));
    for (name, text) in qemu_names.into_iter().chain(libvirt_names).chain([("virsh", &virsh)]) {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Runs the containers one after the other; the last one's end is the pod's.
async fn run(world: &World, pod: &Pod) -> Result<Outcome> {
    let directory = world.options.dir.join("pods").join(pod.uid().unwrap_or_default());
    private(&directory)?;
    let mut last = Outcome {
        code: 0,
        message: String::new(),
    };
    for container in containers(pod) {
        last = contain(world, pod, &container, &directory).await?;
        if last.code != 0 {
            break;
        }
    }
    fs::remove_dir_all(&directory)?;
    Ok(last)
}

async fn contain(world: &World, pod: &Pod, container: &Container, directory: &Path) -> Result<Outcome> {
    let places = places(world, pod, container, directory).await?;
    let log = directory.join(format!("{}.termination", container.name));
    fs::write(&log, "")?;
    let launcher = matches!(image_of(container), Some(Image::Launcher));
    let bin = match world.fault(Fault::LacksDevice, &pod.metadata).filter(|_| launcher) {
        Some(device) => {
            let bin = directory.join("bin");
            scripts_without(Some(&device), &world.options, &bin)?;
            bin
        }
        None => world.options.dir.join("bin"),
    };
    let real = |text: &str| {
        let text = places.iter().fold(text.to_owned(), |text, (inside, outside)| {
            relocate(&text, inside, outside)
        });
        let text = LAUNCHER_PROGRAMS
            .iter()
            .filter(|_| launcher)
            .fold(text, |text, (inside, name)| relocate(&text, inside, &bin.join(name)));
        relocate(&text, TERMINATION_LOG, &log)
    };
    let mut words: Vec<String> = container.command.iter().flatten().map(|word| real(word)).collect();
    if words.is_empty() {
        match image_of(container) {
            Some(Image::Bootdisk) => words.push("dockerios-bootdisk".to_owned()),
            _ => bail!("image {:?} has no entry point here: name a command", container.image),
        }
    }
    words.extend(container.args.iter().flatten().map(|word| real(word)));
    let named = Path::new(&words[0]).file_name().and_then(|name| name.to_str());
    if named == Some("dockerios-bootdisk") {
        words[0] = world.options.programs.bootdisk.to_string_lossy().into_owned();
    }
    let beside = world
        .options
        .programs
        .bootdisk
        .parent()
        .unwrap_or(Path::new("/"))
        .to_string_lossy();
    let mut command = tokio::process::Command::new(&words[0]);
    command
        .args(&words[1..])
        .env_clear()
        .env(
            "PATH",
            format!("{}:{beside}:/usr/local/bin:/usr/bin:/bin", bin.display()),
        )
        .current_dir(directory)
        .stdin(Stdio::null());
    for variable in container.env.iter().flatten() {
        command.env(&variable.name, real(variable.value.as_deref().unwrap_or_default()));
    }
    let output = dies_with_us(&mut command)
        .output()
        .await
        .with_context(|| words[0].clone())?;
    let code = output.status.code().unwrap_or(137);
    let mut message = fs::read_to_string(&log).unwrap_or_default();
    let falls_back = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if message.is_empty() && code != 0 && falls_back {
        message = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    }
    let cut = message.len().saturating_sub(LONGEST_MESSAGE);
    let message = message[message.ceil_char_boundary(cut)..].to_owned();
    Ok(Outcome { code, message })
}

/// Puts one path in place of another, where it stands as a path of its own or begins one.
fn relocate(text: &str, inside: &str, outside: &Path) -> String {
    let in_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(inside) {
        let before = rest[..at].chars().next_back().or_else(|| done.chars().next_back());
        let after = rest[at + inside.len()..].chars().next();
        done.push_str(&rest[..at]);
        if before.is_some_and(|c| in_name(c) || c == '/') || after.is_some_and(in_name) {
            done.push_str(inside);
        } else {
            done.push_str(&outside.to_string_lossy());
        }
        rest = &rest[at + inside.len()..];
    }
    done + rest
}

/// Where each mounted path is on this machine, longest first.
async fn places(world: &World, pod: &Pod, container: &Container, directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.volumes.clone())
        .unwrap_or_default();
    let named = |name: &str| {
        let found = volumes.iter().find(|volume| volume.name == name);
        found.ok_or_else(|| {
            anyhow!(
                "container {} mounts volume {name:?}, which the pod has not got",
                container.name
            )
        })
    };
    let mut places = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let mut path = mounted(world, pod, named(&mount.name)?, directory).await?;
        if let Some(part) = &mount.sub_path {
            path = path.join(part);
        }
        places.push((mount.mount_path.clone(), path));
    }
    for device in container.volume_devices.iter().flatten() {
        let volume = named(&device.name)?;
        let claim = volume
            .persistent_volume_claim
            .as_ref()
            .ok_or_else(|| anyhow!("{} is no claim", device.name))?;
        places.push((device.device_path.clone(), block(world, &namespace, &claim.claim_name)?));
    }
    places.sort_by_key(|(inside, _)| std::cmp::Reverse(inside.len()));
    Ok(places)
}

/// What a file of the downward API says; fields of metadata only.
fn downward(pod: &Pod, field: &str) -> Result<String> {
    let map = |of: &str| field.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']");
    let value = match (map("metadata.annotations"), map("metadata.labels"), field) {
        (Some(key), ..) => pod.annotations().get(key).cloned(),
        (_, Some(key), _) => pod.labels().get(key).cloned(),
        (.., "metadata.name") => Some(pod.name_any()),
        (.., "metadata.namespace") => pod.namespace(),
        (.., "metadata.uid") => pod.uid(),
        _ => bail!("the simulator reads no {field:?} through the downward API"),
    };
    Ok(value.unwrap_or_default())
}

async fn write_map(world: &World, namespace: &str, name: &str, path: &Path) -> Result<()> {
    let map = world.api::<ConfigMap>(namespace).get(name).await?;
    for (key, text) in map.data.into_iter().flatten() {
        fs::write(path.join(key), text)?;
    }
    for (key, bytes) in map.binary_data.into_iter().flatten() {
        fs::write(path.join(key), bytes.0)?;
    }
    Ok(())
}

async fn write_secret(world: &World, namespace: &str, name: &str, path: &Path) -> Result<()> {
    let secret = world.api::<Secret>(namespace).get(name).await?;
    for (key, bytes) in secret.data.into_iter().flatten() {
        fs::write(path.join(key), bytes.0)?;
    }
    Ok(())
}

fn write_fields(pod: &Pod, files: Option<&Vec<DownwardAPIVolumeFile>>, path: &Path) -> Result<()> {
    for file in files.into_iter().flatten() {
        let field = file.field_ref.as_ref().map(|field| field.field_path.as_str());
        fs::write(path.join(&file.path), downward(pod, field.unwrap_or_default())?)?;
    }
    Ok(())
}

async fn mounted(world: &World, pod: &Pod, volume: &Volume, directory: &Path) -> Result<PathBuf> {
    let namespace = &*pod.namespace().unwrap_or_default();
    let path = directory.join("volumes").join(&volume.name);
    private(&path)?;
    // what admission gives every pod to reach the API server with: no program that is run here does, so it holds nothing
    if volume.projected.is_some() && volume.name.starts_with(API_ACCESS) {
        return Ok(path);
    }
    let unknown = || {
        anyhow!(
            "volume {:?} is of a kind that the simulator does not mount",
            volume.name
        )
    };
    if let Some(map) = &volume.config_map {
        write_map(world, namespace, &map.name, &path).await?;
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        write_secret(world, namespace, &name, &path).await?;
    } else if let Some(image) = &volume.image {
        let reference = image.reference.clone().unwrap_or_default();
        let known = world.options.images.get(&reference).or(world.options.images.get("*"));
        return known
            .cloned()
            .ok_or_else(|| anyhow!("no directory stands for image {reference:?}: give one with --image"));
    } else if let Some(files) = &volume.downward_api {
        write_fields(pod, files.items.as_ref(), &path)?;
    } else if let Some(projected) = &volume.projected {
        for source in projected.sources.iter().flatten() {
            match (&source.config_map, &source.secret, &source.downward_api) {
                (Some(map), ..) => write_map(world, namespace, &map.name, &path).await?,
                (_, Some(secret), _) => write_secret(world, namespace, &secret.name, &path).await?,
                (.., Some(files)) => write_fields(pod, files.items.as_ref(), &path)?,
                _ => return Err(unknown()),
            }
        }
    } else if volume.empty_dir.is_none() {
        return Err(unknown());
    }
    Ok(path)
}

/// The file that stands for a claim in Block mode, as large as the claim.
fn block(world: &World, namespace: &str, claim: &str) -> Result<PathBuf> {
    let known = world
        .claim(&Key::new(namespace, claim))
        .ok_or_else(|| anyhow!("there is no claim {claim:?}"))?;
    let path = world
        .options
        .dir
        .join("volumes")
        .join(namespace)
        .join(format!("{claim}.raw"));
    if let Some(parent) = path.parent() {
        private(parent)?;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(&path)?;
    if let Some(size) = size(&known)
        && file.metadata()?.len() < size
    {
        file.set_len(size)?;
    }
    Ok(path)
}

fn size(claim: &PersistentVolumeClaim) -> Option<u64> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let text = &requests.get("storage")?.0;
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1_u64 << 30,
        "Ti" => 1 << 40,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_put_elsewhere_only_where_it_is_one() {
        let outside = Path::new("/tmp/x");
        for (text, inside, moved) in [
            ("/identity/identity.json", "/identity", "/tmp/x/identity.json"),
            ("--identity", "/identity", "--identity"),
            ("--output=/dev/bootdisk", "/dev/bootdisk", "--output=/tmp/x"),
            ("/dev/bootdisk2 /dev/bootdisk", "/dev/bootdisk", "/dev/bootdisk2 /tmp/x"),
            ("/a/dev/bootdisk", "/dev/bootdisk", "/a/dev/bootdisk"),
            ("cat >/dev/bootdisk;", "/dev/bootdisk", "cat >/tmp/x;"),
        ] {
            assert_eq!(relocate(text, inside, outside), moved, "{text}");
        }
    }
}
