//! By what objects are found: keys read off the raw object, so that one that cannot be decoded is found too.

use dockerios_api::names;
use serde_json::Value;

/// What a key is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Index {
    /// Anything: its own uid.
    Uid,
    /// Machines: `namespace/name` of the claim they were given to.
    ClaimName,
    /// VirtualMachines, VMIs, launcher pods, DataVolumes, PVCs, ConfigMaps: uid of their machine.
    MachineUid,
    /// VirtualMachines, VMIs, launcher pods: name of the MachineIdentity they carry.
    Identity,
    /// VirtualMachines, VMIs: firmware UUID in lower case.
    FirmwareUuid,
    /// Machines: uid of their pool. Claims: `namespace/poolName`.
    Pool,
    /// Machines: uid of the claim they were given to or made for.
    Claim,
    /// Machines and pools: class. Claims: `namespace/class`.
    Class,
    /// Identities: pool. Classes: pool.
    IdentityPool,
    /// Classes: image. DataVolumes, PVCs: image they hold.
    Image,
    /// Jobs, PVCs, builder pods: identity whose bootdisk they build or hold.
    BootDiskOf,
    /// VMIs, pods: node.
    Node,
    /// Anything: uid of its controlling owner.
    Owner,
    /// Identities: uid of the machine in their claimRef.
    Holder,
    /// Machines: class, while they have no identity. Claims: namespace, while they have no machine.
    Waiting,
    /// Machines, pools, claims: namespace.
    Within,
    /// DataVolumes: `namespace/name` of the PVC or VolumeSnapshot they are cloned from.
    Source,
    /// Classes: device of the card they ask for. VirtualMachines: devices of theirs. Nodes: extended resources, which
    /// cards are.
    Card,
}

/// An index and a value in it.
pub type IndexKey = (Index, String);

/// All keys of an object.
pub fn keys_of(object: &Value) -> Vec<IndexKey> {
    let mut keys = Vec::new();
    let mut add = |index: Index, value: Option<&str>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            keys.push((index, value.to_owned()));
        }
    };
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);

    add(Index::Uid, text("/metadata/uid"));
    add(Index::MachineUid, label(names::MACHINE_UID));
    add(Index::Identity, label(names::IDENTITY));
    add(Index::Image, label(names::IMAGE));
    add(Index::BootDiskOf, label(names::BOOTDISK_OF));
    add(Index::Owner, controller_of(object));
    let kind = object["kind"].as_str().unwrap_or_default();
    if matches!(kind, "MacOSMachine" | "MacOSMachinePool" | "MacOSMachineClaim") {
        add(Index::Within, text("/metadata/namespace"));
    }
    match kind {
        "MacOSMachine" => {
            add(Index::Pool, label(names::POOL_UID));
            add(Index::Class, text("/spec/machineClassName"));
            add(Index::Claim, text("/spec/claimRef/uid").or(label(names::CLAIM_UID)));
            let namespace = text("/metadata/namespace").unwrap_or_default();
            let claim = text("/spec/claimRef/name").map(|name| format!("{namespace}/{name}"));
            add(Index::ClaimName, claim.as_deref());
            let waits = text("/status/identityRef").is_none() && object["status"]["failure"].is_null();
            add(Index::Waiting, text("/spec/machineClassName").filter(|_| waits));
        }
        "MacOSMachinePool" => add(Index::Class, text("/spec/machineClassName")),
        "MacOSMachineClaim" => {
            let namespace = text("/metadata/namespace").unwrap_or_default();
            let waits = object["status"]["machineRef"].is_null() && object["status"]["end"].is_null();
            add(Index::Waiting, Some(namespace).filter(|_| waits));
            let within = |name: Option<&str>| name.map(|name| format!("{namespace}/{name}"));
            add(Index::Pool, within(text("/spec/poolName")).as_deref());
            add(Index::Class, within(text("/spec/machineClassName")).as_deref());
        }
        "MacOSMachineClass" => {
            add(Index::Image, text("/spec/imageName"));
            add(Index::IdentityPool, text("/spec/identity/perMachine/poolName"));
            add(Index::Card, text("/spec/gpu/deviceName"));
        }
        "Node" => {
            let offered = object.pointer("/status/allocatable").and_then(Value::as_object);
            let names = offered.into_iter().flatten().map(|(name, _)| name.as_str());
            // Kubernetes' own resources have no domain
            names
                .filter(|name| name.contains('/'))
                .for_each(|name| add(Index::Card, Some(name)));
        }
        "MachineIdentity" => {
            add(Index::IdentityPool, text("/spec/poolName"));
            add(Index::Holder, text("/status/claimRef/uid"));
        }
        "VirtualMachine" => {
            let uuid = text("/spec/template/spec/domain/firmware/uuid").map(str::to_ascii_lowercase);
            add(Index::FirmwareUuid, uuid.as_deref());
            add(
                Index::Identity,
                text("/spec/template/metadata/labels/identity.dockerios.io~1name"),
            );
            // KubeVirt hands over the same devices under either name
            for field in ["gpus", "hostDevices"] {
                let cards = object
                    .pointer("/spec/template/spec/domain/devices")
                    .map(|devices| &devices[field]);
                for card in cards.and_then(Value::as_array).into_iter().flatten() {
                    add(Index::Card, card["deviceName"].as_str());
                }
            }
        }
        "VirtualMachineInstance" => {
            let uuid = text("/spec/domain/firmware/uuid").map(str::to_ascii_lowercase);
            add(Index::FirmwareUuid, uuid.as_deref());
            add(Index::Node, text("/status/nodeName"));
        }
        "Pod" => add(Index::Node, text("/spec/nodeName")),
        "DataVolume" => {
            for kind in ["pvc", "snapshot"] {
                let field = |name: &str| object["spec"]["source"][kind][name].as_str().unwrap_or_default();
                if !field("name").is_empty() {
                    add(
                        Index::Source,
                        Some(&format!("{}/{}", field("namespace"), field("name"))),
                    );
                }
            }
        }
        _ => {}
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn controller_of(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_virtual_machine_is_found_by_machine_identity_and_uuid() {
        let vm = json!({"kind": "VirtualMachine",
            "metadata": {"labels": {"machine.dockerios.io/uid": "u"}},
            "spec": {"template": {"metadata": {"labels": {"identity.dockerios.io/name": "c02"}},
                "spec": {"domain": {"firmware": {"uuid": "AB-CD"}}}}}});
        let keys = keys_of(&vm);
        for (index, value) in [
            (Index::MachineUid, "u"),
            (Index::Identity, "c02"),
            (Index::FirmwareUuid, "ab-cd"),
        ] {
            assert!(keys.contains(&(index, value.into())), "{index:?}: {keys:?}");
        }
    }

    #[test]
    fn a_card_is_found_at_who_asks_for_it_who_has_it_and_who_offers_it() {
        let card = (Index::Card, "amd.com/polaris".to_owned());
        for object in [
            json!({"kind": "MacOSMachineClass", "spec": {"gpu": {"deviceName": "amd.com/polaris"}}}),
            json!({"kind": "VirtualMachine", "spec": {"template": {"spec": {"domain": {"devices": {
                "gpus": [{"name": "card", "deviceName": "amd.com/polaris"}]}}}}}}),
            json!({"kind": "VirtualMachine", "spec": {"template": {"spec": {"domain": {"devices": {
                "hostDevices": [{"name": "card", "deviceName": "amd.com/polaris"}]}}}}}}),
            json!({"kind": "Node", "status": {"allocatable": {"amd.com/polaris": "0", "cpu": "4"}}}),
        ] {
            assert_eq!(keys_of(&object), std::slice::from_ref(&card), "{object}");
        }
    }

    #[test]
    fn a_claim_is_found_within_its_namespace_only() {
        let claim = json!({"kind": "MacOSMachineClaim", "metadata": {"namespace": "a"}, "spec": {"poolName": "ci"}});
        assert_eq!(
            keys_of(&claim),
            [
                (Index::Pool, "a/ci".into()),
                (Index::Waiting, "a".into()),
                (Index::Within, "a".into())
            ]
        );
    }

    #[test]
    fn a_claim_with_a_machine_and_a_machine_with_an_identity_wait_no_more() {
        let claim = json!({"kind": "MacOSMachineClaim", "metadata": {"namespace": "a"},
            "status": {"machineRef": {"name": "m", "uid": "u"}}});
        assert_eq!(keys_of(&claim), [(Index::Within, "a".into())]);
        let machine =
            json!({"kind": "MacOSMachine", "spec": {"machineClassName": "c"}, "status": {"identityRef": "s"}});
        assert_eq!(keys_of(&machine), [(Index::Class, "c".into())]);
    }
}
