//! What nobody has run on a Mac yet is marked, and each mark has a row in the plan by which somebody closes it.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

use crate::walk::files;

/// The plan, below the workspace.
const PLAN: &str = "docs/hardware-test-plan.md";
/// Where marks stand.
const FOLDERS: [&str; 3] = ["crates", "deploy", "docs"];

/// Not written in one piece, or this file would carry the mark.
fn mark() -> String {
    "not yet run ".to_owned() + "on hardware"
}

/// Marks without a row, and rows without a mark.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut marked = BTreeSet::new();
    for folder in FOLDERS {
        marks(root, &root.join(folder), &mut marked)?;
    }
    marked.remove(PLAN);
    let plan = fs::read_to_string(root.join(PLAN)).context(PLAN)?;
    Ok(judge(&marked, &plan, |path| root.join(path).exists()))
}

fn judge(marked: &BTreeSet<String>, plan: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let closed = closed(plan);
    let without_row = marked.iter().filter(|file| !closed.contains(*file));
    let without_mark = closed.iter().filter(|file| !marked.contains(*file) && exists(file));
    let mut findings: Vec<String> =
        without_row.map(|file| format!("{file}: is marked {:?}, and no row of {PLAN} closes it", mark())).collect();
    findings.extend(without_mark.map(|file| format!("{PLAN}: closes a mark of {file}, which carries none")));
    findings
}

/// The files in the last column of the plan's tables.
fn closed(plan: &str) -> BTreeSet<String> {
    let last = |row: &str| row.trim_end_matches('|').rsplit('|').next().map(str::to_owned);
    let rows = plan.lines().map(str::trim).filter(|line| line.starts_with("| "));
    let named = |column: String| column.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.filter_map(last).flat_map(named).collect()
}

fn marks(root: &Path, dir: &Path, marked: &mut BTreeSet<String>) -> Result<()> {
    for path in files(dir, &|_| Ok(true))? {
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        // a mark may be broken over two lines of a comment or a page
        let text = String::from_utf8_lossy(&text).to_lowercase();
        let words: Vec<&str> =
            text.split(|c: char| c.is_whitespace() || "/!*#".contains(c)).filter(|w| !w.is_empty()).collect();
        if words.join(" ").contains(&mark()) {
            marked.insert(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_without_a_row_and_a_row_without_a_mark_are_found() {
        let plan = "| Step | Command | Expected | Closes |\n|---|---|---|---|\n| A1 | `ls` | x | `crates/a.rs`, `docs/b.md` |\n";
        let marked = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(judge(&marked(&["crates/a.rs", "docs/b.md"]), plan, |_| true), Vec::<String>::new());
        let found = judge(&marked(&["crates/a.rs", "crates/c.rs"]), plan, |_| true);
        assert!(found[0].contains("crates/c.rs") && found[0].contains("no row"), "{found:?}");
        assert!(found[1].contains("docs/b.md") && found[1].contains("carries none"), "{found:?}");
    }

    #[test]
    fn a_mark_is_seen_over_the_end_of_a_line() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.rs"), "//! Not yet\n//! run on hardware.\n").unwrap();
        fs::write(dir.path().join("b.rs"), "//! Run on hardware.\n").unwrap();
        let mut found = BTreeSet::new();
        marks(dir.path(), dir.path(), &mut found).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a.rs"]);
    }
}
