//! Names that more than one part must agree on: labels, taints, finalizers, prefixes, managers.

/// Extended resource that a Mac offers: two, always (Apple's licence, and the counter in its kernel).
pub const MACOS_VM: &str = "macrack.io/macos-vm";
/// How many macOS VMs one Mac may run. A fact of the licence and of the kernel, not a setting.
pub const VMS_PER_MAC: usize = 2;

/// Taint of a chassis that nobody leases: `macrack.io/unleased=true:NoSchedule`.
pub const TAINT_UNLEASED: &str = "macrack.io/unleased";
/// Taint of a leased chassis: `macrack.io/lease=<lease uid>:NoSchedule`.
pub const TAINT_LEASE: &str = "macrack.io/lease";

/// Node label: the chassis' serial in lower case.
pub const LABEL_SERIAL: &str = "macrack.io/serial";
/// Node label: Apple's chip, e.g. `M4-Pro`.
pub const LABEL_CHIP: &str = "macrack.io/chip";
/// Node label: physical memory as a quantity, e.g. `64Gi`.
pub const LABEL_MEMORY: &str = "macrack.io/memory";
/// Node label: the host's macOS version.
pub const LABEL_HOST_VERSION: &str = "macrack.io/host-version";
/// Node label: uid of the lease that holds the chassis; absent when nobody does.
pub const LABEL_LEASE: &str = "macrack.io/lease";
/// Pod label: uid of the MacOSInstance behind a placeholder.
pub const LABEL_INSTANCE: &str = "macrack.io/instance-uid";
/// Node annotation: set when MacRack itself cordoned the Node, so that it lifts no one else's cordon.
pub const ANNOTATION_CORDONED: &str = "macrack.io/cordoned";

/// On a MacNodeLease: the chassis is given back only after the floor.
pub const FINALIZER_LEASE: &str = "rack.macrack.io/release";
/// On a MacNode with a leaseRef.
pub const FINALIZER_NODE: &str = "rack.macrack.io/leased";
/// On a MacOSInstance: its VM is stopped and wiped first.
pub const FINALIZER_INSTANCE: &str = "instance.macrack.io/vm";
/// On a placeholder pod: the slot is held until the VM is wiped.
pub const FINALIZER_POD: &str = "macrack.io/slot";

/// Field manager of what the operator writes.
pub const MANAGER: &str = "macrack-operator";
/// Field manager of what an agent writes.
pub const AGENT_MANAGER: &str = "macrack-agent";

/// Namespace of the operator.
pub const SYSTEM_NAMESPACE: &str = "macrack-system";
/// ServiceAccount of the operator, in [`SYSTEM_NAMESPACE`].
pub const OPERATOR_ACCOUNT: &str = "macrack-operator";
/// Namespace of the chassis' ServiceAccounts.
pub const AGENT_NAMESPACE: &str = "macrack-agents";
/// Prefix of a chassis' Node.
pub const NODE_PREFIX: &str = "macrack-";
/// Prefix of a placeholder pod.
pub const POD_PREFIX: &str = "macrack-vm-";

/// The MacNode's name for a serial: lower case.
pub fn mac_node(serial: &str) -> String {
    serial.to_ascii_lowercase()
}
/// The Node of a MacNode.
pub fn node(mac_node: &str) -> String {
    format!("{NODE_PREFIX}{mac_node}")
}
/// The ServiceAccount (also ClusterRole suffix) of a MacNode's agent.
pub fn agent_account(mac_node: &str) -> String {
    format!("macrack-agent-{mac_node}")
}
/// The ServiceAccount that enrols a MacNode's agent and can do nothing else.
pub fn enroll_account(mac_node: &str) -> String {
    format!("macrack-enroll-{mac_node}")
}
/// The CertificateSigningRequest by which a MacNode's agent asks for its serving certificate.
pub fn serving_request(mac_node: &str) -> String {
    format!("macrack-serving-{mac_node}")
}
/// The placeholder pod of an instance. At most 253 characters, as pod names are: an instance's name has at most 63.
pub fn placeholder(instance: &str) -> String {
    format!("{POD_PREFIX}{instance}")
}
