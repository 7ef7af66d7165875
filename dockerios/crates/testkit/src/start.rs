//! Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
//!
//! Unlike a real cluster: etcd does not fsync, controllers do not limit their requests, no kubelet runs. Neither
//! changes what the API answers. Authorisation is RBAC, admission plugins are Kubernetes' default set, the
//! aggregation layer is on.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::FutureExt as _;
use futures::future::select_all;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use rustix::fs::{FlockOperation, flock};

use crate::access::{Access, client_from};
use crate::assets::Assets;
use crate::kubeconfig::{self, Identity};
use crate::pki::{AGGREGATOR, Pki};
use crate::plane::{ControlPlane, KUBECONFIG, Options};
use crate::process::Proc;
use crate::{expect, run};

/// How long a component may take on a busy machine of two cores.
const READY: Duration = Duration::from_secs(180);
/// Between two questions to an API server that does not answer yet, and so has no watch to offer.
const ASK: Duration = Duration::from_millis(50);
/// How often other ports are tried when another process took one.
const TRIES: usize = 5;
/// What Go says of a port that is taken.
const TAKEN: &str = "address already in use";

/// The cluster of a kubeconfig file.
pub(crate) async fn existing(admin: &Path) -> Result<ControlPlane> {
    let client = client_from(admin)
        .await
        .with_context(|| format!("{KUBECONFIG} is set"))?;
    let version = client.apiserver_version().await;
    version.with_context(|| format!("{KUBECONFIG} is {}, whose cluster does not answer", admin.display()))?;
    Ok(ControlPlane {
        access: Access {
            admin: admin.to_owned(),
            pki: None,
        },
        parts: Vec::new(),
        dir: run::current()?.new_dir("existing")?,
        temporary: true,
        _lock: None,
    })
}

/// A control plane of our own.
pub(crate) async fn own(options: Options) -> Result<ControlPlane> {
    let assets = Assets::find()?;
    let (dir, lock) = match &options.dir {
        Some(dir) => (dir.clone(), Some(take(dir)?)),
        None => (run::current()?.new_dir("plane")?, None),
    };
    // components run in a folder of their own
    let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
    let start = Start {
        pki: Pki::create(&dir.join("pki"))?,
        temporary: options.dir.is_none(),
        assets,
        dir,
        options,
    };
    let admin = start.dir.join("admin.kubeconfig");
    let (server, mut parts) = start.api_server(&admin).await?;
    start.controllers(&server, &mut parts)?;
    start.first_account(&admin, &parts).await?;
    // the API server's clients end before it, and it before etcd
    parts.reverse();
    let Start {
        pki, dir, temporary, ..
    } = start;
    Ok(ControlPlane {
        access: Access { admin, pki: Some(pki) },
        parts,
        dir,
        temporary,
        _lock: lock,
    })
}

/// Takes a folder for one control plane.
fn take(dir: &Path) -> Result<File> {
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let path = dir.join("plane.lock");
    let lock = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!(
            "a control plane already runs in {}: end it first, or name another folder",
            dir.display()
        );
    }
    Ok(lock)
}

struct Start {
    options: Options,
    assets: Assets,
    dir: PathBuf,
    temporary: bool,
    pki: Pki,
}

impl Start {
    /// etcd and an API server that is ready, on ports that were free.
    async fn api_server(&self, admin: &Path) -> Result<(String, Vec<Proc>)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut parts = Vec::new();
            match self.try_api_server(admin, &mut parts).await {
                Ok(server) => return Ok((server, parts)),
                Err(_) if tries < TRIES && parts.iter().any(|part| part.log().contains(TAKEN)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_api_server(&self, admin: &Path, parts: &mut Vec<Proc>) -> Result<String> {
        let [client, peer, secure] = free_ports()?;
        let etcd = format!("http://127.0.0.1:{client}");
        parts.push(self.etcd(&etcd, &format!("http://127.0.0.1:{peer}"))?);
        let server = format!("https://127.0.0.1:{secure}");
        let masters = self.pki.client("dockerios-testkit-admin", &["system:masters"])?;
        let ca = std::fs::read(&self.pki.ca.cert).context("read the CA's certificate")?;
        kubeconfig::write(admin, &server, Some(&ca), &Identity::Certificate(&masters))?;
        parts.push(self.part(
            "kube-apiserver",
            &self.assets.path("kube-apiserver"),
            self.api_server_flags(&etcd, secure),
        )?);
        let client = client_from(admin).await?;
        let ready = async {
            loop {
                let request = http::Request::get("/readyz").body(Vec::new())?;
                match client.request_text(request).await {
                    Ok(_) => return Ok(()),
                    Err(_) => tokio::time::sleep(ASK).await,
                }
            }
        };
        unless_one_ends("kube-apiserver's /readyz", parts, ready).await?;
        Ok(server)
    }

    fn etcd(&self, client: &str, peer: &str) -> Result<Proc> {
        let data = self.dir.join("etcd");
        if data.exists() {
            std::fs::remove_dir_all(&data).with_context(|| format!("empty {}", data.display()))?;
        }
        let flags = vec![
            flag("data-dir", data.display()),
            flag("listen-client-urls", client),
            flag("advertise-client-urls", client),
            flag("listen-peer-urls", peer),
            flag("initial-advertise-peer-urls", peer),
            flag("initial-cluster", format!("default={peer}")),
            flag("unsafe-no-fsync", true),
            flag("log-level", "warn"),
        ];
        self.part("etcd", self.assets.etcd(), flags)
    }

    fn api_server_flags(&self, etcd: &str, port: u16) -> Vec<String> {
        let pki = &self.pki;
        let mut flags = vec![
            flag("etcd-servers", etcd),
            flag("bind-address", "127.0.0.1"),
            // otherwise it looks for a default route, which a machine without a network lacks
            flag("advertise-address", "127.0.0.1"),
            flag("secure-port", port),
            // no Endpoints object may hold a loopback address, so it must not write its own
            flag("endpoint-reconciler-type", "none"),
            flag("service-cluster-ip-range", "10.96.0.0/16"),
            flag("authorization-mode", "RBAC"),
            flag("allow-privileged", true),
            flag("tls-cert-file", pki.api_server.cert.display()),
            flag("tls-private-key-file", pki.api_server.key.display()),
            flag("client-ca-file", pki.ca.cert.display()),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-account-key-file", pki.tokens.cert.display()),
            flag("service-account-signing-key-file", pki.tokens.key.display()),
            flag("requestheader-client-ca-file", pki.ca.cert.display()),
            flag("requestheader-allowed-names", AGGREGATOR),
            flag("requestheader-username-headers", "X-Remote-User"),
            flag("requestheader-group-headers", "X-Remote-Group"),
            flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
            flag("proxy-client-cert-file", pki.aggregator.cert.display()),
            flag("proxy-client-key-file", pki.aggregator.key.display()),
        ];
        if !self.options.runtime_config.is_empty() {
            flags.push(flag("runtime-config", self.options.runtime_config.join(",")));
        }
        flags.extend(self.gates());
        flags.extend(self.options.api_server_args.iter().cloned());
        flags
    }

    fn controllers(&self, server: &str, parts: &mut Vec<Proc>) -> Result<()> {
        let pki = &self.pki;
        if self.options.controller_manager {
            let mut flags = self.controller_flags("kube-controller-manager", server)?;
            flags.extend([
                flag("use-service-account-credentials", true),
                flag("service-account-private-key-file", pki.tokens.key.display()),
                flag("root-ca-file", pki.ca.cert.display()),
                flag("cluster-signing-cert-file", pki.ca.cert.display()),
                flag("cluster-signing-key-file", pki.ca.key.display()),
            ]);
            let program = self.assets.path("kube-controller-manager");
            parts.push(self.part("kube-controller-manager", &program, flags)?);
        }
        if self.options.scheduler {
            let flags = self.controller_flags("kube-scheduler", server)?;
            parts.push(self.part("kube-scheduler", &self.assets.path("kube-scheduler"), flags)?);
        }
        Ok(())
    }

    /// What both controllers are given. Nobody asks for their health, so they serve nothing.
    fn controller_flags(&self, name: &str, server: &str) -> Result<Vec<String>> {
        let path = self.dir.join(format!("{name}.kubeconfig"));
        let pair = self.pki.client(&format!("system:{name}"), &[])?;
        let ca = std::fs::read(&self.pki.ca.cert).context("read the CA's certificate")?;
        kubeconfig::write(&path, server, Some(&ca), &Identity::Certificate(&pair))?;
        let mut flags = vec![
            flag("kubeconfig", path.display()),
            flag("leader-elect", false),
            flag("kube-api-qps", 500),
            flag("kube-api-burst", 1000),
            flag("secure-port", 0),
        ];
        flags.extend(self.gates());
        Ok(flags)
    }

    fn gates(&self) -> Option<String> {
        let gates: Vec<String> = self
            .options
            .feature_gates
            .iter()
            .map(|(name, on)| format!("{name}={on}"))
            .collect();
        (!gates.is_empty()).then(|| flag("feature-gates", gates.join(",")))
    }

    fn part(&self, name: &str, program: &Path, flags: Vec<String>) -> Result<Proc> {
        let log = self.dir.join(format!("{name}.log"));
        // an earlier start's failure would be taken for this one's
        if log.exists() {
            std::fs::remove_file(&log).with_context(|| format!("remove {}", log.display()))?;
        }
        let mut command = Command::new(program);
        command.args(flags).current_dir(&self.dir);
        Proc::spawn(name, command, &log)
    }

    /// The controllers work once the first of them has done so.
    async fn first_account(&self, admin: &Path, parts: &[Proc]) -> Result<()> {
        if !self.options.controller_manager {
            return Ok(());
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(client_from(admin).await?, "default");
        let made = expect::until_within(accounts, "default", "the first ServiceAccount", READY, |_| true);
        unless_one_ends("the first ServiceAccount", parts, made.map(|made| made.map(drop))).await
    }
}

/// What is `wanted`, unless a component ends first or the time is over.
async fn unless_one_ends(what: &str, parts: &[Proc], wanted: impl Future<Output = Result<()>>) -> Result<()> {
    let ends = select_all(parts.iter().map(|part| Box::pin(part.wait(READY))));
    tokio::select! {
        done = wanted => done,
        (_, index, _) = ends => {
            let part = &parts[index];
            match part.exit() {
                Some(status) => bail!("{} ended ({status}); its log ends:\n{}", part.name(), part.tail(25)),
                None => {
                    let logs: String = parts.iter().map(|p| format!("{}:\n{}", p.name(), p.tail(12))).collect();
                    bail!("no sign of {what} after {READY:.0?}; the logs end:\n{logs}")
                }
            }
        }
    }
}

/// Three ports that are free now. All are held until the last is found, so that they differ.
fn free_ports() -> Result<[u16; 3]> {
    let find = || TcpListener::bind("127.0.0.1:0").context("find a free port on 127.0.0.1");
    let held = [find()?, find()?, find()?];
    let port = |held: &TcpListener| Ok::<u16, anyhow::Error>(held.local_addr()?.port());
    Ok([port(&held[0])?, port(&held[1])?, port(&held[2])?])
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}
