//! A network between the plugin and the API server, which a test breaks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use kube::config::Kubeconfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Passes bytes on, TLS and all, until it is cut.
pub(crate) struct Link {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    cut: Notify,
    /// So many connections more are ended as soon as they are made.
    refuse: AtomicU32,
}

impl Link {
    /// Stands before the server of the kubeconfig file; a file that leads over it is written into `dir`.
    pub(crate) async fn before(kubeconfig: &Path, dir: &Path) -> Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut file = Kubeconfig::read_from(kubeconfig)?;
        let cluster = file.clusters.first_mut().and_then(|named| named.cluster.as_mut());
        let server = cluster
            .and_then(|cluster| cluster.server.as_mut())
            .context("a server")?;
        let upstream = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
        *server = format!("https://{}", listener.local_addr()?);
        let path = dir.join("link.kubeconfig");
        std::fs::write(&path, serde_json::to_vec(&file)?)?;
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(carry(listener, upstream, shared.clone()));
        Ok(Link {
            kubeconfig: path,
            shared,
            task,
        })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Ends every connection that there is, and the next `refuse` that are made.
    pub(crate) fn cut(&self, refuse: u32) {
        self.shared.refuse.store(refuse, Ordering::SeqCst);
        self.shared.cut.notify_waiters();
    }

    /// How many of those are still to come.
    pub(crate) fn to_refuse(&self) -> u32 {
        self.shared.refuse.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(listener: TcpListener, upstream: String, shared: Arc<Shared>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let left = shared.refuse.load(Ordering::SeqCst);
        if left > 0 {
            shared.refuse.store(left - 1, Ordering::SeqCst);
            continue;
        }
        let (upstream, shared) = (upstream.clone(), shared.clone());
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(&upstream).await else {
                return;
            };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                () = shared.cut.notified() => {}
            }
        });
    }
}
