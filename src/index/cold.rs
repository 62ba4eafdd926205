//! Rows of runs that were looked up lately: the pop that asked finds them here when it is tried again, and the next
//! pops of the same consumer find them too.
//!
//! Invariant: bounded; what came first goes first. Dropping anything is always right.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::runs::Run;
use crate::types::{FileNumber, Offset, PartitionId};

/// Most bytes of rows.
const BYTES_MAX: usize = 16 << 20;

/// Runs in offset order, without a gap.
#[derive(Debug)]
struct Window {
    age: u64,
    runs: Box<[Run]>,
}

/// The cache.
#[derive(Debug, Default)]
pub struct ColdRows {
    windows: HashMap<(FileNumber, PartitionId), Vec<Window>>,
    ages: VecDeque<(u64, FileNumber, PartitionId)>,
    last_age: u64,
    bytes: usize,
}

impl ColdRows {
    /// Adds runs of a partition in a segment, in offset order and without a gap.
    pub fn insert(&mut self, segment: FileNumber, partition: PartitionId, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        self.last_age += 1;
        let window = Window { age: self.last_age, runs: runs.into_boxed_slice() };
        self.bytes += bytes_of(&window);
        self.ages.push_back((self.last_age, segment, partition));
        self.windows.entry((segment, partition)).or_default().push(window);
        while self.bytes > BYTES_MAX && self.ages.len() > 1 {
            let Some((age, segment, partition)) = self.ages.pop_front() else { break };
            self.remove(segment, partition, |window| window.age == age);
        }
    }

    /// Forgets a segment's rows of a partition.
    pub fn forget(&mut self, segment: FileNumber, partition: PartitionId) {
        self.remove(segment, partition, |_| true);
    }

    fn remove(&mut self, segment: FileNumber, partition: PartitionId, which: impl Fn(&Window) -> bool) {
        let Some(windows) = self.windows.get_mut(&(segment, partition)) else { return };
        windows.retain(|window| {
            let goes = which(window);
            self.bytes -= if goes { bytes_of(window) } else { 0 };
            !goes
        });
        if windows.is_empty() {
            self.windows.remove(&(segment, partition));
        }
    }

    /// The run that holds an offset.
    #[must_use]
    pub fn get(&self, segment: FileNumber, partition: PartitionId, offset: Offset) -> Option<Run> {
        // The newest window first: it is the one that was asked for.
        self.windows.get(&(segment, partition))?.iter().rev().find_map(|window| {
            let at = window.runs.partition_point(|run| run.end() <= offset);
            window.runs.get(at).filter(|run| run.base <= offset).copied()
        })
    }
}

fn bytes_of(window: &Window) -> usize {
    size_of::<Window>() + window.runs.len() * size_of::<Run>() + 64
}
