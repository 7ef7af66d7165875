//! What goes wrong on demand.
//!
//! Invariant: a fault is a state, not an action: it holds while something asks for it. Three may ask: an annotation
//! `sim.dockerios.io/<fault>` on the object (or on the VirtualMachine of an instance), a line in ConfigMap
//! `dockerios-sim/faults`, and the [`crate::Sim`] handle. A line is `FAULT NAMESPACE/NAME [VALUE]`; a `*` at the end
//! of either part stands for anything, and cluster-wide objects have an empty namespace (`node-lost /kvm-1`).

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{PoisonError, RwLock},
};

/// Prefix of the annotations.
pub const PREFIX: &str = "sim.dockerios.io/";

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// What can go wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// The word in annotations and lines.
            pub fn word(self) -> &'static str {
                match self { $(Fault::$name => $word,)* }
            }
        }
    };
}

faults! {
    /// DataVolume: the import fails; the value is the message.
    ImportFails = "import-fails",
    /// DataVolume: nothing moves any more; the phase stays where it is, never Failed.
    Stuck = "stuck",
    /// DataVolume: the clone fails as real ones do: an annotation on the claim with the value, and a phase that stays.
    CloneError = "clone-error",
    /// DataVolume: removed after success, as CDI before 1.62 did; the claim stays.
    Collected = "collected",
    /// DataVolume: waits for its consumer as one of a class without a populator does, in phase WaitForFirstConsumer in
    /// place of PendingPopulation.
    FirstConsumer = "first-consumer",
    /// PersistentVolumeClaim: never bound.
    Unbound = "unbound",
    /// VirtualMachineInstance: the guest ignores the power button.
    IgnoreAcpi = "ignore-acpi",
    /// VirtualMachineInstance: paused on an I/O error.
    IoError = "io-error",
    /// VirtualMachineInstance: the guest comes up to the stage that the value names (Booting, AgentStarting,
    /// LoginWindow, UserSession) and no further.
    HangAt = "hang-at",
    /// VirtualMachineInstance: QEMU ends badly.
    Crash = "crash",
    /// VirtualMachineInstance: the guest shuts itself down.
    Poweroff = "poweroff",
    /// VirtualMachineInstance: no agent runs in the guest.
    NoAgent = "no-agent",
    /// VirtualMachineInstance: the hook's container never gets its socket up.
    HookSilent = "hook-silent",
    /// VirtualMachineInstance, or a pod that probes a launcher's image: QEMU lacks the device that the value names.
    LacksDevice = "lacks-device",
    /// VirtualMachineInstance: its node answers nobody as far as this machine goes; what runs there runs on.
    Stranded = "stranded",
    /// Node: it answers nobody; what runs there runs on.
    NodeLost = "node-lost",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().copied().find(|fault| fault.word() == word);
        known.ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|fault| fault.word()).collect();
            format!("{word:?} is no fault; there are {}", words.join(", "))
        })
    }
}

/// A fault and whom it befalls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What goes wrong.
    pub fault: Fault,
    /// Namespace; a `*` at the end stands for anything.
    pub namespace: String,
    /// Name; a `*` at the end stands for anything.
    pub name: String,
    /// What the fault makes of it; empty for most.
    pub value: String,
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

impl Rule {
    fn befalls(&self, fault: Fault, namespace: &str, name: &str) -> bool {
        self.fault == fault && fits(&self.namespace, namespace) && fits(&self.name, name)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut parts = line.trim().splitn(3, char::is_whitespace);
        let fault = parts.next().unwrap_or_default().parse()?;
        let whom = parts.next().unwrap_or_default();
        let (namespace, name) = whom
            .split_once('/')
            .filter(|(_, name)| !name.is_empty())
            .ok_or_else(|| format!("{whom:?} is not NAMESPACE/NAME, in {line:?}"))?;
        Ok(Self {
            fault,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            value: parts.next().unwrap_or_default().trim().to_owned(),
        })
    }
}

/// All that is asked for now.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    handle: RwLock<Vec<Rule>>,
    map: RwLock<Vec<Rule>>,
}

impl Faults {
    /// Adds one, in place of the same for the same.
    pub(crate) fn set(&self, rule: Rule) {
        let mut rules = self.handle.write().unwrap_or_else(PoisonError::into_inner);
        rules.retain(|known| (known.fault, &known.namespace, &known.name) != (rule.fault, &rule.namespace, &rule.name));
        rules.push(rule);
    }

    /// Takes one away, if the handle asked for it.
    pub(crate) fn clear(&self, fault: Fault, namespace: &str, name: &str) {
        let mut rules = self.handle.write().unwrap_or_else(PoisonError::into_inner);
        rules.retain(|known| (known.fault, &*known.namespace, &*known.name) != (fault, namespace, name));
    }

    /// Takes over the ConfigMap's data; gives back what was not understood.
    pub(crate) fn read(&self, data: Option<&BTreeMap<String, String>>) -> Vec<String> {
        let (mut rules, mut refused) = (Vec::new(), Vec::new());
        for (key, text) in data.into_iter().flatten() {
            let lines = text.lines().map(str::trim);
            for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
                match line.parse() {
                    Ok(rule) => rules.push(rule),
                    Err(error) => refused.push(format!("{key}: {error}")),
                }
            }
        }
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = rules;
        refused
    }

    /// Whether it befalls the object, and the value if so.
    pub(crate) fn get(
        &self,
        fault: Fault,
        namespace: &str,
        name: &str,
        annotations: &[Option<&BTreeMap<String, String>>],
    ) -> Option<String> {
        let key = format!("{PREFIX}{fault}");
        if let Some(value) = annotations.iter().flatten().find_map(|known| known.get(&key)) {
            return (value != "false").then(|| value.clone());
        }
        [&self.handle, &self.map].into_iter().find_map(|rules| {
            let rules = rules.read().unwrap_or_else(PoisonError::into_inner);
            let rule = rules.iter().find(|rule| rule.befalls(fault, namespace, name))?;
            Some(rule.value.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_fault_object_and_value_and_anything_else_is_said() {
        let rule: Rule = "hang-at team-a/macs-* Booting".parse().expect("a rule");
        assert_eq!(
            (rule.fault, &*rule.namespace, &*rule.name, &*rule.value),
            (Fault::HangAt, "team-a", "macs-*", "Booting")
        );
        for (line, reason) in [
            ("hang team-a/x", "is no fault; there are import-fails, stuck,"),
            ("stuck", "\"\" is not NAMESPACE/NAME"),
            ("stuck x", "\"x\" is not NAMESPACE/NAME"),
            ("stuck a/", "\"a/\" is not NAMESPACE/NAME"),
        ] {
            let error = line.parse::<Rule>().expect_err(line);
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn an_annotation_counts_before_the_handle_and_the_handle_before_the_map() {
        let faults = Faults::default();
        let of = |text: &str| BTreeMap::from([("a".to_owned(), text.to_owned())]);
        assert_eq!(
            faults
                .read(Some(&of("# none\nhang-at t/* LoginWindow\nnonsense")))
                .len(),
            1
        );
        assert_eq!(faults.get(Fault::HangAt, "t", "m", &[]).as_deref(), Some("LoginWindow"));
        assert_eq!(faults.get(Fault::HangAt, "u", "m", &[]), None);
        faults.set("hang-at t/m Booting".parse().expect("a rule"));
        assert_eq!(faults.get(Fault::HangAt, "t", "m", &[]).as_deref(), Some("Booting"));
        let annotations = BTreeMap::from([("sim.dockerios.io/hang-at".to_owned(), "false".to_owned())]);
        assert_eq!(faults.get(Fault::HangAt, "t", "m", &[None, Some(&annotations)]), None);
        faults.clear(Fault::HangAt, "t", "m");
        faults.read(None);
        assert_eq!(faults.get(Fault::HangAt, "t", "m", &[]), None);
    }
}
