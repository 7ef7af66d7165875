//! The loop: take in what was seen, decide about what is due, have it carried out.
//!
//! Deciding happens here and nowhere else, one object after the other, without waiting for anything. Carrying out
//! happens beside it, for many objects at once.

use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, Instant},
};

use dockerios_api::config::platform_config::Headroom;
use dockerios_core::{Id, Kind, News, check::check};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::{mpsc, watch};

use crate::{
    act::{Hands, Outcome},
    acting::Acting,
    api::PATIENCE,
    feed::feed,
    headroom::Reading,
    index::Index,
    metrics::{Metrics, Question, fleet::Fleet},
    pass::{Pass, pass},
    queue::{PAUSE, Queue, SOON},
    rights::{self, Answer, CloneSource},
    route::{own_pass, route},
    shelf::Change,
    source::Source,
    world::{Notice, World},
};

/// Notices that may wait to be taken in; feeds wait beyond.
const BACKLOG: usize = 4096;
/// Plans that are carried out at once.
const HANDS: usize = 64;
/// A pass of every object that often, though nothing changed: for what no watch tells.
const ROUND: Duration = Duration::from_secs(600);

/// A pass that asks to be made again, and finds nothing to do, is made no sooner: one that asks for a moment that has
/// passed, as while nobody may decide that a time is over, would else be all that this task does.
const MOMENT: Duration = Duration::from_secs(1);

/// The loop and what it holds.
pub struct Engine {
    world: World,
    queue: Queue,
    hands: Hands,
    recorder: Recorder,
    acting: Acting,
    notices: mpsc::Receiver<(Source, Notice)>,
    readings: mpsc::Receiver<Reading>,
    answers: mpsc::Receiver<Answer>,
    metrics: Metrics,
    /// Scrapes that ask for the fleet.
    questions: mpsc::Receiver<Question>,
    /// Headroom rules, for those who ask how much room there is.
    rules: watch::Sender<Vec<Headroom>>,
    /// From what is cloned, for those who ask whether that is allowed.
    sources: watch::Sender<BTreeSet<CloneSource>>,
    /// Sources that have said nothing yet, good or bad. Nothing is decided before all have spoken.
    silent: HashSet<Source>,
}

impl Engine {
    /// Starts the feeds. Nothing is decided before [`Engine::run`].
    pub fn start(
        client: Client,
        hands: Hands,
        world: World,
        metrics: Metrics,
        questions: mpsc::Receiver<Question>,
    ) -> Self {
        let (say, notices) = mpsc::channel(BACKLOG);
        for source in Source::ALL {
            tokio::spawn(feed(
                client.clone(),
                source,
                world.platform_namespace.clone(),
                say.clone(),
            ));
        }
        let (tell, readings) = mpsc::channel(16);
        let (rules, told) = watch::channel(Vec::new());
        tokio::spawn(crate::headroom::watch(told, tell));
        let (answer, answers) = mpsc::channel(16);
        let (sources, asked) = watch::channel(world.clone_sources());
        tokio::spawn(rights::watch(client.clone(), asked, answer));
        let reporter = Reporter {
            controller: "dockerios-operator".into(),
            instance: None,
        };
        Self {
            world,
            queue: Queue::default(),
            hands,
            recorder: Recorder::new(client, reporter),
            acting: Acting::default(),
            notices,
            readings,
            answers,
            metrics,
            questions,
            rules,
            sources,
            silent: Source::ALL.into_iter().collect(),
        }
    }

    /// Runs until the feeds end, which they do not.
    pub async fn run(mut self) {
        self.metrics.elected();
        let mut round = tokio::time::interval(ROUND);
        loop {
            let wake = self.queue.next_wake().unwrap_or_else(|| Instant::now() + ROUND);
            tokio::select! {
                notice = self.notices.recv() => match notice {
                    Some(notice) => self.take_all(notice),
                    None => return,
                },
                Some((id, outcome)) = self.acting.next(), if !self.acting.is_empty() => self.finished(&id, outcome),
                Some(reading) = self.readings.recv() => self.read(reading),
                Some(answer) = self.answers.recv() => self.answered(answer),
                Some(question) = self.questions.recv() => {
                    // whoever asked may have gone
                    question.send(self.fleet()).ok();
                }
                _ = round.tick() => self.everything(),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            self.decide_what_is_due();
        }
    }

    /// Takes in a notice and all that wait behind it: many changes of one object are one pass.
    fn take_all(&mut self, first: (Source, Notice)) {
        let mut next = Some(first);
        let mut images = false;
        while let Some((source, notice)) = next {
            self.silent.remove(&source);
            images |= source == Source::Images;
            let changes = self.world.take(source, notice);
            for change in &changes {
                if change.after.is_empty() {
                    self.forget_gone(source, change);
                }
                for id in route(&self.world, source, change) {
                    self.queue.ask(id);
                }
            }
            next = self.notices.try_recv().ok();
        }
        self.pass_on_rules();
        if images {
            self.pass_on_sources();
        }
        self.unpark();
    }

    /// What was refused to one that is gone is not said of the next of its name.
    fn forget_gone(&mut self, source: Source, change: &Change) {
        if let Some(kind) = own_pass(source) {
            let (namespace, name) = &change.at;
            self.forget(&Id::new(kind, namespace, name));
        }
    }

    fn forget(&mut self, id: &Id) {
        self.world.remember(id, None);
        self.queue.succeeded(id);
    }

    fn pass_on_sources(&self) {
        let wanted = self.world.clone_sources();
        self.sources.send_if_modified(|sources| {
            let news = *sources != wanted;
            if news {
                *sources = wanted;
            }
            news
        });
    }

    fn pass_on_rules(&self) {
        let platform = self.world.platform();
        let storage = platform.present().and_then(|p| p.spec.storage.as_ref());
        let wanted = storage.map(|s| s.headroom.as_slice()).unwrap_or_default();
        self.rules.send_if_modified(|rules| {
            let news = rules.as_slice() != wanted;
            if news {
                *rules = wanted.to_vec();
            }
            news
        });
    }

    fn decide_what_is_due(&mut self) {
        if !self.silent.is_empty() {
            return;
        }
        while self.acting.len() < HANDS {
            let Some(id) = self.queue.pop(Instant::now()) else {
                return;
            };
            match pass(&self.world, &id, Timestamp::now()) {
                Some(pass) => self.pursue(id, pass),
                // it is gone, and its last steps may have failed after it went: nothing of it is kept
                None => self.forget(&id),
            }
        }
    }

    /// Judges the plan and has it carried out.
    fn pursue(&mut self, id: Id, pass: Pass) {
        if let Some(wake) = pass.plan.wake {
            self.queue.ask_at(id.clone(), Instant::now() + until(wake).max(MOMENT));
        }
        if let Err(broken) = check(&pass.plan) {
            // a defect of ours: nothing of the plan is done
            tracing::error!(%id, broken, "a plan breaks an invariant and is not carried out");
            debug_assert!(false, "{id}: {broken}");
            return;
        }
        if pass.plan.idle() {
            self.world.remember(&id, None);
            self.queue.succeeded(&id);
            return;
        }
        self.queue.begin(id.clone());
        self.world.promises.make(&id, &pass.plan);
        let (hands, recorder) = (self.hands.clone(), self.recorder.clone());
        let acts = self.metrics.acts().clone();
        self.acting.begin(id.clone(), async move {
            let outcome = hands.carry_out(&id, &pass.version, &pass.plan, pass.osk.as_ref()).await;
            acts.passed(id.kind.address().kind, &outcome);
            if outcome.stands {
                pass.measures.iter().for_each(|measure| acts.note(measure));
            }
            // what could not be written is not told as done
            if outcome.later.is_none() && !outcome.conflict {
                tell(&recorder, &id, &pass.uid, &pass.plan.news).await;
            }
            outcome
        });
    }

    fn finished(&mut self, id: &Id, outcome: Outcome) {
        let news = outcome.refusal != self.world.refusal(id);
        let refused = outcome.refusal.is_some();
        self.world.remember(id, outcome.refusal);
        let nothing_to_see = outcome.barrier.is_empty();
        self.queue.finish(id, outcome.barrier);
        if nothing_to_see {
            self.settle(id);
        }
        let now = Instant::now();
        if outcome.later.is_some() || (refused && !news) {
            self.queue.failed(id, now, PAUSE);
        } else if refused || outcome.conflict {
            // a new refusal is to be said at once; a conflict means that the facts have changed
            self.queue.failed(id, now, SOON);
        } else {
            self.queue.succeeded(id);
        }
        self.unpark();
    }

    /// Those whose writes were all seen are decided about again.
    fn unpark(&mut self) {
        let world = &self.world;
        for id in self.queue.unpark(|source, version| world.caught_up(source, version)) {
            self.settle(&id);
        }
    }

    /// What the pass did for claims was seen, or came to nothing: they may be decided about.
    fn settle(&mut self, id: &Id) {
        for uid in self.world.promises.settle(id) {
            for (namespace, name) in self.world.claims.places(Index::Uid, &uid) {
                self.queue.ask(Id::new(Kind::MacOSMachineClaim, namespace, name));
            }
        }
    }

    fn read(&mut self, reading: Reading) {
        if self.world.capacity.take(reading) {
            for (namespace, name) in self.world.machines.every_place() {
                self.queue.ask(Id::new(Kind::MacOSMachine, namespace, name));
            }
        }
    }

    /// Machines wait for the right to clone from the platform namespace, images for that to their sources.
    fn answered(&mut self, answer: Answer) {
        let kind = match answer.source.name {
            None => Kind::MacOSMachine,
            Some(_) => Kind::MacOSImage,
        };
        if self.world.rights.take(answer) {
            let places = match kind {
                Kind::MacOSMachine => self.world.machines.every_place(),
                _ => self.world.images.every_place(),
            };
            for (namespace, name) in places {
                self.queue.ask(Id::new(kind, namespace, name));
            }
        }
    }

    /// What a scrape is told; before all is known, a fleet would look empty.
    fn fleet(&self) -> Option<Fleet> {
        self.silent.is_empty().then(|| {
            self.metrics.acts().begin(&self.world);
            Fleet::of(&self.world)
        })
    }

    fn everything(&mut self) {
        self.metrics.acts().keep(&self.world);
        for (source, places) in self.world.places_with_a_pass() {
            if let Some(kind) = own_pass(source) {
                places
                    .into_iter()
                    .for_each(|(namespace, name)| self.queue.ask(Id::new(kind, namespace, name)));
            }
        }
    }
}

/// From now until that moment; nothing if it has passed.
fn until(moment: Timestamp) -> Duration {
    Duration::try_from(moment.duration_since(Timestamp::now())).unwrap_or_default()
}

async fn tell(recorder: &Recorder, id: &Id, uid: &str, news: &[News]) {
    let at = id.kind.address();
    let regarding = ObjectReference {
        api_version: Some(at.api_version()),
        kind: Some(at.kind.into()),
        name: Some(id.name.clone()),
        namespace: (!id.namespace.is_empty()).then(|| id.namespace.clone()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    };
    for News { warning, reason, note } in news {
        let event = Event {
            type_: if *warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.clone(),
            note: Some(note.clone()),
            action: reason.clone(),
            secondary: None,
        };
        match tokio::time::timeout(PATIENCE, recorder.publish(&event, &regarding)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%id, %error, "an event could not be told"),
            Err(_) => tracing::warn!(%id, "an event could not be told: no answer"),
        }
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
