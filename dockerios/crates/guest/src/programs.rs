//! Programs whose versions are reported, as name and version. Which ones is the image's business: the platform's kinds
//! know no workload. Invariant: at most as many as the protocol takes, each name once.

use std::{
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use dockerios_wire::{Report, Software};

use crate::{facts::cut, lists};

/// A program whose version is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What it is called in the report.
    pub name: String,
    /// Directory of the bundles.
    pub directory: PathBuf,
    /// The bundle's name before and behind the `*`; without a `*` all of it stands before.
    pub stem: (String, Option<String>),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write NAME=/absolute/path/Bundle*.app; a * may stand once, in the last part";
        let (name, pattern) = text.split_once('=').ok_or_else(|| format!("no `=` in it; {form}"))?;
        let path = Path::new(pattern);
        let (Some(directory), Some(bundle)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
            return Err(format!("names no bundle; {form}"));
        };
        if !(1..=64).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(format!("the name has 1 to 64 printable characters; {form}"));
        }
        if !path.is_absolute() || directory.to_string_lossy().contains('*') || bundle.matches('*').count() > 1 {
            return Err(form.to_owned());
        }
        let stem = match bundle.split_once('*') {
            Some((before, behind)) => (before.to_owned(), Some(behind.to_owned())),
            None => (bundle.to_owned(), None),
        };
        Ok(Self {
            name: name.to_owned(),
            directory: directory.to_owned(),
            stem,
        })
    }
}

impl Wanted {
    fn fits(&self, bundle: &str) -> bool {
        match &self.stem {
            (all, None) => bundle == all,
            (before, Some(behind)) => {
                bundle.len() >= before.len() + behind.len() && bundle.starts_with(before) && bundle.ends_with(behind)
            }
        }
    }

    /// The bundles that are there, by name. A directory that is not there has none.
    fn bundles(&self, root: &Path) -> Result<Vec<PathBuf>, String> {
        let below = self.directory.strip_prefix("/").unwrap_or(&self.directory);
        // a user's folder is closed to daemons, root's too, unless macOS was told otherwise
        let cannot = |e: io::Error| format!("{}: cannot be read: {e}", self.directory.display());
        let entries = match fs::read_dir(root.join(below)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(cannot(e)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(cannot)?;
            if entry.file_name().to_str().is_some_and(|name| self.fits(name)) {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }
}

/// What there is of them in a system whose files are under `root`.
pub fn versions(root: &Path, wanted: &[Wanted], troubles: &mut Vec<String>) -> Vec<Software> {
    let mut found: Vec<Software> = Vec::new();
    for wanted in wanted {
        let bundles = wanted.bundles(root).unwrap_or_else(|trouble| {
            troubles.push(trouble);
            Vec::new()
        });
        let several = bundles.len() > 1;
        for bundle in bundles {
            let name = match bundle.file_stem() {
                Some(stem) if several => cut(&format!("{} ({})", wanted.name, stem.to_string_lossy())),
                _ => wanted.name.clone(),
            };
            match version(&bundle) {
                Ok(version) if found.iter().all(|s| s.name != name) => found.push(Software { name, version }),
                Ok(_) => troubles.push(format!("{}: a second program with the name {name}", bundle.display())),
                Err(e) => troubles.push(e),
            }
        }
    }
    if found.len() > Report::MOST_SOFTWARE {
        troubles.push(format!(
            "{} programs; the first {} are reported",
            found.len(),
            Report::MOST_SOFTWARE
        ));
        found.truncate(Report::MOST_SOFTWARE);
    }
    found
}

/// What the bundle says of itself: `version.plist` where it has one, as Xcode does, else `Info.plist`.
fn version(bundle: &Path) -> Result<String, String> {
    let own = bundle.join("Contents/version.plist");
    let list = if own.exists() {
        own
    } else {
        bundle.join("Contents/Info.plist")
    };
    let version = lists::text(&lists::dictionary(&list)?, "CFBundleShortVersionString");
    let version = version.map(|v| cut(&v)).filter(|v| !v.is_empty());
    version.ok_or_else(|| format!("{}: names no version", list.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_programs_are_parsed_and_matched() {
        let wanted: Wanted = "Tool=/Applications/Tool*.app".parse().expect("a program");
        assert!(wanted.fits("Tool.app") && wanted.fits("Tool-16.4.app"));
        assert!(!wanted.fits("Toolbox") && !wanted.fits("My Tool.app") && !wanted.fits("Tool.ap"));
        let exact: Wanted = "Tool=/Applications/Tool.app".parse().expect("a program");
        assert!(exact.fits("Tool.app") && !exact.fits("Tool-16.4.app"));
        for text in [
            "Tool",
            "=/A/b.app",
            "T=b.app",
            "T=/A*/b.app",
            "T=/A/*b*.app",
            "T=/",
            "T=",
        ] {
            let said = text.parse::<Wanted>().expect_err(text);
            assert!(said.contains("write NAME=/absolute/path"), "{said}");
        }
    }
    #[test]
    fn a_directory_that_cannot_be_read_is_said_and_one_that_is_not_there_is_not() {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("Applications"), "").expect("a file");
        let of = |text: &str| {
            let mut troubles = Vec::new();
            let found = versions(root.path(), &[text.parse().expect("a program")], &mut troubles);
            assert_eq!(found, []);
            troubles
        };
        let said = of("Tool=/Applications/Tool.app");
        assert!(
            matches!(&said[..], [one] if one.starts_with("/Applications: cannot be read: ")),
            "{said:?}"
        );
        assert_eq!(of("Tool=/Absent/Tool.app"), Vec::<String>::new());
    }
}
