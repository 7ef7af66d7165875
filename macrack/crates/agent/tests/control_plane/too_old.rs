//! A golden that is newer than what its Mac runs.

use kube::Api;
use kube::api::{Patch, PatchParams};
use macrack_api::MacOSImage;
use macrack_api::rack::node::{Order, VmState};
use macrack_testkit::expect;
use serde_json::json;

use crate::by_hand::Rack;

#[tokio::test]
async fn a_golden_newer_than_its_mac_is_neither_pulled_nor_started_and_starts_by_itself_after_the_upgrade() {
    let mut rack = Rack::leased("older").await;
    rack.until_node_ready().await;
    let images: Api<MacOSImage> = Api::all(rack.operator.clone());
    let newer = Patch::Merge(json!({ "spec": { "minimumHostVersion": "26.2" } }));
    expect::accepts(images.patch(&rack.name, &PatchParams::default(), &newer).await);

    let uid = rack.instance("build-1", None).await;
    rack.placeholder("build-1", &uid).await;
    rack.order(&[("build-1", &uid, Order::Run)]).await;
    let waiting = rack.until_vm(&uid, "waiting for its Mac", |vm| {
        vm.state == VmState::Waiting && vm.message.as_ref().is_some_and(|words| words.contains("needs macOS"))
    });
    let words = waiting.await.message.unwrap();
    let expected =
        format!("MacOSImage {} needs macOS 26.2 or newer on its Mac, which has 26.1; it starts by", rack.name);
    assert!(words.starts_with(&expected), "{words}");
    assert_eq!(rack.report().await.goldens, vec![], "nothing is pulled that cannot run here");
    assert!(!rack.vm_dir(&uid).path().exists(), "nothing is cloned");

    rack.chassis.modify(|file| file.spec.host_version = "26.2".to_owned()).unwrap();
    rack.agent.kill9().unwrap();
    rack.agent.restart().unwrap();
    rack.until_ready(&uid).await;
    assert_eq!(rack.report().await.host_version.as_deref(), Some("26.2"));
}
