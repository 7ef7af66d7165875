//! Machines as the cluster has them. Invariants: before the first list is complete nothing is known and nothing is
//! gone; what is written is `status.guest` of the object with exactly this uid, as the field's one manager.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use dockerios_api::{MacOSMachine, MachineIdentity, machine::macos_machine::Guest, names::COLLECTOR};
use dockerios_wire::{Order, Reply};
use futures::FutureExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::{ObjectRef, Store},
};
use serde_json::json;
use tokio::sync::watch;

use crate::machines::{Expected, Known, Later, Look, Machines, NotRecorded, Recorded};

/// Looks in the operator's caches, writes with server-side apply.
pub struct KubeMachines {
    client: Client,
    machines: Store<MacOSMachine>,
    identities: Store<MachineIdentity>,
    listed: AtomicBool,
    waiting: Mutex<HashMap<String, watch::Sender<()>>>,
}

impl KubeMachines {
    /// Over caches that somebody else keeps filled. That one also calls [`KubeMachines::touched`] for every machine
    /// that was added, changed or deleted, *after* the cache took it, else held answers learn of it only when they
    /// end by themselves.
    #[must_use]
    pub fn new(client: Client, machines: Store<MacOSMachine>, identities: Store<MachineIdentity>) -> Self {
        Self {
            client,
            machines,
            identities,
            listed: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// The cache took a change of this machine.
    pub fn touched(&self, machine: &MacOSMachine) {
        let Some(uid) = &machine.metadata.uid else { return };
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.get(uid) {
            sender.send_replace(());
        }
    }

    /// Whether the first list of machines is complete.
    fn listed(&self) -> bool {
        if !self.listed.load(Ordering::Acquire) {
            let complete = self
                .machines
                .wait_until_ready()
                .now_or_never()
                .is_some_and(|r| r.is_ok());
            self.listed.store(complete, Ordering::Release);
        }
        self.listed.load(Ordering::Acquire)
    }

    fn expected(&self, machine: &MacOSMachine) -> Option<Expected> {
        let serial = machine.status.as_ref()?.identity_ref.as_ref()?.to_string();
        let identity = self.identities.get(&ObjectRef::new(&serial));
        Some(Expected {
            system_uuid: identity.map(|i| i.spec.system_uuid.clone()),
            serial,
        })
    }
}

/// What a machine's status asks of its guest. The revision is made of the status, so that all replicas agree on it.
fn order_of(machine: &MacOSMachine) -> Reply {
    match machine.status.as_ref().and_then(|s| s.stop_requested_at.as_ref()) {
        Some(since) => Reply {
            order: Order::Shutdown,
            revision: format!("shutdown-{}", since.0.as_second()),
        },
        None => Reply {
            order: Order::Run,
            revision: "run".to_owned(),
        },
    }
}

impl Machines for KubeMachines {
    fn look(&self, uid: &str) -> Look {
        if !self.listed() {
            return Look::Unreadable;
        }
        // caches are keyed by name; passing over a thousand machines costs microseconds, a second index would have
        // to be kept right
        let Some(machine) = self.machines.find(|m| m.metadata.uid.as_deref() == Some(uid)) else {
            return Look::Unknown;
        };
        Look::Known(Box::new(Known {
            namespace: machine.namespace().unwrap_or_default(),
            name: machine.name_any(),
            order: order_of(&machine),
            identity: self.expected(&machine),
            recorded: machine.status.as_ref().and_then(|s| s.guest.clone()),
        }))
    }

    fn uids(&self) -> Vec<String> {
        self.machines
            .state()
            .iter()
            .filter_map(|m| m.metadata.uid.clone())
            .collect()
    }

    fn changed(&self, uid: &str) -> watch::Receiver<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|other, sender| other == uid || sender.receiver_count() > 0);
        waiting
            .entry(uid.to_owned())
            .or_insert_with(|| watch::channel(()).0)
            .subscribe()
    }

    fn record<'a>(&'a self, uid: &'a str, known: &'a Known, guest: Guest) -> Later<'a, Result<Recorded, NotRecorded>> {
        Box::pin(async move {
            let api: Api<MacOSMachine> = Api::namespaced(self.client.clone(), &known.namespace);
            // the uid is a precondition: a machine made again under the name is not this guest's
            let body = json!({
                "apiVersion": MacOSMachine::api_version(&()),
                "kind": MacOSMachine::kind(&()),
                "metadata": {"name": known.name, "namespace": known.namespace, "uid": uid},
                "status": {"guest": guest},
            });
            // forced: the field has one manager by design, and one stray edit must not silence a guest for ever
            let params = PatchParams::apply(COLLECTOR).force();
            match api.patch_status(&known.name, &params, &Patch::Apply(&body)).await {
                Ok(_) => Ok(Recorded::Written),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Recorded::Gone),
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    self.after_conflict(uid, known, &api, &status.message).await
                }
                Err(error) => Err(NotRecorded(error.to_string())),
            }
        })
    }
}

impl KubeMachines {
    /// A conflict is either the uid's or one of the moment; only a fresh read tells.
    async fn after_conflict(
        &self,
        uid: &str,
        known: &Known,
        api: &Api<MacOSMachine>,
        message: &str,
    ) -> Result<Recorded, NotRecorded> {
        match api.get_metadata_opt(&known.name).await {
            Ok(Some(found)) if found.metadata.uid.as_deref() == Some(uid) => Err(NotRecorded(message.to_owned())),
            Ok(_) => Ok(Recorded::Gone),
            Err(error) => Err(NotRecorded(format!("{message}; and reading it again: {error}"))),
        }
    }
}
