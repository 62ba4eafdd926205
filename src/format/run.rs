//! Runs: consecutive messages of one partition in one record of a message frame.

use crate::types::{LogTime, Offset, PartitionId, WallTime};

/// Bytes of an encoded run header.
pub const RUN_HEADER_BYTES: usize = 48;

/// A run's header. `count` entries of `bytes` bytes in all follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// The partition.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Messages, at least 1.
    pub count: u32,
    /// Bytes of the entries together.
    pub bytes: u32,
    /// Wall time shared by the messages; strictly increasing per partition.
    pub created: WallTime,
    /// Log time of the append.
    pub logged: LogTime,
}
// encode(&self) -> [u8; RUN_HEADER_BYTES]; decode(&[u8]) -> Result<RunHeader, DecodeError> (own crc32 inside the 48 bytes)
// pub struct Runs<'a>: iterator over a message frame's body -> Result<(RunHeader, entries: &'a [u8], position_in_body: u32), DecodeError>
