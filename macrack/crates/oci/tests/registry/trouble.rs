use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use macrack_oci::client::Mirror;
use macrack_oci::{Class, Client, Error, Options};

use crate::bench::{Bench, client, options, pull};
use crate::proxy::{Fate, Proxy};

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_are_taken_up_by_range() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let proxy = Proxy::start(bench.registry.address(), |asked, _| match asked.is_blob() {
        true => Fate::CutAfter(700_000),
        false => Fate::Pass,
    })
    .await;
    let into = bench.place("pulled");
    pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &into).await.unwrap();
    assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");
    let ranges: Vec<_> = proxy.blobs().iter().filter_map(|asked| asked.header("range").map(str::to_owned)).collect();
    assert!(ranges.contains(&"bytes=700000-".to_owned()), "{ranges:?}");
    assert!(ranges.contains(&"bytes=1400000-".to_owned()), "{ranges:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_from_the_start_is_not_appended_to_what_is_here() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let proxy = Proxy::start(bench.registry.address(), |asked, _| match asked.header("range") {
        Some(_) => Fate::NoRange,
        None if asked.is_blob() => Fate::CutAfter(700_000),
        None => Fate::Pass,
    })
    .await;
    let into = bench.place("pulled");
    pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &into).await.unwrap();
    assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_heeds_no_ranges_and_cuts_every_answer_is_given_up() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let proxy = Proxy::start(bench.registry.address(), |asked, _| match asked.is_blob() {
        true => Fate::NoRangeCutAfter(700_000),
        false => Fate::Pass,
    })
    .await;
    let (client, reference, into) = (client(), Bench::at(&pushed.reference, &proxy.address), bench.place("stuck"));
    let pulled = tokio::time::timeout(Duration::from_secs(60), pull(&client, &reference, &into)).await;
    let error = pulled.expect("it is asked for ever").unwrap_err();
    assert!(matches!(&error, Error::Transient { why, .. } if why.contains("the connection broke")), "{error}");
    let most = most_of_one(&proxy);
    assert_eq!(most, options().patience.tries as usize, "the same bytes that come again are no step forward");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_small_and_was_cut_or_came_wrong_is_asked_for_again_within_the_one_budget() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let (tries, hex) = (options().patience.tries as usize, pushed.reference.hex().to_owned());
    for (fate, place) in [(Fate::CutAfter(40), "cut"), (Fate::Flip(40), "flipped")] {
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let proxy = Proxy::start(bench.registry.address(), move |asked, _| {
            match asked.line.starts_with("GET") && seen.lock().unwrap().insert(asked.line.clone()) {
                true => fate.clone(),
                false => Fate::Pass,
            }
        })
        .await;
        let into = bench.place(place);
        pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &into).await.unwrap();
        assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");
        assert!(fs::read(into.join("aux.img")).unwrap() == fs::read(&bench.bundle.aux).unwrap(), "aux differs");
    }

    // every answer is cut, or refused in between: the budget is one for the two
    let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let proxy = Proxy::start(bench.registry.address(), move |_, before| match before % 2 {
        0 => Fate::CutAfter(40),
        _ => Fate::Answer(busy.to_owned()),
    })
    .await;
    let cut = pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("never")).await.unwrap_err();
    assert!(matches!(cut, Error::Transient { .. }), "{cut}");
    assert_eq!(proxy.asked().len(), tries);
    let proxy = Proxy::start(bench.registry.address(), |_, _| Fate::Flip(40)).await;
    let wrong = pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("bad")).await.unwrap_err();
    assert!(matches!(wrong, Error::NotAGolden(_)) && wrong.to_string().contains(&hex), "{wrong}");
    assert_eq!(proxy.asked().len(), 2, "once more, and then it is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_busy_is_asked_again_when_it_says_so() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let busy = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let proxy = Proxy::start(bench.registry.address(), move |_, before| match before {
        0 => Fate::Answer(busy.to_owned()),
        1 | 3 | 5 => Fate::Answer(down.to_owned()),
        _ => Fate::Pass,
    })
    .await;
    let began = Instant::now();
    pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("pulled")).await.unwrap();
    assert!(began.elapsed().as_millis() >= 1000, "Retry-After was not heeded");

    let never = format!("{}{}", busy.replace("After: 1", "After: 3600"), "");
    let proxy = Proxy::start(bench.registry.address(), move |_, _| Fate::Answer(never.clone())).await;
    let error =
        pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("never")).await.unwrap_err();
    let Error::Transient { after: Some(after), why, .. } = &error else { panic!("{error}") };
    assert_eq!((after.as_secs(), proxy.asked().len()), (3600, 1), "asked again before its time");
    assert!(why.contains("429"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_fetched_anew_once_and_then_refused() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let flips = AtomicUsize::new(0);
    let proxy = Proxy::start(bench.registry.address(), move |asked, _| {
        // the first large blob, once
        let large = asked.is_blob() && asked.header("range").is_none();
        match large && flips.fetch_add(1, Ordering::SeqCst) == 3 {
            true => Fate::Flip(1_000),
            false => Fate::Pass,
        }
    })
    .await;
    let into = bench.place("once");
    pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &into).await.unwrap();
    assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");

    let proxy = Proxy::start(bench.registry.address(), |asked, before| match asked.is_blob() && before > 2 {
        true => Fate::Flip(1_000),
        false => Fate::Pass,
    })
    .await;
    let refused =
        pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("always")).await.unwrap_err();
    assert!(matches!(refused, Error::NotAGolden(_)) && refused.to_string().contains("so it was twice"), "{refused}");
    assert_eq!(refused.class(), Class::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_on_which_nothing_comes_is_given_up_in_time() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let proxy = Proxy::start(bench.registry.address(), |asked, _| match asked.is_blob() {
        true => Fate::CutAfter(0),
        false => Fate::Pass,
    })
    .await;
    let cut = pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("cut")).await.unwrap_err();
    assert!(matches!(cut, Error::Transient { .. }), "{cut}");

    let mut hasty = options();
    hasty.patience.tries = 1;
    hasty.stall = Duration::from_millis(300);
    let proxy = Proxy::start(bench.registry.address(), |_, _| Fate::Silence).await;
    let reference = Bench::at(&pushed.reference, &proxy.address);
    let silent = pull(&Client::new(hasty.clone()).unwrap(), &reference, &bench.place("silent")).await.unwrap_err();
    assert!(matches!(&silent, Error::Transient { why, .. } if why.contains("no answer")), "{silent}");

    let proxy = Proxy::start(bench.registry.address(), |_, _| Fate::Drip(100_000)).await;
    let (client, reference) = (Client::new(hasty).unwrap(), Bench::at(&pushed.reference, &proxy.address));
    let slow = tokio::time::timeout(Duration::from_secs(60), client.manifest(&reference)).await;
    let slow = slow.expect("a manifest is waited for byte by byte").unwrap_err();
    assert!(matches!(&slow, Error::Transient { why, .. } if why.contains("did not come whole")), "{slow}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_serves_and_one_that_is_away_or_lies_is_passed_over() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let through = |mirror: &Proxy, registry: &str| {
        let mirror: Mirror = format!("{registry}=http://{}", mirror.address).parse().unwrap();
        let mut with = options();
        with.mirrors.insert(registry.to_owned(), vec![mirror]);
        Client::new(with).unwrap()
    };
    // the registry itself is not reachable under the name that the reference has
    let good = Proxy::start(bench.registry.address(), |_, _| Fate::Pass).await;
    let nowhere = "127.0.0.1:1";
    let into = bench.place("mirrored");
    pull(&through(&good, nowhere), &Bench::at(&pushed.reference, nowhere), &into).await.unwrap();
    assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");

    let liar = Proxy::start(bench.registry.address(), |_, _| Fate::Flip(50)).await;
    let gone = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let empty = Proxy::start(bench.registry.address(), move |_, _| Fate::Answer(gone.to_owned())).await;
    for mirror in [&liar, &empty] {
        let into = bench.place(&mirror.address.replace(':', "-"));
        pull(&through(mirror, bench.registry.address()), &pushed.reference, &into).await.unwrap();
        assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");
        assert!(!mirror.blobs().is_empty(), "the mirror was not asked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_over_a_bad_way_arrives() {
    let bench = Bench::new().await;
    let down = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let proxy = Proxy::start(bench.registry.address(), move |asked, before| match before % 4 {
        1 if !asked.line.starts_with("PUT") => Fate::Answer(down.to_owned()),
        _ => Fate::Pass,
    })
    .await;
    let target = format!("{}/golden/tahoe:26.1", proxy.address).parse().unwrap();
    let watch = std::sync::Arc::new(crate::bench::Watch::default());
    let client = Client::new(Options { stall: Duration::from_secs(10), ..options() }).unwrap();
    let pushed = macrack_oci::push::push(&client, &target, bench.bundle.clone(), crate::bench::CHUNK, watch).await;
    let reference = Bench::at(&pushed.unwrap().reference, bench.registry.address());
    pull(&client, &reference, &bench.place("pulled")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_of_work_has_one_budget_of_tries_however_many_requests_it_takes() {
    let bench = Bench::new().await;
    let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let tries = options().patience.tries as usize;
    // an upload: every second request for its beginning fails, and all that follows it
    let begun = AtomicUsize::new(0);
    let proxy = Proxy::start(bench.registry.address(), move |asked, _| match asked.line.split(' ').next() {
        Some("POST") if begun.fetch_add(1, Ordering::SeqCst) % 2 == 1 => Fate::Pass,
        Some("POST" | "PUT") => Fate::Answer(down.to_owned()),
        _ => Fate::Pass,
    })
    .await;
    let target = format!("{}/golden/tahoe:26.1", proxy.address).parse().unwrap();
    let bytes = bytes::Bytes::from_static(b"a blob");
    let digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    let failed = client().put_blob(&target, digest, bytes).await.unwrap_err();
    assert!(matches!(&failed, Error::Transient { .. }), "{failed}");
    let refused = proxy.asked().iter().filter(|asked| !asked.line.starts_with("HEAD")).count() - begun_well(&proxy);
    assert_eq!(refused, tries, "{:?}", proxy.asked().iter().map(|asked| &asked.line).collect::<Vec<_>>());

    // a download that does not come forward: what is not refused is cut before its first byte
    let pushed = bench.push(&client()).await.unwrap();
    let asks = AtomicUsize::new(0);
    // behind the manifest and what is small
    let proxy = Proxy::start(bench.registry.address(), move |asked, before| match asked.is_blob() && before > 2 {
        false => Fate::Pass,
        true if asks.fetch_add(1, Ordering::SeqCst) % 2 == 1 => Fate::CutAfter(0),
        true => Fate::Answer(down.to_owned()),
    })
    .await;
    pull(&client(), &Bench::at(&pushed.reference, &proxy.address), &bench.place("stuck")).await.unwrap_err();
    assert_eq!(most_of_one(&proxy), tries);
}

/// How often the blob was asked for that was asked for most.
fn most_of_one(proxy: &Proxy) -> usize {
    let mut of_each = std::collections::BTreeMap::<String, usize>::new();
    for asked in proxy.blobs() {
        *of_each.entry(asked.line).or_default() += 1;
    }
    of_each.into_values().max().unwrap_or(0)
}

/// How many requests to begin an upload were answered by the registry itself: every second.
fn begun_well(proxy: &Proxy) -> usize {
    proxy.asked().iter().filter(|asked| asked.line.starts_with("POST")).count() / 2
}
