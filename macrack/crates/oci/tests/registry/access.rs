//! Bearer tokens, by a token server that is made here, for a registry that checks them.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use macrack_oci::auth::Login;
use macrack_oci::{Client, Credentials, Error};
use macrack_testkit::RegistryOptions;
use macrack_testkit::registry::Tokens;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::bench::{Bench, client, pull};
use crate::proxy::{Fate, Proxy};

/// Issues tokens to `reader:read` (pull) and `writer:write` (pull, push).
struct TokenServer {
    realm: String,
    certificate: tempfile::NamedTempFile,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TokenServer {
    async fn start() -> TokenServer {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec!["tokens".to_owned()]).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(certificate.pem().as_bytes()).unwrap();
        let random = SystemRandom::new();
        let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der(), &random).unwrap();
        let der = BASE64_STANDARD.encode(certificate.der());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let realm = format!("http://{}/token", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 8192];
                let n = stream.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..n]).into_owned();
                seen.lock().unwrap().push(head.clone());
                let answer = match issue(&head, &signer, &der) {
                    Some(token) => {
                        let body = json!({ "token": token, "expires_in": 300 }).to_string();
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
                    }
                    None => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
                };
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        TokenServer { realm, certificate: file, asked }
    }

    fn options(&self) -> RegistryOptions {
        let tokens = Tokens {
            realm: self.realm.clone(),
            issuer: "tests".to_owned(),
            service: "goldens".to_owned(),
            certificate: self.certificate.path().to_owned(),
        };
        RegistryOptions { tokens: Some(tokens), ..RegistryOptions::default() }
    }
}

fn issue(head: &str, signer: &EcdsaKeyPair, certificate: &str) -> Option<String> {
    let login = head.lines().find_map(|line| line.strip_prefix("authorization: Basic "));
    let login = login.map(|login| String::from_utf8(BASE64_STANDARD.decode(login.trim()).unwrap()).unwrap());
    let actions = match login.as_deref() {
        Some("reader:read") => json!(["pull"]),
        Some("writer:write") => json!(["pull", "push"]),
        Some(_) => return None,
        None => json!([]),
    };
    let now = jiff::Timestamp::now().as_second();
    let part = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(json!({ "typ": "JWT", "alg": "ES256", "x5c": [certificate] }));
    let claims = part(json!({
        "iss": "tests", "sub": "somebody", "aud": "goldens", "exp": now + 300, "nbf": now - 10, "iat": now, "jti": "1",
        "access": [{ "type": "repository", "name": "golden/tahoe", "actions": actions }],
    }));
    let signed = format!("{header}.{claims}");
    let signature = signer.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    Some(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

fn with(address: &str, username: &str, password: &str) -> Client {
    let mut credentials = Credentials::default();
    credentials.insert(address, Login::Basic { username: username.to_owned(), password: password.to_owned() });
    client().with(credentials)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_wants_tokens_gets_them_from_its_token_server_and_a_refusal_names_the_way_out() {
    let tokens = TokenServer::start().await;
    let bench = Bench::with(tokens.options()).await;
    let address = bench.registry.address().to_owned();
    let pushed = bench.push(&with(&address, "writer", "write")).await.unwrap();
    pull(&with(&address, "reader", "read"), &pushed.reference, &bench.place("pulled")).await.unwrap();
    let asked = tokens.asked.lock().unwrap().len();
    assert!(asked <= 4, "a token is asked for again and again: {asked} times");

    for (client, wanted) in [
        (client(), "401"),
        (with(&address, "reader", "wrong"), "token server answers 401"),
        (with("other.example", "reader", "read"), "401"),
    ] {
        let refused = pull(&client, &pushed.reference, &bench.place("refused")).await.unwrap_err();
        assert!(matches!(refused, Error::Denied { .. }), "{refused}");
        let words = refused.to_string();
        assert!(words.contains(wanted) && words.contains("check the pull secret"), "{words}");
        assert!(!words.contains("wrong"), "a password is told: {words}");
    }
    let refused = bench.push(&with(&address, "reader", "read")).await.unwrap_err();
    assert!(matches!(refused, Error::Denied { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_server_that_is_busy_is_asked_again_and_the_pull_secret_is_not_blamed() {
    let tokens = TokenServer::start().await;
    let behind = tokens.realm.trim_start_matches("http://").trim_end_matches("/token").to_owned();
    let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let front = Proxy::start(&behind, move |_, before| match before == 1 || is_down.load(Ordering::SeqCst) {
        true => Fate::Answer(busy.to_owned()),
        false => Fate::Pass,
    })
    .await;
    let mut options = tokens.options();
    if let Some(tokens) = &mut options.tokens {
        tokens.realm = format!("http://{}/token", front.address);
    }
    let bench = Bench::with(options).await;
    let address = bench.registry.address().to_owned();
    // the first token is the push's; the pull's first request for one finds it busy
    let pushed = bench.push(&with(&address, "writer", "write")).await.unwrap();
    assert_eq!(front.asked().len(), 1, "the premise: one token for a push");
    pull(&with(&address, "reader", "read"), &pushed.reference, &bench.place("pulled")).await.unwrap();

    down.store(true, Ordering::SeqCst);
    let away = pull(&with(&address, "reader", "read"), &pushed.reference, &bench.place("away")).await.unwrap_err();
    assert!(matches!(&away, Error::Transient { why, .. } if why.contains("token server answers 503")), "{away}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_do_not_follow_to_where_a_registry_sends_its_blobs() {
    let tokens = TokenServer::start().await;
    let bench = Bench::with(tokens.options()).await;
    let address = bench.registry.address().to_owned();
    let pushed = bench.push(&with(&address, "writer", "write")).await.unwrap();
    // a blob store that takes no credentials: it answers from another registry with the same blobs
    let open = Bench::new().await;
    open.push(&client()).await.unwrap();
    let store = Proxy::start(open.registry.address(), |_, _| Fate::Pass).await;
    let to = store.address.clone();
    let front = Proxy::start(&address, move |asked, _| match asked.is_blob() && asked.header("authorization").is_some() {
        true => {
            let path = asked.line.split(' ').nth(1).unwrap();
            Fate::Answer(format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{to}{path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            ))
        }
        false => Fate::Pass,
    })
    .await;
    let reference = Bench::at(&pushed.reference, &front.address);
    pull(&with(&front.address, "reader", "read"), &reference, &bench.place("pulled")).await.unwrap();
    let blobs = store.blobs();
    assert!(blobs.len() > 5, "the registry did not send us on: {}", blobs.len());
    assert!(blobs.iter().all(|asked| asked.header("authorization").is_none()), "credentials were carried on");
}
