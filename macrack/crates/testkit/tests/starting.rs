//! A start that cannot come through says why and leaves nothing; one that can, does.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use kube::api::PostParams;
use macrack_testkit::{ControlPlane, Options, assets, bin, expect, shared};
use serde_json::json;

/// The real binaries in a folder of their own, but for those that `replace` gives a script for.
fn assets_with(dir: &Path, replace: &[(&str, &str)]) {
    let real = assets::find().expect("the binaries");
    for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"] {
        let path = dir.join(name);
        match replace.iter().find(|(replaced, _)| *replaced == name) {
            None => std::os::unix::fs::symlink(real.join(name), path).expect("a link"),
            Some((_, script)) => {
                let script = script.replace("REAL", &real.join(name).display().to_string());
                std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
                let mode = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(path, mode).expect("an executable");
            }
        }
    }
}

fn start(assets: &Path, dir: Option<&Path>) -> Result<ControlPlane, String> {
    let options = Options { assets: Some(assets.to_owned()), dir: dir.map(Path::to_owned) };
    ControlPlane::start(options).map_err(|e| format!("{e:#}"))
}

fn failure(assets: &Path, dir: Option<&Path>) -> String {
    match start(assets, dir) {
        Ok(_) => panic!("the start came through"),
        Err(e) => e,
    }
}

#[test]
fn a_component_that_fails_is_named_with_the_end_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    assets_with(dir.path(), &[("kube-apiserver", "echo 'unknown flag: --x' >&2; exit 3")]);
    let error = failure(dir.path(), None);
    assert!(error.contains("kube-apiserver failed (exit status: 3); its log ends:"), "{error}");
    assert!(error.contains("    unknown flag: --x"), "{error}");
}

#[test]
fn a_port_that_somebody_else_took_is_tried_again_with_another() {
    let dir = tempfile::tempdir().unwrap();
    let once = "[ -e taken ] || { touch taken; echo 'bind: address already in use'; exit 1; }; exec REAL \"$@\"";
    assets_with(dir.path(), &[("etcd", once)]);
    start(dir.path(), None).unwrap();
}

#[test]
fn a_folder_is_used_by_one_control_plane_at_a_time_and_then_again() {
    let dir = tempfile::tempdir().unwrap();
    let assets = assets::find().unwrap();
    let first = start(&assets, Some(dir.path())).unwrap();
    let error = failure(&assets, Some(dir.path()));
    assert!(error.contains("another control plane runs in"), "{error}");
    drop(first);
    let again = start(&assets, Some(dir.path())).unwrap();
    assert!(dir.path().join("admin.kubeconfig").is_file());
    drop(again);
}

#[test]
fn our_own_binary_is_found_fresh_and_one_that_is_not_ours_names_the_command_that_was_tried() {
    let plane = bin("macrack-plane").unwrap();
    assert_eq!(plane, Path::new(env!("CARGO_BIN_EXE_macrack-plane")));
    let error = format!("{:#}", bin("macrack-toaster").unwrap_err());
    assert!(error.contains("`cargo build --workspace --all-features --bin macrack-toaster` in"), "{error}");
}

#[tokio::test]
async fn an_approved_kubelet_serving_request_is_signed_by_the_clusters_ca() {
    let plane = shared();
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:macrack-testkit");
    let key = rcgen::KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let object: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"name": "testkit-serving"},
        "spec": {
            "signerName": "kubernetes.io/kubelet-serving",
            "usages": ["digital signature", "server auth"],
            "request": k8s_openapi::ByteString(request.into_bytes()),
        },
    }))
    .unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(plane.admin().await.unwrap());
    expect::accepts(requests.create(&PostParams::default(), &object).await);
    let approve = plane.kubectl(&["certificate", "approve", "testkit-serving"]).await;
    approve.unwrap().success().unwrap();
    let soon = Duration::from_secs(20);
    let signed = expect::until_seen(&requests, "testkit-serving", "signed", soon, |r| {
        r.status.as_ref().is_some_and(|s| s.certificate.is_some())
    });
    let pem = signed.await.status.and_then(|s| s.certificate).unwrap().0;
    assert!(pem.starts_with(b"-----BEGIN CERTIFICATE-----"));
}
