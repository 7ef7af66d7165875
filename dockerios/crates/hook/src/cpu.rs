//! The vendor that the processor says it is of. Invariant: only a named model gets one, and only the value of the
//! annotation; without the annotation the processor stays as it is.
//!
//! Under KVM QEMU gives every named model the vendor of the *host* (QEMU, `x86_cpu_load_model`: "normally we advertise
//! the actual CPU vendor, but you can override this using the 'vendor' property"), and macOS knows Intel's alone. On an
//! Intel host the value changes nothing. A model that is the host's own would claim a vendor that its family and
//! features belie, so there it is refused.

use crate::{
    Reason, Refusal, Vmi,
    document::{Domain, at_most_one, attribute, children},
    splice::Splices,
};

/// Sets `model/@vendor_id` where the annotation asks for it. KubeVirt's structs have no field for it: each pass adds it
/// again.
pub fn rewrite(domain: Domain<'_>, vmi: &Vmi, splices: &mut Splices) -> Result<(), Refusal> {
    let Some(vendor) = &vmi.cpu_vendor else { return Ok(()) };
    let not_named = |what: &str| {
        Refusal::new(
            Reason::CpuNotNamed,
            format_args!("domain XML: the vendor {vendor:?} is wanted, and <cpu> {what}"),
            "name a CPU model of Intel's, or take the annotation dockerios.io/cpu-vendor off and run on Intel hosts only",
        )
    };
    let cpu = at_most_one(domain.root, "cpu").map_err(|count| not_named(&format!("is there {count} times")))?;
    let cpu = cpu.ok_or_else(|| not_named("is not there"))?;
    // libvirt takes a <cpu> without mode for custom
    if let Some(mode) = attribute(cpu, "mode").filter(|mode| *mode != "custom") {
        return Err(not_named(&format!("has mode {mode:?}")));
    }
    let mut models = children(cpu, "model");
    let (Some(model), None) = (models.next(), models.next()) else {
        return Err(not_named("has not exactly one <model>"));
    };
    match attribute(model, "vendor_id") {
        Some(other) if other != vendor => Err(Refusal::new(
            Reason::OtherVendor,
            format_args!("domain XML: the CPU says vendor {other:?}, and {vendor:?} is wanted"),
            "remove vendor_id, or whatever other hook adds it: macOS knows Intel's processors alone",
        )),
        Some(_) => Ok(()),
        None => {
            splices.set(model, "vendor_id", vendor);
            Ok(())
        }
    }
}
