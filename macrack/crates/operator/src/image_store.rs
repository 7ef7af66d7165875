//! Where goldens are looked up when a MacOSImage is made: in the registry that it names, or, for tests, in the
//! directory that agents pull from (`<root>/<registry>/<path>/sha256-<hex>/manifest.json`).

use std::{
    path::{Component, Path, PathBuf},
    pin::Pin,
    str::FromStr,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use macrack_api::{image::macos_image::Oci, names::SYSTEM_NAMESPACE};
use macrack_core::decide::image::Resolution;
use macrack_oci::{Class, Credentials, Golden, client::Mirror};
use serde::Deserialize;

/// A store that can say whether it has a golden.
pub trait ImageStore: Send + Sync {
    /// Looks an image up by its pinned reference.
    fn resolve<'a>(&'a self, source: &'a Oci) -> Pin<Box<dyn Future<Output = Resolution> + Send + 'a>>;
}

/// Which store, and how registries are reached.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// Where goldens are looked up: oci, the registries that MacOSImages name; or dir:/absolute/path
    #[arg(long, env = "MACRACK_IMAGE_STORE", default_value = "oci")]
    image_store: Kind,
    /// Ask this mirror before the registry: registry=https://host[:port][/path]; may be given again
    #[arg(long, value_name = "REGISTRY=URL")]
    registry_mirror: Vec<Mirror>,
    /// Speak plain HTTP to this registry, host[:port]; may be given again. Loopback needs no such word
    #[arg(long, value_name = "HOST")]
    insecure_registry: Vec<String>,
}

impl StoreArgs {
    /// The store; pull secrets are read by `client`.
    ///
    /// # Errors
    /// When this machine's trusted certificates cannot be read.
    pub fn open(self, client: Client) -> Result<Arc<dyn ImageStore>, macrack_oci::Error> {
        if let Kind::Directory(store) = self.image_store {
            return Ok(Arc::new(store));
        }
        let mut options = macrack_oci::Options::reaching(self.registry_mirror, self.insecure_registry);
        // a pass waits for this: what does not answer soon is asked again by a later one
        options.patience.tries = 2;
        options.stall = std::time::Duration::from_secs(10);
        let secrets = Api::namespaced(client, SYSTEM_NAMESPACE);
        Ok(Arc::new(OciStore { registries: macrack_oci::Client::new(options)?, secrets }))
    }
}

/// What `--image-store` says.
#[derive(Clone, Debug)]
enum Kind {
    Oci,
    Directory(DirectoryStore),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "oci" { Ok(Kind::Oci) } else { text.parse().map(Kind::Directory) }
    }
}

/// The registries that MacOSImages name.
struct OciStore {
    registries: macrack_oci::Client,
    secrets: Api<Secret>,
}

impl OciStore {
    async fn look(&self, source: &Oci) -> Resolution {
        let client = match self.client(source).await {
            Ok(client) => client,
            Err(resolution) => return resolution,
        };
        let reference = match source.image.parse() {
            Ok(reference) => reference,
            Err(error) => return Resolution::Invalid(format!("{error}")),
        };
        let golden = client.manifest(&reference).await.and_then(|bytes| Golden::read(&bytes));
        match golden {
            Ok(golden) => Resolution::Found { bytes: golden.disk_bytes },
            Err(macrack_oci::Error::NotFound(_)) => Resolution::Missing("the registry has no such image".into()),
            // a pull secret may be mended, so it is asked again
            Err(error @ macrack_oci::Error::Denied { .. }) => Resolution::Unreachable(error.to_string()),
            Err(error) if error.class() == Class::Invalid => Resolution::Invalid(error.to_string()),
            Err(error) => Resolution::Unreachable(error.to_string()),
        }
    }

    /// A client with what the image's pull secret holds.
    async fn client(&self, source: &Oci) -> Result<macrack_oci::Client, Resolution> {
        let Some(secret) = &source.pull_secret_ref else { return Ok(self.registries.clone()) };
        let name = format!("pull secret {SYSTEM_NAMESPACE}/{}", secret.name);
        let found = self.secrets.get_opt(&secret.name).await;
        let found = found.map_err(|error| Resolution::Unreachable(format!("{name}: {error}")))?;
        let found = found.ok_or_else(|| Resolution::Unreachable(format!("{name} does not exist; make it")))?;
        let data = found.data.unwrap_or_default().remove(Credentials::SECRET_KEY).ok_or_else(|| {
            Resolution::Unreachable(format!("{name} is not of type kubernetes.io/dockerconfigjson; make it anew"))
        })?;
        let credentials = Credentials::from_docker_config(&data.0);
        let credentials = credentials.map_err(|error| Resolution::Unreachable(format!("{name}: {error}")))?;
        Ok(self.registries.with(credentials))
    }
}

impl ImageStore for OciStore {
    fn resolve<'a>(&'a self, source: &'a Oci) -> Pin<Box<dyn Future<Output = Resolution> + Send + 'a>> {
        Box::pin(self.look(source))
    }
}

/// A directory of goldens, `dir:/path` on the command line.
#[derive(Clone, Debug)]
pub struct DirectoryStore {
    root: PathBuf,
}

impl FromStr for DirectoryStore {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("dir:") {
            Some(path) if Path::new(path).is_absolute() => Ok(Self { root: path.into() }),
            _ => Err(format!("--image-store {text:?}: write oci, or dir: and an absolute path, e.g. dir:/srv/goldens")),
        }
    }
}

/// The part of a manifest that the operator reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    disk_bytes: u64,
}

/// Largest manifest that is read, in bytes.
const MANIFEST_MAX: u64 = 1 << 20;

impl DirectoryStore {
    /// The folder of a reference: `registry/path[:tag]@sha256:hex`.
    fn folder(&self, reference: &str) -> Option<PathBuf> {
        let (path, digest) = reference.rsplit_once('@')?;
        let (registry, rest) = path.split_once('/')?;
        let rest = rest.rsplit_once(':').map_or(rest, |(path, _tag)| path);
        let below: PathBuf = [registry, rest, &digest.replacen(':', "-", 1)].iter().collect();
        // nothing of a reference may lead out of the store
        below.components().all(|c| matches!(c, Component::Normal(_))).then(|| self.root.join(below))
    }

    async fn look(&self, reference: &str) -> Resolution {
        let Some(folder) = self.folder(reference) else {
            return Resolution::Invalid("this is no pinned reference".into());
        };
        if let Err(error) = tokio::fs::metadata(&self.root).await {
            return Resolution::Unreachable(format!("{}: {error}", self.root.display()));
        }
        let path = folder.join("manifest.json");
        let size = match tokio::fs::metadata(&path).await {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Resolution::Missing("the store has no such image".into());
            }
            Err(error) => return Resolution::Unreachable(error.to_string()),
        };
        if size > MANIFEST_MAX {
            return Resolution::Invalid(format!("its manifest has {size} bytes, at most {MANIFEST_MAX} are read"));
        }
        match tokio::fs::read(&path).await {
            Ok(bytes) => match serde_json::from_slice::<Manifest>(&bytes) {
                Ok(manifest) => Resolution::Found { bytes: manifest.disk_bytes },
                Err(error) => Resolution::Invalid(format!("its manifest cannot be read: {error}")),
            },
            Err(error) => Resolution::Unreachable(error.to_string()),
        }
    }
}

impl ImageStore for DirectoryStore {
    fn resolve<'a>(&'a self, source: &'a Oci) -> Pin<Box<dyn Future<Output = Resolution> + Send + 'a>> {
        Box::pin(self.look(&source.image))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff;
    use macrack_oci::layout::{Blob, Chunk};
    use macrack_testkit::{Registry, RegistryOptions};
    use serde_json::json;

    use super::*;

    /// A golden of one chunk, and something that is none.
    async fn in_a_registry(registry: &Registry) -> [String; 2] {
        let client = macrack_oci::Client::new(macrack_oci::Options::default()).unwrap();
        let target = format!("{}/golden/tahoe:26.1", registry.address()).parse().unwrap();
        let bytes = bytes::Bytes::from_static(b"{}");
        let blob = Blob { digest: macrack_oci::digest::of(&bytes), size: 2 };
        client.put_blob(&target, &blob.digest, bytes).await.unwrap();
        let chunk = Chunk { blob: blob.clone(), offset: 0, raw_size: 4096, raw_digest: None };
        let golden = Golden {
            image_config: blob.clone(),
            config: blob.clone(),
            chunks: vec![chunk],
            nvram: blob.clone(),
            disk_bytes: 4096,
            facts: Default::default(),
        };
        let manifest = golden.write(jiff::Timestamp::UNIX_EPOCH).unwrap();
        let none = String::from_utf8(manifest.clone()).unwrap().replace("tart.nvram.v1", "tart.other.v1").into_bytes();
        let golden = client.put_manifest(&target, manifest).await.unwrap().to_string();
        [golden, client.put_manifest(&target, none).await.unwrap().to_string()]
    }

    #[tokio::test]
    async fn a_registry_has_it_or_lacks_it_or_has_something_else_or_is_away() {
        let registry = Registry::start(RegistryOptions::default()).await.unwrap();
        let [golden, none] = in_a_registry(&registry).await;
        let args = StoreArgs { image_store: Kind::Oci, registry_mirror: Vec::new(), insecure_registry: Vec::new() };
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let store = args.open(Client::try_from(nowhere).unwrap()).unwrap();
        let of = |image: &str, secret: Option<&str>| {
            let secret = secret.map(|name| json!({ "name": name }));
            let source: Oci = serde_json::from_value(json!({ "image": image, "pullSecretRef": secret })).unwrap();
            let store = store.clone();
            async move { store.resolve(&source).await }
        };
        assert_eq!(of(&golden, None).await, Resolution::Found { bytes: 4096 });
        let missing = format!("{}@sha256:{}", golden.split('@').next().unwrap(), "ab".repeat(32));
        assert!(matches!(of(&missing, None).await, Resolution::Missing(_)));
        let Resolution::Invalid(why) = of(&none, None).await else { panic!("something else is taken for a golden") };
        assert!(why.contains("which no macOS golden has"), "{why}");
        let Resolution::Unreachable(why) = of(&golden, Some("ghcr")).await else { panic!("no secret was looked for") };
        assert!(why.contains("pull secret macrack-system/ghcr"), "{why}");
        drop(registry);
        assert!(matches!(of(&golden, None).await, Resolution::Unreachable(_)));
    }

    #[test]
    fn a_reference_never_leads_out_of_the_store() {
        let store: DirectoryStore = "dir:/goldens".parse().unwrap();
        assert_eq!(
            store.folder("registry.example.com/golden/tahoe:v1@sha256:ab"),
            Some("/goldens/registry.example.com/golden/tahoe/sha256-ab".into())
        );
        assert_eq!(store.folder("registry.example.com/../../etc@sha256:ab"), None);
        assert_eq!(store.folder("no-digest"), None);
        assert!("dir:relative".parse::<DirectoryStore>().unwrap_err().contains("absolute"));
    }
}
