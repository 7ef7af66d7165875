//! `/var/db/dhcpd_leases`: what `bootpd` remembers of the guests behind the NAT, among it the names that tenants
//! gave them.
//!
//! The file is a list of blocks, one `key=value` a line (bootpd's DHCPLeases.c). It writes MAC addresses without
//! leading zeros: `hw_address=1,2:0:5e:10:0:1`. What is not understood is kept.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use macrack_wire::MacAddress;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 16 * 1024 * 1024;

/// The file's bytes without the leases of `macs`, and how many they were. Bytes, since the names in it come from
/// guests: one that is no UTF-8 must not stop a wipe.
pub fn strike(bytes: &[u8], macs: &[MacAddress]) -> (Vec<u8>, u32) {
    let macs: Vec<String> = macs.iter().map(|mac| mac.to_string()).collect();
    let (mut kept, mut struck) = (Vec::with_capacity(bytes.len()), 0);
    let mut block: Option<(Vec<u8>, bool)> = None;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let trimmed = line.trim_ascii();
        if trimmed == b"{" {
            // a block that never ended is kept
            kept.extend(block.take().map(|(block, _)| block).unwrap_or_default());
            block = Some((line.to_vec(), false));
            continue;
        }
        let Some((text, ours)) = &mut block else {
            kept.extend_from_slice(line);
            continue;
        };
        text.extend_from_slice(line);
        *ours |= hardware_address(trimmed).is_some_and(|address| macs.contains(&address));
        if trimmed == b"}" {
            match *ours {
                true => struck += 1,
                false => kept.append(text),
            }
            block = None;
        }
    }
    kept.extend(block.map(|(block, _)| block).unwrap_or_default());
    (kept, struck)
}

/// The address in a line `hw_address=1,2:0:5e:10:0:1`, written as [`MacAddress`] writes it.
fn hardware_address(line: &[u8]) -> Option<String> {
    let (_, address) = std::str::from_utf8(line).ok()?.strip_prefix("hw_address=")?.split_once(',')?;
    let bytes: Vec<u8> = address.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    (bytes.len() == 6).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// Strikes the leases of `macs` out of `file` and reads it again to see them gone. A file that is not there holds
/// none.
///
/// # Errors
/// When it cannot be read or written, or when a lease is there again at once; an error names the file.
pub fn strike_file(file: &Path, macs: &[MacAddress]) -> io::Result<u32> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    if macs.is_empty() {
        return Ok(0);
    }
    let Some(text) = read(file).map_err(named)? else { return Ok(0) };
    let (kept, struck) = strike(&text, macs);
    if struck == 0 {
        return Ok(0);
    }
    replace(file, &kept).map_err(named)?;
    let after = read(file).map_err(named)?.unwrap_or_default();
    match strike(&after, macs).1 {
        0 => Ok(struck),
        back => Err(named(io::Error::other(format!("{back} leases are there again after they were struck out")))),
    }
}

fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let size = match fs::symlink_metadata(file) {
        Ok(about) if about.is_file() => about.len(),
        Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if size > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{size} bytes, at most {LONGEST} are read")));
    }
    fs::read(file).map(Some)
}

/// Puts `bytes` in the file's place, with its owner and mode.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let about = fs::metadata(file)?;
    let beside = file.with_extension("macrack");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = fs::OpenOptions::new().write(true).create_new(true).open(&beside)?;
    io::Write::write_all(&mut new, bytes)?;
    fchown(&new, Some(about.uid()), Some(about.gid()))?;
    new.set_permissions(fs::Permissions::from_mode(about.mode() & 0o7777))?;
    new.sync_all()?;
    fs::rename(&beside, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "{\n\tname=payroll-build\n\tip_address=192.168.64.7\n\thw_address=1,2:0:5e:10:0:1\n\t\
                        identifier=1,2:0:5e:10:0:1\n\tlease=0x6923f1a0\n}\n{\n\tip_address=192.168.64.8\n\t\
                        hw_address=1,2:0:5e:10:0:10\n\tlease=0x6923f1a1\n}\n";

    fn mac(text: &str) -> MacAddress {
        text.parse().unwrap()
    }

    fn struck(text: &str, macs: &[MacAddress]) -> (String, u32) {
        let (kept, struck) = strike(text.as_bytes(), macs);
        (String::from_utf8(kept).unwrap(), struck)
    }

    #[test]
    fn the_lease_of_an_address_written_without_leading_zeros_is_struck_out_and_no_other() {
        let (kept, count) = struck(FILE, &[mac("02:00:5e:10:00:01")]);
        assert_eq!(count, 1);
        assert!(!kept.contains("payroll") && kept.contains("2:0:5e:10:0:10"), "{kept}");
        assert_eq!(struck(&kept, &[mac("02:00:5e:10:00:01")]), (kept.clone(), 0));
        assert_eq!(struck(FILE, &[mac("02:00:5e:10:00:02")]), (FILE.to_owned(), 0));
    }

    #[test]
    fn what_is_not_understood_is_kept_to_the_byte() {
        for text in
            ["", "{\n\thw_address=1,2:0:5e:10:0:1\n", "# by hand\n{\n}\nx=y", "}\n{\n{\n}\n", "hw_address=1,2\n"]
        {
            assert_eq!(struck(text, &[mac("02:00:5e:10:00:01")]), (text.to_owned(), 0), "{text:?}");
        }
    }

    #[test]
    fn a_guest_whose_name_is_no_text_is_struck_out_all_the_same() {
        let file = b"{\n\tname=\xff\xfe\n\thw_address=1,2:0:5e:10:0:1\n}\n";
        assert_eq!(strike(file, &[mac("02:00:5e:10:00:01")]), (Vec::new(), 1));
    }

    #[test]
    fn a_file_keeps_its_mode_and_a_missing_one_holds_no_lease() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dhcpd_leases");
        assert_eq!(strike_file(&file, &[mac("02:00:5e:10:00:01")]).unwrap(), 0);
        fs::write(&file, FILE).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(strike_file(&file, &[mac("02:00:5e:10:00:01"), mac("02:00:5e:10:00:10")]).unwrap(), 2);
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_link_in_place_of_the_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("dhcpd_leases"));
        fs::write(&real, FILE).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let refused = strike_file(&link, &[mac("02:00:5e:10:00:01")]).unwrap_err().to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
        assert_eq!(fs::read_to_string(&real).unwrap(), FILE);
    }
}
