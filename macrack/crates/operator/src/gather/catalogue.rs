//! The facts of images and of the kinds that only describe.

use kube::ResourceExt;
use macrack_api::{Span, names};
use macrack_core::{
    clock::after,
    decide::{
        self,
        image::{Facts, must_resolve},
        node::{Leasable, leasable},
    },
    plan::{Kind, Plan, Ref},
    seen::Seen,
};
use serde_json::json;

use super::{Pass, Sources, own_part};
use crate::cache::Key;

/// Before an image that found all lookups taken is looked at again.
const TURN: Span = Span(1);

/// One golden; the store is asked only until it has answered.
pub async fn image(sources: &Sources, key: &Key) -> Option<Pass> {
    let Seen::Present(image) = sources.world.images.get(key) else { return None };
    let pass = |plan: Plan| Pass {
        turn: None,
        of: Ref::cluster(Kind::MacOSImage, &key.name),
        uid: image.uid().unwrap_or_default(),
        plan,
        status: own_part(image.status.as_ref(), &[]),
        verdict: Ok(()),
    };
    let resolution = if must_resolve(&image) {
        let Ok(_turn) = sources.lookups.try_acquire() else {
            // nothing was learnt, so nothing is said
            return Some(pass(Plan { wake: Some(after(sources.clock.now(), TURN)), ..Plan::default() }));
        };
        Some(sources.store.resolve(&image.spec.source.oci).await)
    } else {
        None
    };
    let facts = Facts {
        now: sources.clock.now(),
        image: image.as_ref().clone(),
        resolution,
        nodes: sources.world.nodes.all().iter().map(|n| n.as_ref().clone()).collect(),
    };
    Some(pass(decide::image::decide(&facts)))
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

#[cfg(test)]
mod tests {
    use std::{pin::Pin, sync::Arc};

    use futures::poll;
    use kube::{Client, core::DeserializeGuard, runtime::watcher::Event};
    use macrack_api::image::macos_image::Oci;
    use macrack_core::decide::image::Resolution;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::{clock::Clock, gather::LOOKUPS, image_store::ImageStore, world::World};

    /// A registry that takes the question and says nothing.
    struct Silent;

    impl ImageStore for Silent {
        fn resolve<'a>(&'a self, _: &'a Oci) -> Pin<Box<dyn Future<Output = Resolution> + Send + 'a>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn registries_that_do_not_answer_take_a_few_workers_and_no_more() {
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let world = Arc::new(World::new());
        let image = json!({ "apiVersion": "image.macrack.io/v1alpha1", "kind": "MacOSImage", "metadata": { "name": "i" },
            "spec": { "source": { "oci": { "image": "r.example/p@sha256:ab" } }, "contents": [] } });
        world.images.take_in(Event::Apply(DeserializeGuard(Ok(serde_json::from_value(image).unwrap()))));
        let sources = Sources {
            world,
            clock: Clock::new(client.clone()),
            client,
            store: Arc::new(Silent),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            audit: None,
            reboots: Arc::default(),
        };
        let key = Key::cluster("i");
        let mut asking: Vec<_> = (0..LOOKUPS).map(|_| Box::pin(super::image(&sources, &key))).collect();
        for one in &mut asking {
            assert!(poll!(one).is_pending(), "it was not asked");
        }
        let one_more = super::image(&sources, &key).await.unwrap();
        assert!(one_more.plan.status.is_none() && one_more.plan.wake.is_some(), "it comes again, and says nothing");
        asking.clear();
        assert!(poll!(Box::pin(super::image(&sources, &key))).is_pending(), "a turn that was given up is free");
    }
}
