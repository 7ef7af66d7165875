//! What the doctor asks of everything but the host itself.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use kube::{Client, Config};

use super::{Around, Reached};
use crate::bootstrap::Bootstrap;
use crate::host::Host;
use crate::skew;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be asked.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// The bootstrap file, which names the API server.
    pub bootstrap: Option<PathBuf>,
    /// URLs of registries, `https://ghcr.io`.
    pub registries: Vec<String>,
    /// What of the agent's own notes cannot be read, with the way out.
    pub notes: Vec<String>,
}

/// Asks.
pub async fn look(host: Arc<dyn Host>, ask: &Ask) -> Around {
    let blocking = tokio::task::spawn_blocking(move || (host.disk_free(), host.vm_processes())).await;
    let (disk_free, vms) = match blocking {
        Ok((free, vms)) => (free.map_err(|error| error.to_string()), vms.map_err(|error| error.to_string())),
        Err(ended) => (Err(ended.to_string()), Err(ended.to_string())),
    };
    let api_server = match &ask.bootstrap {
        None => None,
        Some(file) => Some(match Bootstrap::read(file) {
            Ok(bootstrap) => {
                let config = bootstrap.config().await.map_err(|error| error.to_string());
                reach(bootstrap.server, "/version", config).await
            }
            Err(error) => Reached { url: file.display().to_string(), answer: Err(error.to_string()) },
        }),
    };
    let mut registries = Vec::new();
    for url in &ask.registries {
        // any status is a sign of life: a registry asks who it is
        let config = url.parse().map(Config::new).map_err(|error| format!("it is no URL: {error}"));
        registries.push(reach(url.clone(), "/v2/", config).await);
    }
    Around { disk_free, vms, notes: ask.notes.clone(), api_server, registries }
}

/// Asks `url` for `path`, and for its time.
async fn reach(url: String, path: &str, config: Result<Config, String>) -> Reached {
    let answer = match config {
        Ok(config) => tokio::time::timeout(PATIENCE, ahead_of(config, path))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))),
        Err(why) => Err(why),
    };
    Reached { url, answer }
}

/// How far the own clock is ahead of the server's, if the server says its time. It does so in whole seconds and somewhere
/// between question and answer, so the middle of the two is compared.
async fn ahead_of(config: Config, path: &str) -> Result<Option<SignedDuration>, String> {
    let client = Client::try_from(config).map_err(|error| whole(&error))?;
    let request = Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
    let asked = Timestamp::now();
    let answer = client.send(request).await.map_err(|error| whole(&error))?;
    let middle = asked + Timestamp::now().duration_since(asked) / 2;
    Ok(skew::date(answer.headers()).map(|date| middle.duration_since(date)))
}

/// An error with what caused it: a connection that failed says only at the end of that why.
fn whole(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !said.contains(&words) {
            said.push_str(": ");
            said.push_str(&words);
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::host::{HostFacts, VmProcess};

    struct Silent;

    impl Host for Silent {
        fn facts(&self) -> io::Result<HostFacts> {
            Err(io::Error::other("no facts"))
        }
        fn disk_free(&self) -> io::Result<u64> {
            Err(io::Error::other("no disk"))
        }
        fn vm_processes(&self) -> io::Result<Vec<VmProcess>> {
            Err(io::Error::other("no processes"))
        }
        fn machine_identifier(&self) -> io::Result<String> {
            Err(io::Error::other("no identifier"))
        }
        fn going_down(&self) -> io::Result<bool> {
            Err(io::Error::other("no shutdown"))
        }
    }

    /// A server that answers every request with `401` and this time.
    async fn server(date: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _request = stream.read(&mut [0; 4096]).await.unwrap();
                let answer = format!("HTTP/1.1 401 Unauthorized\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn a_server_that_refuses_is_there_and_says_its_time_and_one_that_is_gone_is_not() {
        let there = server("Thu, 01 Jan 1970 00:00:00 GMT").await;
        let gone = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            format!("http://{}", listener.local_addr().unwrap())
        };
        let ask = Ask { registries: vec![there, gone, "not a url".to_owned()], ..Ask::default() };
        let around = look(Arc::new(Silent), &ask).await;
        assert_eq!(around.disk_free, Err("no disk".to_owned()));
        let answers: Vec<_> = around.registries.iter().map(|reached| &reached.answer).collect();
        let ahead = answers[0].as_ref().unwrap().unwrap();
        let now = Timestamp::now().as_second();
        assert!((now - ahead.as_secs()).abs() <= 1, "{ahead:?}");
        assert!(answers[1].as_ref().unwrap_err().contains("refused"), "{answers:?}");
        assert!(answers[2].as_ref().unwrap_err().contains("no URL"), "{answers:?}");
    }

    #[tokio::test]
    async fn a_bootstrap_file_that_is_not_there_is_said_in_the_words_of_its_way_out() {
        let ask = Ask { bootstrap: Some("/nowhere.json".into()), ..Ask::default() };
        let around = look(Arc::new(Silent), &ask).await;
        let why = around.api_server.unwrap().answer.unwrap_err();
        assert!(why.contains("/nowhere.json") && why.contains("kubectl macrack enroll"), "{why}");
    }
}
