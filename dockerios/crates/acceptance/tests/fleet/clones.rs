//! The right to clone, for images and for machines.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Fleet, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClass};
use dockerios_testkit::apply_yaml;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use serde_json::json;

use crate::fleet;

/// Lets the platform clone volumes of the namespace, as the message of an image that may not says.
pub(crate) async fn permit(fleet: &Fleet, ns: &str) -> Result<()> {
    let grant = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: clone, namespace: {ns}}}\nrules:\n\
         - {{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], verbs: [create]}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: clone, namespace: {ns}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: clone}}\n\
         subjects: [{{kind: ServiceAccount, name: dockerios-operator, namespace: dockerios-system}}]\n"
    );
    apply_yaml(&fleet.client, &grant).await?;
    Ok(())
}

pub(crate) async fn a_clone_without_the_right_waits_says_which_and_goes_on_when_it_is_granted() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("golden").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    // a disk in a tenant's namespace, such as a retained one
    let disk = json!({
        "metadata": {"name": "mine"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": make::STORAGE,
            "resources": {"requests": {"storage": "20Gi"}},
        },
    });
    let _: PersistentVolumeClaim = make::within(client, ns, disk).await?;
    let claims = fleet.api::<PersistentVolumeClaim>(ns);
    see::until(&claims, "mine", "Bound", |claim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
    .await?;
    let image = make::with(
        make::image("from-tenant", make::STORAGE),
        "source",
        json!({"pvc": {"namespace": ns, "name": "mine"}}),
    );
    let _: MacOSImage = make::cluster(client, image).await?;
    let images = fleet.all::<MacOSImage>();
    let denied = see::reason(&images, "from-tenant", "Ready", "CloneNotPermitted").await?;
    let event = see::event(client, "default", "from-tenant", "CloneNotPermitted").await?;
    ensure!(event.contains("kind: RoleBinding"), "{event}");
    // it was looked at, not tried
    let tried = fleet.requests()?.into_iter().find(|request| {
        request.verb == "create" && request.resource == "datavolumes" && request.line.contains("from-tenant")
    });
    ensure!(tried.is_none(), "{tried:?}");
    // as it is printed, by whoever administers the namespace
    apply_yaml(client, &grant(&denied)?).await?;
    let ready = see::condition(&images, "from-tenant", "Ready", "True").await?;
    ensure!(ready.status.is_some_and(|status| status.published.is_some()));
    Ok(())
}

/// What the condition's message tells to apply.
fn grant<K: serde::Serialize>(object: &K) -> Result<String> {
    let ready = see::condition_of(object, "Ready").unwrap_or_default();
    let message = ready["message"].as_str().unwrap_or_default();
    let at = message
        .find("---\n")
        .with_context(|| format!("nothing to apply in {message:?}"))?;
    Ok(message[at..].to_owned())
}

/// How often the operator asked for its own right so far.
fn asked(fleet: &Fleet) -> Result<usize> {
    let requests = fleet.requests()?.into_iter();
    Ok(requests
        .filter(|request| request.resource == "selfsubjectaccessreviews")
        .count())
}

/// The whole cluster's machines wait meanwhile: played with no other scene beside it.
pub(crate) async fn machines_wait_and_take_nothing_while_the_operator_may_not_clone_for_them() -> Result<()> {
    const HOME: &str = "dockerios-system";
    let fleet = fleet().await?;
    let scratch = fleet.namespace("uncloned").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("uncloned", 1, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("uncloned", "uncloned")).await?;
    let roles = fleet.api::<Role>(HOME);
    let role = roles.get("dockerios-operator").await?;
    let mut less = role.clone();
    let gives = |rule: &PolicyRule| rule.resources.iter().flatten().any(|r| r == "datavolumes/source");
    less.rules
        .iter_mut()
        .for_each(|rules| rules.retain(|rule| !gives(rule)));
    less.metadata.resource_version = None;
    roles.replace("dockerios-operator", &Default::default(), &less).await?;
    let before = asked(fleet)?;
    let deadline = tokio::time::Instant::now() + see::PATIENCE;
    // the second answer is certainly one of after the change
    while asked(fleet)? < before + 2 {
        ensure!(
            tokio::time::Instant::now() < deadline,
            "the right is not looked at again"
        );
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let _: MacOSMachine = make::within(client, ns, make::machine("m", "uncloned")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let denied = see::reason(&machines, "m", "Ready", "CloneNotPermitted").await?;
    ensure!(see::machine_phase(&denied) == Some(MachinePhase::Pending), "{denied:?}");
    ensure!(
        see::condition_of(&denied, "DiskCloned").is_some_and(|c| c["reason"] == "CloneNotPermitted"),
        "{denied:?}"
    );
    ensure!(
        denied
            .status
            .as_ref()
            .is_some_and(|status| status.identity_ref.is_none()),
        "it took an identity and waits"
    );
    see::event(client, ns, "m", "CloneNotPermitted").await?;
    let tried = fleet
        .requests()?
        .into_iter()
        .find(|request| request.verb == "create" && request.namespace == ns && request.resource != "events");
    ensure!(tried.is_none(), "{tried:?}");

    apply_yaml(client, &grant(&denied)?).await?;
    let ready = see::machine(&machines, "m", MachinePhase::Ready).await?;
    let disks = ready.status.map(|status| status.disks).unwrap_or_default();
    ensure!(
        disks.len() == 2 && disks.iter().all(|disk| disk.strategy == "csi-clone"),
        "{disks:?}"
    );
    let mut whole = role;
    whole.metadata.resource_version = None;
    roles.replace("dockerios-operator", &Default::default(), &whole).await?;
    roles.delete("dockerios-clone", &Default::default()).await?;
    fleet
        .api::<RoleBinding>(HOME)
        .delete("dockerios-clone", &Default::default())
        .await?;
    Ok(())
}
