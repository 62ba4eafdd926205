//! Golden bytes: every structure on disk, pinned byte for byte.
//!
//! Each fixture under `fixtures/format/v1` is read twice: the encoder must produce exactly these bytes, and the
//! decoder must get the same values out of them. A fixture never changes; a new format version gets a new folder,
//! and the old one goes on being decoded.
//!
//! When an encoder's bytes differ, the test leaves what it got in the target folder, in the same notation.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use comb::format::checkpoint::{CheckpointInfo, Decoder, Encoder};
use comb::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, Deltas, GroupDef, Lease, PartitionDef, QueueDef,
    StartPolicy,
};
use comb::format::entry::{Entries, Entry};
use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, MessageRef, SealBody, body_hash, chain_after, frame_bytes,
};
use comb::format::index::{self, IndexInfo, RunRow, Section, SpanRow};
use comb::format::run::{RUN_HEADER_BYTES, RunForm, RunHeader, Runs};
use comb::format::superblock::Superblock;
use comb::format::{BLOCK_BYTES, DecodeError, FORMAT_VERSION, id_hash};
use comb::types::{
    DeadLetterId, Epoch, FileNumber, GroupId, IdHash, LeaseId, LogId, LogTime, MessageId, Offset,
    PartitionId, QueueId, QueueOptions, Seq, WallTime,
};

const LOG: LogId = LogId(0x0198_8f00_1122_7334_8556_6778_899a_abbc);
const MESSAGE: MessageId = MessageId(0x0198_8f01_aaaa_7bbb_8ccc_dddd_eeee_0001);
const LEASE: LeaseId = LeaseId(0x0198_8f02_0000_7001_8002_0003_0004_0005);
const SETTLED: LeaseId = LeaseId(0x0198_8f02_0000_7001_8002_0003_0004_0004);
const CREATED: WallTime = WallTime(1_754_000_000_000_000);
const LOGGED: LogTime = LogTime(86_400_000_000);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format/v1")
}

/// Reads the fixtures' notation: hex with free spacing, `zeros N`, `# comment`.
fn parse(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap().trim()) {
        if let Some(count) = line.strip_prefix("zeros ") {
            bytes.resize(bytes.len() + count.parse::<usize>().unwrap(), 0);
            continue;
        }
        let digits: Vec<u8> = line.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        for pair in digits.chunks(2) {
            bytes.push(u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        }
    }
    bytes
}

/// Writes it: 16 bytes a line, long zeros counted.
fn print(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let zeros = bytes[at..].iter().take_while(|byte| **byte == 0).count();
        if zeros >= 32 {
            writeln!(text, "zeros {zeros}").unwrap();
            at += zeros;
            continue;
        }
        let line: Vec<String> = bytes[at..].iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", line.join(" ")).unwrap();
        at += line.len();
    }
    text
}

/// The fixture's bytes, once they are known to be what the encoder produced.
fn golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = folder().join(format!("{name}.hex"));
    let stored = std::fs::read_to_string(&path).map(|text| parse(&text)).unwrap_or_default();
    if stored != encoded {
        let left = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.hex"));
        std::fs::write(&left, print(encoded)).unwrap();
        panic!("{name}: encoded bytes differ from the fixture; what was encoded is in {}", left.display());
    }
    stored
}

fn file_header(kind: FileKind) -> FileHeader {
    FileHeader {
        kind,
        log: LOG,
        number: FileNumber(42),
        shard: 0,
        shards: 1,
        file_bytes: 64 << 20,
        max_frame_bytes: 8 << 20,
        pipeline_depth: 2,
        epoch: Epoch(3),
        after_seq: Seq(4_710),
    }
}

fn frame_header(kind: FrameKind, body: &[u8], records: u32, chain: u64) -> FrameHeader {
    let (seq, watermark) = match kind {
        FrameKind::Commit | FrameKind::Rewrite => (Seq(4_711), Seq(4_709)),
        FrameKind::Seal | FrameKind::Noop => (Seq(4_711), Seq(4_711)),
    };
    FrameHeader {
        kind,
        file: FileNumber(42),
        epoch: Epoch(3),
        seq,
        watermark,
        chain,
        body_bytes: u32::try_from(body.len()).unwrap(),
        records,
        mark: 0,
        body_hash: body_hash(LOG, FileNumber(42), seq, body),
        log_time: LOGGED,
    }
}

fn encode_header(header: &FrameHeader) -> [u8; FRAME_HEADER_BYTES] {
    let mut bytes = [0xee; FRAME_HEADER_BYTES];
    header.encode(&mut bytes);
    bytes
}

fn entry(transaction_id: &str, payload: &'static [u8]) -> Entry<'static> {
    Entry {
        id: MESSAGE,
        hash: id_hash(LOG, transaction_id),
        transaction_id: Cow::Owned(transaction_id.to_owned()),
        trace: None,
        producer: None,
        payload,
    }
}

fn options() -> QueueOptions {
    QueueOptions {
        lease_seconds: 1,
        retry_limit: 2,
        dead_letter_queue: true,
        dlq_after_max_retries: false,
        delayed_processing_seconds: 3,
        window_buffer_seconds: 4,
        dedup_window_seconds: 5,
        retention_enabled: true,
        retention_seconds: 6,
        completed_retention_seconds: 7,
        max_wait_seconds: 8,
        encryption_enabled: false,
        min_pop_wait_ms: 9,
        priority: -1,
        retry_delay_ms: 11,
        ttl_seconds: 12,
        max_size: -13,
        retention_sink_hold: "hold-1".to_owned(),
        retention_sink_hold_max_seconds: 10,
    }
}

fn cursor(cause: Cause, state: CursorState) -> Delta<'static> {
    Delta::Cursor(CursorDelta { partition: PartitionId(70_000), group: GroupId(300), cause, state })
}

/// A completed acknowledgement: position, nothing else but the lease it settled.
fn acked() -> Delta<'static> {
    cursor(Cause::Ack, CursorState { next: Offset(1_000_100), settled: Some(SETTLED), ..Default::default() })
}

/// A first claim of 100 messages by a group that settled a lease before.
fn claimed() -> Delta<'static> {
    let lease = Lease { id: LEASE, end: Offset(1_000_199), expires: LOGGED.plus_seconds(300) };
    cursor(
        Cause::Claim,
        CursorState {
            next: Offset(1_000_100),
            retries_used: 0,
            attempt_first: Offset(1_000_100),
            attempts: 1,
            lease: Some(lease),
            settled: Some(SETTLED),
        },
    )
}

/// One record of every kind and form, by the name of its fixture.
fn deltas() -> Vec<(&'static str, Delta<'static>)> {
    let partition = PartitionDef {
        partition: PartitionId(70_000),
        queue: QueueId(7),
        name: "eu-west",
        dead_letters_of: None,
        next: Offset(1_000_200),
        start: Offset(999),
        last_created: CREATED,
        last_logged: LOGGED,
        created: WallTime(CREATED.0 - 1_000_000),
    };
    let group = GroupDef {
        group: GroupId(300),
        queue: QueueId(7),
        name: "billing",
        start: StartPolicy::All,
        conflating: false,
        retired: false,
        created: CREATED,
    };
    vec![
        (
            "delta_queue",
            Delta::Queue(QueueDef {
                queue: QueueId(7),
                name: "orders",
                namespace: "shop",
                task: "größe",
                created: CREATED,
                options: options(),
            }),
        ),
        ("delta_queue_deleted", Delta::QueueDeleted(QueueId(7))),
        ("delta_partition", Delta::Partition(partition.clone())),
        (
            "delta_partition_internal",
            Delta::Partition(PartitionDef { name: "", dead_letters_of: Some(GroupId(300)), ..partition }),
        ),
        ("delta_group_all", Delta::Group(group.clone())),
        (
            "delta_group_from",
            Delta::Group(GroupDef { start: StartPolicy::From(CREATED), conflating: true, ..group }),
        ),
        ("delta_cursor_ack", acked()),
        ("delta_cursor_claim", claimed()),
        (
            "delta_cursor_nack",
            cursor(
                Cause::Nack,
                CursorState {
                    next: Offset(10),
                    retries_used: 2,
                    attempt_first: Offset(9),
                    attempts: 3,
                    lease: None,
                    settled: None,
                },
            ),
        ),
        (
            "delta_dead_letter",
            Delta::DeadLetter(DeadLetterDef {
                id: DeadLetterId(0x0198_8f03_0000_7000_8000_0000_0000_0009),
                partition: PartitionId(70_000),
                group: GroupId(300),
                offset: Offset(10),
                copy_partition: PartitionId(70_001),
                copy_offset: Offset(0),
                retries_used: 3,
                error: "Retries exhausted",
                created: CREATED,
                failed: WallTime(CREATED.0 + 5_000_000),
            }),
        ),
        (
            "delta_dead_letter_removed",
            Delta::DeadLetterRemoved(DeadLetterId(0x0198_8f03_0000_7000_8000_0000_0000_0009)),
        ),
        (
            "delta_next_ids",
            Delta::NextIds { queue: QueueId(8), partition: PartitionId(70_002), group: GroupId(301) },
        ),
    ]
}

/// Records that came after the first checkpoint fixture, which goes on being what it was.
fn later_deltas() -> Vec<(&'static str, Delta<'static>)> {
    vec![
        (
            "delta_partition_start",
            Delta::PartitionStart { partition: PartitionId(70_000), start: Offset(1_000_100) },
        ),
        ("delta_partition_deleted", Delta::PartitionDeleted(PartitionId(70_000))),
        ("delta_group_deleted", Delta::GroupDeleted(GroupId(300))),
        (
            "delta_group_retired",
            Delta::Group(GroupDef {
                group: GroupId(300),
                queue: QueueId(7),
                name: "billing",
                start: StartPolicy::All,
                conflating: false,
                retired: true,
                created: CREATED,
            }),
        ),
    ]
}

fn run_of(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut packed = Vec::new();
    for entry in entries {
        entry.encode(&mut packed);
    }
    let header = RunHeader {
        form: RunForm::Pushed,
        partition: PartitionId(70_000),
        base: Offset(1_000_200),
        count: u32::try_from(entries.len()).unwrap(),
        bytes: u32::try_from(packed.len()).unwrap(),
        created: CREATED,
        logged: LOGGED,
    };
    [&header.encode()[..], &packed].concat()
}

/// Appends a frame, padded to a block, and returns its header's bytes.
fn append_frame(file: &mut Vec<u8>, header: &FrameHeader, body: &[u8]) -> [u8; FRAME_HEADER_BYTES] {
    let bytes = encode_header(header);
    let end = file.len() + usize::try_from(header.frame_bytes()).unwrap();
    file.extend_from_slice(&bytes);
    file.extend_from_slice(body);
    file.resize(end, 0);
    bytes
}

#[test]
fn the_hash_functions_are_the_ones_named() {
    assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926, "CRC-32 as in IEEE 802.3");
    assert_eq!(xxhash_rust::xxh3::xxh3_64(b""), 0x2d06_8005_38d3_94c2, "XXH3, 64 bits");
    assert_eq!(xxhash_rust::xxh3::xxh3_128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f, "XXH3, 128 bits");
    assert_eq!(FORMAT_VERSION, 1);
    assert_eq!(BLOCK_BYTES, 4096);
}

#[test]
fn file_headers() {
    for (name, kind) in [
        ("segment_header", FileKind::Segment),
        ("cursor_header", FileKind::Cursor),
        ("checkpoint_header", FileKind::Checkpoint),
    ] {
        let bytes = golden(name, &file_header(kind).encode());
        assert_eq!(FileHeader::decode(&bytes, kind, FileNumber(42)), Ok(file_header(kind)));
        assert_eq!(FileHeader::decode_any(&bytes), Ok(file_header(kind)));
        assert_eq!(chain_after(&bytes), chain_after(&bytes[..FRAME_HEADER_BYTES]));
    }
}

#[test]
fn frame_headers() {
    for (name, kind) in [
        ("frame_header_commit", FrameKind::Commit),
        ("frame_header_seal", FrameKind::Seal),
        ("frame_header_noop", FrameKind::Noop),
        ("frame_header_rewrite", FrameKind::Rewrite),
    ] {
        let body = if kind == FrameKind::Noop { &b""[..] } else { b"body" };
        let header = frame_header(kind, body, 5, 0x0123_4567_89ab_cdef);
        let bytes = golden(name, &encode_header(&header));
        assert_eq!(FrameHeader::decode(&bytes, FileNumber(42)), Ok(header));
    }
}

#[test]
fn message_references_and_seal_bodies() {
    let reference =
        MessageRef { segment: FileNumber(42), position: 8192, body_bytes: 1234, body_hash: 0xfeed_beef };
    for (name, reference) in [("message_ref_none", None), ("message_ref_some", Some(reference))] {
        let mut out = Vec::new();
        MessageRef::encode_option(reference.as_ref(), &mut out);
        let bytes = golden(name, &out);
        let mut rest = &bytes[..];
        assert_eq!(MessageRef::decode_option(&mut rest), Ok(reference));
        assert!(rest.is_empty());
    }
    let seal = SealBody { frames: 17, last_seq: Seq(4_711), successor: FileNumber(43) };
    let mut out = Vec::new();
    seal.encode(&mut out);
    assert_eq!(SealBody::decode(&golden("seal_body", &out)), Ok(seal));
}

#[test]
fn deltas_of_every_kind() {
    for (name, delta) in deltas().into_iter().chain(later_deltas()) {
        let mut out = Vec::new();
        delta.encode(&mut out);
        let bytes = golden(name, &out);
        let mut rest = &bytes[..];
        assert_eq!(Delta::decode(&mut rest), Ok(delta), "{name}");
        assert!(rest.is_empty(), "{name}");
    }
}

#[test]
fn entries_of_every_form() {
    let own = MESSAGE.text();
    let mut full = entry("order-4711", b"{\"n\":1}");
    full.trace = Some(0x0198_8f04_0000_7000_8000_0000_0000_0001);
    full.producer = Some("größer@example");
    for (name, entry) in [
        ("entry_own_id", entry(&own, b"null")),
        ("entry_uuid", entry("0198aaaa-bbbb-7ccc-8ddd-eeeeffff0000", b"[1, 2]")),
        ("entry_upper_case_uuid", entry("0198AAAA-BBBB-7CCC-8DDD-EEEEFFFF0000", b"1.0")),
        ("entry_full", full),
    ] {
        let mut out = Vec::new();
        entry.encode(&mut out);
        let bytes = golden(name, &out);
        assert_eq!(bytes.len(), entry.encoded_bytes());
        assert_eq!(Entry::decode(&bytes), Ok((entry, bytes.len())), "{name}");
    }
}

#[test]
fn runs() {
    let entries = [entry("a", b"1"), entry("b", b"22")];
    let bytes = golden("run", &run_of(&entries));
    let items: Vec<_> = Runs::new(&bytes).collect::<Result<_, _>>().unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!((items[0].position, items[0].header.count, items[0].header.base.0), (0, 2, 1_000_200));
    assert_eq!(Entries::new(items[0].entries).collect::<Result<Vec<_>, _>>().unwrap(), entries);
}

#[test]
fn superblock_slots() {
    let superblock = Superblock {
        generation: 9,
        log: LOG,
        shard: 0,
        shards: 1,
        epoch: Epoch(3),
        checkpoint: Seq(4_000),
        previous_checkpoint: Seq(3_000),
        clean_seq: Seq(4_711),
    };
    let bytes = golden("superblock_slot", &superblock.encode());
    assert_eq!(Superblock::decode(&bytes), Ok(superblock));
}

#[test]
fn whole_checkpoint() {
    let info = CheckpointInfo {
        seq: Seq(4_711),
        until: Seq(4_720),
        log_time: LOGGED,
        last_stamp: CREATED,
        cursor_file: 7,
        records: u64::try_from(deltas().len()).unwrap(),
        segment: FileNumber(42),
        segment_position: 12_288,
    };
    let mut encoder = Encoder::new(LOG, Seq(4_711));
    for (_, delta) in deltas() {
        encoder.push(&delta);
    }
    let ending = encoder.finish(info, Epoch(3));
    let bytes = golden("checkpoint", &[ending.header, ending.bytes].concat());
    let read = |position: u64, length: usize| {
        let position = usize::try_from(position).unwrap();
        Ok::<_, DecodeError>(&bytes[position..position + length])
    };
    let mut decoder = Decoder::new(read, bytes.len() as u64, LOG, Seq(4_711)).unwrap();
    assert_eq!(decoder.info(), &info);
    assert_eq!(decoder.header().file_bytes, u64::try_from(bytes.len()).unwrap());
    let mut expected = deltas().into_iter().map(|(_, delta)| delta);
    let compare = |delta: &Delta<'_>| {
        assert_eq!(Some(delta), expected.next().as_ref());
        Ok(())
    };
    decoder.for_each(compare).unwrap();
    assert_eq!(expected.next(), None);
}

/// A segment of one commit and its seal, and the cursor file with the commit's other half and a noop.
#[test]
fn whole_files() {
    let entries = [entry("order-4711", b"{\"n\":1}"), entry("order-4712", b"{\"n\":2}")];
    let body = run_of(&entries);
    let mut segment = file_header(FileKind::Segment).encode();
    let commit = frame_header(FrameKind::Commit, &body, 1, chain_after(&segment));
    let written = append_frame(&mut segment, &commit, &body);
    let mut seal_body = Vec::new();
    SealBody { frames: 1, last_seq: Seq(4_711), successor: FileNumber(43) }.encode(&mut seal_body);
    let seal = frame_header(FrameKind::Seal, &seal_body, 1, chain_after(&written));
    append_frame(&mut segment, &seal, &seal_body);
    let segment = golden("segment", &segment);

    let reference = MessageRef {
        segment: FileNumber(42),
        position: 4096,
        body_bytes: commit.body_bytes,
        body_hash: commit.body_hash,
    };
    let mut cursor_body = Vec::new();
    MessageRef::encode_option(Some(&reference), &mut cursor_body);
    acked().encode(&mut cursor_body);
    claimed().encode(&mut cursor_body);
    let mut cursors = file_header(FileKind::Cursor).encode();
    let cursor_commit = frame_header(FrameKind::Commit, &cursor_body, 2, chain_after(&cursors));
    let written = append_frame(&mut cursors, &cursor_commit, &cursor_body);
    append_frame(&mut cursors, &frame_header(FrameKind::Noop, b"", 0, chain_after(&written)), b"");
    let cursors = golden("cursors", &cursors);

    // The way back, as a reader of the files goes.
    assert_eq!((segment.len(), cursors.len()), (3 * 4096, 3 * 4096));
    let header = FrameHeader::decode(&cursors[4096..], FileNumber(42)).unwrap();
    assert_eq!(header.chain, chain_after(&cursors[..4096]));
    let length = usize::try_from(header.body_bytes).unwrap();
    let mut body = &cursors[4096 + FRAME_HEADER_BYTES..][..length];
    assert_eq!(header.body_hash, body_hash(LOG, FileNumber(42), header.seq, body));
    let reference = MessageRef::decode_option(&mut body).unwrap().unwrap();
    assert_eq!(Deltas::new(body).collect::<Result<Vec<_>, _>>().unwrap(), [acked(), claimed()]);
    let frame = &segment[usize::try_from(reference.position).unwrap()..];
    let messages = FrameHeader::decode(frame, reference.segment).unwrap();
    assert_eq!((messages.seq, messages.body_hash), (header.seq, reference.body_hash));
    let body = &frame[FRAME_HEADER_BYTES..][..usize::try_from(reference.body_bytes).unwrap()];
    let run = Runs::new(body).next().unwrap().unwrap();
    assert_eq!(Entries::new(run.entries).collect::<Result<Vec<_>, _>>().unwrap(), entries);
    let noop = FrameHeader::decode(&cursors[8192..], FileNumber(42)).unwrap();
    assert_eq!((noop.kind, noop.watermark), (FrameKind::Noop, Seq(4_711)));
    assert_eq!(noop.chain, chain_after(&cursors[4096..]));
    let seal = FrameHeader::decode(&segment[8192..], FileNumber(42)).unwrap();
    let length = usize::try_from(seal.body_bytes).unwrap();
    let seal_body = SealBody::decode(&segment[8192 + FRAME_HEADER_BYTES..][..length]).unwrap();
    assert_eq!((seal.kind, seal_body.successor), (FrameKind::Seal, FileNumber(43)));
}

/// The rows of the page in which a section begins.
fn index_rows<R: index::Row>(file: &[u8], info: &IndexInfo, section: Section) -> Vec<R> {
    let page = info.first_page(section);
    let bytes = &file[(page as usize + 1) * BLOCK_BYTES..][..BLOCK_BYTES];
    let rows = index::open_page(info, page, bytes).unwrap();
    let mut cells = rows.chunks_exact(R::BYTES).take(R::PER_PAGE);
    let there: Vec<R> = cells.by_ref().map_while(|cell| R::decode(cell).unwrap()).collect();
    assert!(cells.all(|cell| R::decode(cell).unwrap().is_none()));
    there
}

/// The index of a segment: three runs of two partitions in commit order, the last one without payloads.
#[test]
fn segment_index() {
    let run = |partition, base, count, at: u64, bare| RunRow {
        partition: PartitionId(partition),
        base: Offset(base),
        count,
        bytes: 100 * count,
        created: WallTime(CREATED.0 + at),
        logged: LogTime(LOGGED.0 + at),
        position: 4096 * (1 + u32::try_from(at).unwrap()) + 128,
        first_id: 0,
        bare,
    };
    let hash = |text: &str| id_hash(LOG, text);
    let id = |number: u128| MessageId(MESSAGE.0 + number);
    let mut builder = index::Builder::new(LOG, FileNumber(42));
    builder.push_run(run(70_000, 1_000, 2, 0, false), &[(hash("a"), id(0)), (hash("b"), id(1))]);
    builder.push_run(run(7, 5, 1, 1, false), &[(hash("a"), id(2))]);
    builder.push_run(run(70_000, 1_002, 1, 2, true), &[(hash("c"), id(3))]);
    let mut file = Vec::new();
    let written = builder
        .finish(|page| {
            file.extend_from_slice(page);
            Ok::<(), ()>(())
        })
        .unwrap();
    let file = golden("index", &file);
    let info = IndexInfo::decode(&file, LOG, FileNumber(42), file.len() as u64).unwrap();
    assert_eq!(info, written);
    assert_eq!((info.runs, info.spans, info.messages, info.bare, info.entry_bytes), (3, 3, 4, 1, 300));
    assert_eq!(info.last_logged, LogTime(LOGGED.0 + 2));

    let with_id = |run: RunRow, first_id| RunRow { first_id, ..run };
    assert_eq!(
        index_rows::<RunRow>(&file, &info, Section::Runs),
        [
            with_id(run(7, 5, 1, 1, false), 2),
            with_id(run(70_000, 1_000, 2, 0, false), 0),
            with_id(run(70_000, 1_002, 1, 2, true), 3),
        ]
    );
    let mut spans = index_rows::<SpanRow>(&file, &info, Section::Spans);
    spans.sort_by_key(|span| (span.partition, span.base));
    let span = |partition, base, end, first_run, at, bare| SpanRow {
        partition: PartitionId(partition),
        base: Offset(base),
        end: Offset(end),
        first_run,
        runs: 1,
        first_created: WallTime(CREATED.0 + at),
        last_logged: LogTime(LOGGED.0 + at),
        bare,
    };
    assert_eq!(
        spans,
        [
            span(7, 5, 6, 0, 1, false),
            span(70_000, 1_000, 1_002, 1, 0, false),
            span(70_000, 1_002, 1_003, 2, 2, true),
        ]
    );
    let messages = index_rows::<index::IdRow>(&file, &info, Section::Messages);
    let row = |text, number, run| index::IdRow { hash: hash(text), id: id(number), run };
    assert_eq!(messages, [row("a", 0, 1), row("b", 1, 1), row("a", 2, 0), row("c", 3, 2)]);
    let keys: Vec<u64> = [(70_000, "a"), (70_000, "b"), (7, "a"), (70_000, "c")]
        .map(|(partition, text)| index::id_key(PartitionId(partition), hash(text)))
        .to_vec();
    let slots = index_rows::<index::SlotRow>(&file, &info, Section::Slots);
    let slot = |(message, key): (u32, &u64)| index::SlotRow { print: index::print_of(*key), message };
    assert_eq!(slots, (0..).zip(&keys).map(slot).collect::<Vec<_>>());
    let page = info.first_page(Section::Filter);
    let bits = index::open_page(&info, page, &file[(page as usize + 1) * BLOCK_BYTES..]).unwrap();
    let filter = index::Filter::from_bytes(bits[..index::FILTER_BLOCK_BYTES].to_vec()).unwrap();
    assert!(keys.iter().all(|key| filter.may_hold(*key)));
    assert!(!filter.may_hold(index::id_key(PartitionId(8), hash("a"))));
}

/// The sizes that `docs/FORMAT.md` states.
#[test]
fn stated_sizes() {
    let payload = &[b'7'; 256];
    let uuid = "0198aaaa-bbbb-7ccc-8ddd-eeeeffff0000";
    assert_eq!(entry(uuid, payload).encoded_bytes() - 256, 57);
    assert_eq!(entry(&MESSAGE.text(), payload).encoded_bytes() - 256, 41);
    assert_eq!(entry("order-4711", payload).encoded_bytes() - 256, 53);

    // 100 and 1000 such messages in a run of their own, alone in their frame.
    assert_eq!(RUN_HEADER_BYTES + 100 * (256 + 57), 31_348);
    assert_eq!(frame_bytes(31_348), 32_768);
    assert_eq!(RUN_HEADER_BYTES + 1_000 * (256 + 57), 313_048);
    assert_eq!(frame_bytes(313_048), 315_392);
    // A frame's own share at the edges of a block.
    assert_eq!((frame_bytes(0), frame_bytes(3_968), frame_bytes(3_969)), (4096, 4096, 8192));

    let size = |delta: &Delta<'_>| {
        let mut out = Vec::new();
        delta.encode(&mut out);
        out.len()
    };
    assert_eq!(size(&acked()), 27);
    assert_eq!(size(&claimed()), 53);
    let auto = cursor(Cause::AutoAck, CursorState { next: Offset(1_000_100), ..Default::default() });
    assert_eq!(size(&auto), 11);
    // Acknowledgements that fit one block beside header and message reference.
    assert_eq!((BLOCK_BYTES - FRAME_HEADER_BYTES - MessageRef::BYTES) / 27, 145);

    assert_eq!(id_hash(LOG, ""), IdHash(xxhash_rust::xxh3::xxh3_128_with_seed(b"", 0x8556_6778_899a_abbc)));
}

/// Every fixture of this version is used: none is left behind when a test goes.
#[test]
fn no_fixture_without_a_test() {
    let source = include_str!("format_golden.rs");
    for file in std::fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(source.contains(&format!("\"{name}\"")), "{name} is not read by any test");
    }
}
