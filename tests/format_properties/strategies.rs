//! Arbitrary values of everything on disk, and what can happen to their bytes.

use std::borrow::Cow;

use comb::format::checkpoint::CheckpointInfo;
use comb::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, GroupDef, Lease, PartitionDef, QueueDef,
    StartPolicy,
};
use comb::format::entry::{ENTRY_MIN_BYTES, Entry};
use comb::format::file_header::{FileHeader, FileKind};
use comb::format::frame::{FrameHeader, FrameKind, MessageRef};
use comb::format::id_hash;
use comb::format::run::{RunForm, RunHeader};
use comb::format::superblock::Superblock;
use comb::types::{
    DeadLetterId, Epoch, FileNumber, GroupId, LeaseId, LogId, LogTime, MessageId, Offset, PartitionId,
    QueueId, QueueOptions, Seq, WallTime,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Numbers of every length, and the edges.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift),
        Just(0_u64),
        Just(u64::MAX),
    ]
}

pub(crate) fn small() -> impl Strategy<Value = u32> {
    number().prop_map(|value| u32::try_from(value & 0xffff_ffff).unwrap())
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "\\PC{0,12}", 1 => "[a-z0-9:é]{100,300}"]
}

pub(crate) fn file_kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![Just(FileKind::Segment), Just(FileKind::Cursor), Just(FileKind::Checkpoint)]
}

prop_compose! {
    pub(crate) fn file_header()(
        kind in file_kind(), log in any::<u128>(), number_ in number(), shards in 1_u16.., shard in any::<u16>(),
        file_bytes in number(), max_frame_bytes in number(), pipeline_depth in small(), epoch in number(),
        after_seq in number(),
    ) -> FileHeader {
        FileHeader {
            kind, log: LogId(log), number: FileNumber(number_), shard: shard % shards, shards, file_bytes,
            max_frame_bytes, pipeline_depth, epoch: Epoch(epoch), after_seq: Seq(after_seq),
        }
    }
}

prop_compose! {
    pub(crate) fn frame_header()(
        kind in prop_oneof![
            Just(FrameKind::Commit), Just(FrameKind::Seal), Just(FrameKind::Noop), Just(FrameKind::Rewrite)
        ],
        file in number(), epoch in number(), pair in (number(), number()), chain in any::<u64>(),
        body_bytes in small(), records in small(), mark in any::<u32>(), body_hash in any::<u64>(),
        log_time in number(),
    ) -> FrameHeader {
        let (low, high) = (pair.0.min(pair.1), pair.0.max(pair.1));
        let (watermark, seq) = if low == high { (0, high.max(1)) } else { (low, high) };
        let body_bytes = if kind == FrameKind::Noop { 0 } else { body_bytes };
        FrameHeader {
            kind, file: FileNumber(file), epoch: Epoch(epoch), seq: Seq(seq), watermark: Seq(watermark), chain,
            body_bytes, records, mark, body_hash, log_time: LogTime(log_time),
        }
    }
}

prop_compose! {
    pub(crate) fn message_ref()(segment in number(), block in 1_u64..1 << 50, body_bytes in small(), body_hash in any::<u64>())
    -> MessageRef {
        MessageRef { segment: FileNumber(segment), position: block * 4096, body_bytes, body_hash }
    }
}

prop_compose! {
    pub(crate) fn run_header()(
        partition in number(), base in 0..u64::MAX / 2, count in 1_u32..1 << 20, extra in 0_u32..1 << 30,
        created in number(), logged in number(),
    ) -> RunHeader {
        RunHeader {
            form: RunForm::Pushed,
            partition: PartitionId(partition), base: Offset(base), count,
            bytes: count * u32::try_from(ENTRY_MIN_BYTES).unwrap() + extra,
            created: WallTime(created), logged: LogTime(logged),
        }
    }
}

prop_compose! {
    pub(crate) fn superblock()(
        generation in number(), log in any::<u128>(), shards in 1_u16.., shard in any::<u16>(), epoch in number(),
        pair in (number(), number()), clean_seq in number(),
    ) -> Superblock {
        Superblock {
            generation, log: LogId(log), shard: shard % shards, shards, epoch: Epoch(epoch),
            checkpoint: Seq(pair.0.max(pair.1)), previous_checkpoint: Seq(pair.0.min(pair.1)),
            clean_seq: Seq(clean_seq),
        }
    }
}

/// An entry that owns its parts.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    id: MessageId,
    transaction_id: String,
    trace: Option<u128>,
    producer: Option<String>,
    payload: Vec<u8>,
}

impl Message {
    pub(crate) fn entry(&self) -> Entry<'_> {
        Entry {
            id: self.id,
            hash: id_hash(LogId(7), &self.transaction_id),
            transaction_id: Cow::Borrowed(&self.transaction_id),
            trace: self.trace,
            producer: self.producer.as_deref(),
            payload: &self.payload,
        }
    }
}

prop_compose! {
    pub(crate) fn message()(
        id in any::<u128>(), form in 0..5, other in any::<u128>(), words in text(), trace in any::<Option<u128>>(),
        producer in proptest::option::of(text()), payload in vec(any::<u8>(), 0..200),
    ) -> Message {
        let transaction_id = match form {
            0 => MessageId(id).text(),
            1 => MessageId(other).text(),
            2 => MessageId(other).text().to_uppercase(),
            3 => MessageId(other).text().replace('-', ""),
            _ => words,
        };
        Message { id: MessageId(id), transaction_id, trace, producer, payload }
    }
}

pub(crate) fn encode_entries(messages: &[Message]) -> Vec<u8> {
    let mut out = Vec::new();
    for message in messages {
        message.entry().encode(&mut out);
    }
    out
}

prop_compose! {
    pub(crate) fn options()(
        u in vec(small(), 10), i in vec(any::<i64>(), 4), b in any::<[bool; 4]>(), hold in text(),
    ) -> QueueOptions {
        QueueOptions {
            lease_seconds: u[0], retry_limit: u[1], dead_letter_queue: b[0], dlq_after_max_retries: b[1],
            delayed_processing_seconds: u[2], window_buffer_seconds: u[3], dedup_window_seconds: u[4],
            retention_enabled: b[2], retention_seconds: u[5], completed_retention_seconds: u[6],
            max_wait_seconds: u[7], encryption_enabled: b[3], min_pop_wait_ms: u[8], priority: i[0],
            retry_delay_ms: i[1], ttl_seconds: i[2], max_size: i[3], retention_sink_hold: hold,
            retention_sink_hold_max_seconds: u[9],
        }
    }
}

prop_compose! {
    pub(crate) fn cursor()(
        partition in number(), group in number(), cause in 0_usize..8, next in number(), retries_used in small(),
        attempt_first in number(), attempts in small(),
        lease in proptest::option::of((any::<u128>(), number(), number())), settled in any::<Option<u128>>(),
    ) -> CursorDelta {
        const CAUSES: [Cause; 9] = [
            Cause::Checkpoint, Cause::Claim, Cause::AutoAck, Cause::Ack, Cause::Nack, Cause::Extend, Cause::Return,
            Cause::Seek, Cause::Forget,
        ];
        CursorDelta {
            partition: PartitionId(partition), group: GroupId(group), cause: CAUSES[cause],
            state: CursorState {
                next: Offset(next), retries_used, attempt_first: Offset(attempt_first), attempts,
                lease: lease.map(|(id, end, expires)| {
                    Lease { id: LeaseId(id), end: Offset(end), expires: LogTime(expires) }
                }),
                settled: settled.map(LeaseId),
            },
        }
    }
}

/// What a delta of any kind is made of; `delta` borrows from it.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    kind: u8,
    n: Vec<u64>,
    small: u32,
    id: u128,
    flag: (bool, bool),
    texts: [String; 3],
    options: QueueOptions,
    cursor: CursorDelta,
}

impl Parts {
    pub(crate) fn delta(&self) -> Delta<'_> {
        let n = &self.n;
        match self.kind {
            0 => Delta::Queue(QueueDef {
                queue: QueueId(n[0]),
                name: &self.texts[0],
                namespace: &self.texts[1],
                task: &self.texts[2],
                created: WallTime(n[1]),
                options: self.options.clone(),
            }),
            1 => Delta::QueueDeleted(QueueId(n[0])),
            2 => Delta::Partition(PartitionDef {
                partition: PartitionId(n[0]),
                queue: QueueId(n[1]),
                name: &self.texts[0],
                dead_letters_of: self.flag.0.then_some(GroupId(n[2])),
                next: Offset(n[3]),
                start: Offset(n[4]),
                last_created: WallTime(n[5]),
                last_logged: LogTime(n[6]),
                created: WallTime(n[7]),
            }),
            3 => Delta::Group(GroupDef {
                group: GroupId(n[0]),
                queue: QueueId(n[1]),
                name: &self.texts[0],
                start: if self.flag.0 { StartPolicy::All } else { StartPolicy::From(WallTime(n[2])) },
                conflating: self.flag.1,
                retired: self.flag.0,
                created: WallTime(n[3]),
            }),
            4 => Delta::DeadLetter(DeadLetterDef {
                id: DeadLetterId(self.id),
                partition: PartitionId(n[0]),
                group: GroupId(n[1]),
                offset: Offset(n[2]),
                copy_partition: PartitionId(n[3]),
                copy_offset: Offset(n[4]),
                retries_used: self.small,
                error: &self.texts[0],
                created: WallTime(n[5]),
                failed: WallTime(n[6]),
            }),
            5 => Delta::DeadLetterRemoved(DeadLetterId(self.id)),
            6 => Delta::NextIds { queue: QueueId(n[0]), partition: PartitionId(n[1]), group: GroupId(n[2]) },
            7 => Delta::PartitionStart { partition: PartitionId(n[0]), start: Offset(n[1]) },
            8 => Delta::PartitionDeleted(PartitionId(n[0])),
            9 => Delta::GroupDeleted(GroupId(n[0])),
            _ => Delta::Cursor(self.cursor),
        }
    }
}

prop_compose! {
    pub(crate) fn parts()(
        kind in 0_u8..12, n in vec(number(), 8), small in small(), id in any::<u128>(), flag in any::<(bool, bool)>(),
        texts in [text(), text(), text()], options in options(), cursor in cursor(),
    ) -> Parts {
        Parts { kind, n, small, id, flag, texts, options, cursor }
    }
}

pub(crate) fn encode_deltas(list: &[Parts]) -> Vec<u8> {
    let mut out = Vec::new();
    for parts in list {
        parts.delta().encode(&mut out);
    }
    out
}

prop_compose! {
    pub(crate) fn info()(n in vec(number(), 8)) -> CheckpointInfo {
        CheckpointInfo {
            seq: Seq(n[0]), log_time: LogTime(n[1]), last_stamp: WallTime(n[2]), cursor_file: n[3], records: n[4],
            segment: FileNumber(n[5]), segment_position: n[6], until: Seq(n[7].max(9)),
        }
    }
}

/// What can happen to bytes.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    Flip { at: usize, bit: u8 },
    Truncate { to: usize },
    Extend { with: Vec<u8> },
    Splice { from: usize, to: usize, bytes: usize },
    Zero { from: usize, bytes: usize },
}

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        3 => (any::<usize>(), 0_u8..8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        1 => any::<usize>().prop_map(|to| Damage::Truncate { to }),
        1 => vec(any::<u8>(), 1..100).prop_map(|with| Damage::Extend { with }),
        1 => (any::<usize>(), any::<usize>(), 1_usize..64)
            .prop_map(|(from, to, bytes)| Damage::Splice { from, to, bytes }),
        1 => (any::<usize>(), 1_usize..64).prop_map(|(from, bytes)| Damage::Zero { from, bytes }),
    ]
}

pub(crate) fn apply(damage: &Damage, bytes: &mut Vec<u8>) {
    let len = bytes.len().max(1);
    if bytes.is_empty() {
        return;
    }
    match damage {
        Damage::Flip { at, bit } => bytes[at % len] ^= 1 << bit,
        Damage::Truncate { to } => bytes.truncate(to % len),
        Damage::Extend { with } => bytes.extend_from_slice(with),
        Damage::Splice { from, to, bytes: count } => {
            let (from, to) = (from % len, to % len);
            let count = (*count).min(len - from).min(len - to);
            bytes.copy_within(from..from + count, to);
        }
        Damage::Zero { from, bytes: count } => {
            let from = from % len;
            let end = (from + count).min(len);
            bytes[from..end].fill(0);
        }
    }
}
