//! Pairs of input and exact output, read by people before they were committed.

use crate::world::{CROWDED, FRESH, READBACK, changed};

#[track_caller]
fn pair(input: &str, mode: &str, expected: &str) {
    let out = changed(input, &[("nvme", mode), ("nic-model", "e1000-82545em")]).unwrap();
    for (line, (got, wanted)) in out.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, wanted, "line {}", line + 1);
    }
    assert_eq!(out, expected);
}

#[test]
fn a_fresh_domain_of_kubevirt_s_in_each_mode() {
    pair(FRESH, "native", include_str!("../data/fresh.native.xml"));
    pair(FRESH, "override", include_str!("../data/fresh.override.xml"));
    pair(FRESH, "off", include_str!("../data/fresh.off.xml"));
}

#[test]
fn a_domain_with_other_arguments_overrides_and_an_nvme_disk_of_its_own() {
    pair(CROWDED, "native", include_str!("../data/crowded.native.xml"));
    pair(CROWDED, "override", include_str!("../data/crowded.override.xml"));
}

#[test]
fn a_domain_that_libvirt_read_back_after_the_first_pass() {
    pair(READBACK, "native", include_str!("../data/readback.native.xml"));
}
