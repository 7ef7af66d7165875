//! What is done about a request or an event: a pure table.
//!
//! ```text
//!   Starting ──started──▶ Running ──stop──▶ AskingGuest ──unasked, half the grace──▶ AskingHypervisor
//!      │stop                                     │grace over                               │grace over
//!      ▼                                         ▼                                         ▼
//!   StartingToStop ──started──▶ AskingGuest   Forcing ◀───────────────────────────────────-┘
//!
//!   every phase ──the VM ends──▶ Ended(cause)
//! ```
//!
//! Invariant: `Ended` has no way out, and the cause is the first one that ended the VM.

use macrack_wire::{StopCause, VmState};

/// Where the VM is. The one enum; deadlines are the owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The start is under way.
    Starting,
    /// The start is under way and a stop was asked for: no hypervisor stops a starting VM.
    StartingToStop,
    /// It runs.
    Running,
    /// The guest was asked to shut down.
    AskingGuest,
    /// The power button was pressed.
    AskingHypervisor,
    /// The plug is being pulled.
    Forcing,
    /// It is over.
    Ended(StopCause),
}

/// What happens to a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The agent orders a stop.
    Stop,
    /// The hypervisor says that it runs.
    Started,
    /// The hypervisor says that it cannot.
    StartFailed,
    /// The guest is not there to be asked, or refused.
    GuestUnasked,
    /// Half of the grace is over.
    HalfGraceOver,
    /// The grace is over.
    GraceOver,
    /// The guest went down in an orderly way.
    GuestStopped,
    /// The VM broke.
    Crashed,
    /// The plug could not be pulled. The VM dies with this process, which is about to end.
    ForceFailed,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing beyond the new phase.
    Nothing,
    /// Take the deadline of the stop, if it is the earlier one.
    SetDeadline,
    /// Take the deadline, and ask the guest.
    SetDeadlineAndAskGuest,
    /// Ask the guest.
    AskGuest,
    /// Press the power button.
    PressPowerButton,
    /// Pull the plug.
    PullPlug,
}

/// How the arbiter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes into this phase, and this is done.
    Admit(Phase, Action),
    /// It is late or double, and harmless.
    Ignore,
    /// It makes no sense; the asking side gets these words.
    Deny(&'static str),
}

/// Decides.
pub fn decide(phase: Phase, input: Input) -> Verdict {
    use Action::{AskGuest, Nothing, PressPowerButton, PullPlug, SetDeadline, SetDeadlineAndAskGuest};
    use Input as I;
    use Phase as P;
    use StopCause as C;
    use Verdict::{Admit, Deny, Ignore};

    match (phase, input) {
        (P::Ended(_), I::Stop) => Deny("the VM has ended already; its state.json says why"),
        (P::Ended(_), _) => Ignore,

        (P::Starting | P::StartingToStop, I::Stop) => Admit(P::StartingToStop, SetDeadline),
        (P::Running, I::Stop) => Admit(P::AskingGuest, SetDeadlineAndAskGuest),
        (P::AskingGuest | P::AskingHypervisor, I::Stop) => Admit(phase, SetDeadline),
        (P::Forcing, I::Stop) => Ignore,

        (P::Starting, I::Started) => Admit(P::Running, Nothing),
        (P::StartingToStop, I::Started) => Admit(P::AskingGuest, AskGuest),
        (P::Starting | P::StartingToStop, I::StartFailed) => Admit(P::Ended(C::StartFailed), Nothing),
        // a start that hangs is left behind: the VM, if it ever was one, ends with this process
        (P::StartingToStop, I::GraceOver) => Admit(P::Ended(C::Forced), Nothing),

        (P::AskingGuest, I::GuestUnasked | I::HalfGraceOver) => Admit(P::AskingHypervisor, PressPowerButton),
        (P::AskingGuest | P::AskingHypervisor, I::GraceOver) => Admit(P::Forcing, PullPlug),
        (P::Forcing, I::ForceFailed) => Admit(P::Ended(C::Forced), Nothing),

        (P::Starting | P::Running, I::GuestStopped) => Admit(P::Ended(C::GuestShutdown), Nothing),
        (P::StartingToStop | P::AskingGuest | P::AskingHypervisor, I::GuestStopped) => {
            Admit(P::Ended(C::Requested), Nothing)
        }
        (P::Forcing, I::GuestStopped | I::Crashed) => Admit(P::Ended(C::Forced), Nothing),
        (_, I::Crashed) => Admit(P::Ended(C::Crashed), Nothing),

        (_, I::Started | I::StartFailed | I::GuestUnasked | I::HalfGraceOver | I::GraceOver | I::ForceFailed) => Ignore,
    }
}

impl Phase {
    /// The state that others see.
    pub fn state(self) -> VmState {
        match self {
            Phase::Starting => VmState::Starting,
            Phase::Running => VmState::Running,
            Phase::StartingToStop | Phase::AskingGuest | Phase::AskingHypervisor | Phase::Forcing => VmState::Stopping,
            Phase::Ended(StopCause::Crashed | StopCause::StartFailed) => VmState::Failed,
            Phase::Ended(_) => VmState::Stopped,
        }
    }

    /// Why it ended, once it has.
    pub fn stop_cause(self) -> Option<StopCause> {
        match self {
            Phase::Ended(cause) => Some(cause),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::*;
    use Verdict::*;

    const PHASES: [Phase; 7] = [
        Phase::Starting,
        Phase::StartingToStop,
        Phase::Running,
        Phase::AskingGuest,
        Phase::AskingHypervisor,
        Phase::Forcing,
        Phase::Ended(StopCause::Requested),
    ];
    const INPUTS: [Input; 9] = [
        Input::Stop,
        Input::Started,
        Input::StartFailed,
        Input::GuestUnasked,
        Input::HalfGraceOver,
        Input::GraceOver,
        Input::GuestStopped,
        Input::Crashed,
        Input::ForceFailed,
    ];

    fn ended(cause: StopCause) -> Verdict {
        Admit(Phase::Ended(cause), Nothing)
    }

    /// One row per phase, one column per input: reviewed by hand, so that a changed rule is a changed
    /// line here.
    #[test]
    fn the_whole_table_is_as_written() {
        use Phase as P;
        use StopCause as C;
        let late = Deny("the VM has ended already; its state.json says why");
        #[rustfmt::skip]
        let table: [[Verdict; 9]; 7] = [
            // Stop, Started, StartFailed, GuestUnasked, HalfGraceOver, GraceOver, GuestStopped, Crashed, ForceFailed
            [Admit(P::StartingToStop, SetDeadline), Admit(P::Running, Nothing), ended(C::StartFailed), Ignore, Ignore, Ignore, ended(C::GuestShutdown), ended(C::Crashed), Ignore],
            [Admit(P::StartingToStop, SetDeadline), Admit(P::AskingGuest, AskGuest), ended(C::StartFailed), Ignore, Ignore, ended(C::Forced), ended(C::Requested), ended(C::Crashed), Ignore],
            [Admit(P::AskingGuest, SetDeadlineAndAskGuest), Ignore, Ignore, Ignore, Ignore, Ignore, ended(C::GuestShutdown), ended(C::Crashed), Ignore],
            [Admit(P::AskingGuest, SetDeadline), Ignore, Ignore, Admit(P::AskingHypervisor, PressPowerButton), Admit(P::AskingHypervisor, PressPowerButton), Admit(P::Forcing, PullPlug), ended(C::Requested), ended(C::Crashed), Ignore],
            [Admit(P::AskingHypervisor, SetDeadline), Ignore, Ignore, Ignore, Ignore, Admit(P::Forcing, PullPlug), ended(C::Requested), ended(C::Crashed), Ignore],
            [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, ended(C::Forced), ended(C::Forced), ended(C::Forced)],
            [late, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore],
        ];
        for (row, phase) in table.iter().zip(PHASES) {
            for (expected, input) in row.iter().zip(INPUTS) {
                assert_eq!(decide(phase, input), *expected, "{phase:?}, {input:?}");
            }
        }
    }

    #[test]
    fn from_every_phase_a_stop_and_the_end_of_its_grace_lead_to_the_end() {
        for start in PHASES {
            let mut phase = start;
            for input in [Input::Stop, Input::GraceOver, Input::ForceFailed] {
                if let Admit(next, _) = decide(phase, input) {
                    phase = next;
                }
            }
            assert!(matches!(phase, Phase::Ended(_)), "{start:?} is stuck in {phase:?}");
        }
    }

    #[test]
    fn a_stop_cause_stands_exactly_with_a_final_state() {
        for phase in PHASES {
            assert_eq!(phase.stop_cause().is_some(), phase.state().is_final());
        }
    }
}
