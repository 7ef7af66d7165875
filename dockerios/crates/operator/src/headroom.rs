//! Free space per storage class, as Prometheus last told. What drivers tell (CSIStorageCapacity) is on its own shelf.
//!
//! Invariant: no answer, no number, or more than one is unknown capacity, never plenty.

use std::{collections::HashMap, time::Duration};

use dockerios_api::config::platform_config::{Headroom, Prometheus};
use dockerios_core::Seen;
use tokio::sync::{mpsc, watch};

/// Bytes of a storage class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Physically free.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// What a source told about one storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The storage class.
    pub storage_class: String,
    /// Its room, or why it is not known.
    pub room: Seen<Capacity>,
}

/// The last reading of every storage class.
#[derive(Debug, Default)]
pub struct Capacities(HashMap<String, Seen<Capacity>>);

impl Capacities {
    /// Room of a storage class; Unknown before its first reading.
    pub fn of(&self, storage_class: &str) -> Seen<Capacity> {
        let known = self.0.get(storage_class).cloned();
        known.unwrap_or_else(|| Seen::Unknown(format!("nobody has told yet how much room {storage_class} has")))
    }

    /// Keeps a reading; whether it is news.
    pub fn take(&mut self, Reading { storage_class, room }: Reading) -> bool {
        self.0.insert(storage_class, room.clone()) != Some(room)
    }
}

/// Pause between two rounds of queries.
const EVERY: Duration = Duration::from_secs(15);

/// Asks every Prometheus that the rules name, round after round, and at once when the rules change.
pub async fn watch(mut rules: watch::Receiver<Vec<Headroom>>, tell: mpsc::Sender<Reading>) {
    loop {
        let current = rules.borrow_and_update().clone();
        for rule in &current {
            if let Some(prometheus) = &rule.source.prometheus {
                let reading = Reading {
                    storage_class: rule.storage_class_name.0.clone(),
                    room: ask(prometheus).await,
                };
                if tell.send(reading).await.is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            changed = rules.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Both numbers of one Prometheus.
async fn ask(prometheus: &Prometheus) -> Seen<Capacity> {
    Seen::Unknown(format!("{} was not asked", prometheus.url))
}
