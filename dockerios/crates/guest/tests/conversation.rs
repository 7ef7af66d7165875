//! The agent's binary and the collector, over real TLS.
#![cfg(feature = "probe-directory")]

mod world;

use dockerios_api::machine::macos_machine::GuestStage;
use dockerios_collector::{Expected, Limits};
use world::{Desk, GuestSystem, ONE, Pki, TWO, long_held, run, serve, shutdown};

#[tokio::test]
async fn a_guest_that_becomes_ready_is_recorded_with_all_it_says() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    for (name, text) in [
        ("stage", "Ready\n"),
        ("osVersion", "15.6"),
        ("software", "Some Tool 16.4\nOther 1\n"),
        ("diskFree", "1000"),
        ("diskTotal", "4000"),
    ] {
        guest.put(&format!("probe/{name}"), text);
    }
    guest.boot(&[]);
    let said = desk.latest(ONE, "Ready", |g| g.ready).await;
    assert_eq!(said.stage, Some(GuestStage::Ready));
    assert_eq!(said.agent_version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!((said.os_version.as_deref(), said.disk_free), (Some("15.6"), Some(1000)));
    assert_eq!(
        (said.software[0].name.as_str(), said.software[0].version.as_str()),
        ("Some Tool", "16.4")
    );
    assert_eq!((said.clean_shutdown, said.identity_mismatch), (None, None));
    assert!(said.last_report.is_some());
}

#[tokio::test]
async fn each_stage_is_recorded_at_once_though_the_last_answer_is_still_held() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.boot(&[]);
    desk.latest(ONE, "AgentStarting", |g| g.stage == Some(GuestStage::AgentStarting))
        .await;
    for (word, stage) in [
        ("LoginWindow", GuestStage::LoginWindow),
        ("UserSession", GuestStage::UserSession),
        ("Ready", GuestStage::Ready),
        ("UserSession", GuestStage::UserSession),
    ] {
        guest.put("probe/stage", word);
        let said = desk.latest(ONE, word, |g| g.stage == Some(stage)).await;
        assert_eq!(said.ready, stage == GuestStage::Ready);
    }
    assert_eq!(desk.records(ONE).len(), 5, "one record a stage");
}

#[tokio::test]
async fn a_guest_is_ready_when_every_check_of_its_image_says_so() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.put("probe/stage", "UserSession");
    std::fs::create_dir(guest.path("ready.d")).expect("a directory");
    guest.script("ready.d/10-yes", "exit 0");
    guest.script("ready.d/20-later", "test -e \"$(dirname \"$0\")/../registered\"");
    guest.put("ready.d/README", "not executable, so no check");
    guest.boot(&[]);
    desk.latest(ONE, "UserSession", |g| g.stage == Some(GuestStage::UserSession))
        .await;
    guest.until("log", "20-later: says no").await;
    assert!(desk.records(ONE).iter().all(|g| !g.ready));
    guest.put("registered", "");
    desk.latest(ONE, "Ready", |g| g.ready).await;
}

#[tokio::test]
async fn whoever_answers_under_another_authority_gets_no_token() {
    let expired = Pki::new("127.0.0.1", |leaf| leaf.not_after = rcgen::date_time_ymd(2001, 1, 1));
    for pki in [Pki::plain(), expired] {
        let (other, desk) = (Pki::plain(), Desk::with(&[ONE]));
        let collector = serve(&pki, &desk, 0, long_held()).await;
        let mut guest = GuestSystem::new(ONE, ONE, collector.address, &other.ca);
        guest.boot(&[]);
        let words = "is not the collector that the config volume's ca.crt vouches for: invalid peer certificate";
        let log = guest.until("log", words).await;
        assert!(log.contains("BadSignature") || log.contains("UnknownIssuer"), "{log}");
        assert!(!log.contains(&world::key().token(ONE)), "the token is in the log");
        assert_eq!(
            (collector.counts.accepted.get(), collector.counts.unauthorized.get()),
            (0, 0)
        );
        assert!(desk.records(ONE).is_empty());
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let (pki, desk) = (Pki::new("127.0.0.2", |_| {}), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.boot(&[]);
    let log = guest.until("log", "vouches for").await;
    assert!(
        log.contains("NotValidForName") || log.contains("not valid for name"),
        "{log}"
    );
}

#[tokio::test]
async fn a_collector_behind_an_address_that_its_certificate_does_not_know_is_believed_by_the_name_of_the_volume() {
    let name = "dockerios-collector.dockerios-system.svc";
    let (pki, desk) = (Pki::new(name, |_| {}), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.put("volume/server-name", name);
    guest.put("probe/stage", "Ready");
    guest.boot(&[]);
    desk.latest(ONE, "Ready", |g| g.ready).await;
}

#[tokio::test]
async fn a_guest_whose_clock_is_off_by_years_still_reports() {
    for year in [2000, 2090] {
        let pki = Pki::new("127.0.0.1", |leaf| {
            leaf.not_before = rcgen::date_time_ymd(year, 1, 1);
            leaf.not_after = rcgen::date_time_ymd(year + 1, 1, 1);
        });
        let desk = Desk::with(&[ONE]);
        let collector = serve(&pki, &desk, 0, long_held()).await;
        let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
        guest.put("probe/stage", "Ready");
        guest.boot(&[]);
        desk.latest(ONE, "Ready", |g| g.ready).await;
    }
}

#[tokio::test]
async fn a_guest_with_the_token_of_another_machine_is_refused_with_the_reason() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE, TWO]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, TWO, collector.address, &pki.ca);
    guest.boot(&[]);
    let log = guest
        .until("log", "refused (403): this token belongs to another machine")
        .await;
    assert!(!log.contains(&world::key().token(TWO)), "the token is in the log");
    assert!(collector.counts.foreign_token.get() >= 1);
    assert!(desk.records(ONE).is_empty() && desk.records(TWO).is_empty());
    // the right token arrives on the volume: no restart is needed
    guest.put("volume/token", &world::key().token(ONE));
    desk.until(ONE, "a record", |records| !records.is_empty()).await;
}

#[tokio::test]
async fn a_guest_that_is_refused_again_and_again_comes_ever_more_seldom_and_its_log_says_so_once() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE, TWO]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, TWO, collector.address, &pki.ca);
    guest.boot(&[]);
    // as long as it looks at the config volume anew between them
    let waits = loop {
        let log = guest.until("log", "refused (403): ").await;
        let refused = log.lines().filter(|line| line.contains("refused (403): "));
        let waits: Vec<f64> = refused
            .filter_map(|line| {
                line.rsplit_once("; trying again in ")?
                    .1
                    .strip_suffix(" s")?
                    .parse()
                    .ok()
            })
            .collect();
        if waits.len() >= 3 {
            break waits;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    // half a second, doubled each time, of which the upper half
    assert!(waits[0] <= 0.5 && waits[2] >= 1.0, "{waits:?}");
    let log = guest.text("log");
    let said = |level: &str, words: &str| {
        log.lines()
            .filter(|line| line.contains(level) && line.contains(words))
            .count()
    };
    assert_eq!(said("WARN", "refused (403): "), 1, "{log}");
    assert_eq!(said("INFO", "config volume read"), 1, "{log}");
    guest.put("volume/token", &world::key().token(ONE));
    guest.until("log", "the collector takes reports again").await;
}

#[tokio::test]
async fn the_order_to_shut_down_reaches_a_held_guest_and_the_command_runs_once() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.put("probe/stage", "Ready");
    guest.boot(&[]);
    desk.latest(ONE, "Ready", |g| g.ready).await;
    desk.change(ONE, |machine| machine.order = shutdown("s1"));
    guest.until("downs", "down").await;
    let said = desk.records(ONE).last().cloned().expect("records");
    assert_eq!(
        (said.stage, said.ready),
        (Some(GuestStage::ShuttingDown), false),
        "said before the command ran"
    );
    assert_eq!(said.clean_shutdown, Some(true));
    for order in [shutdown("s2"), run(), shutdown("s3")] {
        let heard = collector.counts.accepted.get();
        desk.change(ONE, |machine| machine.order = order);
        let end = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        while collector.counts.accepted.get() == heard {
            assert!(tokio::time::Instant::now() < end, "no answer to a new order");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    assert_eq!(guest.text("downs"), "down\n");
}

#[tokio::test]
async fn a_shutdown_that_fails_is_said_and_tried_again() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.script(
        "shutdown",
        "h=$(dirname \"$0\"); echo try >> \"$h/downs\"; test -e \"$h/willing\"",
    );
    guest.put("probe/stage", "Ready");
    desk.change(ONE, |machine| machine.order = shutdown("s1"));
    guest.boot(&[]);
    desk.latest(ONE, "a failed shutdown", |g| g.clean_shutdown == Some(false))
        .await;
    guest.until("log", "the system does not go down").await;
    guest.put("willing", "");
    desk.latest(ONE, "a shutdown", |g| g.clean_shutdown == Some(true)).await;
    assert_eq!(guest.text("downs"), "try\ntry\n");
}

#[tokio::test]
async fn a_collector_that_was_away_hears_the_newest() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let address = collector.address;
    let mut guest = GuestSystem::new(ONE, ONE, address, &pki.ca);
    guest.boot(&[]);
    desk.latest(ONE, "AgentStarting", |g| g.stage == Some(GuestStage::AgentStarting))
        .await;
    collector.stop().await;
    guest.until("log", "cannot be reached").await;
    guest.put("probe/stage", "Ready");
    let _back = serve(&pki, &desk, address.port(), long_held()).await;
    desk.latest(ONE, "Ready", |g| g.ready).await;
}

#[tokio::test]
async fn a_quiet_guest_goes_on_reporting_when_answers_are_held_to_the_end() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let limits = Limits {
        hold: std::time::Duration::from_millis(100),
        ..Limits::default()
    };
    let collector = serve(&pki, &desk, 0, limits).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.boot(&[]);
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while collector.counts.accepted.get() < 4 {
        assert!(tokio::time::Instant::now() < end, "it fell silent");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(desk.records(ONE).len(), 1, "what does not change is written once");
}

#[tokio::test]
async fn a_config_volume_that_comes_late_is_waited_for() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    std::fs::rename(guest.path("volume"), guest.path("away")).expect("moved");
    guest.boot(&[]);
    guest
        .until("log", "is the volume with the label DOCKERIOS mounted there?")
        .await;
    std::fs::rename(guest.path("away"), guest.path("volume")).expect("moved");
    desk.until(ONE, "a record", |records| !records.is_empty()).await;
}

#[tokio::test]
async fn a_guest_that_shows_another_serial_is_recorded_as_a_mismatch() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let serial = "zztest000001".to_owned();
    desk.change(ONE, |machine| {
        machine.identity = Some(Expected {
            serial,
            system_uuid: None,
        })
    });
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.put("probe/serial", "ZZTEST000002");
    guest.boot(&[]);
    desk.latest(ONE, "a mismatch", |g| g.identity_mismatch == Some(true))
        .await;
    assert!(collector.counts.identity_mismatch.get() >= 1);
    guest.put("probe/serial", "ZZTEST000001");
    desk.latest(ONE, "no mismatch", |g| g.identity_mismatch.is_none()).await;
}

#[tokio::test]
async fn sigterm_ends_the_agent_well_and_the_system_is_not_shut_down() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    guest.boot(&[]);
    desk.until(ONE, "a record", |records| !records.is_empty()).await;
    let pid = rustix::process::Pid::from_child(guest.agent());
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let ended = guest.agent().wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    assert_eq!(guest.text("downs"), "");
}

#[tokio::test]
async fn a_guest_says_after_a_boot_whether_the_run_before_ended_in_order() {
    let (pki, desk) = (Pki::plain(), Desk::with(&[ONE]));
    let collector = serve(&pki, &desk, 0, long_held()).await;
    let mut guest = GuestSystem::new(ONE, ONE, collector.address, &pki.ca);
    for (boot, said, ends_in_order) in [
        ("first", None, true),
        ("second", Some(true), false),
        ("third", Some(false), true),
        ("fourth", Some(true), true),
    ] {
        guest.put("probe/bootId", boot);
        // tells the reports of this boot from those before
        guest.put("probe/osVersion", boot);
        guest.boot(&[]);
        let heard = desk.latest(ONE, boot, |g| g.os_version.as_deref() == Some(boot)).await;
        assert_eq!(heard.clean_shutdown, said, "{boot}");
        guest.end(ends_in_order);
    }
}
