//! Whatever comes: no panic, no damage.

mod template;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

use dockerios_bootdisk::config::personalise;
use dockerios_bootdisk::image::{IMAGE_BYTES, lay_out};
use dockerios_bootdisk::plist::{Plist, Scalar};
use proptest::prelude::*;
use template::{CONFIG, identity};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_configuration_cut_or_changed_anywhere_is_read_or_refused(
        at in 0..CONFIG.len(), cut in 0..40usize, put in proptest::collection::vec(any::<u8>(), 0..8)
    ) {
        let mut bytes = CONFIG.as_bytes().to_vec();
        bytes.splice(at..(at + cut).min(CONFIG.len()), put);
        match personalise(&bytes, &identity(5)) {
            Ok(config) => prop_assert!(Plist::parse(config.text().as_bytes()).is_ok()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_text_written_into_the_tree_reads_back_and_changes_nothing_else(text in "[ -~äß€😀\n\t]{0,40}") {
        let path = ["Misc", "Security", "Vault"];
        let config = Plist::parse(CONFIG.as_bytes()).expect("good");
        let there = config.set(&path, Scalar::String(&text)).expect("edits");
        let back = there.set(&path, Scalar::String("Optional")).expect("edits");
        prop_assert_eq!(back.text(), CONFIG);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fsck_fat_accepts_whatever_names_and_sizes_a_template_has(
        files in proptest::collection::vec((0..4, "(EF|[a-zA-Zäß€😀~1.])[a-z~1 X_+,.-]{0,28}[a-zA-Z1]", 0..20_000usize), 1..90)
    ) {
        // FAT tells no case apart
        let unique: BTreeMap<String, (String, usize)> = files
            .into_iter()
            .map(|(folder, name, size)| (format!("{folder}/{name}").to_uppercase(), (format!("{folder}/x/{name}"), size)))
            .collect();
        let files = unique.into_values().map(|(path, size)| (path, template::pattern(size))).collect();
        let extents = lay_out(files, "6F0C1D1E-0000-4000-8000-00000000B001")
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(extents.is_sorted_by(|a, b| a.offset + a.bytes.len() as u64 <= b.offset), "extents overlap");
            let folder = tempfile::tempdir().expect("folder");
            let volume = folder.path().join("volume");
            let mut file = File::create(&volume).expect("file");
            file.set_len(IMAGE_BYTES - (2 << 20)).expect("length");
            for extent in extents.iter().filter(|extent| (1 << 20..IMAGE_BYTES - (1 << 20)).contains(&extent.offset)) {
                file.seek(SeekFrom::Start(extent.offset - (1 << 20))).expect("seek");
                file.write_all(&extent.bytes).expect("write");
            }
            let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
            match Command::new("fsck.fat").env("PATH", path).arg("-n").arg(&volume).output() {
                Ok(output) => prop_assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
                Err(error) => println!("LEFT OUT: fsck.fat does not start: {error}"),
            }
    }
}
