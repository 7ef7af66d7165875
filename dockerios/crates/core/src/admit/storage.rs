//! Whether a storage class gives freed blocks back. What a guest trims reaches QEMU as discards; a volume that does
//! not pass them on only ever grows, until nothing is left on the node or in the pool.

use k8s_openapi::api::storage::v1::StorageClass;

/// An admin's word on a storage class: `"true"` or `"false"`.
pub const DISCARDS: &str = "dockerios.io/discards";

/// Drivers of thin block volumes that document discards (Ceph RBD, TopoLVM, LINSTOR, OpenEBS ZFS). Where it depends on
/// how a driver is set up, the admin says it.
const KNOWN: &[&str] = &[
    "rbd.csi.ceph.com",
    "topolvm.io",
    "topolvm.cybozu.com",
    "linstor.csi.linbit.com",
    "zfs.csi.openebs.io",
];

/// Whether its volumes are known to discard.
pub fn discards(class: &StorageClass) -> bool {
    let said = class.metadata.annotations.as_ref().and_then(|all| all.get(DISCARDS));
    match said.map(String::as_str) {
        Some("true") => true,
        Some(_) => false,
        // Rook prefixes the driver's name with its namespace
        None => KNOWN
            .iter()
            .any(|known| class.provisioner == *known || class.provisioner.ends_with(&format!(".{known}"))),
    }
}
