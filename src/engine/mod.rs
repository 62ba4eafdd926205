//! Group commits, checkpoints and recovery.
//!
//! Purpose: make what the broker stages durable, in order, and bring it back at start.
//!
//! Invariants:
//! - A group is durable when both of its frames were written in full and both data syncs succeeded.
//! - The watermark is the highest seq such that every group up to it is durable. Noops count as groups here.
//! - A first failed write or sync poisons: nothing is claimed after it.
//!
//! Must not: decide commands, know HTTP.

pub mod checkpoint;
pub mod commit;
pub mod index_file;
pub mod lane;
pub mod lookup;
pub mod machine;
pub mod maintenance;
pub mod readers;
pub mod recovery;
pub mod removal;
pub mod space;
pub mod staging;
pub mod superblock;

pub use crate::log::files::Layout;

use crate::format::file_header::{FileHeader, FileKind};
use crate::types::{BLOCK_BYTES, Epoch, FileNumber, LogId, Seq};

/// Sizes and limits of the engine.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of a cursor file.
    pub cursor_file_bytes: u64,
    /// A group takes no more messages once its message frame has so many bytes.
    pub group_bytes: u64,
    /// Most bytes of one atomic unit; never more than half a segment.
    pub atomic_group_bytes: u64,
    /// Groups in flight at once.
    pub pipeline_depth: u32,
    /// Idle time after which a noop carries the watermark into both files.
    pub noop_idle_us: u64,
    /// Bytes of the newest message frames that are kept in memory.
    pub tail_cache_bytes: u64,
    /// Bytes of index rows that may stay in memory once index files know them.
    pub resident_index_bytes: u64,
    /// Bytes of cursor frames after which a checkpoint is due.
    pub checkpoint_cursor_bytes: u64,
    /// Bytes of message frames after which one is due: a start reads all of them.
    pub checkpoint_message_bytes: u64,
    /// Files of each kind that are prepared ahead, at least 1.
    pub prepared_files: usize,
    /// Bytes that must stay free on the file system; below, no segment is prepared and pushes are refused.
    pub reserve_bytes: u64,
}

impl EngineSettings {
    /// Largest frame of a segment: one atomic unit, at most half the file, whole blocks.
    #[must_use]
    pub fn message_frame_bytes_max(&self) -> u64 {
        let unit = (self.atomic_group_bytes + (64 << 10)).next_multiple_of(BLOCK_BYTES as u64);
        let half = self.segment_bytes / 2;
        unit.min(half - half % BLOCK_BYTES as u64)
    }

    /// Largest frame of a cursor file.
    #[must_use]
    pub fn cursor_frame_bytes_max(&self) -> u64 {
        (self.cursor_file_bytes / 4).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Open files that the engine and everything else but connections may need: the files of both lanes that are written,
    /// prepared or wait for their seals, those that are read, and some for whatever comes and goes.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        const WRITTEN_OR_LEFT: u64 = 3;
        const REST: u64 = 48;
        let written =
            (self.prepared_files.max(1) as u64 + WRITTEN_OR_LEFT) * u64::from(self.pipeline_depth.max(1));
        2 * written + (readers::OPEN_MAX + lookup::OPEN_MAX) as u64 + REST
    }

    /// Header of a new file.
    #[must_use]
    pub fn header(
        &self,
        kind: FileKind,
        log: LogId,
        number: FileNumber,
        epoch: Epoch,
        after: Seq,
    ) -> FileHeader {
        let (file_bytes, max_frame_bytes) = match kind {
            FileKind::Segment => (self.segment_bytes, self.message_frame_bytes_max()),
            FileKind::Cursor | FileKind::Checkpoint => {
                (self.cursor_file_bytes, self.cursor_frame_bytes_max())
            }
        };
        FileHeader {
            kind,
            log,
            number,
            shard: 0,
            shards: 1,
            file_bytes,
            max_frame_bytes,
            pipeline_depth: self.pipeline_depth,
            epoch,
            after_seq: after,
        }
    }
}
