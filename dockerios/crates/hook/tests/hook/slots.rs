//! The NVMe controller's place: a free slot of bus 0, whatever else names one.

use crate::{
    judge::Judge,
    world::{CROWDED, FRESH, changed, with},
};
use dockerios_domain_hook::Reason;

const SLOT_0X15: &str = "0x15";

#[test]
fn addresses_arguments_and_overrides_take_their_slots_and_host_addresses_do_not() {
    // 0x10 video, 0x11 root ports, 0x12 argument (and the card's place on the host), 0x13 JSON argument,
    // 0x14 override; the argument on another bus leaves 0x15 free
    let native = changed(CROWDED, &[]).unwrap();
    let judge = Judge::of(&native);
    assert_eq!(judge.nvme_controllers(), [("1".to_owned(), SLOT_0X15.to_owned())]);
    assert_eq!(judge.target("ua-macintosh-hd").1, "nvme1n1");
    judge.nothing_is_there_twice();
    let overriding = changed(CROWDED, &[("nvme", "override")]).unwrap();
    let addr = Judge::of(&overriding)
        .overridden("ua-macintosh-hd")
        .into_iter()
        .find(|(name, _)| name == "addr");
    assert_eq!(addr.unwrap().1.as_deref(), Some(SLOT_0X15));
}

#[test]
fn the_controller_gets_a_number_that_neither_a_disk_nor_a_controller_has() {
    let controller = "<controller type='nvme' index='0'><address type='pci' bus='0x00' slot='0x18'/></controller>";
    let disk = "<disk><target dev='nvme1n1' bus='nvme'/><alias name='ua-other'/></disk>";
    let out = changed(&with(FRESH, "<devices>", &format!("<devices>{controller}{disk}")), &[]);
    let out = out.unwrap();
    let judge = Judge::of(&out);
    assert_eq!(judge.target("ua-macintosh-hd").1, "nvme2n1");
    assert_eq!(judge.nvme_controllers()[1], ("2".to_owned(), "0x10".to_owned()));
}

#[test]
fn a_host_address_does_not_take_a_guest_slot() {
    let freed = with(CROWDED, "edu,bus=pcie.0,addr=12", "edu,bus=pcie.0,addr=16");
    assert_eq!(
        Judge::of(&changed(&freed, &[]).unwrap()).nvme_controllers()[0].1,
        "0x12"
    );
}

fn filled(slots: impl Iterator<Item = u32>) -> String {
    let device = |slot| format!("<sound model='ich9'><address type='pci' bus='0' slot='{slot}' function='0'/></sound>");
    with(
        FRESH,
        "<devices>",
        &format!("<devices>{}", slots.map(device).collect::<String>()),
    )
}

#[test]
fn a_full_bus_is_refused_and_the_last_free_slot_is_used() {
    let last = changed(&filled((5..0x1a).filter(|slot| *slot != 0xd)), &[]).unwrap();
    assert_eq!(Judge::of(&last).nvme_controllers()[0].1, "0x0d");
    for mode in ["native", "override"] {
        let refusal = changed(&filled(5..0x1a), &[("nvme", mode)]).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NoFreeSlot, "{mode}: {refusal}");
    }
}

#[test]
fn an_address_that_cannot_be_read_is_refused() {
    for address in [
        "slot='0x20'",
        "slot='two'",
        "bus='-1' slot='1'",
        "domain='0xffffffffff' slot='1'",
    ] {
        let xml = with(
            FRESH,
            "<devices>",
            &format!("<devices><sound><address type='pci' {address}/></sound>"),
        );
        let refusal = changed(&xml, &[]).unwrap_err();
        assert_eq!(refusal.reason(), Reason::AddressNotUnderstood, "{address}: {refusal}");
    }
}
