//! What a MacOSImage is imported with: a DataVolume in the platform namespace, and a snapshot of it where the storage
//! clones from snapshots.
//!
//! Invariant: both are owned by the image and carry its label; an object without them is not the image's.

use std::collections::BTreeMap;

use dockerios_api::{
    MacOSImage,
    image::macos_image::ImageSource,
    names::{IMAGE, MANAGED_BY, OPERATOR},
};
use dockerios_kubevirt::{
    DataVolume,
    datavolume::{DataVolumeSpec, Http, Origin, Registry, Source, Storage, StorageResources},
    names::{DELETE_AFTER_COMPLETION, IMMEDIATE_BINDING},
};
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference};
use kube::{Resource, ResourceExt, core::ObjectMeta};
use serde_json::{Value, json};

/// Name of the DataVolume, of its PVC, and of the snapshot of it.
pub fn name(image: &str) -> String {
    format!("img-{image}")
}

/// The import. `None` for an image without uid, which was never stored.
pub fn data_volume(image: &MacOSImage, namespace: &str) -> Option<DataVolume> {
    let annotations = [
        // CDI before 1.62 removes a DataVolume that is done
        (DELETE_AFTER_COMPLETION, "false"),
        // no pod ever uses the golden volume itself: nothing else would bind it
        (IMMEDIATE_BINDING, "true"),
    ];
    let mut metadata = meta(image, namespace)?;
    metadata.annotations = Some(
        annotations
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    let size = BTreeMap::from([("storage".to_owned(), Quantity(image.spec.size.0.clone()))]);
    Some(DataVolume {
        metadata,
        spec: DataVolumeSpec {
            source: Some(source(&image.spec.source)),
            storage: Some(Storage {
                storage_class_name: Some(image.spec.storage_class_name.0.clone()),
                resources: Some(StorageResources { requests: size }),
                ..Storage::default()
            }),
            ..DataVolumeSpec::default()
        },
        status: None,
    })
}

/// Where the disk comes from, in CDI's words.
pub fn source(source: &ImageSource) -> Source {
    let origin = |at: &dockerios_api::config::platform_config::ObjectRef| Origin {
        namespace: at.namespace.0.clone(),
        name: at.name.0.clone(),
    };
    Source {
        registry: source.registry.as_ref().map(|registry| Registry {
            url: Some(registry.url.clone()),
            ..Registry::default()
        }),
        http: source.http.as_ref().map(|http| Http {
            url: http.url.clone(),
            checksum: Some(format!("sha256:{}", http.sha256)),
            ..Http::default()
        }),
        pvc: source.pvc.as_ref().map(origin),
        snapshot: source.snapshot.as_ref().map(origin),
        blank: None,
    }
}

/// A VolumeSnapshot of the imported volume. `None` for an image without uid.
pub fn snapshot(image: &MacOSImage, namespace: &str, class: Option<&str>) -> Option<Value> {
    let metadata = meta(image, namespace)?;
    let volume = json!({"persistentVolumeClaimName": name(&image.name_any())});
    let mut spec = json!({"source": volume});
    if let Some(class) = class {
        spec["volumeSnapshotClassName"] = class.into();
    }
    Some(json!({"metadata": metadata, "spec": spec}))
}

fn meta(image: &MacOSImage, namespace: &str) -> Option<ObjectMeta> {
    let labels = [(IMAGE, image.name_any()), (MANAGED_BY, OPERATOR.to_owned())];
    let owner = OwnerReference {
        api_version: MacOSImage::api_version(&()).into_owned(),
        kind: MacOSImage::kind(&()).into_owned(),
        name: image.name_any(),
        uid: image.uid()?,
        controller: Some(true),
        block_owner_deletion: None,
    };
    Some(ObjectMeta {
        name: Some(name(&image.name_any())),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    })
}
