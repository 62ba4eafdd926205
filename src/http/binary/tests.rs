//! The decoders against an encoder of their own: what is valid comes back, everything else is refused without a trace.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde::de::IgnoredAny;
use tokio::sync::Semaphore;

use super::push::Push;
use super::room::{GROUP_BYTES, MESSAGE_BYTES};
use super::transaction::Transaction;
use super::*;
use crate::config::{Config, Limits};

const BUDGET: usize = 1 << 20;
const SMALL: u32 = 1 << 18;

/// A message: id, transaction id, payload.
type Message = (u128, String, String);
/// Queue, partition, messages.
type Group = (String, String, Vec<Message>);

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend(text.as_bytes());
}

fn long(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
    out.extend(bytes);
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::bulk::compress(bytes, 1).unwrap()
}

fn frames(messages: &[Message]) -> Vec<u8> {
    let mut out = Vec::new();
    for (id, transaction_id, payload) in messages {
        let mut frame = vec![0];
        frame.extend(id.to_be_bytes());
        text(&mut frame, transaction_id);
        frame.extend(payload.as_bytes());
        long(&mut out, &frame);
    }
    out
}

fn section(groups: &[Group], flags: u8) -> Vec<u8> {
    let mut out = u32::try_from(groups.len()).unwrap().to_le_bytes().to_vec();
    for (queue, partition, messages) in groups {
        text(&mut out, queue);
        text(&mut out, partition);
        out.extend(u32::try_from(messages.len()).unwrap().to_le_bytes());
        if flags & 8 != 0 {
            long(&mut out, &zstd(&frames(messages)));
            continue;
        }
        for (_, transaction_id, payload) in messages {
            if flags & 4 != 0 {
                text(&mut out, transaction_id);
            }
            long(&mut out, payload.as_bytes());
        }
    }
    out
}

fn wrap(flags: u8, section: &[u8]) -> Vec<u8> {
    let mut out = [b"QPB1", &[flags][..]].concat();
    if flags & 1 == 0 {
        out.extend(section);
    } else {
        out.extend(u32::try_from(section.len()).unwrap().to_le_bytes());
        out.extend(zstd(section));
    }
    out
}

fn body(groups: &[Group], flags: u8) -> Vec<u8> {
    wrap(flags, &section(groups, flags))
}

fn bundle(flags: u8, head: &str, section: &[u8]) -> Vec<u8> {
    let mut out = [b"QTB1", &[flags][..]].concat();
    long(&mut out, head.as_bytes());
    out.extend(section);
    out
}

fn limits() -> Limits {
    let mut limits = Config::defaults().limits;
    limits.inflate_bytes = SMALL;
    limits.inflight_bytes = u32::try_from(BUDGET).unwrap();
    limits
}

fn collected(section: &section::Section<'_>) -> Result<Vec<Group>, ApiError> {
    let mut groups: Vec<Group> = Vec::new();
    let mut last = String::new();
    section.each(|item, at| {
        let at = at.to_string();
        let group = at.split(": ").next().unwrap().to_owned();
        if group != last {
            groups.push((item.queue.to_owned(), item.partition.to_owned(), Vec::new()));
            last = group;
        }
        serde_json::from_str::<IgnoredAny>(item.payload).unwrap();
        let id = item.id.map_or(0, |id| id.0);
        groups.last_mut().unwrap().2.push((id, item.transaction_id.to_owned(), item.payload.to_owned()));
        Ok(())
    })?;
    Ok(groups)
}

/// Reads a body to its end, and checks that whatever room it took is there again.
fn read(limits: &Limits, body: &[u8]) -> Result<(bool, String, Vec<Group>), (u16, String)> {
    let inflight = Arc::new(Semaphore::new(BUDGET));
    let bytes = Bytes::copy_from_slice(body);
    let room = Room::new(limits, &inflight, bytes.len());
    let read = || match body.starts_with(b"QTB1") {
        true => {
            let read = Transaction::read(&bytes, room)?;
            let head = String::from_utf8_lossy(&read.head).into_owned();
            Ok((read.short, head, collected(&read.section)?))
        }
        false => {
            let read = Push::read(&bytes, room)?;
            Ok((read.short, String::new(), collected(&read.section)?))
        }
    };
    let result = read().map_err(|error: ApiError| {
        let text = format!("{error:?}");
        (error.into_response().status().as_u16(), text)
    });
    assert_eq!(inflight.available_permits(), BUDGET, "all room is given back");
    result
}

/// What a body becomes when it is read: without transaction ids where the form has none, without ids where it mints.
fn expected(groups: &[Group], flags: u8) -> Vec<Group> {
    let mut groups = groups.to_vec();
    for (_, _, messages) in &mut groups {
        for (id, transaction_id, payload) in messages {
            if flags & 8 == 0 {
                *id = 0;
                if flags & 4 == 0 {
                    transaction_id.clear();
                }
            }
            *payload = payload.trim().to_owned();
        }
    }
    groups.retain(|(_, _, messages)| !messages.is_empty());
    groups
}

fn payload() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just(" 1.0 ".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        ".{0,12}".prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|list| format!("[{}]", list.join(","))),
            inner.prop_map(|value| format!("{{\"k\\\"\": {value}}}")),
        ]
    })
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let message = (any::<u128>(), ".{0,6}", payload());
    let group = ("\\PC{1,8}", "\\PC{0,8}", proptest::collection::vec(message, 0..5));
    proptest::collection::vec(group, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_valid_comes_back(groups in groups(), flags in 0_u8..16) {
        let (short, _, got) = read(&limits(), &body(&groups, flags)).unwrap();
        prop_assert_eq!(short, flags & 2 != 0);
        prop_assert_eq!(got, expected(&groups, flags));
    }

    #[test]
    fn transactions_come_back(groups in groups(), short: bool, head in "\\PC{0,20}") {
        let body = bundle(u8::from(short) * 2, &head, &section(&groups, 8));
        prop_assert_eq!(read(&limits(), &body).unwrap(), (short, head, expected(&groups, 8)));
    }

    #[test]
    fn a_changed_byte_is_another_body_or_an_error(
        groups in groups(), flags in 0_u8..16, at: prop::sample::Index, to: u8,
    ) {
        let mut body = body(&groups, flags);
        let at = 4 + at.index(body.len() - 4);
        body[at] = to;
        if let Err((status, text)) = read(&limits(), &body) {
            prop_assert!(status == 400 || status == 413, "{} {}", status, text);
        }
    }

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..64), push: bool) {
        let magic: &[u8] = if push { b"QPB1" } else { b"QTB1" };
        let _ = read(&limits(), &[magic, &bytes].concat());
    }
}

fn sample() -> Vec<Group> {
    let message = |n: u128, id: &str, payload: &str| (n, id.to_owned(), payload.to_owned());
    vec![
        ("q".to_owned(), "p".to_owned(), vec![message(1, "a", "{\"a\":1}"), message(2, "", "[true]")]),
        ("ü".to_owned(), String::new(), vec![message(3, "b", "\"x\"")]),
    ]
}

fn samples() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = (0..16).map(|flags| body(&sample(), flags)).collect();
    bodies.push(bundle(2, "{\"operations\":[]}", &section(&sample(), 8)));
    bodies
}

#[test]
fn every_truncation_and_every_longer_body_is_400() {
    for body in samples() {
        assert!(read(&limits(), &body).is_ok());
        for end in 4..body.len() {
            assert_eq!(read(&limits(), &body[..end]).unwrap_err().0, 400, "{end} bytes of {body:?}");
        }
        for more in [0, 1, 0x28] {
            let longer = [&body[..], &[more]].concat();
            assert_eq!(read(&limits(), &longer).unwrap_err().0, 400, "{more} behind {body:?}");
        }
    }
}

#[test]
fn every_byte_changed_to_every_other_is_another_body_or_an_error() {
    for mut body in [4, 8, 9].map(|flags| body(&sample(), flags)) {
        for at in 4..body.len() {
            let kept = body[at];
            for to in 0..=u8::MAX {
                body[at] = to;
                if let Err((status, text)) = read(&limits(), &body) {
                    assert!(status == 400 || status == 413, "{status} {text}");
                }
            }
            body[at] = kept;
        }
    }
}

/// A section of one framed group whose zstd frame and number of messages are given.
fn packed(messages: u32, frame: &[u8]) -> Vec<u8> {
    let mut out = 1_u32.to_le_bytes().to_vec();
    text(&mut out, "q");
    text(&mut out, "p");
    out.extend(messages.to_le_bytes());
    long(&mut out, frame);
    out
}

/// A zstd frame that does not say what it inflates to.
fn unsized_frame(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_contentsize(false).unwrap();
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn errors_name_the_group_the_item_and_the_field() {
    let message = |id: &str, payload: &str| (7, id.to_owned(), payload.to_owned());
    let good = || ("q".to_owned(), "p".to_owned(), vec![message("a", "1")]);
    let deep = format!("{}{}", "[".repeat(118), "]".repeat(118));
    let mut cases: Vec<(Vec<u8>, Vec<&str>)> = Vec::new();
    for (payload, words) in [
        ("", vec!["payload is empty"]),
        (" ", vec!["payload is not one JSON document"]),
        ("1 2", vec!["payload is not one JSON document", "trailing"]),
        ("{\"a\":1", vec!["payload is not one JSON document"]),
        ("NaN", vec!["payload is not one JSON document"]),
        (&deep, vec!["payload is nested deeper than 117", "limits.json_depth"]),
    ] {
        for flags in [0, 4, 8, 1, 9] {
            let groups =
                [good(), ("q".to_owned(), "r".to_owned(), vec![message("b", "2"), message("c", payload)])];
            let mut words = words.clone();
            words.push("groups[1]: items[1]");
            cases.push((body(&groups, flags), words));
        }
    }
    let replaced = |flags: u8, from: &[u8], to: &[u8]| {
        let mut section = section(&[good()], flags);
        let at = section.windows(from.len()).position(|window| window == from).unwrap();
        section.splice(at..at + from.len(), to.iter().copied());
        wrap(flags, &section)
    };
    let frame = |frame: &[u8]| {
        let mut frames = Vec::new();
        long(&mut frames, frame);
        zstd(&frames)
    };
    let one = frames(&[message("a", "1")]);
    let filler = [&[0; 19][..], b"1"].concat();
    cases.extend([
        (replaced(0, b"\x01\0q", b"\x01\0\xff"), vec!["groups[0]: queue is not UTF-8"]),
        (replaced(8, b"\x01\0p", b"\x01\0\xff"), vec!["groups[0]: partition is not UTF-8"]),
        (replaced(4, b"\x01\0a", b"\x01\0\xff"), vec!["groups[0]: items[0]: transactionId is not UTF-8"]),
        (replaced(0, b"\x01\0\0\x001", b"\x01\0\0\0\xff"), vec!["groups[0]: items[0]: payload is not UTF-8"]),
        (replaced(0, b"\x01\0\0\x001", b"\x02\0\0\x001"), vec!["groups[0]: items[0]: payload is cut off"]),
        (wrap(0, b"\xff\xff\xff\xff"), vec!["groups[0]: queue is cut off"]),
        (wrap(0, b"\0\0\0\0x"), vec!["1 bytes are left over behind its 0 groups"]),
        (wrap(16, b""), vec!["flags are 16"]),
        (wrap(0x82, b""), vec!["flags are 130"]),
        (wrap(0, b"\0\0"), vec!["the number of groups is cut off"]),
        (b"QPB1".to_vec(), vec!["flags are cut off"]),
        (b"QPB1\x01\0".to_vec(), vec!["raw_len is cut off"]),
        (wrap(8, &packed(1, b"")), vec!["groups[0]: its frame is not a zstd frame"]),
        (wrap(8, &packed(0, b"\x50\x2a\x4d\x18\0\0\0\0")), vec!["is not a zstd frame"]),
        (wrap(8, &packed(1, &[zstd(&one), zstd(b"")].concat())), vec!["bytes behind its zstd frame"]),
        (
            wrap(8, &packed(1, &unsized_frame(&one))),
            vec!["groups[0]: its frame does not declare its content size"],
        ),
        (wrap(8, &packed(2, &zstd(&one))), vec!["groups[0]: 2 messages do not fit"]),
        (wrap(8, &packed(u32::MAX, &zstd(&one))), vec!["groups[0]: 4294967295 messages do not fit"]),
        (wrap(8, &packed(0, &zstd(&one))), vec!["groups[0]", "left over behind its 0 frames"]),
        (wrap(8, &packed(1, &zstd(&[&one[..], b"x"].concat()))), vec!["groups[0]: 1 bytes are left over"]),
        (wrap(8, &packed(1, &frame(&[&[1], &filler[1..]].concat()))), vec!["items[0]: flags are 1"]),
        (wrap(8, &packed(1, &frame(&filler[..19]))), vec!["do not fit"]),
        (
            wrap(8, &packed(1, &zstd(&[b"\xff\xff\xff\xff", &filler[..]].concat()))),
            vec!["items[0]: its frame is cut off"],
        ),
        (wrap(8, &packed(1, &zstd(&[&[0; 4][..], &filler].concat()))), vec!["items[0]: flags are cut off"]),
        (bundle(1, "", &section(&[good()], 8)), vec!["transaction", "flags are 1"]),
        (bundle(8, "", &section(&[good()], 8)), vec!["transaction", "flags are 8"]),
        (b"QTB1\0\x05\0\0\0{}".to_vec(), vec!["head is cut off"]),
        (bundle(0, "{}", b""), vec!["transaction", "the number of groups is cut off"]),
    ]);
    for (body, words) in cases {
        let (status, text) = read(&limits(), &body).unwrap_err();
        assert!(status == 400 && text.contains("bad_body"), "{status} {text}");
        for word in words {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
    let deepest = format!("{}{}", "[".repeat(117), "]".repeat(117));
    let groups = [("q".to_owned(), "p".to_owned(), vec![message("a", &deepest)])];
    assert!(read(&limits(), &body(&groups, 8)).is_ok(), "117 levels are taken");
}

/// A frame that declares another content size than it has: the size of this one stands in its last four header bytes.
fn declaring(bytes: usize, size: u32) -> Vec<u8> {
    let mut frame = zstd(&vec![b'1'; bytes]);
    let length = u32::try_from(bytes).unwrap().to_le_bytes();
    let at = frame.windows(4).position(|window| window == length).unwrap();
    frame[at..at + 4].copy_from_slice(&size.to_le_bytes());
    frame
}

#[test]
fn a_frame_inflates_to_what_it_declares_or_not_at_all() {
    for size in [99_999, 100_001, 200_000] {
        let (status, text) = read(&limits(), &wrap(8, &packed(1, &declaring(100_000, size)))).unwrap_err();
        assert_eq!(status, 400, "{text}");
        assert!(text.contains("groups[0]: its frame") && text.contains("inflate"), "{text}");
        let mut body = [b"QPB1\x01", &size.to_le_bytes()[..]].concat();
        body.extend(declaring(100_000, size));
        let (status, text) = read(&limits(), &body).unwrap_err();
        assert!(status == 400 && text.contains("its zstd frame"), "{status} {text}");
    }
    // The length in front counts where the frame says nothing.
    let section = section(&sample(), 0);
    for (raw, good) in [(section.len(), true), (section.len() - 1, false), (section.len() + 1, false)] {
        let mut body = [b"QPB1\x01", &u32::try_from(raw).unwrap().to_le_bytes()[..]].concat();
        body.extend(unsized_frame(&section));
        assert_eq!(read(&limits(), &body).is_ok(), good, "{raw}");
    }
    let mut body = [b"QPB1\x01", &9_u32.to_le_bytes()[..]].concat();
    body.extend(zstd(&section));
    assert!(read(&limits(), &body).unwrap_err().1.contains("raw_len is 9"));
}

#[test]
fn bombs_are_refused_before_they_inflate() {
    let big = SMALL as usize + 1;
    let frame = zstd(&vec![b'1'; big]);
    assert!(frame.len() < 200);
    let mut outer = [b"QPB1\x01", &u32::try_from(big).unwrap().to_le_bytes()[..]].concat();
    outer.extend(&frame);
    let half = packed(1, &zstd(&vec![b'1'; big / 2 + 1]));
    let twice = [&2_u32.to_le_bytes()[..], &half[4..], &half[4..]].concat();
    // A frame of a few bytes that declares an exabyte.
    let huge = [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0][..], &(1_u64 << 60).to_le_bytes(), &[1, 0, 0]].concat();
    // Compressed twice: each counts.
    let nested = wrap(9, &[&packed(1, &zstd(&vec![b'1'; big - 10])), &[][..]].concat());
    for body in [outer, wrap(8, &packed(1, &frame)), wrap(8, &twice), wrap(8, &packed(1, &huge)), nested] {
        let (status, text) = read(&limits(), &body).unwrap_err();
        assert!(status == 413 && text.contains("limits.inflate_bytes"), "{status} {text}");
    }
    // Right below the limit it is inflated, and is no frame then.
    assert_eq!(read(&limits(), &wrap(8, &packed(1, &zstd(&vec![b'1'; big - 1])))).unwrap_err().0, 400);
}

#[test]
fn room_is_taken_before_anything_is_made_and_held_while_it_is_used() {
    let limits = limits();
    let groups = [("q".to_owned(), "p".to_owned(), vec![(1, "a".to_owned(), "1".to_owned()); 100])];
    let bytes = Bytes::from(body(&groups, 8));
    let inflated = frames(&groups[0].2).len();
    let cost = inflated + usize::try_from(GROUP_BYTES + 100 * MESSAGE_BYTES).unwrap();
    let inflight = Arc::new(Semaphore::new(cost));
    let room = || Room::new(&limits, &inflight, bytes.len());
    let first = Push::read(&bytes, room()).ok().unwrap();
    assert_eq!(inflight.available_permits(), 0);
    for _ in 0..2 {
        let error = Push::read(&bytes, room()).err().unwrap();
        assert_eq!(error.into_response().status().as_u16(), 429);
    }
    assert_eq!(inflight.available_permits(), 0, "what was taken in vain is given back only once");
    drop(first);
    assert_eq!(inflight.available_permits(), cost);
    // A byte less is too little.
    let held = Arc::clone(&inflight).try_acquire_owned().unwrap();
    assert_eq!(Push::read(&bytes, room()).err().unwrap().into_response().status().as_u16(), 429);
    assert_eq!(inflight.available_permits(), cost - 1);
    drop(held);
}

#[test]
fn many_tiny_messages_need_room_for_their_lists() {
    let messages = vec![(0, String::new(), "1".to_owned()); BUDGET / 512 + 1];
    let (status, text) =
        read(&limits(), &body(&[("q".to_owned(), "p".to_owned(), messages)], 1)).unwrap_err();
    assert!(status == 413 && text.contains("limits.inflight_bytes"), "{status} {text}");
    let group = ("q".to_owned(), String::new(), Vec::new());
    let (status, text) = read(&limits(), &body(&vec![group; BUDGET / 512 + 1], 0)).unwrap_err();
    assert!(status == 413 && text.contains("limits.inflight_bytes"), "{status} {text}");
}

#[test]
fn each_route_takes_its_own_magic() {
    let binary = b"application/X-Queen-Push; charset=x";
    let json = b"application/json";
    for (content_type, body, route, expected) in [
        (&json[..], &b"{}"[..], None, Some(false)),
        (json, b"{}", Some(Kind::Push), Some(false)),
        (json, b"QPB1", Some(Kind::Push), Some(true)),
        (b"", b"QPB1", Some(Kind::Push), Some(true)),
        (binary, b"QPB1", Some(Kind::Push), Some(true)),
        (binary, b"QTB1", Some(Kind::Transaction), Some(true)),
        (binary, b"QTB1", Some(Kind::Push), None),
        (json, b"QPB1", Some(Kind::Transaction), None),
        (json, b"QPB1", None, None),
        (binary, b"{}", Some(Kind::Push), None),
        (binary, b"", Some(Kind::Push), None),
        (binary, b"{}", None, None),
        (json, b"QPB2", Some(Kind::Push), Some(false)),
    ] {
        assert_eq!(
            is_binary(content_type, body, route).ok(),
            expected,
            "{content_type:?} {body:?} {route:?}"
        );
    }
}
