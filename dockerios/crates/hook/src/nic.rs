//! The NIC's model. Invariant: only an `e1000` is changed, to the value of the annotation; any other model was
//! somebody's choice.

use crate::{
    Vmi,
    document::{Domain, attribute, children},
    splice::Splices,
};

/// The model that KubeVirt's API can name and that the controller renders.
const RENDERED: &str = "e1000";

/// Rewrites it where the annotation asks for it.
pub fn rewrite(domain: Domain<'_>, vmi: &Vmi, splices: &mut Splices) {
    let Some(wanted) = &vmi.nic_model else { return };
    for model in children(domain.devices, "interface").flat_map(|interface| children(interface, "model")) {
        if attribute(model, "type") == Some(RENDERED) {
            splices.set(model, "type", wanted);
        }
    }
}
