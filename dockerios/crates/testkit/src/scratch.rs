//! A namespace for one test.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::config::Config;
use kube::{Api, Client, ResourceExt as _};

use crate::access::{client_of, config_from};
use crate::expect;
use crate::plane::ControlPlane;

/// A fresh namespace. In an existing cluster its deletion is asked for when this is dropped; with a plane of our own
/// it ends with the plane, so that a failed test can be looked into.
pub struct Scratch {
    name: String,
    config: Config,
    existing: bool,
}

impl Scratch {
    /// Makes `<stem>-<random letters>`, with its default ServiceAccount.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn new(plane: &ControlPlane, stem: &str) -> Result<Scratch> {
        let mut wanted = Namespace::default();
        wanted.metadata.generate_name = Some(format!("{stem}-"));
        let client = plane.client().await?;
        let made = Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &wanted)
            .await;
        let name = made.with_context(|| format!("make a namespace for {stem}"))?.name_any();
        let has_controllers =
            plane.is_existing() || plane.parts().iter().any(|p| p.name() == "kube-controller-manager");
        if has_controllers {
            let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
            expect::until(accounts, "default", "the namespace's ServiceAccount", |_| true).await?;
        }
        let mut config = config_from(plane.kubeconfig()).await?;
        config.default_namespace.clone_from(&name);
        Ok(Scratch {
            name,
            config,
            existing: plane.is_existing(),
        })
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client as admin whose default namespace is this one.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn client(&self) -> Result<Client> {
        client_of(self.config.clone())
    }

    /// Deletes the namespace and waits until it is gone, with everything in it.
    ///
    /// # Errors
    /// When something in it is held by a finalizer past the deadline.
    pub async fn delete(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client()?);
        namespaces
            .delete(&self.name, &DeleteParams::default())
            .await
            .with_context(|| format!("delete {}", self.name))?;
        expect::gone(namespaces, &self.name).await
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.existing {
            return;
        }
        let (name, config) = (self.name.clone(), self.config.clone());
        // a runtime of its own: the test's may be about to end
        let deletion = std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let namespaces: Api<Namespace> = Api::all(client_of(config)?);
                match namespaces.delete(&name, &DeleteParams::background()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    other => Ok(other.map(drop)?),
                }
            })
        });
        match deletion.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("the namespace {} stays: {error:#}", self.name),
            Err(_) => eprintln!("the namespace {} may stay: its deletion panicked", self.name),
        }
    }
}
