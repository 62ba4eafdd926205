//! Checkpoint files: a file header, then chunks of deltas, then a footer that makes it complete.

use crate::types::{LogTime, Seq, WallTime};

/// What a checkpoint says about itself, in its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// The state is as of this group commit.
    pub seq: Seq,
    /// Log time of that group.
    pub log_time: LogTime,
    /// Newest wall time stamped until then.
    pub last_stamp: WallTime,
    /// First cursor file that holds seq + 1 or is where it will be written.
    pub cursor_file: u64,
    /// Deltas in all.
    pub records: u64,
}
// pub struct Encoder { new(log, seq, ..) ; push(&Delta) ; finish(CheckpointInfo) -> Vec<u8> (whole file, block-aligned) }
// pub fn decode(bytes: &[u8], log, seq) -> Result<(CheckpointInfo, Deltas iterator over chunks), DecodeError>  every chunk's hash verified
