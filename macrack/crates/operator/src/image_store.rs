//! Where goldens are looked up when a MacOSImage is made. A directory store for now: the same tree that agents pull
//! from (`<root>/<registry>/<path>/sha256-<hex>/manifest.json`).

use std::{
    path::{Component, Path, PathBuf},
    pin::Pin,
    str::FromStr,
};

use macrack_core::decide::image::Resolution;
use serde::Deserialize;

/// A store that can say whether it has a golden.
pub trait ImageStore: Send + Sync {
    /// Looks an image up by its pinned reference.
    fn resolve<'a>(&'a self, reference: &'a str) -> Pin<Box<dyn Future<Output = Resolution> + Send + 'a>>;
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
            _ => Err(format!("--image-store {text:?}: write dir: and an absolute path, e.g. dir:/srv/goldens")),
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
    fn resolve<'a>(&'a self, reference: &'a str) -> Pin<Box<dyn Future<Output = Resolution> + Send + 'a>> {
        Box::pin(self.look(reference))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
