//! The superblock: two 4 KiB slots, written in turn; the valid one with the higher generation counts.

use crate::types::{Epoch, LogId, Seq};

/// Contents of a superblock slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Raised by every write.
    pub generation: u64,
    /// Identity of the log.
    pub log: LogId,
    /// Shard of this log, from 0.
    pub shard: u16,
    /// Shards in all; 1.
    pub shards: u16,
    /// Newest process start.
    pub epoch: Epoch,
    /// Newest kept checkpoint; 0 for none.
    pub checkpoint: Seq,
    /// The kept checkpoint before it; 0 for none.
    pub previous_checkpoint: Seq,
    /// The last process shut down cleanly at this seq; 0 while one runs or after a crash.
    pub clean_seq: Seq,
}
// encode(&self) -> [u8; BLOCK_BYTES] ; decode(&[u8]) -> Result<Superblock, DecodeError>; pick(slot0, slot1) -> Result<(Superblock, usize /*slot*/), DecodeError>
