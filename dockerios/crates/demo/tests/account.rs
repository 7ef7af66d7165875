//! The demo's program, run as `./demo` runs it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use dockerios_testkit::{assets::Assets, bin};
use rustix::process::{Pid, Signal, kill_process};

/// The program, as `./demo` starts it, on a folder in `dir`; `arguments` beside.
fn program(dir: &tempfile::TempDir, arguments: &[&str]) -> Result<Command> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_dockerios-demo"));
    let kubectl = Assets::find()?.path("kubectl");
    let mut command = Command::new(&program);
    command
        .arg("--assets")
        .arg(kubectl.parent().context("the folder of kubectl")?)
        .arg("--bin-dir")
        .arg(program.parent().context("the folder of the demo")?)
        .arg("--dir")
        .arg(dir.path().join("state"))
        .args(arguments)
        // its folder in the temporary folder is then seen, or seen gone
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// The program at work in a folder of its own.
fn demo(arguments: &[&str]) -> Result<(Child, tempfile::TempDir)> {
    for program in [
        "dockerios-operator",
        "dockerios-guest",
        "dockerios-bootdisk",
        "dockerios-domain-hook",
    ] {
        bin(program)?;
    }
    let dir = tempfile::Builder::new().prefix("d").tempdir()?;
    let child = program(&dir, arguments)?.spawn().context("start dockerios-demo")?;
    Ok((child, dir))
}

/// Processes that speak of the folder in their command line or environment.
fn of_folder(dir: &tempfile::TempDir) -> Vec<String> {
    let wanted = dir.path().to_string_lossy().into_owned();
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter(|entry| entry.file_name().to_string_lossy() != own.as_str());
    pids.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(&wanted).then_some(line)
    })
    .collect()
}

fn nothing_is_left(dir: &tempfile::TempDir) -> Result<()> {
    // the guardian, a shell, ends as the last
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !of_folder(dir).is_empty() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let running = of_folder(dir);
    ensure!(running.is_empty(), "still running: {running:?}");
    let entries = fs::read_dir(dir.path())?.collect::<std::io::Result<Vec<_>>>()?;
    let left: Vec<_> = entries.iter().map(|entry| entry.file_name()).collect();
    ensure!(left.is_empty(), "left in its folders: {left:?}");
    Ok(())
}

#[test]
fn the_account_is_told_to_its_end_and_leaves_nothing() -> Result<()> {
    let (child, dir) = demo(&["--exit-after-story"])?;
    let output = child.wait_with_output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{}: {told}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    // as it was told, whatever lines it was broken into
    let flat = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "Apple's licence does not cover macOS",
        "Warning: Apple's software licence",
        "sequoia-15-6",
        "job-4711",
        "job-4712",
        "event b-",
        "Failed: not ready within 60s after power-on",
        "its last screen is kept",
        "job-4713 bound",
        "VirtualMachine is gone",
        "kept: pvc/macs-b-",
        "Told in",
    ] {
        ensure!(flat.contains(line), "the account does not say {line:?}:\n{told}");
    }
    let order = ["VirtualMachineInstance is gone", "the machine is gone", "kept: pvc/"];
    let places: Vec<_> = order.iter().map(|words| told.find(words)).collect();
    ensure!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "the end is out of order: {places:?}\n{told}"
    );
    let wide: Vec<_> = told.lines().filter(|line| line.chars().count() > 100).collect();
    ensure!(wide.is_empty(), "wider than 100 columns: {wide:#?}");
    nothing_is_left(&dir)
}

#[test]
fn a_second_demo_is_refused_and_an_interrupt_of_the_first_leaves_neither_process_nor_folder() -> Result<()> {
    let (mut child, dir) = demo(&["--exit-after-story"])?;
    let mut out = BufReader::new(child.stdout.take().context("its output")?).lines();
    let reached = out.find(|line| line.as_ref().map_or(true, |line| line.starts_with("1  ")));
    reached.context("it ended before the first step")??;
    ensure!(
        !of_folder(&dir).is_empty(),
        "nothing runs in the middle: this test sees nothing"
    );
    let second = program(&dir, &["--exit-after-story"])?.output()?;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let wanted = format!("a demo runs already (pid {}) and works in ", child.id());
    ensure!(
        second.status.code() == Some(2) && said.contains(&wanted) && said.contains("/state. Nothing was started."),
        "the second: {}: {said}",
        second.status
    );
    ensure!(
        dir.path().join("state/manifests").is_dir(),
        "the second took the first's folder"
    );
    let log = fs::read_to_string(dir.path().join("state/logs/operator.log"))?;
    ensure!(
        log.contains(" INFO ") && !log.contains('\u{1b}'),
        "colours in a file, or no word of the operator: {log:?}"
    );
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("its pid")?;
    kill_process(pid, Signal::INT)?;
    let mut error = String::new();
    for _ in out {}
    if let Some(mut told) = child.stderr.take() {
        told.read_to_string(&mut error)?;
    }
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}: {error}");
    nothing_is_left(&dir)
}
