//! QEMU's own interface (QEMU, docs/interop/qmp-spec). Invariant: every question is answered or a failure within
//! [`PATIENCE`]; events are passed over.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
};

use serde_json::{Value, json};

use crate::{Outcome, Trouble, session::PATIENCE};

/// A connection that has been greeted.
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects to the socket of that name in a folder; `None` while nobody answers there.
    pub fn connect(folder: &Path, name: &str) -> Outcome<Option<Self>> {
        // by way of the open folder: a path of its own may be longer than an address of a socket can be
        let Ok(folder) = File::open(folder) else {
            return Ok(None);
        };
        let Ok(stream) = UnixStream::connect(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd())) else {
            return Ok(None);
        };
        stream
            .set_read_timeout(Some(PATIENCE))
            .map_err(Trouble::during("QEMU's socket"))?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        // a QEMU that refuses its arguments listens first and hangs up then: its own words are worth more than that
        let greeted = qmp.message().and_then(|_| qmp.ask("qmp_capabilities", json!({})));
        Ok(greeted.is_ok().then_some(qmp))
    }

    /// What a command returns.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Outcome<Value> {
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .map_err(Trouble::during(command))?;
        loop {
            let mut message = self.message()?;
            if let Some(error) = message.get("error") {
                return Err(Trouble::new(format_args!("{command}: {error}")));
            }
            if message.get("return").is_some() {
                return Ok(message["return"].take());
            }
        }
    }

    fn message(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .map_err(Trouble::during("QEMU does not answer"))?;
        serde_json::from_str(&line).map_err(Trouble::during("QEMU hung up, or says what is no JSON"))
    }
}
