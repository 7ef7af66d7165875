//! One agent with real VM processes on the real control plane; the operator's part is played by hand.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

mod by_hand;
mod identity;
mod life;
mod notes;
mod restart;
mod too_old;
mod trouble;
