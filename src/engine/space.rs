//! Space: which segments exist, how they are looked into, and how they go.
//!
//! Must not: decide what counts in a segment.

use bytes::Bytes;

use super::commit::Engine;
use super::maintenance::Job;
use super::removal::Dropped;
use crate::io::Ring;
use crate::types::{FileNumber, Offset, PartitionId};

/// What was asked about a segment, answered.
#[derive(Debug)]
pub enum SegmentNews {
    /// Frames: where each one's body begins, and the body.
    Collected {
        /// The segment.
        segment: FileNumber,
        /// The frames, or why they cannot be read.
        frames: Result<Vec<(u64, Bytes)>, String>,
        /// There are more.
        more: bool,
    },
    /// Stretches of messages: partition, first offset, offset behind the last.
    Listed {
        /// The segment.
        segment: FileNumber,
        /// The stretches, or why they cannot be read.
        spans: Result<Vec<(PartitionId, Offset, Offset)>, String>,
    },
}

impl<R: Ring> Engine<R> {
    /// The segment that is written.
    #[must_use]
    pub fn active_segment(&self) -> FileNumber {
        self.segments.active.number()
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.settings.segment_bytes
    }

    /// Has frames of a sealed segment read, from its beginning or from where the last such call ended.
    pub fn collect(&mut self, segment: FileNumber, begin: bool) {
        // Without maintenance there is no answer, and nothing is freed.
        let _ = self.jobs.send(Job::Collect { segment, begin });
    }

    /// Has the stretches of messages of a segment listed.
    pub fn list(&mut self, segment: FileNumber) {
        let _ = self.jobs.send(Job::List(segment));
    }

    /// Answers to `collect` and `list`.
    pub fn take_segment_news(&mut self) -> Vec<SegmentNews> {
        std::mem::take(&mut self.segment_news)
    }

    /// Moves on to the next segment as soon as nothing open is in the present one.
    pub fn roll_soon(&mut self) {
        self.roll_asked = true;
    }

    /// Lets go of a segment that a staged record dropped. Its file goes once both kept checkpoints are past that.
    pub fn drop_segment(&mut self, segment: FileNumber) {
        let seq = self.staged();
        self.lookups.forget(segment);
        let Some(reader) = self.readers.remove(segment) else { return };
        self.waiting += 1;
        let _ = self.jobs.send(Job::Remove(Dropped { segment, seq, reader }));
    }

    /// Asks for checkpoints while they pay: when dropped segments that wait take twice as many bytes as a checkpoint,
    /// or when there is no space. Whether that takes a group more, because nothing was written since the last one.
    pub fn hurry_removal(&mut self) -> bool {
        if self.waiting == 0 || self.is_checkpointing() || self.has_open() {
            return false;
        }
        let pays = self.waiting * self.settings.segment_bytes >= 2 * self.checkpoint_bytes();
        if !pays && !self.is_full() {
            return false;
        }
        self.request_checkpoint();
        self.staged() == self.newest_checkpoint()
    }

    /// Segments that were dropped before this start, and whose files are still there.
    pub fn take_dropped(&mut self) -> Vec<FileNumber> {
        std::mem::take(&mut self.dropped)
    }
}
