//! What is said of a guest: how far it is, and whether it is what its image declares. For people: nothing
//! is decided from the words of a guest.

use macrack_api::instance::macos_instance::{
    FirstBootResult, FirstBootState, GuestStage, GuestStatus, MacOSInstancePhase as Phase,
    MacOSInstanceReason as Because, Readiness, ReadinessState,
};

use super::{Facts, words::Word};

/// Whether the instance itself says no other stage than Ready: its Mac writes that in another object than the one that
/// says the guest is ready, and whoever waits for Ready reads addresses and versions next. Once Ready it stays so.
pub(super) fn is_told(facts: &Facts) -> bool {
    let status = facts.status();
    let stage = status.guest.and_then(|guest| guest.stage);
    status.phase == Some(Phase::Ready) || stage.is_none_or(|stage| stage == GuestStage::Ready)
}

/// How far the guest of a running VM is.
pub(super) fn booting(facts: &Facts) -> Word {
    let status = facts.status();
    let guest = status.guest.unwrap_or_default();
    let problem = status.vm.and_then(|vm| vm.message);
    let (because, words) = match guest.stage {
        None | Some(GuestStage::Booting) => match problem {
            Some(problem) => (Because::GuestNotHeard, format!("the guest is not heard: {problem}")),
            None => (Because::Booting, "the guest boots and does not answer yet".into()),
        },
        Some(GuestStage::AgentStarting) => {
            (Because::GuestNotReady, "the guest agent answers, the login window does not stand yet".into())
        }
        Some(GuestStage::LoginWindow) => (
            Because::AtLoginWindow,
            "the guest is at the login window and nobody is logged in; a golden has automatic login on".into(),
        ),
        Some(GuestStage::UserSession) => in_session(&guest, problem),
        Some(GuestStage::Ready) => (Because::GuestNotReady, "the guest says Ready, its Mac reports it next".into()),
    };
    (Phase::Starting, because, words)
}

/// A user is logged in: what Ready waits for.
fn in_session(guest: &GuestStatus, problem: Option<String>) -> (Because, String) {
    match (&guest.first_boot, &guest.readiness) {
        (Some(FirstBootResult { state: FirstBootState::Running, .. }), _) => {
            (Because::ScriptPending, "the first-boot script runs in the guest".into())
        }
        (Some(script @ FirstBootResult { state: FirstBootState::Failed | FirstBootState::Interrupted, .. }), _) => {
            (Because::ScriptFailed, failed(script))
        }
        (_, Some(readiness)) if readiness.state != ReadinessState::Ready => {
            (Because::ReadinessPending, pending(readiness))
        }
        _ => {
            let untold = || "a user is logged in; the guest was not told yet whether there is a script".into();
            (Because::GuestNotReady, problem.unwrap_or_else(untold))
        }
    }
}

fn failed(script: &FirstBootResult) -> String {
    let how = match (script.state, script.exit_code) {
        (FirstBootState::Interrupted, _) => "was cut off: the guest went down while it ran".to_owned(),
        (_, Some(code)) => format!("ended with exit code {code}"),
        (_, None) => "could not be run".to_owned(),
    };
    format!("the first-boot script {how}; it is not run again. Correct it and make another instance")
}

fn pending(readiness: &Readiness) -> String {
    let said = readiness.message.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
    match (readiness.state, readiness.exit_code) {
        (ReadinessState::Waiting | ReadinessState::Running | ReadinessState::Ready, _) => {
            "the golden's readiness command runs".to_owned()
        }
        (ReadinessState::NotReady, Some(code)) => {
            format!("the golden's readiness command ended with exit code {code}{said}; it is run again")
        }
        (ReadinessState::NotReady, None) => format!("the golden's readiness command refuses{said}; it is run again"),
        (ReadinessState::TimedOut, _) => {
            format!("the golden's readiness command takes too long{said}; it is run again")
        }
        (ReadinessState::Failed, _) => format!("the golden's readiness command cannot be run{said}"),
    }
}

/// Whether the guest is what its image declares; `None` until both are known.
pub(super) fn contents(facts: &Facts) -> Option<(bool, Because, String)> {
    let guest = facts.status().guest.unwrap_or_default();
    let image = facts.image.present()?;
    let reported = [("macOS", guest.os_version), ("Xcode", guest.xcode_version), ("GuestAgent", guest.agent_version)];
    let mut compared =
        reported.into_iter().filter_map(|(kind, reported)| Some((kind, image.content(kind)?, reported?)));
    let known = compared.clone().next().is_some();
    let differs = compared
        .by_ref()
        .filter(|(_, declared, reported)| !same(declared, reported))
        .map(|(kind, declared, reported)| format!("{kind} is {reported}, declared {declared}"))
        .collect::<Vec<_>>()
        .join("; ");
    if differs.is_empty() {
        return known.then_some((true, Because::AsDeclared, String::new()));
    }
    let name = &facts.instance.spec.image_name;
    let why = "the golden was declared wrongly, or somebody changed the guest";
    Some((false, Because::ContentsDiffer, format!("the guest is not what image {name} declares: {differs}; {why}")))
}

/// `26.1` and `26.1.0` are the same; what is no version is compared as text.
fn same(declared: &str, reported: &str) -> bool {
    use macrack_api::Version;
    match (declared.parse::<Version>(), reported.parse::<Version>()) {
        (Ok(declared), Ok(reported)) => declared == reported,
        _ => declared == reported,
    }
}
