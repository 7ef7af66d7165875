//! A shell in the root. Invariant: the root itself is read-only and never written; what a session mounts is in its own
//! mount namespace and what it starts in its own PID namespace, so both are gone with it, however the test ends: the
//! shell ends when its standard input closes, or by force where it hangs in a command, and the namespace with the shell.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{Outcome, Trouble, root};

/// The session's folder as programs in the root see it.
pub const INSIDE: &str = "/mnt";

/// Longer than any single step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Mounts, then becomes the shell. `/dev` holds what libvirt and QEMU cannot do without, and no kvm.
const ENTER: &str = r#"
set -e
root=$1 work=$2
mount --bind "$root" "$root"
for folder in run tmp dev etc/libvirt var/log var/cache; do mount -t tmpfs none "$root/$folder"; done
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm" "$root/var/log/libvirt"
[ -e /dev/net/tun ] || {
  echo 'there is no /dev/net/tun, which libvirt opens for each network interface: modprobe tun' >&2
  exit 1
}
for device in null zero full random urandom net/tun; do
  : >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=0666 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t proc none "$root/proc"
mount -t sysfs -o ro none "$root/sys"
mount --bind "$work" "$root/mnt"
mount --bind "$work/libvirt" "$root/var/lib/libvirt"
mount -o remount,bind,ro "$root"
exec chroot "$root" /bin/sh
"#;

/// What a command left.
pub struct Done {
    /// Zero is success.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A shell in the root, and a folder that it shares with the test.
pub struct Session {
    shell: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    folder: TempDir,
    /// How long a command may take.
    patience: Duration,
    /// It did not answer: it does not hear the end of its input either.
    hangs: bool,
}

impl Session {
    /// Starts one.
    pub fn start() -> Outcome<Self> {
        let root = root::find()?;
        // beside the root: on a disk, since images of it are opened past the page cache
        let beside = root.parent().unwrap_or(Path::new("/"));
        let folder = tempfile::Builder::new()
            .prefix("session-")
            .tempdir_in(beside)
            .map_err(Trouble::during(beside.display()))?;
        let made = || -> std::io::Result<(Child, File)> {
            fs::create_dir(folder.path().join("libvirt"))?;
            let errors = File::create(folder.path().join("session.err"))?;
            let shell = Command::new("unshare")
                .args(["--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child"])
                .args(["sh", "-c", ENTER, "sh"])
                .args([&root, folder.path()])
                .env_clear()
                .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
                .env("LC_ALL", "C.UTF-8")
                .env("HOME", "/tmp")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(errors.try_clone()?)
                .spawn()?;
            Ok((shell, errors))
        };
        let (mut shell, _) = made().map_err(Trouble::during("a shell in namespaces of its own (unshare)"))?;
        let (says, answers) = channel();
        if let Some(output) = shell.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for line in lines {
                    // the session is gone: nobody waits for the answer
                    if says.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let input = shell.stdin.take();
        let mut session = Self {
            shell,
            input,
            answers,
            folder,
            patience: PATIENCE,
            hangs: false,
        };
        session.demand("true")?;
        Ok(session)
    }

    /// A file of the session's folder, as the test sees it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes one.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Outcome {
        fs::write(self.path(name), content).map_err(Trouble::during(name))
    }

    /// Reads one as text, as far as it is.
    pub fn read(&self, name: &str) -> Outcome<String> {
        let bytes = fs::read(self.path(name)).map_err(Trouble::during(name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Runs shell commands to their end.
    pub fn run(&mut self, commands: &str) -> Outcome<Done> {
        let line = format!("( {commands}\n) >{INSIDE}/out 2>{INSIDE}/err </dev/null; echo $?\n");
        let sent = self.input.as_mut().map(|input| {
            input.write_all(line.as_bytes())?;
            input.flush()
        });
        let answer = match sent {
            Some(Ok(())) => self.answers.recv_timeout(self.patience).ok(),
            _ => None,
        };
        let Some(code) = answer.and_then(|code| code.parse().ok()) else {
            self.hangs = true;
            return Err(Trouble::new(format_args!(
                "the shell in the root does not answer within {} s to: {commands}\n{}",
                self.patience.as_secs(),
                self.read("session.err").unwrap_or_default()
            )));
        };
        Ok(Done {
            code,
            out: self.read("out")?,
            err: self.read("err")?,
        })
    }

    /// Runs them and demands success; gives their standard output.
    pub fn demand(&mut self, commands: &str) -> Outcome<String> {
        let done = self.run(commands)?;
        if done.code == 0 {
            return Ok(done.out);
        }
        Err(Trouble::new(format_args!(
            "{commands}: exit code {}\n{}",
            done.code, done.err
        )))
    }

    /// Looks again and again until there is something to see.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Outcome<Option<T>>) -> Outcome<T> {
        let began = Instant::now();
        loop {
            if let Some(seen) = look(self)? {
                return Ok(seen);
            }
            if began.elapsed() > PATIENCE {
                return Err(Trouble::new(format_args!(
                    "{what}: not within {} s",
                    PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // the shell reads the end of its input and ends, and all that it started with it
        self.input = None;
        if self.hangs {
            // unshare takes the namespace's first process with it, and that one all others
            let _ = self.shell.kill();
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_never_ends_is_an_error_and_goes_with_its_session() -> Outcome {
        let mut session = Session::start()?;
        session.patience = Duration::from_millis(100);
        let Err(refused) = session.run("sleep 3600") else {
            return Err(Trouble::new("it ended"));
        };
        let said = refused.to_string();
        assert!(said.contains("does not answer within 0 s to: sleep 3600"), "{said}");
        drop(session);
        Ok(())
    }
}
