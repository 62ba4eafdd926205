//! The runs of one partition, in offset order.

use std::collections::VecDeque;

use crate::format::run::RunHeader;
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
            partition,
            base: self.base,
            count: self.count,
            bytes: self.bytes,
            created: self.created,
            logged: self.logged,
        }
    }
}

/// Runs sorted by offset; creation and log times are sorted as well.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    rows: VecDeque<Run>,
}

impl Runs {
    /// Appends a run; its base must not lie below the end of the last one.
    pub fn push(&mut self, run: Run) {
        debug_assert!(self.rows.back().is_none_or(|last| last.end() <= run.base));
        self.rows.push_back(run);
    }

    /// Offset after the last run, if there is one.
    #[must_use]
    pub fn end(&self) -> Option<Offset> {
        self.rows.back().map(Run::end)
    }

    /// Offset of the first message that is there.
    #[must_use]
    pub fn start(&self) -> Option<Offset> {
        self.rows.front().map(|run| run.base)
    }

    /// The runs from the one that holds `offset`, or the first one after it.
    pub fn from(&self, offset: Offset) -> impl Iterator<Item = &Run> {
        let first = self.rows.partition_point(|run| run.end() <= offset);
        self.rows.range(first..)
    }

    /// Offset of the first message created at or after `time`; the end if there is none.
    #[must_use]
    pub fn first_created_from(&self, time: WallTime) -> Option<Offset> {
        let index = self.rows.partition_point(|run| run.created < time);
        self.rows.get(index).map(|run| run.base)
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}
