//! Being ended by somebody.

/// Somebody ends this program: Ctrl-C, or a signal to terminate or hang up. Ends the program with 130.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Hears that somebody ends this program.
///
/// From [`Interrupt::listen`] on a signal kills nothing any more: whoever makes something listens before.
pub(crate) struct Interrupt(Vec<tokio::signal::unix::Signal>);

impl Interrupt {
    pub(crate) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        // what cannot be heard ends the program by itself
        Interrupt(kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect())
    }

    /// Ends when it happens; each time.
    pub(crate) async fn happened(&mut self) {
        std::future::poll_fn(|context| {
            let heard = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if heard {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    }
}
