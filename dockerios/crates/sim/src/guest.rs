//! What happens inside a machine that runs: the firmware, the agent, the login window, a user's session.
//!
//! Invariant: the agent is the real program, started with a configuration directory made of the machine's config
//! Secret, and it sees the guest through a directory that is written here. Its shutdown command says a line into one
//! FIFO, which ends the domain. What it keeps is kept as long as the system disk is. Agents die with the simulator; one
//! that is restarted starts them again.

use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use dockerios_kubevirt::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    time::Instant,
};

use crate::{child::dies_with_us, faults::Fault, hook, world::World};

/// How far a guest has come. The words are the agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Firmware, OpenCore's picker, the kernel: nobody in the guest can tell.
    Booting,
    /// The agent runs.
    AgentStarting,
    /// The login window shows.
    LoginWindow,
    /// A user is logged in.
    UserSession,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Stage {
    fn named(word: &str) -> Self {
        match word {
            "AgentStarting" => Self::AgentStarting,
            "LoginWindow" => Self::LoginWindow,
            "UserSession" | "Ready" => Self::UserSession,
            _ => Self::Booting,
        }
    }
}

/// Path of the FIFO that shutdown commands write to.
pub(crate) fn fifo(root: &Path) -> PathBuf {
    root.join("poweroff")
}

/// Makes the FIFO and ends the domains that are named in it.
pub(crate) async fn listen(world: Arc<World>) -> Result<()> {
    let path = fifo(&world.options.dir);
    // one of a simulator before this one
    let _ = fs::remove_file(&path);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .with_context(|| format!("{}", path.display()))?;
    // held open for writing too, so that it never ends
    let pipe = tokio::net::unix::pipe::OpenOptions::new()
        .read_write(true)
        .open_receiver(&path)?;
    let mut lines = BufReader::new(pipe).lines();
    while let Some(uid) = lines.next_line().await? {
        world.domains.power_off(uid.trim());
    }
    Ok(())
}

/// One guest.
pub(crate) struct Guest {
    world: Arc<World>,
    vmi: Arc<VirtualMachineInstance>,
    directory: PathBuf,
    agent: Option<Child>,
    stage: Stage,
    /// When it comes to the stage after that.
    due: Instant,
}

impl Guest {
    pub(crate) fn new(world: &Arc<World>, vmi: &Arc<VirtualMachineInstance>, adopted: bool) -> Self {
        let uid = vmi.uid().unwrap_or_default();
        let wait = if adopted {
            Duration::ZERO
        } else {
            world.options.timings.boot
        };
        Self {
            world: world.clone(),
            vmi: vmi.clone(),
            directory: hook::directory(&world.options.dir, &uid),
            agent: None,
            stage: Stage::Booting,
            due: Instant::now() + wait,
        }
    }

    /// Comes to the next stage when it is time; never again after the last one, or after the one it hangs at. Losing
    /// this future loses nothing but an agent that is being started.
    pub(crate) async fn next(&mut self) -> Stage {
        loop {
            tokio::time::sleep_until(self.due).await;
            let hangs = self
                .world
                .instance_fault(Fault::HangAt, &self.vmi)
                .map(|word| Stage::named(&word));
            if self.stage == Stage::UserSession || hangs.is_some_and(|stage| self.stage >= stage) {
                // a fault may be taken away again
                self.due = Instant::now() + Duration::from_millis(250);
                if self.stage == Stage::UserSession {
                    self.keep_agent().await;
                }
                continue;
            }
            let timings = &self.world.options.timings;
            let (stage, after) = match self.stage {
                Stage::Booting => (Stage::AgentStarting, timings.login),
                Stage::AgentStarting => (Stage::LoginWindow, timings.session),
                _ => (Stage::UserSession, Duration::ZERO),
            };
            if let Err(error) = self.show(stage).await {
                tracing::warn!("guest of {}: {error:#}", self.vmi.name_any());
                self.due = Instant::now() + Duration::from_millis(500);
                continue;
            }
            self.stage = stage;
            self.due = Instant::now() + after;
            return stage;
        }
    }

    /// An agent that is asked for again after having been taken away by a fault.
    async fn keep_agent(&mut self) {
        let silent = self.world.instance_fault(Fault::NoAgent, &self.vmi).is_some();
        if silent {
            self.agent = None;
        } else if self.agent.is_none()
            && let Err(error) = self.start().await
        {
            tracing::warn!("guest of {}: {error:#}", self.vmi.name_any());
        }
        let uid = self.vmi.uid().unwrap_or_default();
        self.world.domains.agent_runs(&uid, self.agent.is_some());
    }

    /// The system goes down in order: it asks what runs in it to end, and waits a little.
    pub(crate) async fn go_down(&mut self) {
        /// macOS kills a daemon that takes longer (ExitTimeOut of its launchd file).
        const PATIENCE: Duration = Duration::from_secs(5);
        let Some(mut agent) = self.agent.take() else { return };
        let pid = agent.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok()) {
            // one that does not end is killed when it is dropped
            let _ = tokio::time::timeout(PATIENCE, agent.wait()).await;
        }
    }

    async fn show(&mut self, stage: Stage) -> Result<()> {
        let probe = self.directory.join("probe");
        hook::private(&probe)?;
        // the agent reads at any time: a file is there whole or not at all
        let draft = probe.join(".stage");
        fs::write(&draft, stage.to_string())?;
        fs::rename(&draft, probe.join("stage"))?;
        let silent = self.world.instance_fault(Fault::NoAgent, &self.vmi).is_some();
        if self.agent.is_none() && !silent {
            self.start().await?;
        }
        let uid = self.vmi.uid().unwrap_or_default();
        self.world.domains.agent_runs(&uid, self.agent.is_some());
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let uid = self.vmi.uid().unwrap_or_default();
        let (config, probe) = (self.directory.join("config"), self.directory.join("probe"));
        hook::private(&config)?;
        hook::private(&probe)?;
        if !self.mount(&config).await? {
            return Ok(());
        }
        let firmware = self.vmi.spec.domain.firmware.clone().unwrap_or_default();
        let facts = [
            ("osVersion", Some("15.6".to_owned())),
            ("software", Some("Xcode 16.4".to_owned())),
            ("diskFree", Some((96_u64 << 30).to_string())),
            ("diskTotal", Some((200_u64 << 30).to_string())),
            ("serial", firmware.serial),
            ("systemUUID", firmware.uuid.map(|uuid| uuid.to_uppercase())),
            ("bootId", Some(uid.clone())),
        ];
        for (name, fact) in facts {
            let path = probe.join(name);
            if let Some(fact) = fact.filter(|_| !path.exists()) {
                fs::write(path, fact)?;
            }
        }
        let shutdown = self.directory.join("shutdown");
        let fifo = fifo(&self.world.options.dir);
        fs::write(&shutdown, format!("#!/bin/sh\necho {uid} > '{}'\n", fifo.display()))?;
        fs::set_permissions(&shutdown, fs::Permissions::from_mode(0o700))?;
        let program = &self.world.options.programs.guest;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("agent.log"))?;
        let mut command = tokio::process::Command::new(program);
        let agent = dies_with_us(&mut command)
            .arg("--config-dir")
            .arg(&config)
            .arg("--probe-dir")
            .arg(&probe)
            .arg("--ready-dir")
            .arg(self.directory.join("ready.d"))
            .arg("--shutdown-command")
            .arg(&shutdown)
            .arg("--run-note")
            .arg(self.disk().join("run.json"))
            .args(["--look-milliseconds", "50", "--check-milliseconds", "500"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("{}", program.display()))?;
        self.agent = Some(agent);
        Ok(())
    }

    /// What is on the system disk: it outlasts the instance, and whoever has the volume next finds it.
    fn disk(&self) -> PathBuf {
        let system = self.vmi.annotations().get("dockerios.io/system-disk");
        let volume = self.vmi.spec.volumes.iter().find(|volume| Some(&volume.name) == system);
        let claim = volume.and_then(|volume| {
            let made = volume.data_volume.as_ref().map(|made| &made.name);
            made.or(volume.persistent_volume_claim.as_ref().map(|claim| &claim.claim_name))
        });
        match claim {
            Some(claim) => {
                let namespace = self.vmi.namespace().unwrap_or_default();
                self.world.options.dir.join("disks").join(namespace).join(claim)
            }
            // lost with the instance
            None => self.directory.join("disk"),
        }
    }

    /// The config volume; `false` when the machine has none.
    async fn mount(&self, config: &Path) -> Result<bool> {
        let secrets = self.vmi.spec.volumes.iter().filter_map(|volume| volume.secret.as_ref());
        let Some(name) = secrets
            .filter(|secret| secret.volume_label.as_deref() == Some("DOCKERIOS"))
            .find_map(|secret| secret.secret_name.clone())
        else {
            return Ok(false);
        };
        let namespace = self.vmi.namespace().unwrap_or_default();
        let secret = self.world.api::<Secret>(&namespace).get(&name).await?;
        for (file, content) in secret.data.into_iter().flatten() {
            fs::write(config.join(file), content.0)?;
        }
        Ok(true)
    }
}
