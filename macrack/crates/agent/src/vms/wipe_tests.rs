use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use macrack_wire::VmDescription;

use super::*;

const UID: &str = "00000000-0000-4000-8000-000000000001";
const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// The state directory of a chassis with one VM that has one of everything.
struct Bench {
    root: tempfile::TempDir,
    dir: VmDir,
}

fn address() -> MacAddress {
    "02:00:5e:10:00:01".parse().unwrap()
}

fn bench() -> Bench {
    let root = tempfile::tempdir().unwrap();
    for name in ["images", "wipes", "chassis", "exec"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    let dir = VmDir::new(root.path().join("vms").join(UID));
    fs::create_dir_all(dir.guest_root().join("Users/build")).unwrap();
    fs::write(dir.guest_root().join("Users/build/key"), "secret").unwrap();
    let description = VmDescription {
        uid: UID.to_owned(),
        namespace: "tenant".to_owned(),
        name: "build-1".to_owned(),
        cpu_cores: 4,
        memory_bytes: 1 << 30,
        disk: "disk.img".to_owned(),
        aux: "aux.img".to_owned(),
        machine_identifier: "m".to_owned(),
        hardware_model: None,
        mac_address: address(),
        display: None,
        first_boot: true,
    };
    dir.write_description(&description).unwrap();
    for name in ["disk.img", "aux.img", "first-boot.sh", "vm.log", "vm.log.1", "state.json", "io.macrack.plist", "odd"]
    {
        fs::write(dir.path().join(name), vec![1; 4096]).unwrap();
    }
    drop((UnixListener::bind(dir.socket()).unwrap(), UnixListener::bind(dir.guest_socket()).unwrap()));
    fs::write(root.path().join("exec").join(format!("{UID}-7.log")), "what ran").unwrap();
    fs::write(root.path().join("exec/another.log"), "another's").unwrap();
    let leases = "{\n\tname=payroll\n\thw_address=1,2:0:5e:10:0:1\n}\n{\n\thw_address=1,2:0:5e:10:0:2\n}\n";
    fs::write(root.path().join("chassis/dhcpd_leases"), leases).unwrap();
    Bench { root, dir }
}

impl Bench {
    fn leases(&self) -> String {
        fs::read_to_string(self.root.path().join("chassis/dhcpd_leases")).unwrap()
    }

    /// Every path in the state directory that still tells of the VM, its receipt aside.
    fn remains(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, into);
                }
                into.push(path);
            }
        }
        let mut all = Vec::new();
        walk(self.root.path(), &mut all);
        all.retain(|path| path.to_string_lossy().contains(UID) && *path != journal_of(&self.dir, UID));
        all
    }
}

fn amounts(receipt: &WipeReceipt) -> Vec<(&str, i64)> {
    receipt.items.iter().map(|item| (item.what.as_str(), item.count)).collect()
}

const WHOLE: [(&str, i64); 12] = [
    ("process", 0),
    ("first-boot-script", 1),
    ("disks", 2),
    ("guest-root", 4),
    ("logs", 2),
    ("sockets", 2),
    ("launchd-job", 1),
    ("state", 2),
    ("other-files", 1),
    ("files-elsewhere", 1),
    ("directory", 1),
    ("dhcp-leases", 1),
];

#[tokio::test]
async fn nothing_of_a_vm_is_left_and_the_receipt_names_every_kind_with_how_it_was_verified() {
    let bench = bench();
    let receipt = wipe(bench.dir.clone()).await.unwrap();
    assert_eq!(bench.remains(), Vec::<PathBuf>::new());
    assert!(!bench.leases().contains("payroll"), "the host still knows the guest's name");
    assert!(bench.leases().contains("2:0:5e:10:0:2"), "another's lease went with it");
    assert!(bench.root.path().join("exec/another.log").exists(), "another's log went with it");
    assert_eq!(amounts(&receipt), WHOLE);
    assert!(receipt.items.len() <= 16 && receipt.items.iter().all(|item| item.verified_by.len() <= 64));
    let disks = receipt.items.iter().find(|item| item.what == "disks").unwrap();
    assert_eq!((disks.bytes, disks.verified_by.as_str()), (8192, "listing of the VM's directory"));
    assert_eq!(wipes(&bench.root.path().join("wipes")).unwrap().done[UID], receipt);
}

#[tokio::test]
async fn a_lease_that_the_dhcp_server_wrote_back_goes_with_the_next_wipe() {
    let bench = bench();
    let leases = bench.leases();
    wipe(bench.dir.clone()).await.unwrap();
    assert!(!bench.leases().contains("payroll"));
    fs::write(bench.root.path().join("chassis/dhcpd_leases"), &leases).unwrap();
    let next = VmDir::new(bench.root.path().join("vms").join("00000000-0000-4000-8000-000000000002"));
    fs::create_dir_all(next.path()).unwrap();
    let receipt = wipe(next).await.unwrap();
    assert!(!bench.leases().contains("payroll"), "the host knows the name of a guest that was wiped");
    assert!(bench.leases().contains("2:0:5e:10:0:2"), "the lease of a guest that runs went with it");
    let told = receipt.items.iter().find(|item| item.what == "dhcp-leases").unwrap();
    assert_eq!(told.count, 0, "what was another's is in its receipt");
}

#[tokio::test]
async fn a_wipe_that_is_killed_before_any_item_goes_on_and_its_receipt_tells_of_all_that_was_there() {
    let items = plan(&bench().dir, UID).unwrap().len();
    assert!(items > 10, "{items}");
    for killed_at in 0..=items {
        let bench = bench();
        begin(&bench.dir, NOW).unwrap();
        let mut done = 0;
        let killed = destroy(&bench.dir, &mut |_| {
            done += 1;
            if done > killed_at { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        });
        assert_eq!(killed.is_err(), killed_at < items);
        // what a new agent finds: it is to be gone on with, whatever is left
        assert!(is_unfinished(&bench.dir), "killed at {killed_at}");
        assert_eq!(wipes(&bench.root.path().join("wipes")).unwrap().unfinished, [UID], "killed at {killed_at}");
        let receipt = wipe(bench.dir.clone()).await.unwrap();
        assert_eq!(amounts(&receipt), WHOLE, "killed at {killed_at}");
        assert_eq!(receipt.started_at.0, NOW, "killed at {killed_at}: the beginning was forgotten");
        assert_eq!(bench.remains(), Vec::<PathBuf>::new(), "killed at {killed_at}");
        assert!(!bench.leases().contains("payroll"), "killed at {killed_at}: its address was forgotten");
        assert!(!is_unfinished(&bench.dir));
    }
}

#[tokio::test]
async fn what_is_still_there_is_named_and_is_no_success() {
    let bench = bench();
    begin(&bench.dir, NOW).unwrap();
    let left = destroy(&bench.dir, &mut |_| Ok(())).unwrap();
    assert!(left.is_empty(), "{left:?}");
    judge(&bench.dir, &left).unwrap();
    // something writes again
    fs::create_dir_all(bench.dir.path()).unwrap();
    fs::write(bench.dir.path().join("vm.log"), "late").unwrap();
    let refused = judge(&bench.dir, &left).unwrap_err().to_string();
    assert!(refused.starts_with("logs: ") && refused.contains("vm.log: still there"), "{refused}");
    let left = [(bench.dir.log(), io::Error::from(io::ErrorKind::PermissionDenied))].into();
    let refused = judge(&bench.dir, &left).unwrap_err().to_string();
    assert!(refused.contains("vm.log: permission denied"), "{refused}");
}

#[tokio::test]
async fn a_lease_file_that_cannot_be_read_leaves_the_wipe_undone() {
    let bench = bench();
    let leases = bench.root.path().join("chassis/dhcpd_leases");
    fs::remove_file(&leases).unwrap();
    fs::create_dir(&leases).unwrap();
    let refused = wipe(bench.dir.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("dhcpd_leases") && is_unfinished(&bench.dir), "{refused}");
    fs::remove_dir(&leases).unwrap();
    let receipt = wipe(bench.dir.clone()).await.unwrap();
    let expected = WHOLE.map(|(what, count)| (what, if what == "dhcp-leases" { 0 } else { count }));
    assert_eq!(amounts(&receipt), expected);
}

#[tokio::test]
async fn a_description_that_cannot_be_read_is_not_taken_for_a_guest_without_a_lease() {
    let bench = bench();
    fs::write(bench.dir.description(), "{").unwrap();
    let refused = wipe(bench.dir.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("vm.json") && refused.contains("by hand"), "{refused}");
    assert!(bench.leases().contains("payroll"), "nothing was done, and nothing is told to be");
    fs::remove_file(bench.dir.description()).unwrap();
    wipe(bench.dir.clone()).await.unwrap();
}

#[tokio::test]
async fn a_link_is_removed_and_what_it_points_to_is_not() {
    let bench = bench();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("precious"), "").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), bench.dir.path().join("link")).unwrap();
    wipe(bench.dir.clone()).await.unwrap();
    assert!(elsewhere.path().join("precious").exists());
    assert_eq!(bench.remains(), Vec::<PathBuf>::new());
}

#[test]
fn every_name_has_its_kind_and_what_is_not_known_goes_as_well() {
    for (name, kind, what) in [
        ("first-boot.sh", Kind::File, What::FirstBoot),
        ("first-boot.sh.new", Kind::File, What::FirstBoot),
        ("disk.img", Kind::File, What::Disks),
        ("vm.log", Kind::File, What::Logs),
        ("vm.log.1", Kind::File, What::Logs),
        ("vm.sock", Kind::Socket, What::Sockets),
        ("state.json", Kind::File, What::State),
        ("vm.json.new", Kind::File, What::State),
        ("job.plist", Kind::File, What::LaunchdJob),
        ("guest-root", Kind::Directory, What::GuestRoot),
        ("guest-root", Kind::File, What::Other),
        ("", Kind::File, What::Other),
        ("core", Kind::File, What::Other),
    ] {
        assert_eq!(of_name(name, kind), what, "{name:?} {kind:?}");
    }
    assert!(ALL.is_sorted(), "a receipt is in the order of the wipe");
    assert!(ALL.iter().all(|what| what.word().len() <= 32 && what.verified_by().len() <= 64));
}

#[test]
fn a_journal_that_cannot_be_read_is_a_wipe_that_must_be_done() {
    let bench = bench();
    let dir = bench.root.path().join("wipes");
    let broken = "00000000-0000-4000-8000-00000000ffff";
    fs::write(dir.join(format!("{broken}.json")), "{").unwrap();
    let found = wipes(&dir).unwrap();
    assert_eq!((found.done.len(), found.unfinished), (0, vec![broken.to_owned()]));
    assert!(is_unfinished(&VmDir::new(bench.root.path().join("vms").join(broken))));
    finish(&bench.dir, unended(), NOW).unwrap();
    assert_eq!(wipes(&dir).unwrap().unfinished, [broken], "no receipt that is written takes it away");
}

fn unended() -> Journal {
    Journal {
        started_at: NOW,
        finished_at: None,
        agent_version: "0.1.0".to_owned(),
        mac_addresses: Vec::new(),
        items: BTreeMap::new(),
    }
}

#[test]
fn a_receipt_that_is_written_takes_the_place_of_the_oldest_also_by_a_clock_that_was_set_back() {
    let bench = bench();
    let dir = bench.root.path().join("wipes");
    let vm = |n: i64| VmDir::new(bench.root.path().join("vms").join(format!("00000000-0000-4000-8000-{n:012}")));
    let end = |n: i64, second: i64| finish(&vm(n), unended(), Timestamp::from_second(second).unwrap()).unwrap();
    let kept = |n: i64| wipes(&dir).unwrap().done.contains_key(&uid_of(&vm(n)));
    for n in 0..100 {
        end(n, n);
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), KEPT, "they pile up until the agent starts again");
    assert!(kept(99) && !kept(99 - KEPT as i64), "the newest are kept");
    end(200, -5);
    assert!(kept(200), "it seems to be the oldest, and nobody has read it yet");
    assert_eq!(surplus(&wipes(&dir).unwrap().done, |_| false), [uid_of(&vm(200))]);
    assert!(surplus(&wipes(&dir).unwrap().done, |uid| uid == uid_of(&vm(200))).is_empty());
}

#[test]
fn a_file_that_is_not_ones_own_is_told_with_the_reason_and_the_rest_goes_all_the_same() {
    // root may do anything: what cannot be removed is made so by a directory in the place of its name
    let bench = bench();
    let guest = bench.dir.guest_root();
    fs::set_permissions(&guest, Permissions::from_mode(0o500)).unwrap();
    let left = destroy(&bench.dir, &mut |item| {
        if item.what == What::Directory {
            fs::create_dir(bench.dir.path().join("late")).unwrap();
        }
        Ok(())
    })
    .unwrap();
    assert!(left.contains_key(bench.dir.path()), "{left:?}");
    let refused = judge(&bench.dir, &left).unwrap_err().to_string();
    assert!(refused.contains("late"), "{refused}");
    assert!(!bench.dir.path().join("disk.img").exists());
}

#[test]
fn a_receipt_does_not_claim_to_have_looked_for_the_lease_of_a_guest_without_an_address() {
    let verified = |mac_addresses: Vec<MacAddress>| {
        let journal = Journal {
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Some(Timestamp::UNIX_EPOCH),
            agent_version: "1".to_owned(),
            mac_addresses,
            items: BTreeMap::new(),
        };
        let items = journal.receipt().unwrap().items;
        items.into_iter().find(|item| item.what == "dhcp-leases").unwrap().verified_by
    };
    assert_eq!(verified(Vec::new()), "no guest ever had an address");
    assert_eq!(verified(vec![MacAddress::locally_administered([2; 6])]), "reading the lease file again");
}
