//! The store that goldens come from: OCI registries.
//!
//! A golden whose MacOSImage names a pull secret is asked for with what that Secret holds, read when it is needed and
//! never kept on the disk. The operator grants an agent the Secrets of those images that its chassis needs, by name.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client as Kube};
use macrack_api::names::SYSTEM_NAMESPACE;
use macrack_oci::layout::VmConfig;
use macrack_oci::{Client, Credentials, Error, Golden, Options, pull};

use super::progress::Progress;
use super::store::{ImageStore, Manifest, Source, StoreError, Watchdog};
use crate::gather::words;

/// OCI registries.
pub struct OciStore {
    client: Client,
    /// The API, once there is a way to it: pull secrets are there.
    kube: OnceLock<Kube>,
}

impl OciStore {
    /// The store of every registry.
    ///
    /// # Errors
    /// When this machine's trusted certificates cannot be read.
    pub fn new(options: Options) -> Result<Self, Error> {
        Ok(OciStore { client: Client::new(options)?, kube: OnceLock::new() })
    }

    /// A client with what the source's pull secret holds.
    async fn client(&self, source: &Source) -> Result<Client, StoreError> {
        let Some(name) = &source.pull_secret else { return Ok(self.client.clone()) };
        let what = format!("pull secret {SYSTEM_NAMESPACE}/{name}");
        let later = |why: String| StoreError::Transient { what: format!("{what}: {why}"), after: None };
        let Some(kube) = self.kube.get() else {
            return Err(later("there is no way to the API server yet".to_owned()));
        };
        let secrets: Api<Secret> = Api::namespaced(kube.clone(), SYSTEM_NAMESPACE);
        let secret = match secrets.get_opt(name).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                return Err(StoreError::Denied(format!(
                    "{what} does not exist; make it, of type kubernetes.io/dockerconfigjson"
                )));
            }
            // a right that was just granted takes a moment
            Err(error) => return Err(later(words(&error))),
        };
        let data = secret.data.unwrap_or_default().remove(Credentials::SECRET_KEY);
        let Some(data) = data else {
            return Err(StoreError::Denied(format!(
                "{what} has no key {}; make it with kubectl create secret docker-registry",
                Credentials::SECRET_KEY
            )));
        };
        let credentials = Credentials::from_docker_config(&data.0);
        let credentials = credentials.map_err(|error| StoreError::Denied(format!("{what}: {error}")))?;
        Ok(self.client.with(credentials))
    }
}

impl ImageStore for OciStore {
    fn use_api(&self, kube: &Kube) {
        // asked once, at the start
        let _ = self.kube.set(kube.clone());
    }

    fn manifest<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Manifest, StoreError>> {
        Box::pin(async move {
            let golden = read(&self.client(source).await?, source).await?;
            Ok(manifest(&golden, None))
        })
    }

    fn fetch<'a>(
        &'a self,
        source: &'a Source,
        _: &'a Manifest,
        into: &'a Path,
        watchdog: Watchdog,
    ) -> BoxFuture<'a, Result<Manifest, StoreError>> {
        Box::pin(async move {
            let client = self.client(source).await?;
            let golden = read(&client, source).await?;
            let observer = Arc::new(Observer { progress: watchdog.progress, room: watchdog.room });
            let pulled = pull::pull(&client, &source.reference, &golden, into, observer, watchdog.cancel.clone());
            let config = pulled.await.map_err(|error| match error {
                Error::Stopped(_) if watchdog.cancel.is_cancelled() => StoreError::Cancelled,
                Error::Stopped(why) => StoreError::NoRoom(why),
                other => told(source, other),
            })?;
            Ok(manifest(&golden, Some(config)))
        })
    }
}

async fn read(client: &Client, source: &Source) -> Result<Golden, StoreError> {
    let bytes = client.manifest(&source.reference).await.map_err(|error| told(source, error))?;
    Golden::read(&bytes).map_err(|error| told(source, error))
}

fn manifest(golden: &Golden, config: Option<VmConfig>) -> Manifest {
    let facts = golden.facts.clone();
    Manifest {
        os_version: facts.os_version,
        xcode_version: facts.xcode_version,
        guest_agent_version: facts.guest_agent_version,
        minimum_host_version: facts.minimum_host_version,
        disk_bytes: golden.disk_bytes,
        disk_sha256: None,
        aux_sha256: None,
        hardware_model: config.map(|config| config.hardware_model),
    }
}

fn told(source: &Source, error: Error) -> StoreError {
    let reference = source.reference.clone();
    match error {
        Error::NotFound(_) => StoreError::NotFound(reference),
        Error::NotAGolden(why) => StoreError::NotAGolden { reference, why },
        Error::Denied { .. } | Error::Invalid(_) => StoreError::Denied(error.to_string()),
        Error::Transient { what, why, after } => StoreError::Transient { what: format!("{what}: {why}"), after },
        Error::NoSpace { .. } => StoreError::NoRoom(error.to_string()),
        Error::Stopped(why) => StoreError::NoRoom(why),
        Error::Io { what, source } => StoreError::Io { what, source },
    }
}

struct Observer {
    progress: Arc<Progress>,
    room: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl pull::Observer for Observer {
    fn done(&self, bytes: u64) {
        self.progress.add(bytes);
    }
    fn undone(&self, bytes: u64) {
        self.progress.sub(bytes);
    }
    fn go_on(&self) -> Result<(), String> {
        (self.room)()
    }
}

#[cfg(test)]
#[path = "oci_tests.rs"]
mod tests;
