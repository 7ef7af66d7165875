//! A namespace per test, so that tests run side by side.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace as Object, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource};

use crate::control_plane::ControlPlane;
use crate::{expect, run};

/// A namespace that only one test uses, ready for pods.
///
/// It goes with the control plane; on a cluster that outlives the tests
/// ([`ControlPlane::is_external`]) dropping it deletes it.
pub struct Namespace {
    name: String,
    delete_with: Option<std::process::Command>,
}

impl Namespace {
    /// Makes `<prefix>-<random>` and waits until its `default` ServiceAccount is there, without
    /// which no pod is admitted.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn fresh(plane: &ControlPlane, prefix: &str) -> Result<Namespace> {
        let name = format!("{prefix}-{}", run::random_word());
        let client = plane.admin().await?;
        let object =
            Object { metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() }, ..Default::default() };
        Api::<Object>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("make the namespace {name}"))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
        expect::until_seen(&accounts, "default", "made", Duration::from_secs(30), |a| a.meta().uid.is_some()).await;
        let delete_with = plane.is_external().then(|| {
            let mut command = std::process::Command::new(plane.kubectl_path());
            command.args(["delete", "namespace", &name, "--wait=false"]).env("KUBECONFIG", plane.kubeconfig());
            command
        });
        Ok(Namespace { name, delete_with })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(command) = &mut self.delete_with
            && let Err(e) = command.output()
        {
            eprintln!("testkit: the namespace {} stays behind: {e}", self.name);
        }
    }
}
