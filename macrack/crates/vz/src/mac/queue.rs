//! Objects that belong to one serial queue.
//!
//! Invariant: what is inside is touched on the queue alone, and released there.

use std::sync::{Arc, Mutex, PoisonError};

use dispatch2::{DispatchQueue, DispatchQueueAttr, DispatchRetained};
use macrack_wire::VmError;
use objc2::rc::autoreleasepool;
use tokio::sync::oneshot;

use super::error::{gone, tried};

/// Something on its queue. Clones share both.
pub(super) struct Bound<T: 'static> {
    queue: DispatchRetained<DispatchQueue>,
    /// `None` only while being dropped.
    inside: Option<Arc<Inside<T>>>,
}

struct Inside<T>(T);

// SAFETY: `Bound` gives the inside to closures on the queue only, which is serial, and its last reference is dropped
// by such a closure (see `Drop`).
unsafe impl<T> Send for Inside<T> {}
// SAFETY: as above; no two threads are in closures of one serial queue at a time.
unsafe impl<T> Sync for Inside<T> {}

impl<T> Bound<T> {
    /// Makes something on a queue of its own. Waits for it: never called from a closure of that queue, for it is new.
    pub(super) fn make(
        label: &str,
        make: impl FnOnce(&DispatchQueue) -> Result<T, VmError> + Send,
    ) -> Result<Self, VmError> {
        let queue = DispatchQueue::new(label, DispatchQueueAttr::SERIAL);
        let mut made = Err(gone());
        let place = &mut made;
        let on = queue.clone();
        queue.exec_sync(move || {
            *place = autoreleasepool(|_| tried(|| make(&on))).map(|inside| Arc::new(Inside(inside)));
        });
        made.map(|inside| Bound { queue, inside: Some(inside) })
    }

    /// Runs `work` on the queue, later.
    pub(super) fn run(&self, work: impl FnOnce(&T) + Send + 'static) {
        let Some(inside) = self.inside.clone() else { return };
        self.queue.exec_async(move || autoreleasepool(|_| work(&inside.0)));
    }

    /// Runs `work` on the queue and waits for what it answers, now or later, through [`Answer`].
    pub(super) async fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(&T, Answer<R>) -> Result<(), VmError> + Send + 'static,
    ) -> Result<R, VmError> {
        let (answer, outcome) = Answer::new();
        self.run(move |inside| {
            let refused = answer.clone();
            if let Err(error) = tried(|| work(inside, answer)) {
                refused.give(Err(error));
            }
        });
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl<T> Clone for Bound<T> {
    fn clone(&self) -> Self {
        Bound { queue: self.queue.clone(), inside: self.inside.clone() }
    }
}

impl<T> Drop for Bound<T> {
    fn drop(&mut self) {
        if let Some(inside) = self.inside.take() {
            self.queue.exec_async(move || autoreleasepool(|_| drop(inside)));
        }
    }
}

/// Where a completion block puts its outcome. Blocks may be called more than once as far as types go; the first
/// outcome counts.
pub(super) struct Answer<R>(Arc<Mutex<Waiting<R>>>);

/// Who waits; nobody once the outcome was given.
type Waiting<R> = Option<oneshot::Sender<Result<R, VmError>>>;

impl<R> Answer<R> {
    pub(super) fn new() -> (Self, oneshot::Receiver<Result<R, VmError>>) {
        let (sender, receiver) = oneshot::channel();
        (Answer(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Gives the outcome; nobody may be waiting any more.
    pub(super) fn give(&self, outcome: Result<R, VmError>) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waiting) = waiting {
            let _ = waiting.send(outcome);
        }
    }
}

impl<R> Clone for Answer<R> {
    fn clone(&self) -> Self {
        Answer(self.0.clone())
    }
}
