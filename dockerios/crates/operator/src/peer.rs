//! For tests: a peer on loopback that answers HTTP as it is told, or does not. What a real API server does is tested on a
//! real one; this is for what none can be made to do.

use std::sync::Arc;

use kube::{Client, Config};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    act::{Hands, Secrets},
    api::Api,
    leader::Term,
};

/// What a request gets.
pub(crate) enum Answer {
    /// 200 with that body.
    Json(Value),
    /// 200, these lines, and then nothing more: a watch whose server was lost.
    Begin(&'static str),
    /// Nothing at all.
    Never,
}

/// A client of such a peer; the closure is given each request as it came, head and body.
pub(crate) async fn answering(answer: impl Fn(&str) -> Answer + Clone + Send + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, answer.clone()));
        }
    });
    Client::try_from(Config::new(url.parse().expect("a URL"))).expect("a client")
}

/// One request for each connection.
async fn converse(mut stream: TcpStream, answer: impl Fn(&str) -> Answer) {
    let request = read(&mut stream).await;
    let answer = answer(&request);
    let text = match answer {
        Answer::Json(body) => {
            let body = body.to_string();
            let length = body.len();
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        }
        Answer::Begin(lines) => {
            let length = lines.len();
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{lines}\r\n")
        }
        Answer::Never => return std::future::pending().await,
    };
    stream.write_all(text.as_bytes()).await.ok();
    if !text.contains("connection: close") {
        std::future::pending().await
    }
}

async fn read(stream: &mut TcpStream) -> String {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
            if body.len() >= length {
                return text;
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return text,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

struct NoSecrets;

impl Secrets for NoSecrets {
    fn token(&self, _: &str) -> String {
        String::new()
    }

    fn authority(&self) -> String {
        String::new()
    }

    fn server_name(&self) -> String {
        "collector.svc".to_owned()
    }
}

/// Hands over that client, with nothing to hide.
pub(crate) fn hands(client: Client, term: Term) -> Hands {
    Hands {
        api: Api::new(client),
        secrets: Arc::new(NoSecrets),
        platform_namespace: "dockerios-system".into(),
        term,
    }
}
