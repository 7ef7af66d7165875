//! libvirtd in a session. Invariant: what it says is handed on as it is, a refusal with libvirt's own words.

use crate::{
    Outcome, Trouble,
    arguments::Arguments,
    root,
    session::{Done, INSIDE, Session},
};

/// No privileges are dropped and nothing is confined: the namespace does both. Logs go to files, without virtlogd.
const SETTINGS: &str = r#"user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
stdio_handler = "file"
"#;

/// A libvirtd that answers.
pub struct Libvirt {
    /// The session that it runs in.
    pub session: Session,
}

impl Libvirt {
    /// Starts one, of a version that knows NVMe disks.
    pub fn start() -> Outcome<Self> {
        let mut session = Session::start()?;
        root::demand_libvirt(&session.demand("libvirtd --version")?)?;
        session.write("qemu.conf", SETTINGS)?;
        session.demand(&format!(
            "cp {INSIDE}/qemu.conf /etc/libvirt/ && mkdir -p /run/libvirt && (libvirtd >{INSIDE}/libvirtd.log 2>&1 &)"
        ))?;
        session.until("libvirtd answers", |session| {
            let done = session.run("virsh --connect qemu:///system version")?;
            Ok((done.code == 0).then_some(()))
        })?;
        Ok(Self { session })
    }

    /// Hands a domain to a virsh command that reads it from a file, named `%` in `command`.
    fn virsh(&mut self, command: &str, domain: &str) -> Outcome<Done> {
        self.session.write("domain.xml", domain)?;
        let command = command.replace('%', &format!("{INSIDE}/domain.xml"));
        self.session.run(&format!("virsh --connect qemu:///system {command}"))
    }

    fn accepted(what: &str, done: Done) -> Outcome<String> {
        if done.code == 0 {
            return Ok(done.out);
        }
        Err(Trouble::new(format_args!("{what}: {}", done.err.trim())))
    }

    /// Defines the domain, held against libvirt's schema, and gives what libvirt reads back of it.
    pub fn define(&mut self, domain: &str) -> Outcome<String> {
        let done = self.virsh("define --validate %", domain)?;
        Self::accepted("libvirt does not define the domain", done)?;
        let name = name_of(domain)?;
        let done = self.virsh(&format!("dumpxml --inactive --security-info {name}"), domain)?;
        Self::accepted("libvirt does not read the domain back", done)
    }

    /// The QEMU command line of the domain.
    pub fn command_line(&mut self, domain: &str) -> Outcome<Arguments> {
        let done = self.virsh("domxml-to-native qemu-argv --xml %", domain)?;
        let line = Self::accepted("libvirt makes no command line of the domain", done)?;
        Arguments::parse(&line)
    }
}

fn name_of(domain: &str) -> Outcome<&str> {
    let name = domain
        .split_once("<name>")
        .and_then(|(_, rest)| rest.split_once("</name>"));
    name.map(|(name, _)| name)
        .ok_or_else(|| Trouble::new("the domain has no name"))
}
