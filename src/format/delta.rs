//! Deltas: what a cursor frame says happened, one record each, absolute and idempotent.
//!
//! A checkpoint is a list of the same records: applied to an empty state they rebuild it.

use super::wire::{Reader, VARINT_MAX_BYTES, put_varint, put_varint_text, unzigzag, zigzag};
use super::{DecodeError, options};
use crate::types::{
    DeadLetterId, FileNumber, GroupId, LeaseId, LogTime, Offset, PartitionId, QueueId, QueueOptions, WallTime,
};

/// A queue, as it is from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDef<'a> {
    /// Identity.
    pub queue: QueueId,
    /// Name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Task.
    pub task: &'a str,
    /// When it was created.
    pub created: WallTime,
    /// Every option.
    pub options: QueueOptions,
}

/// A partition. Fresh ones start at offset 0; a checkpoint carries where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDef<'a> {
    /// Identity.
    pub partition: PartitionId,
    /// Its queue.
    pub queue: QueueId,
    /// Name; empty for an internal partition.
    pub name: &'a str,
    /// Set: this is the internal partition of that group's dead-letter copies.
    pub dead_letters_of: Option<GroupId>,
    /// Offset of the next message.
    pub next: Offset,
    /// First offset that is kept.
    pub start: Offset,
    /// Wall time of the newest append.
    pub last_created: WallTime,
    /// Log time of the newest append.
    pub last_logged: LogTime,
    /// When it was created.
    pub created: WallTime,
}

/// Where a group begins in a partition that it has not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPolicy {
    /// From the first kept message.
    All,
    /// From the first message whose creation time is not before this.
    From(WallTime),
}

/// A consumer group of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDef<'a> {
    /// Identity.
    pub group: GroupId,
    /// Its queue.
    pub queue: QueueId,
    /// Name.
    pub name: &'a str,
    /// Where it begins.
    pub start: StartPolicy,
    /// Last-value delivery.
    pub conflating: bool,
    /// It was deleted and nobody pops with it any more; it is known for as long as it has dead letters.
    pub retired: bool,
    /// When it was registered.
    pub created: WallTime,
}

/// Why a cursor record was written; for people and tools, never for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// From a checkpoint.
    Checkpoint,
    /// A pop took a lease.
    Claim,
    /// A pop committed at delivery.
    AutoAck,
    /// An acknowledgement moved or released it.
    Ack,
    /// An explicit failure.
    Nack,
    /// A lease was extended.
    Extend,
    /// A claim that nobody received was handed back.
    Return,
    /// A seek.
    Seek,
    /// What it remembered of a settled batch is not asked for any more.
    Forget,
}

/// A lease on a span of one partition for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id, shared by every partition of one pop.
    pub id: LeaseId,
    /// Inclusive end of the span; the span starts at the cursor's `next`.
    pub end: Offset,
    /// When it ends, in log time.
    pub expires: LogTime,
}

/// Everything kept about one (partition, group).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CursorState {
    /// Next offset the group wants: the last acknowledged one plus 1.
    pub next: Offset,
    /// Retry budget used.
    pub retries_used: u32,
    /// First offset of the previous claim; meaningful while `attempts` > 0.
    pub attempt_first: Offset,
    /// Deliveries that began at `attempt_first`; 0 after a completed batch.
    pub attempts: u32,
    /// The lease, live or expired.
    pub lease: Option<Lease>,
    /// The lease whose batch was completed last, so that a repeated ack of it is answered with success.
    pub settled: Option<LeaseId>,
}

/// A cursor, as it is from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorDelta {
    /// The partition.
    pub partition: PartitionId,
    /// The group.
    pub group: GroupId,
    /// Why.
    pub cause: Cause,
    /// The state from now on.
    pub state: CursorState,
}

/// A dead letter. Its payload is a copy in the log, in an internal partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterDef<'a> {
    /// Identity.
    pub id: DeadLetterId,
    /// Where the message was.
    pub partition: PartitionId,
    /// The group that gave it up.
    pub group: GroupId,
    /// The message's offset.
    pub offset: Offset,
    /// The internal partition with the copy.
    pub copy_partition: PartitionId,
    /// The copy's offset there.
    pub copy_offset: Offset,
    /// Retry budget used at that moment.
    pub retries_used: u32,
    /// Why, at most 8 KiB.
    pub error: &'a str,
    /// When the message was created.
    pub created: WallTime,
    /// When it was dead-lettered.
    pub failed: WallTime,
}

/// One record of a cursor frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// A queue was created or reconfigured.
    Queue(QueueDef<'a>),
    /// A queue is gone with all its partitions, groups, cursors and dead letters.
    QueueDeleted(QueueId),
    /// A partition was created.
    Partition(PartitionDef<'a>),
    /// A group was registered.
    Group(GroupDef<'a>),
    /// A cursor changed.
    Cursor(CursorDelta),
    /// A message was dead-lettered.
    DeadLetter(DeadLetterDef<'a>),
    /// A dead letter is gone.
    DeadLetterRemoved(DeadLetterId),
    /// The next ids to hand out (queue, partition, group), so that ids of deleted ones are never reused.
    NextIds {
        /// Next queue id.
        queue: QueueId,
        /// Next partition id.
        partition: PartitionId,
        /// Next group id.
        group: GroupId,
    },
    /// Segments that hold nothing that counts any more: their files may be gone. From the first to the last.
    SegmentsDropped {
        /// First of them.
        first: FileNumber,
        /// Last of them.
        last: FileNumber,
    },
    /// Messages of a partition below an offset are gone.
    PartitionStart {
        /// The partition.
        partition: PartitionId,
        /// First offset that is kept from now on.
        start: Offset,
    },
    /// A partition is gone with its cursors. A later one of its name is another.
    PartitionDeleted(PartitionId),
    /// A group is gone with its cursors; it has no dead letters. A later one of its name is another.
    GroupDeleted(GroupId),
}

/// Kinds of records.
mod kind {
    pub(super) const QUEUE: u8 = 1;
    pub(super) const QUEUE_DELETED: u8 = 2;
    pub(super) const PARTITION: u8 = 3;
    pub(super) const GROUP: u8 = 4;
    pub(super) const CURSOR: u8 = 5;
    pub(super) const DEAD_LETTER: u8 = 6;
    pub(super) const DEAD_LETTER_REMOVED: u8 = 7;
    pub(super) const NEXT_IDS: u8 = 8;
    pub(super) const PARTITION_START: u8 = 36;
    pub(super) const SEGMENTS_DROPPED: u8 = 37;
    pub(super) const PARTITION_DELETED: u8 = 39;
    pub(super) const GROUP_DELETED: u8 = 40;

    /// Whether a record of this kind is understood.
    pub(super) fn is_known(kind: u8) -> bool {
        matches!(
            kind,
            QUEUE..=NEXT_IDS | PARTITION_START | SEGMENTS_DROPPED | PARTITION_DELETED | GROUP_DELETED
        )
    }
}

/// Kinds that are set aside for records of later versions, by name. A record of such a kind is an error that names
/// it; it is never skipped.
pub const RESERVED_KINDS: [(u8, &str); 5] = [
    (32, "kind, reserved for the ledger,"),
    (33, "kind, reserved for state,"),
    (34, "kind, reserved for timers,"),
    (35, "kind, reserved for id hashes of removed messages,"),
    (38, "kind, reserved for a seek or policy of a whole group,"),
];

const WHAT: &str = "delta";

impl Cause {
    fn code(self) -> u8 {
        match self {
            Cause::Checkpoint => 0,
            Cause::Claim => 1,
            Cause::AutoAck => 2,
            Cause::Ack => 3,
            Cause::Nack => 4,
            Cause::Extend => 5,
            Cause::Return => 6,
            Cause::Seek => 7,
            Cause::Forget => 8,
        }
    }

    fn from_code(code: u8) -> Option<Cause> {
        Some(match code {
            0 => Cause::Checkpoint,
            1 => Cause::Claim,
            2 => Cause::AutoAck,
            3 => Cause::Ack,
            4 => Cause::Nack,
            5 => Cause::Extend,
            6 => Cause::Return,
            7 => Cause::Seek,
            8 => Cause::Forget,
            _ => return None,
        })
    }
}

impl<'a> Delta<'a> {
    fn kind(&self) -> u8 {
        match self {
            Delta::Queue(_) => kind::QUEUE,
            Delta::QueueDeleted(_) => kind::QUEUE_DELETED,
            Delta::Partition(_) => kind::PARTITION,
            Delta::Group(_) => kind::GROUP,
            Delta::Cursor(_) => kind::CURSOR,
            Delta::DeadLetter(_) => kind::DEAD_LETTER,
            Delta::DeadLetterRemoved(_) => kind::DEAD_LETTER_REMOVED,
            Delta::NextIds { .. } => kind::NEXT_IDS,
            Delta::SegmentsDropped { .. } => kind::SEGMENTS_DROPPED,
            Delta::PartitionStart { .. } => kind::PARTITION_START,
            Delta::PartitionDeleted(_) => kind::PARTITION_DELETED,
            Delta::GroupDeleted(_) => kind::GROUP_DELETED,
        }
    }

    /// Appends the record: kind, varint length of the rest, fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        let length_at = out.len();
        // Nearly every record is shorter than 128 bytes, so that its length takes the one byte left here.
        out.push(0);
        let start = out.len();
        self.encode_fields(out);
        let length = out.len() - start;
        match (u8::try_from(length), out.get_mut(length_at)) {
            (Ok(short @ 0..=0x7f), Some(cell)) => *cell = short,
            _ => {
                let mut spelled = Vec::with_capacity(VARINT_MAX_BYTES);
                put_varint(&mut spelled, length as u64);
                out.splice(length_at..start, spelled);
            }
        }
    }

    fn encode_fields(&self, out: &mut Vec<u8>) {
        match self {
            Delta::Queue(def) => {
                put_varint(out, def.queue.0);
                put_varint(out, def.created.0);
                put_varint_text(out, def.name);
                put_varint_text(out, def.namespace);
                put_varint_text(out, def.task);
                options::encode(&def.options, out);
            }
            Delta::QueueDeleted(queue) => put_varint(out, queue.0),
            Delta::Partition(def) => {
                out.push(u8::from(def.dead_letters_of.is_some()));
                put_varint(out, def.partition.0);
                put_varint(out, def.queue.0);
                if let Some(group) = def.dead_letters_of {
                    put_varint(out, group.0);
                }
                put_varint(out, def.next.0);
                put_varint(out, def.start.0);
                put_varint(out, def.last_created.0);
                put_varint(out, def.last_logged.0);
                put_varint(out, def.created.0);
                put_varint_text(out, def.name);
            }
            Delta::Group(def) => {
                let from = match def.start {
                    StartPolicy::All => None,
                    StartPolicy::From(time) => Some(time),
                };
                let flags = u8::from(from.is_some()) * GROUP_FROM
                    + u8::from(def.conflating) * GROUP_CONFLATING
                    + u8::from(def.retired) * GROUP_RETIRED;
                out.push(flags);
                put_varint(out, def.group.0);
                put_varint(out, def.queue.0);
                put_varint(out, def.created.0);
                if let Some(time) = from {
                    put_varint(out, time.0);
                }
                put_varint_text(out, def.name);
            }
            Delta::Cursor(delta) => encode_cursor(delta, out),
            Delta::DeadLetter(def) => {
                out.extend_from_slice(&def.id.0.to_le_bytes());
                put_varint(out, def.partition.0);
                put_varint(out, def.group.0);
                put_varint(out, def.offset.0);
                put_varint(out, def.copy_partition.0);
                put_varint(out, def.copy_offset.0);
                put_varint(out, u64::from(def.retries_used));
                put_varint(out, def.created.0);
                put_varint(out, def.failed.0);
                put_varint_text(out, def.error);
            }
            Delta::DeadLetterRemoved(id) => out.extend_from_slice(&id.0.to_le_bytes()),
            Delta::NextIds { queue, partition, group } => {
                put_varint(out, queue.0);
                put_varint(out, partition.0);
                put_varint(out, group.0);
            }
            Delta::SegmentsDropped { first, last } => {
                put_varint(out, first.0);
                put_varint(out, last.0);
            }
            Delta::PartitionStart { partition, start } => {
                put_varint(out, partition.0);
                put_varint(out, start.0);
            }
            Delta::PartitionDeleted(partition) => put_varint(out, partition.0),
            Delta::GroupDeleted(group) => put_varint(out, group.0),
        }
    }

    /// Reads one record and moves `bytes` behind it.
    ///
    /// # Errors
    /// When bytes are missing or left over inside the record, its kind is unknown or reserved, or a field holds what
    /// no writer writes. `bytes` is then left alone.
    pub fn decode(bytes: &mut &'a [u8]) -> Result<Delta<'a>, DecodeError> {
        let mut reader = Reader::new(WHAT, bytes);
        let (kind, body) = take_record(&mut reader)?;
        let delta = match kind {
            kind::QUEUE => decode_queue(body)?,
            kind::QUEUE_DELETED => {
                let mut reader = Reader::new("queue deletion", body);
                let queue = QueueId(reader.varint()?);
                reader.end()?;
                Delta::QueueDeleted(queue)
            }
            kind::PARTITION => decode_partition(body)?,
            kind::GROUP => decode_group(body)?,
            kind::CURSOR => Delta::Cursor(decode_cursor(body)?),
            kind::DEAD_LETTER => decode_dead_letter(body)?,
            kind::DEAD_LETTER_REMOVED => {
                let mut reader = Reader::new("dead letter removal", body);
                let id = DeadLetterId(reader.u128()?);
                reader.end()?;
                Delta::DeadLetterRemoved(id)
            }
            kind::NEXT_IDS => {
                let mut reader = Reader::new("next ids", body);
                let delta = Delta::NextIds {
                    queue: QueueId(reader.varint()?),
                    partition: PartitionId(reader.varint()?),
                    group: GroupId(reader.varint()?),
                };
                reader.end()?;
                delta
            }
            kind::SEGMENTS_DROPPED => {
                let mut reader = Reader::new("dropped segments", body);
                let (first, last) = (FileNumber(reader.varint()?), FileNumber(reader.varint()?));
                if first == FileNumber(0) || last < first {
                    return Err(reader.field("last", last.0));
                }
                reader.end()?;
                Delta::SegmentsDropped { first, last }
            }
            kind::PARTITION_START => {
                let mut reader = Reader::new("partition start", body);
                let partition = PartitionId(reader.varint()?);
                let start = Offset(reader.varint()?);
                reader.end()?;
                Delta::PartitionStart { partition, start }
            }
            kind::PARTITION_DELETED => {
                let mut reader = Reader::new("partition deletion", body);
                let partition = PartitionId(reader.varint()?);
                reader.end()?;
                Delta::PartitionDeleted(partition)
            }
            kind::GROUP_DELETED => {
                let mut reader = Reader::new("group deletion", body);
                let group = GroupId(reader.varint()?);
                reader.end()?;
                Delta::GroupDeleted(group)
            }
            other => return Err(unknown_kind(other)),
        };
        *bytes = reader.rest();
        Ok(delta)
    }
}

/// Kind and fields of the next record.
fn take_record<'a>(reader: &mut Reader<'a>) -> Result<(u8, &'a [u8]), DecodeError> {
    let kind = reader.u8()?;
    if !kind::is_known(kind) {
        // Before the length: of a kind that is not known, not even the length is believed.
        return Err(unknown_kind(kind));
    }
    let length = reader.varint_len()?;
    Ok((kind, reader.bytes(length)?))
}

fn unknown_kind(kind: u8) -> DecodeError {
    let reserved = RESERVED_KINDS.iter().find(|(reserved, _)| *reserved == kind);
    DecodeError::Field { what: WHAT, field: reserved.map_or("kind", |(_, name)| name), got: u64::from(kind) }
}

/// Start policy `From`.
const GROUP_FROM: u8 = 1;
/// Last-value delivery.
const GROUP_CONFLATING: u8 = 2;
/// Deleted, and known because of its dead letters only.
const GROUP_RETIRED: u8 = 4;

/// The low four bits of a cursor record's first byte are its cause.
const CURSOR_CAUSE: u8 = 0b0000_1111;
const CURSOR_RETRIES: u8 = 0b0001_0000;
const CURSOR_ATTEMPTS: u8 = 0b0010_0000;
const CURSOR_LEASE: u8 = 0b0100_0000;
const CURSOR_SETTLED: u8 = 0b1000_0000;

fn encode_cursor(delta: &CursorDelta, out: &mut Vec<u8>) {
    let CursorDelta { partition, group, cause, state } = delta;
    let attempted = state.attempts != 0 || state.attempt_first != Offset(0);
    let mut flags = cause.code();
    for (present, flag) in [
        (state.retries_used != 0, CURSOR_RETRIES),
        (attempted, CURSOR_ATTEMPTS),
        (state.lease.is_some(), CURSOR_LEASE),
        (state.settled.is_some(), CURSOR_SETTLED),
    ] {
        if present {
            flags |= flag;
        }
    }
    out.push(flags);
    put_varint(out, partition.0);
    put_varint(out, group.0);
    put_varint(out, state.next.0);
    if state.retries_used != 0 {
        put_varint(out, u64::from(state.retries_used));
    }
    if attempted {
        put_varint(out, u64::from(state.attempts));
        put_varint(out, zigzag(state.next.0, state.attempt_first.0));
    }
    if let Some(lease) = &state.lease {
        out.extend_from_slice(&lease.id.0.to_le_bytes());
        put_varint(out, zigzag(state.next.0, lease.end.0));
        put_varint(out, lease.expires.0);
    }
    if let Some(settled) = state.settled {
        out.extend_from_slice(&settled.0.to_le_bytes());
    }
}

fn decode_cursor(body: &[u8]) -> Result<CursorDelta, DecodeError> {
    let mut reader = Reader::new("cursor delta", body);
    let flags = reader.u8()?;
    let code = flags & CURSOR_CAUSE;
    let cause = Cause::from_code(code).ok_or_else(|| reader.field("cause", u64::from(code)))?;
    let partition = PartitionId(reader.varint()?);
    let group = GroupId(reader.varint()?);
    let mut state = CursorState { next: Offset(reader.varint()?), ..CursorState::default() };
    if flags & CURSOR_RETRIES != 0 {
        state.retries_used = reader.varint32("retries used")?;
        if state.retries_used == 0 {
            return Err(reader.field("retries used", 0));
        }
    }
    if flags & CURSOR_ATTEMPTS != 0 {
        state.attempts = reader.varint32("attempts")?;
        state.attempt_first = Offset(unzigzag(state.next.0, reader.varint()?));
        if state.attempts == 0 && state.attempt_first == Offset(0) {
            return Err(reader.field("attempts", 0));
        }
    }
    if flags & CURSOR_LEASE != 0 {
        state.lease = Some(Lease {
            id: LeaseId(reader.u128()?),
            end: Offset(unzigzag(state.next.0, reader.varint()?)),
            expires: LogTime(reader.varint()?),
        });
    }
    if flags & CURSOR_SETTLED != 0 {
        state.settled = Some(LeaseId(reader.u128()?));
    }
    reader.end()?;
    Ok(CursorDelta { partition, group, cause, state })
}

fn decode_queue(body: &[u8]) -> Result<Delta<'_>, DecodeError> {
    let mut reader = Reader::new("queue definition", body);
    let def = QueueDef {
        queue: QueueId(reader.varint()?),
        created: WallTime(reader.varint()?),
        name: reader.varint_text("name")?,
        namespace: reader.varint_text("namespace")?,
        task: reader.varint_text("task")?,
        options: options::decode(&mut reader)?,
    };
    reader.end()?;
    Ok(Delta::Queue(def))
}

fn decode_partition(body: &[u8]) -> Result<Delta<'_>, DecodeError> {
    let mut reader = Reader::new("partition definition", body);
    let flags = reader.u8()?;
    if flags > 1 {
        return Err(reader.field("flags", u64::from(flags)));
    }
    let def = PartitionDef {
        partition: PartitionId(reader.varint()?),
        queue: QueueId(reader.varint()?),
        dead_letters_of: if flags == 1 { Some(GroupId(reader.varint()?)) } else { None },
        next: Offset(reader.varint()?),
        start: Offset(reader.varint()?),
        last_created: WallTime(reader.varint()?),
        last_logged: LogTime(reader.varint()?),
        created: WallTime(reader.varint()?),
        name: reader.varint_text("name")?,
    };
    reader.end()?;
    Ok(Delta::Partition(def))
}

fn decode_group(body: &[u8]) -> Result<Delta<'_>, DecodeError> {
    let mut reader = Reader::new("group definition", body);
    let flags = reader.u8()?;
    if flags > GROUP_FROM | GROUP_CONFLATING | GROUP_RETIRED {
        return Err(reader.field("flags", u64::from(flags)));
    }
    let def = GroupDef {
        group: GroupId(reader.varint()?),
        queue: QueueId(reader.varint()?),
        created: WallTime(reader.varint()?),
        start: if flags & GROUP_FROM == 0 {
            StartPolicy::All
        } else {
            StartPolicy::From(WallTime(reader.varint()?))
        },
        conflating: flags & GROUP_CONFLATING != 0,
        retired: flags & GROUP_RETIRED != 0,
        name: reader.varint_text("name")?,
    };
    reader.end()?;
    Ok(Delta::Group(def))
}

fn decode_dead_letter(body: &[u8]) -> Result<Delta<'_>, DecodeError> {
    let mut reader = Reader::new("dead letter", body);
    let def = DeadLetterDef {
        id: DeadLetterId(reader.u128()?),
        partition: PartitionId(reader.varint()?),
        group: GroupId(reader.varint()?),
        offset: Offset(reader.varint()?),
        copy_partition: PartitionId(reader.varint()?),
        copy_offset: Offset(reader.varint()?),
        retries_used: reader.varint32("retries used")?,
        created: WallTime(reader.varint()?),
        failed: WallTime(reader.varint()?),
        error: reader.varint_text("error")?,
    };
    reader.end()?;
    Ok(Delta::DeadLetter(def))
}

/// The records of a cursor frame's body behind its message reference, or of a checkpoint's chunk, in order. Ends
/// after the first error: nothing behind a record that is not understood is believed.
///
/// How many there should be is in the frame's header; the caller compares.
#[derive(Clone, Debug)]
pub struct Deltas<'a> {
    rest: &'a [u8],
}

impl<'a> Deltas<'a> {
    /// Walks encoded records.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Deltas<'a> {
        Deltas { rest: bytes }
    }
}

impl<'a> Iterator for Deltas<'a> {
    type Item = Result<Delta<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let delta = Delta::decode(&mut self.rest);
        if delta.is_err() {
            self.rest = &[];
        }
        Some(delta)
    }
}

impl std::iter::FusedIterator for Deltas<'_> {}
