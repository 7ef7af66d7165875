//! What runs in the guest, and what it says on its console.
//!
//! A figure's line is fio's terse format, version 3, behind a prefix: fields are parted by `;`, counted from 1 in fio's
//! own documentation (HOWTO, "Terse output"): 3 the job's name, 5 its error, 7 and 8 read bandwidth (KiB/s) and IOPS,
//! 48 and 49 the same for writes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

use crate::table::table;

/// Stands before what is meant for this program.
const PREFIX: &str = "dockerios-bench:";
/// Names, and what fio is told.
pub(super) const JOBS: &[(&str, &str)] = &[
    ("random-read-4k", "--rw=randread --bs=4k --iodepth=32"),
    ("random-write-4k", "--rw=randwrite --bs=4k --iodepth=32"),
    ("sequential-read-1m", "--rw=read --bs=1m --iodepth=8"),
    ("sequential-write-1m", "--rw=write --bs=1m --iodepth=8"),
    ("synced-write-4k", "--rw=randwrite --bs=4k --iodepth=1 --fsync=1"),
];

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    /// KiB per second.
    pub(super) bandwidth: f64,
    /// Operations per second.
    pub(super) iops: f64,
}

impl Figure {
    pub(super) fn words(self) -> String {
        format!("{:.0} IOPS, {:.1} MiB/s", self.iops, self.bandwidth / 1024.0)
    }
}

/// By the job's name.
pub(super) type Figures = BTreeMap<String, Figure>;

/// The measurements that are not there.
pub(super) fn missing(figures: &Figures) -> Vec<&'static str> {
    let names = JOBS.iter().map(|(name, _)| *name);
    names.filter(|name| !figures.contains_key(*name)).collect()
}

/// A line that is meant for this program.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Figure(String, Figure),
    Failed(String),
    Done,
}

/// Reads a line of the console; `None` for what the guest says otherwise.
///
/// # Errors
/// A line of ours that cannot be read.
pub(super) fn read(line: &str) -> Result<Option<Line>> {
    let Some((_, said)) = line.split_once(PREFIX) else {
        return Ok(None);
    };
    let said = said.trim();
    if said == "done" {
        return Ok(Some(Line::Done));
    }
    if let Some(why) = said.strip_prefix("failed ") {
        return Ok(Some(Line::Failed(why.to_owned())));
    }
    let fields: Vec<&str> = said.split(';').collect();
    let field = |number: usize| {
        fields
            .get(number - 1)
            .copied()
            .with_context(|| format!("field {number} is not there"))
    };
    let number = |at: usize| -> Result<f64> { field(at)?.parse().with_context(|| format!("field {at} is no number")) };
    if field(1)? != "3" {
        bail!("terse version {}, 3 was asked for", field(1)?);
    }
    let name = field(3)?.to_owned();
    if field(5)? != "0" {
        bail!("job {name} ended with error {}", field(5)?);
    }
    let (bandwidth, iops) = if number(8)? > 0.0 { (7, 8) } else { (48, 49) };
    let figure = Figure {
        bandwidth: number(bandwidth)?,
        iops: number(iops)?,
    };
    Ok(Some(Line::Figure(name, figure)))
}

/// cloud-init's part: fio on the disk of that serial, figure by figure onto the console, then off.
pub(super) fn user_data(serial: &str, seconds: u32) -> String {
    let jobs: String = JOBS
        .iter()
        .map(|(name, options)| format!("      measure {name} {options}\n"))
        .collect();
    format!(
        r#"#cloud-config
runcmd:
  - - sh
    - -c
    - |
      say() {{ echo "{PREFIX} $*" > /dev/ttyS0; }}
      fail() {{ say failed "$(echo "$*" | tr '\n' ' ')"; poweroff; exit 1; }}
      # nothing of the kernel's in the middle of a figure
      dmesg -n 1
      command -v fio >/dev/null || (apt-get update && apt-get install -y fio || dnf install -y fio) >/dev/null 2>&1
      command -v fio >/dev/null || fail "the image has no fio, and it could not be installed"
      disk=$(lsblk -dnpo NAME,SERIAL | awk '$2 == "{serial}" {{print $1}}')
      [ -b "$disk" ] || fail "no disk has the serial {serial}: $(lsblk -dno NAME,SERIAL | tr '\n' ' ')"
      measure() {{
        name=$1; shift
        out=$(fio --name="$name" --filename="$disk" --direct=1 --ioengine=libaio --runtime={seconds} --time_based \
          --output-format=terse --terse-version=3 "$@" 2>&1) || fail "$name: $out"
        say "$(echo "$out" | grep '^3;' || echo "failed $name: $(echo "$out" | tr '\n' ' ')")"
      }}
{jobs}      say done
      poweroff
"#
    )
}

/// The two side by side, NVMe as a multiple of SATA.
pub(super) fn comparison(sata: &Figures, nvme: &Figures) -> String {
    let rows = JOBS.iter().map(|(name, _)| {
        let (sata, nvme) = (sata.get(*name), nvme.get(*name));
        let words = |figure: Option<&Figure>| figure.map_or_else(|| "not measured".to_owned(), |figure| figure.words());
        let ratio = match (sata, nvme) {
            (Some(sata), Some(nvme)) if sata.iops > 0.0 => format!("{:.2}x", nvme.iops / sata.iops),
            _ => String::new(),
        };
        vec![(*name).to_owned(), words(sata), words(nvme), ratio]
    });
    table(&["MEASUREMENT", "SATA", "NVME", "NVME/SATA"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as fio 3 writes it: 130 fields, of which those that are read are set.
    fn terse(name: &str, error: &str, read: (&str, &str), write: (&str, &str)) -> String {
        let mut fields = vec!["0".to_owned(); 130];
        for (number, value) in [
            (1, "3"),
            (2, "fio-3.36"),
            (3, name),
            (5, error),
            (7, read.0),
            (8, read.1),
            (48, write.0),
            (49, write.1),
        ] {
            fields[number - 1] = value.to_owned();
        }
        format!("[  31.2] {PREFIX} {}\r", fields.join(";"))
    }

    #[test]
    fn a_line_is_read_as_the_job_read_or_wrote() {
        let reads = read(&terse("random-read-4k", "0", ("40960", "10240"), ("0", "0"))).unwrap();
        let figure = Figure {
            bandwidth: 40_960.0,
            iops: 10_240.0,
        };
        assert_eq!(reads, Some(Line::Figure("random-read-4k".to_owned(), figure)));
        let writes = read(&terse("synced-write-4k", "0", ("0", "0"), ("2048", "512"))).unwrap();
        let figure = Figure {
            bandwidth: 2048.0,
            iops: 512.0,
        };
        assert_eq!(writes, Some(Line::Figure("synced-write-4k".to_owned(), figure)));
        assert_eq!(figure.words(), "512 IOPS, 2.0 MiB/s");
    }

    /// What fio 3.33 (Debian) printed for the five jobs of [`user_data`], and its own JSON of the very same runs.
    const RUN: &str = include_str!("fio-3.33.txt");
    const JSON: &str = include_str!("fio-3.33.json");

    #[test]
    fn what_fio_itself_prints_is_read_as_its_json_has_it() {
        let json: serde_json::Value = serde_json::from_str(JSON).unwrap();
        let mut names = Vec::new();
        for line in RUN.lines() {
            let Some(Line::Figure(name, figure)) = read(&format!("{PREFIX} {line}")).unwrap() else {
                panic!("no figure: {line}");
            };
            let way = if name.contains("read") { "read" } else { "write" };
            let of = |field: &str| json[&name][way][field].as_f64().unwrap();
            // terse prints whole numbers
            assert!((figure.iops - of("iops")).abs() <= 1.0, "{name}: {figure:?}");
            assert!((figure.bandwidth - of("bw")).abs() <= 1.0, "{name}: {figure:?}");
            names.push(name);
        }
        assert_eq!(names, JOBS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_ours_is_passed_over_and_what_is_ours_is_understood_or_refused() {
        assert_eq!(read("[    0.000000] Linux version 6.1").unwrap(), None);
        assert_eq!(read("dockerios-bench: done\r").unwrap(), Some(Line::Done));
        let failed = read("x dockerios-bench: failed no disk").unwrap();
        assert_eq!(failed, Some(Line::Failed("no disk".to_owned())));
        for (line, why) in [
            ("dockerios-bench: 3;fio", "field 3 is not there"),
            ("dockerios-bench: 5;fio;x", "terse version 5"),
            (&*terse("x", "28", ("1", "1"), ("0", "0")), "ended with error 28"),
            (&*terse("x", "0", ("many", "1"), ("0", "0")), "field 7 is no number"),
        ] {
            let refused = format!("{:#}", read(line).unwrap_err());
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }

    #[test]
    fn the_comparison_tells_what_was_not_measured() {
        let figures = |iops: f64| {
            Figures::from([(
                "random-read-4k".to_owned(),
                Figure {
                    bandwidth: iops * 4.0,
                    iops,
                },
            )])
        };
        let text = comparison(&figures(1000.0), &figures(2500.0));
        assert!(text.contains("random-read-4k"), "{text}");
        assert!(text.contains("2.50x"), "{text}");
        assert_eq!(text.matches("not measured").count(), 8, "{text}");
    }

    #[test]
    fn the_guest_is_told_every_job_and_the_script_is_a_shells() {
        let data = user_data("SERIAL", 20);
        assert!(JOBS.iter().all(|(name, _)| data.contains(&format!("measure {name} "))));
        let script: String = data
            .lines()
            .skip_while(|line| !line.ends_with("- |"))
            .skip(1)
            .map(|line| format!("{}\n", line.trim_start()))
            .collect();
        let judged = std::process::Command::new("sh")
            .args(["-n", "-c", &script])
            .output()
            .unwrap();
        assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    }
}
