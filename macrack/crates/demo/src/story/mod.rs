//! The story, step by step. Every step runs what a person would type, and watches for what must come of it.

mod agent;
mod held;
mod lease;
mod quota;
mod stops;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use macrack_api::instance::macos_instance::GuestStage;
use macrack_api::{MacNodeLease, MacOSInstance, condition};

use macrack_testkit::Registry;

use crate::cluster::{Cluster, Output, Person};
use crate::install::Operator;
use crate::macs::Mac;
use crate::say::{Say, Tone};
use crate::seen::until;

/// Everything that the story happens on.
pub(crate) struct Stage {
    pub(crate) say: Say,
    pub(crate) cluster: Arc<Cluster>,
    /// Serves the golden.
    pub(crate) _registry: Registry,
    pub(crate) operator: Operator,
    pub(crate) macs: Vec<Mac>,
    pub(crate) team_a: Person,
    pub(crate) team_b: Person,
    pub(crate) bin_dir: PathBuf,
}

/// Tells it. An error says in which step.
pub(crate) async fn tell(stage: &mut Stage) -> Result<()> {
    lease::a_mac(stage).await.context("step 1 (team-a leases a Mac) did not happen")?;
    lease::two_vms(stage).await.context("step 2 (two macOS VMs) did not happen")?;
    stops::a_third(stage).await.context("step 3 (a third is stopped) did not happen")?;
    lease::somebody_else(stage).await.context("step 4 (somebody else) did not happen")?;
    agent::is_killed(stage).await.context("step 5 (the agent is killed) did not happen")?;
    quota::sticks(stage).await.context("step 6 (the kernel's counter sticks) did not happen")?;
    held::lets_go(stage).await.context("step 7 (team-a lets go) did not happen")
}

impl Stage {
    fn mac(&mut self, serial: &str) -> Result<&mut Mac> {
        let found = self.macs.iter_mut().find(|mac| mac.serial == serial);
        found.with_context(|| format!("no Mac of this demo has the serial {serial}"))
    }

    /// Runs a command that is printed as it is.
    async fn shown(&self, person: &Person, arguments: &str) -> Result<Output> {
        self.say.command(&format!("kubectl {arguments}"));
        self.cluster.kubectl(person, arguments).await
    }

    /// What MacRack says about an object: the message of its Ready condition.
    async fn why(&self, person: &Person, object: &str) -> Result<()> {
        let words = self.shown(person, &format!("macrack why {object}")).await?.worked()?;
        self.say.quote(words.trim());
        Ok(())
    }
}

/// The reason and the message of Ready.
fn ready(conditions: &[condition::Condition]) -> (String, String) {
    condition::find(conditions, "Ready").map(|c| (c.reason.clone(), c.message.clone())).unwrap_or_default()
}

/// Follows a lease and tells its phases, until one of these words is its phase or its reason.
async fn follow_lease(
    stage: &Stage,
    namespace: &str,
    name: &str,
    began: Instant,
    wanted: &str,
) -> Result<MacNodeLease> {
    let leases: Api<MacNodeLease> = Api::namespaced(stage.cluster.admin().await?, namespace);
    let mut told = String::new();
    until(&leases, name, wanted, |lease: &MacNodeLease| {
        let Some(status) = &lease.status else { return false };
        let Some(phase) = status.phase.map(|phase| format!("{phase:?}")) else { return false };
        let (reason, message) = ready(&status.conditions);
        if told != phase {
            let tone = if phase == "Bound" { Tone::Good } else { Tone::Wait };
            let word = stage.say.paint(tone, format!("{phase:<9}"));
            stage.say.moment(began, format!("{name:<13}{word} {}", brief(&phase, &message, status)));
            told.clone_from(&phase);
        }
        phase == wanted || reason == wanted
    })
    .await
}

fn brief(phase: &str, message: &str, status: &macrack_api::MacNodeLeaseStatus) -> String {
    match (phase, &status.serial, &status.earliest_release_at) {
        ("Bound", Some(serial), Some(until)) => {
            let day = until.0.strftime("%a %d %b %H:%M:%S UTC");
            format!("{serial}, yours until at least {day} ({})", hours(until.0))
        }
        _ => message.to_owned(),
    }
}

fn hours(moment: Timestamp) -> String {
    let minutes = (moment.as_second() - Timestamp::now().as_second() + 30) / 60;
    if minutes % 60 == 0 { format!("{}h", minutes / 60) } else { format!("{}h{}m", minutes / 60, minutes % 60) }
}

/// Follows an instance and tells its phases and its guest's stages, until its phase or reason is the one wanted.
async fn follow_instance(
    stage: &Stage,
    namespace: &str,
    name: &str,
    began: Instant,
    wanted: &str,
) -> Result<MacOSInstance> {
    let instances: Api<MacOSInstance> = Api::namespaced(stage.cluster.admin().await?, namespace);
    let (mut life, mut progress) = (Life::default(), String::new());
    until(&instances, name, wanted, |instance: &MacOSInstance| {
        let Some(status) = &instance.status else { return false };
        let Some(phase) = status.phase.map(|phase| format!("{phase:?}")) else { return false };
        // the operator's word and the guest's own come by two writes
        let heard = status.guest.as_ref().is_some_and(|guest| guest.stage == Some(GuestStage::Ready));
        if phase == "Ready" && !heard {
            return false;
        }
        let (reason, message) = ready(&status.conditions);
        let booted = status.guest.as_ref().and_then(|guest| guest.stage).map(|stage| format!("{stage:?}"));
        let detail = match phase.as_str() {
            "Scheduled" => status.node_name.as_ref().map(|node| format!("on Node {node}")).unwrap_or_default(),
            // at the first report there is no rate yet that means anything
            "Pulling" => format!("{}, {}", instance.spec.image_name, message.split(',').next().unwrap_or_default()),
            "Ready" => guest_words(instance),
            "Stopped" => message.split(';').next().unwrap_or_default().to_owned(),
            _ => message.clone(),
        };
        // a line whenever there is news of a pull that has a rate
        if phase == "Pulling" && message.contains("/s") && progress != message && life.told == phase {
            let word = stage.say.paint(Tone::Wait, format!("{phase:<9}"));
            stage.say.moment(began, format!("{name:<13}{word}  {}, {message}", instance.spec.image_name));
            progress.clone_from(&message);
        }
        if let Some((words, detail)) = life.enters(&phase, booted.as_deref(), &detail) {
            let tone = match phase.as_str() {
                "Ready" => Tone::Good,
                "Failed" => Tone::No,
                _ => Tone::Wait,
            };
            stage.say.moment(began, format!("{name:<13}{}  {detail}", stage.say.paint(tone, format!("{words:<9}"))));
        }
        phase == wanted || reason == wanted
    })
    .await
}

/// What was told of an instance. What passes quickly is told in one line with what it leads to.
#[derive(Default)]
struct Life {
    told: String,
    passed: Vec<String>,
}

impl Life {
    /// The words of a line and what stands behind them, if this is something to tell now.
    fn enters<'a>(&mut self, phase: &str, booted: Option<&str>, detail: &'a str) -> Option<(String, &'a str)> {
        let quick = match (phase, booted) {
            ("Cloning", _) => Some("Cloning"),
            ("Starting", None) => Some("Starting"),
            // the guest is ready a moment before its instance is
            ("Starting", Some("Ready")) => None,
            ("Starting", Some(stage)) => Some(stage),
            _ => {
                if self.told == phase {
                    return None;
                }
                phase.clone_into(&mut self.told);
                let words = self.passed.drain(..).chain([phase.to_owned()]).collect::<Vec<_>>().join(" > ");
                return Some((words, detail));
            }
        };
        let quick = quick?.to_owned();
        if self.passed.last() != Some(&quick) {
            self.passed.push(quick);
        }
        None
    }
}

fn guest_words(instance: &MacOSInstance) -> String {
    let Some(guest) = instance.status.as_ref().and_then(|status| status.guest.as_ref()) else {
        return String::new();
    };
    let mut words: Vec<String> = Vec::new();
    words.extend(guest.os_version.as_ref().map(|version| format!("macOS {version}")));
    words.extend(guest.xcode_version.as_ref().map(|version| format!("Xcode {version}")));
    words.extend(guest.addresses.first().cloned());
    words.extend(guest.first_boot.as_ref().map(|script| format!("first-boot script {:?}", script.state)));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::Life;

    #[test]
    fn what_passes_quickly_is_told_with_what_it_leads_to() {
        let mut life = Life::default();
        let mut told = Vec::new();
        for (phase, booted) in [
            ("Pulling", None),
            ("Pulling", None),
            ("Cloning", None),
            ("Starting", None),
            ("Starting", Some("Booting")),
            ("Starting", Some("Booting")),
            ("Starting", Some("LoginWindow")),
            ("Starting", Some("Ready")),
            ("Ready", Some("Ready")),
            ("Ready", Some("Ready")),
            ("Stopped", None),
        ] {
            told.extend(life.enters(phase, booted, "").map(|(words, _)| words));
        }
        assert_eq!(told, ["Pulling", "Cloning > Starting > Booting > LoginWindow > Ready", "Stopped"]);
    }
}
