//! Retention: raises the first kept offset of partitions whose messages are too old, and deletes partitions that have
//! been empty for long.
//!
//! Purpose: a sweep walks over all partitions about once in `retention_sweep_us`, a little in each step of storage.
//! What it decides is one record per partition; the space is freed by whoever removes segments.
//!
//! Invariants:
//! - Whole runs go, in the order of offsets, by their log time; at an age limit exactly a message is still there.
//! - A limit holds for what is there when the sweep comes by, so changed options take effect with the next one.
//! - Nothing is decided by rows that are not in memory: they are asked for, and the partition is looked at again
//!   when they come.
//! - One step looks at a bounded number of partitions, runs and lookups. One partition's groups are one step.
//! - Where no queue has a limit and nothing is empty, there is no sweep.
//!
//! Must not: free space, touch dead letters or their copies.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::{HashMap, HashSet};

use super::ack::live_lease;
use super::core::Core;
use super::journal::{DELTA_BYTES, Fit, Journal};
use super::state::{Partition, Queue, State};
use crate::format::delta::Delta;
use crate::index::Lookup;
use crate::types::{GroupId, LogTime, Offset, PartitionId, QueueId, QueueOptions};

/// What one step does, in units: a partition is one, each of its groups another, and so are some runs. About 100 µs.
const UNITS_PER_STEP: usize = 512;

/// Runs that are walked over in one unit.
const RUNS_PER_UNIT: usize = 8;

/// Runs of one partition that are walked over in one look; the rest follows.
const RUNS_PER_LOOK: usize = 2048;

/// Partitions whose rows are being looked up at once.
const WAITING_MAX: usize = 256;

/// New partitions that are noted in one step.
const NOTED_PER_STEP: u64 = 4096;

/// Partitions of which the age of the first message is remembered, because it took a lookup. 32 bytes each.
const FIRSTS_MAX: usize = 100_000;

/// An empty partition is deleted when nothing was pushed to it for so long.
const EMPTY_SECONDS: u64 = 30 * 86_400;

/// An empty partition that something refers to is looked at again after this.
const HELD_SECONDS: u64 = 86_400;

/// Queues that a sweep logs by name.
const LOGGED_QUEUES: usize = 10;

/// What retention took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Messages.
    pub messages: u64,
    /// Messages that a group had not passed, counted for each such group.
    pub skipped: u64,
}

impl Expired {
    fn add(&mut self, other: Expired) {
        self.messages += other.messages;
        self.skipped += other.skipped;
    }
}

/// The open group has no room for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// A sweep on its way over the list of partitions, which it compacts.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    read: usize,
    write: usize,
}

/// Where the sweep is, and what it knows.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// Partitions that are swept, ascending. Deleted ones leave with the next sweep.
    partitions: Vec<PartitionId>,
    /// The first partition that may be missing in the list.
    unnoted: PartitionId,
    walk: Option<Walk>,
    /// When the next sweep begins.
    due: Option<LogTime>,
    /// Queues with a limit.
    limited: HashSet<QueueId>,
    /// Partitions to be looked at again, with the lookup that was answered.
    again: VecDeque<(PartitionId, Option<Lookup>)>,
    /// Partitions whose rows are being looked up.
    waiting: HashMap<PartitionId, Lookup>,
    /// First kept offset and the log time of its run, where that had to be looked up.
    firsts: HashMap<PartitionId, (Offset, LogTime)>,
    /// The open group was full.
    stalled: bool,
    /// When an empty partition has to be looked at, as far as this sweep came.
    next_empty: Option<LogTime>,
    /// What this sweep took, by queue.
    taken: BTreeMap<QueueId, Expired>,
    /// What was taken since the start, by queue.
    totals: HashMap<QueueId, Expired>,
}

impl Retention {
    /// Retention over a recovered state; its first sweep begins at `first`, if there is anything to be done at all.
    pub(super) fn new(state: &State, first: LogTime) -> Retention {
        let is_empty = |partition: &Partition| partition.start == partition.next;
        let swept = state.partitions.values().filter(|partition| partition.dead_letters_of.is_none());
        let mut partitions: Vec<PartitionId> = swept.map(|partition| partition.id).collect();
        partitions.sort_unstable();
        let limited = state.queues.values().filter(|queue| is_limited(&queue.options));
        let limited: HashSet<QueueId> = limited.map(|queue| queue.id).collect();
        let is_due = !limited.is_empty() || state.partitions.values().any(is_empty);
        Retention {
            partitions,
            unnoted: state.next_partition,
            due: is_due.then_some(first),
            limited,
            ..Retention::default()
        }
    }

    fn note_new_partitions(&mut self, state: &State) {
        let end = state.next_partition.0.min(self.unnoted.0 + NOTED_PER_STEP);
        let new = (self.unnoted.0..end).map(PartitionId);
        let is_swept = |id: &PartitionId| {
            state.partitions.get(id).is_some_and(|partition| partition.dead_letters_of.is_none())
        };
        self.partitions.extend(new.filter(is_swept));
        self.unnoted = PartitionId(end);
    }

    fn look_at_empty(&mut self, time: LogTime) {
        self.next_empty = Some(self.next_empty.map_or(time, |next| next.min(time)));
    }
}

fn is_limited(options: &QueueOptions) -> bool {
    let gated = options.retention_seconds.max(options.completed_retention_seconds) > 0;
    options.max_wait_seconds > 0 || (options.retention_enabled && gated)
}

/// Since when messages are kept.
#[derive(Clone, Copy, Debug)]
struct Cutoffs {
    /// Older messages go.
    all: Option<LogTime>,
    /// Older messages go once every group has passed them. Nothing where `all` says as much.
    completed: Option<LogTime>,
}

impl Cutoffs {
    fn of(options: &QueueOptions, now: LogTime) -> Cutoffs {
        let limit = |applies: bool, seconds: u32| (applies && seconds > 0).then_some(seconds);
        let gate = options.retention_enabled;
        let age = limit(gate, options.retention_seconds);
        let all = age.into_iter().chain(limit(true, options.max_wait_seconds)).min();
        let completed = limit(gate, options.completed_retention_seconds);
        let completed = completed.filter(|seconds| all.is_none_or(|all| *seconds < all));
        let since = |seconds: u32| now.minus_seconds(u64::from(seconds));
        Cutoffs { all: all.map(since), completed: completed.map(since) }
    }

    /// The later one.
    fn latest(&self) -> Option<LogTime> {
        self.all.max(self.completed)
    }
}

/// Why a walk over the oldest messages ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// At a run that is kept, of this log time.
    Kept(LogTime),
    /// At the bound, or behind the last message.
    Bound,
    /// This has to be looked up first.
    Ask(Lookup),
    /// It was long enough.
    More,
}

/// The end of the runs from `from` on that are older than `cutoff` and end at or before `bound`.
fn walk(
    state: &State,
    partition: &Partition,
    from: Offset,
    cutoff: LogTime,
    bound: Offset,
    runs: &mut usize,
) -> (Offset, Stop) {
    let mut start = from;
    for span in partition.spans.iter().filter(|span| span.end() > from) {
        if start >= bound {
            return (start, Stop::Bound);
        }
        if span.last_logged < cutoff && span.end() <= bound {
            start = span.end(); // as a whole, whatever its rows are
            continue;
        }
        if span.last_logged >= cutoff && span.end().0 - span.base.max(start).0 == 1 {
            return (start, Stop::Kept(span.last_logged));
        }
        for run in state.runs(partition, start) {
            let run = match run {
                Ok(run) => run,
                Err(lookup) => return (start, Stop::Ask(lookup)),
            };
            if run.logged >= cutoff {
                return (start, Stop::Kept(run.logged));
            }
            if run.end() > bound {
                return (start, Stop::Bound);
            }
            if *runs == 0 {
                return (start, Stop::More);
            }
            *runs -= 1;
            start = run.end();
            if start >= span.end() {
                break;
            }
        }
    }
    (start, Stop::Bound)
}

/// The lowest cursor of all groups of a queue in a partition. Nothing without groups, or if one is at the start.
///
/// # Errors
/// What has to be looked up first.
fn slowest(state: &State, partition: &Partition, queue: &Queue) -> Result<Option<Offset>, Lookup> {
    let (mut lowest, mut unknown) = (None, None);
    for group in queue.groups.values().filter_map(|group| state.groups.get(group)) {
        match state.cursor_or_seed(partition, group) {
            Ok(cursor) if cursor.next <= partition.start => return Ok(None),
            Ok(cursor) => lowest = Some(lowest.map_or(cursor.next, |offset: Offset| offset.min(cursor.next))),
            Err(lookup) => unknown = Some(lookup),
        }
    }
    unknown.map_or(Ok(lowest), Err)
}

/// What a look at a partition found.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// The first offset that is kept.
    start: Offset,
    /// The log time of its run, where the look came to it.
    first: Option<LogTime>,
    /// What has to be looked up before more can be said.
    ask: Option<Lookup>,
    /// There is more to walk over.
    more: bool,
    /// What it cost.
    units: usize,
}

/// Which messages of a partition go.
fn find(state: &State, partition: &Partition, queue: &Queue, now: LogTime) -> Found {
    let cutoffs = Cutoffs::of(&queue.options, now);
    let mut found = Found { start: partition.start, first: None, ask: None, more: false, units: 0 };
    let mut runs = RUNS_PER_LOOK;
    let mut go_on = |found: &mut Found, cutoff: LogTime, bound: Offset| {
        let (start, stop) = walk(state, partition, found.start, cutoff, bound, &mut runs);
        found.start = start;
        match stop {
            Stop::Kept(logged) => found.first = Some(logged),
            Stop::Bound => {}
            Stop::Ask(lookup) => found.ask = Some(lookup),
            Stop::More => found.more = true,
        }
        found.units += (RUNS_PER_LOOK - runs) / RUNS_PER_UNIT;
        found.ask.is_none() && !found.more
    };
    if let Some(cutoff) = cutoffs.all
        && !go_on(&mut found, cutoff, partition.next)
    {
        return found;
    }
    if let Some(cutoff) = cutoffs.completed
        && found.start < partition.next
        && found.first.is_none_or(|first| first < cutoff)
    {
        found.units += queue.groups.len();
        match slowest(state, partition, queue) {
            Ok(None) => {}
            Ok(Some(bound)) => {
                found.first = None;
                go_on(&mut found, cutoff, bound);
            }
            Err(lookup) => found.ask = Some(lookup),
        }
    }
    found
}

impl<J: Journal> Core<J> {
    /// Goes on with the sweep of retention, if it is on its way or due. Call `settle` afterwards.
    pub fn sweep(&mut self) {
        if self.retention.due.is_some_and(|due| due <= self.now) && self.retention.walk.is_none() {
            self.retention.walk = Some(Walk::default());
            self.retention.next_empty = None;
            self.retention.due = Some(self.now.plus_us(self.settings.retention_sweep_us));
        }
        let mut units = UNITS_PER_STEP;
        let swept = self.sweep_step(&mut units).and_then(|()| self.forget_settled(&mut units));
        self.retention.stalled = swept.is_err();
    }

    /// When `sweep` has something to do next, if nothing happens before.
    pub(super) fn sweep_due(&self) -> Option<LogTime> {
        let retention = &self.retention;
        if retention.stalled {
            return None;
        }
        let swept = match retention.walk {
            _ if !retention.again.is_empty() => Some(self.now),
            Some(_) => (retention.waiting.len() < WAITING_MAX).then_some(self.now),
            None => retention.due,
        };
        swept.into_iter().chain(self.forget_due()).min()
    }

    /// Has the next sweep begin after so many microseconds.
    #[cfg(test)]
    pub(super) fn sweep_in(&mut self, us: u64) {
        self.retention.due = Some(self.now.plus_us(us));
    }

    /// Whether the sweep stopped for want of room in the open group.
    #[must_use]
    pub fn sweep_wants_room(&self) -> bool {
        self.retention.stalled
    }

    /// What retention took of a queue since the start of the daemon.
    #[must_use]
    pub fn expired(&self, queue: QueueId) -> Expired {
        self.retention.totals.get(&queue).copied().unwrap_or_default()
    }

    /// A queue was created, deleted or changed: it may have limits now, or none.
    pub(super) fn note_limits(&mut self, queue: QueueId) {
        match self.state.queues.get(&queue) {
            Some(known) if is_limited(&known.options) => {
                self.retention.limited.insert(queue);
                let latest = self.now.plus_us(self.settings.retention_sweep_us);
                self.retention.due = Some(self.retention.due.map_or(latest, |due| due.min(latest)));
            }
            Some(_) => {
                self.retention.limited.remove(&queue);
            }
            None => {
                self.retention.limited.remove(&queue);
                self.retention.totals.remove(&queue);
            }
        }
    }

    /// Rows of a partition arrived: if the sweep waits for them, it can decide now.
    pub(super) fn look_at_expiry(&mut self, partition: PartitionId) {
        if let Some(lookup) = self.retention.waiting.remove(&partition) {
            self.retention.again.push_back((partition, Some(lookup)));
        }
    }

    /// A lookup about a partition failed: the next sweep tries again.
    pub(super) fn expiry_unknown(&mut self, partition: PartitionId) {
        self.retention.waiting.remove(&partition);
    }

    fn sweep_step(&mut self, units: &mut usize) -> Result<(), NoRoom> {
        while *units > 0
            && let Some((partition, answered)) = self.retention.again.front().copied()
        {
            self.look_for_expired(partition, answered, units)?;
            self.retention.again.pop_front();
        }
        let Some(mut walk) = self.retention.walk else { return Ok(()) };
        self.retention.note_new_partitions(&self.state);
        while *units > 0 && self.retention.waiting.len() < WAITING_MAX {
            let Some(partition) = self.retention.partitions.get(walk.read).copied() else {
                if self.retention.unnoted >= self.state.next_partition {
                    self.end_sweep(walk);
                }
                return Ok(());
            };
            if self.state.partitions.contains_key(&partition) {
                self.look_for_expired(partition, None, units)?;
                if let Some(cell) = self.retention.partitions.get_mut(walk.write) {
                    *cell = partition;
                    walk.write += 1;
                }
            } else {
                *units -= 1;
            }
            walk.read += 1;
            self.retention.walk = Some(walk);
        }
        Ok(())
    }

    fn end_sweep(&mut self, walk: Walk) {
        self.retention.partitions.truncate(walk.write);
        self.retention.walk = None;
        if self.retention.limited.is_empty() {
            self.retention.firsts = HashMap::new();
            let next = self.retention.due; // no earlier than this
            self.retention.due =
                self.retention.next_empty.max(next).filter(|_| self.retention.next_empty.is_some());
        }
        let taken = std::mem::take(&mut self.retention.taken);
        if taken.len() > LOGGED_QUEUES {
            let mut sum = Expired::default();
            taken.values().for_each(|expired| sum.add(*expired));
            tracing::info!(
                queues = taken.len(),
                messages = sum.messages,
                skipped = sum.skipped,
                "messages expired"
            );
            return;
        }
        for (queue, expired) in taken {
            let name = self.state.queues.get(&queue).map(|queue| &*queue.name);
            tracing::info!(
                queue = name.unwrap_or("(deleted)"),
                messages = expired.messages,
                skipped = expired.skipped,
                "messages expired"
            );
        }
    }

    /// Looks at one partition, and takes what is too old. `answered`: what was looked up for this.
    fn look_for_expired(
        &mut self,
        id: PartitionId,
        answered: Option<Lookup>,
        units: &mut usize,
    ) -> Result<(), NoRoom> {
        *units = units.saturating_sub(1);
        let Some(partition) = self.state.partitions.get(&id) else { return Ok(()) };
        let Some(queue) = self.state.queues.get(&partition.queue) else { return Ok(()) };
        if partition.start >= partition.next {
            return self.look_at_empty(id);
        }
        let Some(latest) = Cutoffs::of(&queue.options, self.now).latest() else { return Ok(()) };
        let first = self.retention.firsts.get(&id);
        if first.is_some_and(|(start, logged)| *start == partition.start && *logged >= latest) {
            return Ok(());
        }
        let found = find(&self.state, partition, queue, self.now);
        *units = units.saturating_sub(found.units);
        if found.start > partition.start {
            if self.journal.fits(0, DELTA_BYTES) == Fit::Later {
                return Err(NoRoom);
            }
            let skipped_by = |group: &GroupId| {
                let cursor = self.state.cursor_or_seed(partition, self.state.groups.get(group)?).ok()?;
                Some(found.start.0.saturating_sub(cursor.next.0))
            };
            let expired = Expired {
                messages: found.start.0 - partition.start.0,
                skipped: queue.groups.values().filter_map(skipped_by).sum(),
            };
            *units = units.saturating_sub(queue.groups.len());
            self.retention.taken.entry(queue.id).or_default().add(expired);
            self.retention.totals.entry(queue.id).or_default().add(expired);
            self.stage(&Delta::PartitionStart { partition: id, start: found.start });
        }
        match (found.ask, found.first) {
            // Asked and answered, and not there any more: it was pushed out of memory, so the next sweep asks again.
            (Some(lookup), _) if answered == Some(lookup) => {}
            (Some(lookup), _) => {
                if self.retention.waiting.insert(id, lookup).is_none() {
                    self.wanted.push(lookup);
                }
            }
            (None, Some(logged)) if answered.is_some() => {
                if self.retention.firsts.len() >= FIRSTS_MAX {
                    self.retention.firsts.clear();
                }
                self.retention.firsts.insert(id, (found.start, logged));
            }
            (None, _) => {}
        }
        if found.more {
            self.retention.again.push_back((id, None));
        }
        self.look_at_empty(id)
    }

    /// Deletes a partition without messages to which nothing was pushed for long. Not one that somebody holds a lease
    /// of, that dead letters came from, or whose ids are still to be known.
    fn look_at_empty(&mut self, id: PartitionId) -> Result<(), NoRoom> {
        let Some(partition) = self.state.partitions.get(&id) else { return Ok(()) };
        let Some(queue) = self.state.queues.get(&partition.queue) else { return Ok(()) };
        if partition.start < partition.next || partition.next == Offset(0) {
            return Ok(());
        }
        let until = partition.last_logged.plus_seconds(EMPTY_SECONDS.max(queue.options.id_horizon_seconds()));
        if until >= self.now {
            self.retention.look_at_empty(until.plus_us(1));
            return Ok(());
        }
        let is_leased = |group: &GroupId| {
            let cursor = self.state.cursors.get(&(id, *group));
            cursor.is_some_and(|cursor| live_lease(&cursor, self.now).is_some())
        };
        if self.state.letters_from.contains_key(&id) || queue.groups.values().any(is_leased) {
            self.retention.look_at_empty(self.now.plus_seconds(HELD_SECONDS));
            return Ok(());
        }
        if self.journal.fits(0, DELTA_BYTES) == Fit::Later {
            return Err(NoRoom);
        }
        self.stage(&Delta::PartitionDeleted(id));
        Ok(())
    }
}
