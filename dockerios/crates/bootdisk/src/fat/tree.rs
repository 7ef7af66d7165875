//! Files by folder. Invariant: within a folder no two names are equal when case is set aside, since FAT could not tell
//! them apart; names come in that order.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A folder: its entries by their names in capitals.
#[derive(Debug, Default)]
pub struct Directory {
    pub(super) entries: BTreeMap<String, (String, Node)>,
}

/// What a name stands for.
#[derive(Debug)]
pub enum Node {
    /// A file's content.
    File(Vec<u8>),
    /// A folder.
    Directory(Directory),
}

/// Two paths of which FAT can hold one only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "template files {path:?} and {name:?} beside it differ in case only, or one is a file and a folder; rename one"
)]
pub struct Clash {
    /// The path that does not fit in.
    pub path: String,
    /// The name that is there already.
    pub name: String,
}

impl Directory {
    pub(super) fn of(files: Vec<(String, Vec<u8>)>) -> Result<Self, Clash> {
        let mut root = Self::default();
        for (path, content) in files {
            root.insert(&path, &path, content)?;
        }
        Ok(root)
    }

    fn insert(&mut self, rest: &str, path: &str, content: Vec<u8>) -> Result<(), Clash> {
        let (name, below) = match rest.split_once('/') {
            Some((name, below)) => (name, Some(below)),
            None => (rest, None),
        };
        let clash = |there: &str| Clash {
            path: path.to_owned(),
            name: there.to_owned(),
        };
        match (self.entries.entry(name.to_uppercase()), below) {
            (Entry::Vacant(entry), None) => {
                entry.insert((name.to_owned(), Node::File(content)));
                Ok(())
            }
            (Entry::Vacant(entry), Some(below)) => {
                let (_, node) = entry.insert((name.to_owned(), Node::Directory(Self::default())));
                match node {
                    Node::Directory(directory) => directory.insert(below, path, content),
                    Node::File(_) => Err(clash(name)),
                }
            }
            (Entry::Occupied(entry), below) => match (entry.into_mut(), below) {
                ((there, Node::Directory(directory)), Some(below)) if there == name => {
                    directory.insert(below, path, content)
                }
                ((there, _), _) => Err(clash(there)),
            },
        }
    }
}
