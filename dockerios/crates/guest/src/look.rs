//! Looks at the guest again and again. Invariant: what is published was judged: its stage is Ready only when the
//! checks of the image agree.

use std::time::Duration;

use dockerios_wire::Stage;
use tokio::{sync::watch, time::Instant};

use crate::{
    facts::{Facts, Probe},
    ready::Readiness,
};

/// How often.
#[derive(Debug, Clone, Copy)]
pub struct Rhythm {
    /// Between two looks.
    pub look: Duration,
    /// Between two rounds of the image's checks while the stage stays as it is.
    pub check: Duration,
}

/// Publishes into `facts` until nobody listens any more.
pub async fn keep_looking(mut probe: impl Probe, readiness: Readiness, rhythm: Rhythm, facts: watch::Sender<Facts>) {
    let mut said = Vec::new();
    let mut judged: Option<(Stage, Instant, Stage)> = None;
    while !facts.is_closed() {
        let mut seen = probe.look().await;
        let due = |(stage, at, _): &(Stage, Instant, Stage)| *stage != seen.facts.stage || at.elapsed() >= rhythm.check;
        if judged.as_ref().is_none_or(due) {
            let (stage, why) = readiness.judge(seen.facts.stage).await;
            judged = Some((seen.facts.stage, Instant::now(), stage));
            seen.troubles.extend(why.map(|why| format!("not ready: {why}")));
        } else {
            // between two rounds the last round's word is what the log has already
            seen.troubles
                .extend(said.iter().filter(|t: &&String| t.starts_with("not ready: ")).cloned());
        }
        if let Some((_, _, stage)) = judged {
            seen.facts.stage = stage;
        }
        for trouble in seen.troubles.iter().filter(|t| !said.contains(t)) {
            tracing::warn!("{trouble}");
        }
        said = seen.troubles;
        let news = seen.facts;
        facts.send_if_modified(|old| {
            let modified = *old != news;
            *old = news;
            modified
        });
        tokio::time::sleep(rhythm.look).await;
    }
}
