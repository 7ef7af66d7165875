//! A server that takes what it is asked and does not answer: whoever interrupts once is told what is waited for, and
//! whoever insists is let go.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dockerios_testkit::Proc;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::{interrupt, plugin};

const MINUTE: Duration = Duration::from_secs(60);
const ONCE_MORE: &str = "interrupt once more to leave without it";

/// A server on loopback, and a kubeconfig that leads to it.
struct Server {
    listener: TcpListener,
    kubeconfig: tempfile::NamedTempFile,
}

impl Server {
    async fn start() -> Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = format!("http://{}", listener.local_addr()?);
        let kubeconfig = tempfile::NamedTempFile::new()?;
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {}}]});
        std::fs::write(kubeconfig.path(), config.to_string())?;
        Ok(Server { listener, kubeconfig })
    }

    /// A claim that this server was asked for, and where its answer is waited for.
    async fn claimed(&self, dir: &Path) -> Result<(Proc, TcpStream)> {
        let words = ["claim", "--pool", "ci", "--name", "job"];
        let waits = Proc::spawn("claim", plugin(Some(self.kubeconfig.path()), &words), dir.join("log"))?;
        let accepted = tokio::time::timeout(MINUTE, self.listener.accept()).await;
        let (mut stream, _) = accepted.context("nobody connects")??;
        let (mut asked, mut part) = (String::new(), [0; 4096]);
        // to the end of its body
        while !asked.contains("\"poolName\":\"ci\"") {
            let read = tokio::time::timeout(MINUTE, stream.read(&mut part)).await;
            let read = read.context("half a request")??;
            ensure!(read > 0, "hung up after {asked:?}");
            asked.push_str(&String::from_utf8_lossy(&part[..read]));
        }
        ensure!(asked.starts_with("POST /apis/machine.dockerios.io/"), "{asked}");
        Ok((waits, stream))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_not_answered_lets_go_whoever_insists_and_says_that_it_may_be_there() -> Result<()> {
    let (server, dir) = (Server::start().await?, tempfile::tempdir()?);
    let (waits, _silent) = server.claimed(dir.path()).await?;
    interrupt(&waits)?;
    waits.until_logged(ONCE_MORE, MINUTE).await?;
    let ended = waits.terminate(MINUTE).await?;
    let log = waits.log();
    ensure!(ended.code() == Some(130), "{ended}: {log}");
    let unknown = "whether the claim was made is not known: kubectl get macclaim -n team-a";
    ensure!(log.contains(unknown), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_answered_after_the_interrupt_is_named_with_what_ends_it() -> Result<()> {
    let (server, dir) = (Server::start().await?, tempfile::tempdir()?);
    let (waits, mut answers) = server.claimed(dir.path()).await?;
    interrupt(&waits)?;
    waits.until_logged(ONCE_MORE, MINUTE).await?;
    let body = json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
        "metadata": {"name": "job", "namespace": "team-a", "uid": "u"}, "spec": {"poolName": "ci"}})
    .to_string();
    let head = format!(
        "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    answers.write_all(format!("{head}{body}").as_bytes()).await?;
    let ended = waits.wait(MINUTE).await?;
    let log = waits.log();
    ensure!(ended.code() == Some(130), "{ended}: {log}");
    ensure!(
        log.contains("the claim stays: kubectl delete macclaim job -n team-a ends it"),
        "{log}"
    );
    Ok(())
}
