//! A collector over real TLS, machines on a desk instead of in a cluster, and the agent's binary.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use dockerios_api::machine::macos_machine::Guest;
use dockerios_collector::{
    Collector, Counts, Expected, Known, Later, Limits, Look, Machines, NotRecorded, Options, Recorded, ReportKey,
};
use dockerios_wire::{Order, Reply};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    pki_types::PrivateKeyDer,
    sign::{CertifiedKey, SingleCertAndKey},
};
use tempfile::TempDir;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

pub const ONE: &str = "6f0c1d1e-0000-4000-8000-000000000001";
pub const TWO: &str = "6f0c1d1e-0000-4000-8000-000000000002";
const DEADLINE: Duration = Duration::from_secs(25);

/// A machine as the desk has it.
pub struct Entry {
    pub order: Reply,
    pub identity: Option<Expected>,
    pub records: Vec<Guest>,
}

/// Machines without a cluster.
pub struct Desk {
    entries: Mutex<HashMap<String, Entry>>,
    pub broken: Mutex<Option<&'static str>>,
    bell: watch::Sender<()>,
}

impl Desk {
    pub fn with(uids: &[&str]) -> Arc<Self> {
        let desk = Self {
            entries: Mutex::default(),
            broken: Mutex::default(),
            bell: watch::channel(()).0,
        };
        for uid in uids {
            desk.entries().insert(
                (*uid).to_owned(),
                Entry {
                    order: run(),
                    identity: None,
                    records: Vec::new(),
                },
            );
        }
        Arc::new(desk)
    }

    pub fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().expect("not poisoned")
    }

    pub fn change(&self, uid: &str, change: impl FnOnce(&mut Entry)) {
        change(self.entries().get_mut(uid).expect("a machine"));
        self.bell.send_replace(());
    }

    pub fn remove(&self, uid: &str) {
        self.entries().remove(uid);
        self.bell.send_replace(());
    }

    pub fn break_down(&self, how: Option<&'static str>) {
        *self.broken.lock().expect("not poisoned") = how;
    }

    pub fn records(&self, uid: &str) -> Vec<Guest> {
        self.entries().get(uid).map(|e| e.records.clone()).unwrap_or_default()
    }

    /// Waits until the records of a machine are as wanted.
    pub async fn until(&self, uid: &str, what: &str, wanted: impl Fn(&[Guest]) -> bool) -> Vec<Guest> {
        let mut bell = self.bell.subscribe();
        let found = async {
            loop {
                let records = self.records(uid);
                if wanted(&records) {
                    return records;
                }
                bell.changed().await.expect("the desk stands");
            }
        };
        let Ok(found) = tokio::time::timeout(DEADLINE, found).await else {
            panic!("never came: {what}; records: {:#?}", self.records(uid));
        };
        found
    }

    /// Waits until the newest record is as wanted.
    pub async fn latest(&self, uid: &str, what: &str, wanted: impl Fn(&Guest) -> bool) -> Guest {
        let all = self
            .until(uid, what, |records| records.last().is_some_and(&wanted))
            .await;
        all.last().expect("just seen").clone()
    }

    fn is(&self, how: &str) -> bool {
        *self.broken.lock().expect("not poisoned") == Some(how)
    }
}

pub fn run() -> Reply {
    Reply {
        order: Order::Run,
        revision: "run".into(),
    }
}

pub fn shutdown(revision: &str) -> Reply {
    Reply {
        order: Order::Shutdown,
        revision: revision.into(),
    }
}

impl Machines for Desk {
    fn look(&self, uid: &str) -> Look {
        if self.is("unreadable") {
            return Look::Unreadable;
        }
        match self.entries().get(uid) {
            None => Look::Unknown,
            Some(entry) => Look::Known(Box::new(Known {
                namespace: "team".into(),
                name: "mac".into(),
                order: entry.order.clone(),
                identity: entry.identity.clone(),
                recorded: entry.records.last().cloned(),
            })),
        }
    }

    fn uids(&self) -> Vec<String> {
        self.entries().keys().cloned().collect()
    }

    fn changed(&self, _: &str) -> watch::Receiver<()> {
        self.bell.subscribe()
    }

    fn record<'a>(&'a self, uid: &'a str, _: &'a Known, guest: Guest) -> Later<'a, Result<Recorded, NotRecorded>> {
        Box::pin(async move {
            if self.is("unwritable") {
                return Err(NotRecorded("the desk is locked".into()));
            }
            let written = match self.entries().get_mut(uid) {
                None => Recorded::Gone,
                Some(entry) => {
                    entry.records.push(guest);
                    Recorded::Written
                }
            };
            self.bell.send_replace(());
            Ok(written)
        })
    }
}

/// An authority and one certificate under it.
pub struct Pki {
    pub ca: String,
    shown: Arc<CertifiedKey>,
}

impl Pki {
    pub fn new(name: &str, leaf: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("an authority").pem();
        let issuer = Issuer::new(params, key);
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        leaf(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = rustls::crypto::ring::default_provider();
        let shown = CertifiedKey::from_der(vec![certificate.der().clone()], private, &provider).expect("a pair");
        Self {
            ca,
            shown: Arc::new(shown),
        }
    }

    pub fn plain() -> Self {
        Self::new("127.0.0.1", |_| {})
    }
}

/// A collector that serves until it is stopped or dropped.
pub struct Serving {
    pub address: SocketAddr,
    pub counts: Arc<Counts>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Serving {
    pub async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("it ends")
            .expect("it ends well");
    }
}

pub fn key() -> ReportKey {
    ReportKey::new([7; 32])
}

pub async fn serve(pki: &Pki, desk: &Arc<Desk>, port: u16, limits: Limits) -> Serving {
    let options = || Options {
        listen: SocketAddr::from(([127, 0, 0, 1], port)),
        tls: Arc::new(SingleCertAndKey::from(Arc::clone(&pki.shown))),
        key: key(),
        machines: Arc::clone(desk) as Arc<dyn Machines>,
        limits,
    };
    let collector = Collector::bind(options()).await.expect("a free port");
    let (address, counts) = (collector.address(), collector.counts());
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(collector.run(async {
        let _ = stopped.await;
    }));
    Serving {
        address,
        counts,
        stop: Some(stop),
        task,
    }
}

/// Answers are held longer than any test waits: what arrives in time was not waiting for the end of a poll.
pub fn long_held() -> Limits {
    Limits {
        hold: Duration::from_secs(30),
        ..Limits::default()
    }
}

/// A guest: its config volume, what it looks like, and the agent in it.
pub struct GuestSystem {
    pub home: TempDir,
    agent: Option<Child>,
}

impl GuestSystem {
    pub fn new(uid: &str, token_of: &str, address: SocketAddr, ca: &str) -> Self {
        let guest = Self {
            home: TempDir::new().expect("a directory"),
            agent: None,
        };
        for directory in ["volume", "probe"] {
            fs::create_dir(guest.path(directory)).expect("a directory");
        }
        guest.put("volume/machine-id", uid);
        guest.put("volume/collector", &format!("https://{address}\n"));
        guest.put("volume/token", &key().token(token_of));
        guest.put("volume/ca.crt", ca);
        guest.script("shutdown", "echo down >> \"$(dirname \"$0\")/downs\"");
        guest
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Whole files only: what is read in the middle of a write would be another test.
    pub fn put(&self, name: &str, text: &str) {
        let beside = self.home.path().join(".new");
        fs::write(&beside, text).expect("a file");
        fs::rename(beside, self.path(name)).expect("a file");
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn script(&self, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.put(name, &format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("a script");
    }

    pub fn boot(&mut self, more: &[&str]) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("a log");
        let agent = Command::new(env!("CARGO_BIN_EXE_dockerios-guest"))
            .env("RUST_LOG", "debug")
            .arg("--config-dir")
            .arg(self.path("volume"))
            .arg("--probe-dir")
            .arg(self.path("probe"))
            .arg("--ready-dir")
            .arg(self.path("ready.d"))
            .arg("--shutdown-command")
            .arg(self.path("shutdown"))
            .arg("--run-note")
            .arg(self.path("run.json"))
            .args(["--look-milliseconds", "50", "--check-milliseconds", "100"])
            .args(["--ready-without-checks", "never"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the agent starts");
        self.agent = Some(agent);
    }

    /// The system ends the agent in order, or is cut off under it.
    pub fn end(&mut self, in_order: bool) {
        let signal = if in_order { "-TERM" } else { "-KILL" };
        let pid = self.agent().id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(sent.success());
        self.agent().wait().expect("it ends");
    }

    pub fn agent(&mut self) -> &mut Child {
        self.agent.as_mut().expect("booted")
    }

    /// Waits until the agent's log, or another file, holds `words`.
    pub async fn until(&self, name: &str, words: &str) -> String {
        let end = tokio::time::Instant::now() + DEADLINE;
        loop {
            let text = self.text(name);
            if text.contains(words) {
                return text;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "never said `{words}`:\n{text}\nlog:\n{}",
                self.text("log")
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for GuestSystem {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}
