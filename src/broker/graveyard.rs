//! What deleted queues left behind, freed a bounded number at a time.
//!
//! The record of a deletion is one, so the queue goes out of sight in one step: its name, itself and its groups.
//! Its partitions, cursors and dead letters may be millions; they stay in their tables and go in later steps.
//!
//! Invariants:
//! - Whatever is decided about a partition, cursor, lease or dead letter looks for its queue or group first, and does
//!   not find it. A checkpoint may hold records of remains; at start they are passed over like the records of every
//!   queue that is gone.
//! - Identities are never used again, so nothing here can be taken for something newer.
//!
//! Must not: change what any answer says.

use super::names::IntoValues;
use super::state::State;
use crate::types::{DeadLetterId, GroupId, PartitionId, WallTime};
use std::collections::BTreeSet;

/// Keys of dead letters.
pub(super) type Letters = BTreeSet<(WallTime, DeadLetterId)>;

/// The remains of one queue.
#[derive(Debug)]
pub(super) struct Grave {
    /// Partitions that are not open yet.
    pub(super) partitions: IntoValues,
    /// The internal ones of its groups.
    pub(super) internal: Vec<PartitionId>,
    /// Its groups, which are gone already.
    pub(super) groups: Vec<GroupId>,
    /// Its dead letters.
    pub(super) letters: Letters,
    /// The partition that is being freed, and how many of its cursors are gone.
    pub(super) open: Option<(PartitionId, usize)>,
}

impl State {
    /// Frees at most `most` cursors, partitions and dead letters of deleted queues. Whether there are more.
    pub fn free_some(&mut self, most: usize) -> bool {
        let mut left = most;
        while left > 0 {
            let Some(mut grave) = self.graveyard.pop() else { return false };
            let mut more = true;
            while more && left > 0 {
                left -= 1;
                more = self.free_one(&mut grave);
            }
            if more {
                self.graveyard.push(grave);
            }
        }
        self.has_remains()
    }

    /// Whether deleted queues left something that is to be freed.
    #[must_use]
    pub fn has_remains(&self) -> bool {
        !self.graveyard.is_empty()
    }

    /// Frees one thing; `false` if there was none.
    fn free_one(&mut self, grave: &mut Grave) -> bool {
        if grave.open.is_none() {
            let next = grave.partitions.next().or_else(|| grave.internal.pop());
            grave.open = next.map(|id| (id, 0));
        }
        let Some((partition, gone)) = &mut grave.open else {
            let Some(key) = grave.letters.pop_first() else { return false };
            if let Some(letter) = self.dead_letters.remove(&key) {
                self.copies.remove(&(letter.copy_partition, letter.copy_offset));
                self.letter_gone(letter.partition);
            }
            self.dead_letter_times.remove(&key.1);
            return true;
        };
        if let Some(group) = grave.groups.get(*gone) {
            self.set_cursor(*partition, *group, None);
            *gone += 1;
        } else {
            if let Some(known) = self.partitions.swap_remove(partition) {
                for span in known.spans.iter() {
                    let messages = span.end().0.saturating_sub(span.base.max(known.start).0);
                    self.index.died(span.segment(), messages);
                }
            }
            grave.open = None;
        }
        true
    }
}
