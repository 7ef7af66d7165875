//! What there is to tell about the pulls of a chassis.
//!
//! An agent reports facts, an event is told once: so only what has just happened is news, and whoever tells it remembers
//! for as long.

use k8s_openapi::jiff::Timestamp;
use macrack_api::rack::node::{AgentStatus, Pull};

/// How long something is news, in seconds: longer than an agent's report takes to arrive.
const NEWS: i64 = 60;

/// One thing to tell about a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The same for the same thing, so that it is told once.
    pub key: String,
    /// An event's reason.
    pub reason: &'static str,
    /// An event's note.
    pub message: String,
}

/// Whether what happened at `moment` is still to be told.
pub fn is_news(moment: Timestamp, now: Timestamp) -> bool {
    (now.as_second() - moment.as_second()).abs() <= NEWS
}

/// What is to be told of an agent's pulls; `name` knows an image by its digest.
pub fn news(agent: &AgentStatus, now: Timestamp, name: &dyn Fn(&str) -> Option<String>) -> Vec<News> {
    let of = |pull: &Pull| {
        let started = is_news(pull.started_at.0, now);
        let finished = pull.finished_at.as_ref().filter(|at| is_news(at.0, now));
        if !started && finished.is_none() {
            return Vec::new(); // to know an image by its digest takes a search
        }
        let golden = name(&pull.digest).unwrap_or_else(|| pull.digest.clone());
        let whole = amount(pull.total_bytes);
        let started = started.then(|| News {
            key: format!("{} {} started", pull.digest, pull.started_at.0),
            reason: "GoldenPulling",
            message: format!("pulls golden {golden}, {whole}"),
        });
        let finished = finished.map(|at| {
            let seconds = (at.0.as_second() - pull.started_at.0.as_second()).max(0);
            let rate = pull.bytes_per_second.map(|rate| format!(", {}/s", amount(rate))).unwrap_or_default();
            News {
                key: format!("{} {} finished", pull.digest, pull.started_at.0),
                reason: "GoldenPulled",
                message: format!("pulled golden {golden}: {whole} in {seconds} s{rate}, every byte checked"),
            }
        });
        started.into_iter().chain(finished).collect()
    };
    agent.pulls.iter().flat_map(of).collect()
}

/// `5.0 GB`, decimal as on a disk's label.
fn amount(bytes: i64) -> String {
    let (unit, name) = if bytes < 1_000_000_000 { (1_000_000, "MB") } else { (1_000_000_000, "GB") };
    let tenths = bytes.max(0) / (unit / 10);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or_default()
    }

    #[test]
    fn a_pull_is_told_when_it_begins_and_when_it_ends_and_not_for_ever() {
        let mut pull = Pull {
            digest: "sha256:ab".to_owned(),
            bytes: 0,
            total_bytes: 5_000_000_000,
            bytes_per_second: None,
            seconds_left: None,
            started_at: Time(at(1000)),
            finished_at: None,
        };
        let told = |pull: &Pull, now| {
            let agent = AgentStatus { pulls: vec![pull.clone()], ..AgentStatus::default() };
            let name = |digest: &str| (digest == "sha256:ab").then(|| "tahoe".to_owned());
            news(&agent, at(now), &name).into_iter().map(|news| news.message).collect::<Vec<_>>()
        };
        assert_eq!(told(&pull, 1003), ["pulls golden tahoe, 5.0 GB"]);
        assert!(told(&pull, 1100).is_empty(), "an operator that starts later has no news of it");
        (pull.finished_at, pull.bytes_per_second) = (Some(Time(at(1090))), Some(55_555_555));
        assert_eq!(told(&pull, 1100), ["pulled golden tahoe: 5.0 GB in 90 s, 55.5 MB/s, every byte checked"]);
        assert!(told(&pull, 1200).is_empty());
    }
}
