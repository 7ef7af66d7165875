//! Who else is in the network: whom an address belongs to, or will.
//!
//! Nothing in a cluster says which address a Mac ought to have; its agent does. So whatever is known to be somebody
//! else's is refused, and whatever no machine is reached at.

use core::net::IpAddr;
use core::str::FromStr;

/// Addresses that begin with the same bits, such as `10.96.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    base: IpAddr,
    bits: u32,
}

/// A text that is no block of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoBlock(pub String);

impl core::fmt::Display for NoBlock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} is no block of addresses such as 10.96.0.0/16", self.0)
    }
}

impl FromStr for Block {
    type Err = NoBlock;

    fn from_str(text: &str) -> Result<Self, NoBlock> {
        let refused = || NoBlock(text.chars().take(64).collect());
        let (base, bits) = text.split_once('/').ok_or_else(refused)?;
        let base: IpAddr = base.parse().map_err(|_| refused())?;
        let bits: u32 = bits.parse().map_err(|_| refused())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        if bits > most { Err(refused()) } else { Ok(Self { base, bits }) }
    }
}

impl Block {
    /// Whether the address is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        // a shift by the whole width is none at all, and leaves nothing to compare
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (base.to_bits() ^ address.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                (base.to_bits() ^ address.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// What others have, as the API server and the operator's own way to it say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Others {
    /// Where the API server is reached: by the operator, by pods, behind its Service.
    pub api_server: Vec<IpAddr>,
    /// The addresses of all other Nodes, of every type, each with its Node's name.
    pub nodes: Vec<(String, IpAddr)>,
    /// Blocks from which the cluster gives addresses, each with whom it gives them to.
    pub blocks: Vec<(String, Block)>,
}

impl Others {
    /// Why a Mac is not given a certificate for this address; `None` when nothing is known against it.
    pub(super) fn against(&self, address: IpAddr) -> Option<String> {
        let is_it = |other: &IpAddr| other.to_canonical() == address.to_canonical();
        let address = address.to_canonical();
        if address.is_loopback() {
            // simulated Macs share one machine with the API server, which is at its loopback too then
            let one_machine = self.api_server.iter().any(|server| server.to_canonical().is_loopback());
            let words = "is every machine's own; give the Mac one at which the API server reaches it";
            return (!one_machine).then(|| format!("{address} {words}"));
        }
        if !is_a_machines(address) {
            return Some(format!("{address} is no single machine's; give the Mac one of its own"));
        }
        if self.api_server.iter().any(is_it) {
            return Some(format!("the API server has {address}; give each machine its own"));
        }
        if let Some((node, _)) = self.nodes.iter().find(|(_, other)| is_it(other)) {
            return Some(format!("Node {node} has {address}; give each machine its own"));
        }
        let (whose, _) = self.blocks.iter().find(|(_, block)| block.contains(address))?;
        Some(format!("{address} is one of {whose}; give the Mac one outside of them"))
    }
}

/// Whether a machine can be reached at it from another network.
fn is_a_machines(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_holds_what_begins_as_it_does_and_nothing_else() {
        for (block, address, is) in [
            ("10.96.0.0/16", "10.96.255.1", true),
            ("10.96.0.0/16", "10.97.0.1", false),
            ("10.96.0.0/16", "::ffff:10.96.0.1", true),
            ("10.96.0.0/16", "fd00::1", false),
            ("10.96.0.1/32", "10.96.0.1", true),
            ("10.96.0.1/32", "10.96.0.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("fd00:96::/112", "fd00:96::ffff", true),
            ("fd00:96::/112", "fd00:96::1:0", false),
            ("::/0", "fd00::1", true),
        ] {
            assert_eq!(block.parse::<Block>().unwrap().contains(at(address)), is, "{address} in {block}");
        }
        for wrong in ["", "10.96.0.0", "10.96.0.0/33", "fd00::/129", "10.96/16", "10.96.0.0/-1", "10.96.0.0/"] {
            assert!(wrong.parse::<Block>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_somebody_elses_or_nobodys_is_refused_with_whose_it_is() {
        let others = Others {
            api_server: vec![at("203.0.113.5"), at("10.96.0.1")],
            nodes: vec![("worker-1".into(), at("10.0.0.8")), ("worker-2".into(), at("fd00::2"))],
            blocks: vec![("the addresses of Services".into(), "10.96.0.0/16".parse().unwrap())],
        };
        for (address, why) in [
            ("10.0.0.7", None),
            ("fd00::7", None),
            ("203.0.113.5", Some("the API server has 203.0.113.5")),
            ("10.0.0.8", Some("Node worker-1 has 10.0.0.8")),
            ("fd00::2", Some("Node worker-2 has fd00::2")),
            // to whoever checks a certificate both are one address
            ("::ffff:10.0.0.8", Some("Node worker-1 has 10.0.0.8")),
            ("::ffff:203.0.113.5", Some("the API server has")),
            ("10.96.12.3", Some("one of the addresses of Services")),
            ("127.0.0.1", Some("every machine's own")),
            ("::ffff:127.0.0.1", Some("every machine's own")),
            ("::1", Some("every machine's own")),
            ("0.0.0.0", Some("no single machine's")),
            ("255.255.255.255", Some("no single machine's")),
            ("169.254.1.2", Some("no single machine's")),
            ("fe80::1", Some("no single machine's")),
            ("224.0.0.1", Some("no single machine's")),
            ("ff02::1", Some("no single machine's")),
        ] {
            let said = others.against(at(address));
            match why {
                None => assert_eq!(said, None, "{address}"),
                Some(why) => assert!(said.as_ref().is_some_and(|said| said.contains(why)), "{address}: {said:?}"),
            }
        }
    }

    #[test]
    fn loopback_is_a_macs_own_only_where_the_api_server_is_there_too() {
        let mut others = Others { nodes: vec![("macrack-other".into(), at("127.0.0.1"))], ..Others::default() };
        assert!(others.against(at("127.0.0.1")).is_some());
        others.api_server.push(at("127.0.0.1"));
        assert_eq!(others.against(at("127.0.0.1")), None, "simulated Macs share one machine");
    }
}
