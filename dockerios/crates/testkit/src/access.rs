//! Clients and kubeconfig files: as admin, as a user in groups, as a ServiceAccount.
//!
//! A client belongs to the tokio runtime that made it, hence each test makes its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use anyhow::{Context, Result, bail};
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::assets::Assets;
use crate::kubeconfig::{self, Identity};
use crate::pki::Pki;
use crate::plane::{ControlPlane, KUBECONFIG};
use crate::run;

/// How long a ServiceAccount's token is good for, in seconds: longer than any test.
const TOKEN_SECONDS: i64 = 12 * 3600;

/// How a plane is reached.
pub(crate) struct Access {
    pub(crate) admin: PathBuf,
    /// Absent in an existing cluster, whose CA's key is not ours.
    pub(crate) pki: Option<Pki>,
}

/// A client for a kubeconfig file's current context.
///
/// # Errors
/// When the file is not one, or names what cannot be read.
pub async fn client_from(kubeconfig: &Path) -> Result<Client> {
    client_of(config_from(kubeconfig).await?)
}

/// What a kubeconfig file's current context says. Nothing is tried again: a test wants to see the first answer.
pub(crate) async fn config_from(kubeconfig: &Path) -> Result<Config> {
    provide_crypto();
    let file = kubeconfig.display();
    let contexts = Kubeconfig::read_from(kubeconfig).with_context(|| format!("{file} is no kubeconfig"))?;
    let current = KubeConfigOptions::default();
    let used = Config::from_custom_kubeconfig(contexts, &current).await;
    let mut config = used.with_context(|| format!("{file} has no context that can be used"))?;
    config.default_retry = false;
    Ok(config)
}

pub(crate) fn client_of(config: Config) -> Result<Client> {
    Client::try_from(config).context("make a client")
}

/// Chooses ring for TLS, once, unless the test has chosen.
fn provide_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // an error says that one was chosen before
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

impl ControlPlane {
    /// The kubeconfig file of an admin, in group `system:masters` where this crate started the plane.
    pub fn kubeconfig(&self) -> &Path {
        &self.access.admin
    }

    /// A client as admin.
    ///
    /// # Errors
    /// When the admin's kubeconfig file cannot be used.
    pub async fn client(&self) -> Result<Client> {
        client_from(self.kubeconfig()).await
    }

    /// A kubeconfig file with a client certificate of `user` in `groups`.
    ///
    /// # Errors
    /// In an existing cluster, whose CA cannot be asked: use [`ControlPlane::client_as`] or a ServiceAccount.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let Some(pki) = &self.access.pki else {
            bail!(
                "no client certificate for {user:?}: the CA of the cluster in {KUBECONFIG} is not ours; \
                 use client_as, kubeconfig_of_service_account, or unset {KUBECONFIG}"
            )
        };
        let pair = pki.client(user, groups)?;
        self.derived(&Identity::Certificate(&pair))
    }

    /// A client as `user` in `groups`: by certificate, in an existing cluster by impersonation.
    ///
    /// # Errors
    /// When a name cannot be written in a certificate or header.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Result<Client> {
        if self.access.pki.is_some() {
            return client_from(&self.kubeconfig_for(user, groups)?).await;
        }
        let mut config = config_from(self.kubeconfig()).await?;
        config.headers.push((
            HeaderName::from_static("impersonate-user"),
            HeaderValue::from_str(user)?,
        ));
        for group in groups {
            config.headers.push((
                HeaderName::from_static("impersonate-group"),
                HeaderValue::from_str(group)?,
            ));
        }
        client_of(config)
    }

    /// A kubeconfig file with a token of a ServiceAccount that exists.
    ///
    /// # Errors
    /// When there is no such ServiceAccount.
    pub async fn kubeconfig_of_service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let made = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("get a token of the ServiceAccount {namespace}/{name}"))?;
        let token = made.status.and_then(|status| status.token);
        let token = token.with_context(|| format!("the token request of {namespace}/{name} has no status"))?;
        self.derived(&Identity::Token(&token))
    }

    /// A client as a ServiceAccount that exists.
    ///
    /// # Errors
    /// When there is no such ServiceAccount.
    pub async fn client_of_service_account(&self, namespace: &str, name: &str) -> Result<Client> {
        client_from(&self.kubeconfig_of_service_account(namespace, name).await?).await
    }

    /// kubectl as admin, to be given arguments: the one beside the components, in an existing cluster the one on PATH.
    ///
    /// # Errors
    /// When the binaries of a control plane are not found.
    pub fn kubectl(&self) -> Result<Command> {
        let program = if self.is_existing() {
            PathBuf::from("kubectl")
        } else {
            Assets::find()?.path("kubectl")
        };
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig());
        Ok(command)
    }

    fn derived(&self, identity: &Identity<'_>) -> Result<PathBuf> {
        let path = self.dir.join(format!("{}.kubeconfig", run::current()?.next()));
        kubeconfig::derive(self.kubeconfig(), &path, identity)?;
        Ok(path)
    }
}
