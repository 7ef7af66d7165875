//! The collector's side of every replica: what is seen of machines and identities, and the server that hears guests.

use std::sync::{Arc, PoisonError, RwLock};

use dockerios_api::{MacOSMachine, MachineIdentity};
use dockerios_collector::{KubeMachines, Roster, Sighting};
use dockerios_core::Seen;
use kube::Client;
use tokio::sync::mpsc;

use crate::{
    feed::feed,
    index::Index,
    shelf::Shelf,
    source::Source,
    world::{Notice, take},
};

/// Starts to watch machines and identities; gives what the collector looks up in them.
pub fn machines(client: &Client, platform_namespace: &str) -> Arc<KubeMachines> {
    let seen = Arc::new(Shelves {
        machines: RwLock::new(Shelf::new("MacOSMachine")),
        identities: RwLock::new(Shelf::new("MachineIdentity")),
    });
    let known = Arc::new(KubeMachines::new(client.clone(), seen.clone()));
    let (say, notices) = mpsc::channel(1024);
    for source in [Source::Machines, Source::Identities] {
        tokio::spawn(feed(client.clone(), source, platform_namespace.to_owned(), say.clone()));
    }
    tokio::spawn(keep(notices, seen, known.clone()));
    known
}

struct Shelves {
    machines: RwLock<Shelf<MacOSMachine>>,
    identities: RwLock<Shelf<MachineIdentity>>,
}

impl Roster for Shelves {
    fn machine(&self, uid: &str) -> Sighting {
        let machines = self.machines.read().unwrap_or_else(PoisonError::into_inner);
        match machines.by(Index::Uid, uid) {
            Seen::Unknown(_) | Seen::Absent => Sighting::Unreadable,
            Seen::Present(found) => found.into_iter().next().map_or(Sighting::Absent, Sighting::There),
        }
    }

    fn uids(&self) -> Vec<String> {
        let machines = self.machines.read().unwrap_or_else(PoisonError::into_inner);
        let readable = machines.every_place().into_iter().filter_map(|(namespace, name)| {
            machines
                .get(&namespace, &name)
                .present()
                .and_then(|machine| machine.metadata.uid.clone())
        });
        readable.collect()
    }

    fn system_uuid(&self, identity: &str) -> Option<String> {
        let identities = self.identities.read().unwrap_or_else(PoisonError::into_inner);
        identities
            .get("", identity)
            .present()
            .map(|identity| identity.spec.system_uuid.clone())
    }
}

/// Takes in what was seen; whoever holds an answer for a machine that changed is told after.
async fn keep(mut notices: mpsc::Receiver<(Source, Notice)>, seen: Arc<Shelves>, known: Arc<KubeMachines>) {
    while let Some((source, notice)) = notices.recv().await {
        if source == Source::Identities {
            take(
                &mut seen.identities.write().unwrap_or_else(PoisonError::into_inner),
                notice,
            );
            continue;
        }
        let changes = take(
            &mut seen.machines.write().unwrap_or_else(PoisonError::into_inner),
            notice,
        );
        for (index, uid) in changes
            .iter()
            .flat_map(|change| change.before.iter().chain(&change.after))
        {
            if *index == Index::Uid {
                known.touched(uid);
            }
        }
    }
}
