//! What the pages promise: docs/constraints.md names tests and places, docs/seams.md lists the eight open seams; every
//! page says where Apple's licence stands, is in docs/SUMMARY.md, and links to what there is. A test that was renamed, a
//! place that moved, a seam or a page that went missing is a finding.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{root, sources::rust_files};

/// The seams that have no technical answer, as the platform's founding document lists them; the first two decide
/// whether to begin at all.
const SEAMS: [&str; 8] = [
    "Apple's licence",
    "The Intel sunset",
    "Network throughput",
    "GPU density",
    "Live migration",
    "Instant boot",
    "Guest agent",
    "APFS on Linux",
];

/// The contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Short records of decisions: their index says it for them.
const DECISIONS: &str = "docs/adr/0";

/// What a row says that names no test.
const NOT_SHOWN: &str = "not shown here: ";

pub(crate) fn findings() -> Result<Vec<String>> {
    let read = |page: &str| fs::read_to_string(root().join(page)).context(page.to_owned());
    let mut tests = HashSet::new();
    for file in rust_files(&root().join("crates"))? {
        tests.extend(functions(&fs::read_to_string(file)?));
    }
    let there = |path: &str| root().join(path).exists();
    let mut findings = constraints(&read("docs/constraints.md")?, &tests, there);
    findings.extend(seams(&read("docs/seams.md")?, there));
    let summary = read(SUMMARY)?;
    for page in markdown(&root())? {
        let text = read(&page)?;
        findings.extend(linked(&page, &text, there));
        findings.extend(licensed(&page, &text));
        findings.extend(in_the_book(&page, &summary));
    }
    Ok(findings)
}

/// Every page, by its path below the workspace: the book, and what lies at the root and in the crates.
fn markdown(root: &Path) -> Result<Vec<String>> {
    let mut folders = vec![root.to_owned(), root.join("docs"), root.join("docs/adr")];
    for entry in fs::read_dir(root.join("crates")).context("crates")? {
        folders.push(entry?.path());
    }
    let mut pages = Vec::new();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path: PathBuf = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let below = path.strip_prefix(root).unwrap_or(&path);
                pages.push(below.to_string_lossy().into_owned());
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Links of a page to files that are not there.
fn linked(page: &str, text: &str, there: impl Fn(&str) -> bool) -> Vec<String> {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let targets = links(text).into_iter().filter(|link| !link.contains("://"));
    let files = targets
        .filter_map(|link| link.split('#').next())
        .filter(|link| !link.is_empty());
    files
        .filter(|link| !there(&folder.join(link).to_string_lossy()))
        .map(|link| format!("{page}: links to {link}, which is not there"))
        .collect()
}

/// A page that says nothing of Apple's licence.
fn licensed(page: &str, text: &str) -> Option<String> {
    let says = ["Apple's licence", "Apple's agreement", "Apple's software licence"];
    // broken anywhere
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let silent = page != SUMMARY && !page.starts_with(DECISIONS) && !says.iter().any(|words| text.contains(words));
    silent.then(|| format!("{page}: does not say that macOS off Apple hardware is outside Apple's licence"))
}

/// A page of the book that its contents do not lead to.
fn in_the_book(page: &str, summary: &str) -> Option<String> {
    let below = page.strip_prefix("docs/").filter(|_| page != SUMMARY)?;
    let lost = !summary.contains(&format!("({below})"));
    lost.then(|| format!("{page}: is not in {SUMMARY}"))
}

/// Names of the functions in a source.
fn functions(text: &str) -> Vec<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let behind = text.split("fn ").skip(1);
    let names = behind.map(|rest| rest.chars().take_while(|c| word(*c)).collect::<String>());
    names.filter(|name| !name.is_empty()).collect()
}

/// The cells of the table whose header's first cell is `first`.
fn rows<'a>(page: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let cells = |line: &'a str| -> Option<Vec<&'a str>> {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(inner.split('|').map(str::trim).collect())
    };
    let table = page
        .lines()
        .skip_while(|line| cells(line).is_none_or(|row| row[0] != first));
    // the header and the line below it
    table.skip(2).map_while(cells).collect()
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Targets of links.
fn links(cell: &str) -> Vec<&str> {
    let behind = cell.split("](").skip(1);
    behind.filter_map(|rest| rest.split(')').next()).collect()
}

fn constraints(page: &str, tests: &HashSet<String>, there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    let table = rows(page, "Constraint");
    if table.is_empty() {
        findings.push("docs/constraints.md: has no table that begins with | Constraint |".to_owned());
    }
    for row in table {
        let mut fault = |why: String| findings.push(format!("docs/constraints.md: {}: {why}", row[0]));
        let [_, _, tier, place, shown] = row[..] else {
            fault(format!("{} cells instead of 5", row.len()));
            continue;
        };
        if tier.is_empty() || !tier.split(", ").all(|tier| ["1", "2", "3"].contains(&tier)) {
            fault(format!("tier {tier:?}; write 1, 2 or 3, several with a comma"));
        }
        let places = quoted(place).into_iter().map(str::to_owned);
        let places: Vec<String> = places
            .chain(links(place).into_iter().map(|link| format!("docs/{link}")))
            .collect();
        if places.is_empty() {
            fault("names no place".to_owned());
        }
        for missing in places.iter().filter(|path| !there(path)) {
            fault(format!("{missing} is not there; name it from the workspace's root"));
        }
        let named = quoted(shown);
        if named.is_empty() && !shown.contains(NOT_SHOWN) {
            fault(format!("names no test, and does not say \"{NOT_SHOWN}\" and why"));
        }
        for missing in named.iter().filter(|name| !tests.contains(**name)) {
            fault(format!("there is no test {missing}"));
        }
    }
    findings
}

fn seams(page: &str, there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    let table = rows(page, "Seam");
    let named: Vec<&str> = table.iter().map(|row| row[0]).collect();
    if named != SEAMS {
        findings.push(format!("docs/seams.md: names {named:?}; the open seams are {SEAMS:?}"));
    }
    for row in table {
        let mut fault = |why: &str| findings.push(format!("docs/seams.md: {}: {why}", row[0]));
        if row.len() != 4 || row.iter().any(|cell| cell.is_empty()) {
            fault("a row has seam, reason, what is done instead, and where");
            continue;
        }
        let linked = links(row[3]);
        if linked.is_empty()
            || linked
                .iter()
                .any(|link| !there(&Path::new("docs").join(link).to_string_lossy()))
        {
            fault("links to no page that there is");
        }
    }
    if !page.contains("(licence.md)") {
        findings.push("docs/seams.md: does not link to the licence's page".to_owned());
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| Constraint | Answer | Tier | Where | Shown by |\n|---|---|---|---|---|\n";

    fn judged(row: &str) -> Vec<String> {
        let tests = functions("#[test]\nfn it_is_so() {}\n    pub(crate) async fn it_is_so_too()\n");
        let there = |path: &str| ["crates/api", "docs/launcher.md"].contains(&path);
        constraints(
            &format!("text\n\n{HEAD}{row}\n\ntext | no table\n"),
            &tests.into_iter().collect(),
            there,
        )
    }

    #[test]
    fn a_row_that_names_what_there_is_passes() {
        for good in [
            "| A | b | 1 | `crates/api` | cluster: `it_is_so` |",
            "| A | b | 2, 3 | `crates/api`, [page](launcher.md) | `it_is_so`, `it_is_so_too` |",
            "| A | b | 1 | `crates/api` | not shown here: needs nodes |",
        ] {
            assert_eq!(judged(good), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn a_test_or_a_place_that_is_not_there_is_found_by_its_row() {
        for (bad, why) in [
            (
                "| A | b | 1 | `crates/api` | `it_was_so` |",
                "A: there is no test it_was_so",
            ),
            ("| A | b | 1 | `core/api` | `it_is_so` |", "A: core/api is not there"),
            (
                "| A | b | 1 | [page](gone.md) | `it_is_so` |",
                "docs/gone.md is not there",
            ),
            ("| A | b | 1 | somewhere | `it_is_so` |", "names no place"),
            ("| A | b | 4 | `crates/api` | `it_is_so` |", "tier \"4\""),
            ("| A | b | 1 | `crates/api` | yes |", "names no test"),
            ("| A | b | 1 | `crates/api` |", "4 cells instead of 5"),
        ] {
            let found = judged(bad);
            assert!(found.len() == 1 && found[0].contains(why), "{bad}: {found:?}");
        }
        assert!(constraints("no table", &HashSet::new(), |_| true)[0].contains("has no table"));
    }

    fn seams_page(names: &[&str]) -> String {
        let rows = names.iter().map(|name| format!("| {name} | why | so | [p](p.md) |\n"));
        format!(
            "[licence](licence.md)\n\n| Seam | Why | What is done instead | Where |\n|---|---|---|---|\n{}",
            rows.collect::<String>()
        )
    }

    #[test]
    fn the_eight_seams_are_listed_in_their_order_with_a_page_each() {
        assert_eq!(seams(&seams_page(&SEAMS), |_| true), Vec::<String>::new());
        let found = seams(&seams_page(&SEAMS[..7]), |_| true);
        assert!(found.len() == 1 && found[0].contains("APFS on Linux"), "{found:?}");
        let more: Vec<&str> = SEAMS.into_iter().chain(["One more"]).collect();
        assert!(seams(&seams_page(&more), |_| true)[0].contains("One more"));
        assert!(seams(&seams_page(&SEAMS), |_| false)[0].contains("links to no page"));
        let silent = seams_page(&SEAMS).replace("licence.md", "x.md");
        assert!(seams(&silent, |_| true)[0].contains("does not link to the licence"));
    }
    #[test]
    fn a_link_to_a_page_that_is_gone_is_found_from_where_it_stands() {
        let there = |path: &str| ["docs/a.md", "docs/adr/../a.md"].contains(&path);
        let text = "[a](a.md#part) [b](b.md) [far](https://example.com/x) [here](#part)";
        let found = linked("docs/page.md", text, there);
        assert_eq!(found, ["docs/page.md: links to b.md, which is not there"]);
        assert_eq!(linked("docs/adr/page.md", "[a](../a.md)", there), Vec::<String>::new());
    }

    #[test]
    fn a_page_that_is_silent_on_the_licence_or_not_in_the_book_is_found() {
        let silent = licensed("docs/page.md", "macOS runs").expect("silent");
        assert!(silent.contains("docs/page.md: does not say"), "{silent}");
        assert_eq!(licensed("docs/page.md", "is outside Apple's\nlicence"), None);
        assert_eq!(licensed("docs/adr/0009-x.md", "we do"), None);
        let lost = in_the_book("docs/page.md", "- [A](a.md)").expect("lost");
        assert_eq!(lost, "docs/page.md: is not in docs/SUMMARY.md");
        assert_eq!(in_the_book("docs/a.md", "- [A](a.md)"), None);
        assert_eq!(in_the_book("README.md", ""), None);
    }
}
