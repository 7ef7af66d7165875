//! `why`: fetches what the sentences are made from.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use dockerios_api::names::RETAINED;
use dockerios_api::{MacOSImage, MacOSMachineClass, MacOSMachinePool};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::access::{Access, Cluster, found, words};
use crate::target::Target;
use crate::words as sentences;

/// Say in sentences what an object waits for, since when, and the way out
#[derive(clap::Args, Debug)]
pub(crate) struct Why {
    /// macs/NAME, macclaim/NAME, macpool/NAME, macclass/NAME, mimg/NAME, idpool/NAME, mid/NAME or platform/default
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    object: Vec<String>,
}

impl Why {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let target = Target::read(&self.object).map_err(|wrong| anyhow!(wrong))?;
        let cluster = access.open().await?;
        let resource = (target.kind.resource)();
        let namespace = target.kind.namespaced.then_some(&*cluster.namespace);
        let api = cluster.untyped(namespace, &resource);
        let object = found(&api, &resource.kind, &resource.plural, namespace, &target.name).await?;
        println!("{}", sentences::explain(target.kind, &object, Timestamp::now()));
        let short = sentences::conditions(&object)
            .iter()
            .any(|condition| condition.kind == "StorageHeadroom" && condition.reason == "BelowThreshold");
        if short {
            println!("{}", what_goes_first(&cluster).await);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What an admin could let go, in the order that docs/storage.md gives. Nothing is evicted by anybody else.
async fn what_goes_first(cluster: &Cluster) -> String {
    let warm = match Api::<MacOSMachinePool>::all(cluster.client.clone())
        .list(&ListParams::default())
        .await
    {
        Ok(pools) => listed(
            pools
                .iter()
                .filter(|pool| pool.status.as_ref().is_some_and(|s| s.replicas > 0))
                .map(|pool| {
                    let count = pool.status.as_ref().map_or(0, |status| status.replicas);
                    format!("{}/{} ({count})", pool.namespace().unwrap_or_default(), pool.name_any())
                }),
        ),
        Err(error) => format!("not seen ({})", words(&error)),
    };
    let selector = ListParams::default().labels(RETAINED);
    let retained = match Api::<PersistentVolumeClaim>::all(cluster.client.clone())
        .list(&selector)
        .await
    {
        Ok(claims) => listed(
            claims
                .iter()
                .map(|claim| format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())),
        ),
        Err(error) => format!("not seen ({})", words(&error)),
    };
    let unused = match (
        Api::<MacOSImage>::all(cluster.client.clone())
            .list(&ListParams::default())
            .await,
        Api::<MacOSMachineClass>::all(cluster.client.clone())
            .list(&ListParams::default())
            .await,
    ) {
        (Ok(images), Ok(classes)) => listed(
            images
                .iter()
                .map(|image| image.name_any())
                .filter(|image| !classes.iter().any(|class| *class.spec.image_name == **image)),
        ),
        (Err(error), _) | (_, Err(error)) => format!("not seen ({})", words(&error)),
    };
    format!(
        "Nothing that runs is evicted. What you can let go first:\n  1. warm machines nobody has claimed (kubectl scale \
         macpool/NAME --replicas=…): {warm}\n  2. disks kept of machines that are gone (kubectl delete pvc): \
         {retained}\n  3. images that no class names (kubectl delete mimg): {unused}"
    )
}

fn listed(names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = names.collect();
    match names.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{} and {} more", names[..SHOWN].join(", "), count - SHOWN),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_with_its_count() {
        assert_eq!(listed(std::iter::empty()), "none");
        let twelve = listed((0..12).map(|n| n.to_string()));
        assert_eq!(twelve, "0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }
}
