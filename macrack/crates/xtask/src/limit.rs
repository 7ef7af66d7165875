//! Nothing in the repository may name the means of raising the kernel's limit of two macOS VMs: no code, no manifest, no
//! script. A page of the docs may, on a line that says it is refused.
//!
//! The names are put together from halves, so that this file does not name them either. Their source: the boot arguments
//! and the kernel variable that public write-ups of the limit describe; all of them need a lowered boot security and a
//! development kernel.

use std::{
    fs::{self, DirEntry},
    io,
    path::Path,
};

use anyhow::Result;

use crate::walk::files;

/// A file longer than this is data, not text that somebody wrote.
const MAX_BYTES: u64 = 2 << 20;
/// What is no source: build output, caches, what cargo writes.
const SKIPPED: &[&str] = &["target", ".git", "bin", "node_modules", "Cargo.lock"];
/// A line that refuses says one of these.
const REFUSAL: &[&str] = &["never", "refuse"];

/// What no file may say, in lower case.
fn names() -> [String; 8] {
    [
        "hv_apple_isa_".to_owned() + "vm_quota",
        "hv.apple_isa_".to_owned() + "vm_quota",
        "kern.hv.".to_owned() + "vm",
        "hv_vm_".to_owned() + "quota",
        "boot-".to_owned() + "args",
        "hypervisor".to_owned() + "=0x",
        "kcsuffix".to_owned() + "=",
        "bpu".to_owned() + "til",
    ]
}

/// Findings in every text file below `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files(root, &is_source)? {
        // what is no text names nothing to a reader
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        findings.extend(judge(&name, &text));
    }
    Ok(findings)
}

fn judge(name: &str, text: &str) -> Vec<String> {
    let names = names();
    let is_page = name.ends_with(".md");
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        let Some(word) = names.iter().find(|word| line.contains(word.as_str())) else { continue };
        let refuses = is_page && REFUSAL.iter().any(|word| line.contains(word));
        if !refuses {
            findings.push(format!(
                "{name}:{}: names {word}; MacRack has no path that asks the kernel for more than two VMs (a page may name \
                 it on a line that says it is refused)",
                number + 1
            ));
        }
    }
    findings
}

/// A folder with sources, or a file that is text and no link to one.
fn is_source(entry: &DirEntry) -> io::Result<bool> {
    let (name, path) = (entry.file_name(), entry.path());
    let skipped = SKIPPED.iter().any(|skipped| name == *skipped);
    if skipped && !path.parent().is_some_and(|dir| dir.ends_with("src")) {
        return Ok(false);
    }
    let kind = entry.file_type()?;
    Ok(kind.is_dir() || (kind.is_file() && entry.metadata()?.len() <= MAX_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_every_kind_of_file_wherever_it_hides() {
        for name in names() {
            for file in
                ["crates/agent/src/quota.rs", "deploy/launchd/a.plist", "ci/prepare.sh", "docs/x.md", "justfile"]
            {
                let planted = format!("fine\n  sudo set {}7\n", name.to_uppercase());
                let findings = judge(file, &planted);
                assert!(findings.len() == 1 && findings[0].starts_with(&format!("{file}:2: ")), "{findings:?}");
            }
        }
    }

    #[test]
    fn a_page_may_say_that_it_is_refused_and_code_may_not() {
        let line = format!("MacRack never sets {}", names()[0]);
        assert!(judge("docs/licence.md", &line).is_empty());
        assert_eq!(judge("crates/vm/src/run.rs", &line).len(), 1);
    }

    #[test]
    fn planted_files_are_found_on_the_disk_and_build_output_is_not_searched() {
        let root = std::env::temp_dir().join(format!("macrack-limit-{}", std::process::id()));
        for dir in ["crates/agent/src/bin", "target", "deploy/launchd"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for file in ["crates/agent/src/bin/more.rs", "target/more.rs", "deploy/launchd/more.plist"] {
            fs::write(root.join(file), format!("{}=9", names()[0])).unwrap();
        }
        let mut findings = check(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        findings.sort();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("crates/agent/src/bin/more.rs:1") && findings[1].starts_with("deploy/launchd"));
    }
}
