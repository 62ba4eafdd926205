//! Deltas: what a cursor frame says happened, one record each, absolute and idempotent.
//!
//! A checkpoint is a list of the same records: applied to an empty state they rebuild it.

use crate::types::{
    DeadLetterId, GroupId, LeaseId, LogTime, Offset, PartitionId, QueueId, QueueOptions, WallTime,
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
    /// Last-value delivery. Reserved, false.
    pub conflating: bool,
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
}
// Kinds reserved: ledger, state, timers, hash records, log starts.
// Delta::encode(&self, out: &mut impl BufMut-like / Vec<u8>);  Delta::decode(&mut &'a [u8]) -> Result<Delta<'a>, DecodeError>
// pub struct Deltas<'a>: iterator over the rest of a cursor frame's body
