use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use macrack_oci::{Class, Error, Golden, Reference};

use crate::bench::{Bench, CHUNK, CHUNKS, MIB, Watch, allocated, client, pull, pull_watched};
use crate::proxy::{Fate, Proxy};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_pushed_is_pulled_byte_by_byte_and_stays_sparse() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    assert_eq!(pushed.disk_bytes, bench.disk().len() as u64);
    assert!(pushed.sent_bytes < 12 * MIB, "zeros were sent: {pushed:?}");

    let golden = Golden::read(&client().manifest(&pushed.reference).await.unwrap()).unwrap();
    assert_eq!(golden.chunks.len() as u64, CHUNKS);
    assert_eq!(golden.facts, bench.bundle.facts);
    assert_eq!(golden.chunks[2].blob, golden.chunks[5].blob, "two holes are one blob");

    let (into, watch) = (bench.place("pulled"), Arc::new(Watch::default()));
    let config = pull_watched(&client(), &pushed.reference, &into, watch.clone()).await.unwrap();
    assert_eq!(config.hardware_model, "bW9kZWw=");
    assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");
    assert!(fs::read(into.join("aux.img")).unwrap() == fs::read(&bench.bundle.aux).unwrap(), "the aux differs");
    assert!(allocated(&into.join("disk.img")) < 21 * MIB, "holes were filled");
    let aux = golden.nvram.size;
    assert_eq!(watch.done.load(Ordering::SeqCst), i64::try_from(pushed.disk_bytes + aux).unwrap());
    assert!(!into.join("journal").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_push_sends_nothing_and_gives_the_same_chunks() {
    let bench = Bench::new().await;
    let first = bench.push(&client()).await.unwrap();
    assert!(first.sent_bytes > 0);
    let again = bench.push(&client()).await.unwrap();
    assert_eq!((again.sent_bytes, again.image_bytes), (0, first.image_bytes));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_was_cut_goes_on_with_what_was_whole_and_looks_at_the_disk_before_it_believes() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let proxy = Proxy::start(bench.registry.address(), |_, _| Fate::Pass).await;
    let reference = Bench::at(&pushed.reference, &proxy.address);
    let into = bench.place("pulled");
    let watch = Arc::new(Watch::default());
    watch.most.store(CHUNK * 5, Ordering::SeqCst);
    let cut = pull_watched(&client(), &reference, &into, watch).await.unwrap_err();
    assert!(matches!(&cut, Error::Stopped(why) if why == "the power went"), "{cut}");
    assert_eq!(cut.class(), Class::Stopped);
    let claimed = fs::read_to_string(into.join("journal")).unwrap();
    let whole = claimed.lines().filter(|line| !line.is_empty()).count();
    assert!(whole >= 2, "nothing was whole: {claimed:?}");

    // one claim is false: the disk was changed behind the journal
    let chunk = claimed.lines().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).max().unwrap();
    let disk = fs::File::options().write(true).open(into.join("disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, b"spoilt", (chunk - 1) * CHUNK + 5).unwrap();

    let before = proxy.blobs().len();
    pull(&client(), &reference, &into).await.unwrap();
    assert!(fs::read(into.join("disk.img")).unwrap() == bench.disk(), "the disk differs");
    // two configs, and every part that was not whole: the aux, the chunks, the spoilt one
    let parts = usize::try_from(CHUNKS).unwrap() + 1;
    assert_eq!(proxy.blobs().len() - before, 2 + parts - whole + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_registry_lacks_is_told_from_a_registry_that_is_away() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let into = bench.place("pulled");
    let other = Reference::new(pushed.reference.repository(), &"ab".repeat(32)).unwrap();
    let missing = pull(&client(), &other, &into).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)) && missing.to_string().contains("push it"), "{missing}");
    assert_eq!(missing.class(), Class::Invalid);

    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let away = pull(&client(), &Bench::at(&pushed.reference, &nobody), &into).await.unwrap_err();
    assert!(matches!(away, Error::Transient { .. }) && away.to_string().contains("refused"), "{away}");
    assert_eq!(away.class(), Class::Transient);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_lies_about_a_chunk_is_refused() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let good = Golden::read(&client().manifest(&pushed.reference).await.unwrap()).unwrap();
    type Lie = fn(&mut Golden);
    let lies: [(Lie, &str); 3] = [
        (|golden| golden.chunks[0].raw_size -= 4096, "decodes to more than"),
        (|golden| golden.chunks[0].raw_size += 4096, "decodes to"),
        (|golden| golden.chunks[0].raw_digest = Some(format!("sha256:{}", "0".repeat(64))), "it unpacks to the digest"),
    ];
    for (n, (lie, wanted)) in lies.into_iter().enumerate() {
        let mut golden = good.clone();
        lie(&mut golden);
        golden.disk_bytes = golden.chunks.iter().map(|chunk| chunk.raw_size).sum();
        let target = format!("{}/golden/tahoe:lie-{n}", bench.registry.address()).parse().unwrap();
        let bytes = golden.write("2026-11-30T09:00:00Z".parse().unwrap()).unwrap();
        let reference = client().put_manifest(&target, bytes).await.unwrap();
        let refused = pull(&client(), &reference, &bench.place(&format!("lie-{n}"))).await.unwrap_err();
        assert!(matches!(refused, Error::NotAGolden(_)) && refused.to_string().contains(wanted), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_from_every_other_trouble() {
    let bench = Bench::new().await;
    let pushed = bench.push(&client()).await.unwrap();
    let into = bench.place("small");
    let mount = |verb: &[&str]| std::process::Command::new(verb[0]).args(&verb[1..]).arg(&into).output();
    match mount(&["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs"]) {
        Ok(output) if output.status.success() => {}
        refused => {
            eprintln!("NOT TESTED: no file system of 6 MiB can be mounted here ({refused:?}); it takes root");
            return;
        }
    }
    let ended = pull(&client(), &pushed.reference, &into).await;
    mount(&["umount"]).unwrap();
    let full = ended.unwrap_err();
    assert!(matches!(full, Error::NoSpace { .. }) && full.to_string().contains("write error 28"), "{full}");
    assert_eq!(full.class(), Class::Transient);
}
