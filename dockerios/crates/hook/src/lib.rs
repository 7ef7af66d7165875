//! The domain hook: gives a macOS machine the two things that KubeVirt has no field for, an SMC and its
//! system disk as NVMe, by editing libvirt's domain XML before QEMU starts.
//!
//! Invariant: [`transform`] is a pure function, and `transform(transform(x)) == transform(x)`. Every byte that
//! is not part of the change stays as it was; what cannot be understood is refused, never guessed. KubeVirt
//! calls the hook one to three times per boot on its own output, with parts of it lost in between, so each
//! pass adds only what is missing.
//!
//! | Module | Its duty |
//! |---|---|
//! | [`vmi`] | the contract with the controller: annotations of the VirtualMachineInstance |
//! | [`osk`] | the key, read from a file and never printed |
//! | `bounded` | reads files, up to a bound |
//! | `document`, `splice` | the XML as a tree to read, and as bytes to edit |
//! | `qemu`, `pci` | QEMU's own arguments and overrides in the XML; which slots of bus 0 are taken |
//! | `smc`, `disk`, `native`, `overriding`, `nic`, `cpu` | one change each |
//! | [`serve`], [`proto`] | KubeVirt's gRPC protocol on a unix socket |

mod bounded;
mod cpu;
mod disk;
mod document;
mod native;
mod nic;
pub mod osk;
mod overriding;
mod pci;
pub mod proto;
mod qemu;
mod refusal;
pub mod serve;
mod smc;
mod splice;
mod transform;
pub mod vmi;

pub use bounded::bounded;
pub use osk::Osk;
pub use refusal::{Reason, Refusal};
pub use transform::{text_of, transform};
pub use vmi::Vmi;
