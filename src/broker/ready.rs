//! What can be claimed now, and when the rest can: one list per group, one timer per (partition, group) at most.
//!
//! Purpose: a pop takes the front of a list and never scans; nothing is looked at again before it can have changed.
//!
//! Invariants:
//! - A pair of partition and group is in its group's list, or has one timer, or waits for a lookup, or is nowhere. Memory is bounded by the
//!   pairs that exist, and goes when the group goes.
//! - Lists are first in, first out; what was claimed comes back at the end, so no partition starves another.
//! - A timer is never later than the moment at which its pair becomes visible. It may be earlier: then it is set
//!   anew when it fires, which spares moving it at every push.
//! - All of it follows from the state and the time; it is rebuilt at start and never stored.
//!
//! Must not: change the state, know who waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::ack::live_lease;
use super::core::Core;
use super::journal::Journal;
use super::matching::Matching;
use super::state::{State, Touched};
use crate::index::Lookup;
use crate::types::{GroupId, LogTime, PartitionId, QueueId};

/// When a group can claim a partition, as things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    /// Now.
    Now,
    /// Not before this.
    At(LogTime),
    /// Not before something is pushed or changed.
    Never,
    /// Something has to be looked up first. The partition is touched again when the answer is there.
    Unknown(Lookup),
}

/// When a group can claim a partition.
#[must_use]
pub(super) fn evaluate(state: &State, now: LogTime, partition: PartitionId, group: GroupId) -> Visibility {
    let (Some(partition), Some(group)) = (state.partitions.get(&partition), state.groups.get(&group)) else {
        return Visibility::Never;
    };
    if partition.dead_letters_of.is_some() || partition.queue != group.queue {
        return Visibility::Never;
    }
    let Some(queue) = state.queues.get(&partition.queue) else { return Visibility::Never };
    let cursor = match state.cursor_or_seed(partition, group) {
        Ok(cursor) => cursor,
        Err(lookup) => return Visibility::Unknown(lookup),
    };
    if let Some(lease) = live_lease(&cursor, now) {
        return Visibility::At(lease.expires.plus_us(1));
    }
    if cursor.next >= partition.next {
        return Visibility::Never;
    }
    let (delay, window) = (queue.options.delayed_processing_seconds, queue.options.window_buffer_seconds);
    let mut from = LogTime(0);
    if delay > 0 {
        match state.runs(partition, cursor.next).next() {
            Some(Ok(run)) => from = run.logged.plus_seconds(u64::from(delay)),
            Some(Err(lookup)) => return Visibility::Unknown(lookup),
            None => return Visibility::Never,
        }
    }
    if window > 0 {
        from = from.max(partition.last_logged.plus_seconds(u64::from(window)));
    }
    if from <= now { Visibility::Now } else { Visibility::At(from) }
}

/// Where a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// In the list, at this place.
    Listed(u64),
    /// Under this timer.
    Timed(LogTime),
    /// Among those of which something has to be looked up.
    Unknown,
}

/// One group's.
#[derive(Debug, Default)]
struct List {
    order: BTreeMap<u64, PartitionId>,
    unknown: BTreeMap<PartitionId, Lookup>,
    slots: HashMap<PartitionId, Slot>,
}

/// Ready lists and timers.
#[derive(Debug, Default)]
pub(super) struct Ready {
    lists: HashMap<GroupId, List>,
    timers: BTreeSet<(LogTime, GroupId, PartitionId)>,
    last_place: u64,
    /// Pairs that became claimable while polls were parked and that no waiter was looked for yet.
    pub(super) fresh: VecDeque<(PartitionId, GroupId)>,
    /// Queues by namespace and task.
    pub(super) matching: Matching,
}

impl Ready {
    /// Records what `evaluate` said; whether the pair became claimable by this.
    pub(super) fn set(&mut self, partition: PartitionId, group: GroupId, visibility: Visibility) -> bool {
        if visibility == Visibility::Never && !self.lists.contains_key(&group) {
            return false;
        }
        let list = self.lists.entry(group).or_default();
        let old = list.slots.get(&partition).copied();
        match (old, visibility) {
            (Some(Slot::Listed(_)), Visibility::Now) | (None, Visibility::Never) => return false,
            (Some(Slot::Unknown), Visibility::Unknown(lookup)) => {
                // Retention may have taken the segment that was asked about.
                list.unknown.insert(partition, lookup);
                return false;
            }
            (Some(Slot::Timed(set)), Visibility::At(time)) if set <= time => return false,
            _ => {}
        }
        match old {
            Some(Slot::Listed(place)) => {
                list.order.remove(&place);
            }
            Some(Slot::Timed(time)) => {
                self.timers.remove(&(time, group, partition));
            }
            Some(Slot::Unknown) => {
                list.unknown.remove(&partition);
            }
            None => {}
        }
        match visibility {
            Visibility::Now => {
                self.last_place += 1;
                list.order.insert(self.last_place, partition);
                list.slots.insert(partition, Slot::Listed(self.last_place));
                true
            }
            Visibility::At(time) => {
                self.timers.insert((time, group, partition));
                list.slots.insert(partition, Slot::Timed(time));
                false
            }
            Visibility::Unknown(lookup) => {
                list.unknown.insert(partition, lookup);
                list.slots.insert(partition, Slot::Unknown);
                false
            }
            Visibility::Never => {
                list.slots.remove(&partition);
                false
            }
        }
    }

    /// The partition that has been claimable for longest, with its place; places are ordered over all groups.
    pub(super) fn front(&self, group: GroupId) -> Option<(u64, PartitionId)> {
        let (place, partition) = self.lists.get(&group)?.order.first_key_value()?;
        Some((*place, *partition))
    }

    /// Partitions that can be claimed, the one that has been claimable for longest first.
    pub(super) fn in_order(&self, group: GroupId) -> impl Iterator<Item = PartitionId> {
        self.lists.get(&group).into_iter().flat_map(|list| list.order.values().copied())
    }

    /// What has to be looked up before all of a group's partitions can be judged.
    pub(super) fn unknown(&self, group: GroupId) -> impl Iterator<Item = Lookup> {
        self.lists.get(&group).into_iter().flat_map(|list| list.unknown.values().copied())
    }

    /// Partitions that can be claimed.
    pub(super) fn claimable(&self, group: GroupId) -> usize {
        self.lists.get(&group).map_or(0, |list| list.order.len())
    }

    /// Whether a pair is in its group's list.
    pub(super) fn is_listed(&self, partition: PartitionId, group: GroupId) -> bool {
        let slot = self.lists.get(&group).and_then(|list| list.slots.get(&partition));
        matches!(slot, Some(Slot::Listed(_)))
    }

    /// Forgets a group.
    fn drop_group(&mut self, group: GroupId) {
        let Some(list) = self.lists.remove(&group) else { return };
        for (partition, slot) in list.slots {
            if let Slot::Timed(time) = slot {
                self.timers.remove(&(time, group, partition));
            }
        }
    }

    /// Takes a timer that is due.
    fn take_due(&mut self, now: LogTime) -> Option<(PartitionId, GroupId)> {
        let (time, group, partition) = *self.timers.first()?;
        if time > now {
            return None;
        }
        self.timers.pop_first();
        if let Some(list) = self.lists.get_mut(&group) {
            list.slots.remove(&partition);
        }
        Some((partition, group))
    }

    /// When the first timer fires.
    pub(super) fn next_due(&self) -> Option<LogTime> {
        self.timers.first().map(|(time, ..)| *time)
    }

    /// Pairs in lists or under timers, groups with a list, timers: for tests of what is kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize, usize) {
        (self.lists.values().map(|list| list.slots.len()).sum(), self.lists.len(), self.timers.len())
    }
}

impl<J: Journal> Core<J> {
    /// Builds every list and timer from the state. Costs a look at each pair of partition and group.
    pub(super) fn rebuild_ready(&mut self) {
        self.ready = Ready::default();
        let mut queues: Vec<QueueId> = self.state.queues.keys().copied().collect();
        queues.sort_unstable(); // one order of partitions at every start from the same log
        for queue in queues {
            self.ready.matching.note(queue, self.state.queues.get(&queue));
            self.look_at_pairs(queue);
        }
    }

    /// Looks at one pair again.
    pub(super) fn look_at(&mut self, partition: PartitionId, group: GroupId) {
        let visibility = evaluate(&self.state, self.now, partition, group);
        if let Visibility::Unknown(lookup) = visibility {
            self.wanted.push(lookup);
        }
        if self.ready.set(partition, group, visibility) && !self.parked.is_empty() {
            self.ready.fresh.push_back((partition, group));
        }
    }

    /// Rows of a partition arrived: whoever waits for it may be served now.
    pub(super) fn rows_arrived(&mut self, partition: PartitionId) {
        if !self.parked.is_empty()
            && let Some(queue) = self.state.partitions.get(&partition).map(|partition| partition.queue)
            && let Some(queue) = self.state.queues.get(&queue)
        {
            let listed = queue.groups.values().filter(|group| self.ready.is_listed(partition, **group));
            let listed: SmallVec<[GroupId; 8]> = listed.copied().collect();
            self.ready.fresh.extend(listed.into_iter().map(|group| (partition, group)));
        }
        self.state.touched.push(Touched::Partition(partition));
        self.look_at_expiry(partition);
    }

    /// Looks at every partition of a group's queue: once, when the group is registered.
    pub(super) fn look_at_group(&mut self, queue: QueueId, group: GroupId) {
        let Some(queue) = self.state.queues.get(&queue) else { return };
        let mut partitions: Vec<PartitionId> = queue.partitions.values().collect();
        partitions.sort_unstable();
        for partition in partitions {
            self.look_at(partition, group);
        }
    }

    fn look_at_pairs(&mut self, queue: QueueId) {
        let Some(known) = self.state.queues.get(&queue) else { return };
        let mut groups: Vec<GroupId> = known.groups.values().copied().collect();
        groups.sort_unstable();
        for group in groups {
            self.look_at_group(queue, group);
        }
    }

    /// Looks again at whatever the state says was touched.
    pub(super) fn follow_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.state.touched);
        for touched in touched.drain(..) {
            match touched {
                Touched::Cursor(partition, group) => self.look_at(partition, group),
                Touched::Partition(partition) => self.look_at_partition(partition),
                Touched::Queue(queue) => {
                    self.note_limits(queue);
                    self.ready.matching.note(queue, self.state.queues.get(&queue));
                    if self.state.queues.contains_key(&queue) && !self.parked.is_empty() {
                        self.parked.unregistered.push_back(queue);
                    }
                }
                Touched::Delays(queue) => self.look_at_pairs(queue),
                Touched::Group(queue, group) => self.look_at_group(queue, group),
                Touched::GroupGone(group) => self.ready.drop_group(group),
            }
        }
        self.state.touched = touched; // empty; keeps its buffer
    }

    /// Messages were appended: each group of the queue may see them.
    fn look_at_partition(&mut self, partition: PartitionId) {
        let Some(known) = self.state.partitions.get(&partition) else { return };
        if known.dead_letters_of.is_some() {
            return;
        }
        let Some(queue) = self.state.queues.get(&known.queue) else { return };
        let window = queue.options.window_buffer_seconds > 0;
        let mut groups: SmallVec<[GroupId; 8]> = queue.groups.values().copied().collect();
        groups.sort_unstable();
        for group in groups {
            // A push takes visibility away from nobody, except where the partition must be quiet.
            if window || !self.ready.is_listed(partition, group) {
                self.look_at(partition, group);
            }
        }
    }

    /// Looks again at every pair whose time has come.
    pub(super) fn fire_timers(&mut self) {
        while let Some((partition, group)) = self.ready.take_due(self.now) {
            self.look_at(partition, group);
        }
    }
}
