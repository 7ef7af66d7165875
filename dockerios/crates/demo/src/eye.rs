//! Looks at the cluster until something is so, and remembers the way there.
//!
//! Invariant: what is told was read from a watch of the API server, and the clock is the demo's own.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use futures::StreamExt as _;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::Value;

/// Longest wait of a step: the longest thing that is shown takes a minute by itself.
const PATIENCE: Duration = Duration::from_secs(170);

/// A kind: group, version, kind, plural, and the word that kubectl takes.
pub(crate) type Kind = (&'static str, &'static str, &'static str, &'static str);

pub(crate) const PLATFORM: Kind = ("config.dockerios.io", "v1alpha1", "PlatformConfig", "platformconfigs");
pub(crate) const IMAGE: Kind = ("image.dockerios.io", "v1alpha1", "MacOSImage", "macosimages");
pub(crate) const IDENTITIES: Kind = ("identity.dockerios.io", "v1alpha1", "IdentityPool", "identitypools");
pub(crate) const IDENTITY: Kind = (
    "identity.dockerios.io",
    "v1alpha1",
    "MachineIdentity",
    "machineidentities",
);
pub(crate) const CLASS: Kind = (
    "machine.dockerios.io",
    "v1alpha1",
    "MacOSMachineClass",
    "macosmachineclasses",
);
pub(crate) const MACHINE: Kind = ("machine.dockerios.io", "v1alpha1", "MacOSMachine", "macosmachines");
pub(crate) const POOL: Kind = (
    "machine.dockerios.io",
    "v1alpha1",
    "MacOSMachinePool",
    "macosmachinepools",
);
pub(crate) const CLAIM: Kind = (
    "machine.dockerios.io",
    "v1alpha1",
    "MacOSMachineClaim",
    "macosmachineclaims",
);
pub(crate) const VM: Kind = ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines");
pub(crate) const VMI: Kind = ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances");
pub(crate) const VOLUME: Kind = ("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes");
pub(crate) const DISK: Kind = ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
pub(crate) const EVENT: Kind = ("events.k8s.io", "v1", "Event", "events");

/// The API of a kind; an empty namespace stands for all, and for none.
pub(crate) fn api(client: &Client, kind: Kind, namespace: &str) -> Api<DynamicObject> {
    let (group, version, name, plural) = kind;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural);
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

/// What was met, and the way there.
pub(crate) struct Met {
    /// The object when it was so.
    pub(crate) object: Value,
    /// The words of the way, none twice in a row.
    pub(crate) trail: Vec<String>,
    /// How long it took since the wait began.
    pub(crate) took: Duration,
}

impl Met {
    /// The way as one line.
    pub(crate) fn way(&self) -> String {
        self.trail.join(" > ")
    }
}

/// Watches one object until `done`; `word` says in a word or two where it is.
///
/// # Errors
/// After [`PATIENCE`]; with the way so far and the command that shows more.
pub(crate) async fn until(
    client: &Client,
    (kind, namespace, name): (Kind, &str, &str),
    sign: &str,
    word: impl Fn(&Value) -> Option<String>,
    done: impl Fn(&Value) -> bool,
) -> Result<Met> {
    let began = Instant::now();
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(watcher::watcher(api(client, kind, namespace), only));
    let mut trail: Vec<String> = Vec::new();
    let look = async {
        while let Some(event) = events.next().await {
            // the watcher tries again by itself after an error
            let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
                continue;
            };
            let object = serde_json::to_value(object)?;
            if let Some(word) = word(&object).filter(|word| trail.last() != Some(word)) {
                trail.push(word);
            }
            if done(&object) {
                return Ok(object);
            }
            // nothing more comes of it
            if text(&object, "/status/phase") == "Failed" {
                bail!(
                    "{} {name} failed: {} While it is there: kubectl describe {}/{name}",
                    kind.2,
                    condition(&object, "Ready", "message"),
                    kind.3
                );
            }
        }
        bail!("the watch of {} {name} ended", kind.2)
    };
    let seen = tokio::time::timeout(PATIENCE, look).await;
    match seen {
        Ok(object) => Ok(Met {
            object: object?,
            trail,
            took: began.elapsed(),
        }),
        Err(_) => Err(missed(kind, namespace, name, sign, &trail)),
    }
}

fn missed(kind: Kind, namespace: &str, name: &str, sign: &str, trail: &[String]) -> anyhow::Error {
    let inside = if namespace.is_empty() {
        String::new()
    } else {
        format!(" -n {namespace}")
    };
    let way = if trail.is_empty() {
        "nothing was seen of it".to_owned()
    } else {
        format!("so far: {}", trail.join(" > "))
    };
    anyhow!(
        "{} {name}: no sign of {sign} in {} s; {way}. While it is there: kubectl describe {}/{name}{inside}",
        kind.2,
        PATIENCE.as_secs(),
        kind.3
    )
}

/// All of a kind in a namespace, again and again until `done`.
///
/// # Errors
/// After [`PATIENCE`].
pub(crate) async fn all_until(
    client: &Client,
    (kind, namespace): (Kind, &str),
    sign: &str,
    done: impl Fn(&[Value]) -> bool,
) -> Result<Vec<Value>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = list(client, kind, namespace).await?;
        if done(&all) {
            return Ok(all);
        }
        if Instant::now() > deadline {
            bail!(
                "{}: no sign of {sign} in {} s; kubectl get {} -n {namespace}",
                kind.2,
                PATIENCE.as_secs(),
                kind.3
            );
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// All of a kind in a namespace.
///
/// # Errors
/// When they cannot be listed.
pub(crate) async fn list(client: &Client, kind: Kind, namespace: &str) -> Result<Vec<Value>> {
    let all = api(client, kind, namespace).list(&ListParams::default()).await?;
    all.items
        .into_iter()
        .map(|object| Ok(serde_json::to_value(object)?))
        .collect()
}

/// The text at a JSON pointer; empty where there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a JSON pointer; 0 where there is none.
pub(crate) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// A condition's field.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str, field: &str) -> &'a str {
    let all = object.pointer("/status/conditions").and_then(Value::as_array);
    let found = all.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    found.and_then(|found| found[field].as_str()).unwrap_or_default()
}

/// Whether `Ready` is True.
pub(crate) fn ready(object: &Value) -> bool {
    condition(object, "Ready", "status") == "True"
}

/// The phase, as a word of the way.
pub(crate) fn phase(object: &Value) -> Option<String> {
    Some(text(object, "/status/phase").to_owned()).filter(|phase| !phase.is_empty())
}
