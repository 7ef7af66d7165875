//! `enroll`: the bootstrap file of one Mac.
//!
//! The file names the cluster and carries a token of ServiceAccount `macrack-enroll-<serial>`, which can do one
//! thing: ask for a token of its own Mac's agent. It is a credential, so a file is made 0600.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config};
use macrack_api::rack::node::MacNodeSpec;
use macrack_api::{MacNode, Span, names};
use serde::Serialize;

use crate::cluster::{self, Access, said};
use crate::times::relative;

/// Shortest life of a token that the API server grants (TokenRequest, `expirationSeconds`).
const SHORTEST: Span = Span(600);
/// Longest life of a bootstrap token: a year. It is a Mac's way back after it was off for longer than its own token
/// lives (a day), or its Node was deleted; whoever has the file can ask for that one Mac's token, until the MacNode is
/// retired or deleted.
const LONGEST: Span = Span(366 * 24 * 3600);

/// Print the bootstrap file with which a Mac's agent joins the cluster
///
/// It waits until the operator has made the chassis' enrolment account. The token in the file can do one thing: ask for
/// the agent's own token, which lives for 24h and which the agent renews by itself, also over restarts. The file stays
/// on the Mac: it says where the cluster is, and is the way back when the agent's own token has died, after more than
/// 24h without a cluster or when its Node was deleted. Once the file's token has expired too, enroll again and put the
/// new file in the place of the old; the agent reads it without a restart. Retiring the MacNode ends both tokens.
#[derive(clap::Args, Debug)]
pub(crate) struct Enroll {
    /// The serial of the Mac, as in spec.serial of its MacNode
    serial: String,
    /// Write to this file, readable by you alone, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How long the file's token is good for: 10m to 8784h, e.g. 90m; after that the Mac does not come back by itself
    #[arg(long, value_name = "TIME", default_value = "720h", value_parser = token_life)]
    duration: Span,
    /// How long to wait for the operator
    #[arg(long, value_name = "TIME", default_value = "1m")]
    timeout: Span,
    /// URL at which the Mac reaches the API server, if not the one of your kubeconfig
    #[arg(long, value_name = "URL", value_parser = https_url)]
    server: Option<String>,
    /// The CA that the Mac shall trust, PEM, if your kubeconfig names none
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The common name in the certificate that your API server shows to kubelets (--kubelet-client-certificate): the
    /// only caller whom the Mac answers exec and logs
    #[arg(long, value_name = "NAME", default_value = "kube-apiserver-kubelet-client", value_parser = caller)]
    kubelet_client_name: String,
}

/// The Mac would find out too late, and far from here, that it cannot reach the API server by it.
fn https_url(text: &str) -> Result<String, String> {
    let form =
        || format!("{text:?} is no URL of an API server: write https://HOST, https://HOST:PORT, as in a kubeconfig");
    let url = Config::new(text.parse().map_err(|_| form())?).cluster_url;
    let whole = url.scheme_str() == Some("https") && url.host().is_some_and(|host| !host.is_empty());
    if whole { Ok(text.trim_end_matches('/').to_owned()) } else { Err(form()) }
}

/// A certificate without a name must not be the one caller.
fn caller(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a name is wanted: the CN in the certificate of --kubelet-client-certificate".to_owned()),
        name => Ok(name.to_owned()),
    }
}

fn token_life(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|no: macrack_api::duration::NotADuration| no.to_string())?;
    if span < SHORTEST || span > LONGEST {
        return Err(format!("a token lives {SHORTEST} to {LONGEST}"));
    }
    Ok(span)
}

/// The file, as `macrack-agent run --bootstrap` reads it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Bootstrap {
    server: String,
    ca_data: String,
    serial: String,
    token: String,
    kubelet_client_name: String,
}

impl Enroll {
    pub(crate) async fn run(&self, access: &Access) -> Result<()> {
        let config = access.config().await?;
        let server = match &self.server {
            Some(url) => url.clone(),
            None => config.cluster_url.to_string().trim_end_matches('/').to_owned(),
        };
        let ca = self.ca(config.root_cert.as_deref().unwrap_or_default())?;
        let client = cluster::client(config)?;
        let serial = self.enrolled(&client).await?;
        let account = names::enroll_account(&names::mac_node(&serial));
        self.account_made(&client, &account).await?;
        let (token, until) = self.token(&client, &account).await?;
        let kubelet_client_name = self.kubelet_client_name.clone();
        let bootstrap = Bootstrap { server, ca_data: BASE64_STANDARD.encode(ca), serial, token, kubelet_client_name };
        let text = serde_json::to_string_pretty(&bootstrap)? + "\n";
        match &self.output {
            None => print!("{text}"),
            Some(path) => {
                write_private(path, text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
                eprintln!(
                    "wrote {}; its token is good until {}: until then the Mac comes back by itself however long it was away",
                    path.display(),
                    relative(until, Timestamp::now())
                );
            }
        }
        Ok(())
    }

    /// The CA as PEM: what the Mac must trust to know this cluster from another.
    fn ca(&self, of_kubeconfig: &[Vec<u8>]) -> Result<String> {
        if let Some(path) = &self.ca_file {
            let pem = fs::read_to_string(path).with_context(|| format!("--ca-file {}", path.display()))?;
            if !pem.contains("-----BEGIN CERTIFICATE-----") {
                bail!("--ca-file {}: it holds no PEM certificate", path.display());
            }
            return Ok(pem);
        }
        if of_kubeconfig.is_empty() {
            bail!(
                "your kubeconfig names no CA, and a Mac must not trust whoever answers; give the cluster's with --ca-file FILE"
            );
        }
        Ok(cluster::pem(of_kubeconfig))
    }

    /// The serial as its MacNode writes it.
    async fn enrolled(&self, client: &Client) -> Result<String> {
        let serial = self.serial.to_ascii_uppercase();
        if !(8..=20).contains(&serial.len()) || !serial.bytes().all(|b| b.is_ascii_alphanumeric()) {
            bail!("{:?} is no serial: 8 to 20 letters and digits, as printed on the Mac", self.serial);
        }
        let nodes: Api<MacNode> = Api::all(client.clone());
        let name = names::mac_node(&serial);
        match nodes.get_opt(&name).await.map_err(|e| said(e, &format!("reading MacNode {name}")))? {
            Some(node) if node.metadata.deletion_timestamp.is_some() => {
                bail!("MacNode {name} is being deleted; wait until it is gone, then create it anew")
            }
            Some(MacNode { spec: MacNodeSpec { retirement: Some(retirement), .. }, .. }) => bail!(
                "MacNode {name} is retired ({}), which ended every token of this Mac; once it is repaired remove spec.retirement, then enroll again",
                retirement.reason
            ),
            Some(node) => Ok(node.spec.serial),
            None => bail!(
                "there is no MacNode {name}: create one with spec.serial {serial} and its spec.nodeClassName, then enroll again (kubectl explain macnode.spec; `kubectl get mn` lists those that are there)"
            ),
        }
    }

    /// Waits until the operator has made the enrolment account.
    async fn account_made(&self, client: &Client, account: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), names::AGENT_NAMESPACE);
        let only = watcher::Config::default().fields(&format!("metadata.name={account}"));
        let mut seen = std::pin::pin!(watcher(accounts, only).touched_objects());
        let made = async {
            match seen.next().await {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(anyhow!("waiting for ServiceAccount {account}: {error}")),
                None => Err(anyhow!("waiting for ServiceAccount {account}: the watch ended")),
            }
        };
        tokio::time::timeout(Duration::from_secs(self.timeout.seconds()), made).await.unwrap_or_else(|_| {
            Err(anyhow!(
                "after {} there is still no ServiceAccount {}/{account}: the operator makes it, does it run? (kubectl get pods -n {})",
                self.timeout,
                names::AGENT_NAMESPACE,
                names::SYSTEM_NAMESPACE
            ))
        })
    }

    async fn token(&self, client: &Client, account: &str) -> Result<(String, Timestamp)> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), names::AGENT_NAMESPACE);
        let spec = TokenRequestSpec {
            expiration_seconds: Some(i64::try_from(self.duration.seconds())?),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let answer: TokenRequest = accounts
            .create_subresource("token", account, &PostParams::default(), &request)
            .await
            .map_err(|e| said(e, &format!("asking for a token of {account}")))?;
        let none = || anyhow!("the API server granted no token for {account}");
        let status = answer.status.ok_or_else(none)?;
        let until = status.expiration_timestamp.ok_or_else(none)?;
        Ok((status.token.ok_or_else(none)?, until.0))
    }
}

/// A file that nobody else reads at any moment, and that is there whole or not at all.
fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_lives_between_ten_minutes_and_a_year() {
        assert_eq!(token_life("90m"), Ok(Span(5400)));
        assert_eq!(token_life("720h"), Ok(Span(30 * 24 * 3600)));
        for (text, why) in
            [("30d", "24h, 90m, 1h30m"), ("9m", "10m to 8784h"), ("8785h", "no duration"), ("-1h", "24h")]
        {
            let refused = token_life(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn a_server_that_no_mac_could_reach_and_a_caller_without_a_name_are_refused_here() {
        assert_eq!(https_url("https://10.0.0.1:6443/").as_deref(), Ok("https://10.0.0.1:6443"));
        assert_eq!(
            https_url("https://rancher.example/k8s/clusters/c-1").as_deref(),
            Ok("https://rancher.example/k8s/clusters/c-1")
        );
        for wrong in ["", "10.0.0.1", "10.0.0.1:6443", "http://10.0.0.1", "https://", "ftp://x", "https:// x"] {
            let refused = https_url(wrong).unwrap_err();
            assert!(refused.contains("write https://HOST"), "{wrong:?}: {refused}");
        }
        assert_eq!(caller("front-proxy").as_deref(), Ok("front-proxy"));
        assert!(caller(" ").unwrap_err().contains("a name is wanted"));
    }

    #[test]
    fn a_file_is_for_its_owner_alone_also_over_an_open_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bootstrap.json");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write_private(&path, b"secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "secret");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something temporary is left");
        assert!(write_private(&dir.path().join("no/such"), b"").is_err());
    }
}
