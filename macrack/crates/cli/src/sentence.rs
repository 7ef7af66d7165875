//! What an object waits for, since when, and the way out, from its conditions alone.
//!
//! Invariant: every reason that can stand on `Ready` has a way out, here ([`way_out`]) or in its own message
//! ([`SAID`]); a test goes through all of them.

use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use macrack_api::condition::{self, Condition, ConditionStatus};
use macrack_api::names::SYSTEM_NAMESPACE;
use macrack_api::{MacNode, MacNodeLease, MacOSImage, MacOSInstance};

use crate::times::{in_words, relative};

/// What every kind has.
struct Subject<'a> {
    /// `MacNodeLease team-b/more`.
    called: String,
    phase: Option<String>,
    conditions: &'a [Condition],
    created: Option<Timestamp>,
    /// A condition that does not hold although the summary may.
    but: Option<&'a Condition>,
    /// What was judged is older than what is written.
    behind: bool,
    /// Its way out for a reason.
    way_out: fn(&str) -> Option<&'static str>,
}

impl<'a> Subject<'a> {
    fn of<K: Resource<DynamicType = ()>>(
        object: &K,
        phase: Option<String>,
        observed: Option<i64>,
        conditions: &'a [Condition],
    ) -> Subject<'a> {
        let name = object.name_any();
        let name = object.namespace().map_or(name.clone(), |namespace| format!("{namespace}/{name}"));
        Subject {
            called: format!("{} {name}", K::kind(&())),
            phase,
            conditions,
            created: object.creation_timestamp().map(|time| time.0),
            but: None,
            behind: observed.is_some() && observed != object.meta().generation,
            way_out,
        }
    }

    fn ready(&self) -> Option<&'a Condition> {
        condition::find(self.conditions, "Ready")
    }

    /// The first sentence, and the way out.
    fn words(&self, now: Timestamp) -> Vec<String> {
        let Some(ready) = self.ready() else { return vec![self.unseen(now)] };
        let phase = self.phase.as_deref().unwrap_or("there");
        let since = relative(ready.last_transition_time.0, now);
        let message = in_words(ready.message.trim_end_matches('.'), now);
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        let first = match ready.status {
            ConditionStatus::True if self.but.is_some() => {
                format!("{} is {phase} since {since}{message}.", self.called)
            }
            ConditionStatus::True => {
                format!("{} is {phase} and waits for nothing, since {since}{message}.", self.called)
            }
            ConditionStatus::False if phase == ready.reason => {
                format!("{} is {phase}, not Ready since {since}{message}.", self.called)
            }
            ConditionStatus::False => {
                format!("{} is {phase} ({}), not Ready since {since}{message}.", self.called, ready.reason)
            }
            ConditionStatus::Unknown => {
                format!("Whether {} is Ready could not be observed since {since}{message}.", self.called)
            }
        };
        let mut words = vec![first];
        if ready.status != ConditionStatus::True {
            words.extend((self.way_out)(&ready.reason).map(str::to_owned));
        }
        words.extend(
            self.but.map(|but| format!("But {} ({}).", in_words(but.message.trim_end_matches('.'), now), but.reason)),
        );
        if self.behind {
            words.push("The operator has not looked at its latest edit yet.".to_owned());
        }
        words
    }

    fn unseen(&self, now: Timestamp) -> String {
        let made = self.created.map(|t| format!(" since it was made at {}", relative(t, now))).unwrap_or_default();
        format!(
            "{} has not been looked at by the operator{made}: does it run? (kubectl get pods -n {SYSTEM_NAMESPACE})",
            self.called
        )
    }
}

/// A chassis.
pub(crate) fn mac_node(node: &MacNode, now: Timestamp) -> String {
    let status = node.status.clone().unwrap_or_default();
    let phase = status.phase.map(|phase| format!("{phase:?}"));
    let subject = Subject::of(node, phase, status.observed_generation, &status.conditions);
    let mut words = subject.words(now);
    if let Some(deleted) = &node.metadata.deletion_timestamp {
        let then = relative(deleted.0, now);
        words.push(format!("It was deleted at {then} and goes when no lease holds it any more."));
    }
    words.join(" ")
}

/// A lease.
pub(crate) fn lease(lease: &MacNodeLease, now: Timestamp) -> String {
    let status = lease.status.clone().unwrap_or_default();
    let phase = status.phase.map(|phase| format!("{phase:?}"));
    let sick = condition::find(&status.conditions, "ChassisHealthy").filter(|c| c.status == ConditionStatus::False);
    let subject = Subject::of(lease, phase, status.observed_generation, &status.conditions);
    Subject { but: sick, ..subject }.words(now).join(" ")
}

/// An instance, and its lease where that can be read.
pub(crate) fn instance(instance: &MacOSInstance, its_lease: Option<&MacNodeLease>, now: Timestamp) -> String {
    let status = instance.status.clone().unwrap_or_default();
    let phase = status.phase.map(|phase| format!("{phase:?}"));
    let subject = Subject {
        way_out: instance_way_out,
        ..Subject::of(instance, phase, status.observed_generation, &status.conditions)
    };
    let mut words = subject.words(now);
    let because = |reason: &str| subject.ready().is_some_and(|ready| ready.reason == reason);
    if because("LeasePending")
        && let Some(its_lease) = its_lease
    {
        words.push(lease(its_lease, now));
    }
    if let Some(error) = status.vm.as_ref().and_then(|vm| vm.error.as_ref()).filter(|_| because("VMFailed")) {
        words.push(format!("The framework said {error}."));
    }
    let script = condition::find(&status.conditions, "FirstBootDone").filter(|c| c.reason == "ScriptFailed");
    if script.is_some() {
        let code = status.guest.and_then(|guest| guest.first_boot?.exit_code);
        let code = code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
        words.push(format!(
            "But its first-boot script failed{code} and is not run again; correct the script and make the instance anew."
        ));
    }
    words.join(" ")
}

/// A golden.
pub(crate) fn image(image: &MacOSImage, now: Timestamp) -> String {
    let status = image.status.clone().unwrap_or_default();
    let phase = status.phase.map(|phase| format!("{phase:?}"));
    Subject::of(image, phase, status.observed_generation, &status.conditions).words(now).join(" ")
}

/// What to do about a reason of a MacNode, a lease or an image, unless its message says it.
fn way_out(reason: &str) -> Option<&'static str> {
    Some(match reason {
        // MacNode
        "NodeNotReady" => {
            "Look at the Mac, its network and the log of its macrack-agent; it recovers by itself once the agent answers."
        }
        "NodeMissing" | "Unreadable" => "The operator goes on by itself; if it stays so, read the operator's log.",
        "QuotaStuck" => {
            "It ends with a reboot of the Mac. A lease keeps the Mac, and it starts VMs again in the new boot."
        }
        "ReattachFailed" => "It ends by itself when every VM answers again; read the log of macrack-agent on the Mac.",
        "SerialMismatch" => "Compare the board and the bootstrap file with spec.serial.",
        "WipeFailed" => "See on the Mac what is left in the agent's state directory; clear it by hand once nothing is.",
        "ForeignVM" => "End the other virtualization app on the Mac; the quarantine ends by itself then.",
        "NotWiped" | "Reconciling" => "It can be leased by itself after that; nothing shortens it.",
        "Deleting" => "Create it anew once it is gone.",
        // MacNodeLease
        "Binding" => "It takes a moment.",
        "NoChassisFree" => {
            "It is bound by itself as soon as one is free; another class may have one now: kubectl get mnc."
        }
        "SerialNotAvailable" => {
            "It is bound by itself when that Mac is free; without spec.serial it takes any of its class."
        }
        "HeldUntilFloor" => {
            "Nothing shortens it: the 24 hours are Apple's. Use the Mac meanwhile, new instances run until then."
        }
        "StillOccupied" => "It ends by itself once they are wiped; kubectl get mi shows them.",
        "Releasing" => "It goes by itself in a moment.",
        "Expired" => "Make a new lease to go on.",
        "ChassisMissing" => "An admin must create the MacNode of that serial again.",
        // MacOSImage
        "Resolving" => "It is looked up by itself.",
        "NotAGolden" => "Push it again, or correct spec.source.",
        _ => return None,
    })
}

/// What to do about a reason of an instance, unless its message says it.
fn instance_way_out(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Unreadable" => "It goes on by itself once that is mended; ask the platform team.",
        "LeasePending" => "It starts by itself when the lease has one.",
        "WaitingForSlot" => "It starts by itself when the slot is free.",
        "ChassisInMaintenance" => "It starts by itself when that is over; the platform team knows how long.",
        "ChassisQuarantined" => "It starts by itself when that ends; only the platform team can hurry it.",
        "HostUnreachable" => {
            "Its state is known again when the Mac answers; the platform team can retire a Mac that is dead."
        }
        "ClassNotFound" => "Make it anew with a class that exists.",
        "HostTooOld" => "It starts by itself once that Mac's macOS is upgraded; only the platform team can do it.",
        "DoesNotFit" => "Its class is fixed: make it anew with a smaller one.",
        "WaitingForScheduler" => {
            "It goes on by itself; if it stays so, the Mac's Node is cordoned or not Ready: ask the platform team."
        }
        "PlaceholderRefused" => "Free the name or the quota that the message names; it is tried again by itself.",
        "Scheduled" | "Pulling" | "Cloning" | "Starting" | "Booting" | "GuestNotReady" | "ScriptPending" => {
            "Nothing to do: it goes on by itself."
        }
        "AtLoginWindow" => "Only the golden can be mended: ask the platform team for one that logs a user in.",
        "ReadinessPending" => "The golden's own command is run again by itself; what it lacks, its message says.",
        "GuestNotHeard" => "It is tried again by itself; if it stays so, delete it and make it anew.",
        "Stopping" | "Wiping" => "Nothing to do: it ends by itself.",
        "PoweredOff" => "Set spec.powerState to Running to start it.",
        "GuestShutdown" => {
            "Set spec.powerState to Stopped and then to Running to start it; with spec.restartPolicy OnGuestShutdown it starts by itself."
        }
        "VMFailed" => "Delete it and make it anew.",
        "VMUnknown" => {
            "Its Mac starts nothing else until it answers; the platform team finds why in the log of macrack-agent."
        }
        "WipeFailed" => "The platform team must look at the Mac; until then the slot is not given on.",
        _ => return None,
    })
}

#[cfg(test)]
#[path = "sentence_tests.rs"]
mod tests;
