//! One fleet, one operator, and what is to hold of them. Scenes run side by side, each in a namespace of its own.

mod cards;
mod claims;
mod clones;
mod disks;
mod evil;
mod guests;
mod hundred;
mod imports;
mod job;
mod launcher;
mod lost;
mod metrics;
mod nodes;
mod orphans;
mod plugin;
mod rights;
mod stops;

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
        cards::machines_with_a_card_wait_with_the_count_and_boot_from_the_template_for_cards,
        nodes::a_lost_node_frees_nothing_until_it_is_known_what_became_of_the_guest,
        nodes::a_drained_node_waits_for_the_claim_then_the_machine_leaves,
        nodes::a_drain_that_is_called_off_leaves_the_machine_where_it_is,
        nodes::a_cordoned_node_whose_instance_has_no_node_name_is_left_all_the_same,
        lost::while_a_lost_node_is_away_others_get_other_identities_and_its_machine_fails_once_when_it_is_back,
        stops::a_guest_that_was_cut_off_is_called_so_and_says_so_itself_after_the_next_start,
        stops::a_guest_with_an_agent_is_shut_down_from_inside_and_nobody_presses_the_button,
        stops::a_machine_that_a_write_error_paused_is_not_ready_and_keeps_everything_until_it_goes_on,
        stops::a_retained_disk_becomes_an_image_and_a_machine_boots_from_it,
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
        disks::a_clone_that_never_ends_is_shown_and_given_up_when_its_class_says_so,
        disks::a_machine_that_was_in_use_waits_for_a_node_with_its_disk_and_goes_on_when_there_is_one,
        disks::a_storage_class_that_waits_for_its_consumer_is_no_deadlock_and_the_real_way_of_cloning_is_told,
        imports::a_disk_from_a_web_server_is_held_against_its_checksum_and_one_that_differs_is_told_until_mended,
        imports::an_import_that_cdi_gives_up_says_cdis_words_within_bounds_and_the_way_out,
        imports::a_snapshot_of_another_namespace_becomes_an_image_and_machines_are_made_of_snapshots,
        launcher::a_device_that_qemu_lacks_in_spite_of_the_probe_fails_each_machine_once_and_the_pool_stops,
        clones::a_clone_without_the_right_waits_says_which_and_goes_on_when_it_is_granted,
        evil::finalizers_of_others_survive_and_a_machine_that_is_going_gets_none_of_ours,
        evil::a_status_does_not_grow_with_what_others_say,
        metrics::headroom_by_a_real_prometheus_holds_new_machines_back_and_touches_nothing_that_runs,
        metrics::a_real_prometheus_scrapes_the_operator_and_its_numbers_are_the_fleets,
        plugin::the_plugin_claims_a_machine_says_why_another_waits_and_shows_a_screen,
        plugin::the_doctor_finds_what_the_cluster_has_and_what_nobody_asked,
        plugin::the_hook_takes_the_disks_of_a_bench_and_nothing_is_left_when_it_is_interrupted,
    ];
    // a changed definition ends every watch of its kind, the scenes' own too
    let alone = scenes![evil::what_a_newer_schema_wrote_stops_nobody_and_is_not_taken_for_absent];
    // what no machine of the cluster can be made without
    let incapable = scenes![launcher::a_launcher_without_a_device_starts_nothing_and_all_say_which_and_where_to_read];
    let unpermitted = scenes![clones::machines_wait_and_take_nothing_while_the_operator_may_not_clone_for_them];
    let after = scenes![
        rights::the_operator_lacked_no_right_and_wrote_no_secret_anywhere,
        rights::no_object_was_written_over_and_over,
        rights::every_right_of_the_operator_was_used_or_is_excused_by_name,
    ];
    let code = play(10, &[scenes, alone, incapable, unpermitted, after]);
    if let Some(Ok(stage)) = STAGE.get() {
        stage.fleet.tidy(code == ExitCode::SUCCESS);
    }
    code
}
