use lz4_flex::block::{compress, compress_with_dict};
use proptest::prelude::*;

use super::*;

fn decoded(stream: &[u8], expected: u64, piece: usize) -> Result<Vec<u8>, Lz4Error> {
    let mut decoder = Decoder::new(expected);
    let mut raw = Vec::new();
    for piece in stream.chunks(piece.max(1)) {
        decoder.push(piece, &mut |bytes| {
            raw.extend_from_slice(bytes);
            Ok::<(), Lz4Error>(())
        })?;
    }
    decoder.finish().map(|()| raw)
}

fn encoded(raw: &[u8], piece: usize) -> Vec<u8> {
    let mut encoder = Encoder::default();
    raw.chunks(piece.max(1)).for_each(|piece| encoder.push(piece));
    encoder.finish()
}

fn block(raw: usize, coded: &[u8]) -> Vec<u8> {
    let size = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    [b"bv41".as_slice(), &size(raw), &size(coded.len()), coded].concat()
}

fn text(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let word = |n: u32| ["alpha ", "beta ", "gamma ", "delta ", "epsilon "][n as usize % 5].as_bytes();
    let mut raw = Vec::new();
    while raw.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        raw.extend_from_slice(word(state >> 16));
    }
    raw.truncate(len);
    raw
}

#[test]
fn what_was_encoded_is_decoded_in_pieces_of_any_size() {
    for raw in [Vec::new(), vec![0; 3 * BLOCK], text(BLOCK - 1, 1), text(BLOCK, 2), text(5 * BLOCK + 17, 3)] {
        for piece in [1000, 65_536, usize::MAX / 2] {
            let stream = encoded(&raw, piece);
            assert!(stream.ends_with(b"bv4$"));
            assert_eq!(decoded(&stream, raw.len() as u64, piece).unwrap(), raw);
        }
    }
    assert_eq!(decoded(&encoded(&text(9000, 4), 9000), 9000, 1).unwrap(), text(9000, 4), "byte by byte");
}

#[test]
fn a_block_may_refer_back_into_what_earlier_blocks_decoded_to() {
    let raw = text(6 * 10_000, 5);
    let mut stream = Vec::new();
    let (mut alone, mut with) = (0, 0);
    for (n, part) in raw.chunks(10_000).enumerate() {
        let before = &raw[..n * 10_000];
        let coded = compress_with_dict(part, before);
        (alone, with) = (alone + compress(part).len(), with + coded.len());
        stream.extend(block(part.len(), &coded));
    }
    stream.extend_from_slice(b"bv4$");
    assert!(with < alone, "the test refers back to nothing: {with} against {alone} bytes");
    assert_eq!(decoded(&stream, raw.len() as u64, 777).unwrap(), raw);

    // the same with the first block gone: what it refers to is not there
    let first = 12 + compress_with_dict(&raw[..10_000], &[]).len();
    let cut = decoded(&stream[first..], 50_000, 777);
    assert!(cut.is_err() || cut.unwrap() != raw[10_000..], "a reference to nothing was followed");
}

#[test]
fn a_stored_block_is_history_too() {
    let raw = text(20_000, 6);
    let (head, tail) = raw.split_at(10_000);
    let size = 10_000_u32.to_le_bytes();
    let stream = [b"bv4-".as_slice(), &size, head, &block(10_000, &compress_with_dict(tail, head)), b"bv4$"].concat();
    assert_eq!(decoded(&stream, 20_000, 333).unwrap(), raw);
}

#[test]
fn a_stream_that_lies_is_refused_with_what_is_wrong() {
    let raw = text(100_000, 7);
    let stream = encoded(&raw, 100_000);
    let of = |stream: &[u8], expected| decoded(stream, expected, 4096).map(|raw| raw.len());
    assert_eq!(of(&stream, 100_000), Ok(100_000));
    assert_eq!(of(&stream, 99_999), Err(Lz4Error::TooLong(99_999)), "longer than announced");
    assert_eq!(of(&stream, 100_001), Err(Lz4Error::TooShort { expected: 100_001, found: 100_000 }));
    for cut in [0, 3, 11, stream.len() / 2, stream.len() - 1] {
        assert_eq!(of(&stream[..cut], 100_000), Err(Lz4Error::Truncated), "cut at {cut}");
    }
    assert_eq!(of(&[stream.as_slice(), b"x"].concat(), 100_000), Err(Lz4Error::Trailing));
    assert_eq!(of(b"\x04\"M\x18 the frame format of lz4", 9), Err(Lz4Error::NotFramed(*b"\x04\"M\x18")));

    let huge = [b"bv41".as_slice(), &u32::MAX.to_le_bytes(), &8_u32.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(of(&huge, u64::MAX / 2), Err(Lz4Error::BlockTooLarge(u32::MAX as usize)));
    let long = [block(5000, &compress(&text(4000, 8))), b"bv4$".to_vec()].concat();
    assert!(matches!(of(&long, 5000), Err(Lz4Error::Broken(_))), "a block shorter than its header says");
    let short = [block(3000, &compress(&text(4000, 8))), b"bv4$".to_vec()].concat();
    assert!(matches!(of(&short, 3000), Err(Lz4Error::Broken(_))), "a block longer than its header says");
}

#[test]
fn a_bomb_gives_no_more_than_was_announced() {
    let bomb = encoded(&vec![0; 64 << 20], 1 << 20);
    let mut given = 0;
    let mut decoder = Decoder::new(1 << 20);
    let refused = decoder.push(&bomb, &mut |bytes| {
        given += bytes.len();
        Ok::<(), Lz4Error>(())
    });
    assert_eq!((refused, given), (Err(Lz4Error::TooLong(1 << 20)), 1 << 20));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_survive_the_round_trip(raw in proptest::collection::vec(any::<u8>(), 0..200_000), piece in 1usize..70_000) {
        let stream = encoded(&raw, piece);
        prop_assert_eq!(decoded(&stream, raw.len() as u64, piece).unwrap(), raw);
    }

    #[test]
    fn no_bytes_at_all_make_the_decoder_panic_or_overrun(
        head in prop_oneof![Just(b"bv41".to_vec()), Just(b"bv4-".to_vec()), Just(Vec::new())],
        rest in proptest::collection::vec(any::<u8>(), 0..600),
        expected in 0u64..100_000,
    ) {
        let stream = [head, rest].concat();
        let mut given = 0;
        let mut decoder = Decoder::new(expected);
        let _ = decoder.push(&stream, &mut |bytes| {
            given += bytes.len() as u64;
            Ok::<(), Lz4Error>(())
        });
        prop_assert!(given <= expected);
    }
}
