//! After all scenes: what the operator asked of the API server meanwhile.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use crate::stage;

pub(crate) async fn the_operator_lacked_no_right_and_wrote_no_secret_anywhere() -> Result<()> {
    let stage = stage().await?;
    let requests = stage.fleet.requests()?;
    ensure!(
        requests.len() > 50,
        "{} requests of the operator were written down: little is shown",
        requests.len()
    );
    let mut refused: HashMap<(String, String, String), usize> = HashMap::new();
    for request in requests.into_iter().filter(|request| request.unauthorized) {
        *refused
            .entry((request.verb, request.resource, request.namespace))
            .or_default() += 1;
    }
    ensure!(
        refused.is_empty(),
        "rights that deploy/rbac does not give: {refused:#?}"
    );
    ensure!(
        stage.operator.process.is_running(),
        "it ended: {:?}",
        stage.operator.process.exit()
    );
    let osk = stage.fleet.osk().await?;
    for (path, log) in stage.fleet.logs() {
        ensure!(!log.contains(&osk), "{} holds the SMC's key", path.display());
        ensure!(!log.contains("panicked at"), "{} tells of a panic", path.display());
        ensure!(
            !log.contains("breaks an invariant"),
            "{} tells of a plan that breaks an invariant",
            path.display()
        );
    }
    Ok(())
}

/// A status that is written again without a change wakes every watcher, us among them.
pub(crate) async fn no_object_was_written_over_and_over() -> Result<()> {
    /// A pool of fifty identities changes its counts with each of them, some five times; a loop does more in a minute.
    const MANY: usize = 400;
    let mut writes: HashMap<(String, String, String), usize> = HashMap::new();
    for request in stage().await?.fleet.requests()? {
        let aside = matches!(&*request.resource, "leases" | "events" | "machineidentities/status");
        if ["create", "update", "patch", "delete"].contains(&&*request.verb) && !aside && !request.name.is_empty() {
            *writes
                .entry((request.resource, request.namespace, request.name))
                .or_default() += 1;
        }
    }
    ensure!(!writes.is_empty(), "nothing was written");
    let many: Vec<_> = writes.into_iter().filter(|(_, count)| *count > MANY).collect();
    ensure!(many.is_empty(), "written over and over: {many:#?}");
    Ok(())
}
