//! Why an identity is refused. Invariant: a refusal names the field, what stood there, the rule, and the way out.

use std::fmt;

use crate::models::Model;

/// A field of an identity, by the name it has in the API and in identity files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// The Mac model.
    Model,
    /// The serial number.
    Serial,
    /// The main logic board's serial number.
    Mlb,
    /// Six bytes that Apple's services take for the address of the first network card.
    Rom,
    /// The hardware UUID.
    SystemUuid,
    /// The address of the virtual network card.
    MacAddress,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Serial => "serial",
            Self::Mlb => "mlb",
            Self::Rom => "rom",
            Self::SystemUuid => "systemUUID",
            Self::MacAddress => "macAddress",
        })
    }
}

/// The rules that an identity has to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// The model stands in the published tables.
    ModelUnknown,
    /// The tables know the model's board code.
    ModelWithoutBoardCode,
    /// Serials have 12 characters.
    SerialLength,
    /// Serials are written in the 34 characters.
    SerialAlphabet,
    /// MLBs have 17 characters.
    MlbLength,
    /// MLBs are written in the 34 characters.
    MlbAlphabet,
    /// The weighted sum of an MLB is a multiple of 34.
    MlbChecksum,
    /// A ROM is six bytes, written as 12 hexadecimal digits.
    RomShape,
    /// A ROM is the address of one card, not of a group, and not zero.
    RomUnicast,
    /// A MAC address is six pairs of hexadecimal digits with colons.
    MacShape,
    /// The MAC address is the ROM.
    MacIsRom,
    /// A UUID has 32 hexadecimal digits in groups of 8-4-4-4-12.
    UuidShape,
    /// UUIDs are written in capitals.
    UuidCase,
    /// A UUID is neither all zeros nor all ones.
    UuidBlank,
    /// The value is not a sample that was published.
    PublishedSample,
    /// No other identity has this value, in whatever case it is written.
    Taken,
}

impl Rule {
    fn says(self) -> &'static str {
        match self {
            Self::ModelUnknown => "no such model in the published tables",
            Self::ModelWithoutBoardCode => "the published tables know no board code for this model, so no valid MLB",
            Self::SerialLength => "a serial has exactly 12 characters",
            Self::SerialAlphabet => "a serial is written in 0-9 and A-Z without I and O",
            Self::MlbLength => "an MLB has exactly 17 characters",
            Self::MlbAlphabet => "an MLB is written in 0-9 and A-Z without I and O",
            Self::MlbChecksum => "the MLB's checksum (weights 1, 3, 1, … modulo 34) is not 0",
            Self::RomShape => "a ROM is 6 bytes, written as 12 hexadecimal digits",
            Self::RomUnicast => "a ROM is the address of one network card: the lowest bit of its first byte is 0",
            Self::MacShape => "a MAC address is six pairs of hexadecimal digits with colons between",
            Self::MacIsRom => "the MAC address is not the ROM",
            Self::UuidShape => "a UUID is 32 hexadecimal digits grouped 8-4-4-4-12",
            Self::UuidCase => "the UUID has lower-case letters",
            Self::UuidBlank => "the UUID is blank (all digits the same)",
            Self::PublishedSample => "this value was published as a sample, and many machines claim it",
            Self::Taken => "another identity has this value",
        }
    }

    fn way_out(self) -> String {
        match self {
            Self::ModelUnknown | Self::ModelWithoutBoardCode => {
                let names: Vec<_> = Model::mintable().map(|model| model.name).collect();
                format!("choose one of {}", names.join(" "))
            }
            Self::SerialLength => {
                "copy it from the machine; the 10-character serials of later Macs do not serve".into()
            }
            Self::SerialAlphabet | Self::MlbAlphabet => "write capitals; what looks like I or O is 1 or 0".into(),
            Self::MlbLength | Self::MlbChecksum => "copy it again from the machine that it belongs to".into(),
            Self::RomShape => "write it like 02005E100001".into(),
            Self::RomUnicast => "take the address of the machine's built-in network card".into(),
            Self::MacShape => "write it like 02:00:5e:10:00:01".into(),
            Self::MacIsRom => "write the ROM's six bytes into macAddress".into(),
            Self::UuidShape | Self::UuidBlank => {
                "write the hardware UUID of the machine, or let the pool make the identity".into()
            }
            Self::UuidCase => "write it in capitals".into(),
            Self::PublishedSample => "import an identity that you own, or let the pool make one".into(),
            Self::Taken => {
                "each identity exists once in the fleet; find the other one and delete one of the two".into()
            }
        }
    }
}

/// One field that breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The field that is refused.
    pub field: Field,
    /// What stood there; cut after 64 characters.
    pub found: String,
    /// The rule that it breaks.
    pub rule: Rule,
}

impl Refusal {
    pub(crate) fn new(field: Field, found: &str, rule: Rule) -> Self {
        let mut kept: String = found.chars().take(64).collect();
        if kept.len() < found.len() {
            kept.push('…');
        }
        Self {
            field,
            found: kept,
            rule,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:?}: {}; {}",
            self.field,
            self.found,
            self.rule.says(),
            self.rule.way_out()
        )
    }
}

impl std::error::Error for Refusal {}

/// All rules that an identity breaks, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals(pub Vec<Refusal>);

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, refusal) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{refusal}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusals {}
