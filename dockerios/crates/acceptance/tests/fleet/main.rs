//! One fleet, one operator, and what is to hold of them. Scenes run side by side, each in a namespace of its own.

mod claims;
mod clones;
mod disks;
mod evil;
mod guests;
mod hundred;
mod job;
mod nodes;
mod orphans;
mod plugin;
mod rights;

use std::process::ExitCode;

use anyhow::Result;
use dockerios_acceptance::{Fleet, Operator, play, scenes};
use tokio::sync::OnceCell;

struct Stage {
    fleet: Fleet,
    operator: Operator,
}

static STAGE: OnceCell<Result<Stage, String>> = OnceCell::const_new();

async fn stage() -> Result<&'static Stage> {
    let set = || async {
        let fleet = Fleet::start().await?;
        let operator = fleet.spawn_operator(&fleet.operators_kubeconfig().await?, false)?;
        let furnished = fleet.furnish().await;
        furnished.map_err(|error| error.context(format!("the operator's log ends:\n{}", operator.process.tail(20))))?;
        anyhow::Ok(Stage { fleet, operator })
    };
    let set = STAGE
        .get_or_init(|| async { set().await.map_err(|error| format!("{error:#}")) })
        .await;
    set.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// The fleet that all scenes share.
async fn fleet() -> Result<&'static Fleet> {
    stage().await.map(|stage| &stage.fleet)
}

fn main() -> ExitCode {
    let scenes = scenes![
        guests::a_guest_that_is_not_ready_in_time_gives_back_identity_volume_and_vm_and_stays_as_evidence,
        hundred::a_hundred_machines_on_fifty_identities_fifty_wait_no_identity_twice_all_served_in_the_end,
        job::claim_a_macos_machine_and_get_one_warm_then_cold_until_its_time_is_over,
        nodes::a_lost_node_frees_nothing_until_it_is_known_what_became_of_the_guest,
        nodes::a_drained_node_waits_for_the_claim_then_the_machine_leaves,
        nodes::a_drain_that_is_called_off_leaves_the_machine_where_it_is,
        nodes::a_cordoned_node_whose_instance_has_no_node_name_is_left_all_the_same,
        claims::sixteen_claims_on_twelve_warm_machines_while_the_pool_rolls_and_shrinks,
        claims::a_machine_named_db_touches_nothing_of_the_tenants_db_config,
        claims::a_foreground_deletion_keeps_the_order_and_the_retained_disk,
        orphans::an_identity_is_not_given_out_while_the_vm_of_a_stripped_machine_runs,
        orphans::a_machine_gone_by_force_leaves_its_identity_to_the_pools_policy,
        orphans::a_machine_made_again_under_the_name_does_not_inherit_the_identity,
        orphans::a_claim_reference_without_a_uid_is_no_wildcard,
        orphans::an_identity_stays_with_its_machine_over_restarts_a_lost_vm_and_a_lost_status,
        guests::a_guest_that_ignores_the_power_button_gets_its_grace_before_anything_is_deleted,
        guests::a_guest_that_shuts_itself_down_is_not_started_again_until_it_is_asked_for,
        disks::a_datavolume_that_cdi_collects_is_not_made_again_and_its_claim_goes_with_the_machine,
        disks::a_disk_that_is_lost_fails_the_machine_and_is_not_cloned_anew,
        disks::a_storage_class_that_waits_for_its_consumer_is_no_deadlock,
        clones::a_clone_without_the_right_waits_says_which_and_goes_on_when_it_is_granted,
        clones::what_the_operator_writes_is_accepted_by_kubevirts_and_cdis_schemas_with_strict_validation,
        evil::finalizers_of_others_survive_and_a_machine_that_is_going_gets_none_of_ours,
        evil::a_status_does_not_grow_with_what_others_say,
        plugin::the_plugin_claims_a_machine_says_why_another_waits_and_shows_a_screen,
        plugin::the_doctor_finds_what_the_cluster_has_and_what_nobody_asked,
    ];
    // a changed definition ends every watch of its kind, the scenes' own too
    let alone = scenes![evil::what_a_newer_schema_wrote_stops_nobody_and_is_not_taken_for_absent];
    let after = scenes![
        rights::the_operator_lacked_no_right_and_wrote_no_secret_anywhere,
        rights::no_object_was_written_over_and_over,
    ];
    let code = play(10, &[scenes, alone, after]);
    if let Some(Ok(stage)) = STAGE.get() {
        stage.fleet.tidy(code == ExitCode::SUCCESS);
    }
    code
}
