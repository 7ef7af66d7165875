//! The end of a VM: what is destroyed, in which order, and how each is seen to be gone.
//!
//! ```text
//!   journal ──▶ files of the VM, kind by kind ──▶ what only root may: DHCP leases, leftovers ──▶ listed again ──▶ receipt
//! ```
//!
//! Invariants:
//! - success means that everything was listed again afterwards and nothing of the uid was found;
//! - the journal `wipes/<uid>.json` is on the disk before the first file goes, and holds what the rest needs: an agent
//!   that is killed anywhere goes on, and neither what was there nor when it began is forgotten;
//! - a wipe that has begun is never given up: it resumes by itself when the agent is back.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use macrack_api::rack::node::{WipeReceipt, WipedItem};
use macrack_wire::layout::{is_uid, read_json, write_json};
use macrack_wire::{MacAddress, VmDir};
use serde::{Deserialize, Serialize};

use super::root;
use crate::images::copy::allocated;

/// Receipts that are kept on a chassis, on its disk and in memory; the operator has taken up older ones long since.
const KEPT: usize = 16;
/// Directories of the state directory in which nothing of one VM lies: goldens are the catalogue's and are named by
/// digest; `hostd` is root's; `chassis` stands for the simulated Mac itself.
const NOT_A_VMS: [&str; 4] = ["vms", "images", "hostd", "chassis"];

/// What is destroyed of a VM, in this order: what would harm its tenant most goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// A process that holds it: there must be none before anything else is touched.
    Process,
    /// The first-boot script, which may hold the tenant's keys.
    FirstBoot,
    /// Disks and auxiliary storage.
    Disks,
    /// The simulated guest's disk.
    GuestRoot,
    /// What processes wrote: `vm.log`, what ran in the guest.
    Logs,
    /// Control and guest sockets.
    Sockets,
    /// The job of its process.
    LaunchdJob,
    /// What agent and VM process remember.
    State,
    /// Anything else in its directory.
    Other,
    /// Anything of its uid elsewhere in the state directory.
    Elsewhere,
    /// Its directory.
    Directory,
    /// What the host's DHCP server remembers of the guest, among it the name that the tenant gave it.
    DhcpLeases,
    /// What its user could not remove, and root did.
    RootFiles,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            What::Process => "process",
            What::FirstBoot => "first-boot-script",
            What::Disks => "disks",
            What::GuestRoot => "guest-root",
            What::Logs => "logs",
            What::Sockets => "sockets",
            What::LaunchdJob => "launchd-job",
            What::State => "state",
            What::Other => "other-files",
            What::Elsewhere => "files-elsewhere",
            What::Directory => "directory",
            What::DhcpLeases => "dhcp-leases",
            What::RootFiles => "root-files",
        }
    }

    fn verified_by(self) -> &'static str {
        match self {
            What::Process => "listing of the host's processes",
            What::Elsewhere => "listing of the state directory",
            What::Directory => "listing of vms/",
            What::DhcpLeases => "reading the lease file again",
            What::RootFiles => "macrack-hostd, and listing of vms/",
            _ => "listing of the VM's directory",
        }
    }

    /// In a receipt although there was none: its absence is the point.
    fn always_told(self) -> bool {
        matches!(self, What::Process | What::Disks | What::Directory | What::DhcpLeases)
    }
}

/// How many, and how many bytes on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Amount {
    count: u64,
    bytes: u64,
}

/// `wipes/<uid>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Journal {
    started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    agent_version: String,
    /// Needed after its description is gone.
    #[serde(default)]
    mac_addresses: Vec<MacAddress>,
    /// What there was, before the first of it went.
    #[serde(default)]
    items: BTreeMap<What, Amount>,
}

impl Journal {
    fn receipt(&self) -> Option<WipeReceipt> {
        let told = |what: What| {
            let amount = self.items.get(&what).copied().unwrap_or_default();
            (amount.count > 0 || what.always_told()).then(|| WipedItem {
                what: what.word().to_owned(),
                count: i64::try_from(amount.count).unwrap_or(i64::MAX),
                bytes: i64::try_from(amount.bytes).unwrap_or(i64::MAX),
                verified_by: match what {
                    // nothing was looked for, and a receipt says so
                    What::DhcpLeases if self.mac_addresses.is_empty() => "no guest ever had an address".to_owned(),
                    what => what.verified_by().to_owned(),
                },
            })
        };
        Some(WipeReceipt {
            started_at: Time(self.started_at),
            finished_at: Time(self.finished_at?),
            items: ALL.into_iter().filter_map(told).collect(),
            agent_version: self.agent_version.clone(),
        })
    }
}

const ALL: [What; 13] = [
    What::Process,
    What::FirstBoot,
    What::Disks,
    What::GuestRoot,
    What::Logs,
    What::Sockets,
    What::LaunchdJob,
    What::State,
    What::Other,
    What::Elsewhere,
    What::Directory,
    What::DhcpLeases,
    What::RootFiles,
];

/// One thing that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    what: What,
    path: PathBuf,
    amount: Amount,
}

/// What kind of thing a name in a VM's directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Socket,
}

/// What a name in a VM's directory stands for; whatever is not known goes as well.
fn of_name(name: &str, kind: Kind) -> What {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match kind {
        Kind::Socket => What::Sockets,
        Kind::Directory if name == "guest-root" => What::GuestRoot,
        Kind::Directory => What::Other,
        Kind::File if name.starts_with("first-boot.") => What::FirstBoot,
        Kind::File if ends(&[".img"]) => What::Disks,
        Kind::File if ends(&[".log"]) || name.contains(".log.") => What::Logs,
        Kind::File if ends(&[".plist"]) => What::LaunchdJob,
        Kind::File if ends(&[".json", ".json.new"]) => What::State,
        Kind::File => What::Other,
    }
}

/// The plan: everything of the VM that is there now, in the order in which it goes.
fn plan(dir: &VmDir, uid: &str) -> io::Result<Vec<Item>> {
    let mut items = Vec::new();
    if let Some(entries) = list(dir.path())? {
        for path in entries {
            let kind = kind(&path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            items.push(Item { what: of_name(&name, kind), amount: measure(&path, kind)?, path });
        }
        let amount = Amount { count: 1, bytes: 0 };
        items.push(Item { what: What::Directory, path: dir.path().to_owned(), amount });
    }
    for path in elsewhere(dir, uid)? {
        let amount = measure(&path, kind(&path)?)?;
        items.push(Item { what: What::Elsewhere, path, amount });
    }
    items.sort_by(|a, b| (a.what, &a.path).cmp(&(b.what, &b.path)));
    Ok(items)
}

/// Whatever else in the state directory has the uid in its name.
fn elsewhere(dir: &VmDir, uid: &str) -> io::Result<Vec<PathBuf>> {
    let journal = journal_of(dir, uid);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for path in list(state_dir_of(dir))?.unwrap_or_default() {
        if name(&path).contains(uid) {
            found.push(path);
        } else if kind(&path)? == Kind::Directory && !NOT_A_VMS.contains(&name(&path).as_str()) {
            let inside = list(&path)?.unwrap_or_default();
            found.extend(inside.into_iter().filter(|path| name(path).contains(uid) && *path != journal));
        }
    }
    Ok(found)
}

fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// The paths in a directory; `None` when it is not there.
fn list(dir: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(named(dir))?,
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    paths.map(Some).map_err(named(dir))
}

fn kind(path: &Path) -> io::Result<Kind> {
    match path.symlink_metadata().map(|found| found.file_type()) {
        Ok(kind) if kind.is_dir() => Ok(Kind::Directory),
        Ok(kind) if kind.is_socket() => Ok(Kind::Socket),
        // a link is removed, never followed; what went by itself is told apart when it is looked for again
        Ok(_) => Ok(Kind::File),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::File),
        Err(error) => Err(named(path)(error)),
    }
}

fn measure(path: &Path, kind: Kind) -> io::Result<Amount> {
    if kind != Kind::Directory {
        let bytes = match allocated(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            other => other.map_err(named(path))?,
        };
        return Ok(Amount { count: 1, bytes });
    }
    let mut sum = Amount { count: 1, bytes: 0 };
    for path in list(path)?.unwrap_or_default() {
        let inside = measure(&path, self::kind(&path)?)?;
        sum = Amount { count: sum.count + inside.count, bytes: sum.bytes + inside.bytes };
    }
    Ok(sum)
}

/// The state directory in whose `vms/` the VM lies.
fn state_dir_of(dir: &VmDir) -> &Path {
    dir.path().parent().and_then(Path::parent).unwrap_or(dir.path())
}

fn journal_of(dir: &VmDir, uid: &str) -> PathBuf {
    state_dir_of(dir).join("wipes").join(format!("{uid}.json"))
}

fn uid_of(dir: &VmDir) -> String {
    dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The journal of a wipe that was begun; `None` when none was.
fn read(dir: &VmDir) -> io::Result<Option<Journal>> {
    match read_json(&journal_of(dir, &uid_of(dir))) {
        Ok(journal) => Ok(Some(journal)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // it may hold the guest's address, which its removed description does not tell any more
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{error}; mend the file, or strike the guest out of the host's DHCP leases by hand and remove it"),
        )),
    }
}

/// Whether a wipe of the VM was begun and has not ended, or nobody can tell: it is then gone on with.
pub(super) fn is_unfinished(dir: &VmDir) -> bool {
    read(dir).map_or(true, |journal| journal.is_some_and(|journal| journal.finished_at.is_none()))
}

/// Writes the journal: what is there, and since when it goes. Blocking.
fn begin(dir: &VmDir, now: Timestamp) -> io::Result<Journal> {
    let uid = uid_of(dir);
    let mut journal = match read(dir)? {
        Some(journal) => journal,
        None => Journal {
            started_at: now,
            finished_at: None,
            agent_version: String::new(),
            mac_addresses: Vec::new(),
            items: BTreeMap::new(),
        },
    };
    journal.finished_at = None;
    env!("CARGO_PKG_VERSION").clone_into(&mut journal.agent_version);
    match dir.read_description() {
        Ok(description) if !journal.mac_addresses.contains(&description.mac_address) => {
            journal.mac_addresses.push(description.mac_address);
        }
        Ok(_) => {}
        // a disk that was never whole has no description, and no guest that could have had a lease
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if journal.mac_addresses.is_empty() => {
            let way_out = "its guest's address cannot be read, and a lease under it would stay with the tenant's name: \
                           strike the guest out of the host's DHCP leases by hand, then remove this file";
            return Err(io::Error::new(error.kind(), format!("{error}; {way_out}")));
        }
        Err(_) => {}
    }
    let mut now: BTreeMap<What, Amount> = BTreeMap::new();
    for item in plan(dir, &uid)? {
        let sum = now.entry(item.what).or_default();
        *sum = Amount { count: sum.count + item.amount.count, bytes: sum.bytes + item.amount.bytes };
    }
    // what went before a crash was there all the same
    for (what, amount) in now {
        let known = journal.items.entry(what).or_default();
        *known = Amount { count: known.count.max(amount.count), bytes: known.bytes.max(amount.bytes) };
    }
    keep(dir, &journal)?;
    Ok(journal)
}

fn keep(dir: &VmDir, journal: &Journal) -> io::Result<()> {
    let file = journal_of(dir, &uid_of(dir));
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(named(parent))?;
        write_json(&file, journal)?;
        fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(named(parent))?;
    }
    Ok(())
}

/// Removes what its user may remove. What could not be removed is told with the reason; the rest goes all the same.
/// `before` is asked ahead of each item and may end the wipe, as a crash would. Blocking.
fn destroy(dir: &VmDir, before: &mut dyn FnMut(&Item) -> io::Result<()>) -> io::Result<BTreeMap<PathBuf, io::Error>> {
    let mut left = BTreeMap::new();
    for item in plan(dir, &uid_of(dir))? {
        before(&item)?;
        let removed = match (item.what, kind(&item.path)?) {
            // empty by now, or something in it could not be removed
            (What::Directory, _) => fs::remove_dir(&item.path),
            (_, Kind::Directory) => fs::remove_dir_all(&item.path),
            (_, Kind::File | Kind::Socket) => fs::remove_file(&item.path),
        };
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            left.insert(item.path, error);
        }
    }
    Ok(left)
}

/// Lists everything again. Blocking.
///
/// # Errors
/// The first thing that is still there, and why it could not be removed.
fn judge(dir: &VmDir, left: &BTreeMap<PathBuf, io::Error>) -> io::Result<()> {
    let uid = uid_of(dir);
    let still = plan(dir, &uid)?;
    if let Some(item) = still.first() {
        let why = match left.get(&item.path) {
            Some(error) => format!("{}: {error}", item.path.display()),
            None => format!("{}: still there after it was removed", item.path.display()),
        };
        return Err(io::Error::other(format!("{}: {why}", item.what.word())));
    }
    // seen in the directory itself, not only by asking for the name
    let Some(parent) = dir.path().parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let listed = list(parent)?.unwrap_or_default();
    if listed.iter().any(|path| path == dir.path()) {
        return Err(io::Error::other(format!("{}: still there after it was removed", dir.path().display())));
    }
    match fs::File::open(parent).and_then(|parent| parent.sync_all()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(parent)(error)),
        _ => Ok(()),
    }
}

/// Destroys everything of a VM of which no process lives, and looks that it is gone.
///
/// # Errors
/// What could not be destroyed, with its path; it may be tried again and goes on.
pub(super) async fn wipe(dir: VmDir) -> io::Result<WipeReceipt> {
    let (first, second, third) = (dir.clone(), dir.clone(), dir.clone());
    let journal = blocking(move || begin(&first, Timestamp::now())).await?;
    let left = blocking(move || {
        // while its property list is still there
        macrack_vm::launch::forget(&second)
            .map_err(|error| io::Error::new(error.kind(), format!("its job: {error}")))?;
        destroy(&second, &mut |_| Ok(()))
    })
    .await?;
    let by_root = root::wipe(state_dir_of(&dir), &uid_of(&dir), &journal.mac_addresses).await?;
    strike_again(&dir).await;
    blocking(move || {
        let counted = [(What::DhcpLeases, by_root.dhcp_leases), (What::RootFiles, by_root.leftovers)];
        let journal = count(&third, journal, &counted)?;
        judge(&third, &left)?;
        finish(&third, journal, Timestamp::now())
    })
    .await
}

/// Strikes the leases of VMs that were wiped before out again. `bootpd` holds its leases in memory while any guest runs,
/// and with the next one that it grants it may write back what was struck out of its file meanwhile; after the last VM of
/// a tenant nobody is left to have it do that.
async fn strike_again(dir: &VmDir) {
    let (here, own) = (state_dir_of(dir).to_owned(), uid_of(dir));
    let wiped = match blocking(move || wiped_before(&here.join("wipes"), &own)).await {
        Ok(wiped) => wiped,
        Err(error) => return tracing::error!(%error, "whether leases of VMs wiped before are back is not known"),
    };
    for (vm, macs) in wiped {
        match root::wipe(state_dir_of(dir), &vm, &macs).await {
            Ok(again) if again.dhcp_leases > 0 => {
                tracing::warn!(%vm, leases = again.dhcp_leases, "the host's DHCP server had them back; struck out again");
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%vm, %error, "whether its leases are back is not known"),
        }
    }
}

/// The addresses of the VMs whose receipts are kept, but of `own`.
fn wiped_before(wipes: &Path, own: &str) -> io::Result<Vec<(String, Vec<MacAddress>)>> {
    let addresses = |path: PathBuf| {
        let uid = path.file_stem()?.to_str().filter(|uid| is_uid(uid) && *uid != own)?.to_owned();
        let journal: Journal = read_json(&path).ok()?;
        (journal.finished_at.is_some() && !journal.mac_addresses.is_empty()).then_some((uid, journal.mac_addresses))
    };
    // one that cannot be read is told of when the agent starts, and is wiped again
    Ok(list(wipes)?.unwrap_or_default().into_iter().filter_map(addresses).collect())
}

/// Keeps what root has done, which nobody could count again. An earlier try may have done some of it.
fn count(dir: &VmDir, mut journal: Journal, counted: &[(What, u32)]) -> io::Result<Journal> {
    for (what, count) in counted.iter().filter(|(_, count)| *count > 0) {
        journal.items.entry(*what).or_default().count += u64::from(*count);
    }
    keep(dir, &journal)?;
    Ok(journal)
}

fn finish(dir: &VmDir, mut journal: Journal, now: Timestamp) -> io::Result<WipeReceipt> {
    journal.finished_at = Some(now);
    keep(dir, &journal)?;
    // the wipe is done and kept: old receipts that stay take room, and are tried again after the next
    if let Err(error) = prune(&state_dir_of(dir).join("wipes"), &uid_of(dir)) {
        tracing::warn!(%error, "old receipts of wipes stay");
    }
    journal.receipt().ok_or_else(|| io::Error::other("a wipe without an end"))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| Err(io::Error::other(ended)))
}

/// What is known of wipes on a chassis.
#[derive(Debug, Default)]
pub struct Wipes {
    /// Receipts of those that are done, by uid.
    pub done: BTreeMap<String, WipeReceipt>,
    /// uids of those that were begun and have not ended.
    pub unfinished: Vec<String>,
}

/// Reads every journal in `wipes`. One that cannot be read is unfinished. Blocking.
///
/// # Errors
/// When the directory cannot be listed.
pub fn wipes(wipes: &Path) -> io::Result<Wipes> {
    let mut found = Wipes::default();
    for path in list(wipes)?.unwrap_or_default() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(uid) = name.strip_suffix(".json").filter(|uid| is_uid(uid)) else { continue };
        match read_json::<Journal>(&path).map(|journal| journal.receipt()) {
            Ok(Some(receipt)) => drop(found.done.insert(uid.to_owned(), receipt)),
            Ok(None) => found.unfinished.push(uid.to_owned()),
            Err(error) => {
                tracing::error!(%error, "the journal of a wipe cannot be read; until it can be, or is removed, that wipe does not end");
                found.unfinished.push(uid.to_owned());
            }
        }
    }
    Ok(found)
}

/// The uids of the oldest receipts beyond those that are kept, but of none that is `needed`: by a clock that was set
/// back the newest may seem to be the oldest.
pub fn surplus(receipts: &BTreeMap<String, WipeReceipt>, needed: impl Fn(&str) -> bool) -> Vec<String> {
    let mut by_age: Vec<_> = receipts.iter().map(|(uid, receipt)| (receipt.finished_at.0, uid)).collect();
    by_age.sort();
    let oldest = by_age.into_iter().take(receipts.len().saturating_sub(KEPT));
    oldest.filter(|(_, uid)| !needed(uid)).map(|(_, uid)| uid.clone()).collect()
}

/// Removes the oldest receipts beyond those that are kept, but not that of `uid`, which was just written.
fn prune(wipes: &Path, uid: &str) -> io::Result<()> {
    let receipt = |path: PathBuf| {
        let uid = path.file_stem()?.to_str().filter(|uid| is_uid(uid))?.to_owned();
        Some((uid, read_json::<Journal>(&path).ok()?.receipt()?))
    };
    // what cannot be read is no receipt: it is told of when the agent starts, and stays
    let done = list(wipes)?.unwrap_or_default().into_iter().filter_map(receipt).collect();
    for old in surplus(&done, |needed| needed == uid) {
        match fs::remove_file(wipes.join(format!("{old}.json"))) {
            // another wipe that ended now was first
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(named(wipes))?,
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "wipe_tests.rs"]
mod tests;
