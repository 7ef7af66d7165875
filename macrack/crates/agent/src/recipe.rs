//! What the API says of how an instance is made: pure, from what was seen.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::Api;
use macrack_api::instance::macos_instance::SecretKeyRef;
use macrack_api::rack::node::Slot;
use macrack_api::{InstanceClass, MacOSImage, MacOSInstance};
use macrack_wire::Display;
use macrack_wire::guest::MAX_SCRIPT;

use crate::gather::{Catalogue, Seen, words};
use crate::images::reference::NotAReference;
use crate::images::{Reference, Source};
use crate::orders::Wish;
use crate::vms::{Script, Shape};

/// Everything that an instance is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Its golden.
    pub golden: Reference,
    /// Secret of the operator's namespace that its registry wants to see.
    pub pull_secret: Option<String>,
    /// Virtual cores.
    pub cpu_cores: u32,
    /// Bytes.
    pub memory_bytes: u64,
    /// Bytes that its disk may grow to.
    pub disk_bytes: u64,
    /// A screen.
    pub display: Option<Display>,
    /// Where its first-boot script is.
    pub script: Option<SecretKeyRef>,
}

/// The recipe of the instance in `slot`, or what is missing.
///
/// # Errors
/// In words for the person who looks at the instance.
pub fn read(
    slot: &Slot,
    seen: &Seen<MacOSInstance>,
    catalogue: &Catalogue,
    host_version: &str,
) -> Result<Recipe, String> {
    let instance = this(slot, seen)?;
    let (class_name, image_name) = (&instance.spec.instance_class_name, &instance.spec.image_name);
    let class = catalogue
        .class(class_name)
        .ok_or_else(|| format!("InstanceClass {class_name} does not exist, or was not read yet"))?;
    let image = catalogue
        .image(image_name)
        .ok_or_else(|| format!("MacOSImage {image_name} does not exist, or was not read yet"))?;
    runs_here(&image, host_version)?;
    combine(&instance, &class, &image)
}

/// The instance that the slot was given to; a later one of its name is another.
fn this(slot: &Slot, seen: &Seen<MacOSInstance>) -> Result<std::sync::Arc<MacOSInstance>, String> {
    let name = format!("MacOSInstance {}/{}", slot.namespace, slot.name);
    match seen {
        Seen::Unknown(why) => Err(format!("{name} cannot be read: {why}")),
        Seen::Absent => Err(format!("{name} does not exist")),
        Seen::Present(instance) if instance.uid().as_ref() == Some(&slot.uid) => Ok(instance.clone()),
        Seen::Present(_) => Err(format!("{name} is a later one of the same name; the slot is not its own")),
    }
}

/// Whether the Mac's macOS can run the image.
fn runs_here(image: &MacOSImage, host_version: &str) -> Result<(), String> {
    image.spec.runs_on(host_version).map_err(|unfit| {
        format!(
            "MacOSImage {} {unfit}; it starts by itself once the Mac is upgraded, or use another image",
            image.name_any()
        )
    })
}

fn combine(instance: &MacOSInstance, class: &InstanceClass, image: &MacOSImage) -> Result<Recipe, String> {
    let name = class.name_any();
    let bytes = |field: &str, quantity: &macrack_api::Quantity| {
        quantity.value().ok_or_else(|| format!("InstanceClass {name} spec.{field}: {quantity} is no quantity"))
    };
    let pixels = |n: i64| u32::try_from(n).map_err(|_| format!("InstanceClass {name} spec.display: {n} pixels"));
    let display = match &class.spec.display {
        Some(display) => Some(Display { width: pixels(display.width)?, height: pixels(display.height)? }),
        None => None,
    };
    let Source { reference: golden, pull_secret } = source(image)?;
    Ok(Recipe {
        golden,
        pull_secret,
        cpu_cores: u32::try_from(class.spec.cpu_cores)
            .map_err(|_| format!("InstanceClass {name} spec.cpuCores: {} cores", class.spec.cpu_cores))?,
        memory_bytes: bytes("memory", &class.spec.memory)?,
        disk_bytes: bytes("disk", &class.spec.disk)?,
        display,
        script: instance.spec.first_boot.as_ref().map(|boot| boot.script_from.secret_key_ref.clone()),
    })
}

/// What is decided from about an instance.
pub fn wish(slot: &Slot, seen: &Seen<MacOSInstance>, recipe: &Result<Recipe, String>) -> Wish {
    Wish {
        restart: this(slot, seen).ok().map(|instance| instance.spec.restart_policy),
        golden: recipe.as_ref().map(|recipe| recipe.golden.hex().to_owned()).map_err(Clone::clone),
    }
}

/// Where the golden of an image is, and how it is asked for.
///
/// # Errors
/// When its reference is none.
pub fn source(image: &MacOSImage) -> Result<Source, String> {
    let oci = &image.spec.source.oci;
    let named = |error: NotAReference| format!("MacOSImage {} spec.source.oci.image: {error}", image.name_any());
    let reference: Reference = oci.image.parse().map_err(named)?;
    Ok(Source { reference, pull_secret: oci.pull_secret_ref.as_ref().map(|secret| secret.name.clone()) })
}

impl Recipe {
    /// Where its golden is, and how it is asked for.
    pub fn source(&self) -> Source {
        Source { reference: self.golden.clone(), pull_secret: self.pull_secret.clone() }
    }

    /// What the VM is described as.
    pub fn shape(&self, slot: &Slot) -> Shape {
        Shape {
            uid: slot.uid.clone(),
            namespace: slot.namespace.clone(),
            name: slot.name.clone(),
            cpu_cores: self.cpu_cores,
            memory_bytes: self.memory_bytes,
            display: self.display,
            first_boot: self.script.is_some(),
        }
    }
}

/// Fetches a first-boot script, by name, when it is awaited.
pub fn fetch_script(secrets: Api<Secret>, namespace: String, key: SecretKeyRef) -> Script {
    Box::pin(async move {
        let name = format!("first boot: key {} of Secret {namespace}/{}", key.key, key.name);
        // the schema says so too; this name becomes a part of a path
        if !key.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)) || key.name.contains("..") {
            return Err(format!("{name}: this is no name of a Secret; make another instance"));
        }
        let secret = secrets.get_opt(&key.name).await.map_err(|error| format!("{name}: {}", words(&error)))?;
        let secret = secret.ok_or_else(|| format!("{name}: the Secret does not exist; make it"))?;
        let data = secret.data.unwrap_or_default().remove(&key.key);
        let bytes = data.ok_or_else(|| format!("{name}: there is no such key; add it"))?.0;
        if bytes.len() > MAX_SCRIPT {
            let length = bytes.len();
            return Err(format!(
                "{name}: {length} bytes, at most {MAX_SCRIPT} are taken; have a short script fetch the rest"
            ));
        }
        String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8; a script is text"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use macrack_api::rack::node::Order;
    use serde_json::json;

    use super::*;

    fn instance(uid: &str) -> Seen<MacOSInstance> {
        let instance = json!({
            "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
            "metadata": { "name": "i", "namespace": "t", "uid": uid },
            "spec": { "leaseName": "l", "instanceClassName": "c", "imageName": "m" },
        });
        Seen::Present(Arc::new(serde_json::from_value(instance).unwrap()))
    }

    #[test]
    fn a_later_instance_of_the_same_name_is_not_the_one_in_the_slot() {
        let slot = Slot { slot: 0, uid: "u-1".into(), namespace: "t".into(), name: "i".into(), order: Order::Run };
        assert!(this(&slot, &instance("u-1")).is_ok());
        assert!(this(&slot, &instance("u-2")).unwrap_err().contains("later one of the same name"));
        assert!(this(&slot, &Seen::Absent).unwrap_err().contains("MacOSInstance t/i does not exist"));
    }

    #[test]
    fn a_recipe_is_in_bytes_and_pinned() {
        let class = json!({
            "apiVersion": "instance.macrack.io/v1alpha1", "kind": "InstanceClass", "metadata": { "name": "c" },
            "spec": { "cpuCores": 4, "memory": "8Gi", "disk": "20G" },
        });
        let image = |source: &str| {
            json!({
                "apiVersion": "image.macrack.io/v1alpha1", "kind": "MacOSImage", "metadata": { "name": "m" },
                "spec": { "source": { "oci": { "image": source } }, "contents": [] },
            })
        };
        let class: InstanceClass = serde_json::from_value(class).unwrap();
        let Seen::Present(instance) = instance("u-1") else { unreachable!() };
        let read = |source: &str| combine(&instance, &class, &serde_json::from_value(image(source)).unwrap());
        let recipe = read(&format!("r.example/m@sha256:{}", "a".repeat(64))).unwrap();
        assert_eq!((recipe.memory_bytes, recipe.disk_bytes), (8 << 30, 20_000_000_000));
        let mut newer: MacOSImage = serde_json::from_value(image("r.example/m")).unwrap();
        newer.spec.minimum_host_version = Some("26.1".to_owned());
        assert!(runs_here(&newer, "26.0").unwrap_err().contains("needs macOS 26.1"));
        assert_eq!(runs_here(&newer, "26.10"), Ok(()), "ten is more than one");
        assert_eq!(runs_here(&newer, "26.1.0"), Ok(()), "it is the same version");
        assert!(read("r.example/m:latest").unwrap_err().contains("MacOSImage m spec.source.oci.image"));
    }
}
