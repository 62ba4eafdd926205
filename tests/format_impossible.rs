//! Impossible contents under valid checksums: what no writer writes is refused, not guessed at.
//!
//! Such bytes come from a later build, from a bug, or from someone who edits files. Each case here takes valid
//! bytes, changes one thing and repairs the checksum, so that only the check in question can refuse it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::borrow::Cow;

use comb::format::checkpoint::{CheckpointInfo, Decoder, Encoder};
use comb::format::delta::Delta;
use comb::format::entry::Entry;
use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, MessageRef};
use comb::format::run::RunHeader;
use comb::format::superblock::Superblock;
use comb::format::{BLOCK_BYTES, DecodeError};
use comb::types::{
    Epoch, FileNumber, IdHash, LogId, LogTime, MessageId, Offset, PartitionId, QueueId, Seq, WallTime,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The bytes with some replaced and the crc32 at `crc_at` made right again.
fn edit(bytes: &[u8], crc_at: usize, at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    let covered = [&bytes[..crc_at], &bytes[crc_at + 4..]].concat();
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc32fast::hash(&covered).to_le_bytes());
    bytes
}

/// The field that was refused.
fn refused<T: std::fmt::Debug>(got: Result<T, DecodeError>) -> &'static str {
    match got {
        Err(DecodeError::Field { field, .. }) => field,
        other => panic!("not refused for a field: {other:?}"),
    }
}

#[test]
fn file_headers() {
    let header = FileHeader {
        kind: FileKind::Cursor,
        log: LogId(7),
        number: FileNumber(42),
        shard: 0,
        shards: 1,
        file_bytes: 16 << 20,
        max_frame_bytes: 8 << 20,
        pipeline_depth: 2,
        epoch: Epoch(3),
        after_seq: Seq(9),
    };
    let bytes = header.encode();
    let with = |at: usize, with: &[u8]| FileHeader::decode_any(&edit(&bytes, 8, at, with));
    assert_eq!(with(0, &[]), Ok(header), "the tool of this test repairs what it edits");
    assert_eq!(refused(with(4, &[0, 0])), "version");
    assert_eq!(refused(with(6, &[1])), "kind");
    assert_eq!(refused(with(7, &[1])), "flags");
    assert_eq!(refused(with(12, &512_u32.to_le_bytes())), "block size");
    assert_eq!(refused(with(40, &[1, 0])), "shard");
    assert_eq!(refused(with(42, &[0, 0])), "shard");
    for at in [80, 2000, BLOCK_BYTES - 1] {
        assert_eq!(refused(with(at, &[1])), "reserved");
    }
}

#[test]
fn superblock_slots() {
    let slot = Superblock {
        generation: 9,
        log: LogId(7),
        shard: 0,
        shards: 1,
        epoch: Epoch(3),
        checkpoint: Seq(40),
        previous_checkpoint: Seq(30),
        clean_seq: Seq(0),
    };
    let bytes = slot.encode();
    let with = |at: usize, with: &[u8]| Superblock::decode(&edit(&bytes, 8, at, with));
    assert_eq!(with(0, &[]), Ok(slot));
    assert_eq!(refused(with(6, &[3])), "kind");
    assert_eq!(refused(with(12, &512_u32.to_le_bytes())), "block size");
    assert_eq!(refused(with(40, &[1, 0])), "shard");
    assert_eq!(refused(with(64, &41_u64.to_le_bytes())), "previous checkpoint");
    for at in [44, 80, BLOCK_BYTES - 1] {
        assert_eq!(refused(with(at, &[1])), "reserved");
    }
}

#[test]
fn frame_headers() {
    let header = FrameHeader {
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
    let mut bytes = [0; FRAME_HEADER_BYTES];
    header.encode(&mut bytes);
    let with = |at: usize, with: &[u8]| FrameHeader::decode(&edit(&bytes, 8, at, with), FileNumber(42));
    assert_eq!(with(0, &[]), Ok(header));
    for kind in [0, 5, 255] {
        assert_eq!(refused(with(6, &[kind])), "kind");
    }
    assert_eq!(refused(with(7, &[128])), "flags");
    assert_eq!(refused(with(16, &[43])), "file number");
    for at in [80, FRAME_HEADER_BYTES - 1] {
        assert_eq!(refused(with(at, &[1])), "reserved");
    }
    // Watermarks: below a commit's seq, up to the seq of what only repeats it.
    assert_eq!(refused(with(40, &4_711_u64.to_le_bytes())), "watermark");
    for kind in [2, 3] {
        let quiet = edit(&edit(&bytes, 8, 6, &[kind]), 8, 12, &[0; 4]);
        let with = |watermark: u64| {
            FrameHeader::decode(&edit(&quiet, 8, 40, &watermark.to_le_bytes()), FileNumber(42))
        };
        assert!(with(4_711).is_ok());
        assert_eq!(refused(with(4_712)), "watermark");
    }
    assert_eq!(refused(with(6, &[3])), "body length of a noop");
}

#[test]
fn message_references() {
    let reference = MessageRef { segment: FileNumber(1), position: 8192, body_bytes: 10, body_hash: 11 };
    let mut bytes = Vec::new();
    MessageRef::encode_option(Some(&reference), &mut bytes);
    let with = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        MessageRef::decode_option(&mut &bytes[..])
    };
    assert_eq!(with(0, &[]), Ok(Some(reference)));
    assert_eq!(refused(with(0, &[2])), "marker");
    assert_eq!(refused(with(0, &[0])), "byte of an absent reference");
    assert_eq!(refused(with(2, &[1])), "reserved");
    for position in [0_u64, 4095, 8193] {
        assert_eq!(refused(with(16, &position.to_le_bytes())), "position");
    }
}

#[test]
fn run_headers() {
    let header = RunHeader {
        partition: PartitionId(7),
        base: Offset(100),
        count: 3,
        bytes: 500,
        created: WallTime(5),
        logged: LogTime(6),
    };
    let bytes = header.encode();
    let with = |at: usize, with: &[u8]| RunHeader::decode(&edit(&bytes, 4, at, with));
    assert_eq!(with(0, &[]), Ok(header));
    assert_eq!(with(0, b"Q"), Err(DecodeError::Magic { what: "run header" }));
    assert_eq!(refused(with(1, &[1])), "flags");
    assert_eq!(refused(with(3, &[1])), "reserved");
    assert_eq!(refused(with(16, &(u64::MAX - 2).to_le_bytes())), "count");
    assert_eq!(refused(with(40, &0_u32.to_le_bytes())), "count");
    assert_eq!(refused(with(44, &122_u32.to_le_bytes())), "bytes");
    assert!(with(44, &123_u32.to_le_bytes()).is_ok());
}

#[test]
fn entries() {
    let encode = |transaction_id: &str| {
        let mut out = Vec::new();
        Entry {
            id: MessageId(5),
            hash: IdHash(6),
            transaction_id: Cow::Borrowed(transaction_id),
            trace: None,
            producer: None,
            payload: b"1",
        }
        .encode(&mut out);
        out
    };
    let uuid = encode(&MessageId(6).text());
    assert_eq!(refused(Entry::decode(&edit(&uuid, 4, 8, &[1 | 16]))), "flags");
    assert_eq!(refused(Entry::decode(&edit(&uuid, 4, 8, &[3]))), "transaction id form");
    assert_eq!(refused(Entry::decode(&edit(&uuid, 4, 41, &5_u128.to_le_bytes()))), "transaction id form");
    // A canonical text that is stored as text: one upper-case letter made it one, and is put right.
    let text = "0000000A-0000-0000-0000-000000000001";
    let stored = encode(text);
    assert!(Entry::decode(&stored).is_ok());
    assert_eq!(refused(Entry::decode(&edit(&stored, 4, 43 + 7, b"a"))), "transaction id form");
    // A length that runs past the entry, and bytes that are not text.
    let short = Entry::decode(&edit(&stored, 4, 41, &[200, 0])).map(drop);
    assert!(matches!(short, Err(DecodeError::Short { .. })));
    let not_text = Entry::decode(&edit(&stored, 4, 43, &[0xff])).map(drop);
    assert_eq!(not_text, Err(DecodeError::Text { what: "entry", field: "transaction id" }));
    let mut tiny = vec![32, 0, 0, 0];
    tiny.resize(100, 0);
    assert_eq!(refused(Entry::decode(&tiny)), "length");
}

#[test]
fn deltas() {
    let with = |bytes: &[u8]| Delta::decode(&mut &bytes[..]).map(|delta| format!("{delta:?}"));
    // Deletion of a queue: its id, exactly.
    assert!(with(&[2, 1, 7]).is_ok());
    assert_eq!(refused(with(&[2, 2, 7, 0])), "number of bytes after the last field");
    assert_eq!(refused(with(&[2, 0x81, 0, 7])), "varint longer than necessary");
    assert!(matches!(with(&[2, 0]), Err(DecodeError::Short { .. })));
    assert!(matches!(with(&[2, 5, 7]), Err(DecodeError::Short { .. })));
    // Start of a partition: both numbers. Deletion of one: its id.
    assert!(with(&[36, 2, 7, 9]).is_ok());
    assert_eq!(refused(with(&[36, 3, 7, 9, 0])), "number of bytes after the last field");
    assert!(matches!(with(&[36, 1, 7]), Err(DecodeError::Short { .. })));
    assert!(with(&[39, 1, 7]).is_ok());
    assert_eq!(refused(with(&[39, 2, 7, 9])), "number of bytes after the last field");
    assert!(matches!(with(&[39, 0]), Err(DecodeError::Short { .. })));
    // Cursors: flags, partition, group, next, then what the flags promise.
    assert!(with(&[5, 4, 3, 1, 1, 9]).is_ok());
    assert_eq!(refused(with(&[5, 4, 8, 1, 1, 9])), "cause");
    assert_eq!(refused(with(&[5, 5, 16, 1, 1, 9, 0])), "retries used");
    assert_eq!(
        refused(with(&[5, 9, 16, 1, 1, 9, 0xff, 0xff, 0xff, 0xff, 0x1f])),
        "retries used",
        "above 32 bits"
    );
    assert_eq!(refused(with(&[5, 6, 32, 1, 1, 9, 0, 17])), "attempts", "none, from offset 0");
    // Definitions with flags from elsewhere.
    assert_eq!(refused(with(&[3, 9, 2, 1, 1, 0, 0, 0, 0, 0, 0])), "flags");
    assert_eq!(refused(with(&[4, 5, 4, 1, 1, 1, 0])), "flags");
    // Options of another version, and a switch that is none.
    assert_eq!(refused(with(&[1, 7, 1, 1, 0, 0, 0, 2, 0])), "version of the options");
    assert_eq!(refused(with(&[1, 7, 1, 1, 0, 0, 0, 1, 16])), "switches");
}

const LOG: LogId = LogId(7);
const SEQ: Seq = Seq(9);

/// A chunk with a right hash.
fn chunk(magic: &[u8; 4], index: u32, records: u32, contents: &[u8]) -> Vec<u8> {
    let length = u32::try_from(contents.len()).unwrap();
    let numbers = [length, records, index].map(u32::to_le_bytes).concat();
    let header = [&magic[..], &numbers].concat();
    let place = [&LOG.0.to_le_bytes()[..], &SEQ.0.to_le_bytes(), &header].concat();
    let hash = xxh3_64_with_seed(contents, xxh3_64(&place));
    [&header[..], &hash.to_le_bytes(), contents].concat()
}

fn footer(index: u32, seq: u64, records: u64) -> Vec<u8> {
    chunk(b"CbEn", index, 0, &[seq, 1, 2, 3, records, 5, 4096].map(u64::to_le_bytes).concat())
}

/// Deltas counted, or why the file is refused, of a checkpoint made of these chunks.
fn checkpoint(chunks: &[Vec<u8>], blocks: usize) -> Result<usize, DecodeError> {
    let info = CheckpointInfo {
        seq: SEQ,
        log_time: LogTime(1),
        last_stamp: WallTime(2),
        cursor_file: 3,
        records: 0,
        segment: FileNumber(5),
        segment_position: 4096,
    };
    let empty = Encoder::new(LOG, SEQ, Epoch(1)).finish(info);
    let mut header = FileHeader::decode_any(&empty).unwrap();
    header.file_bytes = (blocks * BLOCK_BYTES) as u64;
    let mut file = [header.encode(), chunks.concat()].concat();
    file.resize(blocks * BLOCK_BYTES, 0);
    Decoder::new(&file, LOG, SEQ).map(Iterator::count)
}

#[test]
fn checkpoints() {
    let mut records = Vec::new();
    Delta::QueueDeleted(QueueId(1)).encode(&mut records);
    Delta::QueueDeleted(QueueId(2)).encode(&mut records);
    let two = |index, count| chunk(b"CbDl", index, count, &records);
    assert_eq!(checkpoint(&[two(0, 2), two(1, 2), footer(2, 9, 4)], 2), Ok(4));
    assert_eq!(checkpoint(&[footer(0, 9, 0)], 2), Ok(0));
    assert_eq!(refused(checkpoint(&[two(1, 2), footer(2, 9, 2)], 2)), "chunk index");
    assert_eq!(refused(checkpoint(&[two(0, 2), footer(2, 9, 2)], 2)), "chunk index");
    assert_eq!(refused(checkpoint(&[two(0, 3), footer(1, 9, 3)], 2)), "records of a chunk");
    assert_eq!(refused(checkpoint(&[two(0, 2), footer(1, 9, 3)], 2)), "records of the footer");
    assert_eq!(refused(checkpoint(&[two(0, 2), footer(1, 8, 2)], 2)), "seq of the footer");
    assert_eq!(refused(checkpoint(&[two(0, 2), footer(1, 9, 2)], 3)), "bytes after the footer");
    assert_eq!(refused(checkpoint(&[footer(0, 9, 0), two(0, 2)], 2)), "padding");
    let counted = chunk(b"CbEn", 0, 1, &[9, 1, 2, 3, 0, 5, 4096_u64].map(u64::to_le_bytes).concat());
    assert_eq!(refused(checkpoint(&[counted], 2)), "records of the footer chunk");
    let longer = chunk(b"CbEn", 0, 0, &[9, 1, 2, 3, 0, 5, 4096, 0_u64].map(u64::to_le_bytes).concat());
    assert_eq!(refused(checkpoint(&[longer], 2)), "number of bytes after the last field");
    let unknown = chunk(b"CbDl", 0, 1, &[32, 0]);
    assert_eq!(refused(checkpoint(&[unknown, footer(1, 9, 1)], 2)), "kind, reserved for the ledger,");
    assert_eq!(checkpoint(&[two(0, 2)], 2), Err(DecodeError::Magic { what: "checkpoint chunk" }));
}
