//! The config volume: a read-only disk with the label `DOCKERIOS` that tells a guest who it is and whom it may
//! talk to. Invariant: a [`Volume`] is complete and well formed; its token is never printed.
//!
//! | file | holds |
//! |---|---|
//! | `machine-id` | the uid of the machine object |
//! | `collector` | `https://host[:port]`, nothing behind it |
//! | `token` | 64 hexadecimal digits |
//! | `ca.crt` | one or more PEM certificates: the only ones the collector is believed by |
//! | `server-name` | the name that the collector's certificate is for; without the file, the host of `collector` |
//!
//! The name stands apart from the address, since guests may reach the collector by one that nobody knew when its
//! certificate was made, and that changes while they run.

use std::{fmt, fs, io::Read, path::Path};

use crate::{
    is_uid,
    refusal::{Refusal, shown},
};

/// The volume's label, under which macOS mounts it as `/Volumes/DOCKERIOS`.
pub const LABEL: &str = "DOCKERIOS";
/// File with the machine's uid.
pub const MACHINE_ID: &str = "machine-id";
/// File with the collector's address.
pub const COLLECTOR: &str = "collector";
/// File with the machine's token.
pub const TOKEN: &str = "token";
/// File with the certificates that the collector is believed by.
pub const CA: &str = "ca.crt";
/// File with the name that the collector's certificate is for. Operators before it made volumes without.
pub const SERVER_NAME: &str = "server-name";

/// No file of the volume is larger, in bytes.
const LARGEST_FILE: u64 = 256 * 1024;

/// A bearer token. Has no Display, and its Debug shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes 64 hexadecimal digits, as HMAC-SHA256 gives them.
    ///
    /// # Errors
    /// Anything else; the message does not repeat it.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() != 64 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(Refusal::of(
                TOKEN,
                format!(
                    "{} bytes that are not 64 lower-case hexadecimal digits; {REMAKE}",
                    text.len()
                ),
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// The digits, to be put behind `Bearer `.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Where the collector listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// A DNS name or an IP address, the latter without brackets.
    pub host: String,
    /// 443 unless the address names another.
    pub port: u16,
}

impl Collector {
    /// Takes `https://host[:port]` with at most a slash behind it.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refused = |why: &str| {
            Refusal::of(
                COLLECTOR,
                format!(
                    "{} {why}; write https://host[:port], such as https://reports.example:8443",
                    shown(text)
                ),
            )
        };
        let rest = text
            .strip_prefix("https://")
            .ok_or_else(|| refused("does not begin with https://"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(inner) => {
                let (host, behind) = inner
                    .split_once(']')
                    .ok_or_else(|| refused("opens a bracket and does not close it"))?;
                host.parse::<std::net::Ipv6Addr>()
                    .map_err(|_| refused("has no IPv6 address in its brackets"))?;
                (host, behind.strip_prefix(':').or(behind.is_empty().then_some("443")))
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, Some("443")),
            },
        };
        if !is_host(host) {
            return Err(refused("has no plain host name or address"));
        }
        let port = port
            .filter(|p| p.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|p| p.parse().ok())
            .filter(|p| *p != 0)
            .ok_or_else(|| refused("has no port between 1 and 65535 behind the colon"))?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// Whether that is plainly a DNS name or an address, the latter without brackets.
fn is_host(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':');
    (1..=253).contains(&text.len()) && text.bytes().all(plain)
}

impl Collector {
    /// `host:port`, an IPv6 address in brackets: what stands in a Host header.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

/// What a guest is told at birth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The uid of the machine object.
    pub machine_id: String,
    /// Where to report to.
    pub collector: Collector,
    /// The name that the collector's certificate has to be for: a DNS name, or an address without brackets.
    pub server_name: String,
    /// What shows that the report is this machine's.
    pub token: Token,
    /// PEM certificates. Only their frame is checked here; whoever connects reads them.
    pub ca: String,
}

const REMAKE: &str =
    "the platform writes this volume anew when the machine's config Secret is deleted and the machine restarted";

impl Volume {
    /// Reads the volume that is mounted at `directory`.
    ///
    /// # Errors
    /// The first file that is missing, unreadable or malformed.
    pub fn read(directory: &Path) -> Result<Self, Refusal> {
        let machine_id = line(directory, MACHINE_ID)?;
        if !is_uid(&machine_id) {
            return Err(Refusal::of(
                MACHINE_ID,
                format!(
                    "{} is not the uid of a machine (letters, digits, hyphens); {REMAKE}",
                    shown(&machine_id)
                ),
            ));
        }
        let collector = Collector::parse(&line(directory, COLLECTOR)?)?;
        let server_name = match directory.join(SERVER_NAME).symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => collector.host.clone(),
            // what is there and cannot be read is refused, not passed over
            _ => line(directory, SERVER_NAME)?,
        };
        if !is_host(&server_name) {
            return Err(Refusal::of(
                SERVER_NAME,
                format!("{} is no plain host name or address; {REMAKE}", shown(&server_name)),
            ));
        }
        let token = Token::parse(&line(directory, TOKEN)?)?;
        let ca = text(directory, CA)?;
        if !(ca.contains("-----BEGIN CERTIFICATE-----") && ca.contains("-----END CERTIFICATE-----")) {
            return Err(Refusal::of(CA, format!("holds no whole PEM certificate; {REMAKE}")));
        }
        Ok(Self {
            machine_id,
            collector,
            server_name,
            token,
            ca,
        })
    }
}

/// A file of one line, without the white space around it.
fn line(directory: &Path, name: &str) -> Result<String, Refusal> {
    let all = text(directory, name)?;
    let one = all.trim();
    match one {
        "" => Err(Refusal::of(name, format!("empty; {REMAKE}"))),
        _ if one.contains(['\n', '\r']) => Err(Refusal::of(name, format!("has more than one line; {REMAKE}"))),
        _ => Ok(one.to_owned()),
    }
}

fn text(directory: &Path, name: &str) -> Result<String, Refusal> {
    let path = directory.join(name);
    let cannot = |e: std::io::Error| {
        Refusal::of(
            name,
            format!(
                "cannot read {}: {e}; is the volume with the label {LABEL} mounted there?",
                path.display()
            ),
        )
    };
    let file = fs::File::open(&path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(Refusal::of(name, format!("larger than {LARGEST_FILE} bytes; {REMAKE}")));
    }
    String::from_utf8(bytes).map_err(|_| Refusal::of(name, format!("is not UTF-8 text; {REMAKE}")))
}
