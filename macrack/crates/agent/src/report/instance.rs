//! `status.vm` and `status.guest` of a MacOSInstance: for people.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use macrack_api::Quantity;
use macrack_api::instance::macos_instance::{
    FirstBootResult, FirstBootState, GuestStage, GuestStatus, Readiness, ReadinessState, VmStatus,
};
use macrack_wire::guest::MAX_MESSAGE;
use macrack_wire::{FirstBoot, GuestReport};
use serde::Serialize;

use super::{MESSAGE, bounded, state};
use crate::life::{Facts, Life};
use crate::orders::Say;
use crate::writer::Report;

/// Most addresses in the report, as the schema says.
const ADDRESSES: usize = 8;
const GIGABYTE: u64 = 1_000_000_000;

/// What is written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InstanceReport {
    /// The VM's process.
    pub vm: VmStatus,
    /// The guest, while one runs or did since the last start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStatus>,
}

impl Report for InstanceReport {
    fn is_news(&self, written: &Self) -> bool {
        let without_progress = |report: &InstanceReport| {
            let mut report = report.clone();
            report.vm.message = None;
            if let Some(guest) = &mut report.guest {
                guest.disk_free = None;
            }
            report
        };
        without_progress(self) != without_progress(written)
    }
}

/// Renders the report of a VM, or of a uid that has none here yet.
pub fn render(facts: Option<&Facts>, say: Option<&Say>) -> InstanceReport {
    let (_, message) = state(facts.map(|facts| &facts.life), say);
    let report = facts.and_then(|facts| facts.report.as_ref());
    let problem = report.and_then(|report| report.guest_problem.clone());
    let error = report.and_then(|report| report.error.as_ref());
    let vm = VmStatus {
        started_at: report.map(|report| Time(report.started_at)),
        starts: facts.map_or(0, |facts| i32::try_from(facts.starts).unwrap_or(i32::MAX)),
        mac_address: facts.and_then(|facts| facts.mac_address).map(|address| address.to_string()),
        message: message.or(problem).map(|message| bounded(&message, MESSAGE)),
        error: error.map(|error| bounded(&format!("{} {}", error.domain, error.code), 64)),
    };
    InstanceReport { vm, guest: facts.and_then(guest) }
}

fn guest(facts: &Facts) -> Option<GuestStatus> {
    match (&facts.life, facts.report.as_ref().and_then(|report| report.guest.as_ref())) {
        (Life::Running | Life::Stopping, Some(guest)) => Some(said(guest)),
        (Life::Starting | Life::Running, None) => {
            Some(GuestStatus { stage: Some(GuestStage::Booting), ..GuestStatus::default() })
        }
        _ => None,
    }
}

fn said(guest: &GuestReport) -> GuestStatus {
    let short = |text: &Option<String>| text.as_deref().map(|text| bounded(text, 32));
    GuestStatus {
        stage: Some(match guest.stage {
            macrack_wire::GuestStage::AgentStarting => GuestStage::AgentStarting,
            macrack_wire::GuestStage::LoginWindow => GuestStage::LoginWindow,
            macrack_wire::GuestStage::UserSession => GuestStage::UserSession,
            macrack_wire::GuestStage::Ready => GuestStage::Ready,
        }),
        agent_version: Some(bounded(&guest.agent_version, 64)),
        os_version: short(&guest.os_version),
        xcode_version: short(&guest.xcode_version),
        disk_free: guest.disk_free_bytes.map(|free| Quantity(format!("{}G", free / GIGABYTE))),
        addresses: guest.addresses.iter().take(ADDRESSES).map(ToString::to_string).collect(),
        first_boot: first_boot(&guest.first_boot),
        readiness: guest.readiness.as_ref().map(readiness),
        first_launch_accepted: guest.first_launch_accepted,
        system_sealed: guest.system_sealed,
    }
}

fn readiness(said: &macrack_wire::Readiness) -> Readiness {
    use macrack_wire::ReadinessState as Said;
    Readiness {
        state: match said.state {
            Said::Waiting => ReadinessState::Waiting,
            Said::Running => ReadinessState::Running,
            Said::Ready => ReadinessState::Ready,
            Said::NotReady => ReadinessState::NotReady,
            Said::TimedOut => ReadinessState::TimedOut,
            Said::Failed => ReadinessState::Failed,
        },
        exit_code: said.exit_code,
        message: said.message.as_deref().map(|words| bounded(words, MAX_MESSAGE)),
    }
}

fn first_boot(script: &FirstBoot) -> Option<FirstBootResult> {
    let (state, exit_code) = match script {
        FirstBoot::NotAsked | FirstBoot::NotNeeded => return None,
        FirstBoot::Waiting | FirstBoot::Running => (FirstBootState::Running, None),
        FirstBoot::Done { exit_code: 0 } => (FirstBootState::Done, Some(0)),
        FirstBoot::Done { exit_code } => (FirstBootState::Failed, Some(*exit_code)),
        FirstBoot::Failed { .. } => (FirstBootState::Failed, None),
        FirstBoot::Interrupted => (FirstBootState::Interrupted, None),
    };
    Some(FirstBootResult { state, exit_code })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_guest_that_does_not_answer_yet_is_booting_and_a_stopped_vm_has_none() {
        let stage = |life| {
            let facts = Facts::new(life, Timestamp::UNIX_EPOCH);
            render(Some(&facts), None).guest.and_then(|guest| guest.stage)
        };
        assert_eq!(stage(Life::Running), Some(GuestStage::Booting));
        assert_eq!(stage(Life::AtRest(crate::life::Rest::Ready)), None);
        assert_eq!(render(None, None).guest, None);
    }

    #[test]
    fn what_a_readiness_command_said_is_passed_on() {
        let said = macrack_wire::Readiness {
            state: macrack_wire::ReadinessState::NotReady,
            exit_code: Some(7),
            message: Some("no licence yet".to_owned()),
        };
        let mut guest = GuestReport::new("0.1.0", macrack_wire::GuestStage::UserSession, FirstBoot::NotNeeded);
        guest.readiness = Some(said);
        guest.first_launch_accepted = Some(false);
        let status = serde_json::to_value(super::said(&guest)).unwrap();
        let readiness = json!({"state": "NotReady", "exitCode": 7, "message": "no licence yet"});
        assert_eq!((&status["readiness"], &status["firstLaunchAccepted"]), (&readiness, &json!(false)));
        assert_eq!(status.get("systemSealed"), None, "what is not known is not said");
    }

    #[test]
    fn a_script_that_ended_badly_is_told_from_one_that_was_cut_off() {
        let of = |script: FirstBoot| first_boot(&script).map(|result| (result.state, result.exit_code));
        assert_eq!(of(FirstBoot::NotNeeded), None);
        assert_eq!(of(FirstBoot::Waiting), Some((FirstBootState::Running, None)));
        assert_eq!(of(FirstBoot::Done { exit_code: 0 }), Some((FirstBootState::Done, Some(0))));
        assert_eq!(of(FirstBoot::Done { exit_code: 3 }), Some((FirstBootState::Failed, Some(3))));
        assert_eq!(of(FirstBoot::Interrupted), Some((FirstBootState::Interrupted, None)));
    }
}
