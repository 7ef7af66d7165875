//! Machines as the cluster has them. Invariants: what cannot be read is neither known nor gone; what is written is
//! `status.guest` of the object with exactly this uid, as the field's one manager.
//!
//! A write that gets no answer is given up: the guest is told to try again, before it gives the collector up.
//!
//! The API server does not hold a `metadata.uid` in the body of a status write against the object: it was written
//! onto a machine made again under the name. The resourceVersion it does hold, and no two objects share one; so a write
//! carries the version at which the uid was seen.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dockerios_api::{MacOSMachine, machine::macos_machine::Guest, names::COLLECTOR};
use dockerios_wire::{Order, Reply};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    machines::{Expected, Known, Later, Look, Machines, NotRecorded, Recorded},
    roster::{Roster, Sighting},
};

/// A write is tried this often against others that change the machine meanwhile.
const ATTEMPTS: usize = 5;
/// For a write with all its attempts. kube waits for an answer without limit, and a later report of the same machine
/// waits for this one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks in the operator's caches, writes with server-side apply.
///
/// Rights that it needs: `patch` on `macosmachines/status`, and `get` on `macosmachines` to tell, after a conflict,
/// whether the machine is still the same.
pub struct KubeMachines {
    client: Client,
    roster: Arc<dyn Roster>,
    waiting: Mutex<HashMap<String, watch::Sender<()>>>,
    patience: Duration,
}

impl KubeMachines {
    /// Over a cache that somebody else keeps filled. That one also calls [`KubeMachines::touched`] for every machine
    /// that was added, changed or deleted, *after* the cache took it; else held answers learn of it only when they
    /// end by themselves.
    #[must_use]
    pub fn new(client: Client, roster: Arc<dyn Roster>) -> Self {
        Self {
            client,
            roster,
            waiting: Mutex::default(),
            patience: PATIENCE,
        }
    }

    /// The cache took a change of the machine with this uid.
    pub fn touched(&self, uid: &str) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.get(uid) {
            sender.send_replace(());
        }
    }

    /// The cache was filled anew: any machine may have changed.
    pub fn all_touched(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in waiting.values() {
            sender.send_replace(());
        }
    }

    /// Applies `guest` to the machine as it was at `version`.
    async fn apply(&self, api: &Api<MacOSMachine>, name: &str, version: &str, guest: &Guest) -> Applied {
        let body = json!({
            "apiVersion": MacOSMachine::api_version(&()),
            "kind": MacOSMachine::kind(&()),
            "metadata": {"name": name, "resourceVersion": version},
            "status": {"guest": guest},
        });
        // forced: the field has one manager by design, and one stray edit must not silence a guest for ever
        let params = PatchParams::apply(COLLECTOR).force();
        match api.patch_status(name, &params, &Patch::Apply(&body)).await {
            Ok(_) => Applied::Written,
            Err(kube::Error::Api(status)) if status.code == 404 => Applied::NoneThere,
            Err(kube::Error::Api(status)) if status.code == 409 => Applied::Changed,
            Err(error) => Applied::Failed(error.to_string()),
        }
    }

    async fn write(&self, uid: &str, guest: &Guest) -> Result<Recorded, NotRecorded> {
        let machine = match self.roster.machine(uid) {
            Sighting::There(machine) => machine,
            Sighting::Absent => return Ok(Recorded::Gone),
            Sighting::Unreadable => return Err(NotRecorded("the machine cannot be read".into())),
        };
        let (name, namespace) = (machine.name_any(), machine.namespace().unwrap_or_default());
        let api: Api<MacOSMachine> = Api::namespaced(self.client.clone(), &namespace);
        let mut version = machine.resource_version().unwrap_or_default();
        for _ in 0..ATTEMPTS {
            match self.apply(&api, &name, &version, guest).await {
                Applied::Written => return Ok(Recorded::Written),
                Applied::NoneThere => return Ok(Recorded::Gone),
                Applied::Failed(why) => return Err(NotRecorded(why)),
                Applied::Changed => {}
            }
            // the cache lags, or another machine has the name: only a fresh read tells
            let fresh = api
                .get_metadata_opt(&name)
                .await
                .map_err(|e| NotRecorded(e.to_string()))?;
            match fresh.filter(|fresh| fresh.metadata.uid.as_deref() == Some(uid)) {
                Some(fresh) => version = fresh.resource_version().unwrap_or_default(),
                None => return Ok(Recorded::Gone),
            }
        }
        Err(NotRecorded(format!("{namespace}/{name}: others kept changing it")))
    }
}

/// What the API server made of a write.
enum Applied {
    Written,
    NoneThere,
    Changed,
    Failed(String),
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
        let machine = match self.roster.machine(uid) {
            Sighting::There(machine) => machine,
            Sighting::Absent => return Look::Unknown,
            Sighting::Unreadable => return Look::Unreadable,
        };
        let status = machine.status.as_ref();
        let identity = status.and_then(|s| s.identity_ref.as_ref()).map(|name| Expected {
            // an identity's name is its serial in lower case
            serial: name.to_string(),
            system_uuid: self.roster.system_uuid(&name.to_string()),
        });
        Look::Known(Box::new(Known {
            namespace: machine.namespace().unwrap_or_default(),
            name: machine.name_any(),
            order: order_of(&machine),
            identity,
            recorded: status.and_then(|s| s.guest.clone()),
        }))
    }

    fn uids(&self) -> Vec<String> {
        self.roster.uids()
    }

    fn changed(&self, uid: &str) -> watch::Receiver<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|other, sender| other == uid || sender.receiver_count() > 0);
        let sender = waiting.entry(uid.to_owned()).or_insert_with(|| watch::channel(()).0);
        sender.subscribe()
    }

    fn record<'a>(&'a self, uid: &'a str, _: &'a Known, guest: Guest) -> Later<'a, Result<Recorded, NotRecorded>> {
        Box::pin(async move {
            let given_up = |_| Err(NotRecorded(format!("no answer within {:?}", self.patience)));
            let written = tokio::time::timeout(self.patience, self.write(uid, &guest)).await;
            written.unwrap_or_else(given_up)
        })
    }
}

#[cfg(test)]
mod tests {
    use dockerios_api::MacOSMachineSpec;
    use kube::Config;

    use super::*;

    /// Knows one machine, whatever the uid.
    struct One(Arc<MacOSMachine>);

    impl Roster for One {
        fn machine(&self, _: &str) -> Sighting {
            Sighting::There(Arc::clone(&self.0))
        }

        fn uids(&self) -> Vec<String> {
            Vec::new()
        }

        fn system_uuid(&self, _: &str) -> Option<String> {
            None
        }
    }

    #[tokio::test]
    async fn a_report_whose_write_is_never_answered_is_asked_for_again() {
        // connections are made, and nobody reads them
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", silent.local_addr().expect("it is bound"));
        let client = Client::try_from(Config::new(url.parse().expect("a URL"))).expect("a client");
        let spec = json!({"machineClassName": "small"});
        let spec: MacOSMachineSpec = serde_json::from_value(spec).expect("a spec");
        let mut machine = MacOSMachine::new("m", spec);
        machine.metadata.namespace = Some("team".into());
        let mut machines = KubeMachines::new(client, Arc::new(One(Arc::new(machine))));
        machines.patience = Duration::from_millis(50);
        let Look::Known(known) = machines.look("u") else {
            panic!("it is known")
        };
        let recorded = machines.record("u", &known, Guest::default());
        let recorded = tokio::time::timeout(Duration::from_secs(60), recorded).await;
        let why = recorded
            .expect("it does not wait without end")
            .expect_err("nothing was written");
        assert_eq!(why.to_string(), "no answer within 50ms");
    }
}
