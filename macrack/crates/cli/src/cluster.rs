//! The way into the cluster: the user's own kubeconfig, chosen as kubectl chooses it.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use macrack_api::MacNode;

/// kubectl's own flags for the same things.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct Access {
    /// The kubeconfig file; by default $KUBECONFIG, then ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in it; by default the current one
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
}

impl Access {
    /// How the cluster is reached.
    ///
    /// # Errors
    /// When there is no kubeconfig, or it cannot be used; the message says which file and what to do.
    pub(crate) async fn config(&self) -> Result<Config> {
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display())),
            None => Kubeconfig::read().context("no kubeconfig: set KUBECONFIG, or give --kubeconfig FILE"),
        }?;
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config =
            Config::from_custom_kubeconfig(read, &options).await.context("the kubeconfig is not usable")?;
        // a person waits: the first answer counts
        config.default_retry = false;
        Ok(config)
    }
}

/// A client by that configuration.
///
/// # Errors
/// When its credentials cannot be used.
pub(crate) fn client(config: Config) -> Result<Client> {
    macrack_thin::connect(config).context("the credentials of the kubeconfig are not usable")
}

/// The MacNode of that serial, and its API.
///
/// # Errors
/// When it is not there, or cannot be read.
pub(crate) async fn mac_node(access: &Access, serial: &str) -> Result<(Api<MacNode>, MacNode)> {
    let nodes: Api<MacNode> = Api::all(client(access.config().await?)?);
    let name = serial.to_lowercase();
    match nodes.get_opt(&name).await {
        Ok(Some(node)) => Ok((nodes, node)),
        Ok(None) => bail!("there is no MacNode {name}; kubectl get mn shows those there are"),
        Err(error) => Err(said(error, &format!("reading MacNode {name}"))),
    }
}

/// What the API server or the network said, for the person who asked.
pub(crate) fn said(error: kube::Error, doing: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("{doing}: {}", status.message),
        other => anyhow!("{doing}: {other}; is the cluster of your kubeconfig reachable?"),
    }
}

/// Certificates as PEM.
pub(crate) fn pem(certificates: &[Vec<u8>]) -> String {
    let one = |der: &Vec<u8>| {
        let text = BASE64_STANDARD.encode(der);
        let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    certificates.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_wrapped_at_64_characters() {
        let pem = pem(&[vec![7; 100], vec![8; 3]]);
        assert_eq!(pem.matches("-----BEGIN CERTIFICATE-----").count(), 2);
        assert!(pem.lines().all(|line| line.len() <= 64), "{pem}");
        let body: String = pem.lines().take_while(|l| !l.contains("END")).skip(1).collect();
        assert_eq!(BASE64_STANDARD.decode(body).unwrap(), vec![7; 100]);
    }

    #[test]
    fn a_refusal_is_repeated_and_silence_is_explained() {
        let refusal = kube::Error::Api(Box::new(kube::core::Status::failure("macnodes is forbidden", "Forbidden")));
        assert_eq!(said(refusal, "reading it").to_string(), "reading it: macnodes is forbidden");
    }
}
