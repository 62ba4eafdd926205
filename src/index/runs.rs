//! A run and its place in the log.

use crate::format::run::{RunForm, RunHeader};
use crate::types::{FileNumber, LogTime, Offset, PartitionId, WallTime};

/// Where a run is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment.
    pub segment: FileNumber,
    /// Byte of the run's header in the segment.
    pub position: u64,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset of its first message.
    pub base: Offset,
    /// Messages in it.
    pub count: u32,
    /// Bytes of its entries.
    pub bytes: u32,
    /// Wall time of the append.
    pub created: WallTime,
    /// Log time of the append.
    pub logged: LogTime,
    /// Where it is.
    pub place: Place,
}

impl Run {
    /// Offset after its last message.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.count))
    }

    /// Its header.
    #[must_use]
    pub fn header(&self, partition: PartitionId) -> RunHeader {
        RunHeader {
            form: RunForm::Pushed,
            partition,
            base: self.base,
            count: self.count,
            bytes: self.bytes,
            created: self.created,
            logged: self.logged,
        }
    }
}
