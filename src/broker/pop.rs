//! Pops: register the group, claim what is ready, park for the rest.
//!
//! Purpose: hand spans of messages to clients, at once or when there are some.
//!
//! Invariants:
//! - One live lease per partition and group. All claims of one pop share one lease id.
//! - A claim is one contiguous span from the cursor on. Committed at delivery, the cursor passes exactly the span.
//! - A group is registered durably before anything is claimed for it. One that begins at new messages begins at the
//!   instant at which its pop arrived, however long the pop waits for its queue.
//! - Nothing is claimed for a client that is known to be gone.
//! - Nothing is staged that does not fit the open group; who waits for room loses nothing and keeps its turn.
//!
//! Must not: look for claimable partitions anywhere but in the ready lists.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::command::{BrokerError, Claim, Piece, Pop, PopReply, PopTarget, Reply, StartRequest};
use super::core::{Block, Caller, Core, Step};
use super::journal::{DELTA_BYTES, Fit, Journal};
use super::ready::{Visibility, evaluate};
use crate::format::delta::{Cause, CursorDelta, CursorState, Delta, GroupDef, Lease, StartPolicy};
use crate::index::Lookup;
use crate::index::runs::Run;
use crate::types::{GroupId, LeaseId, LogTime, Offset, PartitionId, QUEUE_MODE_GROUP, QueueId, name_bytes};

/// Length of a lease where neither the pop nor the queue says one, in seconds.
const LEASE_SECONDS: u32 = 60;

/// The open group has no room for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoRoom;

/// The groups that a pop claims for, one per queue.
type Groups = SmallVec<[(QueueId, GroupId); 1]>;

/// A pop's claims so far, and what it may still take.
struct Taking<'a> {
    pop: &'a Pop,
    lease: Option<LeaseId>,
    claims: Vec<Claim>,
    /// Messages that may still be taken.
    batch: u32,
    /// Bytes that may still be taken.
    bytes: u64,
    /// Partitions that may still be taken.
    partitions: u32,
    /// What has to be looked up before more can be taken.
    asked: Vec<Lookup>,
}

/// Partitions about which a pop asks at once when it knows of none to claim.
const UNKNOWN_MAX: usize = 256;

/// Whether a partition was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Claimed,
    /// The answer is as large as it may be.
    Enough,
    NoRoom,
}

/// What came of looking for a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// Look again: a waiter was served or turned out to be none.
    Again,
    /// Nobody waits for this pair.
    Nobody,
    NoRoom,
}

/// A contiguous span of one partition.
struct Span {
    /// Runs with the first and the last offset of the span in each.
    parts: SmallVec<[(Run, Offset, Offset); 4]>,
    messages: u32,
    bytes: u64,
}

impl Span {
    /// The messages from `next` on that are visible and within limits. Runs count in whole, because they are read
    /// in whole. A lookup if not even the first of them is known. If `must`, at least one message is taken, and of a run that is too large by itself about as many as
    /// its mean message size allows.
    fn gather(
        runs: impl Iterator<Item = Result<Run, Lookup>>,
        next: Offset,
        visible: impl Fn(&Run) -> bool,
        limits: (u32, u64),
        must: bool,
    ) -> Result<Span, Lookup> {
        let (batch, bytes) = limits;
        let mut span = Span { parts: SmallVec::new(), messages: 0, bytes: 0 };
        let mut expected = next;
        for run in runs {
            let run = match run {
                Ok(run) => run,
                // What is at hand is enough for now.
                Err(_) if !span.parts.is_empty() => break,
                Err(lookup) => return Err(lookup),
            };
            let left = batch - span.messages;
            let fresh = span.parts.is_empty();
            let first = run.base.max(expected);
            if left == 0 || !visible(&run) || (!fresh && first != expected) {
                break;
            }
            let there = u32::try_from(run.end().0 - first.0).unwrap_or(u32::MAX);
            let mut count = there.min(left);
            if u64::from(run.bytes) > bytes.saturating_sub(span.bytes) {
                if !(must && fresh) {
                    break;
                }
                let fitting = bytes.saturating_mul(u64::from(run.count)) / u64::from(run.bytes.max(1));
                count = count.min(u32::try_from(fitting).unwrap_or(u32::MAX).max(1));
            }
            expected = Offset(first.0 + u64::from(count));
            span.parts.push((run, first, Offset(expected.0 - 1)));
            span.messages += count;
            span.bytes = span.bytes.saturating_add(u64::from(run.bytes));
            if expected < run.end() {
                break;
            }
        }
        Ok(span)
    }

    fn ends(&self) -> Option<(Offset, Offset)> {
        Some((self.parts.first()?.1, self.parts.last()?.2))
    }
}

/// Name limit of a pop: bytes that it takes.
fn pop_name_bytes(pop: &Pop) -> u64 {
    match &pop.target {
        PopTarget::Queue(queue) => name_bytes(queue, "", &pop.group),
        PopTarget::Partition { queue, partition } => name_bytes(queue, partition, &pop.group),
        PopTarget::Discovery { .. } => name_bytes("", "", &pop.group),
    }
}

impl<J: Journal> Core<J> {
    /// Answers a pop, or parks it.
    pub(super) fn pop(&mut self, caller: Caller, pop: &mut Pop) -> Step {
        self.catch_up(); // whoever waits already comes first
        if pop.presence.left() {
            return Step::Done(Reply::Pop(PopReply::default()));
        }
        let (bytes, limit) = (pop_name_bytes(pop), self.settings.name_bytes);
        if bytes > limit {
            return Step::Done(Reply::Failed(BrokerError::NameTooLong { bytes, limit }));
        }
        // Settled once: what waits for room or for its queue keeps the instant at which it arrived.
        if pop.group == QUEUE_MODE_GROUP {
            pop.start = StartRequest::All;
        } else if pop.start == StartRequest::New {
            pop.start = StartRequest::From(self.stamp());
        }
        match self.claim(pop, pop.partitions) {
            Err(NoRoom) => Step::Blocked(Block::Room),
            Ok((reply, asked)) if reply.claims.is_empty() && !asked.is_empty() => {
                Step::Blocked(Block::Index(asked))
            }
            Ok((reply, asked)) if pop.wait_us == 0 || !reply.claims.is_empty() => {
                self.wanted.extend(asked);
                Step::Done(Reply::Pop(reply))
            }
            Ok(_) => {
                let limit = self.settings.parked_polls;
                if self.parked.len() as u64 >= u64::from(limit) {
                    return Step::Done(Reply::Failed(BrokerError::TooManyPolls { limit }));
                }
                self.parked.park(caller, pop.clone(), self.now);
                Step::Parked
            }
        }
    }

    /// Follows what commands changed: ready lists, timers, waiters. Answers go to `answers`.
    pub fn settle(&mut self) {
        loop {
            self.follow_touched();
            if self.register_parked().is_err() {
                return;
            }
            self.serve();
            if self.state.touched.is_empty() {
                return;
            }
        }
    }

    /// Does what is due at `now`, then settles.
    pub fn tick(&mut self) {
        self.end_polls();
        self.fire_timers();
        self.settle();
    }

    /// When `tick` has something to do next, if nothing happens before.
    #[must_use]
    pub fn tick_due(&self) -> Option<LogTime> {
        self.ready.next_due().into_iter().chain(self.parked.next_due()).min()
    }

    /// When `tick` or `sweep` has something to do next, if nothing happens before.
    #[must_use]
    pub fn next_due(&self) -> Option<LogTime> {
        self.tick_due().into_iter().chain(self.sweep_due()).min()
    }

    /// Whether waiters were left unserved for want of room in the open group; `settle` goes on with them.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        !self.ready.fresh.is_empty() || !self.parked.unregistered.is_empty()
    }

    fn catch_up(&mut self) {
        if self.wants_room()
            || !self.state.touched.is_empty()
            || self.tick_due().is_some_and(|due| due <= self.now)
        {
            self.tick();
        }
    }

    /// Whether records of so many bytes fit. Space for messages is not asked for: pops work on a full disk.
    fn room(&self, bytes: u64) -> Result<(), NoRoom> {
        if self.journal.fits(0, bytes) == Fit::Later { Err(NoRoom) } else { Ok(()) }
    }

    /// The groups that a pop claims for, registered where they are not yet.
    fn groups_of(&mut self, pop: &Pop) -> Result<Groups, NoRoom> {
        match &pop.target {
            PopTarget::Queue(name) => {
                let queue = match self.state.queue_named(name) {
                    Some(queue) => queue.id,
                    None => {
                        // Both records at once, so that no queue is created for a pop that then waits.
                        self.room(2 * DELTA_BYTES + 3 * name.len() as u64 + pop.group.len() as u64)?;
                        self.queue_on_use(name)
                    }
                };
                let group = self.register(queue, pop)?;
                Ok(group.into_iter().map(|group| (queue, group)).collect())
            }
            PopTarget::Partition { queue, .. } => {
                let Some(queue) = self.state.queue_named(queue).map(|queue| queue.id) else {
                    return Ok(Groups::new());
                };
                let group = self.register(queue, pop)?;
                Ok(group.into_iter().map(|group| (queue, group)).collect())
            }
            PopTarget::Discovery { namespace, task } => {
                let mut groups = Groups::new();
                for queue in self.ready.matching.queues(namespace.as_deref(), task.as_deref()) {
                    if let Some(group) = self.register(queue, pop)? {
                        groups.push((queue, group));
                    }
                }
                Ok(groups)
            }
        }
    }

    /// The pop's group in a queue; registered with the pop's start if it is new there. `None` where its name and the
    /// queue's are too long together, which only a discovery pop can meet: it goes without that queue.
    fn register(&mut self, queue: QueueId, pop: &Pop) -> Result<Option<GroupId>, NoRoom> {
        let Some(known) = self.state.queues.get(&queue) else { return Ok(None) };
        if let Some(group) = known.groups.get(pop.group.as_str()) {
            return Ok(Some(*group));
        }
        if name_bytes(&known.name, "", &pop.group) > self.settings.name_bytes {
            return Ok(None);
        }
        self.room(DELTA_BYTES + pop.group.len() as u64)?;
        let start = match pop.start {
            StartRequest::All => StartPolicy::All,
            StartRequest::From(time) => StartPolicy::From(time),
            StartRequest::New => StartPolicy::From(self.stamp()),
        };
        let (group, created) = (self.state.next_group, self.stamp());
        self.stage(&Delta::Group(GroupDef {
            group,
            queue,
            name: &pop.group,
            start,
            conflating: false,
            retired: false,
            created,
        }));
        self.look_at_group(queue, group);
        Ok(Some(group))
    }

    /// Registers the groups of parked polls in queues that appeared.
    fn register_parked(&mut self) -> Result<(), NoRoom> {
        while let Some(queue) = self.parked.unregistered.front().copied() {
            let pops = self.state.queues.get(&queue).map(|queue| self.parked.first_by_group(queue));
            for pop in pops.into_iter().flatten() {
                self.register(queue, &pop)?;
            }
            self.parked.unregistered.pop_front();
        }
        Ok(())
    }

    /// Gives what became claimable to those who wait for it.
    fn serve(&mut self) {
        if self.parked.is_empty() {
            self.ready.fresh.clear();
        }
        let mut index = 0;
        while self.parked.any_pinned()
            && let Some((partition, group)) = self.ready.fresh.get(index).copied()
        {
            match self.serve_one(partition, group, true) {
                Served::Again => {}
                Served::Nobody => index += 1,
                Served::NoRoom => return,
            }
        }
        while let Some((partition, group)) = self.ready.fresh.front().copied() {
            match self.serve_one(partition, group, false) {
                Served::Again => {}
                Served::Nobody => {
                    self.ready.fresh.pop_front();
                }
                Served::NoRoom => return,
            }
        }
    }

    fn serve_one(&mut self, partition: PartitionId, group: GroupId, pinned: bool) -> Served {
        if !self.ready.is_listed(partition, group) {
            return Served::Nobody;
        }
        let (Some(partition), Some(known)) =
            (self.state.partitions.get(&partition), self.state.groups.get(&group))
        else {
            return Served::Nobody;
        };
        let Some(queue) = self.state.queues.get(&partition.queue) else { return Served::Nobody };
        let arrival = if pinned {
            self.parked.first_pinned(queue, partition, &known.name)
        } else {
            self.parked.first_other(queue, &known.name)
        };
        let Some(arrival) = arrival else { return Served::Nobody };
        // Several waiters share what is there, so that as many as possible are served.
        let most = match self.parked.others(queue, &known.name) {
            0 | 1 => u32::MAX,
            others => u32::try_from(self.ready.claimable(group).div_ceil(others)).unwrap_or(u32::MAX),
        };
        let Some(pop) = self.parked.open_pop(arrival, self.now) else { return Served::Again };
        if pop.presence.left() {
            self.answer_empty(arrival);
            return Served::Again;
        }
        match self.claim(&pop, pop.partitions.min(most)) {
            Err(NoRoom) => Served::NoRoom,
            Ok((reply, asked)) if reply.claims.is_empty() => {
                self.wanted.extend(asked);
                Served::Nobody
            }
            Ok((reply, asked)) => {
                self.wanted.extend(asked);
                if let Some(caller) = self.parked.remove(arrival) {
                    self.answers.push((caller, Reply::Pop(reply)));
                }
                Served::Again
            }
        }
    }

    /// Claims for a pop, at most so many partitions. Nothing to be had is an empty answer. Also gives what has to be
    /// looked up before more could be claimed.
    fn claim(&mut self, pop: &Pop, partitions: u32) -> Result<(PopReply, Vec<Lookup>), NoRoom> {
        let groups = self.groups_of(pop)?;
        let asked = self.rows_missing(pop, &groups, partitions);
        if !asked.is_empty() {
            return Ok((PopReply::default(), asked));
        }
        let mut taking = Taking {
            pop,
            lease: None,
            claims: Vec::new(),
            batch: pop.batch.max(1),
            bytes: self.settings.pop_bytes,
            partitions: partitions.max(1),
            asked: Vec::new(),
        };
        let taken = match (&pop.target, groups.first()) {
            (_, None) => Taken::Enough,
            (PopTarget::Partition { partition, .. }, Some((queue, group))) => {
                self.take_named(&mut taking, *queue, partition, *group)
            }
            _ => self.take_ready(&mut taking, &groups),
        };
        if taken == Taken::NoRoom && taking.claims.is_empty() {
            return Err(NoRoom);
        }
        if taking.claims.is_empty() {
            // An empty answer must be true: nothing is there, not nothing is known.
            let unknown = groups.iter().flat_map(|(_, group)| self.ready.unknown(*group));
            taking.asked.extend(unknown.take(UNKNOWN_MAX));
        }
        let reply = PopReply { lease: taking.lease, claims: taking.claims };
        Ok((reply, taking.asked))
    }

    /// What has to be looked up before a pop can be served in turn: rows of the messages that it would get.
    fn rows_missing(&self, pop: &Pop, groups: &Groups, partitions: u32) -> Vec<Lookup> {
        let mut asked = Vec::new();
        let mut look = |partition: PartitionId, group: GroupId| {
            let known = self.state.partitions.get(&partition).zip(self.state.groups.get(&group));
            let Some((partition, group)) = known else { return };
            if let Ok(cursor) = self.state.cursor_or_seed(partition, group) {
                let messages = u64::from(pop.batch.max(1));
                self.state.index.missing(partition.id, &partition.spans, cursor.next, messages, &mut asked);
            }
        };
        for (queue, group) in groups {
            match &pop.target {
                PopTarget::Partition { partition, .. } => {
                    let queue = self.state.queues.get(queue);
                    if let Some(partition) =
                        queue.and_then(|queue| queue.partitions.get(&self.state.partitions, partition))
                        && self.ready.is_listed(partition, *group)
                    {
                        look(partition, *group);
                    }
                }
                _ => {
                    for partition in self.ready.in_order(*group).take(partitions.max(1) as usize) {
                        look(partition, *group);
                    }
                }
            }
        }
        asked
    }

    fn take_named(&mut self, taking: &mut Taking<'_>, queue: QueueId, name: &str, group: GroupId) -> Taken {
        let queue = self.state.queues.get(&queue);
        let Some(partition) = queue.and_then(|queue| queue.partitions.get(&self.state.partitions, name))
        else {
            return Taken::Enough;
        };
        // The list says so too, unless something changed in this very step.
        match evaluate(&self.state, self.now, partition, group) {
            Visibility::Now => self.take(taking, partition, group),
            other => {
                self.ready.set(partition, group, other);
                Taken::Enough
            }
        }
    }

    /// Takes from the lists of the groups whatever has been ready for longest, until nothing is left or allowed.
    fn take_ready(&mut self, taking: &mut Taking<'_>, groups: &Groups) -> Taken {
        let fronts =
            groups.iter().filter_map(|(_, group)| Some(Reverse((self.ready.front(*group)?.0, *group))));
        let mut fronts: BinaryHeap<Reverse<(u64, GroupId)>> = fronts.collect();
        while let Some(Reverse((_, group))) = fronts.pop() {
            if taking.partitions == 0 || taking.batch == 0 {
                return Taken::Enough;
            }
            let Some((_, partition)) = self.ready.front(group) else { continue };
            match evaluate(&self.state, self.now, partition, group) {
                Visibility::Now => match self.take(taking, partition, group) {
                    Taken::Claimed => {}
                    end => return end,
                },
                other => {
                    self.ready.set(partition, group, other);
                }
            }
            if let Some((place, _)) = self.ready.front(group) {
                fronts.push(Reverse((place, group)));
            }
        }
        Taken::Enough
    }

    /// Claims a partition that is visible to the group.
    fn take(&mut self, taking: &mut Taking<'_>, partition: PartitionId, group: GroupId) -> Taken {
        if self.room(DELTA_BYTES).is_err() {
            return Taken::NoRoom;
        }
        let (Some(known), Some(consumer)) =
            (self.state.partitions.get(&partition), self.state.groups.get(&group))
        else {
            unreachable!("partition {partition} is visible to group {group}, so both exist");
        };
        let Some(queue) = self.state.queues.get(&known.queue) else {
            unreachable!("queue {} of partition {partition} exists", known.queue);
        };
        let Ok(cursor) = self.state.cursor_or_seed(known, consumer) else {
            unreachable!("partition {partition} is visible to group {group}, so its cursor is known");
        };
        let delay = u64::from(queue.options.delayed_processing_seconds);
        let visible = |run: &Run| delay == 0 || run.logged.plus_seconds(delay) <= self.now;
        let must = taking.claims.is_empty();
        let runs = self.state.runs(known, cursor.next);
        let span = match Span::gather(runs, cursor.next, visible, (taking.batch, taking.bytes), must) {
            Ok(span) => span,
            Err(lookup) => {
                // What was at hand a moment ago was pushed out of memory: the next try asks again.
                taking.asked.push(lookup);
                return Taken::Enough;
            }
        };
        let Some((first, last)) = span.ends() else { return Taken::Enough };
        let pieces = span.parts.iter().map(|(run, first, last)| Piece {
            run: run.header(partition),
            source: self.journal.source(partition, run),
            first: *first,
            last: *last,
        });
        let pieces = pieces.collect();
        let partition_name = known.name.clone();
        let own = taking.pop.lease_seconds.unwrap_or(queue.options.lease_seconds);
        let seconds = u64::from(if own == 0 { LEASE_SECONDS } else { own });

        let (attempt, cause, state) = if taking.pop.auto_ack {
            let state =
                CursorState { next: last.next(), retries_used: 0, attempts: 0, lease: None, ..cursor };
            (1, Cause::AutoAck, state)
        } else {
            let again = cursor.attempts > 0 && cursor.attempt_first == first;
            let attempt = if again { cursor.attempts.saturating_add(1) } else { 1 };
            let id = match taking.lease {
                Some(id) => id,
                None => self.mint_lease(),
            };
            taking.lease = Some(id);
            let lease = Some(Lease { id, end: last, expires: self.now.plus_seconds(seconds) });
            let state = CursorState { next: first, attempt_first: first, attempts: attempt, lease, ..cursor };
            (attempt, Cause::Claim, state)
        };
        // Out of the list: where more is visible it comes back at the end.
        self.ready.set(partition, group, Visibility::Never);
        self.stage(&Delta::Cursor(CursorDelta { partition, group, cause, state }));
        taking.batch -= span.messages;
        taking.bytes = taking.bytes.saturating_sub(span.bytes);
        taking.partitions -= 1;
        taking.claims.push(Claim { partition, partition_name, attempt, pieces });
        Taken::Claimed
    }
}
