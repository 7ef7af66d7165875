//! How long a guest gets to shut itself down: never less than macOS needs.

use anyhow::{Result, ensure};
use dockerios_testkit::expect;
use serde_json::json;

use crate::cluster::{class, cluster, dry, with};

#[tokio::test]
async fn a_class_gives_its_guests_at_least_the_time_that_macos_needs_to_shut_down() -> Result<()> {
    let admin = cluster().await?.client().await?;
    let asked = |grace: Option<&str>| match grace {
        Some(grace) => with(class("g"), &json!({"spec": {"terminationGracePeriod": grace}})),
        None => class("g"),
    };
    for (grace, stored) in [
        (None, "180s"),
        (Some("180s"), "180s"),
        (Some("3m"), "3m"),
        (Some("300s"), "300s"),
    ] {
        let class = expect::accepted(dry(&admin, &asked(grace)).await)?;
        let told = &class.data["spec"]["terminationGracePeriod"];
        ensure!(*told == *stored, "{grace:?} became {told}");
    }
    let short: &[&str] = &["[class-grace]", "less is a power cut; use 180s or more"];
    for grace in ["30s", "0s", "179s", "2m59s"] {
        expect::refused(dry(&admin, &asked(Some(grace))).await, 422, short)?;
    }
    for grace in ["-1s", "1d", "300", "5 m", ""] {
        let said = ["spec.terminationGracePeriod"];
        expect::refused(dry(&admin, &asked(Some(grace))).await, 422, &said)?;
    }
    Ok(())
}
