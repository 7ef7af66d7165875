//! Running a tool of the system, bounded in time and in what it may print.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a tool may take: one that asks a broken disk waits for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that is read of what a tool prints, in bytes: a listing of all processes is under one megabyte.
const MOST: u64 = 4 * 1024 * 1024;

/// What `program` prints, if it ends well and in time.
///
/// # Errors
/// When it cannot be started, fails, is silent for ten seconds, or prints more than 4 MiB; the error names it and what
/// it said.
pub fn run(program: &str, arguments: &[&str]) -> io::Result<Vec<u8>> {
    run_within(program, arguments, PATIENCE)
}

fn run_within(program: &str, arguments: &[&str], patience: Duration) -> io::Result<Vec<u8>> {
    let named = |why: String| io::Error::other(format!("{program} {}: {why}", arguments.join(" ")));
    let mut child = Command::new(program)
        .args(arguments)
        // what is printed for a person differs by language
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| named(error.to_string()))?;
    let printed = gather(&mut child, patience);
    if printed.is_err() {
        // it may have ended meanwhile
        let _gone = child.kill();
    }
    let status = child.wait().map_err(|error| named(error.to_string()))?;
    let (output, complaint) = printed.map_err(named)?;
    if !status.success() {
        let said = String::from_utf8_lossy(&complaint);
        return Err(named(format!("{status}, {}", said.lines().next().unwrap_or("without a word").trim())));
    }
    Ok(output)
}

/// Both outputs to their ends.
fn gather(child: &mut Child, patience: Duration) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (tell, told) = mpsc::channel();
    let (output, complaint) = (child.stdout.take(), child.stderr.take());
    std::thread::spawn(move || {
        // the complaints of these tools are a line or two, so they never fill their pipe while the output is read
        let read = read(output).and_then(|output| Ok((output, read(complaint)?)));
        // nobody listens any more when it took too long
        let _late = tell.send(read);
    });
    match told.recv_timeout(patience) {
        Ok(Ok((output, _))) if output.len() as u64 > MOST => Err(format!("it prints more than {MOST} bytes")),
        Ok(Ok(both)) => Ok(both),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("nothing within {patience:?}")),
    }
}

fn read(from: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(MOST + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_prints_is_returned_and_a_failure_says_which_tool_and_its_own_words() {
        assert_eq!(run("/bin/sh", &["-c", "echo good"]).unwrap(), b"good\n");
        let failed = run("/bin/sh", &["-c", "echo 'no such disk' >&2; exit 3"]).unwrap_err().to_string();
        assert!(failed.contains("/bin/sh -c") && failed.contains("no such disk"), "{failed}");
        let missing = run("/no/such/tool", &[]).unwrap_err().to_string();
        assert!(missing.contains("/no/such/tool"), "{missing}");
    }

    #[test]
    fn a_tool_that_hangs_or_floods_is_ended() {
        let hangs = run_within("/bin/sleep", &["1000"], Duration::from_millis(50)).unwrap_err().to_string();
        assert!(hangs.contains("nothing within"), "{hangs}");
        let floods = run("/bin/sh", &["-c", "exec cat /dev/zero"]).unwrap_err().to_string();
        assert!(floods.contains("prints more than"), "{floods}");
    }
}
