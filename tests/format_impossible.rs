//! Impossible contents under valid checksums: what no writer writes is refused, not guessed at.
//!
//! Such bytes come from a later build, from a bug, or from someone who edits files. Each case here takes valid
//! bytes, changes one thing and repairs the checksum, so that only the check in question can refuse it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::borrow::Cow;

use comb::format::checkpoint::{CHUNK_BYTES_MAX, CheckpointInfo, Decoder, Encoder};
use comb::format::delta::Delta;
use comb::format::entry::Entry;
use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, MessageRef};
use comb::format::index::{Builder, RunRow, Section};
use comb::format::run::{RunForm, RunHeader};
use comb::format::superblock::Superblock;
use comb::format::{BLOCK_BYTES, DecodeError};
use comb::log::sealed::{IndexError, Sealed};
use comb::types::{
    Epoch, FileNumber, IdHash, LogId, LogTime, MessageId, Offset, PartitionId, QueueId, Seq, WallTime,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

#[path = "index_file/memory.rs"]
mod memory;

use memory::{Memory, finish};

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
        form: RunForm::Pushed,
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
    assert_eq!(refused(with(1, &[3])), "flags");
    assert_eq!(refused(with(1, &[4])), "flags");
    assert_eq!(with(1, &[1]), Ok(RunHeader { form: RunForm::Moved, ..header }));
    // A bare run has 32 bytes for each message, neither more nor less.
    assert_eq!(refused(with(1, &[2])), "bytes");
    let bare = RunHeader { form: RunForm::Bare, bytes: 96, ..header };
    assert_eq!(RunHeader::decode(&bare.encode()), Ok(bare));
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
    assert_eq!(refused(with(&[5, 4, 9, 1, 1, 9])), "cause");
    assert_eq!(refused(with(&[5, 5, 16, 1, 1, 9, 0])), "retries used");
    assert_eq!(
        refused(with(&[5, 9, 16, 1, 1, 9, 0xff, 0xff, 0xff, 0xff, 0x1f])),
        "retries used",
        "above 32 bits"
    );
    assert_eq!(refused(with(&[5, 6, 32, 1, 1, 9, 0, 17])), "attempts", "none, from offset 0");
    // Definitions with flags from elsewhere.
    assert_eq!(refused(with(&[3, 9, 2, 1, 1, 0, 0, 0, 0, 0, 0])), "flags");
    assert_eq!(refused(with(&[4, 5, 8, 1, 1, 1, 0])), "flags");
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
    chunk(b"CbEn", index, 0, &[seq, 1, 2, 3, records, 5, 4096, seq + 3].map(u64::to_le_bytes).concat())
}

/// Deltas counted, or why the file is refused, of a checkpoint made of these chunks.
fn checkpoint(chunks: &[Vec<u8>], blocks: usize) -> Result<usize, DecodeError> {
    let info = CheckpointInfo {
        seq: SEQ,
        until: SEQ,
        log_time: LogTime(1),
        last_stamp: WallTime(2),
        cursor_file: 3,
        records: 0,
        segment: FileNumber(5),
        segment_position: 4096,
    };
    let empty = Encoder::new(LOG, SEQ).finish(info, Epoch(1));
    let mut header = FileHeader::decode_any(&empty.header).unwrap();
    header.file_bytes = (blocks * BLOCK_BYTES) as u64;
    let mut file = [header.encode(), chunks.concat()].concat();
    file.resize(blocks * BLOCK_BYTES, 0);
    let read = |position: u64, length: usize| {
        let position = usize::try_from(position).unwrap();
        Ok::<_, DecodeError>(&file[position..position + length])
    };
    let mut decoder = Decoder::new(read, file.len() as u64, LOG, SEQ)?;
    let mut deltas = 0;
    let count = |_: &Delta<'_>| {
        deltas += 1;
        Ok(())
    };
    decoder.for_each(count)?;
    Ok(deltas)
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
    let counted = chunk(b"CbEn", 0, 1, &[9, 1, 2, 3, 0, 5, 4096, 9_u64].map(u64::to_le_bytes).concat());
    assert_eq!(refused(checkpoint(&[counted], 2)), "records of the footer chunk");
    let longer = chunk(b"CbEn", 0, 0, &[9, 1, 2, 3, 0, 5, 4096, 9, 0_u64].map(u64::to_le_bytes).concat());
    assert_eq!(refused(checkpoint(&[longer], 2)), "number of bytes after the last field");
    let back = chunk(b"CbEn", 0, 0, &[9, 1, 2, 3, 0, 5, 4096, 8_u64].map(u64::to_le_bytes).concat());
    assert_eq!(refused(checkpoint(&[back], 2)), "until");
    assert_eq!(refused(checkpoint(&[chunk(b"CbDl", 0, 0, &[]), footer(1, 9, 0)], 2)), "length");
    let mut huge = two(0, 2);
    huge[4..8].copy_from_slice(&u32::try_from(CHUNK_BYTES_MAX + 1).unwrap().to_le_bytes());
    assert_eq!(refused(checkpoint(&[huge], 2)), "length", "refused before it is read");
    let unknown = chunk(b"CbDl", 0, 1, &[32, 0]);
    assert_eq!(refused(checkpoint(&[unknown, footer(1, 9, 1)], 2)), "kind, reserved for the ledger,");
    assert_eq!(checkpoint(&[two(0, 2)], 2), Err(DecodeError::Magic { what: "checkpoint chunk" }));
}

const SEGMENT: FileNumber = FileNumber(3);

/// The index of a segment with two runs of partition 1, two messages each, and one of partition 2, each page of which
/// holds one section. `section` has some of its bytes replaced, under a right checksum.
fn index_with(section: Section, at: usize, with: &[u8]) -> Sealed<Memory> {
    let mut builder = Builder::new(LOG, SEGMENT);
    for (partition, base, ids) in [(1, 0, [11, 12]), (1, 2, [13, 14]), (2, 0, [15, 16])] {
        let run = RunRow {
            partition: PartitionId(partition),
            base: Offset(base),
            count: 2,
            bytes: 82,
            created: WallTime(100 + base),
            logged: LogTime(5),
            position: 4096,
            first_id: 0,
            bare: false,
        };
        builder.push_run(run, &ids.map(|id| (IdHash(id), MessageId(id))));
    }
    let mut file = finish(builder);
    let whole = Sealed::open(Memory(file.clone()), LOG, SEGMENT).unwrap();
    let number = whole.info().first_page(section);
    let page = &mut file[(number as usize + 1) * BLOCK_BYTES..][..BLOCK_BYTES];
    page[at..at + with.len()].copy_from_slice(with);
    let place = [&LOG.0.to_le_bytes()[..], &SEGMENT.0.to_le_bytes(), &number.to_le_bytes()].concat();
    let hash = xxh3_64_with_seed(&page[..BLOCK_BYTES - 8], xxh3_64(&place));
    page[BLOCK_BYTES - 8..].copy_from_slice(&hash.to_le_bytes());
    Sealed::open(Memory(file), LOG, SEGMENT).unwrap()
}

/// What is wrong with an index: the section whose row is not there, or the field that no writer writes.
fn wrong<T: std::fmt::Debug>(got: Result<T, IndexError>) -> String {
    match got {
        Err(IndexError::Missing { section, .. }) => format!("{section:?}"),
        Err(IndexError::Page { error: DecodeError::Field { field, .. }, .. }) => field.to_owned(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn indexes_of_segments() {
    let (one, two, all) = (PartitionId(1), PartitionId(2), u32::MAX);
    let find = |section, at: usize, with: u32, id| {
        index_with(section, at, &with.to_le_bytes()).find(if id < 15 { one } else { two }, IdHash(id))
    };
    // The tool of this test repairs what it edits, and nothing else is wrong.
    assert_eq!(find(Section::Runs, 52, 1, 11).unwrap(), [(Offset(0), MessageId(11), LogTime(5))]);

    // Rows of runs are 52 bytes: flags, partition 4, base 12, count 20, bytes 24, …, first message 48.
    assert_eq!(wrong(find(Section::Runs, 0, 8, 11)), "flags");
    assert_eq!(wrong(find(Section::Runs, 20, 0, 11)), "count");
    let end = index_with(Section::Runs, 12, &u64::MAX.to_le_bytes());
    assert_eq!(wrong(end.find(one, IdHash(11))), "count");
    for first_message in [1, 2, 4, u32::MAX] {
        assert_eq!(wrong(find(Section::Runs, 48, first_message, 11)), "Messages");
    }
    // Messages are 36 bytes, the row of the run plus 1 at 32; slots are 8, the row of the message plus 1 at 4.
    for run in [4, 1000, u32::MAX] {
        assert_eq!(wrong(find(Section::Messages, 32, run, 11)), "Runs");
        let sealed = index_with(Section::Messages, 32, &run.to_le_bytes());
        assert_eq!(wrong(sealed.keys(&mut |_| ())), "Runs");
    }
    for message in [7, 5000, u32::MAX] {
        assert_eq!(wrong(find(Section::Slots, 4, message, 11)), "Messages");
    }
    // A message that is not there where the header counts it.
    let fewer = index_with(Section::Messages, 5 * 36, &[0; 36]);
    assert_eq!(wrong(fewer.keys(&mut |_| ())), "Messages");

    // Spans are 52 bytes: flags, partition 4, base 12, end 20 (wide), first run 28, runs 32. Either may come first.
    let probe = index_with(Section::Spans, 0, &[]);
    let mut order = Vec::new();
    probe.spans(&mut |span| order.push(span.partition)).unwrap();
    let row = 52 * order.iter().position(|partition| *partition == one).unwrap();
    let span = |at: usize, with: &[u8]| index_with(Section::Spans, row + at, with);
    assert_eq!(wrong(span(0, &[4]).spans(&mut |_| ())), "flags");
    assert_eq!(wrong(span(20, &0_u64.to_le_bytes()).span(one, Offset(0))), "end");
    assert_eq!(wrong(span(32, &[0; 4]).span(one, Offset(0))), "end");
    for (at, with, runs) in
        [(28, 3_u32, 2), (28, 1 << 31, 2), (28, 1, 2), (28, 2, 2), (32, 3, 3), (32, 5000, 5000)]
    {
        let sealed = span(at, &with.to_le_bytes());
        let found = sealed.span(one, Offset(0)).unwrap().unwrap();
        assert_eq!(found.runs, runs);
        assert_eq!(wrong(sealed.runs(&found, Offset(0), all)), "Runs", "{at} {with}");
        assert_eq!(wrong(sealed.first_created(&found, WallTime(1000))), "Runs", "{at} {with}");
    }
    // Fewer spans than the header counts.
    let lacking = index_with(Section::Spans, 52, &[0; 52]);
    assert_eq!(wrong(lacking.spans(&mut |_| ())), "Spans");
}

#[test]
fn index_headers() {
    let file = finish(Builder::new(LOG, SEGMENT));
    let with = |at: usize, with: &[u8]| {
        let mut edited = edit(&file[..BLOCK_BYTES], 8, at, with);
        edited.extend_from_slice(&file[BLOCK_BYTES..]);
        Sealed::open(Memory(edited), LOG, SEGMENT).map(|sealed| *sealed.info()).map_err(|error| match error {
            IndexError::Header(error) => error,
            other => panic!("{other}"),
        })
    };
    assert!(with(0, &[]).is_ok());
    assert_eq!(refused(with(6, &[4])), "kind");
    assert_eq!(refused(with(7, &[1])), "flags");
    assert_eq!(refused(with(12, &512_u32.to_le_bytes())), "block size");
    assert_eq!(refused(with(16, &[8])), "log id, low half");
    assert_eq!(refused(with(32, &[4])), "segment");
    for (at, field) in [(40, "runs"), (44, "spans"), (48, "messages")] {
        assert_eq!(refused(with(at, &u32::MAX.to_le_bytes())), field);
        assert_eq!(refused(with(at, &1000_u32.to_le_bytes())), "file bytes");
    }
    assert_eq!(refused(with(72, &4096_u64.to_le_bytes())), "file bytes");
    for at in [80, BLOCK_BYTES - 1] {
        assert_eq!(refused(with(at, &[1])), "reserved");
    }
    // More messages without payloads than messages.
    assert_eq!(refused(with(52, &1000_u32.to_le_bytes())), "bare messages");
}
