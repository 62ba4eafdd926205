//! What deleted queues and groups left behind, freed a bounded number at a time.
//!
//! The record of a deletion is one, so a queue goes out of sight in one step: its name, itself and its groups.
//! Its partitions, cursors and dead letters may be millions; they stay in their tables and go in later steps. So do the
//! cursors of a group.
//!
//! Invariants:
//! - Whatever is decided about a partition, cursor, lease or dead letter looks for its queue or group first, and does
//!   not find it. A checkpoint may hold records of remains; at start they are passed over like the records of every
//!   queue that is gone.
//! - Identities are never used again, so nothing here can be taken for something newer.
//!
//! Must not: change what any answer says.

use super::names::{IntoValues, Names};
use super::state::State;
use crate::types::{DeadLetterId, GroupId, PartitionId, WallTime};
use std::collections::BTreeSet;

/// Keys of dead letters.
pub(super) type Letters = BTreeSet<(WallTime, DeadLetterId)>;

/// The remains of one queue or group.
#[derive(Debug)]
pub(super) struct Grave {
    /// Partitions of the queue that are not open yet.
    partitions: IntoValues,
    /// Whether they stay: only cursors go.
    keep: bool,
    /// Partitions beside those that the queue names.
    more: Vec<PartitionId>,
    /// The groups, which are gone already.
    groups: Vec<GroupId>,
    /// The dead letters.
    letters: Letters,
    /// The partition that is being freed, and how many of its cursors are gone.
    open: Option<(PartitionId, usize)>,
}

impl Grave {
    /// Of a queue: its partitions, the internal ones of its groups, its groups and the keys of its dead letters.
    pub(super) fn of_queue(
        partitions: IntoValues,
        internal: Vec<PartitionId>,
        groups: Vec<GroupId>,
        letters: Letters,
    ) -> Grave {
        Grave { partitions, keep: false, more: internal, groups, letters, open: None }
    }

    /// Of a group: the partitions in which it may have cursors.
    pub(super) fn of_group(partitions: Vec<PartitionId>, group: GroupId) -> Grave {
        Grave {
            partitions: Names::new(0).into_values(),
            keep: true,
            more: partitions,
            groups: vec![group],
            letters: Letters::new(),
            open: None,
        }
    }
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
            let next = grave.partitions.next().or_else(|| grave.more.pop());
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
            let known = if grave.keep { None } else { self.partitions.swap_remove(partition) };
            if let Some(known) = known {
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
