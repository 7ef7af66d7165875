//! QEMU's own part of a domain: `commandline` and `override` in libvirt's QEMU namespace. Invariant: a block
//! belongs to QEMU by its namespace, whatever its prefix; what is added to one uses the prefix of that block.

use crate::{
    Reason, Refusal,
    document::{Domain, El, attribute},
    splice::{Splices, escaped},
};

/// libvirt's namespace for what it passes to QEMU (libvirt, drvqemu, "Pass-through of arbitrary QEMU commands").
pub const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// QEMU's blocks in a domain, and how to write new ones.
pub struct QemuParts<'a> {
    root: El<'a>,
    /// `commandline`
    pub command_line: Option<El<'a>>,
    /// `override`
    pub overriding: Option<El<'a>>,
    arguments: Vec<&'a str>,
    declare_on_root: bool,
    prefix: String,
}

/// A `-device` or `-global` value, taken apart.
pub struct DeviceOption {
    /// Device type.
    pub driver: String,
    /// Name and value, in order.
    pub properties: Vec<(String, String)>,
}

/// Whether this is QEMU's element of that name.
pub fn is(node: El<'_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace() == Some(NAMESPACE) && node.tag_name().name() == name
}

/// QEMU's child elements of that name.
pub fn children<'a>(parent: El<'a>, name: &'a str) -> impl Iterator<Item = El<'a>> {
    parent.children().filter(move |node| is(*node, name))
}

fn single<'a>(root: El<'a>, name: &'a str, reason: Reason) -> Result<Option<El<'a>>, Refusal> {
    let mut found = children(root, name);
    let first = found.next();
    if found.next().is_some() {
        return Err(Refusal::new(
            reason,
            format_args!("domain XML: more than one {name} block in QEMU's namespace"),
            "merge them: which of them counts is not for the hook to guess",
        ));
    }
    Ok(first)
}

impl<'a> QemuParts<'a> {
    /// Finds them.
    pub fn of(domain: Domain<'a>) -> Result<Self, Refusal> {
        let root = domain.root;
        let command_line = single(root, "commandline", Reason::ArgumentsNotUnderstood)?;
        let overriding = single(root, "override", Reason::OverrideConflict)?;
        let mut arguments = Vec::new();
        for argument in command_line.iter().flat_map(|block| children(*block, "arg")) {
            arguments.push(attribute(argument, "value").ok_or_else(|| {
                Refusal::new(
                    Reason::ArgumentsNotUnderstood,
                    "domain XML: an argument for QEMU has no value",
                    "write <qemu:arg value='...'/>",
                )
            })?);
        }
        let declared = root.namespaces().filter(|namespace| namespace.uri() == NAMESPACE);
        let mut prefixes: Vec<&str> = declared.filter_map(|namespace| namespace.name()).collect();
        prefixes.sort_by_key(|prefix| *prefix != "qemu");
        let free = root.namespaces().all(|namespace| namespace.name() != Some("qemu"));
        let (prefix, declare_on_root) = match prefixes.first() {
            Some(prefix) => (format!("{prefix}:"), false),
            None if free => ("qemu:".to_owned(), true),
            // another namespace has the name: the block brings its own as default
            None => (String::new(), false),
        };
        Ok(Self {
            root,
            command_line,
            overriding,
            arguments,
            declare_on_root,
            prefix,
        })
    }

    /// Values of QEMU's arguments that follow an option of this name, written with one dash or two.
    pub fn values(&self, option: &str) -> Result<Vec<&'a str>, Refusal> {
        let (mut values, mut rest) = (Vec::new(), self.arguments.iter());
        while let Some(argument) = rest.next() {
            let name = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-'))
                .unwrap_or_default();
            if !["device", "global"].contains(&name) {
                continue;
            }
            let value = rest.next().ok_or_else(|| {
                Refusal::new(
                    Reason::ArgumentsNotUnderstood,
                    format_args!("domain XML: QEMU's last argument {argument:?} has no value after it"),
                    "add the value or remove the argument",
                )
            })?;
            if name == option {
                values.push(*value);
            }
        }
        Ok(values)
    }

    /// The devices among QEMU's arguments.
    pub fn devices(&self) -> Result<Vec<DeviceOption>, Refusal> {
        let values = self.values("device")?;
        values
            .into_iter()
            .map(|value| DeviceOption::parse(value).ok_or_else(|| unreadable("-device")))
            .collect()
    }

    /// Alias and properties of each override.
    pub fn overrides(&self) -> impl Iterator<Item = (&'a str, Vec<(String, String)>)> {
        let devices = self.overriding.into_iter().flat_map(|block| children(block, "device"));
        devices.map(|device| {
            let properties = children(device, "frontend").flat_map(|frontend| children(frontend, "property"));
            let text = |node, name| attribute(node, name).unwrap_or_default().to_owned();
            let of_node = |node| (text(node, "name"), text(node, "value"));
            (
                attribute(device, "alias").unwrap_or_default(),
                properties.map(of_node).collect(),
            )
        })
    }

    /// Puts arguments behind the ones that are there, into a block of their own when there is none.
    pub fn add_arguments(&self, arguments: &[&str], splices: &mut Splices) {
        let written = |prefix: &str| -> Vec<String> {
            arguments
                .iter()
                .map(|value| format!("<{prefix}arg value=\"{}\"/>", escaped(value)))
                .collect()
        };
        let Some(block) = self.command_line else {
            return self.add_block("commandline", |prefix| written(prefix).concat(), splices);
        };
        let written = written(prefix_of(block, splices));
        // arguments stand before environment variables in libvirt's schema
        match (children(block, "arg").last(), block.first_element_child()) {
            (Some(last), _) => splices.after(last, &written),
            (None, Some(first)) => splices.before(first, &written),
            (None, None) => splices.append(block, &written),
        }
    }

    /// Puts a new block at the end of the domain; `inner` gets the prefix for its elements.
    pub fn add_block(&self, name: &str, inner: impl Fn(&str) -> String, splices: &mut Splices) {
        let prefix = &self.prefix;
        if self.declare_on_root {
            splices.set(self.root, "xmlns:qemu", NAMESPACE);
        }
        let own = if prefix.is_empty() {
            format!(" xmlns=\"{NAMESPACE}\"")
        } else {
            String::new()
        };
        let block = format!("<{prefix}{name}{own}>{}</{prefix}{name}>", inner(prefix));
        splices.append(self.root, &[block]);
    }
}

/// The prefix that an element is written with, colon included; empty for a default namespace.
pub fn prefix_of<'a>(node: El<'_>, splices: &Splices<'a>) -> &'a str {
    let name = splices.qualified_name(node);
    name.find(':').map_or("", |colon| &name[..=colon])
}

/// The refusal of an option's value that cannot be taken apart; its text may hold secrets and is not quoted.
pub fn unreadable(option: &str) -> Refusal {
    Refusal::new(
        Reason::ArgumentsNotUnderstood,
        format_args!("domain XML: the value of a QEMU {option} argument cannot be read"),
        "write driver,name=value,... or one JSON object with a driver",
    )
}

impl DeviceOption {
    /// Takes a `-device` value apart: JSON, or `driver,name=value,...` where a doubled comma is one.
    pub fn parse(value: &str) -> Option<Self> {
        if value.trim_start().starts_with('{') {
            return Self::parse_json(value);
        }
        let mut properties = pairs(value);
        let driver = match properties.iter().position(|(name, _)| name == "driver") {
            Some(at) => properties.remove(at).1,
            None if !properties.is_empty() && properties[0].1.is_empty() => properties.remove(0).0,
            None => return None,
        };
        (!driver.is_empty()).then_some(Self { driver, properties })
    }

    fn parse_json(value: &str) -> Option<Self> {
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(value).ok()?;
        let driver = object.remove("driver")?.as_str()?.to_owned();
        let properties = object.into_iter().map(|(name, value)| {
            let text = match (&value, value.as_u64()) {
                (serde_json::Value::String(text), _) => text.clone(),
                // a number here is slot and function in one byte
                (_, Some(number)) if name == "addr" => format!("{:x}.{:x}", number >> 3, number & 7),
                (other, _) => other.to_string(),
            };
            (name, text)
        });
        Some(Self {
            driver,
            properties: properties.collect(),
        })
    }

    /// The value of a property; of several the last, as QEMU has it.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties
            .iter()
            .rfind(|(candidate, _)| candidate == name)
            .map(|(_, value)| value.as_str())
    }
}

/// `name=value` parts of an option list; the value is empty where there is no sign.
pub fn pairs(list: &str) -> Vec<(String, String)> {
    let (mut parts, mut part, mut characters) = (Vec::new(), String::new(), list.chars().peekable());
    while let Some(c) = characters.next() {
        if c != ',' {
            part.push(c);
        } else if characters.next_if_eq(&',').is_some() {
            part.push(',');
        } else {
            parts.push(std::mem::take(&mut part));
        }
    }
    parts.push(part);
    let split = |part: String| match part.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (part, String::new()),
    };
    parts.into_iter().map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_option_is_taken_apart_in_each_of_its_forms() {
        for form in [
            "nvme,addr=0x3,serial=a,,b",
            "driver=nvme,addr=3,serial=a,,b",
            "addr=3,driver=nvme,serial=a,,b",
        ] {
            let option = DeviceOption::parse(form).unwrap();
            assert_eq!(
                (option.driver.as_str(), option.property("serial")),
                ("nvme", Some("a,b")),
                "{form}"
            );
        }
        let json = DeviceOption::parse(r#"{"driver":"nvme","addr":25,"x":true}"#).unwrap();
        assert_eq!((json.property("addr"), json.property("x")), (Some("3.1"), Some("true")));
        for form in ["", "a=b", "{", r#"{"addr":1}"#, "driver="] {
            assert!(DeviceOption::parse(form).is_none(), "{form}");
        }
    }
}
