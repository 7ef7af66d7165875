//! The plugin as a person runs it: by `kubectl macrack`, on a real API server.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Api;
use kube::api::PostParams;
use macrack_testkit::{ControlPlane, bin, client_from, expect, shared};
use serde_json::Value;

const SERIAL: &str = "CLITEST001";

async fn apply(plane: &ControlPlane, yaml: &str) -> Result<String> {
    plane.kubectl_with(&["apply", "--server-side", "-f", "-"], yaml).await?.success()
}

async fn installed() -> Result<&'static ControlPlane> {
    let plane = shared();
    bin("kubectl-macrack")?;
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    plane.kubectl(&["apply", "--server-side", "-f", &crds.display().to_string()]).await?.success()?;
    plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await?.success()?;
    Ok(plane)
}

#[tokio::test]
async fn a_mac_is_enrolled_once_its_account_is_there_with_a_token_of_that_account_alone() -> Result<()> {
    let plane = installed().await?;
    let refused = plane.kubectl(&["macrack", "enroll", "NOSUCHMAC1"]).await?;
    assert!(!refused.status.success());
    assert!(
        refused.stderr.contains("there is no MacNode nosuchmac1: create one with spec.serial NOSUCHMAC1"),
        "{refused:?}"
    );

    let node = format!(
        "apiVersion: rack.macrack.io/v1alpha1\nkind: MacNode\nmetadata: {{name: {}}}\nspec: {{serial: {SERIAL}, nodeClassName: mini}}\n",
        SERIAL.to_lowercase()
    );
    apply(plane, &node).await?;
    apply(plane, "apiVersion: v1\nkind: Namespace\nmetadata: {name: macrack-agents}\n").await?;
    let early = plane.kubectl(&["macrack", "enroll", SERIAL, "--timeout", "1s"]).await?;
    assert!(
        early.stderr.contains("after 1s there is still no ServiceAccount") && early.stderr.contains("does it run"),
        "{early:?}"
    );

    // it waits by a watch: the account is made while it runs
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("bootstrap.json");
    let path = file.display().to_string();
    let enroll = ["macrack", "enroll", "clitest001", "-o", &path, "--duration", "30m"];
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: macrack-enroll-clitest001, namespace: macrack-agents}\n";
    let (enrolled, made) = tokio::join!(plane.kubectl(&enroll), apply(plane, account));
    made?;
    let enrolled = enrolled?;
    assert!(enrolled.stderr.contains("its token is good until") && enrolled.stderr.contains("m)"), "{enrolled:?}");
    assert_eq!(enrolled.success()?, "", "the token is in the file, not on the terminal");
    assert_eq!(std::fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);

    let bootstrap: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    assert_eq!(bootstrap["serial"], SERIAL, "as the MacNode writes it");
    assert_eq!(bootstrap["server"], plane.server());
    let ca = String::from_utf8(BASE64_STANDARD.decode(bootstrap["caData"].as_str().unwrap_or_default())?)?;
    assert_eq!(ca.split_whitespace().collect::<String>(), plane.ca_pem().split_whitespace().collect::<String>());
    let client = client_from(&plane.kubeconfig_for(bootstrap["token"].as_str().unwrap_or_default())?).await?;
    let me: Api<SelfSubjectReview> = Api::all(client);
    let me = expect::accepts(me.create(&PostParams::default(), &SelfSubjectReview::default()).await);
    let who = me.status.and_then(|s| s.user_info).and_then(|u| u.username).unwrap_or_default();
    assert_eq!(who, "system:serviceaccount:macrack-agents:macrack-enroll-clitest001");
    Ok(())
}

#[tokio::test]
async fn why_says_what_is_wrong_with_a_question_and_answers_a_right_one() -> Result<()> {
    let plane = installed().await?;
    for (words, said) in [
        (&["why", "mnl/none", "-n", "default"][..], "namespace default has no MacNodeLease none"),
        (&["why", "mn/none"], "there is no MacNode none; `kubectl get macnodes` lists"),
        (&["why", "pod/none"], "write mn/NAME"),
        (&["why", "mn/none", "--context", "nowhere"], "the kubeconfig is not usable"),
    ] {
        let answer = plane.kubectl(&[&["macrack"], words].concat()).await?;
        assert!(!answer.status.success() && answer.stderr.contains(said), "{words:?}: {answer:?}");
    }
    apply(plane, "apiVersion: rack.macrack.io/v1alpha1\nkind: MacNode\nmetadata: {name: whytest001}\nspec: {serial: WHYTEST001, nodeClassName: mini}\n").await?;
    let answer = plane.kubectl(&["macrack", "why", "mn/whytest001"]).await?.success()?;
    assert!(
        answer.starts_with("MacNode whytest001 has not been looked at by the operator since it was made at"),
        "{answer}"
    );
    let help = plane.kubectl(&["macrack", "--help"]).await?.success()?;
    assert!(help.contains("Apple hardware only, two VMs a Mac"), "{help}");
    Ok(())
}
