//! The machine that the tests hand to the hook.

use dockerios_substrate::{Outcome, arguments::Arguments, hook::Hook, kubevirt, libvirt::Libvirt};
use serde_json::{Value, json};

pub const DOMAIN: &str = include_str!("../data/machine.xml");
pub const MACHINE: &str = include_str!("../data/machine.json");
pub const SERIAL: &str = "ZZTEST000007-SYS";

/// The machine with these annotations besides its own.
pub fn machine_with(annotations: &[(&str, &str)]) -> String {
    let mut machine: Value = serde_json::from_str(MACHINE).expect("the machine is JSON");
    for (name, value) in annotations {
        machine["metadata"]["annotations"][format!("dockerios.io/{name}")] = json!(value);
    }
    machine.to_string()
}

/// Replaces what is there exactly once, so that no test changes nothing.
pub fn with(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} is not there once");
    text.replacen(from, to, 1)
}

/// One pass of the hook over the machine's domain.
pub fn hooked(domain: &str, annotations: &[(&str, &str)]) -> Outcome<String> {
    Hook::start(&machine_with(annotations))?.pass(domain)
}

/// A domain of the hook's, before all of libvirt.
pub fn command_line(libvirt: &mut Libvirt, hooked: &str) -> Outcome<Arguments> {
    let domain = kubevirt::for_libvirt(hooked)?;
    libvirt.define(&domain)?;
    libvirt.command_line(&domain)
}
