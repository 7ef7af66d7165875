use std::sync::Arc;

use dockerios_collector::Counts;
use dockerios_core::plan::{Plan, Refusal, RefusalCause};
use serde_json::json;

use super::*;
use crate::{
    leader::Term,
    metrics::measure::{Measure, Start},
    peer::{Answer as Reply, answering, hands},
};

/// An engine whose API server never answers, and which has been told an empty list of everything.
async fn engine() -> Engine {
    let client = answering(|_| Reply::Never).await;
    let hands = hands(client.clone(), Term::endless());
    let world = World::new("dockerios-system", "https://collector:7443");
    let (metrics, questions) = Metrics::new(Arc::new(Counts::default()));
    let mut engine = Engine::start(client, hands, world, metrics, questions);
    for source in Source::ALL {
        engine.take_all((source, Notice::List(Vec::new(), 1)));
    }
    engine
}

fn machine() -> Id {
    Id::new(Kind::MacOSMachine, "team", "m")
}

fn refused() -> Outcome {
    let refusal = Refusal {
        of: machine(),
        cause: RefusalCause::Forbidden,
        message: "no".into(),
    };
    Outcome {
        refusal: Some(refusal),
        ..Outcome::default()
    }
}

#[tokio::test]
async fn a_pass_that_asks_for_a_moment_that_has_passed_is_not_all_that_is_done() {
    let mut engine = engine().await;
    let idle = Pass {
        uid: "u".into(),
        version: "7".into(),
        plan: Plan {
            wake: Some(Timestamp::UNIX_EPOCH),
            ..Plan::default()
        },
        osk: None,
        measures: Vec::new(),
    };
    engine.pursue(machine(), idle);
    assert_eq!(engine.queue.pop(Instant::now()), None, "others have their turn");
    assert!(engine.queue.next_wake().is_some(), "and it is looked at again");
}

#[tokio::test]
async fn nothing_is_kept_of_one_that_is_gone() {
    let mut engine = engine().await;
    let stored = json!({"metadata": {"name": "m", "namespace": "team", "uid": "u", "resourceVersion": "7"}});
    engine.world.take(Source::Machines, Notice::Put(stored.clone()));
    engine.finished(&machine(), refused());
    assert!(engine.world.refusal(&machine()).is_some());
    engine.take_all((Source::Machines, Notice::Gone(stored)));
    assert_eq!(
        engine.world.refusal(&machine()),
        None,
        "one made again under the name was refused nothing"
    );

    // what was under way ends after it went
    engine.finished(&machine(), refused());
    let due = engine.queue.next_wake().expect("it is looked at again");
    while let Some(id) = engine.queue.pop(due) {
        assert!(pass(&engine.world, &id, Timestamp::now()).is_none());
        engine.queue.ask(id);
        engine.decide_what_is_due();
    }
    assert_eq!(engine.world.refusal(&machine()), None);
    assert!(engine.queue.at_rest());
}

#[tokio::test]
async fn the_series_of_a_pool_that_is_gone_go_with_a_round() {
    let mut engine = engine().await;
    let bound = |pool: &str| Measure::ClaimBound {
        namespace: "team".into(),
        pool: pool.into(),
        class: String::new(),
        start: Start::Warm,
        seconds: 1.0,
    };
    let namespace = json!({"metadata": {"name": "team", "resourceVersion": "7"}});
    engine.take_all((Source::Namespaces, Notice::Put(namespace)));
    let pool = json!({"metadata": {"name": "stays", "namespace": "team", "resourceVersion": "7"},
        "spec": "what cannot be read is not gone"});
    engine.take_all((Source::MachinePools, Notice::Put(pool)));
    for pool in ["stays", "goes"] {
        engine.metrics.acts().note(&bound(pool));
    }
    engine.everything();
    let text = engine.metrics.acts().text();
    assert!(
        text.contains(r#"pool="stays""#) && !text.contains(r#"pool="goes""#),
        "{text}"
    );
}

#[tokio::test]
async fn a_scrape_finds_the_series_of_what_has_not_happened_yet() {
    let mut engine = engine().await;
    let class = json!({"metadata": {"name": "mac", "resourceVersion": "7"}, "spec": {
        "imageName": "golden", "identity": {"type": "Shared", "shared": {"bootDiskImage": "r/b"}},
        "cpu": {"cores": 2, "model": "Haswell-noTSX"}, "memory": {"size": "4Gi"},
        "systemDisk": {"bus": "nvme", "size": "20Gi", "storageClassName": "fast"}}});
    engine.take_all((Source::Classes, Notice::Put(class)));
    assert!(engine.fleet().is_some());
    let text = engine.metrics.acts().text();
    for series in [
        r#"hook_failures_total{class="mac"} 0"#,
        r#"cloned_bytes_total{storage_class="fast",strategy="copy"} 0"#,
        r#"clones_total{storage_class="fast",strategy="csi-clone"} 0"#,
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}
