//! A way to the registry that does what bad ways do. One request per connection.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to one request.
#[derive(Debug, Clone)]
pub(crate) enum Fate {
    /// It passes.
    Pass,
    /// The connection is cut after so many bytes of the answer's body.
    CutAfter(usize),
    /// The bit at this byte of the answer's body is flipped.
    Flip(usize),
    /// This answer comes instead.
    Answer(String),
    /// The request's `Range` is not heeded.
    NoRange,
    /// Neither is it here, and the connection is cut after so many bytes of the answer's body.
    NoRangeCutAfter(usize),
    /// Nothing comes at all.
    Silence,
    /// An answer of so many bytes, one each twentieth of a second.
    Drip(usize),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) head: String,
}

impl Asked {
    pub(crate) fn is_blob(&self) -> bool {
        self.line.starts_with("GET") && self.line.contains("/blobs/")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

type Decide = Box<dyn Fn(&Asked, usize) -> Fate + Send + Sync>;

pub(crate) struct Proxy {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Proxy {
    /// A way to `upstream`; `decide` sees each request and how many came before it.
    pub(crate) async fn start(upstream: &str, decide: impl Fn(&Asked, usize) -> Fate + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (seen, upstream, decide): (_, _, Arc<Decide>) =
            (asked.clone(), upstream.to_owned(), Arc::new(Box::new(decide)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, upstream, decide) = (seen.clone(), upstream.clone(), decide.clone());
                tokio::spawn(async move {
                    // a client that went away is no trouble of the proxy's
                    let _ = serve(stream, &upstream, &seen, &decide).await;
                });
            }
        });
        Proxy { address, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn blobs(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::is_blob).collect()
    }
}

async fn serve(
    mut client: TcpStream,
    upstream: &str,
    seen: &Mutex<Vec<Asked>>,
    decide: &Decide,
) -> std::io::Result<()> {
    let (head, mut sent) = read_head(&mut client).await?;
    let asked = Asked { line: head.lines().next().unwrap_or_default().to_owned(), head };
    let before = {
        let mut seen = seen.lock().unwrap();
        seen.push(asked.clone());
        seen.len() - 1
    };
    let fate = decide(&asked, before);
    match &fate {
        Fate::Answer(answer) => return client.write_all(answer.as_bytes()).await,
        Fate::Silence => {
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            return Ok(());
        }
        Fate::Drip(length) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            client.write_all(head.as_bytes()).await?;
            for _ in 0..*length {
                client.write_all(b"{").await?;
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            return client.shutdown().await;
        }
        _ => {}
    }
    let mut server = TcpStream::connect(upstream).await?;
    let dropped = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        name != "connection" && !(matches!(fate, Fate::NoRange | Fate::NoRangeCutAfter(_)) && name == "range")
    };
    let lines: Vec<&str> = asked.head.trim_end().lines().filter(dropped).collect();
    server.write_all(format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n")).as_bytes()).await?;
    let length = asked.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0_usize);
    let mut left = length;
    while left > 0 {
        if sent.is_empty() {
            sent = vec![0; 64 << 10];
            match client.read(&mut sent).await? {
                0 => return Ok(()),
                more => sent.truncate(more),
            }
        }
        server.write_all(&sent).await?;
        left = left.saturating_sub(sent.len());
        sent.clear();
    }
    let (head, mut body) = read_head(&mut server).await?;
    client.write_all(head.as_bytes()).await?;
    let mut passed = 0;
    loop {
        if let Fate::Flip(at) = fate
            && (passed..passed + body.len()).contains(&at)
        {
            body[at - passed] ^= 1;
        }
        if let Fate::CutAfter(most) | Fate::NoRangeCutAfter(most) = fate
            && passed + body.len() >= most
        {
            client.write_all(&body[..most - passed]).await?;
            return client.shutdown().await;
        }
        client.write_all(&body).await?;
        passed += body.len();
        body = vec![0; 16 << 10];
        match server.read(&mut body).await? {
            0 => return client.shutdown().await,
            more => body.truncate(more),
        }
    }
}

/// The head of a message with its blank line, and what of the body came with it.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
        let mut more = vec![0; 4096];
        match stream.read(&mut more).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&more[..n]),
        }
    }
}
