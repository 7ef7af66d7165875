//! `why`: fetches what the sentences are made from.

use std::process::ExitCode;

use anyhow::Result;
use dockerios_api::machine::macos_machine::{MachineCondition, MachineReason};
use jiff::Timestamp;

use crate::access::{Access, found};
use crate::answer::wrong_words;
use crate::target::Target;
use crate::words as sentences;
use crate::{out, room};

/// Say in sentences what an object waits for, since when, and the way out
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "kubectl dockerios why [OPTIONS] KIND/NAME\n       kubectl dockerios why [OPTIONS] KIND NAME"
)]
pub(crate) struct Why {
    /// macs/NAME, macclaim/NAME, macpool/NAME, macclass/NAME, mimg/NAME, idpool/NAME, mid/NAME or platform/default
    #[arg(value_name = "KIND/NAME")]
    object: String,
    /// The name, where the kind stands alone before it
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

impl Why {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let words: Vec<String> = std::iter::once(&self.object).chain(&self.name).cloned().collect();
        let target = Target::read(&words).map_err(wrong_words)?;
        let cluster = access.open().await?;
        let resource = (target.kind.resource)();
        let namespace = target.kind.namespaced.then_some(&*cluster.namespace);
        let api = cluster.untyped(namespace, &resource);
        let object = found(&api, &resource.kind, &resource.plural, namespace, &target.name).await?;
        out::line(&sentences::explain(target.kind, &object, Timestamp::now()))?;
        let short = sentences::conditions(&object).iter().any(|condition| {
            condition.kind == MachineCondition::StorageHeadroom.word()
                && condition.reason == MachineReason::BelowThreshold.word()
        });
        if short {
            let class = sentences::text(&object, "/spec/machineClassName").unwrap_or_default();
            out::line(&room::look(&cluster, class).await)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
