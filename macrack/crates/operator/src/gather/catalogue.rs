//! The facts of images and of the kinds that only describe.

use kube::ResourceExt;
use macrack_api::names;
use macrack_core::{
    decide::{
        self,
        image::{Facts, must_resolve},
        node::{Leasable, leasable},
    },
    plan::{Kind, Ref},
    seen::Seen,
};
use serde_json::json;

use super::{Pass, Sources, own_part};
use crate::cache::Key;

/// One golden; the store is asked only until it has answered.
pub async fn image(sources: &Sources, key: &Key) -> Option<Pass> {
    let Seen::Present(image) = sources.world.images.get(key) else { return None };
    let resolution =
        if must_resolve(&image) { Some(sources.store.resolve(&image.spec.source.oci).await) } else { None };
    let facts = Facts {
        now: sources.clock.now(),
        image: image.as_ref().clone(),
        resolution,
        nodes: sources.world.nodes.all().iter().map(|n| n.as_ref().clone()).collect(),
    };
    Some(Pass {
        turn: None,
        of: Ref::cluster(Kind::MacOSImage, &key.name),
        uid: image.uid().unwrap_or_default(),
        plan: decide::image::decide(&facts),
        status: own_part(image.status.as_ref(), &[]),
        verdict: Ok(()),
    })
}

/// One model of Mac, with how many are free.
pub async fn node_class(sources: &Sources, key: &Key) -> Option<Pass> {
    let world = &sources.world;
    let Seen::Present(class) = world.node_classes.get(key) else { return None };
    let now = sources.clock.now();
    let seen = Seen::Present(class.as_ref().clone());
    let nodes = world.nodes.by("class", &key.name);
    let free = nodes
        .iter()
        .filter(|node| {
            let kube_node =
                world.kube_nodes.get(&Key::cluster(names::node(&node.name_any()))).map(|n| n.as_ref().clone());
            leasable(node, &seen, &kube_node, false, now) == Leasable::Yes
        })
        .count();
    let old = class.status.clone().unwrap_or_default();
    Some(Pass {
        turn: None,
        of: Ref::cluster(Kind::MacNodeClass, &key.name),
        uid: class.uid().unwrap_or_default(),
        plan: decide::catalogue::decide(
            &old.conditions,
            class.metadata.generation,
            now,
            json!({ "free": format!("{free}/{}", nodes.len()) }),
        ),
        status: own_part(Some(&old), &[]),
        verdict: Ok(()),
    })
}

/// One size of VM.
pub async fn size(sources: &Sources, key: &Key) -> Option<Pass> {
    let Seen::Present(class) = sources.world.sizes.get(key) else { return None };
    let old = class.status.clone().unwrap_or_default();
    Some(Pass {
        turn: None,
        of: Ref::cluster(Kind::InstanceClass, &key.name),
        uid: class.uid().unwrap_or_default(),
        plan: decide::catalogue::decide(&old.conditions, class.metadata.generation, sources.clock.now(), json!({})),
        status: own_part(Some(&old), &[]),
        verdict: Ok(()),
    })
}

/// The settings.
pub async fn config(sources: &Sources, key: &Key) -> Option<Pass> {
    let Seen::Present(config) = sources.world.configs.get(key) else { return None };
    let old = config.status.clone().unwrap_or_default();
    Some(Pass {
        turn: None,
        of: Ref::cluster(Kind::RackConfig, &key.name),
        uid: config.uid().unwrap_or_default(),
        plan: decide::catalogue::decide(&old.conditions, config.metadata.generation, sources.clock.now(), json!({})),
        status: own_part(Some(&old), &[]),
        verdict: Ok(()),
    })
}
