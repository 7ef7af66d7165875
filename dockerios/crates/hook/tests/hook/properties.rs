//! What holds for every document: bytes that are not ours stay, a second pass changes nothing, nothing panics.

use dockerios_domain_hook::{Reason, Vmi, transform};
use proptest::{prelude::*, sample::select};

use crate::{
    judge::Judge,
    world::{CROWDED, FRESH, MACHINE, QEMU, READBACK, osk, vmi},
};

/// Things that a document may hold anywhere between elements and that are nobody's business here.
fn noise() -> impl Strategy<Value = String> {
    let pieces = select(vec![
        "<!-- plain -->",
        "<!-- <disk><alias name='ua-macintosh-hd'/></disk> </domain> -->",
        "<?instruction keep='this' ?>",
        "<f:disk xmlns:f='urn:foreign'><alias name=\"ua-macintosh-hd\"/></f:disk>",
        "<disk xmlns='urn:foreign'><target bus='sata'/></disk>",
        "<unknown  a = 'it&#39;s'\tb=\"&lt;&#x2014;&gt;\" ></unknown >",
        "<unknown><![CDATA[</devices> & <address type='pci' slot='0x10'/>]]></unknown>",
        "\r\n\t ",
        "\n",
        "<q:thing xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0' value='x'/>",
        "<input type=\"tablet\" bus='usb'/>",
        "<x><y/><commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'/></x>",
    ]);
    prop::collection::vec((pieces, "[ a-zäé漢🍎]{0,6}"), 0..4).prop_map(|pieces| {
        pieces
            .into_iter()
            .map(|(piece, text)| format!("{piece}<!--{text}-->"))
            .collect()
    })
}

/// A document in the pieces between which the hook may write, and the whole of it.
#[derive(Debug)]
struct Made {
    /// Stay as they are and in this order.
    kept: Vec<String>,
    whole: String,
}

fn element(name: &'static str, attributes: Vec<(&'static str, &'static str)>) -> impl Strategy<Value = String> {
    (
        Just(attributes).prop_shuffle(),
        any::<bool>(),
        any::<bool>(),
        select(vec![" ", "  ", "\n\t", "\r\n"]),
    )
        .prop_map(move |(attributes, closed, single, space)| {
            let quote = if single { '\'' } else { '"' };
            let written = attributes
                .into_iter()
                .map(|(name, value)| format!("{space}{name}={quote}{value}{quote}"));
            let written: String = written.collect();
            if closed {
                format!("<{name}{written}></{name}>")
            } else {
                format!("<{name}{written} />")
            }
        })
}

fn documents() -> impl Strategy<Value = Made> {
    let disk = (
        element("target", vec![("bus", "sata"), ("dev", "sdb")]),
        element(
            "driver",
            vec![
                ("name", "qemu"),
                ("error_policy", "stop"),
                ("discard", "ignore"),
                ("rerror_policy", "stop"),
            ],
        ),
        element("address", vec![("type", "drive"), ("unit", "1")]),
        any::<bool>(),
    );
    let qemu = select(vec![
        (String::new(), String::new()),
        (format!(" xmlns:qemu='{QEMU}'"), String::new()),
        (
            " xmlns:qemu='urn:other'".to_owned(),
            "<qemu:commandline><qemu:arg value='-x'/></qemu:commandline>".to_owned(),
        ),
        (
            format!(" xmlns:q=\"{QEMU}\""),
            "<q:commandline><q:arg value='-x'/><!-- end --></q:commandline>".to_owned(),
        ),
        (String::new(), format!("<commandline xmlns='{QEMU}'/>")),
    ]);
    (prop::collection::vec(noise(), 10), disk, qemu, any::<bool>()).prop_map(|(noise, disk, (declared, block), address)| {
        let (target, driver, drive, serial) = disk;
        let declaration = if declared.contains("qemu=") { "" } else { "<?xml version='1.0'?>\n" };
        let boot = "<disk><driver error_policy=\"stop\" /><target dev='sda' bus='sata'/><alias name='ua-boot-image'/></disk>";
        let kept = vec![
            format!("{declaration}<!-- {} -->", "prolog"),
            noise[0].replace('\n', " ") + "<os><type machine='q35'/></os>",
            noise[1].clone() + "<devices\n>" + &noise[2] + boot + &noise[3],
            noise[4].clone() + "<alias name='ua-macintosh-hd'/>" + &noise[5],
            "</disk>".to_owned() + &noise[6] + "<memballoon model='none'/>",
            "<!-- end --></devices>".to_owned() + &noise[7] + "<features/>",
        ];
        let serial = if serial { "<serial>HD-0007-A</serial>" } else { "" };
        let drive = if address { drive + "<boot order='2'/>" } else { String::new() };
        let whole = format!(
            "{}<domain{declared} type='kvm'>{block}{}{}<disk>{target}{serial}{driver}{}{drive}{}{}</domain>\n<!-- after -->",
            kept[0], kept[1], kept[2], kept[3], kept[4], kept[5]
        );
        Made { kept, whole }
    })
}

/// Refused for a reason that is not the hook's own fault, or changed so that a second pass changes nothing.
fn settled(domain: &str, vmi: &Vmi) -> Result<(), TestCaseError> {
    match transform(domain, vmi, &osk()) {
        Ok(out) => prop_assert_eq!(transform(&out, vmi, &osk()).ok(), Some(out.clone())),
        Err(refusal) => prop_assert_ne!(refusal.reason(), Reason::SelfCheck, "{} in {}", refusal, domain),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bytes_that_are_not_the_change_stay_in_their_order(made in documents(), mode in select(vec!["native", "override", "off"])) {
        let vmi = vmi(&[("nvme", mode)]);
        let out = transform(&made.whole, &vmi, &osk());
        let out = out.map_err(|refusal| TestCaseError::fail(format!("{refusal} in {}", made.whole)))?;
        let (mut rest, mut gaps) = (out.as_str(), Vec::new());
        for piece in &made.kept {
            let at = rest.find(piece.as_str());
            prop_assert!(at.is_some(), "{piece:?} is gone or changed in {out}");
            gaps.push(&rest[..at.unwrap_or_default()]);
            rest = &rest[at.unwrap_or_default() + piece.len()..];
        }
        // before the prolog and between <os> and the bootdisk there is nothing to add; a controller only in native
        prop_assert_eq!((gaps[0], gaps[2]), ("", ""));
        let controller = "<controller type=\"nvme\" index=\"0\">";
        prop_assert!(if mode == "native" { gaps[5].starts_with(controller) } else { gaps[5].is_empty() }, "{}", gaps[5]);
        prop_assert!(rest.ends_with("</domain>\n<!-- after -->"));
        // the change is there, by an evaluator of its own
        let judge = Judge::of(&out);
        prop_assert_eq!(judge.target("ua-macintosh-hd").0, if mode == "native" { "nvme" } else { "sata" });
        prop_assert_eq!(out.matches("isa-applesmc").count(), 1);
        prop_assert_eq!(transform(&out, &vmi, &osk()).ok(), Some(out.clone()));
    }

    #[test]
    fn damaged_domains_are_refused_or_changed_for_good_and_nothing_panics(
        source in select(vec![FRESH, READBACK, CROWDED]),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..60, "[<>/='\"& a-z0-9!-]{0,12}"), 1..4),
        mode in select(vec!["native", "override", "off"]),
    ) {
        let mut damaged = source.to_owned();
        for (at, length, text) in cuts {
            let floor = |at: usize| (0..=at.min(damaged.len())).rev().find(|at| damaged.is_char_boundary(*at)).unwrap_or(0);
            let start = floor(at.index(damaged.len().max(1)));
            let end = floor(start + length).max(start);
            damaged.replace_range(start..end, &text);
        }
        let vmi = vmi(&[("nvme", mode), ("nic-model", "e1000e")]);
        settled(&damaged, &vmi)?;
    }

    #[test]
    fn lines_of_a_domain_may_come_in_any_number_and_order(picks in prop::collection::vec(any::<prop::sample::Index>(), 0..120)) {
        let lines: Vec<&str> = CROWDED.lines().chain(READBACK.lines()).collect();
        let shuffled: String = picks.iter().map(|pick| lines[pick.index(lines.len())]).collect();
        let q35 = "<os><type machine='q35'/></os>";
        let document = format!("<domain xmlns:qemu='{QEMU}'>{q35}<devices>{shuffled}</devices></domain>");
        settled(&document, &vmi(&[]))?;
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>(), json in any::<Vec<u8>>()) {
        prop_assert!(transform(&text, &vmi(&[]), &osk()).is_err());
        prop_assert!(Vmi::from_json(&json).is_err());
        let _ = Vmi::from_json(MACHINE.replacen("disks", &text.replace(['"', '\\'], ""), 1).as_bytes());
    }
}
