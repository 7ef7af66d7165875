//! The frame codec against whatever a peer may send.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use macrack_wire::frame::{FrameError, HEADER, MAX_FRAME, decode, encode, truncation};
use proptest::prelude::*;
use tokio_util::bytes::BytesMut;

const LIMIT: usize = 512;

fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=LIMIT), 0..8)
}

fn on_the_wire(bodies: &[Vec<u8>]) -> BytesMut {
    let mut wire = BytesMut::new();
    for body in bodies {
        encode(body, LIMIT, &mut wire).unwrap();
    }
    wire
}

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in_wherever_the_stream_is_cut(
        bodies in bodies(),
        cuts in prop::collection::vec(1_usize..64, 1..64),
    ) {
        let wire = on_the_wire(&bodies);
        let mut buffer = BytesMut::new();
        let mut seen = Vec::new();
        let mut rest = &wire[..];
        for cut in cuts.iter().cycle() {
            while let Some(body) = decode(&mut buffer, LIMIT).unwrap() {
                seen.push(body.to_vec());
            }
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            buffer.extend_from_slice(now);
            rest = later;
        }
        prop_assert_eq!(seen, bodies);
        prop_assert_eq!(truncation(&buffer), None);
    }

    #[test]
    fn any_bytes_are_a_frame_or_a_wait_or_too_long_and_never_a_panic(
        garbage in prop::collection::vec(any::<u8>(), 0..2048),
    ) {
        let mut buffer = BytesMut::from(&garbage[..]);
        loop {
            let before = buffer.len();
            match decode(&mut buffer, LIMIT) {
                Ok(Some(body)) => {
                    prop_assert!(body.len() <= LIMIT);
                    prop_assert_eq!(buffer.len() + HEADER + body.len(), before);
                }
                Ok(None) => break,
                Err(error) => {
                    let FrameError::TooLong { announced, limit } = error else {
                        panic!("{error}");
                    };
                    prop_assert!(announced > limit);
                    break;
                }
            }
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_says_how_much_is_missing(
        body in prop::collection::vec(any::<u8>(), 1..=LIMIT),
        kept in any::<prop::sample::Index>(),
    ) {
        let wire = on_the_wire(std::slice::from_ref(&body));
        let kept = 1 + kept.index(wire.len() - 1);
        let mut buffer = BytesMut::from(&wire[..kept]);
        prop_assert_eq!(decode(&mut buffer, LIMIT), Ok(None));
        let missing = if kept < HEADER { HEADER - kept } else { wire.len() - kept };
        prop_assert_eq!(truncation(&buffer), Some(FrameError::Truncated { missing }));
    }
}

#[test]
fn four_gigabytes_are_refused_by_their_announcement_alone() {
    let mut buffer = BytesMut::from(&u32::MAX.to_be_bytes()[..]);
    assert_eq!(
        decode(&mut buffer, MAX_FRAME),
        Err(FrameError::TooLong { announced: u32::MAX as usize, limit: MAX_FRAME })
    );
    assert!(buffer.capacity() < 1024, "nothing was allocated for it");
}

#[test]
fn a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
    let mut wire = BytesMut::new();
    encode(&[b'x'; LIMIT], LIMIT, &mut wire).unwrap();
    assert_eq!(decode(&mut wire, LIMIT).unwrap().unwrap().len(), LIMIT);
    let refused = encode(&[b'x'; LIMIT + 1], LIMIT, &mut wire);
    assert!(matches!(refused, Err(FrameError::TooLong { .. })), "{refused:?}");
}
