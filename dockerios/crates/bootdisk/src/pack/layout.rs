//! The OCI image layout: blobs by their sums, a manifest, an index. Invariant: made under another name beside the output
//! and moved there whole; nothing in it tells when or where it was made.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::layer::{self, Blob};
use crate::output::{UNFINISHED_LAYOUT, folder_of};
use crate::template::digest;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
// keys stand in their order below, whether or not some crate turns on that serde_json keeps another

/// The beginning of time: a fixed one is wanted, and readers expect one.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Writes the layout of an image of `size` bytes and gives the manifest's digest.
pub fn write(output: &Path, image: &mut File, size: u64) -> io::Result<String> {
    let parent = folder_of(output);
    let making = tempfile::Builder::new().prefix(UNFINISHED_LAYOUT).tempdir_in(parent)?;
    let digest = fill(making.path(), image, size)?;
    if is_archive(output) {
        let mut file = tempfile::Builder::new().prefix(UNFINISHED_LAYOUT).tempfile_in(parent)?;
        archive(making.path(), file.as_file_mut())?;
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        file.persist_noclobber(output).map_err(|error| error.error)?;
    } else {
        fs::set_permissions(making.path(), Permissions::from_mode(0o755))?;
        fs::rename(making.path(), output)?;
        // it lies under its own name now
        let _ = making.keep();
    }
    File::open(parent)?.sync_all()?;
    Ok(digest)
}

/// Whether the layout is to be one file.
pub fn is_archive(output: &Path) -> bool {
    output.extension().is_some_and(|extension| extension == "tar")
}

/// The layout in an empty folder.
fn fill(folder: &Path, image: &mut File, size: u64) -> io::Result<String> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let growing = folder.join("layer");
    let mut file = File::create_new(&growing)?;
    let layer = layer::write(image, size, &mut file)?;
    file.sync_all()?;
    fs::rename(growing, blobs.join(&layer.blob.sha256))?;
    let config = put(
        &blobs,
        &json!({
            "architecture": "amd64",
            "config": {},
            "created": CREATED,
            "history": [{"created": CREATED, "created_by": "dockerios-bootdisk pack"}],
            "os": "linux",
            "rootfs": {"diff_ids": [format!("sha256:{}", layer.diff_id)], "type": "layers"},
        }),
    )?;
    let manifest = json!({
        "config": descriptor(CONFIG, &config),
        "layers": [descriptor(LAYER, &layer.blob)],
        "mediaType": MANIFEST,
        "schemaVersion": 2,
    });
    let manifest = put(&blobs, &manifest)?;
    let index = json!({"manifests": [descriptor(MANIFEST, &manifest)], "mediaType": INDEX, "schemaVersion": 2});
    save(&folder.join("index.json"), index.to_string().as_bytes())?;
    save(&folder.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(format!("sha256:{}", manifest.sha256))
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({"digest": format!("sha256:{}", blob.sha256), "mediaType": media_type, "size": blob.size})
}

fn put(blobs: &Path, content: &Value) -> io::Result<Blob> {
    let text = content.to_string();
    let blob = Blob {
        sha256: digest(text.as_bytes()),
        size: text.len() as u64,
    };
    save(&blobs.join(&blob.sha256), text.as_bytes())?;
    Ok(blob)
}

fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The layout in one file, as `skopeo` reads it (`oci-archive:`), in a fixed order.
fn archive(folder: &Path, to: &mut File) -> io::Result<()> {
    let mut tar = tar::Builder::new(io::BufWriter::new(to));
    let mut blobs: Vec<_> = fs::read_dir(folder.join("blobs/sha256"))?
        .map(|entry| entry.map(|entry| format!("blobs/sha256/{}", entry.file_name().to_string_lossy())))
        .collect::<io::Result<_>>()?;
    blobs.sort();
    let files = ["oci-layout", "index.json"].into_iter().map(str::to_owned).chain(blobs);
    for name in files {
        let file = File::open(folder.join(&name))?;
        let mut header = tar::Header::new_ustar();
        header.set_path(&name)?;
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(file.metadata()?.len());
        header.set_cksum();
        tar.append(&header, file)?;
    }
    tar.into_inner()?.flush()
}
