//! `doctor`: what this cluster lacks for macOS machines. Facts are fetched here; [`judge`] thinks, without a client.

mod gather;
mod judge;
mod probe;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::access::Access;
use crate::answer::plain;
use crate::out;
use crate::table::counted;
use judge::{Finding, Verdict};

/// Judge nodes, KubeVirt, CDI and storage: what is missing for macOS machines, and the way out
///
/// Only what the API shows is judged. A host's kernel setting is asked with --probe-nodes, by one short pod a node that
/// is removed again. Ends with 0 when nothing is missing, 1 when something is, 2 when not all could be seen.
#[derive(clap::Args, Debug)]
pub(crate) struct Doctor {
    /// Ask each node that has KVM for kvm.ignore_msrs, by a short pod in the platform namespace
    #[arg(long)]
    probe_nodes: bool,
    /// Print JSON instead of lines
    #[arg(short, long, value_parser = ["text", "json"], default_value = "text")]
    output: String,
}

impl Doctor {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let cluster = access.open().await?;
        let mut facts = gather::facts(&cluster).await;
        if self.probe_nodes {
            facts.msrs = Some(probe::nodes(&cluster, &facts).await?);
        }
        let findings = judge::judge(&facts);
        match &*self.output {
            "json" => out::program(&out::as_json(&json(&findings))?)?,
            _ => out::print(&text(&findings))?,
        }
        Ok(ExitCode::from(code(&findings)))
    }
}

/// 1 when something is missing; 2 when nothing is known to be, but not all could be seen; else 0.
fn code(findings: &[Finding]) -> u8 {
    let any = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    if any(Verdict::Fail) {
        1
    } else if any(Verdict::Unknown) {
        2
    } else {
        0
    }
}

fn json(findings: &[Finding]) -> serde_json::Value {
    findings
        .iter()
        .map(|finding| {
            json!({"check": finding.check, "verdict": finding.verdict.word(), "message": finding.message,
                "wayOut": finding.way_out})
        })
        .collect()
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        text.push_str(&format!(
            "{:<8} {:<14} {}\n",
            finding.verdict.word(),
            finding.check,
            plain(&finding.message)
        ));
        if !finding.way_out.is_empty() {
            text.push_str(&format!("{:<23} -> {}\n", "", plain(&finding.way_out)));
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (failed, unknown, warned) = (count(Verdict::Fail), count(Verdict::Unknown), count(Verdict::Warn));
    let warnings = counted(warned, "warning", "warnings");
    text + &match (failed, unknown) {
        (0, 0) => format!("nothing is missing that the API shows; {warnings}\n"),
        _ => format!("{failed} missing, {unknown} could not be seen, {warnings}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line_with_its_way_out_and_the_last_line_counts() {
        let findings = [
            Finding::ok("kvm", "2 nodes have KVM"),
            Finding::fail("avx2", "no node has AVX2", "add one"),
            Finding::unknown("storage", "storage classes: forbidden"),
        ];
        let text = text(&findings);
        assert!(
            text.starts_with("ok       kvm            2 nodes have KVM\nmissing  avx2 "),
            "{text}"
        );
        assert!(text.contains("\n                        -> add one\n"), "{text}");
        assert!(text.ends_with("1 missing, 1 could not be seen, 0 warnings\n"), "{text}");
        let warned = super::text(&[Finding::warn("avx2", "maybe", "")]);
        assert!(warned.ends_with("; 1 warning\n"), "{warned}");
        assert_eq!(json(&findings)[1]["wayOut"], "add one");
        let codes = [
            code(&findings),
            code(&findings[..1]),
            code(&[findings[0].clone(), findings[2].clone()]),
        ];
        assert_eq!(codes, [1, 0, 2], "missing, all well, unseen");
    }
}
