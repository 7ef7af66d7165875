//! With cert-manager: the pair is mounted and read again when it changes, and the caBundle is the injector's.

// a test ends at the first thing that is not as it should be, its helpers too
#![allow(clippy::unwrap_used)]

#[path = "admission/world.rs"]
#[allow(dead_code)]
mod world;

mod issuer {
    use std::{path::Path, time::SystemTime};

    pub(crate) struct Issuer(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

    impl Issuer {
        pub(crate) fn new() -> Self {
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, "an admin's CA");
            Self(rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap())
        }

        pub(crate) fn pem(&self) -> String {
            self.0.pem()
        }

        /// As a kubelet swaps a mounted Secret, with a time of its own.
        pub(crate) fn issue(&self, dir: &Path, age: u64) {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &self.0).unwrap();
            for (name, text) in [("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())] {
                std::fs::write(dir.join(name), text).unwrap();
                let file = std::fs::File::options().append(true).open(dir.join(name)).unwrap();
                file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age)).unwrap();
            }
        }
    }
}

use std::sync::Arc;

use k8s_openapi::{ByteString, api::admissionregistration::v1::ValidatingWebhookConfiguration};
use kube::{Api, Client};
use macrack_testkit::{expect, shared};
use macrack_webhook::{ApiFacts, Certificate, Reach, WebhookOptions, bind, install::CONFIGURATION};
use serde_json::json;
use world::{OPERATOR, SOON, create, install_all, node_class};

/// What cert-manager's injector does for the annotation.
async fn inject(admin: &Client, pem: &str) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(admin.clone());
    let mut configuration = configurations.get(CONFIGURATION).await.unwrap();
    let annotations = configuration.metadata.annotations.clone().unwrap_or_default();
    assert_eq!(annotations["cert-manager.io/inject-ca-from"], "macrack-system/macrack-webhook");
    for webhook in configuration.webhooks.iter_mut().flatten() {
        webhook.client_config.ca_bundle = Some(ByteString(pem.as_bytes().to_vec()));
    }
    configuration.metadata.managed_fields = None;
    configurations.replace(CONFIGURATION, &Default::default(), &configuration).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mounted_certificate_is_shown_and_the_injected_bundle_is_left_alone() {
    let plane = shared();
    install_all(plane).await;
    let admin = plane.admin().await.unwrap();
    let operator = plane.as_service_account(OPERATOR.0, OPERATOR.1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let first = issuer::Issuer::new();
    first.issue(dir.path(), 1);
    let serve = async || {
        let options = WebhookOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            reach: Reach::Url("https://127.0.0.1:{port}".into()),
            certificate: Certificate::Dir(dir.path().to_owned()),
            ..WebhookOptions::in_cluster()
        };
        bind(operator.clone(), Arc::new(ApiFacts::new(operator.clone())), options).await.unwrap()
    };
    let serving = tokio::spawn(serve().await.run(std::future::pending()));
    let missing = json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
        "metadata": {"name": "l", "namespace": "default"}, "spec": {"nodeClassName": "no-such-class"}});
    let judged = async || matches!(create(&admin, &missing).await, Err(kube::Error::Api(s)) if s.message.contains("[class-exists]"));
    // nobody vouches for it yet
    let refused = create(&admin, &missing).await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(s)) if s.message.contains("failed calling webhook") || s.message.contains("x509")),
        "{refused:?}"
    );
    inject(&admin, &first.pem()).await;
    expect::until_effective("the injected bundle", SOON, judged).await;

    // renewed by another CA: the API server trusts it as soon as the injector says so
    let second = issuer::Issuer::new();
    second.issue(dir.path(), 2);
    inject(&admin, &second.pem()).await;
    expect::until_effective("the renewed certificate", SOON, judged).await;

    // a restart registers again and leaves the bundle to the injector
    serving.abort();
    let restarted = serve().await;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(admin.clone());
    let configuration = configurations.get(CONFIGURATION).await.unwrap();
    for webhook in configuration.webhooks.into_iter().flatten() {
        assert_eq!(webhook.client_config.ca_bundle.unwrap().0, second.pem().into_bytes(), "{}", webhook.name);
    }
    tokio::spawn(restarted.run(std::future::pending()));
    expect::until_effective("the restarted webhook", SOON, judged).await;
    assert!(create(&admin, &node_class()).await.is_ok());
}
