//! The link to an untrusted guest: connects for as long as the VM runs, believes what keeps within
//! bounds, and hands over the first-boot script once.
//!
//! Invariant: whatever a guest does ends at most one conversation. After that it counts as not heard,
//! with the reason, and is tried again after a wait that grows while it keeps misbehaving.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use macrack_wire::client::Client;
use macrack_wire::guest::printable;
use macrack_wire::link::Limits;
use macrack_wire::message::{Body, Reply};
use macrack_wire::{GuestReport, GuestVerb, Role, WireError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::hypervisor::GuestPort;
use crate::rate::Rate;

/// How long one connect may take: the call hangs while a guest does not listen.
const CONNECT: Duration = Duration::from_secs(2);
/// The first wait before another connect. Nothing tells when a guest begins to listen.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// The longest wait while the guest is booting.
const BOOTING_WAIT: Duration = Duration::from_secs(1);
/// The longest wait while the guest answers and is not believed.
const DISTRUST_WAIT: Duration = Duration::from_secs(60);
/// A conversation that lasted this long clears the record of those before it.
const HONEST: Duration = Duration::from_secs(30);
/// Between signs of life that are asked of a quiet guest.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What is to be told to the guest about its first boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstBootOrder {
    /// There is no script.
    None,
    /// The script lies here.
    Script(PathBuf),
    /// The guest has it; what became of it, the guest knows.
    Handed,
}

/// What the owner of the VM hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The guest says this of itself.
    Heard(GuestReport),
    /// The guest is not heard, for this reason.
    NotHeard(String),
    /// The guest has acknowledged the script.
    FirstBootHanded,
    /// The guest refused the script, or it could not be read. It is offered again with each sign of life.
    FirstBootNotHanded(String),
    /// Whether the guest took an order to shut down.
    ShutdownAsked(bool),
}

/// The link's task.
#[derive(Debug)]
pub struct GuestLink<P> {
    /// The way to the guest.
    pub port: P,
    /// About its first boot.
    pub first_boot: FirstBootOrder,
    /// To the owner of the VM; the task ends when nobody listens.
    pub news: mpsc::Sender<News>,
    /// Orders to shut the guest down.
    pub shutdowns: mpsc::Receiver<()>,
}

/// Nobody listens to the news any more.
struct Unwanted;

impl<P: GuestPort> GuestLink<P> {
    /// Runs until the owner of the VM has gone.
    pub async fn run(mut self) {
        let mut booting_wait = FIRST_WAIT;
        let mut distrust_wait = FIRST_WAIT;
        loop {
            let wait = match timeout(CONNECT, self.port.connect()).await {
                Ok(Ok(stream)) => {
                    booting_wait = FIRST_WAIT;
                    let began = Instant::now();
                    let Err(error) = self.converse(stream).await else {
                        return;
                    };
                    let reason = printable(&error.to_string());
                    tracing::warn!(%reason, "the guest is not heard any more");
                    if self.tell(News::NotHeard(reason)).await.is_err() {
                        return;
                    }
                    distrust_wait =
                        if began.elapsed() >= HONEST { FIRST_WAIT } else { (distrust_wait * 2).min(DISTRUST_WAIT) };
                    distrust_wait
                }
                Ok(Err(_)) | Err(_) => {
                    let wait = booting_wait;
                    booting_wait = (booting_wait * 3 / 2).min(BOOTING_WAIT);
                    wait
                }
            };
            if self.rest(wait).await.is_err() {
                return;
            }
        }
    }

    /// Waits, and meanwhile says of orders that there is no guest to take them.
    async fn rest(&mut self, wait: Duration) -> Result<(), Unwanted> {
        let until = Instant::now() + wait;
        loop {
            tokio::select! {
                () = sleep_until(until) => return Ok(()),
                order = self.shutdowns.recv() => match order {
                    Some(()) => self.tell(News::ShutdownAsked(false)).await?,
                    None => return Err(Unwanted),
                },
            }
        }
    }

    async fn tell(&self, news: News) -> Result<(), Unwanted> {
        self.news.send(news).await.map_err(|_| Unwanted)
    }

    /// One conversation. `Ok` when nobody listens any more, an error when it failed.
    async fn converse(&mut self, stream: P::Stream) -> Result<(), WireError> {
        let limits = Limits::GUEST;
        let client = Client::greet(stream, limits, Role::Vm, Role::Guest).await?;
        let mut conversation = Conversation {
            client,
            questions: VecDeque::from([Question::Watch]),
            open: None,
            watch: None,
            patience: limits.patience,
            heard: None,
        };
        match &self.first_boot {
            FirstBootOrder::None => conversation.questions.push_back(Question::NoFirstBoot),
            FirstBootOrder::Script(_) => conversation.questions.push_back(Question::FirstBoot),
            FirstBootOrder::Handed => {}
        }
        let ended = self.hold(&mut conversation).await;
        if conversation.asks(Question::Shutdown) && self.tell(News::ShutdownAsked(false)).await.is_err() {
            return Ok(());
        }
        ended
    }

    async fn hold(&mut self, talk: &mut Conversation<P::Stream>) -> Result<(), WireError> {
        let mut rate = Rate::new(Instant::now());
        let mut quiet_since = Instant::now();
        loop {
            if talk.open.is_none()
                && let Some(question) = talk.questions.pop_front()
                && let Some(verb) = self.verb(question).await
            {
                talk.ask(question, verb).await?;
            }
            let due = talk.open.map(|open| open.due);
            let news = tokio::select! {
                reply = talk.client.next() => {
                    quiet_since = Instant::now();
                    if !rate.spend(quiet_since) {
                        return Err(WireError::OutOfBounds("it says too much".to_owned()));
                    }
                    let reply = reply?.ok_or(WireError::Closed("a report"))?;
                    talk.take(reply)?
                }
                () = sleep_until(due.unwrap_or(quiet_since + HEARTBEAT)) => {
                    if due.is_some() {
                        let after = talk.patience;
                        return Err(WireError::Timeout { what: "an answer of the guest", after });
                    }
                    talk.questions.push_back(Question::SignOfLife);
                    if matches!(self.first_boot, FirstBootOrder::Script(_)) {
                        // a guest whose disk was full, or a script that could not be read: either may pass
                        talk.questions.push_back(Question::FirstBoot);
                    }
                    continue;
                }
                order = self.shutdowns.recv() => {
                    let Some(()) = order else { return Ok(()) };
                    talk.questions.push_front(Question::Shutdown);
                    continue;
                }
            };
            for news in news {
                if news == News::FirstBootHanded {
                    self.first_boot = FirstBootOrder::Handed;
                }
                if self.tell(news).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// The verb of a question; `None` when it cannot be asked, which has then been told.
    async fn verb(&self, question: Question) -> Option<GuestVerb> {
        Some(match question {
            Question::Watch => GuestVerb::Watch,
            Question::SignOfLife => GuestVerb::Describe,
            Question::NoFirstBoot => GuestVerb::NoFirstBoot,
            Question::Shutdown => GuestVerb::Shutdown,
            Question::FirstBoot => {
                let FirstBootOrder::Script(path) = &self.first_boot else {
                    return None;
                };
                match tokio::fs::read_to_string(path).await {
                    Ok(script) => GuestVerb::RunFirstBoot { script },
                    Err(error) => {
                        let why = format!("{}: {error}", path.display());
                        // an owner that has gone is noticed at the next turn
                        let _ = self.tell(News::FirstBootNotHanded(printable(&why))).await;
                        return None;
                    }
                }
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Watch,
    SignOfLife,
    FirstBoot,
    NoFirstBoot,
    Shutdown,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    question: Question,
    id: u64,
    due: Instant,
}

/// One question is open at a time, and the watch beside it.
struct Conversation<S> {
    client: Client<S, GuestVerb, GuestReport>,
    questions: VecDeque<Question>,
    open: Option<Open>,
    watch: Option<u64>,
    patience: Duration,
    heard: Option<GuestReport>,
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Conversation<S> {
    async fn ask(&mut self, question: Question, verb: GuestVerb) -> Result<(), WireError> {
        let id = self.client.send(verb).await?;
        let due = Instant::now() + self.patience;
        self.open = Some(Open { question, id, due });
        if question == Question::Watch {
            self.watch = Some(id);
        }
        Ok(())
    }

    fn asks(&self, question: Question) -> bool {
        self.questions.contains(&question) || self.open.is_some_and(|open| open.question == question)
    }

    /// What a reply means. One that answers nothing that was asked ends the conversation.
    fn take(&mut self, reply: Reply<GuestReport>) -> Result<Vec<News>, WireError> {
        let answered = self.open.filter(|open| reply.id == Some(open.id));
        let watched = self.watch.is_some() && reply.id == self.watch;
        if answered.is_some() {
            self.open = None;
        }
        match (reply.body, answered) {
            (Body::Event(report), _) if watched => self.hear(report),
            (Body::Report(report), Some(open)) if open.question != Question::Watch => {
                let mut news = self.hear(report)?;
                match open.question {
                    Question::FirstBoot => news.push(News::FirstBootHanded),
                    Question::Shutdown => news.push(News::ShutdownAsked(true)),
                    _ => {}
                }
                Ok(news)
            }
            (Body::Error(refusal), Some(open)) => match open.question {
                Question::FirstBoot => {
                    let why = printable(&refusal.message);
                    Ok(vec![News::FirstBootNotHanded(why)])
                }
                Question::Shutdown => Ok(vec![News::ShutdownAsked(false)]),
                _ => Err(WireError::Refused(refusal)),
            },
            _ => Err(WireError::OutOfOrder {
                expected: self.open.or(answered).map_or(0, |open| open.id),
                found: reply.id,
            }),
        }
    }

    fn hear(&mut self, report: GuestReport) -> Result<Vec<News>, WireError> {
        let report = report.believe()?;
        if self.heard.as_ref() == Some(&report) {
            return Ok(Vec::new());
        }
        self.heard = Some(report.clone());
        Ok(vec![News::Heard(report)])
    }
}
