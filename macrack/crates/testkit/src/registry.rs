//! A real OCI registry, on loopback, with its blobs in a folder of the run or of the caller.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::child::{Child, Program};
use crate::run;

/// A ready registry program, called like distribution's own.
pub const PROGRAM: &str = "MACRACK_TEST_REGISTRY";

const PATIENCE: Duration = Duration::from_secs(30);
const LISTENS: &str = "listening on ";

/// What a registry is started with.
#[derive(Debug, Clone, Default)]
pub struct RegistryOptions {
    /// Where its blobs lie; a folder of the run's when not said.
    pub blobs: Option<PathBuf>,
    /// Wants bearer tokens.
    pub tokens: Option<Tokens>,
}

/// Whose tokens a registry takes.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// URL of the token server.
    pub realm: String,
    /// Issuer in the tokens.
    pub issuer: String,
    /// What the tokens must be for.
    pub service: String,
    /// File with the certificate whose key signs them, PEM.
    pub certificate: PathBuf,
}

/// A registry that runs.
pub struct Registry {
    /// Ends with this.
    _child: Child,
    address: String,
}

impl Registry {
    /// Starts one, and waits until it listens.
    ///
    /// # Errors
    /// When its program is not there and cannot be built, or it does not come up.
    pub async fn start(options: RegistryOptions) -> Result<Registry> {
        let program = program()?;
        let run = run::current()?;
        let mark = run.child_mark();
        let dir = run.dir().join(format!("registry-{}", mark.rsplit('.').next().unwrap_or("0")));
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let blobs = options.blobs.clone().unwrap_or_else(|| dir.join("blobs"));
        let config = dir.join("config.yml");
        std::fs::write(&config, written(&blobs, options.tokens.as_ref()))?;
        let child = Program::new(program)
            // it would look for somebody who collects traces
            .env("OTEL_TRACES_EXPORTER", "none")
            .args(["serve"])
            .arg(&config)
            .start("registry")?;
        child.until_logged(LISTENS, PATIENCE).await?;
        let log = child.log();
        let address = log.split_once(LISTENS).map(|(_, rest)| {
            rest.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ':')).collect::<String>()
        });
        match address {
            Some(address) if address.starts_with("127.0.0.1:") => Ok(Registry { _child: child, address }),
            other => bail!("the registry does not say where it listens ({other:?}):\n{log}"),
        }
    }

    /// `127.0.0.1:<port>`, the registry's name in references.
    pub fn address(&self) -> &str {
        &self.address
    }
}

fn written(blobs: &Path, tokens: Option<&Tokens>) -> String {
    let auth = tokens.map(|tokens| {
        format!(
            "auth:\n  token:\n    realm: {}\n    service: {}\n    issuer: {}\n    rootcertbundle: {}\n",
            tokens.realm,
            tokens.service,
            tokens.issuer,
            tokens.certificate.display()
        )
    });
    format!(
        "version: 0.1\nlog:\n  level: info\n  accesslog:\n    disabled: false\nstorage:\n  filesystem:\n    rootdirectory: {}\n    \
         maxthreads: 100\n  delete:\n    enabled: true\nhttp:\n  addr: 127.0.0.1:0\n  secret: for-tests-only\n{}",
        blobs.display(),
        auth.unwrap_or_default()
    )
}

/// The registry's program: `MACRACK_TEST_REGISTRY` when set, else `ci/registry/bin/registry`, built when it is out of
/// date.
fn program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM).filter(|program| !program.is_empty()) {
        return Ok(program.into());
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/registry");
    let script = home.join("build.sh");
    let status = Command::new("bash").arg(&script).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("run {}; or set {PROGRAM}", script.display()))?;
    if !status.success() {
        bail!("{} failed ({status}), its output is above; or set {PROGRAM}", script.display());
    }
    Ok(home.join("bin/registry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_registry_says_where_it_listens_and_answers_there() {
        let registry = Registry::start(RegistryOptions::default()).await.unwrap();
        let mut stream = tokio::net::TcpStream::connect(registry.address()).await.unwrap();
        let request = format!("GET /v2/ HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", registry.address());
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
