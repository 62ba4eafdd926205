//! The first block of every segment, cursor file and checkpoint.

use crate::types::{Epoch, FileNumber, LogId, Seq};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Messages of all partitions.
    Segment,
    /// The write-ahead cursor file.
    Cursor,
    /// Everything the cursor files say, as of one seq.
    Checkpoint,
}

/// A file's header; one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// What it is.
    pub kind: FileKind,
    /// The log it belongs to.
    pub log: LogId,
    /// Its number (for a checkpoint: its seq).
    pub number: FileNumber,
    /// Shard of this log, from 0.
    pub shard: u16,
    /// Shards in all; 1.
    pub shards: u16,
    /// Size of the file.
    pub file_bytes: u64,
    /// Largest frame that may be written to it, header and padding included; binds recovery of this file.
    pub max_frame_bytes: u64,
    /// Groups that may have been in flight at once; binds recovery of this file.
    pub pipeline_depth: u32,
    /// Process start that prepared it.
    pub epoch: Epoch,
    /// Highest seq staged when it was prepared; frames in it are above. Display only.
    pub after_seq: Seq,
}
// encode(&self) -> Vec<u8> of BLOCK_BYTES (or into &mut [u8]);  decode(&[u8], kind, number) -> Result<FileHeader, DecodeError>; chain(&self bytes) via frame::chain_after over the block's first bytes
