//! The Secret on a real API server: made once by whoever comes first, shared, restored, renewed, and never overwritten
//! when it is somebody else's.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use anyhow::Result;
use dockerios_pki::{Authority, Clock, Error};
use dockerios_testkit::{Scratch, apply_yaml, expect, shared};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "keys";
const YEAR: i64 = 365 * 24 * 3600;

/// A clock that is set by hand.
fn clock() -> (Clock, Arc<AtomicI64>) {
    let now = Arc::new(AtomicI64::new(Timestamp::now().as_second()));
    let read = Arc::clone(&now);
    let clock = move || Timestamp::from_second(read.load(Ordering::SeqCst)).expect("a time");
    (Arc::new(clock), now)
}

async fn place(stem: &str) -> Result<(Scratch, Api<Secret>)> {
    let scratch = Scratch::new(shared().await?, stem).await?;
    let secrets = Api::namespaced(scratch.client()?, scratch.name());
    Ok((scratch, secrets))
}

#[tokio::test]
async fn of_eight_replicas_that_begin_at_once_all_have_the_same_keys() -> Result<()> {
    let (scratch, secrets) = place("race").await?;
    let opened = (0..8).map(|_| async {
        Authority::open(scratch.client()?, scratch.name(), NAME)
            .await
            .map_err(anyhow::Error::from)
    });
    let all: Vec<Authority> = join_all(opened).await.into_iter().collect::<Result<_>>()?;
    for one in &all {
        assert_eq!(one.ca_pem(), all[0].ca_pem());
        assert_eq!(one.report_key(), all[0].report_key());
    }
    let stored = secrets.get(NAME).await?;
    let again = Authority::open(scratch.client()?, scratch.name(), NAME).await?;
    assert_eq!(again.ca_pem(), all[0].ca_pem(), "a restart changes nothing");
    let after = secrets.get(NAME).await?;
    assert_eq!(
        after.metadata.resource_version, stored.metadata.resource_version,
        "and writes nothing"
    );
    Ok(())
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_refused_with_the_reason_and_left_as_it_is() -> Result<()> {
    let (scratch, secrets) = place("foreign").await?;
    let theirs = Secret {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        data: Some([("password".to_owned(), ByteString(b"x".to_vec()))].into()),
        ..Secret::default()
    };
    let made = expect::accepted(secrets.create(&PostParams::default(), &theirs).await)?;
    let refused = Authority::open(scratch.client()?, scratch.name(), NAME)
        .await
        .expect_err("it is not ours");
    let said = refused.to_string();
    assert!(matches!(refused, Error::Foreign { .. }), "{said}");
    for part in [
        &*format!("Secret {}/{NAME}", scratch.name()),
        "\"password\"",
        "delete it",
        "name another",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(
        secrets.get(NAME).await?.metadata.resource_version,
        made.metadata.resource_version
    );
    Ok(())
}

#[tokio::test]
async fn a_secret_that_vanished_is_written_again_with_the_same_keys() -> Result<()> {
    let (scratch, secrets) = place("lost").await?;
    let authority = Authority::open(scratch.client()?, scratch.name(), NAME).await?;
    let before = secrets.get(NAME).await?.data;
    let keeper = authority.clone();
    let keeping = tokio::spawn(async move { keeper.keep().await });
    expect::accepted(secrets.delete(NAME, &DeleteParams::default()).await)?;
    let restored = expect::until(secrets.clone(), NAME, "the Secret again", |_| true).await?;
    assert_eq!(restored.data, before);
    keeping.abort();
    Ok(())
}

#[tokio::test]
async fn replicas_learn_of_a_successor_from_each_other_and_trust_both() -> Result<()> {
    let (scratch, _) = place("succession").await?;
    let (clock, now) = clock();
    let open = || Authority::open_at(scratch.client().expect("a client"), scratch.name(), NAME, clock.clone());
    let (one, other) = (open().await?, open().await?);
    let first = one.ca_pem();
    let mut told = other.bundle();
    told.borrow_and_update();

    now.fetch_add(9 * YEAR, Ordering::SeqCst);
    one.refresh().await?;
    assert!(one.ca_pem().contains(&first), "the old one is trusted on");
    assert_eq!(one.ca_pem().matches("BEGIN CERTIFICATE").count(), 2);
    other.refresh().await?;
    assert_eq!(other.ca_pem(), one.ca_pem());
    assert!(told.has_changed()?, "whoever told others tells them again");
    assert_eq!(other.report_key(), one.report_key());
    Ok(())
}

/// Rights over Secrets, but not to watch them.
const BLIND: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: blind}
rules: [{apiGroups: [''], resources: [secrets], verbs: [get, create, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: blind}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: blind}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: blind}]
";

#[tokio::test]
async fn a_successor_is_made_in_time_also_while_the_secret_cannot_be_watched() -> Result<()> {
    let (scratch, secrets) = place("blind").await?;
    apply_yaml(&scratch.client()?, BLIND).await?;
    let client = shared().await?.client_as("blind", &[]).await?;
    let (clock, now) = clock();
    let open = || Authority::open_at(client.clone(), scratch.name(), NAME, clock.clone());
    // the authorizer hears of a new right a moment later
    let opened = async {
        loop {
            match open().await {
                Err(error) if error.to_string().contains("cannot get resource") => tokio::task::yield_now().await,
                opened => return opened,
            }
        }
    };
    let authority = tokio::time::timeout(std::time::Duration::from_secs(30), opened).await??;
    let keeper = authority.clone();
    let keeping = tokio::spawn(async move { keeper.keep_looking(std::time::Duration::from_millis(100)).await });
    now.fetch_add(9 * YEAR, Ordering::SeqCst);
    let both = |secret: &Secret| secret.data.as_ref().is_some_and(|data| data.contains_key("ca-2.crt"));
    expect::until(secrets, NAME, "the successor", both).await?;
    keeping.abort();
    Ok(())
}

/// Connects as somebody who trusts `pem`.
async fn connect(pem: &str, address: std::net::SocketAddr, name: &str) -> std::io::Result<Vec<u8>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    let shown = tls
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .expect("a certificate");
    Ok(shown.to_vec())
}

#[tokio::test]
async fn a_leaf_is_renewed_in_place_and_believed_for_its_names_only() -> Result<()> {
    let (scratch, _) = place("leaf").await?;
    let (clock, now) = clock();
    let authority = Authority::open_at(scratch.client()?, scratch.name(), NAME, clock).await?;
    let stranger = Authority::open(scratch.client()?, scratch.name(), "other-keys").await?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(authority.leaf(["127.0.0.1", "collector.example.com"])?);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    // until the peer has gone
                    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                }
            });
        }
    });

    let first = connect(&authority.ca_pem(), address, "127.0.0.1").await?;
    assert_eq!(
        connect(&authority.ca_pem(), address, "collector.example.com").await?,
        first,
        "no new one each time"
    );
    let wrong = connect(&authority.ca_pem(), address, "evil.example.com")
        .await
        .expect_err("another name");
    assert!(wrong.to_string().contains("not valid for name"), "{wrong}");
    let unknown = connect(&stranger.ca_pem(), address, "127.0.0.1")
        .await
        .expect_err("another authority");
    assert!(unknown.to_string().contains("UnknownIssuer"), "{unknown}");

    // a certificate lives ninety days and is renewed with thirty left; backdated by one
    now.fetch_add(59 * 24 * 3600, Ordering::SeqCst);
    assert_eq!(connect(&authority.ca_pem(), address, "127.0.0.1").await?, first);
    now.fetch_add(24 * 3600 + 1, Ordering::SeqCst);
    // it is dated by the clock that was set, sixty days from now: rustls' own clock does not believe it yet
    let renewed = connect(&authority.ca_pem(), address, "127.0.0.1")
        .await
        .expect_err("from the future");
    assert!(renewed.to_string().contains("not valid yet"), "{renewed}");
    Ok(())
}

#[tokio::test]
async fn a_namespace_that_is_not_there_is_said_at_once() -> Result<()> {
    let client = shared().await?.client().await?;
    let refused = Authority::open(client, "nowhere", NAME)
        .await
        .expect_err("no namespace");
    assert!(
        refused.to_string().contains("nowhere/keys: cannot create it"),
        "{refused}"
    );
    Ok(())
}
