//! The typed commands that the broker executes, and their answers.
//!
//! Commands arrive validated in form (lengths, JSON, encodings) and with everything expensive done: ids hashed,
//! entries encoded, repeats inside one request found. What is left is what needs the state.
//!
//! Must not: know HTTP or JSON.

use std::sync::Arc;

use bytes::Bytes;
use smol_str::SmolStr;
use thiserror::Error;

use super::survey::{Survey, SurveyQuery};
use crate::format::run::RunHeader;
use crate::io::ReadAt;
use crate::types::{
    DeadLetterId, IdHash, LeaseId, MessageId, Offset, PartitionId, QueueId, QueueOptions, WallTime,
};

/// Messages for one partition, to be stored together or not at all.
#[derive(Debug, Default)]
pub struct PushGroup {
    /// Queue name, not empty.
    pub queue: String,
    /// Partition name, not empty.
    pub partition: String,
    /// Messages in request order.
    pub items: Vec<PushItem>,
    /// The encoded entries (`format::entry`) of all items that are not repeats, one after the other.
    pub entries: Vec<u8>,
}

/// One message of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushItem {
    /// Its id.
    pub id: MessageId,
    /// Hash of its transaction id.
    pub hash: IdHash,
    /// The broker minted the transaction id, so no stored message can have it and no probe is needed.
    pub minted: bool,
    /// Index in `items` of the first item with the same transaction id, if this one repeats it.
    pub repeat_of: Option<u32>,
    /// End of its entry in `entries`; it begins where the previous item's ends. A repeat has no bytes.
    pub end: u32,
}

/// What became of one pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushVerdict {
    /// Its id, or the original's for a duplicate.
    pub id: MessageId,
    /// Its offset, or the original's.
    pub offset: Offset,
    /// An equal transaction id was there before.
    pub duplicate: bool,
}

/// What a pop addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopTarget {
    /// Any partition of the queue.
    Queue(String),
    /// One partition.
    Partition {
        /// Queue name.
        queue: String,
        /// Partition name.
        partition: String,
    },
    /// Any partition of any queue that matches every given value; at least one is given.
    Discovery {
        /// Namespace to match.
        namespace: Option<String>,
        /// Task to match.
        task: Option<String>,
    },
}

/// Where a group that is registered by this pop begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRequest {
    /// From the first kept message.
    All,
    /// From the instant of registration: when the pop arrived.
    New,
    /// From that instant.
    From(WallTime),
}

/// Names a pop from its arrival to its answer, so that it can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PopTicket(pub u64);

/// A pop.
#[derive(Clone, Debug)]
pub struct Pop {
    /// Its name.
    pub ticket: PopTicket,
    /// What it addresses.
    pub target: PopTarget,
    /// Consumer group; the queue-mode group when the client named none.
    pub group: String,
    /// Most messages over all claims, at least 1.
    pub batch: u32,
    /// Most partitions to claim, at least 1; 1 for a pinned pop.
    pub partitions: u32,
    /// Commit at delivery, no lease.
    pub auto_ack: bool,
    /// Park for at most so long, in microseconds; 0 answers at once.
    pub wait_us: u64,
    /// Lease length that overrides the queue's, in seconds, at least 1.
    pub lease_seconds: Option<u32>,
    /// Where a new group begins.
    pub start: StartRequest,
    /// Says whether the client is still there.
    pub presence: Arc<Presence>,
}

/// Shared between the connection that waits for a pop and the broker that serves it.
#[derive(Debug, Default)]
pub struct Presence(std::sync::atomic::AtomicBool);

impl Presence {
    /// The client left: nothing may be claimed for it any more.
    pub fn leave(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }

    /// Whether it left.
    #[must_use]
    pub fn left(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// Where bytes of the log are to be had.
#[derive(Clone)]
pub enum Source {
    /// In memory: the run's entries.
    Memory(Bytes),
    /// In a segment: read `bytes` bytes at `position`; the file stays readable while this is held.
    File {
        /// The segment.
        file: Arc<dyn ReadAt>,
        /// First byte of the run's entries.
        position: u64,
        /// Bytes of the run's entries.
        bytes: u32,
    },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Memory(bytes) => write!(f, "Memory({} bytes)", bytes.len()),
            Source::File { file, position, bytes } => {
                write!(f, "File({} at {position}, {bytes} bytes)", file.path().display())
            }
        }
    }
}

/// Part of a claim: some messages of one run.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The run they are in.
    pub run: RunHeader,
    /// The run's entries, all of them.
    pub source: Source,
    /// First offset that belongs to the claim.
    pub first: Offset,
    /// Last offset that belongs to the claim.
    pub last: Offset,
}

/// A span of one partition handed to one client.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The partition.
    pub partition: PartitionId,
    /// Its name.
    pub partition_name: SmolStr,
    /// Which delivery of the first message this is, from 1.
    pub attempt: u32,
    /// The messages, in offset order.
    pub pieces: Vec<Piece>,
}

/// Answer to a pop. No claims: nothing was to be had.
#[derive(Clone, Debug, Default)]
pub struct PopReply {
    /// The lease over every claim; none when empty or committed at delivery.
    pub lease: Option<LeaseId>,
    /// What was claimed.
    pub claims: Vec<Claim>,
}

/// Normalised status of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStatus {
    /// Done.
    Completed,
    /// An explicit failure; charges the retry budget.
    Failed,
    /// Give it back without a charge.
    Retry,
    /// Dead-letter it now.
    DeadLetter,
}

/// An identifier that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference<T> {
    /// None was sent.
    Absent,
    /// Something was sent that cannot be one of ours.
    Malformed,
    /// This one.
    Id(T),
}

/// One acknowledgement.
#[derive(Clone, Debug)]
pub struct AckItem {
    /// Hash of the transaction id; `None` when the client sent none.
    pub hash: Option<IdHash>,
    /// The partition.
    pub partition: Reference<PartitionId>,
    /// What the client says.
    pub status: AckStatus,
    /// The lease it claims to hold. A malformed one is a foreign lease, never an absent one.
    pub lease: Reference<LeaseId>,
    /// Reason for a dead letter, at most 8 KiB, not empty.
    pub error: Option<String>,
}

/// A call with any number of acknowledgements of one group.
#[derive(Clone, Debug)]
pub struct AckCall {
    /// Consumer group; the queue-mode group when the client named none.
    pub group: String,
    /// The acknowledgements in request order.
    pub items: Vec<AckItem>,
}

/// Why an acknowledgement cannot act. The texts hold the words that the published clients' tests look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AckRefusal {
    /// No transaction id was sent.
    #[error("transactionId is required")]
    NoTransactionId,
    /// No partition id was sent.
    #[error("partitionId is required: transaction ids are unique only inside a partition")]
    NoPartitionId,
    /// The partition id is not a decimal number.
    #[error("partitionId is not a partition id")]
    MalformedPartitionId,
    /// No such partition.
    #[error("no partition {0}: it was deleted or never existed")]
    NoPartition(PartitionId),
    /// This group has no cursor there.
    #[error(
        "unresolvable: this consumer group never popped this partition; check that the ack names the group of the pop"
    )]
    NoCursor,
    /// The lease id is not the live holder.
    #[error(
        "invalid or expired lease: it ended, was released or belongs to another consumer; nothing was changed"
    )]
    Lease,
    /// The cursor is past it, so a failure can no longer be honoured.
    #[error("already committed: the cursor moved past this message before this signal arrived")]
    AlreadyCommitted,
    /// Not in the span that can be acknowledged.
    #[error(
        "unresolvable: no such transaction id in the span that can be acknowledged (never pushed, its hash expired, or outside the lease)"
    )]
    Unresolvable,
    /// A dead letter without a lease would not be filed.
    #[error("no lease: a dead letter needs the live lease of its message; pop it again and send its leaseId")]
    DeadLetterWithoutLease,
    /// The payload could not be read, so no dead letter can be filed.
    #[error(
        "dlq rejected: the message's payload could not be read; see the daemon's log for file and position"
    )]
    PayloadUnreadable,
    /// The message expired while it was leased, so nothing is left to file.
    #[error("dlq rejected: the message expired by the retention of its queue; complete it instead")]
    PayloadExpired,
    /// The reserve for copies is used up.
    #[error("dlq rejected: no disk space is left for the message's copy; free some and send this again")]
    CopyWithoutSpace,
    /// The copy is larger than one group commit may be.
    #[error("dlq rejected: the message's copy does not fit a group commit; raise limits.atomic_group_bytes")]
    CopyTooLarge,
}

/// What became of one acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckVerdict {
    /// Why not, if it could not act.
    pub refusal: Option<AckRefusal>,
    /// After this call the lease is gone.
    pub lease_released: bool,
    /// A dead letter was filed for this item.
    pub dead_lettered: bool,
    /// Completed, and the cursor was past it before.
    pub noop: bool,
}

impl AckVerdict {
    /// Whether the broker took the item into account.
    #[must_use]
    pub fn success(&self) -> bool {
        self.refusal.is_none()
    }
}

/// Answer to a lease extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendReply {
    /// Partitions renewed.
    pub renewed: u32,
    /// The earliest new end, as wall time for display; `None` when nothing was renewed.
    pub expires: Option<WallTime>,
}

/// An acknowledgement inside a transaction.
#[derive(Clone, Debug)]
pub struct TransactionAck {
    /// Consumer group.
    pub group: String,
    /// The acknowledgement.
    pub item: AckItem,
}

/// Acks and pushes that stand or fall together.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Acknowledgements in operation order.
    pub acks: Vec<TransactionAck>,
    /// Pushes, one group per (queue, partition).
    pub pushes: Vec<PushGroup>,
    /// Leases that must be live.
    pub required: Vec<Reference<LeaseId>>,
}

/// Why a transaction rolled back; the words of the wire contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackReason {
    /// A push repeats a stored message.
    Duplicate,
    /// An ack was refused, or a required lease is not live.
    RejectedAck,
    /// Larger than one group commit may be.
    TooLarge,
}

/// Answer to a transaction.
#[derive(Clone, Debug)]
pub enum TransactionReply {
    /// All of it is durable.
    Committed {
        /// Verdicts per ack, in operation order.
        acks: Vec<AckVerdict>,
        /// Verdicts per push group and item. `duplicate` marks a repeat inside the bundle.
        pushes: Vec<Vec<PushVerdict>>,
    },
    /// Nothing of it happened.
    RolledBack {
        /// The word.
        reason: RollbackReason,
        /// The sentence; holds `rolled back`, and `lease` where a lease is the reason.
        error: String,
    },
}

/// One field of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Absent: keep what is there (with `replace`: the default).
    #[default]
    Keep,
    /// Null: the default.
    Reset,
    /// This value.
    Set(T),
}

/// Changes of a queue's options. Field meanings: `QueueOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of QueueOptions")]
pub struct OptionsPatch {
    pub lease_seconds: Patch<u32>,
    pub retry_limit: Patch<u32>,
    pub dead_letter_queue: Patch<bool>,
    pub dlq_after_max_retries: Patch<bool>,
    pub delayed_processing_seconds: Patch<u32>,
    pub window_buffer_seconds: Patch<u32>,
    pub dedup_window_seconds: Patch<u32>,
    pub retention_enabled: Patch<bool>,
    pub retention_seconds: Patch<u32>,
    pub completed_retention_seconds: Patch<u32>,
    pub max_wait_seconds: Patch<u32>,
    pub encryption_enabled: Patch<bool>,
    pub min_pop_wait_ms: Patch<u32>,
    pub priority: Patch<i64>,
    pub retry_delay_ms: Patch<i64>,
    pub ttl_seconds: Patch<i64>,
    pub max_size: Patch<i64>,
    pub retention_sink_hold: Patch<String>,
    pub retention_sink_hold_max_seconds: Patch<u32>,
}

/// Creates or changes a queue.
#[derive(Clone, Debug, Default)]
pub struct Configure {
    /// Queue name; may be empty.
    pub queue: String,
    /// Namespace.
    pub namespace: Patch<String>,
    /// Task.
    pub task: Patch<String>,
    /// Options.
    pub options: OptionsPatch,
    /// Absent fields reset instead of keeping.
    pub replace: bool,
}

/// A queue as it is after `Configure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigureReply {
    /// Identity.
    pub queue: QueueId,
    /// Namespace.
    pub namespace: String,
    /// Task.
    pub task: String,
    /// Every option.
    pub options: QueueOptions,
}

/// A question for dead letters.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterQuery {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this group.
    pub group: Option<String>,
    /// Most rows.
    pub limit: u32,
    /// Rows to pass over.
    pub offset: u64,
}

/// One dead letter.
#[derive(Clone, Debug)]
pub struct DeadLetterRow {
    /// Identity.
    pub id: DeadLetterId,
    /// Queue name.
    pub queue: Arc<str>,
    /// Partition name.
    pub partition_name: SmolStr,
    /// Partition it was in.
    pub partition: PartitionId,
    /// Group that gave it up.
    pub group: Arc<str>,
    /// Offset it had.
    pub offset: Offset,
    /// Why.
    pub error: Arc<str>,
    /// Retry budget used at that moment.
    pub retries_used: u32,
    /// When the message was created.
    pub created: WallTime,
    /// When it was dead-lettered.
    pub failed: WallTime,
    /// The copy: a piece of exactly one message.
    pub copy: Piece,
}

/// Answer to `DeadLetterQuery`, newest failure first.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterPage {
    /// The rows of the page.
    pub rows: Vec<DeadLetterRow>,
    /// All that match.
    pub total: u64,
}

/// Where a group is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Behind the last message.
    End,
    /// Before the first message stored at or after this.
    Time(WallTime),
}

/// What an operator does to a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// It begins at this time in partitions that it has not met, in every queue.
    Subscribe {
        /// The group.
        group: String,
        /// The time.
        start: WallTime,
    },
    /// Its cursors go.
    Delete {
        /// The group.
        group: String,
        /// In this queue; in all of them if none is named.
        queue: Option<String>,
        /// Its registration goes, too.
        forget: bool,
    },
    /// Its cursors are moved; it is registered where it is not yet.
    Seek {
        /// The group.
        group: String,
        /// The queue.
        queue: String,
        /// The partition; all of the queue if none is named.
        partition: Option<String>,
        /// Where to.
        to: SeekTo,
    },
}

/// Answer to a change of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupReply {
    /// Whether the queue that was named is there; `false` when none was.
    pub queue_known: bool,
    /// Registrations changed, or cursors moved or removed.
    pub changed: u32,
}

/// Everything the broker executes.
#[derive(Debug)]
pub enum Command {
    /// Store messages. Answer: `Reply::Push`.
    Push(Vec<PushGroup>),
    /// Deliver messages. Answer: `Reply::Pop`.
    Pop(Pop),
    /// The client of a parked pop left. No answer.
    Gone(PopTicket),
    /// Nobody received the claims of this lease: hand them back without costing an attempt. No answer.
    Return(LeaseId),
    /// Acknowledge. Answer: `Reply::Ack`.
    Ack(AckCall),
    /// Extend a lease. Answer: `Reply::Extend`.
    Extend {
        /// The lease.
        lease: Reference<LeaseId>,
        /// Seconds from now, at least 1.
        seconds: u32,
    },
    /// Acks and pushes as one. Answer: `Reply::Transaction`.
    Transaction(Transaction),
    /// Create or change a queue. Answer: `Reply::Configure`.
    Configure(Configure),
    /// Delete a queue. Answer: `Reply::DeleteQueue`.
    DeleteQueue(String),
    /// List dead letters. Answer: `Reply::DeadLetters`.
    DeadLetters(DeadLetterQuery),
    /// Change a consumer group. Answer: `Reply::Group`.
    Group(GroupChange),
    /// Count what there is. Answer: `Reply::Survey`.
    Survey(SurveyQuery),
}

/// Answers, in the order of `Command`.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Verdicts per group and item.
    Push(Vec<Vec<PushVerdict>>),
    /// Claims.
    Pop(PopReply),
    /// Verdicts per item.
    Ack(Vec<AckVerdict>),
    /// The extension.
    Extend(ExtendReply),
    /// The outcome.
    Transaction(TransactionReply),
    /// The queue.
    Configure(ConfigureReply),
    /// Whether it existed.
    DeleteQueue(bool),
    /// The page.
    DeadLetters(DeadLetterPage),
    /// What was changed.
    Group(GroupReply),
    /// What was counted.
    Survey(Box<Survey>),
    /// It was not executed, or its outcome is unknown.
    Failed(BrokerError),
}

/// Why a command was not executed, or why nobody knows whether it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BrokerError {
    /// Not ready yet.
    #[error("the broker is starting: {0}; try again in a second")]
    Starting(String),
    /// Shutting down.
    #[error("the broker is shutting down; try again when it is back")]
    Stopping,
    /// A write or sync failed. What was in flight may or may not be durable.
    #[error(
        "the outcome is unknown: storage failed ({0}); the broker stops, and repeating the request is safe when it carries transaction ids"
    )]
    OutcomeUnknown(String),
    /// The bounded queue in front of the storage thread is full.
    #[error("too many requests are waiting for storage; try again in {retry_seconds} s")]
    Overloaded {
        /// When to try again.
        retry_seconds: u32,
    },
    /// Too many parked polls.
    #[error("{limit} polls are parked, which is the limit (limits.parked_polls)")]
    TooManyPolls {
        /// The limit.
        limit: u32,
    },
    /// No room for messages.
    #[error("no space for messages in {dir}: {free_bytes} bytes are free; acks, pops and deletes still work")]
    StorageFull {
        /// The data directory.
        dir: String,
        /// Bytes free there.
        free_bytes: u64,
    },
    /// Larger than one group commit may be.
    #[error(
        "one partition's messages take {bytes} bytes, more than the {limit} of one atomic group (limits.atomic_group_bytes)"
    )]
    GroupTooLarge {
        /// Bytes needed.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A name is too long.
    #[error(
        "tenant, queue and the longer of partition and group take {bytes} bytes together, the limit is {limit}"
    )]
    NameTooLong {
        /// Bytes they take.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// An index file is damaged and could not be built anew from its segment.
    #[error(
        "an index cannot be read: {0}; nothing of this request beyond what it says is done, and other data is served; see the daemon's log"
    )]
    IndexUnreadable(String),
    /// A request deadline passed.
    #[error("no answer from storage within {seconds} s; the outcome is unknown")]
    Timeout {
        /// The deadline.
        seconds: u32,
    },
}
