//! What can be read off a macOS disk: versions and free space. `root` is `/` on a real guest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

#[derive(Deserialize)]
struct SystemVersion {
    #[serde(rename = "ProductVersion")]
    product_version: String,
}

#[derive(Deserialize)]
struct BundleVersion {
    #[serde(rename = "CFBundleShortVersionString")]
    short_version: String,
}

/// The version of macOS, from `SystemVersion.plist` (the file that `sw_vers` reads).
pub fn os_version(root: &Path) -> Option<String> {
    let path = root.join("System/Library/CoreServices/SystemVersion.plist");
    Some(read_plist::<SystemVersion>(&path)?.product_version)
}

/// The newest `Xcode*.app` below `Applications`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xcode {
    /// The bundle.
    pub app: PathBuf,
    /// The version in its `version.plist`.
    pub version: String,
}

/// The newest `Xcode*.app` whose version can be read.
pub fn newest_xcode(root: &Path) -> Option<Xcode> {
    let applications = fs::read_dir(root.join("Applications")).ok()?;
    applications
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            (name.starts_with("Xcode") && name.ends_with(".app")).then_some(name)
        })
        .filter_map(|name| {
            let app = root.join("Applications").join(name);
            let version = read_plist::<BundleVersion>(&app.join("Contents/version.plist"))?.short_version;
            Some(Xcode { app, version })
        })
        .max_by_key(|xcode| numbers(&xcode.version))
}

/// Free bytes on the volume that holds `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let volume = rustix::fs::statvfs(path)?;
    Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
}

fn read_plist<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    match plist::from_file(path) {
        Ok(content) => Some(content),
        Err(error) if error.as_io().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a version cannot be read");
            None
        }
    }
}

/// `16.10.1` as `[16, 10, 1]`, so that 16.10 is newer than 16.9.
fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn plist_of(key: &str, value: &str) -> String {
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<plist version="1.0"><dict><key>Other</key><integer>1</integer><key>{key}</key><string>{value}</string></dict></plist>"#
        )
    }

    #[test]
    fn of_two_xcodes_the_newer_by_number_is_reported() {
        let key = "CFBundleShortVersionString";
        let root = root_with(&[
            ("Applications/Xcode-16.9.app/Contents/version.plist", &plist_of(key, "16.9")),
            ("Applications/Xcode.app/Contents/version.plist", &plist_of(key, "16.10")),
            ("Applications/Safari.app/Contents/version.plist", &plist_of(key, "99")),
        ]);
        let app = root.path().join("Applications/Xcode.app");
        assert_eq!(newest_xcode(root.path()), Some(Xcode { app, version: "16.10".to_owned() }));
    }

    #[test]
    fn the_version_of_macos_is_that_of_its_own_plist() {
        let root =
            root_with(&[("System/Library/CoreServices/SystemVersion.plist", &plist_of("ProductVersion", "26.1"))]);
        assert_eq!(os_version(root.path()).as_deref(), Some("26.1"));
    }

    #[test]
    fn a_broken_or_absent_plist_gives_no_version_instead_of_a_wrong_one() {
        let root =
            root_with(&[("System/Library/CoreServices/SystemVersion.plist", "<plist><dict><key>ProductVersion</key>")]);
        assert_eq!(os_version(root.path()), None);
        assert_eq!(newest_xcode(root.path()), None);
    }
}
