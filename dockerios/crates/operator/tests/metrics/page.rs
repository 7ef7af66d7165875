//! `docs/metrics.md` and the code name the same metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use dockerios_collector::Counts;
use dockerios_operator::{
    act::Outcome,
    metrics::{
        Metrics,
        fleet::Fleet,
        measure::{Measure, Start, Strategy},
    },
};

use crate::world::{full, text};

/// Type and labels of each metric, by the name that a query has.
type Told = BTreeMap<String, (String, BTreeSet<String>)>;

/// A text in which every metric has a series.
async fn everything() -> String {
    let (metrics, questions) = Metrics::new(Arc::new(Counts::default()));
    let class = || "mac".to_owned();
    for measure in [
        Measure::PhaseLeft {
            class: class(),
            phase: "Starting".into(),
            seconds: 7.0,
        },
        Measure::ClaimBound {
            namespace: "team".into(),
            pool: "ci".into(),
            class: class(),
            start: Start::Warm,
            seconds: 1.0,
        },
        Measure::HookFailed { class: class() },
        Measure::Cloned {
            storage_class: "fast".into(),
            strategy: Strategy::Copy,
            bytes: 1,
        },
    ] {
        metrics.acts().note(&measure);
    }
    metrics.acts().passed("MacOSMachine", &Outcome::default());
    text(&metrics, questions, Some(Fleet::of(&full()))).await
}

fn of_text(text: &str) -> Told {
    let types: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut told: Told = types
        .iter()
        .map(|(name, kind)| {
            let suffix = match *kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            (format!("{name}{suffix}"), ((*kind).to_owned(), BTreeSet::new()))
        })
        .collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let sample = line.split([' ', '{']).next().unwrap_or_default();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| sample.strip_suffix(suffix).filter(|name| types.contains_key(name)))
            .unwrap_or(sample);
        let (_, labels) = told.get_mut(family).expect("every sample has a type");
        let inside = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
        // no value here holds a comma or an equals sign
        let keys = inside.into_iter().flat_map(|(inside, _)| inside.split(','));
        let keys = keys.filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
        labels.extend(keys.filter(|key| key != "le"));
    }
    told
}

fn of_page(page: &str) -> Told {
    let rows = page.lines().filter(|line| line.starts_with("| `dockerios_"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").filter(|label| !label.is_empty());
        (
            cells[1].trim_matches('`').to_owned(),
            (cells[2].to_owned(), labels.map(str::to_owned).collect()),
        )
    };
    rows.map(row).collect()
}

#[tokio::test]
async fn the_page_and_the_operator_name_the_same_metrics_with_the_same_types_and_labels() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&page).expect("docs/metrics.md is there");
    let text = everything().await;
    let (told, written) = (of_text(&text), of_page(&page));
    let of = |all: &Told| all.keys().cloned().collect::<BTreeSet<_>>();
    let (code, docs) = (of(&told), of(&written));
    assert_eq!(
        code.difference(&docs).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "told and not on the page"
    );
    assert_eq!(
        docs.difference(&code).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "on the page and not told"
    );
    assert_eq!(told, written);
}

#[tokio::test]
async fn every_metric_says_what_it_means_and_has_the_unit_as_its_suffix() {
    let text = everything().await;
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, _) = line.split_once(' ').expect("name and type");
        assert!(name.starts_with("dockerios_"), "{name}");
        let help = format!("# HELP {name} ");
        let help = text.lines().find_map(|line| line.strip_prefix(help.as_str()));
        assert!(help.is_some_and(|help| help.len() > 15), "{name}: {help:?}");
    }
    for line in text.lines().filter_map(|line| line.strip_prefix("# UNIT ")) {
        let (name, unit) = line.split_once(' ').expect("name and unit");
        assert!(name.ends_with(&format!("_{unit}")), "{line}");
    }
    assert!(text.ends_with("# EOF\n"), "an OpenMetrics text says where it ends");
}
