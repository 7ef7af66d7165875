//! A real libvirt, QEMU and OVMF for the tests of this crate, and what KubeVirt does around them.
//!
//! Invariant: nothing here decides what is right. The domain comes from the hook's own binary, the judges are
//! libvirt's schema, its conversion to a QEMU command line, QEMU itself and OVMF; all of it runs in namespaces of its
//! own, in a root without `/dev/kvm`, and ends with the test. The key is in no message.
//!
//! | Module | Its duty |
//! |---|---|
//! | [`root`] | the Debian root that `ci/substrate-root.sh` made, or the refusal that says so |
//! | [`session`] | a shell in that root, in namespaces of its own |
//! | [`libvirt`] | libvirtd in a session: schema, definition, readback, conversion |
//! | [`arguments`] | a QEMU command line as data |
//! | [`machine`], [`qmp`] | QEMU started on it, and asked what it has |
//! | [`kubevirt`] | what KubeVirt's XML lacks before libvirt can judge it, and what gets lost between two passes |
//! | [`hook`] | the hook's binary, as filter and as server |
//! | [`disks`] | images that the machine boots from |

pub mod arguments;
pub mod disks;
pub mod hook;
pub mod kubevirt;
pub mod libvirt;
pub mod machine;
pub mod qmp;
pub mod root;
pub mod session;
mod trouble;

pub use trouble::{Outcome, Trouble};
