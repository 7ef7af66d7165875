//! A template is what its manifest says, and the manifest is the one that was asked for.

mod template;

use std::fs;
use std::os::unix::fs::symlink;

use dockerios_bootdisk::template::{MANIFEST, Template, digest, manifest};
use template::World;

fn refused(world: &World) -> String {
    Template::load(&world.order.template, &world.order.template_sha256)
        .expect_err("refused")
        .to_string()
}

#[test]
fn the_manifest_is_what_sha256sum_writes_sorted_by_path() {
    let world = World::new();
    let text = fs::read_to_string(world.path(MANIFEST)).expect("manifest");
    let paths: Vec<_> = text.lines().map(|line| &line[66..]).collect();
    assert!(paths.is_sorted() && paths.contains(&"EFI/OC/OpenCore.efi"), "{text}");
    assert!(
        text.contains(&format!("{}  EFI/BOOT/BOOTx64.efi\n", digest(b"MZ first"))),
        "{text}"
    );
    assert!(!text.contains(MANIFEST));
    let loaded = Template::load(&world.order.template, &world.order.template_sha256.to_uppercase()).expect("loads");
    assert_eq!(loaded.files.keys().map(String::as_str).collect::<Vec<_>>(), paths);
}

#[test]
fn another_template_than_the_one_asked_for_is_refused_with_both_sums() {
    let mut world = World::new();
    let asked = world.order.template_sha256.clone();
    world.put("EFI/OC/Tools/More.efi", b"more");
    world.seal();
    let there = std::mem::replace(&mut world.order.template_sha256, asked.clone());
    let said = refused(&world);
    assert!(
        said.starts_with(&format!(
            "template MANIFEST.sha256 has sha256 {there} and {asked} was asked for"
        )),
        "{said}"
    );
    for bad in ["", "sha256:00", &"g".repeat(64), &"0".repeat(65)] {
        world.order.template_sha256 = bad.to_owned();
        assert!(refused(&world).contains("is not 64 hexadecimal digits"), "{bad}");
    }
}

#[test]
fn a_changed_a_missing_and_an_unlisted_file_are_refused_by_name() {
    let world = World::new();
    world.put("EFI/OC/Tools/SHELL.EFI", b"MZ shelL");
    let said = refused(&world);
    assert!(
        said.starts_with("template file \"EFI/OC/Tools/SHELL.EFI\" has sha256"),
        "{said}"
    );
    fs::remove_file(world.path("EFI/OC/Tools/SHELL.EFI")).expect("removed");
    let said = refused(&world);
    assert!(
        said.starts_with("template file \"EFI/OC/Tools/SHELL.EFI\" stands in the manifest and is not there"),
        "{said}"
    );
    world.put("EFI/OC/Tools/SHELL.EFI", b"MZ shell");
    world.put("EFI/OC/Tools/Extra.efi", b"x");
    let said = refused(&world);
    assert!(
        said.starts_with("template file \"EFI/OC/Tools/Extra.efi\" does not stand in the manifest"),
        "{said}"
    );
}

#[test]
fn a_manifest_that_is_out_of_order_repeats_or_is_no_manifest_is_refused_by_line() {
    let mut world = World::new();
    let good = manifest(&world.order.template).expect("manifest");
    let reversed: String = good.lines().rev().map(|line| format!("{line}\n")).collect();
    let first = good.lines().next().expect("line");
    for (text, line) in [
        (reversed, 2),
        (format!("{first}\n{good}"), 2),
        (format!("# comment\n{good}"), 1),
        (good.replacen("  ", " ", 1), 1),
        (format!("{}  \n", "0".repeat(64)), 1),
    ] {
        fs::write(world.path(MANIFEST), &text).expect("file");
        world.order.template_sha256 = digest(text.as_bytes());
        let said = refused(&world);
        assert!(
            said.starts_with(&format!("template MANIFEST.sha256 line {line}: has to be")),
            "{said}"
        );
    }
    fs::remove_file(world.path(MANIFEST)).expect("removed");
    assert!(
        refused(&world).contains("MANIFEST.sha256\": No such file"),
        "{}",
        refused(&world)
    );
}

#[test]
fn links_are_refused_since_what_they_point_to_is_not_the_templates() {
    let world = World::new();
    symlink("/etc/hostname", world.path("EFI/OC/Tools/link.efi")).expect("link");
    let said = refused(&world);
    assert!(said.contains("link.efi\" is neither a file nor a folder"), "{said}");
}

#[test]
fn a_template_without_opencore_is_refused_for_the_file_that_is_missing() {
    for needed in ["EFI/BOOT/BOOTx64.efi", "EFI/OC/OpenCore.efi", "EFI/OC/config.plist"] {
        let mut world = World::new();
        fs::remove_file(world.path(needed)).expect("removed");
        world.seal();
        assert!(
            refused(&world).starts_with(&format!("template has no {needed};")),
            "{}",
            refused(&world)
        );
    }
    let mut world = World::new();
    fs::rename(world.path("EFI/BOOT/BOOTx64.efi"), world.path("EFI/BOOT/BOOTX64.EFI")).expect("renamed");
    world.seal();
    assert!(
        Template::load(&world.order.template, &world.order.template_sha256).is_ok(),
        "FAT does not care"
    );
}

#[test]
fn more_than_a_bootdisk_holds_is_refused_before_it_is_read() {
    let mut world = World::new();
    fs::File::create(world.path("EFI/huge"))
        .and_then(|file| file.set_len(1 << 40))
        .expect("sparse file");
    let said = refused(&world);
    assert!(
        said.starts_with("template has 109951") && said.contains("a bootdisk 402653184"),
        "{said}"
    );
    fs::remove_file(world.path("EFI/huge")).expect("removed");
    world.seal();
}
