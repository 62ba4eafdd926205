//! Properties of the codecs, over arbitrary values and arbitrary bytes.
//!
//! Round trips: what is encoded is decoded, with nothing left over. Damage: a decoder never panics, whatever the
//! bytes, and never turns damaged bytes into another valid value where a checksum covers them. Canonical: bytes
//! that are accepted are exactly the bytes that the encoder would write.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::borrow::Cow;

use comb::format::BLOCK_BYTES;
use comb::format::DecodeError;
use comb::format::checkpoint::{CHUNK_HEADER_BYTES, CHUNK_TARGET_BYTES, CheckpointInfo, Decoder, Encoder};
use comb::format::delta::{Delta, Deltas, PartitionDef, RESERVED_KINDS};
use comb::format::entry::{self, Entries, Entry, TRANSACTION_ID_MAX_BYTES};
use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, MessageRef, SealBody, body_hash, chain_after, frame_bytes,
};
use comb::format::run::{RUN_HEADER_BYTES, RunForm, RunHeader, Runs};
use comb::format::superblock::Superblock;
use comb::types::{
    DeadLetterId, Epoch, FileNumber, IdHash, LogId, LogTime, MessageId, Offset, PartitionId, QueueId, Seq,
    WallTime,
};
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "format_properties/strategies.rs"]
mod strategies;

use strategies::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A whole file in memory.
fn finish(encoder: Encoder, info: CheckpointInfo) -> Vec<u8> {
    let ending = encoder.finish(info, Epoch(3));
    [ending.header, ending.bytes].concat()
}

fn encoded<'a>(deltas: impl Iterator<Item = Delta<'a>>) -> Vec<Vec<u8>> {
    deltas
        .map(|delta| {
            let mut out = Vec::new();
            delta.encode(&mut out);
            out
        })
        .collect()
}

/// Footer and records of a checkpoint file in memory; the records as their bytes.
fn checkpoint(bytes: &[u8], log: LogId, seq: Seq) -> Result<(CheckpointInfo, Vec<Vec<u8>>), DecodeError> {
    let read = |position: u64, length: usize| {
        let position = usize::try_from(position).unwrap();
        Ok::<_, DecodeError>(&bytes[position..position + length])
    };
    let mut decoder = Decoder::new(read, bytes.len() as u64, log, seq)?;
    let mut deltas = Vec::new();
    let keep = |delta: &Delta<'_>| {
        deltas.extend(encoded(std::iter::once(delta.clone())));
        Ok(())
    };
    decoder.for_each(keep)?;
    Ok((*decoder.info(), deltas))
}

/// Feeds bytes to every decoder. What is accepted must be spelled as the encoder spells it.
fn feed_all(bytes: &[u8]) {
    for kind in [FileKind::Segment, FileKind::Cursor, FileKind::Checkpoint] {
        let _ = FileHeader::decode(bytes, kind, FileNumber(1));
    }
    if let Ok(header) = FileHeader::decode_any(bytes) {
        assert_eq!(header.encode(), &bytes[..BLOCK_BYTES]);
    }
    if let Ok(header) = FrameHeader::decode(bytes, FileNumber(1)) {
        let mut out = [0xaa; FRAME_HEADER_BYTES];
        header.encode(&mut out);
        assert_eq!(out, &bytes[..FRAME_HEADER_BYTES]);
    }
    let _ = chain_after(bytes);
    let mut rest = bytes;
    if let Ok(reference) = MessageRef::decode_option(&mut rest) {
        let mut out = Vec::new();
        MessageRef::encode_option(reference.as_ref(), &mut out);
        assert_eq!(out, &bytes[..bytes.len() - rest.len()]);
    }
    if let Ok(seal) = SealBody::decode(bytes) {
        let mut out = Vec::new();
        seal.encode(&mut out);
        assert_eq!(out, bytes);
    }
    if let Ok(header) = RunHeader::decode(bytes) {
        assert_eq!(header.encode(), &bytes[..RUN_HEADER_BYTES]);
    }
    for run in Runs::new(bytes).flatten() {
        assert_eq!(run.entries.len(), usize::try_from(run.header.bytes).unwrap());
        let _ = Entries::new(run.entries).count();
    }
    let _ = entry::peek(bytes);
    let mut at = 0;
    for entry in Entries::new(bytes).flatten() {
        let mut out = Vec::new();
        entry.encode(&mut out);
        assert_eq!(out, &bytes[at..at + out.len()]);
        at += out.len();
    }
    let mut rest = bytes;
    while let Ok(delta) = Delta::decode(&mut rest) {
        let mut out = Vec::new();
        delta.encode(&mut out);
        let end = bytes.len() - rest.len();
        assert_eq!(out, &bytes[end - out.len()..end]);
    }
    assert!(Deltas::new(bytes).count() <= bytes.len());
    if let Ok(superblock) = Superblock::decode(bytes) {
        assert_eq!(superblock.encode(), &bytes[..BLOCK_BYTES]);
    }
    let _ = Superblock::pick(bytes, bytes);
    if let Ok((_, deltas)) = checkpoint(bytes, LogId(7), Seq(9)) {
        assert!(deltas.len() <= bytes.len());
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn file_headers_come_back(header in file_header()) {
        let bytes = header.encode();
        prop_assert_eq!(bytes.len(), BLOCK_BYTES);
        prop_assert_eq!(FileHeader::decode(&bytes, header.kind, header.number), Ok(header));
        prop_assert_eq!(FileHeader::decode_any(&bytes), Ok(header));
        let other = FileNumber(header.number.0 ^ 1);
        let refused = FileHeader::decode(&bytes, header.kind, other);
        let field = matches!(refused, Err(DecodeError::Field { field: "number", .. }));
        prop_assert!(field);
    }

    #[test]
    fn frame_headers_come_back(header in frame_header()) {
        let mut bytes = [0x55; FRAME_HEADER_BYTES];
        header.encode(&mut bytes);
        prop_assert_eq!(FrameHeader::decode(&bytes, header.file), Ok(header));
        let other = FileNumber(header.file.0 ^ 1);
        prop_assert!(FrameHeader::decode(&bytes, other).is_err(), "bytes of another file count");
        let frame = header.frame_bytes();
        prop_assert_eq!(frame % 4096, 0);
        prop_assert!(frame - u64::from(header.body_bytes) >= FRAME_HEADER_BYTES as u64);
        prop_assert!(frame - u64::from(header.body_bytes) < (FRAME_HEADER_BYTES + BLOCK_BYTES) as u64);
        prop_assert_eq!(frame, frame_bytes(usize::try_from(header.body_bytes).unwrap()));
    }

    #[test]
    fn message_references_and_seals_come_back(
        reference in proptest::option::of(message_ref()), n in [number(), number(), number()], tail in vec(any::<u8>(), 0..9),
    ) {
        let mut out = Vec::new();
        MessageRef::encode_option(reference.as_ref(), &mut out);
        prop_assert_eq!(out.len(), MessageRef::BYTES);
        out.extend_from_slice(&tail);
        let mut rest = &out[..];
        prop_assert_eq!(MessageRef::decode_option(&mut rest), Ok(reference));
        prop_assert_eq!(rest, &tail[..]);

        let seal = SealBody { frames: n[0], last_seq: Seq(n[1]), successor: FileNumber(n[2]) };
        let mut out = Vec::new();
        seal.encode(&mut out);
        prop_assert_eq!(SealBody::decode(&out), Ok(seal));
        out.push(0);
        prop_assert!(SealBody::decode(&out).is_err());
    }

    #[test]
    fn run_headers_come_back(header in run_header()) {
        prop_assert_eq!(RunHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn superblocks_come_back_and_the_newer_one_is_picked(one in superblock(), other in superblock()) {
        let two = Superblock { log: one.log, ..other };
        prop_assert_eq!(Superblock::decode(&one.encode()), Ok(one));
        if one.generation != two.generation {
            let newer = if one.generation > two.generation { (one, 0) } else { (two, 1) };
            prop_assert_eq!(Superblock::pick(&one.encode(), &two.encode()), Ok(newer));
        }
        prop_assert_eq!(Superblock::pick(&one.encode(), &[0; BLOCK_BYTES]), Ok((one, 0)));
        prop_assert_eq!(Superblock::pick(&[], &one.encode()), Ok((one, 1)));
    }

    #[test]
    fn entries_come_back(messages in vec(message(), 1..8)) {
        let out = encode_entries(&messages);
        prop_assert_eq!(out.len(), messages.iter().map(|message| message.entry().encoded_bytes()).sum::<usize>());
        let decoded: Vec<_> = Entries::new(&out).collect::<Result<_, _>>().unwrap();
        let expected: Vec<_> = messages.iter().map(Message::entry).collect();
        prop_assert_eq!(decoded, expected);
        let mut at = 0;
        for message in &messages {
            let entry = message.entry();
            prop_assert_eq!(entry::peek(&out[at..]), Ok((entry.hash, entry.id, entry.encoded_bytes())));
            prop_assert_eq!(entry::skip(&out[at..]), Ok(entry.encoded_bytes()));
            at += entry.encoded_bytes();
        }
    }

    #[test]
    fn runs_come_back(groups in vec(vec(message(), 1..4), 0..4), base in 0..u64::MAX / 2) {
        let mut body = Vec::new();
        let mut expected = Vec::new();
        for messages in &groups {
            let entries = encode_entries(messages);
            let header = RunHeader {
            form: RunForm::Pushed,
                partition: PartitionId(base ^ 5), base: Offset(base), count: u32::try_from(messages.len()).unwrap(),
                bytes: u32::try_from(entries.len()).unwrap(), created: WallTime(base), logged: LogTime(base),
            };
            expected.push((u32::try_from(body.len()).unwrap(), header, entries.clone()));
            body.extend_from_slice(&header.encode());
            body.extend_from_slice(&entries);
        }
        let runs: Vec<_> = Runs::new(&body)
            .map(|run| run.map(|run| (run.position, run.header, run.entries.to_vec())))
            .collect::<Result<_, _>>()
            .unwrap();
        prop_assert_eq!(runs, expected);
        if !body.is_empty() {
            let cut = Runs::new(&body[..body.len() - 1]).last().unwrap();
            prop_assert!(matches!(cut, Err(DecodeError::Short { .. })), "a cut run is an error, not an end");
        }
    }

    #[test]
    fn deltas_come_back(list in vec(parts(), 1..8)) {
        let out = encode_deltas(&list);
        let decoded: Vec<_> = Deltas::new(&out).collect::<Result<_, _>>().unwrap();
        let expected: Vec<_> = list.iter().map(Parts::delta).collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn a_cut_delta_is_an_error(parts in parts(), cut in any::<usize>()) {
        let out = encode_deltas(&[parts]);
        let mut rest = &out[..cut % out.len()];
        let before = rest;
        prop_assert!(Delta::decode(&mut rest).is_err());
        prop_assert_eq!(rest, before, "a failed read leaves the bytes alone");
    }

    #[test]
    fn checkpoints_come_back(list in vec(parts(), 0..12), info in info(), log in any::<u128>(), seq in number()) {
        let (log, seq) = (LogId(log), Seq(seq));
        let info = CheckpointInfo { until: info.until.max(seq), ..info };
        let mut encoder = Encoder::new(log, seq);
        for parts in &list {
            encoder.push(&parts.delta());
        }
        let bytes = finish(encoder, info);
        prop_assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let (decoded_info, decoded) = checkpoint(&bytes, log, seq).unwrap();
        let expected = CheckpointInfo { seq, records: list.len() as u64, ..info };
        prop_assert_eq!(decoded_info, expected);
        prop_assert_eq!(decoded, encoded(list.iter().map(Parts::delta)));
        prop_assert!(checkpoint(&bytes, LogId(log.0 ^ 1), seq).is_err(), "another log");
        prop_assert!(checkpoint(&bytes, log, Seq(seq.0 ^ 1)).is_err(), "another seq");
    }

    #[test]
    fn body_hashes_belong_to_their_place(
        log in any::<u128>(), file in number(), seq in number(), body in vec(any::<u8>(), 0..300),
    ) {
        let hash = body_hash(LogId(log), FileNumber(file), Seq(seq), &body);
        prop_assert_ne!(hash, body_hash(LogId(log ^ (1 << 100)), FileNumber(file), Seq(seq), &body));
        prop_assert_ne!(hash, body_hash(LogId(log), FileNumber(file ^ 1), Seq(seq), &body));
        prop_assert_ne!(hash, body_hash(LogId(log), FileNumber(file), Seq(seq ^ 1), &body));
    }
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..400)) {
        feed_all(&bytes);
    }

    #[test]
    fn records_of_arbitrary_contents_do_no_harm(
        kind in 0_u8..48, contents in vec(prop_oneof![any::<u8>(), 0_u8..4], 0..60),
    ) {
        let mut record = vec![kind, u8::try_from(contents.len()).unwrap()];
        record.extend_from_slice(&contents);
        feed_all(&record);
    }

    #[test]
    fn damaged_deltas_do_no_harm(list in vec(parts(), 1..4), damages in vec(damage(), 1..4)) {
        let mut bytes = encode_deltas(&list);
        damages.iter().for_each(|damage| apply(damage, &mut bytes));
        feed_all(&bytes);
    }

    #[test]
    fn damaged_headers_are_refused_or_unchanged(
        file in file_header(), frame in frame_header(), run in run_header(), superblock in superblock(),
        damages in vec(damage(), 1..4),
    ) {
        let harm = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            damages.iter().for_each(|damage| apply(damage, &mut bytes));
            feed_all(&bytes);
            bytes
        };
        let got = FileHeader::decode_any(&harm(&file.encode()));
        prop_assert!(got.is_err() || got == Ok(file));
        let mut bytes = [0; FRAME_HEADER_BYTES];
        frame.encode(&mut bytes);
        let got = FrameHeader::decode(&harm(&bytes), frame.file);
        prop_assert!(got.is_err() || got == Ok(frame));
        let got = RunHeader::decode(&harm(&run.encode()));
        prop_assert!(got.is_err() || got == Ok(run));
        let got = Superblock::decode(&harm(&superblock.encode()));
        prop_assert!(got.is_err() || got == Ok(superblock));
    }

    #[test]
    fn damaged_entries_are_refused_or_unchanged(messages in vec(message(), 1..4), damages in vec(damage(), 1..4)) {
        let mut bytes = encode_entries(&messages);
        damages.iter().for_each(|damage| apply(damage, &mut bytes));
        feed_all(&bytes);
        // Copies of whole entries are entries: only what never existed must not appear.
        for entry in Entries::new(&bytes).flatten() {
            prop_assert!(messages.iter().any(|message| message.entry() == entry));
        }
    }

    #[test]
    fn damaged_checkpoints_are_refused_or_unchanged(
        list in vec(parts(), 0..4), info in info(), damages in vec(damage(), 1..4),
    ) {
        let mut encoder = Encoder::new(LogId(7), Seq(9));
        list.iter().for_each(|parts| encoder.push(&parts.delta()));
        let whole = finish(encoder, info);
        let mut bytes = whole.clone();
        damages.iter().for_each(|damage| apply(damage, &mut bytes));
        feed_all(&bytes);
        prop_assert_eq!(checkpoint(&bytes, LogId(7), Seq(9)).is_ok(), bytes == whole);
    }
}

/// Every single bit of a structure, flipped.
fn flip_every_bit(bytes: &[u8], refused: impl Fn(&[u8]) -> bool) {
    let mut damaged = bytes.to_vec();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            damaged[at] ^= 1 << bit;
            assert!(refused(&damaged), "byte {at}, bit {bit} can flip unnoticed");
            damaged[at] ^= 1 << bit;
        }
    }
}

const FRAME: FrameHeader = FrameHeader {
    kind: FrameKind::Commit,
    file: FileNumber(42),
    epoch: Epoch(3),
    seq: Seq(4_711),
    watermark: Seq(4_709),
    chain: 77,
    body_bytes: 5000,
    records: 2,
    mark: 0,
    body_hash: 99,
    log_time: LogTime(12),
};

const FILE: FileHeader = FileHeader {
    kind: FileKind::Segment,
    log: LogId(7),
    number: FileNumber(42),
    shard: 0,
    shards: 1,
    file_bytes: 64 << 20,
    max_frame_bytes: 8 << 20,
    pipeline_depth: 2,
    epoch: Epoch(3),
    after_seq: Seq(4_700),
};

const SLOT: Superblock = Superblock {
    generation: 9,
    log: LogId(7),
    shard: 0,
    shards: 1,
    epoch: Epoch(3),
    checkpoint: Seq(40),
    previous_checkpoint: Seq(30),
    clean_seq: Seq(0),
};

#[test]
fn no_single_bit_flips_unnoticed() {
    let mut frame = [0; FRAME_HEADER_BYTES];
    FRAME.encode(&mut frame);
    flip_every_bit(&frame, |bytes| FrameHeader::decode(bytes, FileNumber(42)).is_err());
    flip_every_bit(&FILE.encode(), |bytes| FileHeader::decode_any(bytes).is_err());
    flip_every_bit(&SLOT.encode(), |bytes| Superblock::decode(bytes).is_err());
    let run = RunHeader {
        form: RunForm::Pushed,
        partition: PartitionId(7),
        base: Offset(100),
        count: 3,
        bytes: 500,
        created: WallTime(1_754_000_000_000_000),
        logged: LogTime(12),
    };
    flip_every_bit(&run.encode(), |bytes| RunHeader::decode(bytes).is_err());
    let mut out = Vec::new();
    Entry {
        id: MessageId(5),
        hash: IdHash(6),
        transaction_id: Cow::Borrowed("order-4711"),
        trace: Some(1),
        producer: Some("me"),
        payload: b"{\"n\":1}",
    }
    .encode(&mut out);
    flip_every_bit(&out, |bytes| Entry::decode(bytes).is_err());
    let mut encoder = Encoder::new(LogId(7), Seq(9));
    encoder.push(&Delta::QueueDeleted(QueueId(7)));
    encoder.push(&Delta::DeadLetterRemoved(DeadLetterId(7)));
    let info = CheckpointInfo {
        seq: Seq(9),
        until: Seq(12),
        log_time: LogTime(1),
        last_stamp: WallTime(2),
        cursor_file: 3,
        records: 2,
        segment: FileNumber(4),
        segment_position: 4096,
    };
    let whole = finish(encoder, info);
    flip_every_bit(&whole, |bytes| checkpoint(bytes, LogId(7), Seq(9)).is_err());
}

/// Rewrites the version of a block structure, crc32 included, as a later build would.
fn with_version(bytes: &[u8], version: u16) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    let covered = [&bytes[..8], &bytes[12..]].concat();
    bytes[8..12].copy_from_slice(&crc32fast::hash(&covered).to_le_bytes());
    bytes
}

#[test]
fn a_newer_version_is_named_and_a_damaged_one_is_damage() {
    let mut frame = [0; FRAME_HEADER_BYTES];
    FRAME.encode(&mut frame);
    let newer = |got: Result<(), DecodeError>| matches!(got, Err(DecodeError::Version { got: 2, .. }));
    assert!(newer(FrameHeader::decode(&with_version(&frame, 2), FileNumber(42)).map(drop)));
    assert!(newer(FileHeader::decode_any(&with_version(&FILE.encode(), 2)).map(drop)));
    assert!(newer(Superblock::decode(&with_version(&SLOT.encode(), 2)).map(drop)));
    assert!(FrameHeader::decode(&with_version(&frame, 1), FileNumber(42)).is_ok());
    assert!(FrameHeader::decode(&with_version(&frame, 0), FileNumber(42)).is_err());
    frame[4] = 2;
    assert_eq!(
        FrameHeader::decode(&frame, FileNumber(42)),
        Err(DecodeError::Checksum { what: "frame header" })
    );
}

#[test]
fn the_superblock_refuses_what_it_must_not_choose_from() {
    let old = SLOT.encode();
    let new = Superblock { generation: 10, checkpoint: Seq(50), ..SLOT };
    let newer = with_version(&new.encode(), 2);
    // A newer version in either slot, beside a valid, a damaged or an empty one.
    for other in [&old[..], &[0; BLOCK_BYTES], &[]] {
        for (slot0, slot1) in [(&newer[..], other), (other, &newer[..])] {
            assert!(matches!(Superblock::pick(slot0, slot1), Err(DecodeError::Version { got: 2, .. })));
        }
    }
    // A slot torn while it was written leaves the other.
    let mut torn = new.encode();
    torn[100..].fill(0xff);
    assert_eq!(Superblock::pick(&old, &torn), Ok((SLOT, 0)));
    assert_eq!(Superblock::pick(&new.encode(), &old), Ok((new, 0)));
    assert_eq!(Superblock::pick(&old, &new.encode()), Ok((new, 1)));
    assert_eq!(Superblock::pick(&old, &old), Ok((SLOT, 0)));
    // Two slots that one log cannot have written.
    let twin = Superblock { generation: 9, ..new };
    assert!(matches!(Superblock::pick(&old, &twin.encode()), Err(DecodeError::Field { .. })));
    let foreign = Superblock { log: LogId(8), ..new };
    assert!(matches!(Superblock::pick(&old, &foreign.encode()), Err(DecodeError::Field { .. })));
    // Neither: both are named.
    let both = Superblock::pick(&torn, &[0; BLOCK_BYTES]).unwrap_err();
    assert_eq!(
        both.to_string(),
        "superblock: neither slot is valid (first: superblock slot: checksum mismatch; second: superblock slot: \
         wrong magic number)"
    );
}

#[test]
fn reserved_and_unknown_kinds_are_errors_by_name() {
    for (kind, name) in RESERVED_KINDS {
        let mut rest = &[kind, 0][..];
        let expected = DecodeError::Field { what: "delta", field: name, got: u64::from(kind) };
        assert_eq!(Delta::decode(&mut rest), Err(expected));
    }
    for kind in [0, 9, 31, 41, 200, 255] {
        let mut rest = &[kind, 0][..];
        let expected = DecodeError::Field { what: "delta", field: "kind", got: u64::from(kind) };
        assert_eq!(Delta::decode(&mut rest), Err(expected));
    }
    // Nothing behind it is believed.
    let mut bytes = vec![RESERVED_KINDS[0].0, 0];
    Delta::QueueDeleted(QueueId(1)).encode(&mut bytes);
    assert_eq!(Deltas::new(&bytes).collect::<Vec<_>>().len(), 1);
}

#[test]
fn entry_limits_are_checked_before_the_fact() {
    let id = "x".repeat(TRANSACTION_ID_MAX_BYTES);
    let mut entry = Entry {
        id: MessageId(1),
        hash: IdHash(2),
        transaction_id: Cow::Borrowed(&id),
        trace: None,
        producer: None,
        payload: b"1",
    };
    assert_eq!(entry.check(), Ok(()));
    let mut out = Vec::new();
    entry.encode(&mut out);
    assert_eq!(Entry::decode(&out).unwrap().0, entry);
    entry.transaction_id = Cow::Owned(format!("{id}x"));
    let refused = entry.check().unwrap_err();
    assert_eq!((refused.field, refused.got, refused.limit), ("transaction id", 65_536, 65_535));
}

/// A checkpoint of several chunks, and what is refused about one whose chunks are whole but in the wrong places.
#[test]
fn checkpoints_of_several_chunks() {
    let name = "n".repeat(300);
    let partition = |number: u64| {
        Delta::Partition(PartitionDef {
            partition: PartitionId(number),
            queue: QueueId(1),
            name: &name,
            dead_letters_of: None,
            next: Offset(0),
            start: Offset(0),
            last_created: WallTime(0),
            last_logged: LogTime(0),
            created: WallTime(0),
        })
    };
    let mut encoder = Encoder::new(LogId(7), Seq(9));
    (0..10_000).for_each(|number| encoder.push(&partition(number)));
    let info = CheckpointInfo {
        seq: Seq(9),
        until: Seq(12),
        log_time: LogTime(1),
        last_stamp: WallTime(2),
        cursor_file: 3,
        records: 0,
        segment: FileNumber(4),
        segment_position: 4096,
    };
    // Taken chunk by chunk or all at once: the same file.
    let mut sliced = Encoder::new(LogId(7), Seq(9));
    let mut taken = Vec::new();
    let mut most = 0;
    for number in 0..10_000 {
        sliced.push(&partition(number));
        if let Some(bytes) = sliced.take_closed() {
            most = most.max(bytes.len());
            taken.extend(bytes);
        }
    }
    let ending = sliced.finish(info, Epoch(3));
    let bytes = finish(encoder, info);
    assert_eq!([ending.header, taken, ending.bytes].concat(), bytes);
    assert_eq!(ending.file_bytes, bytes.len() as u64);
    assert!(most > CHUNK_TARGET_BYTES && most < CHUNK_TARGET_BYTES + 1000, "{most}");
    let (decoded_info, decoded) = checkpoint(&bytes, LogId(7), Seq(9)).unwrap();
    assert_eq!(decoded_info.records, 10_000);
    assert_eq!(decoded, encoded((0..10_000).map(partition)));

    // The footer gone, the first chunk gone, the first chunk twice.
    let length = u32::from_le_bytes(bytes[BLOCK_BYTES + 4..BLOCK_BYTES + 8].try_into().unwrap());
    let first = BLOCK_BYTES..BLOCK_BYTES + CHUNK_HEADER_BYTES + usize::try_from(length).unwrap();
    let refit = |chunks: Vec<u8>| {
        let size = (BLOCK_BYTES + chunks.len()).next_multiple_of(BLOCK_BYTES);
        let mut header = FileHeader::decode_any(&bytes).unwrap();
        header.file_bytes = size as u64;
        let mut file = [header.encode(), chunks].concat();
        file.resize(size, 0);
        checkpoint(&file, LogId(7), Seq(9)).map(|(_, deltas)| deltas.len())
    };
    assert_eq!(refit(bytes[BLOCK_BYTES..].to_vec()), Ok(10_000), "the tool of this test works");
    assert!(refit(bytes[first.clone()].to_vec()).is_err());
    assert!(refit(bytes[first.end..].to_vec()).is_err());
    assert!(refit([&bytes[first.clone()], &bytes[first.start..]].concat()).is_err());
    assert!(refit(bytes[BLOCK_BYTES..bytes.len() - BLOCK_BYTES].to_vec()).is_err());
}
