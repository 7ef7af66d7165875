//! What the API server is told of the webhook: `deploy/webhook/configuration.yaml`, and into it the authorities.
//!
//! The admin installs that manifest, so that from the first moment nothing gets in unjudged; the operator owns nothing
//! in it but each webhook's `caBundle` (server-side apply), so that whoever installs it keeps the rest.

use http::Uri;
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use dockerios_api::names::{OPERATOR, PLATFORM_NAMESPACE};

use crate::{Error, review::PATH};

/// Name of the ValidatingWebhookConfiguration.
pub const CONFIGURATION: &str = "dockerios";

/// Name of the Service in front of the replicas.
const SERVICE: &str = "dockerios-webhook";

const MANIFEST: &str = include_str!("../../../deploy/webhook/configuration.yaml");

const ROUNDS: usize = 8;

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By the Service of the installed manifest.
    Service,
    /// By a URL, for an operator outside the cluster; `{port}` stands for the port that it listens on. The whole
    /// configuration is then written by the operator.
    Url(String),
}

impl Reach {
    pub(crate) fn at(&self, port: u16) -> Self {
        match self {
            Self::Service => Self::Service,
            Self::Url(url) => Self::Url(url.replace("{port}", &port.to_string())),
        }
    }
}

/// The names for which the certificate is.
pub(crate) fn names(reach: &Reach) -> Result<Vec<String>, Error> {
    match reach {
        Reach::Service => {
            let service = format!("{SERVICE}.{PLATFORM_NAMESPACE}.svc");
            Ok(vec![format!("{service}.cluster.local"), service])
        }
        Reach::Url(url) => {
            let parsed: Option<Uri> = url.parse().ok();
            let https = parsed.filter(|uri| uri.scheme_str() == Some("https"));
            let host = https.as_ref().and_then(Uri::host).filter(|host| !host.is_empty());
            let host = host.ok_or_else(|| Error::Url(url.clone()))?;
            Ok(vec![host.trim_matches(['[', ']']).to_owned()])
        }
    }
}

/// The configuration of the manifest, reached so, trusting these authorities (PEM).
///
/// # Errors
/// When the manifest of this build does not read.
pub fn configuration(reach: &Reach, authorities: Option<&str>) -> Result<ValidatingWebhookConfiguration, Error> {
    let mut configuration: ValidatingWebhookConfiguration =
        serde_yaml::from_str(MANIFEST).map_err(|e| Error::Manifest(e.to_string()))?;
    for webhook in configuration.webhooks.iter_mut().flatten() {
        let called = &mut webhook.client_config;
        if let Reach::Url(url) = reach {
            called.service = None;
            called.url = Some(format!("{}{PATH}", url.trim_end_matches('/')));
        }
        called.ca_bundle = authorities.map(|pem| ByteString(pem.as_bytes().to_vec()));
    }
    Ok(configuration)
}

/// Tells the API server which authorities to trust, and where we are.
///
/// # Errors
/// When it does not let us.
pub async fn register(client: &Client, reach: &Reach, authorities: &str) -> Result<(), Error> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let wanted = configuration(reach, Some(authorities))?;
    match reach {
        Reach::Service => inject(&api, &wanted).await,
        Reach::Url(_) => put(&api, wanted).await,
    }
}

/// Applies each webhook's `caBundle` and nothing else.
async fn inject(
    api: &Api<ValidatingWebhookConfiguration>,
    wanted: &ValidatingWebhookConfiguration,
) -> Result<(), Error> {
    let webhooks: Vec<Value> = wanted
        .webhooks
        .iter()
        .flatten()
        .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": webhook.client_config.ca_bundle}}))
        .collect();
    let patch = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION}, "webhooks": webhooks,
    });
    let params = PatchParams::apply(OPERATOR).force();
    let refused = "Is deploy/webhook/configuration.yaml of this version installed?";
    api.patch(CONFIGURATION, &params, &Patch::Apply(&patch))
        .await
        .map_err(|e| Error::Register(Box::new(e), refused))?;
    Ok(())
}

/// Makes the configuration this one.
async fn put(api: &Api<ValidatingWebhookConfiguration>, wanted: ValidatingWebhookConfiguration) -> Result<(), Error> {
    let refused = |e| {
        Error::Register(
            Box::new(e),
            "An operator outside the cluster writes the configuration itself",
        )
    };
    let params = PostParams::default();
    let mut last = None;
    for _ in 0..ROUNDS {
        let written = match api.get_opt(CONFIGURATION).await.map_err(refused)? {
            None => api.create(&params, &wanted).await,
            Some(found) if same(&found, &wanted) => return Ok(()),
            Some(mut found) => {
                found.webhooks.clone_from(&wanted.webhooks);
                api.replace(CONFIGURATION, &params, &found).await
            }
        };
        match written {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => last = Some(kube::Error::Api(status)),
            Err(error) => return Err(refused(error)),
        }
    }
    last.map_or(Ok(()), |error| Err(refused(error)))
}

/// Whether it says what is wanted; the API server fills in fields that we leave out.
fn same(found: &ValidatingWebhookConfiguration, wanted: &ValidatingWebhookConfiguration) -> bool {
    let (found, wanted) = (
        found.webhooks.as_deref().unwrap_or_default(),
        wanted.webhooks.as_deref().unwrap_or_default(),
    );
    found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(a, b)| {
            let wishes = |w: &ValidatingWebhook| {
                (
                    w.name.clone(),
                    w.client_config.clone(),
                    w.rules.clone(),
                    w.match_conditions.clone(),
                )
            };
            wishes(a) == wishes(b) && a.failure_policy == b.failure_policy && a.timeout_seconds == b.timeout_seconds
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint;

    #[test]
    fn the_manifest_is_narrow_however_it_is_reached() {
        for reach in [Reach::Service, Reach::Url("https://127.0.0.1:8443".into())] {
            let configuration = configuration(&reach, Some("pem")).expect("the manifest");
            assert_eq!(lint::faults(&configuration), Vec::<String>::new());
            assert_eq!(configuration.metadata.name.as_deref(), Some(CONFIGURATION));
        }
    }

    #[test]
    fn every_kind_has_a_webhook_that_is_reached_on_the_one_path() {
        let configuration = configuration(&Reach::Service, None).expect("the manifest");
        let mut judged = Vec::new();
        for webhook in configuration.webhooks.iter().flatten() {
            let service = webhook.client_config.service.as_ref().expect("a Service");
            assert_eq!(
                (&*service.name, &*service.namespace),
                (SERVICE, PLATFORM_NAMESPACE),
                "{}",
                webhook.name
            );
            assert_eq!(service.path.as_deref(), Some(PATH), "{}", webhook.name);
            assert!(webhook.client_config.ca_bundle.is_none(), "injected, never shipped");
            for rule in webhook.rules.iter().flatten() {
                judged.extend(rule.resources.iter().flatten().cloned());
            }
        }
        let mut kinds: Vec<String> = dockerios_api::crds()
            .expect("kinds")
            .into_iter()
            .map(|crd| crd.spec.names.plural)
            .collect();
        judged.sort();
        kinds.sort();
        assert_eq!(judged, kinds);
    }

    #[test]
    fn the_certificate_is_for_the_host_that_is_called() {
        let of = |url: &str| names(&Reach::Url(url.to_owned()).at(7)).ok();
        assert_eq!(of("https://10.0.0.7:{port}"), Some(vec!["10.0.0.7".to_owned()]));
        assert_eq!(of("https://[::1]:{port}"), Some(vec!["::1".to_owned()]));
        assert_eq!(
            of("https://hook.example.com"),
            Some(vec!["hook.example.com".to_owned()])
        );
        for wrong in ["http://10.0.0.7", "10.0.0.7:8443", "", "https://"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let service = names(&Reach::Service).expect("names");
        assert!(
            service.contains(&"dockerios-webhook.dockerios-system.svc".to_owned()),
            "{service:?}"
        );
    }
}
