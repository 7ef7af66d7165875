//! libvirt reads QEMU's block by its namespace; a prefix says nothing.

use crate::{
    judge::Judge,
    world::{FRESH, QEMU, changed, with},
};
use dockerios_domain_hook::Reason;

fn domain(declarations: &str, block: &str) -> String {
    let declared = with(
        FRESH,
        "<domain type=\"kvm\">",
        &format!("<domain type=\"kvm\" {declarations}>"),
    );
    with(&declared, "</metadata>", &format!("</metadata>\n\t{block}"))
}

#[track_caller]
fn arguments(xml: &str) -> Vec<String> {
    let out = changed(xml, &[]).unwrap();
    assert_eq!(changed(&out, &[]).unwrap(), out);
    Judge::of(&out).arguments()
}

#[test]
fn a_block_is_joined_whatever_prefix_it_has_and_wherever_that_is_declared() {
    let prefixed = format!("xmlns:libvirt-qemu='{QEMU}'");
    for (declarations, block) in [
        (
            prefixed.as_str(),
            "<libvirt-qemu:commandline><libvirt-qemu:arg value='-no-hpet'/></libvirt-qemu:commandline>".into(),
        ),
        (
            "",
            format!("<qemu:commandline xmlns:qemu='{QEMU}'><qemu:arg value='-no-hpet'/></qemu:commandline>"),
        ),
        (
            "",
            format!("<commandline xmlns=\"{QEMU}\"><arg value='-no-hpet'></arg></commandline>"),
        ),
        // its own prefix on the child alone
        (
            "",
            format!("<commandline xmlns=\"{QEMU}\"><x:arg xmlns:x=\"{QEMU}\" value='-no-hpet'/></commandline>"),
        ),
    ] {
        let out = arguments(&domain(declarations, &block));
        assert_eq!(out[..2], ["-no-hpet", "-device"], "{block}");
        assert_eq!(out.len(), 5, "{block}");
    }
}

#[test]
fn an_empty_block_is_filled_and_one_with_variables_only_gets_its_arguments_before_them() {
    for block in [
        "<q:commandline/>",
        "<q:commandline></q:commandline>",
        "<q:commandline><!-- none --></q:commandline >",
    ] {
        assert_eq!(
            arguments(&domain(&format!("xmlns:q='{QEMU}'"), block)).len(),
            4,
            "{block}"
        );
    }
    let variables = "<q:commandline><q:env name='A' value='1'/></q:commandline>";
    let out = changed(&domain(&format!("xmlns:q='{QEMU}'"), variables), &[]).unwrap();
    assert!(out.find("<q:arg").unwrap() < out.find("<q:env").unwrap(), "{out}");
}

#[test]
fn a_lookalike_namespace_is_left_alone_and_a_right_block_added() {
    let lookalike = "<qemu:commandline><qemu:arg value='-no-hpet'/></qemu:commandline>";
    let xml = domain("xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.1'", lookalike);
    assert_eq!(arguments(&xml)[0], "-device");
    assert_eq!(arguments(&xml).len(), 4);
    assert!(changed(&xml, &[]).unwrap().contains(lookalike));
    // and so is a block that has libvirt's name but no namespace at all
    let bare = "<commandline><arg value='-device'/></commandline>";
    assert_eq!(arguments(&domain("", bare)).len(), 4);
}

#[test]
fn a_declared_prefix_of_another_name_is_used_for_a_new_block() {
    let out = changed(&domain(&format!("xmlns:q='{QEMU}'"), ""), &[]).unwrap();
    assert!(out.contains("<q:commandline><q:arg "), "{out}");
    assert!(!out.contains("xmlns:qemu"), "{out}");
}

#[test]
fn a_disk_of_another_namespace_is_not_a_disk() {
    let foreign =
        "<f:disk><f:alias name='ua-macintosh-hd'/></f:disk><disk xmlns='urn:x'><alias name='ua-boot-image'/></disk>";
    let xml = with(
        &domain("xmlns:f='urn:foreign'", ""),
        "<devices>",
        &format!("<devices>{foreign}"),
    );
    let out = changed(&xml, &[]).unwrap();
    assert!(out.contains(foreign));
}

#[test]
fn a_prefix_that_nothing_declares_is_refused_by_name() {
    let xml = domain("", "<qemu:commandline><qemu:arg value='-no-hpet'/></qemu:commandline>");
    let refusal = changed(&xml, &[]).unwrap_err();
    assert_eq!(refusal.reason(), Reason::UndeclaredPrefix);
    assert!(
        refusal.to_string().contains("the namespace prefix \"qemu\""),
        "{refusal}"
    );
    assert!(refusal.to_string().contains("declare it on <domain>"), "{refusal}");
}
