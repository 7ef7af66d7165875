//! The whole change. Invariant: see the crate's; and no answer leaves that the function itself would change
//! again.

use crate::{
    Osk, Reason, Refusal, Vmi, cpu, disk,
    document::{Domain, parse},
    native, nic, overriding,
    qemu::QemuParts,
    smc,
    splice::{Splices, escaped},
    vmi::NvmeMode,
};

/// Gives the domain what macOS needs: SMC and hotplug switch, the system disk as NVMe, the NIC's model,
/// the CPU's vendor.
///
/// Pure: the same three values give the same answer. `transform(transform(x)) == transform(x)`.
pub fn transform(domain_xml: &str, vmi: &Vmi, osk: &Osk) -> Result<String, Refusal> {
    let checked = || {
        let once = pass(domain_xml, vmi, osk)?;
        match pass(&once, vmi, osk) {
            Ok(twice) if twice == once => Ok(once),
            Ok(_) => Err(own_fault("a second pass would change it again")),
            Err(refusal) => Err(own_fault(&format!("a second pass would refuse it ({refusal})"))),
        }
    };
    let option = osk.as_option();
    let in_quotes = [quoted(osk.reveal()), quoted(&option)];
    let secrets = [osk.reveal(), &option, &escaped(&option), &in_quotes[0], &in_quotes[1]];
    checked().map_err(|refusal: Refusal| refusal.without(&secrets))
}

/// As it stands between the quotes of a sentence.
fn quoted(text: &str) -> String {
    let quoted = format!("{text:?}");
    quoted[1..quoted.len() - 1].to_owned()
}

/// A domain's bytes as text: KubeVirt and libvirt write UTF-8.
pub fn text_of(domain_xml: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(domain_xml).map_err(|error| {
        Refusal::new(
            Reason::DomainUnreadable,
            format_args!("domain XML: not UTF-8: {error}"),
            "hand over the domain as libvirt or KubeVirt wrote it",
        )
    })
}

fn pass(xml: &str, vmi: &Vmi, osk: &Osk) -> Result<String, Refusal> {
    let document = parse(xml)?;
    let domain = Domain::of(&document)?;
    let qemu = QemuParts::of(domain)?;
    let mut splices = Splices::of(xml);

    disk::demand_bootdisk_on_sata(domain, vmi)?;
    match vmi.nvme {
        NvmeMode::Native => native::rewrite(domain, &qemu, vmi, &mut splices)?,
        NvmeMode::Override => overriding::rewrite(domain, &qemu, vmi, &mut splices)?,
        // left as it is, but it has to be there: the annotation names it
        NvmeMode::Off => drop(disk::Disk::of(domain, &vmi.system_disk)?),
    }
    nic::rewrite(domain, vmi, &mut splices);
    cpu::rewrite(domain, vmi, &mut splices)?;
    smc::add(&qemu, osk, &mut splices)?;
    splices
        .apply()
        .ok_or_else(|| own_fault("two changes want the same bytes"))
}

fn own_fault(what: &str) -> Refusal {
    Refusal::new(
        Reason::SelfCheck,
        format_args!("the changed domain did not pass the hook's own check: {what}"),
        "report it with the domain XML, its key removed: this is a fault of the hook",
    )
}
