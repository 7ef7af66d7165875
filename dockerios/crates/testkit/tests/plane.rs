//! A plane of our own: who is answered, and by whom it is decided.

use dockerios_testkit::{ControlPlane, Options, Scratch, apply_yaml, bin, expect, shared};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};

const GADGETS: &str = r#"
# the object stands before its kind: the definition is applied first all the same
apiVersion: testkit.dockerios.io/v1
kind: Gadget
metadata: {name: one}
spec: {size: 3}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.testkit.dockerios.io}
spec:
  group: testkit.dockerios.io
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer, maximum: 5}}}}
---
"#;

#[tokio::test]
async fn an_admin_is_answered_and_the_certificate_names_every_group() -> anyhow::Result<()> {
    let plane = shared().await?;
    let namespaces: Api<Namespace> = Api::all(plane.client().await?);
    expect::accepted(namespaces.list(&ListParams::default()).await)?;

    let reviews: Api<SelfSubjectReview> = Api::all(plane.client_as("eve", &["tenants", "auditors", "third"]).await?);
    let review = expect::accepted(
        reviews
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await,
    )?;
    let who = review
        .status
        .and_then(|status| status.user_info)
        .expect("a review says who asks");
    assert_eq!(who.username.as_deref(), Some("eve"));
    assert_eq!(
        who.groups.unwrap_or_default(),
        ["tenants", "auditors", "third", "system:authenticated"]
    );
    Ok(())
}

#[tokio::test]
async fn a_user_without_a_binding_is_refused_by_rbac() -> anyhow::Result<()> {
    let plane = shared().await?;
    let scratch = Scratch::new(plane, "unbound").await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client_as("eve", &["tenants"]).await?, scratch.name());
    let message = expect::refused(
        maps.list(&ListParams::default()).await,
        403,
        &["\"eve\" cannot list resource \"configmaps\""],
    )?;
    assert!(message.contains(scratch.name()), "{message}");
    Ok(())
}

#[tokio::test]
async fn a_service_account_has_the_rights_it_was_bound_to_and_no_other() -> anyhow::Result<()> {
    let plane = shared().await?;
    let scratch = Scratch::new(plane, "account").await?;
    apply_yaml(
        &scratch.client()?,
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot}}\n---\n\
         {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader}, \
          rules: [{apiGroups: [''], resources: [configmaps], verbs: [list]}]}\n---\n\
         {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: reader}, \
          roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}, \
          subjects: [{kind: ServiceAccount, name: robot}]}",
    )
    .await?;
    let robot = plane.client_of_service_account(scratch.name(), "robot").await?;
    let maps: Api<ConfigMap> = Api::namespaced(robot.clone(), scratch.name());
    expect::accepted(maps.list(&ListParams::default()).await)?;
    let pods: Api<Pod> = Api::namespaced(robot, scratch.name());
    let user = format!("system:serviceaccount:{}:robot", scratch.name());
    expect::refused(
        pods.list(&ListParams::default()).await,
        403,
        &[&user, "cannot list resource \"pods\""],
    )?;

    let absent = plane
        .client_of_service_account(scratch.name(), "nobody")
        .await
        .err()
        .expect("there is no such account");
    assert!(
        format!("{absent:#}").contains(&format!("{}/nobody", scratch.name())),
        "{absent:#}"
    );
    Ok(())
}

#[tokio::test]
async fn manifests_are_applied_with_their_kinds_first_and_a_refusal_names_the_object() -> anyhow::Result<()> {
    let plane = shared().await?;
    let scratch = Scratch::new(plane, "manifests").await?;
    let client = scratch.client()?;
    let applied = apply_yaml(&client, GADGETS).await?;
    let names: Vec<String> = applied.iter().map(|object| object.name_any()).collect();
    assert_eq!(names, ["gadgets.testkit.dockerios.io", "one"]);

    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("testkit.dockerios.io", "v1", "Gadget"),
        "gadgets",
    );
    let gadgets: Api<DynamicObject> = Api::namespaced_with(client.clone(), scratch.name(), &kind);
    assert_eq!(expect::accepted(gadgets.get("one").await)?.data["spec"]["size"], 3);

    let large = "{apiVersion: testkit.dockerios.io/v1, kind: Gadget, metadata: {name: two}, spec: {size: 6}}";
    let refusal = format!("{:#}", apply_yaml(&client, large).await.expect_err("6 is more than 5"));
    assert!(
        refusal.contains("apply Gadget two") && refusal.contains("less than or equal to 5"),
        "{refusal}"
    );

    let unknown = "{apiVersion: testkit.dockerios.io/v1, kind: Widget, metadata: {name: w}}";
    let refusal = format!(
        "{:#}",
        apply_yaml(&client, unknown).await.expect_err("there is no such kind")
    );
    assert!(
        refusal.contains("Widget of testkit.dockerios.io/v1 is not served"),
        "{refusal}"
    );
    Ok(())
}

#[tokio::test]
async fn an_admission_policy_comes_into_force_and_refuses_with_its_message() -> anyhow::Result<()> {
    let scratch = Scratch::new(shared().await?, "policy").await?;
    let client = scratch.client()?;
    let name = scratch.name();
    apply_yaml(
        &client,
        &format!(
            "{{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {{name: {name}}}, \
             spec: {{matchConstraints: {{resourceRules: [{{apiGroups: [''], apiVersions: [v1], operations: [CREATE], \
             resources: [configmaps]}}]}}, validations: [{{expression: \"'color' in object.data\", \
             message: a map needs a colour}}]}}}}\n---\n\
             {{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, \
             metadata: {{name: {name}}}, spec: {{policyName: {name}, validationActions: [Deny], matchResources: \
             {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}}}}}}}"
        ),
    )
    .await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, name);
    let mut plain = ConfigMap {
        data: Some([("size".to_owned(), "3".to_owned())].into()),
        ..ConfigMap::default()
    };
    plain.metadata.name = Some("one".to_owned());
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let message = expect::until_refused(|| maps.create(&dry, &plain), 422, &["a map needs a colour"]).await?;
    assert!(message.contains("ValidatingAdmissionPolicy"), "{message}");
    plain.data = Some([("color".to_owned(), "red".to_owned())].into());
    expect::accepted(maps.create(&dry, &plain).await)?;
    Ok(())
}

#[tokio::test]
async fn the_controllers_work_a_deployment_gets_a_pod_and_a_namespace_goes_whole() -> anyhow::Result<()> {
    let plane = shared().await?;
    let scratch = Scratch::new(plane, "controllers").await?;
    apply_yaml(
        &scratch.client()?,
        "{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web}, spec: {replicas: 1, \
         selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, \
         spec: {containers: [{name: c, image: none.example/none}]}}}}",
    )
    .await?;
    let pods: Api<Pod> = Api::namespaced(plane.client().await?, scratch.name());
    let history = dockerios_testkit::History::start(pods.clone()).await?;
    // no node: the scheduler says so
    let sets: Api<k8s_openapi::api::apps::v1::ReplicaSet> = Api::namespaced(plane.client().await?, scratch.name());
    expect::until(sets, "web", "its pod", |set| {
        set.status.as_ref().is_some_and(|s| s.replicas == 1)
    })
    .await?;
    history.catch_up().await?;
    let name = history
        .versions()
        .first()
        .map(|version| version.object.name_any())
        .expect("the set's pod");
    let pod = expect::until(pods, &name, "the scheduler's word", |pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
    })
    .await?;
    assert!(pod.status.is_some());
    scratch.delete().await
}

#[tokio::test]
async fn a_start_with_options_a_folder_is_one_planes_and_a_failure_shows_the_components_words() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let options = || Options {
        dir: Some(dir.path().to_owned()),
        controller_manager: false,
        scheduler: false,
        ..Options::default()
    };
    let bad = Options {
        api_server_args: vec!["--no-such-flag".into()],
        ..options()
    };
    let failure = format!(
        "{:#}",
        ControlPlane::start(bad).await.err().expect("there is no such flag")
    );
    assert!(
        failure.contains("kube-apiserver ended") && failure.contains("unknown flag: --no-such-flag"),
        "{failure}"
    );

    let plane = ControlPlane::start(options()).await?;
    assert_eq!(
        plane.parts().iter().map(|part| part.name()).collect::<Vec<_>>(),
        ["kube-apiserver", "etcd"]
    );
    let refusal = format!(
        "{:#}",
        ControlPlane::start(options())
            .await
            .err()
            .expect("the folder is in use")
    );
    assert!(refusal.contains("already runs in"), "{refusal}");

    // without the controller that makes them, no ServiceAccount is waited for
    let scratch = Scratch::new(&plane, "bare").await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(scratch.client()?, scratch.name());
    assert!(
        expect::accepted(accounts.list(&ListParams::default()).await)?
            .items
            .is_empty()
    );

    let parts: Vec<u32> = plane.parts().iter().map(|part| part.pid()).collect();
    drop(plane);
    assert!(parts.into_iter().all(|pid| !dockerios_testkit::is_alive(pid)));
    assert!(
        dir.path().join("kube-apiserver.log").is_file(),
        "logs stay in a folder that was given"
    );
    Ok(())
}

#[tokio::test]
async fn a_binary_of_the_workspace_is_found_and_kubectl_reads_the_admins_kubeconfig() -> anyhow::Result<()> {
    let help = std::process::Command::new(bin("dockerios-plane")?)
        .arg("--help")
        .output()?;
    assert!(String::from_utf8_lossy(&help.stdout).contains("--feature-gate"));
    let absent = format!("{:#}", bin("dockerios-nonesuch").expect_err("there is no such binary"));
    assert!(
        absent.contains("cargo build --workspace --all-features --bin dockerios-nonesuch"),
        "{absent}"
    );
    let version = shared().await?.kubectl()?.args(["version", "-o", "json"]).output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    assert!(version.contains("serverVersion"), "{version}");
    Ok(())
}
