//! Writing to the API what has changed: at once, at leisure, and never twice the same.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::gather::words;

/// Least time between two writes that only tell progress.
const LEISURE: Duration = Duration::from_secs(5);
/// The longest that one write may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is written.
pub trait Report: Clone + PartialEq + Send + Sync + 'static {
    /// Whether `self` differs from `written` in more than progress.
    fn is_news(&self, written: &Self) -> bool;
}

/// When a report is to be written.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Never,
    After(Duration),
}

fn due<T: Report>(wanted: Option<&T>, written: Option<&(T, Instant)>, now: Instant) -> Due {
    match (wanted, written) {
        (None, _) => Due::Never,
        (Some(wanted), Some((written, _))) if wanted == written => Due::Never,
        (Some(wanted), Some((written, at))) if !wanted.is_news(written) => {
            Due::After((*at + LEISURE).saturating_duration_since(now))
        }
        _ => Due::After(Duration::ZERO),
    }
}

/// Writes the newest of what is `wanted` whenever it differs from what was written; for ever. What
/// changes while a write is under way is written with the next one. Where nothing is wanted any more, what was written
/// is forgotten: the same may be wanted again because somebody has changed it meanwhile.
pub async fn keep_written<T, F, W>(what: String, mut wanted: watch::Receiver<Option<T>>, mut write: F)
where
    T: Report,
    F: FnMut(T) -> W,
    W: Future<Output = kube::Result<()>>,
{
    let mut written: Option<(T, Instant)> = None;
    let mut backoff = Backoff::for_api();
    loop {
        let want = wanted.borrow_and_update().clone();
        if want.is_none() {
            written = None;
        }
        let delay = match due(want.as_ref(), written.as_ref(), Instant::now()) {
            Due::Never => None,
            Due::After(delay) => Some(delay),
        };
        if delay != Some(Duration::ZERO) {
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return } else { continue },
                () = async {
                    match delay {
                        Some(delay) => tokio::time::sleep(delay).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
        let Some(want) = wanted.borrow_and_update().clone() else { continue };
        match tokio::time::timeout(PATIENCE, write(want.clone())).await {
            Ok(Ok(())) => {
                written = Some((want, Instant::now()));
                backoff.reset();
            }
            Ok(Err(error)) => {
                tracing::debug!(what, error = words(&error), "not written");
                tokio::time::sleep(backoff.next_delay()).await;
            }
            Err(_) => tracing::debug!(what, "no answer to a write within {PATIENCE:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// News, and progress.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Two(u32, u32);

    impl Report for Two {
        fn is_news(&self, written: &Two) -> bool {
            self.0 != written.0
        }
    }

    #[test]
    fn news_is_due_at_once_progress_at_leisure_and_the_same_never() {
        let now = Instant::now();
        let written = (Two(1, 1), now);
        assert_eq!(due(None, Some(&written), now), Due::Never);
        assert_eq!(due(Some(&Two(1, 1)), Some(&written), now), Due::Never);
        assert_eq!(due(Some(&Two(2, 1)), Some(&written), now), Due::After(Duration::ZERO));
        assert_eq!(due(Some(&Two(1, 2)), Some(&written), now), Due::After(LEISURE));
        assert_eq!(due(Some(&Two(1, 2)), Some(&written), now + LEISURE), Due::After(Duration::ZERO));
        assert_eq!(due(Some(&Two(1, 1)), None, now), Due::After(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_wanted_again_after_nothing_was_is_written_again() {
        let (wants, wanted) = watch::channel(None);
        let (seen, mut done) = watch::channel(0);
        tokio::spawn(keep_written("test".to_owned(), wanted, move |_: Two| {
            seen.send_modify(|n| *n += 1);
            async { Ok(()) }
        }));
        for n in 1..4 {
            wants.send_replace(Some(Two(1, 0)));
            tokio::time::timeout(Duration::from_secs(60), done.wait_for(|seen| *seen == n)).await.unwrap().unwrap();
            wants.send_replace(None);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_changes_during_one_write_become_one_and_a_refused_write_is_repeated() {
        let (wants, wanted) = watch::channel(None);
        let log: Arc<Mutex<Vec<Two>>> = Arc::default();
        let (seen, mut done) = watch::channel(0);
        let record = log.clone();
        tokio::spawn(keep_written("test".to_owned(), wanted, move |two: Two| {
            let first = {
                let mut log = record.lock().unwrap();
                log.push(two);
                seen.send_replace(log.len());
                log.len() == 1
            };
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                match first {
                    true => Err(kube::Error::LinesCodecMaxLineLengthExceeded),
                    false => Ok(()),
                }
            }
        }));
        wants.send_replace(Some(Two(1, 0)));
        done.wait_for(|n| *n == 1).await.unwrap();
        for n in 2..10 {
            wants.send_replace(Some(Two(n, 0)));
        }
        done.wait_for(|n| *n == 2).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*log.lock().unwrap(), [Two(1, 0), Two(9, 0)]);
    }
}
