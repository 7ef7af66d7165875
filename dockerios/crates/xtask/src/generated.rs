//! Files that are written by this program and never by hand. Invariant: nothing else lies among the definitions, so
//! that a kind that was renamed leaves no old definition behind.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{conditions, root};

const DEFINITIONS: &str = "deploy/crds";

/// Path below the workspace, and contents.
fn files() -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::from([("docs/conditions.md".to_owned(), conditions::page())]);
    for crd in dockerios_api::crds()? {
        let mut manifest = serde_json::to_value(&crd)?;
        // the API server writes it, and an installer must not
        manifest.as_object_mut().map(|fields| fields.remove("status"));
        let name = crd.metadata.name.context("a definition without a name")?;
        let body = serde_yaml::to_string(&manifest)?;
        let head = "# Written by `cargo run -p xtask -- generate` from crates/api; change it there.\n";
        files.insert(format!("{DEFINITIONS}/{name}.yaml"), format!("{head}{body}"));
    }
    Ok(files)
}

pub(crate) fn write() -> Result<()> {
    let files = files()?;
    for (path, contents) in &files {
        let full = root().join(path);
        fs::create_dir_all(full.parent().context("a path without a folder")?)?;
        if fs::read_to_string(&full).ok().as_ref() == Some(contents) {
            continue;
        }
        fs::write(&full, contents).with_context(|| format!("write {path}"))?;
        println!("{path}");
    }
    for path in strangers(&files, &root())? {
        fs::remove_file(root().join(&path)).with_context(|| format!("remove {path}"))?;
        println!("{path} removed");
    }
    Ok(())
}

/// What differs from what would be written.
pub(crate) fn drift() -> Result<Vec<String>> {
    compare(&files()?, &root())
}

fn compare(files: &BTreeMap<String, String>, root: &Path) -> Result<Vec<String>> {
    let way_out = "run `cargo run -p xtask -- generate` and commit";
    let mut findings = Vec::new();
    for (path, contents) in files {
        match fs::read_to_string(root.join(path)) {
            Ok(found) if found == *contents => {}
            Ok(_) => findings.push(format!("{path} is not what crates/api says; {way_out}")),
            Err(error) => findings.push(format!("{path}: {error}; {way_out}")),
        }
    }
    for path in strangers(files, root)? {
        findings.push(format!("{path} is not generated any more; {way_out}"));
    }
    Ok(findings)
}

fn strangers(files: &BTreeMap<String, String>, root: &Path) -> Result<Vec<String>> {
    let folder = root.join(DEFINITIONS);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut strangers = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = format!("{DEFINITIONS}/{}", entry?.file_name().to_string_lossy());
        if path.ends_with(".yaml") && !files.contains_key(&path) {
            strangers.push(path);
        }
    }
    Ok(strangers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_image_and_identity_groups_know_no_workloads_words() {
        for (path, contents) in files().expect("generated") {
            if !["machine", "image", "identity"]
                .iter()
                .any(|group| path.contains(&format!(".{group}.dockerios.io")))
            {
                continue;
            }
            let text = contents.to_lowercase();
            for word in ["gitlab", "xcode", "runner"] {
                assert!(!text.contains(word), "{path} says {word}");
            }
        }
    }

    #[test]
    fn every_kind_has_a_definition_without_null_and_without_status_of_its_own() {
        let files = files().expect("generated");
        let definitions: Vec<_> = files.iter().filter(|(path, _)| path.starts_with(DEFINITIONS)).collect();
        assert_eq!(definitions.len(), 8);
        for (path, contents) in definitions {
            assert!(!contents.contains("nullable:"), "{path}");
            assert!(
                contents.contains("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"),
                "{path}"
            );
            assert!(!contents.contains("\nstatus:"), "{path}");
        }
    }

    #[test]
    fn a_changed_a_missing_and_a_leftover_file_are_each_found() {
        let root = std::env::temp_dir().join(format!("xtask-drift-{}", std::process::id()));
        let crds = root.join(DEFINITIONS);
        fs::create_dir_all(&crds).expect("a folder");
        fs::write(crds.join("a.yaml"), "old").expect("written");
        fs::write(crds.join("left.yaml"), "x").expect("written");
        let wanted = ["a", "b"].map(|name| (format!("{DEFINITIONS}/{name}.yaml"), "new".to_owned()));
        let found = compare(&wanted.into(), &root).expect("compared");
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(found.len(), 3, "{found:?}");
        for (finding, part) in found.iter().zip([
            "a.yaml is not what",
            "b.yaml: No such file",
            "left.yaml is not generated",
        ]) {
            assert!(
                finding.contains(part) && finding.contains("xtask -- generate"),
                "{finding}"
            );
        }
    }
}
