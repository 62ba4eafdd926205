//! What deleted queues left behind, freed a bounded number at a time.
//!
//! A deletion takes a queue out of every table that decides anything in one step, because the record is one. Its
//! partitions and its dead letters may be millions; nobody can see them any more, so they go in later steps.
//!
//! Invariant: nothing here is reachable by a command: the partitions are in no table, and a dead letter whose partition
//! is in none is shown to nobody and is in no checkpoint that was read back.
//!
//! Must not: change what any answer says.

use std::collections::BTreeSet;

use super::state::{Partition, State};
use crate::types::{DeadLetterId, WallTime};

/// Keys of dead letters.
pub(super) type Letters = BTreeSet<(WallTime, DeadLetterId)>;

/// The remains.
#[derive(Debug, Default)]
pub(super) struct Graveyard {
    pub(super) partitions: Vec<Partition>,
    pub(super) letters: Vec<Letters>,
}

impl State {
    /// Frees at most `most` partitions and dead letters of deleted queues. Whether there are more.
    pub fn free_some(&mut self, most: usize) -> bool {
        let mut left = most;
        while left > 0 {
            left -= 1;
            if let Some(partition) = self.graveyard.partitions.pop() {
                for span in partition.spans.iter() {
                    let messages = span.end.0.saturating_sub(span.base.max(partition.start).0);
                    self.index.died(span.segment, messages);
                }
            } else if let Some(letters) = self.graveyard.letters.last_mut() {
                match letters.pop_first() {
                    Some(key) => {
                        self.dead_letters.remove(&key);
                        self.dead_letter_times.remove(&key.1);
                    }
                    None => {
                        self.graveyard.letters.pop();
                    }
                }
            } else {
                return false;
            }
        }
        self.has_remains()
    }

    /// Whether deleted queues left something that is to be freed.
    #[must_use]
    pub fn has_remains(&self) -> bool {
        !(self.graveyard.partitions.is_empty() && self.graveyard.letters.is_empty())
    }
}
