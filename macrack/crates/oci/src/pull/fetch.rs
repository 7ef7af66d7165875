//! One blob, from the first place that has it right.

use super::worker::{Fault, Worker};
use super::{Job, Pull};
use crate::client::{Body, Opened, RESTARTS, refused};
use crate::error::Error;
use crate::resume::{Local, Verdict, judge};
use crate::retry::Tries;

/// How reading an answer ended.
enum Read {
    /// All of the blob is here.
    Whole,
    /// It was cut, or too short.
    Cut(String),
    /// More came than there is, or the worker does not want more.
    Broken,
}

/// A blob on its way.
struct Fetch<'a> {
    pull: &'a Pull,
    job: Job,
    local: Local,
    worker: Option<Worker>,
    place: usize,
    restarts: u32,
    /// The most bytes of it that were here at once, since it was last begun anew.
    farthest: u64,
    /// Tries since it last came farther than that, of the requests too. Bytes that merely come again do not count: a
    /// place that heeds no ranges and cuts every answer would be asked for ever.
    tries: Tries,
}

impl Pull {
    /// Fetches a blob into its region.
    pub(super) async fn fetch(&self, job: Job) -> Result<(), Error> {
        let local = Local { have: 0, total: job.blob.size, etag: None };
        let tries = self.client.tries();
        let mut fetch = Fetch { pull: self, job, local, worker: None, place: 0, restarts: 0, farthest: 0, tries };
        loop {
            match fetch.try_once().await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    fetch.reset().await;
                    if matches!(error, Error::Stopped(_) | Error::NoSpace { .. } | Error::Io { .. }) {
                        return Err(error);
                    }
                    if fetch.place + 1 >= self.client.places(&self.reference) {
                        return Err(error);
                    }
                    tracing::debug!(blob = fetch.job.blob.digest, %error, "the next place is asked");
                    fetch.place += 1;
                    (fetch.restarts, fetch.farthest) = (0, 0);
                    fetch.tries.renew();
                }
            }
        }
    }
}

impl Fetch<'_> {
    fn what(&self) -> String {
        format!("{} of {}", self.job.blob.digest, self.pull.reference)
    }

    /// Asks once; true when the blob is in its place.
    async fn try_once(&mut self) -> Result<bool, Error> {
        let (blob, from) = (self.job.blob.clone(), self.local.have);
        let Opened { reply, body } =
            self.pull.client.open(&self.pull.reference, &blob, from, self.place, &mut self.tries).await?;
        match judge(&self.local, &reply) {
            Verdict::Append => {}
            Verdict::FromStart => self.reset().await,
            Verdict::Check => return self.finish().await,
            Verdict::Restart(why) => {
                self.restart(why).await?;
                return Ok(false);
            }
            Verdict::Gone => return Err(Error::NotFound(self.what())),
            Verdict::Refused => return Err(refused(&self.what(), reply.status, body).await),
        }
        self.local.etag = reply.etag;
        match self.read(body).await {
            Read::Whole | Read::Broken => self.finish().await,
            Read::Cut(why) => self.pause(why).await.map(|()| false),
        }
    }

    /// Hands what comes to the worker.
    async fn read(&mut self, mut body: Body) -> Read {
        let what = self.what();
        let worker = self.worker.get_or_insert_with(|| Worker::start(self.pull, self.job.clone()));
        loop {
            match body.next(&what).await {
                Ok(Some(bytes)) => {
                    let size = bytes.len() as u64;
                    if self.local.have + size > self.local.total || !worker.push(bytes).await {
                        self.local.have = self.local.have.saturating_add(size);
                        return Read::Broken;
                    }
                    self.local.have += size;
                    if self.local.have > self.farthest {
                        self.farthest = self.local.have;
                        self.tries.renew();
                    }
                }
                Ok(None) if self.local.have == self.local.total => return Read::Whole,
                Ok(None) => {
                    return Read::Cut(format!("{} of {} bytes came", self.local.have, self.local.total));
                }
                // some servers cut right behind the last byte
                Err(_) if self.local.have == self.local.total => return Read::Whole,
                Err(error) => return Read::Cut(error.to_string()),
            }
        }
    }

    /// Asks the worker whether what came is right.
    async fn finish(&mut self) -> Result<bool, Error> {
        let too_much = self.local.have > self.local.total;
        let Some(worker) = self.worker.take() else {
            return self.restart("it is said to be here whole, and is not").await.map(|()| false);
        };
        if too_much {
            // the worker may have ended by itself, for a reason of its own
            worker.discard().await;
            return self.restart("more bytes came than it has").await.map(|()| false);
        }
        match worker.finish().await {
            Ok(()) => Ok(true),
            Err(Fault::Ended(error)) => Err(error),
            Err(Fault::Wrong(why)) => self.restart(&why).await.map(|()| false),
        }
    }

    /// Begins anew from nothing, as often as that may help.
    async fn restart(&mut self, why: &str) -> Result<(), Error> {
        self.reset().await;
        self.farthest = 0;
        self.restarts += 1;
        if self.restarts > RESTARTS {
            return Err(Error::NotAGolden(format!("{}: {why}; so it was twice", self.what())));
        }
        tracing::warn!(blob = self.job.blob.digest, why, "fetched anew from its start");
        Ok(())
    }

    async fn reset(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.discard().await;
            self.job.dirty = true;
        }
        // also after a worker that ended by itself
        self.job.dirty |= self.local.have > 0;
        (self.local.have, self.local.etag) = (0, None);
    }

    async fn pause(&mut self, why: String) -> Result<(), Error> {
        let next = format!("the rest is asked for, from byte {} on", self.local.have);
        self.tries.wait(Error::transient(self.what(), why), &next).await
    }
}
