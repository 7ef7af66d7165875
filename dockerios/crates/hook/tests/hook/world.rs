//! What the tests hand to the hook.

use dockerios_domain_hook::{Osk, Refusal, Vmi, transform};
use serde_json::{Value, json};

pub const FRESH: &str = include_str!("../data/fresh.xml");
pub const READBACK: &str = include_str!("../data/readback.xml");
pub const CROWDED: &str = include_str!("../data/crowded.xml");
pub const MACHINE: &str = include_str!("../data/machine.json");
pub const KEY: &str = include_str!("../data/key");
pub const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

pub fn osk() -> Osk {
    Osk::parse(KEY.as_bytes()).unwrap()
}

/// The machine with these annotations set besides its own.
pub fn machine_with(annotations: &[(&str, &str)]) -> Value {
    let mut machine: Value = serde_json::from_str(MACHINE).unwrap();
    for (name, value) in annotations {
        machine["metadata"]["annotations"][format!("dockerios.io/{name}")] = json!(value);
    }
    machine
}

pub fn vmi_of(machine: &Value) -> Vmi {
    Vmi::from_json(machine.to_string().as_bytes()).unwrap()
}

pub fn vmi(annotations: &[(&str, &str)]) -> Vmi {
    vmi_of(&machine_with(annotations))
}

pub fn changed(domain: &str, annotations: &[(&str, &str)]) -> Result<String, Refusal> {
    transform(domain, &vmi(annotations), &osk())
}

/// Replaces what is there exactly once, so that no test changes nothing.
pub fn with(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} is not there once");
    text.replacen(from, to, 1)
}
