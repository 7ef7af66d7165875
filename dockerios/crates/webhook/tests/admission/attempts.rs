//! What each role must not do, tried with a real token beside the nearest thing that it may: whoever is stopped by
//! something else than the authorizer (no such object, a rule) was let through by it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dockerios_testkit::{apply_yaml, expect};
use http::Request;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, Client};
use serde_json::Value;

use crate::cluster::{OPERATOR, cluster};

/// An API group with its version, and what of it is asked for.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "apis/machine.dockerios.io/v1alpha1",
        &[
            "macosmachines",
            "macosmachinepools",
            "macosmachineclaims",
            "macosmachineclasses",
        ],
    ),
    (
        "apis/identity.dockerios.io/v1alpha1",
        &["identitypools", "machineidentities"],
    ),
    ("apis/image.dockerios.io/v1alpha1", &["macosimages"]),
    ("apis/config.dockerios.io/v1alpha1", &["platformconfigs"]),
    ("apis/kubevirt.io/v1", &["virtualmachines", "virtualmachineinstances"]),
    (
        "apis/subresources.kubevirt.io/v1",
        &["subresources:virtualmachineinstances"],
    ),
    ("apis/cdi.kubevirt.io/v1beta1", &["datavolumes"]),
    ("apis/coordination.k8s.io/v1", &["leases"]),
    ("apis/storage.k8s.io/v1", &["storageclasses"]),
    ("apis/batch/v1", &["jobs"]),
    (
        "apis/rbac.authorization.k8s.io/v1",
        &["clusterroles", "clusterrolebindings", "rolebindings"],
    ),
    (
        "api/v1",
        &[
            "pods",
            "secrets",
            "configmaps",
            "nodes",
            "namespaces",
            "events",
            "persistentvolumeclaims",
            "serviceaccounts",
        ],
    ),
];

/// Something to be tried: `VERB RESOURCE[/SUBRESOURCE] [NAMESPACE]`.
struct Act {
    verb: &'static str,
    method: &'static str,
    path: String,
}

impl Act {
    fn read(text: &'static str) -> Result<Act> {
        let mut words = text.split(' ');
        let (verb, what) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (resource, subresource) = match what.split_once('/') {
            Some((resource, subresource)) => (resource, format!("/{subresource}")),
            None => (what, String::new()),
        };
        let group = GROUPS.iter().find(|(_, resources)| resources.contains(&resource));
        let (group, _) = group.with_context(|| format!("{text}: no such resource"))?;
        let resource = resource.trim_start_matches("subresources:");
        let place = words
            .next()
            .map(|namespace| format!("namespaces/{namespace}/"))
            .unwrap_or_default();
        let (method, named) = match verb {
            "get" => ("GET", true),
            "list" => ("GET", false),
            "create" => ("POST", !subresource.is_empty()),
            "update" => ("PUT", true),
            "patch" => ("PATCH", true),
            "delete" => ("DELETE", true),
            "deletecollection" => ("DELETE", false),
            _ => bail!("{text}: no such verb"),
        };
        // nobody has an object of that name: whoever may act on it is told so
        let name = if named { "/absent" } else { "" };
        Ok(Act {
            verb,
            method,
            path: format!("/{group}/{place}{resource}{name}{subresource}"),
        })
    }

    /// Tries it, changing nothing; whether the authorizer let it through.
    async fn is_allowed(&self, client: &Client) -> Result<bool> {
        let dry = if self.method == "GET" { "" } else { "?dryRun=All" };
        let media = match self.method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if ["GET", "DELETE"].contains(&self.method) {
            ""
        } else {
            "{}"
        };
        let request = Request::builder()
            .method(self.method)
            .uri(format!("{}{dry}", self.path))
            .header("Content-Type", media)
            .body(body.as_bytes().to_vec())?;
        match client.request::<Value>(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) => {
                let authorizer =
                    status.code == 403 && status.message.contains(&format!("cannot {} resource", self.verb));
                ensure!(
                    status.code != 401 && status.code < 500,
                    "{} {}: {status:?}",
                    self.method,
                    self.path
                );
                Ok(!authorizer)
            }
            Err(error) => Err(error).with_context(|| self.path.clone()),
        }
    }
}

/// Tries each pair: what is allowed, and its neighbour, which is not.
async fn hold(client: &Client, pairs: &[(&'static str, &'static str)]) -> Result<()> {
    // a binding that was just made takes a moment to hold
    let first = Act::read(pairs.first().context("no pair")?.0)?;
    for _ in 0..200 {
        if first.is_allowed(client).await? {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut faults = Vec::new();
    for (may, may_not) in pairs {
        if !Act::read(may)?.is_allowed(client).await? {
            faults.push(format!("should be allowed: {may}"));
        }
        if Act::read(may_not)?.is_allowed(client).await? {
            faults.push(format!("should be forbidden: {may_not}"));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// A ServiceAccount that has a role, in namespace red or everywhere, and its client.
async fn bearer(role: &str, everywhere: bool) -> Result<Client> {
    let plane = cluster().await?;
    let kind = if everywhere {
        "ClusterRoleBinding"
    } else {
        "RoleBinding"
    };
    let place = if everywhere { "" } else { ", namespace: red" };
    let objects = format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: as-{role}, namespace: red}}}}\n---\n\
         {{apiVersion: rbac.authorization.k8s.io/v1, kind: {kind}, metadata: {{name: as-{role}{place}}},\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}},\n\
         subjects: [{{kind: ServiceAccount, name: as-{role}, namespace: red}}]}}"
    );
    apply_yaml(&plane.client().await?, &objects).await?;
    plane.client_of_service_account("red", &format!("as-{role}")).await
}

/// One of Kubernetes' own roles, once the controller has put our rules into it.
async fn aggregated(role: &str) -> Result<Client> {
    let roles: Api<ClusterRole> = Api::all(cluster().await?.client().await?);
    let ours = |role: &ClusterRole| {
        let mut groups = role
            .rules
            .iter()
            .flatten()
            .filter_map(|rule| rule.api_groups.as_ref())
            .flatten();
        groups.any(|group| group == "machine.dockerios.io")
    };
    expect::until(roles, role, "our kinds in it", ours).await?;
    bearer(role, false).await
}

#[tokio::test]
async fn a_team_acts_in_its_namespace_on_its_own_kinds_and_nowhere_else() -> Result<()> {
    let pairs = [
        ("create macosmachineclaims red", "create macosmachineclaims blue"),
        ("list macosmachines red", "list macosmachines blue"),
        ("list macosmachinepools red", "list macosmachinepools"),
        ("update macosmachines red", "update macosmachines/status red"),
        (
            "patch macosmachinepools/scale red",
            "patch macosmachinepools/status red",
        ),
        ("patch macosmachineclaims red", "patch macosmachineclaims/status red"),
        ("delete macosmachines red", "deletecollection macosmachines red"),
        ("get macosmachineclasses", "update macosmachineclasses"),
        ("list macosmachineclasses", "create macosmachineclasses"),
        ("list events red", "list pods red"),
        ("get events red", "get secrets red"),
        ("get macosmachineclaims red", "get configmaps red"),
        ("get macosmachines red", "get virtualmachines red"),
        ("delete macosmachineclaims red", "delete persistentvolumeclaims red"),
        (
            "get macosmachines red",
            "get subresources:virtualmachineinstances/vnc red",
        ),
        ("list macosmachines red", "list machineidentities"),
        ("list macosmachines red", "list identitypools"),
        ("list macosmachines red", "list macosimages"),
        ("list macosmachines red", "get platformconfigs"),
        ("create macosmachines red", "create virtualmachines red"),
        ("create macosmachines red", "create rolebindings red"),
    ];
    hold(&bearer("dockerios-team", false).await?, &pairs).await
}

#[tokio::test]
async fn whoever_is_authenticated_reads_classes_and_nothing_else_of_ours() -> Result<()> {
    let plane = cluster().await?;
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: as-nobody, namespace: red}}";
    apply_yaml(&plane.client().await?, account).await?;
    let nobody = plane.client_of_service_account("red", "as-nobody").await?;
    let pairs = [
        ("get macosmachineclasses", "update macosmachineclasses"),
        ("list macosmachineclasses", "delete macosmachineclasses"),
        ("get macosmachineclasses", "patch macosmachineclasses/status"),
        ("get macosmachineclasses", "get macosmachines red"),
        ("list macosmachineclasses", "list macosmachineclaims red"),
        ("list macosmachineclasses", "create macosmachineclaims red"),
        ("list macosmachineclasses", "list macosimages"),
        ("list macosmachineclasses", "list machineidentities"),
    ];
    hold(&nobody, &pairs).await
}

#[tokio::test]
async fn who_views_a_namespace_reads_our_kinds_there_and_changes_none() -> Result<()> {
    let pairs = [
        ("list macosmachines red", "create macosmachines red"),
        ("get macosmachineclaims red", "create macosmachineclaims red"),
        ("get macosmachinepools/scale red", "patch macosmachinepools/scale red"),
        ("list macosmachinepools red", "list macosmachinepools blue"),
        ("get macosmachines red", "delete macosmachines red"),
        ("list macosmachines red", "list machineidentities"),
        ("get configmaps red", "get secrets red"),
    ];
    hold(&aggregated("view").await?, &pairs).await
}

#[tokio::test]
async fn who_edits_a_namespace_writes_our_kinds_there_but_no_status() -> Result<()> {
    let pairs = [
        ("create macosmachineclaims red", "create macosmachineclaims blue"),
        ("update macosmachineclaims red", "update macosmachineclaims/status red"),
        (
            "patch macosmachinepools/scale red",
            "patch macosmachinepools/status red",
        ),
        ("delete macosmachines red", "deletecollection macosmachines red"),
        ("patch macosmachines red", "patch macosmachineclasses"),
        ("create macosmachines red", "create virtualmachines red"),
    ];
    hold(&aggregated("edit").await?, &pairs).await
}

#[tokio::test]
async fn who_administers_a_namespace_empties_it_and_shapes_nothing_outside() -> Result<()> {
    let pairs = [
        (
            "deletecollection macosmachines red",
            "deletecollection macosmachines blue",
        ),
        (
            "deletecollection macosmachineclaims red",
            "update macosmachineclaims/status red",
        ),
        ("update macosmachines red", "update macosmachines/status red"),
        ("create macosmachinepools red", "create macosmachineclasses"),
        ("create macosmachines red", "create identitypools"),
        ("create macosmachines red", "delete machineidentities"),
    ];
    hold(&aggregated("admin").await?, &pairs).await
}

#[tokio::test]
async fn the_platform_team_shapes_everything_of_ours_and_forges_no_status() -> Result<()> {
    let pairs = [
        ("create macosmachineclasses", "update macosmachineclasses/status"),
        ("update platformconfigs", "update platformconfigs/status"),
        ("patch macosimages", "patch macosimages/status"),
        ("delete identitypools", "update identitypools/status"),
        ("delete machineidentities", "update machineidentities/status"),
        ("update macosmachines blue", "update macosmachines/status blue"),
        ("delete macosimages", "deletecollection macosimages"),
        ("get macosmachines blue", "get virtualmachines blue"),
        ("get platformconfigs", "get secrets dockerios-system"),
        ("delete macosmachineclaims red", "delete pods red"),
        ("create macosimages", "create clusterroles"),
    ];
    hold(&bearer("dockerios-platform-team", true).await?, &pairs).await
}

#[tokio::test]
async fn who_breaks_the_glass_takes_apart_and_makes_nothing() -> Result<()> {
    let ann = cluster().await?.client_as("ann", &["dockerios:break-glass"]).await?;
    let pairs = [
        ("update machineidentities/status", "create machineidentities"),
        ("update macosmachines/status red", "create macosmachines red"),
        ("update macosmachineclaims/status red", "create macosmachineclaims red"),
        ("patch macosimages/status", "create macosimages"),
        ("patch identitypools/status", "delete identitypools"),
        ("delete virtualmachines red", "create virtualmachines red"),
        (
            "patch virtualmachineinstances red",
            "create virtualmachineinstances red",
        ),
        ("delete pods red", "create pods red"),
        ("get pods red", "get secrets red"),
        ("list macosmachines", "list platformconfigs"),
        ("delete macosmachines red", "deletecollection macosmachines red"),
        (
            "get virtualmachines red",
            "get subresources:virtualmachineinstances/console red",
        ),
    ];
    hold(&ann, &pairs).await
}

#[tokio::test]
async fn the_operator_acts_on_what_it_makes_and_reads_no_secret_of_a_tenant() -> Result<()> {
    let pairs = [
        ("create secrets red", "get secrets red"),
        ("deletecollection secrets red", "list secrets red"),
        ("create secrets red", "update secrets red"),
        ("get secrets dockerios-system", "list secrets dockerios-system"),
        ("get configmaps red", "update configmaps red"),
        ("get pods red", "delete pods red"),
        ("create jobs dockerios-system", "create pods dockerios-system"),
        ("list pods dockerios-system", "get pods/log dockerios-system"),
        ("list pods dockerios-system", "create pods/exec dockerios-system"),
        (
            "create datavolumes/source dockerios-system",
            "create datavolumes/source red",
        ),
        ("create datavolumes red", "deletecollection datavolumes red"),
        (
            "create persistentvolumeclaims dockerios-system",
            "create persistentvolumeclaims red",
        ),
        ("create jobs dockerios-system", "create jobs red"),
        ("create leases dockerios-system", "create leases red"),
        ("update virtualmachines red", "update virtualmachineinstances red"),
        (
            "delete virtualmachineinstances red",
            "deletecollection virtualmachineinstances red",
        ),
        (
            "update subresources:virtualmachineinstances/evacuate red",
            "update subresources:virtualmachineinstances/pause red",
        ),
        (
            "get subresources:virtualmachineinstances/vnc red",
            "get subresources:virtualmachineinstances/console red",
        ),
        ("update macosmachines red", "update macosmachinepools red"),
        ("delete macosmachineclaims red", "create macosmachineclaims red"),
        ("patch macosmachineclasses/status", "patch macosmachineclasses"),
        ("patch platformconfigs/status", "patch platformconfigs"),
        ("patch macosimages", "delete macosimages"),
        ("delete machineidentities", "deletecollection machineidentities"),
        ("patch identitypools", "delete identitypools"),
        ("list nodes", "patch nodes"),
        ("list namespaces", "create namespaces"),
        ("list storageclasses", "create storageclasses"),
        ("list storageclasses", "create events red"),
        ("get macosmachines red", "create serviceaccounts/token dockerios-system"),
        ("get macosmachines red", "create clusterrolebindings"),
        ("get macosmachines red", "create rolebindings red"),
    ];
    let operator = cluster()
        .await?
        .client_of_service_account(OPERATOR.0, OPERATOR.1)
        .await?;
    hold(&operator, &pairs).await
}
