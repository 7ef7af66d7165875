//! Who may read a pull secret: the agent of a Mac that is to have an image with it, and nobody else's.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use macrack_acceptance::{Rack, objects, scene::Scene};
use macrack_api::{MacOSImage, names};
use macrack_testkit::{Namespace, expect};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

/// The Secrets of the operator's namespace, as the agent of a chassis.
async fn as_agent(rack: &Rack, serial: &str) -> Result<Api<Secret>> {
    let account = names::agent_account(&names::mac_node(serial));
    let client: Client = rack.plane.as_service_account(names::AGENT_NAMESPACE, &account).await?;
    Ok(Api::namespaced(client, names::SYSTEM_NAMESPACE))
}

#[tokio::test]
async fn a_pull_secret_is_handed_to_the_agent_that_needs_it_by_name_and_to_no_other() -> Result<()> {
    let rack = Rack::shared();
    let scene = Scene::set(rack, "pullsec", 2, 7).await?;
    let ns = Namespace::fresh(rack.plane, "team-p").await?;
    let secrets: Api<Secret> = Api::namespaced(scene.admin.clone(), names::SYSTEM_NAMESPACE);
    for name in ["ghcr-login", "other-login"] {
        let secret = json!({
            "metadata": { "name": name }, "type": "kubernetes.io/dockerconfigjson",
            "stringData": { ".dockerconfigjson": "{\"auths\": {}}" },
        });
        secrets.create(&Default::default(), &objects::object(secret)).await?;
    }
    let image = |secret: &str| {
        let mut image = objects::image("pullsec-private", &format!("r.example/golden@{}", objects::DIGEST), 8);
        image.spec.source.oci.pull_secret_ref = Some(objects::object(json!({ "name": secret })));
        image
    };
    let images: Api<MacOSImage> = Api::all(scene.admin.clone());
    let own = images.create(&Default::default(), &image("macrack-webhook-tls")).await;
    expect::rejects(own, ["[pull-secret-own]", "give the pull secret another name"]);
    images.create(&Default::default(), &image("ghcr-login")).await?;

    let [one, two] = [as_agent(rack, &scene.serials[0]).await?, as_agent(rack, &scene.serials[1]).await?];
    for agent in [&one, &two] {
        expect::rejects(agent.get("ghcr-login").await, ["forbidden"]);
    }
    let mut lease = objects::lease("private", &scene.name);
    lease.spec.serial = Some(scene.serials[0].clone());
    lease.spec.prefetch_image_names = vec!["pullsec-private".to_owned()];
    objects::make_in(&scene.admin, ns.name(), &lease).await?;
    expect::until_effective("the right to the pull secret", SOON, async || one.get("ghcr-login").await.is_ok()).await;
    expect::rejects(one.get("other-login").await, ["forbidden"]);
    expect::rejects(one.list(&Default::default()).await, ["forbidden"]);
    expect::rejects(two.get("ghcr-login").await, ["forbidden"]);
    Ok(())
}
