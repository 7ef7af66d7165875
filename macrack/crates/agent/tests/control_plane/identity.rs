//! Who the agent is to the API server: by real tokens that really die.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use macrack_api::names;
use macrack_api::rack::node::{Order, VmState};
use macrack_testkit::child::is_alive;

use crate::by_hand::{Rack, SOON};

#[tokio::test]
async fn an_agent_whose_bootstrap_token_is_dead_works_on_by_its_own_also_after_a_restart() {
    let mut rack = Rack::leased("own").await;
    rack.until_node_ready().await;
    let token = rack.state_dir().join("token");
    let first = fs::read_to_string(&token).unwrap();
    rack.end_account(&names::enroll_account(&rack.name)).await;
    rack.agent.kill9().unwrap();
    rack.agent.restart().unwrap();
    let uid = rack.instance("one", None).await;
    rack.order(&[("one", &uid, Order::Run)]).await;
    rack.placeholder("one", &uid).await;
    rack.until_ready(&uid).await;
    assert_ne!(fs::read_to_string(&token).unwrap(), first, "it is renewed at once, with itself");
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);

    // its own dies too, and there is an account of that name again: a way back is all that it lacks
    rack.end_account(&names::agent_account(&rack.name)).await;
    rack.make_account(&names::agent_account(&rack.name)).await;
    rack.agent.until_logged("takes neither this Mac's own token nor that of", SOON).await.unwrap();
    rack.make_account(&names::enroll_account(&rack.name)).await;
    rack.enrol_again().await;
    rack.agent.until_logged("the API server knows this Mac again", SOON).await.unwrap();
    rack.order(&[("one", &uid, Order::Stop)]).await;
    rack.until_vm(&uid, "stopped", |vm| vm.state == VmState::Stopped).await;
}

#[tokio::test]
async fn a_mac_that_nobody_knows_leaves_its_vms_as_they_are_until_it_is_enrolled_again() {
    let rack = Rack::leased("nobody").await;
    let uid = rack.instance("one", None).await;
    rack.order(&[("one", &uid, Order::Run)]).await;
    rack.placeholder("one", &uid).await;
    rack.until_ready(&uid).await;
    let pid = i32::try_from(rack.vm_dir(&uid).read_state().unwrap().unwrap().report.pid).unwrap();
    let accounts = [names::agent_account(&rack.name), names::enroll_account(&rack.name)];
    for account in &accounts {
        rack.end_account(account).await;
    }
    rack.agent.until_logged("every VM stays as it is", SOON).await.unwrap();
    let log = rack.agent.log();
    for said in ["kubectl macrack why mn/", "kubectl macrack enroll ZZAGENT", "nothing is started, stopped or wiped"] {
        assert!(log.contains(said), "{said}: {log}");
    }
    // a watch from before shows it this order still
    rack.order(&[("one", &uid, Order::Stop)]).await;
    for account in &accounts {
        rack.make_account(account).await;
    }
    assert!(is_alive(pid), "it was stopped by an agent that is nobody");
    rack.enrol_again().await;
    rack.agent.until_logged("orders are carried out again", SOON).await.unwrap();
    rack.until_vm(&uid, "stopped", |vm| vm.state == VmState::Stopped).await;
}
