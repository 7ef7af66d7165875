//! QEMU on libvirt's command line. Invariant: the command line is libvirt's, stopped (`-S`) as libvirt has it; changed
//! are only the network's host ends, which libvirt hands over as open files that nobody else has.

use serde_json::{Value, json};

use crate::{
    Outcome, Trouble,
    arguments::Arguments,
    qmp::Qmp,
    session::{INSIDE, Session},
};

/// Where libvirt keeps its state; the session's folder `libvirt`.
const STATE: &str = "/var/lib/libvirt/";

/// A QEMU that runs and answers.
pub struct Machine<'a> {
    session: &'a mut Session,
    qmp: Qmp,
}

impl<'a> Machine<'a> {
    /// Starts one; a QEMU that refuses its arguments is a failure with its words.
    pub fn start(session: &'a mut Session, arguments: &Arguments) -> Outcome<Self> {
        for demanded in ["-S", "tcg"] {
            if !arguments.words().iter().any(|word| word == demanded) {
                return Err(Trouble::new(format_args!("libvirt's command line has no {demanded}")));
            }
        }
        let state = state_folder(arguments)?;
        // a machine that ran before leaves its socket and its exit code
        session.demand(&format!(
            "rm -rf {STATE}{state} {INSIDE}/qemu.code; mkdir -p {STATE}{state} && \
             head -c 32 /dev/urandom >{STATE}{state}/master-key.aes"
        ))?;
        session.write(
            "qemu.sh",
            format!("exec env {}\n", arguments.map(|word| host_end(word)).line()),
        )?;
        session.demand(&format!(
            "(sh {INSIDE}/qemu.sh >{INSIDE}/qemu.log 2>&1; echo $? >{INSIDE}/qemu.code) &"
        ))?;
        let folder = session.path("libvirt").join(&state);
        let qmp = session.until("QEMU answers", |session| {
            if session.path("qemu.code").exists() {
                let said = session.read("qemu.log")?;
                return Err(Trouble::new(format_args!(
                    "QEMU does not accept its command line: {said}"
                )));
            }
            Qmp::connect(&folder, "monitor.sock")
        })?;
        Ok(Self { session, qmp })
    }

    /// What a QMP command returns.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Outcome<Value> {
        self.qmp.ask(command, arguments)
    }

    /// Lets it run.
    pub fn go(&mut self) -> Outcome {
        self.ask("cont", json!({})).map(drop)
    }

    /// Waits until a file of the session's folder holds one of these texts, and gives all of the file.
    pub fn until_said(&mut self, file: &str, texts: &[&str]) -> Outcome<String> {
        let until = format!("{file} says one of {texts:?}");
        self.session.until(&until, |session| {
            let said = session.read(file)?;
            Ok(texts.iter().any(|text| said.contains(text)).then_some(said))
        })
    }

    /// Ends it.
    pub fn quit(mut self) -> Outcome {
        self.ask("quit", json!({}))?;
        self.session.until("QEMU ends", |session| {
            Ok(session.path("qemu.code").exists().then_some(()))
        })
    }

    /// The boot order as the firmware gets it: QEMU's file `bootorder`, by way of the firmware's own ports (QEMU,
    /// docs/specs/fw_cfg: selector at 0x510, data at 0x511, the directory is item 0x19).
    pub fn boot_order(&mut self) -> Outcome<Vec<String>> {
        self.port("o /h 0x510 0x19")?;
        let files = self
            .bytes(4)?
            .iter()
            .fold(0, |count, byte| count << 8 | u32::from(*byte));
        for _ in 0..files {
            // size, item, reserved, all big-endian, and a name of 56 bytes
            let entry = self.bytes(64)?;
            let name = entry[8..].split(|byte| *byte == 0).next().unwrap_or_default();
            if name == b"bootorder" {
                let size = u32::from_be_bytes([entry[0], entry[1], entry[2], entry[3]]);
                self.port(&format!("o /h 0x510 {:#x}", u16::from_be_bytes([entry[4], entry[5]])))?;
                let order = String::from_utf8_lossy(&self.bytes(size)?).into_owned();
                let lines = order.trim_end_matches('\0').lines();
                return Ok(lines.map(str::to_owned).collect());
            }
        }
        Err(Trouble::new("QEMU tells the firmware no boot order"))
    }

    fn bytes(&mut self, count: u32) -> Outcome<Vec<u8>> {
        (0..count)
            .map(|_| {
                let said = self.port("i /bx 0x511")?;
                let digits = said.trim().rsplit("0x").next().unwrap_or_default();
                u8::from_str_radix(digits, 16).map_err(Trouble::during(said.trim()))
            })
            .collect()
    }

    /// Reads or writes a port, as the human monitor has it.
    fn port(&mut self, line: &str) -> Outcome<String> {
        let said = self.ask("human-monitor-command", json!({"command-line": line}))?;
        Ok(said.as_str().unwrap_or_default().to_owned())
    }

    /// Paths of the devices of that type in QEMU's own tree.
    pub fn devices(&mut self, kind: &str) -> Outcome<Vec<String>> {
        let kind = format!("child<{kind}>");
        let mut found = Vec::new();
        for folder in ["/machine/unattached", "/machine/peripheral", "/machine/peripheral-anon"] {
            let listed = self.ask("qom-list", json!({"path": folder}))?;
            let children = listed.as_array().into_iter().flatten();
            let of_kind = children.filter(|child| child["type"] == *kind);
            found.extend(of_kind.filter_map(|child| Some(format!("{folder}/{}", child["name"].as_str()?))));
        }
        Ok(found)
    }
}

/// The folder of the machine's monitor socket, below [`STATE`].
fn state_folder(arguments: &Arguments) -> Outcome<String> {
    let monitor = arguments.values("-chardev").into_iter().find_map(|value| {
        let path = value.strip_prefix("socket,id=charmonitor,path=")?.split(',').next()?;
        path.strip_prefix(STATE)?.strip_suffix("/monitor.sock")
    });
    monitor
        .map(str::to_owned)
        .ok_or_else(|| Trouble::new("libvirt's command line has no monitor socket"))
}

fn host_end(word: &str) -> String {
    match serde_json::from_str::<Value>(word) {
        Ok(mut end) if end["type"] == "tap" => {
            end["type"] = json!("user");
            if let Some(end) = end.as_object_mut() {
                end.retain(|name, _| ["type", "id"].contains(&name.as_str()));
            }
            end.to_string()
        }
        _ => word.to_owned(),
    }
}
