//! The vocabulary: ids, positions and times as distinct types.
//!
//! Every number that crosses a module has a type of its own, so that an offset (a message's number in its
//! partition) can never be mistaken for a position (a byte of a file) or a sequence number (a group commit).
//! This module holds no behaviour beyond conversions and depends on nothing else in the crate.

use std::fmt;

/// Alignment of every frame, write position and write length on disk, in bytes.
pub const BLOCK_BYTES: usize = 4096;

macro_rules! number {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! wide {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// The canonical lower-case hyphenated UUID text.
            #[must_use]
            pub fn text(self) -> String {
                uuid::Uuid::from_u128(self.0).hyphenated().to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                uuid::Uuid::from_u128(self.0).hyphenated().fmt(f)
            }
        }
    };
}

number!(
    /// Number of one group commit. Starts at 1, contiguous, never reused in a log.
    Seq
);
number!(
    /// Number of one process start on a data directory. Starts at 1, strictly increasing.
    Epoch
);
number!(
    /// Number of a segment or cursor file. Starts at 1, contiguous while the files are kept.
    FileNumber
);
number!(
    /// Identity of one incarnation of a queue; never reused.
    QueueId
);
number!(
    /// Identity of one incarnation of a partition; never reused. On the wire: a decimal string.
    PartitionId
);
number!(
    /// Identity of one consumer group of one queue incarnation; never reused.
    GroupId
);
number!(
    /// Number of a message in its partition: from 0, contiguous, one per message.
    Offset
);
number!(
    /// Log time in microseconds: advances by elapsed boot time only and resumes from the last frame at start,
    /// so a restart never ends a lease early and a clock jump never does anything.
    LogTime
);
number!(
    /// Wall time in microseconds since the Unix epoch. Strictly increasing across everything one daemon stamps.
    WallTime
);

wide!(
    /// Identity of a log, minted when a data directory is created. Seeds every hash in its files.
    LogId
);
wide!(
    /// A message's id, a UUIDv7.
    MessageId
);
wide!(
    /// A lease's id, a UUIDv7 that contains the epoch and a counter, so that no two leases of a log share one.
    LeaseId
);
wide!(
    /// A dead letter's id, a UUIDv7.
    DeadLetterId
);
wide!(
    /// xxh3-128 of a transaction id's bytes, seeded with the log id.
    IdHash
);

impl Seq {
    /// The following group commit.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl Offset {
    /// The following message.
    #[must_use]
    pub fn next(self) -> Offset {
        Offset(self.0 + 1)
    }
}

impl FileNumber {
    /// The following file.
    #[must_use]
    pub fn next(self) -> FileNumber {
        FileNumber(self.0 + 1)
    }
}

impl LogTime {
    /// This time plus a number of microseconds, saturating.
    #[must_use]
    pub fn plus_us(self, us: u64) -> LogTime {
        LogTime(self.0.saturating_add(us))
    }

    /// This time plus a number of seconds, saturating.
    #[must_use]
    pub fn plus_seconds(self, seconds: u64) -> LogTime {
        self.plus_us(seconds.saturating_mul(1_000_000))
    }

    /// This time minus a number of seconds, not below zero.
    #[must_use]
    pub fn minus_seconds(self, seconds: u64) -> LogTime {
        LogTime(self.0.saturating_sub(seconds.saturating_mul(1_000_000)))
    }
}

/// The partition used when a push names none.
pub const DEFAULT_PARTITION: &str = "Default";

/// The internal consumer group of callers that name none.
pub const QUEUE_MODE_GROUP: &str = "__QUEUE_MODE__";

/// Bytes that the wire contract counts for the tenant, which here is always the default one.
const TENANT_BYTES: u64 = 36;

/// What the name limit counts: tenant, queue and the longer of partition and group, in bytes. The internal group is no
/// name that anybody chose, so it does not count: every queue that can be pushed to can be popped from.
#[must_use]
pub fn name_bytes(queue: &str, partition: &str, group: &str) -> u64 {
    let group = if group == QUEUE_MODE_GROUP { 0 } else { group.len() };
    TENANT_BYTES + queue.len() as u64 + partition.len().max(group) as u64
}

/// The options of a queue, as configured. Units are those of the wire contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Length of a lease in seconds.
    pub lease_seconds: u32,
    /// Redeliveries after an explicit failure before the head is dead-lettered.
    pub retry_limit: u32,
    /// Dead-letter an exhausted message. OR-ed with `dlq_after_max_retries`.
    pub dead_letter_queue: bool,
    /// Dead-letter an exhausted message. OR-ed with `dead_letter_queue`.
    pub dlq_after_max_retries: bool,
    /// Seconds that a message stays invisible after its push.
    pub delayed_processing_seconds: u32,
    /// Seconds that a partition must have been quiet before anything of it is visible.
    pub window_buffer_seconds: u32,
    /// Deduplication window in seconds; 0 is off.
    pub dedup_window_seconds: u32,
    /// Gate of the next two.
    pub retention_enabled: bool,
    /// Age limit of every message, in seconds; 0 is none.
    pub retention_seconds: u32,
    /// Age limit of messages that every group has passed, in seconds; 0 is none.
    pub completed_retention_seconds: u32,
    /// Age limit that ignores `retention_enabled`, in seconds; 0 is none.
    pub max_wait_seconds: u32,
    /// Seal payloads at rest. Stored and echoed; without a key the queue works in plain text.
    pub encryption_enabled: bool,
    /// 0..=60000; stored and echoed.
    pub min_pop_wait_ms: u32,
    /// Stored and echoed.
    pub priority: i64,
    /// Stored and echoed.
    pub retry_delay_ms: i64,
    /// Stored and echoed.
    pub ttl_seconds: i64,
    /// Stored and echoed.
    pub max_size: i64,
    /// Archive hold name, `[A-Za-z0-9._-]{0,64}`.
    pub retention_sink_hold: String,
    /// 60..=31536000.
    pub retention_sink_hold_max_seconds: u32,
}

impl QueueOptions {
    /// What `configure` gives a queue when a field is absent.
    #[must_use]
    pub fn configured() -> QueueOptions {
        QueueOptions {
            lease_seconds: 300,
            retry_limit: 3,
            dead_letter_queue: true,
            dlq_after_max_retries: true,
            delayed_processing_seconds: 0,
            window_buffer_seconds: 0,
            dedup_window_seconds: 3600,
            retention_enabled: false,
            retention_seconds: 0,
            completed_retention_seconds: 0,
            max_wait_seconds: 0,
            encryption_enabled: false,
            min_pop_wait_ms: 0,
            priority: 0,
            retry_delay_ms: 1000,
            ttl_seconds: 3600,
            max_size: 0,
            retention_sink_hold: String::new(),
            retention_sink_hold_max_seconds: 604_800,
        }
    }

    /// What a queue that a push or a pop creates has.
    #[must_use]
    pub fn created_on_use() -> QueueOptions {
        QueueOptions { lease_seconds: 60, ..QueueOptions::configured() }
    }

    /// Whether an exhausted message is dead-lettered rather than dropped.
    #[must_use]
    pub fn dead_letters(&self) -> bool {
        self.dead_letter_queue || self.dlq_after_max_retries
    }

    /// Seconds that a message's id hash is kept once no cursor and no lease needs it (`max` of the dedup window,
    /// the completed retention and 900 s).
    #[must_use]
    pub fn id_horizon_seconds(&self) -> u64 {
        u64::from(self.dedup_window_seconds.max(self.completed_retention_seconds).max(900))
    }
}
