//! What goes out is what was set, what comes in is never refused, and the real definitions take what goes out.

use std::{fs, path::PathBuf};

use dockerios_kubevirt::{
    DataVolume, VirtualMachine, VirtualMachineInstance, condition, crds,
    datavolume::{DataVolumePhase, DataVolumeStatus},
    is_true, names,
    vm::RunStrategy,
    vmi::{VirtualMachineInstanceStatus, VmiPhase},
};
use serde::Deserialize;
use serde_json::{Value, json};

const OURS: &str = include_str!("data/machine.yaml");

fn documents(text: &str) -> Vec<Value> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).expect("the manifest is YAML"))
        .filter(|document| !document.is_null())
        .collect()
}

/// Manifests and definitions beside the repository, when they are there.
fn beside(path: &str) -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared");
    let found = root.join(path);
    if !found.exists() {
        eprintln!("{path} is not beside the repository: checked against what the crate carries only");
        return None;
    }
    Some(found)
}

fn manifests() -> Vec<Value> {
    let mut all = documents(OURS);
    if let Some(directory) = beside("design/examples/dockerios") {
        for file in [
            "01-vm-shared-bootdisk",
            "02-dv-system",
            "03-vm-permachine-bootdisk",
            "04-vm-gpu-pinned",
        ] {
            let text = fs::read_to_string(directory.join(format!("{file}.yaml"))).expect("the example is there");
            all.extend(documents(&text));
        }
    }
    all
}

fn typed(document: &Value) -> Option<Value> {
    let out = match document["kind"].as_str() {
        Some("VirtualMachine") => {
            let machine: VirtualMachine = serde_json::from_value(document.clone()).expect("decodes");
            serde_json::to_value(machine)
        }
        Some("DataVolume") => {
            let volume: DataVolume = serde_json::from_value(document.clone()).expect("decodes");
            serde_json::to_value(volume)
        }
        _ => return None,
    };
    Some(out.expect("encodes"))
}

#[test]
fn what_is_set_goes_out_and_nothing_else() {
    let mut seen = 0;
    for document in manifests() {
        if let Some(out) = typed(&document) {
            assert_eq!(out, document);
            seen += 1;
        }
    }
    assert!(seen >= 2, "only {seen} manifests were looked at");
}

#[test]
fn words_and_fields_of_later_releases_are_read() {
    let status: VirtualMachineInstanceStatus = serde_json::from_value(json!({
        "phase": "Levitating", "nodeName": "a", "inventedLater": {"deep": [1]},
        "conditions": [{"type": "Ready", "status": "False", "lastProbeTime": null, "lastTransitionTime": null, "new": 1}],
        "phaseTransitionTimestamps": [{"phase": "Levitating", "phaseTransitionTimestamp": "2026-11-29T18:15:37Z"},
                                      {"phase": "Running", "phaseTransitionTimestamp": "2026-11-29T18:15:38Z"}],
        "interfaces": [{"ipAddress": "10.0.0.7", "linkState": "up"}],
        "activePods": {"f1": "a"}, "guestOSInfo": {}
    }))
    .expect("a status of a later release decodes");
    assert_eq!(status.phase, Some(VmiPhase::Unrecognised));
    assert!(status.since(VmiPhase::Running).is_some() && status.since(VmiPhase::Failed).is_none());
    assert!(!is_true(&status.conditions, names::READY) && condition(&status.conditions, names::PAUSED).is_none());

    let status: DataVolumeStatus =
        serde_json::from_value(json!({"phase": "Teleporting", "progress": "N/A"})).expect("decodes");
    assert_eq!(status.phase, Some(DataVolumePhase::Unrecognised));
    let unset: DataVolumeStatus = serde_json::from_value(json!({"phase": ""})).expect("decodes");
    assert_eq!(unset.phase, Some(DataVolumePhase::Unset));

    let vm: VirtualMachine = serde_json::from_value(json!({"metadata": {"name": "x"},
        "spec": {"runStrategy": "Sometimes", "template": {"metadata": {"creationTimestamp": null},
                 "spec": {"domain": {"devices": {"watchdog": {}}}}}}}))
    .expect("decodes");
    assert_eq!(vm.spec.run_strategy, Some(RunStrategy::Unrecognised));
}

#[test]
fn an_instance_as_kubevirt_writes_it_is_read() {
    let Some(directory) = beside("design/examples/kubevirt") else {
        return;
    };
    for file in ["vmi-block-pvc.json", "vmi-pinned-gpu.json"] {
        let text = fs::read_to_string(directory.join(file)).expect("the example is there");
        let vmi: VirtualMachineInstance = serde_json::from_str(&text).expect(file);
        assert!(!vmi.spec.domain.devices.disks.is_empty(), "{file}");
    }
}

/// Enough of a structural schema to find a field that would be pruned and a value that would be refused.
fn faults(schema: &Value, value: &Value, path: &str, out: &mut Vec<String>) {
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        if !value.is_string() && !value.is_i64() {
            out.push(format!("{path}: {value} is neither integer nor string"));
        }
        return;
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        _ => true,
    };
    if !fits {
        out.push(format!("{path}: {value} is not of type {}", schema["type"]));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        out.push(format!("{path}: {value} is none of {words:?}"));
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{path}.{name}");
        if let Some(property) = schema["properties"].get(name) {
            faults(property, inner, &at, out);
        } else if schema["additionalProperties"].is_object() {
            faults(&schema["additionalProperties"], inner, &at, out);
        } else if schema["x-kubernetes-preserve-unknown-fields"] != json!(true) {
            out.push(format!("{at}: there is no such field"));
        }
    }
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if value.get(name).is_none() {
            out.push(format!("{path}.{name}: required and absent"));
        }
    }
    for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
        faults(&schema["items"], inner, &format!("{path}[{at}]"), out);
    }
}

fn schema_of(definition: &Value, version: &str) -> Value {
    let versions = definition["spec"]["versions"].as_array().expect("versions");
    let found = versions
        .iter()
        .find(|v| v["name"] == version)
        .expect("the version is served");
    found["schema"]["openAPIV3Schema"].clone()
}

fn judge(definitions: &[Value]) -> usize {
    let mut judged = 0;
    for document in manifests() {
        let Some(mut out) = typed(&document) else { continue };
        let definition = definitions
            .iter()
            .find(|definition| definition["spec"]["names"]["kind"] == document["kind"])
            .expect("the kind is defined");
        let version = document["apiVersion"]
            .as_str()
            .and_then(|v| v.split('/').nth(1))
            .expect("a version");
        // the API server knows these without being told
        let fields = out.as_object_mut().expect("an object");
        fields.retain(|name, _| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
        let mut found = Vec::new();
        faults(&schema_of(definition, version), &out, "", &mut found);
        assert!(found.is_empty(), "{}: {found:#?}", document["metadata"]["name"]);
        judged += 1;
    }
    judged
}

#[test]
fn the_real_definitions_take_what_is_rendered() {
    let Some(directory) = beside("crds") else { return };
    let definitions: Vec<Value> = [
        "kubevirt/virtualmachines.kubevirt.io",
        "cdi/datavolumes.cdi.kubevirt.io",
    ]
    .iter()
    .flat_map(|name| documents(&fs::read_to_string(directory.join(format!("{name}.yaml"))).expect("there")))
    .collect();
    assert!(judge(&definitions) >= 2);

    let mut found = Vec::new();
    let schema = schema_of(&definitions[0], "v1");
    faults(
        &schema,
        &json!({"spec": {"runStrategi": "Once", "template": {"spec": 3}}}),
        "",
        &mut found,
    );
    assert!(
        found.contains(&".spec.runStrategi: there is no such field".to_owned()),
        "{found:?}"
    );
    assert!(
        found.contains(&".spec.template.spec: 3 is not of type \"object\"".to_owned()),
        "{found:?}"
    );
}

#[test]
fn the_own_definitions_have_the_real_names_and_take_the_same() {
    let own: Vec<Value> = crds()
        .iter()
        .map(|crd| serde_json::to_value(crd).expect("encodes"))
        .collect();
    assert!(judge(&own) >= 2);
    let Some(directory) = beside("crds") else { return };
    for crd in &own {
        let name = crd["metadata"]["name"].as_str().expect("a name");
        let folder = if name.ends_with("cdi.kubevirt.io") {
            "cdi"
        } else {
            "kubevirt"
        };
        let text = fs::read_to_string(directory.join(format!("{folder}/{name}.yaml"))).expect("the real one is there");
        let real = &documents(&text)[0];
        assert_eq!(crd["spec"]["scope"], real["spec"]["scope"], "{name}");
        for key in ["kind", "plural", "singular", "shortNames"] {
            let or_none = |value: &Value| {
                if *value == json!([]) {
                    Value::Null
                } else {
                    value.clone()
                }
            };
            assert_eq!(
                or_none(&crd["spec"]["names"][key]),
                or_none(&real["spec"]["names"][key]),
                "{name} {key}"
            );
        }
        let version = &crd["spec"]["versions"][0];
        let served = real["spec"]["versions"].as_array().expect("versions");
        let same = served
            .iter()
            .find(|v| v["name"] == version["name"])
            .expect("the version is a real one");
        let has_status = |v: &Value| v["subresources"]["status"].is_object();
        assert_eq!(has_status(version), has_status(same), "{name}: status subresource");
    }
}
