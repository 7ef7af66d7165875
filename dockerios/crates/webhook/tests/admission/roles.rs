//! What the roles let and do not let: real attempts, and reviews for what cannot be attempted here.

use anyhow::{Result, ensure};
use dockerios_testkit::{apply_yaml, expect};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::cluster::{
    OPERATOR, api, change, claim, class, cluster, create, deploy, dry, identity, machine, machine_pool, object, with,
};

/// Member of a team: `dockerios-team` in namespace red, nothing else.
async fn tenant() -> Result<Client> {
    let plane = cluster().await?;
    let binding =
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: team, namespace: red},
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dockerios-team},
        subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: team-red}]}";
    apply_yaml(&plane.client().await?, binding).await?;
    let dev = plane.client_as("dev", &["team-red"]).await?;
    let asks = claim("let-in");
    expect::until_accepted(|| dry(&dev, &asks)).await?;
    Ok(dev)
}

#[tokio::test]
async fn a_team_claims_scales_and_reads_classes_and_nothing_of_others() -> Result<()> {
    let (admin, dev) = (cluster().await?.client().await?, tenant().await?);
    expect::accepted(create(&dev, &claim("teams")).await)?;
    expect::accepted(create(&dev, &machine("teams")).await)?;
    expect::accepted(create(&dev, &machine_pool("teams")).await)?;
    expect::accepted(api(&dev, &class("x")).list(&ListParams::default()).await)?;
    let scale = json!({"spec": {"replicas": 2}});
    let patch = kube::api::Patch::Merge(&scale);
    expect::accepted(
        api(&dev, &machine_pool("x"))
            .patch_scale("teams", &Default::default(), &patch)
            .await,
    )?;

    let elsewhere = json!({"metadata": {"namespace": "blue"}});
    let denied: &[&str] = &["dev", "cannot create resource"];
    expect::refused(dry(&dev, &with(claim("c"), &elsewhere)).await, 403, denied)?;
    expect::refused(dry(&dev, &class("c")).await, 403, denied)?;
    expect::refused(dry(&dev, &identity(90)).await, 403, denied)?;
    let blue = with(machine("x"), &elsewhere);
    expect::refused(
        api(&dev, &blue).list(&ListParams::default()).await,
        403,
        &["cannot list resource"],
    )?;
    expect::refused(
        api(&dev, &identity(90)).list(&ListParams::default()).await,
        403,
        &["cannot list resource"],
    )?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "macs-x", "namespace": "red"}});
    expect::refused(
        api(&dev, &secret).get("macs-x").await,
        403,
        &["cannot get resource \"secrets\""],
    )?;
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "macs-x", "namespace": "red"}});
    expect::refused(
        api(&dev, &config).get("macs-x").await,
        403,
        &["cannot get resource \"configmaps\""],
    )?;

    for base in [claim("teams"), machine("teams"), machine_pool("teams")] {
        let stored = serde_json::to_value(api(&admin, &base).get("teams").await?)?;
        let forged = with(stored, &json!({"status": {"phase": "Bound"}}));
        let written = api(&dev, &base)
            .replace_status("teams", &PostParams::default(), &object(&forged))
            .await;
        expect::refused(written, 403, &["cannot update resource", "/status"])?;
    }
    let claimed = json!({"spec": {"claimRef": {"name": "c", "uid": "u"}}});
    expect::refused(change(&dev, &machine("teams"), &claimed).await, 403, &["[claim-owned]"])?;
    for base in [claim("teams"), machine_pool("teams"), machine("teams")] {
        expect::accepted(api(&dev, &base).delete("teams", &DeleteParams::default()).await)?;
    }
    Ok(())
}

async fn may(
    client: &Client,
    user: &str,
    verb: &str,
    group: &str,
    resource: &str,
    namespace: Option<&str>,
) -> Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(vec!["system:authenticated".to_owned()]),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()).filter(|s| !s.is_empty()),
                namespace: namespace.map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answered = reviews.create(&PostParams::default(), &review).await?;
    Ok(answered.status.is_some_and(|status| status.allowed))
}

/// What only shows in what comes of it, and would be too late to see then.
#[tokio::test]
async fn the_operator_cannot_give_itself_more_rights() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let operator = format!("system:serviceaccount:{}:{}", OPERATOR.0, OPERATOR.1);
    let roles = "rbac.authorization.k8s.io";
    for (verb, group, resource, wanted) in [
        ("escalate", roles, "clusterroles", false),
        ("bind", roles, "clusterroles", false),
        ("impersonate", "", "users", false),
        ("impersonate", "", "serviceaccounts", false),
        ("list", "", "nodes", true),
    ] {
        let allowed = may(&admin, &operator, verb, group, resource, None).await?;
        ensure!(allowed == wanted, "{verb} {resource}.{group}: {allowed}");
    }
    Ok(())
}

#[test]
fn no_role_names_a_wildcard_or_grants_status_or_more_rights_to_people() {
    for file in ["operator", "team", "aggregated", "platform-team"] {
        let text = std::fs::read_to_string(deploy(&format!("rbac/{file}.yaml"))).expect("a file");
        for document in serde_yaml::Deserializer::from_str(&text) {
            let role: Value = serde::Deserialize::deserialize(document).expect("a manifest");
            let name = role["metadata"]["name"].as_str().unwrap_or_default();
            for rule in role["rules"].as_array().into_iter().flatten() {
                let words: Vec<&str> = ["apiGroups", "resources", "verbs"]
                    .iter()
                    .flat_map(|field| rule[*field].as_array().into_iter().flatten())
                    .filter_map(Value::as_str)
                    .collect();
                for forbidden in ["*", "escalate", "bind", "impersonate"] {
                    assert!(!words.contains(&forbidden), "{file}: {name}: {forbidden}");
                }
                let status = words.iter().any(|word| word.ends_with("/status"));
                let whose = ["dockerios-operator", "dockerios-break-glass"].contains(&name);
                assert!(!status || whose, "{file}: {name} grants {words:?}");
            }
        }
    }
}
