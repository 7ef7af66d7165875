//! The hook's binary, both ways in. Invariant: every domain goes through the filter and through the server, and an
//! answer is one that both gave, byte for byte.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use dockerios_domain_hook::proto::v1alpha3::{OnDefineDomainParams, callbacks_client::CallbacksClient};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::{net::UnixStream, runtime::Runtime};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::{Outcome, Trouble};

/// What stands for the key. The real one is nowhere in this repository.
pub const KEY: &str = "TESTOSK-TESTOSK-TESTOSK-TESTOSK-TESTOSK-TESTOSK-TESTOSK-TESTOSK-";

const PATIENCE: Duration = Duration::from_secs(60);

/// A binary of this workspace, beside the test's own; one that is older than its sources is refused.
pub fn binary(crate_folder: &str, name: &str) -> Outcome<PathBuf> {
    let test = std::env::current_exe().map_err(Trouble::during("the test's own place"))?;
    let profile = test.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let binary = profile.join(name);
    let way_out = "build it: cargo build --workspace --all-features";
    let built = fs::metadata(&binary).and_then(|found| found.modified());
    let built = built.map_err(|error| Trouble::new(format_args!("{}: {error}; {way_out}", binary.display())))?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(crate_folder)
        .join("src");
    if newest(&sources).map_err(Trouble::during(sources.display()))? > built {
        return Err(Trouble::new(format_args!(
            "{} is older than {}; {way_out}",
            binary.display(),
            sources.display()
        )));
    }
    Ok(binary)
}

fn newest(folder: &Path) -> std::io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let changed = match entry.file_type()?.is_dir() {
            true => self::newest(&entry.path())?,
            false => entry.metadata()?.modified()?,
        };
        newest = newest.max(changed);
    }
    Ok(newest)
}

/// The hook for one machine.
pub struct Hook {
    binary: PathBuf,
    folder: TempDir,
    vmi: String,
    server: Child,
    client: CallbacksClient<Channel>,
    runtime: Runtime,
}

impl Hook {
    /// Starts the server for the machine that this VirtualMachineInstance, as JSON, describes.
    pub fn start(vmi: &str) -> Outcome<Self> {
        let binary = binary("hook", "dockerios-domain-hook")?;
        let folder = tempfile::tempdir().map_err(Trouble::during("a folder for the hook"))?;
        for (name, content) in [("key", KEY), ("vmi.json", vmi)] {
            fs::write(folder.path().join(name), content).map_err(Trouble::during(name))?;
        }
        let sockets = folder.path().join("sockets");
        fs::create_dir(&sockets).map_err(Trouble::during("a folder for the socket"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Trouble::during("a runtime"))?;
        let mut server = Command::new(&binary)
            .args(["serve", "--osk-file"])
            .arg(folder.path().join("key"))
            .arg("--socket-directory")
            .arg(&sockets)
            .stderr(Stdio::null())
            .spawn()
            .map_err(Trouble::during(binary.display()))?;
        let channel = runtime.block_on(connect(&sockets)).inspect_err(|_| end(&mut server))?;
        Ok(Self {
            binary,
            folder,
            vmi: vmi.to_owned(),
            server,
            client: CallbacksClient::new(channel),
            runtime,
        })
    }

    /// One pass over a domain.
    pub fn pass(&mut self, domain: &str) -> Outcome<String> {
        let filtered = self.filter(domain)?;
        let asked = OnDefineDomainParams {
            domain_xml: domain.into(),
            vmi: self.vmi.clone().into(),
        };
        let served = self.runtime.block_on(self.client.on_define_domain(asked));
        let served = served.map_err(|status| Trouble::new(format_args!("the server refused: {}", status.message())))?;
        if served.into_inner().domain_xml != filtered.as_bytes() {
            return Err(Trouble::new(
                "server and filter give different bytes for the same domain",
            ));
        }
        Ok(filtered)
    }

    fn filter(&self, domain: &str) -> Outcome<String> {
        let run = || -> std::io::Result<_> {
            let mut filter = Command::new(&self.binary)
                .args(["filter", "--vmi"])
                .arg(self.folder.path().join("vmi.json"))
                .arg("--osk-file")
                .arg(self.folder.path().join("key"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(mut input) = filter.stdin.take() {
                input.write_all(domain.as_bytes())?;
            }
            filter.wait_with_output()
        };
        let done = run().map_err(Trouble::during("the filter"))?;
        if !done.status.success() {
            return Err(Trouble::new(String::from_utf8_lossy(&done.stderr)));
        }
        String::from_utf8(done.stdout).map_err(Trouble::during("the filter's answer"))
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        end(&mut self.server);
    }
}

fn end(server: &mut Child) {
    // it may be gone already: then there is nothing to end
    let _ = server.kill();
    let _ = server.wait();
}

/// Looks for the socket as the launcher does, and connects.
async fn connect(sockets: &Path) -> Outcome<Channel> {
    let began = Instant::now();
    loop {
        let listed = fs::read_dir(sockets).map_err(Trouble::during("the folder of the socket"))?;
        if let Some(Ok(entry)) = listed.into_iter().next()
            && let Ok(channel) = dial(entry.path()).await
        {
            return Ok(channel);
        }
        if began.elapsed() > PATIENCE {
            return Err(Trouble::new("the hook's server opens no socket"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn dial(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://hook.invalid")
        .connect_with_connector(connector)
        .await
}
