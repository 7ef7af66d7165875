//! Operators that die, that are watched at their every write, and an API server that is away. One scene at a time: each has the cluster's operators to itself.

mod away;
mod cut;
mod leaders;
mod strict;

use std::process::ExitCode;

use anyhow::Result;
use dockerios_acceptance::{Fleet, play, scenes};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Result<Fleet, String>> = OnceCell::const_new();

/// A furnished fleet without an operator.
async fn fleet() -> Result<&'static Fleet> {
    let set = || async {
        let fleet = Fleet::start().await?;
        let operator = fleet.spawn_operator(&fleet.operators_kubeconfig().await?, false)?;
        let furnished = fleet.furnish().await;
        furnished.map_err(|error| error.context(format!("the operator's log ends:\n{}", operator.process.tail(20))))?;
        anyhow::Ok(fleet)
    };
    let set = FLEET
        .get_or_init(|| async { set().await.map_err(|error| format!("{error:#}")) })
        .await;
    set.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn main() -> ExitCode {
    let scenes = scenes![
        cut::killed_between_any_two_writes_the_operator_goes_on_and_nothing_leaks_or_is_lost,
        leaders::when_the_leader_is_killed_the_other_goes_on_and_only_one_decides,
        strict::what_the_operator_writes_is_accepted_by_kubevirts_and_cdis_schemas_with_strict_validation,
        away::an_api_server_that_is_away_for_a_while_frees_nothing,
    ];
    let code = play(1, &[scenes]);
    if let Some(Ok(fleet)) = FLEET.get() {
        fleet.tidy(code == ExitCode::SUCCESS);
    }
    code
}
