//! Long polls that wait: who waits for what, until when, and whose turn it is.
//!
//! Purpose: a partition that becomes claimable finds its waiter with a few look-ups; a waiting poll costs memory
//! only.
//!
//! Invariants:
//! - Polls are filed under names, not ids, so they outlive the deletion of a queue and see the next one of its name.
//! - Among those that could take a partition, pinned polls come first, then the one that came first.
//! - Nothing is claimed for a poll in the last moments before its deadline, when its client may be giving up: it is
//!   out of the open waiters by then, and waits for its end only.
//! - Each parked poll has one entry among the deadlines; nothing else wakes for it.
//!
//! Must not: claim.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::{Equivalent, HashMap};

use super::command::{Pop, PopReply, PopTarget, PopTicket, Reply};
use super::core::{Caller, Core};
use super::journal::Journal;
use super::state::{Partition, Queue};
use crate::types::LogTime;

/// Order of arrival of a parked poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Arrival(u64);

/// Longest time before its deadline at which a poll is closed, in microseconds.
const MARGIN_MOST_US: u64 = 250_000;

/// Shortest such time, for polls that wait at least four times as long.
const MARGIN_LEAST_US: u64 = 50_000;

/// How long before its deadline a poll that waits for `wait_us` gets nothing any more.
fn margin_us(wait_us: u64) -> u64 {
    (wait_us / 100).clamp(MARGIN_LEAST_US, MARGIN_MOST_US).min(wait_us / 4)
}

#[derive(Debug)]
struct Poll {
    caller: Caller,
    pop: Arc<Pop>,
    /// From here on nothing is claimed for it.
    closes: LogTime,
    /// Then it is answered.
    ends: LogTime,
    open: bool,
}

impl Poll {
    fn due(&self) -> LogTime {
        if self.open { self.closes } else { self.ends }
    }
}

/// What a discovery poll asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Filter {
    namespace: Option<String>,
    task: Option<String>,
}

/// `Filter`, borrowed: hashes alike.
#[derive(Clone, Copy, Hash)]
struct FilterRef<'a> {
    namespace: Option<&'a str>,
    task: Option<&'a str>,
}

impl Equivalent<Filter> for FilterRef<'_> {
    fn equivalent(&self, key: &Filter) -> bool {
        self.namespace == key.namespace.as_deref() && self.task == key.task.as_deref()
    }
}

impl From<&FilterRef<'_>> for Filter {
    fn from(filter: &FilterRef<'_>) -> Filter {
        Filter { namespace: filter.namespace.map(str::to_owned), task: filter.task.map(str::to_owned) }
    }
}

/// The filters that match a queue.
fn filters_of(queue: &Queue) -> [FilterRef<'_>; 3] {
    let (namespace, task) = (Some(queue.namespace.as_str()), Some(queue.task.as_str()));
    [FilterRef { namespace, task: None }, FilterRef { namespace: None, task }, FilterRef { namespace, task }]
}

type Turn = BTreeSet<Arrival>;

/// Waiters of one queue name and group name.
#[derive(Debug, Default)]
struct Waiters {
    any: Turn,
    pinned: HashMap<Arc<str>, Turn>,
}

impl Waiters {
    fn first(&self) -> Option<Arrival> {
        self.any.first().into_iter().chain(self.pinned.values().filter_map(BTreeSet::first)).min().copied()
    }
}

/// Polls by what they wait for.
#[derive(Debug, Default)]
struct Interests {
    /// By queue name, then group name.
    queues: HashMap<Arc<str>, HashMap<Arc<str>, Waiters>>,
    /// Discovery, by filter, then group name.
    discovery: HashMap<Filter, HashMap<Arc<str>, Turn>>,
    /// Pinned polls among them.
    pinned: usize,
}

impl Interests {
    fn insert(&mut self, pop: &Pop, arrival: Arrival) {
        let group = pop.group.as_str();
        match &pop.target {
            PopTarget::Queue(queue) => {
                let groups = self.queues.entry_ref(queue.as_str()).or_default();
                groups.entry_ref(group).or_default().any.insert(arrival);
            }
            PopTarget::Partition { queue, partition } => {
                let groups = self.queues.entry_ref(queue.as_str()).or_default();
                let waiters = groups.entry_ref(group).or_default();
                waiters.pinned.entry_ref(partition.as_str()).or_default().insert(arrival);
                self.pinned += 1;
            }
            PopTarget::Discovery { namespace, task } => {
                let filter = FilterRef { namespace: namespace.as_deref(), task: task.as_deref() };
                let groups = self.discovery.entry_ref(&filter).or_default();
                groups.entry_ref(group).or_default().insert(arrival);
            }
        }
    }

    fn remove(&mut self, pop: &Pop, arrival: Arrival) {
        let group = pop.group.as_str();
        match &pop.target {
            PopTarget::Queue(queue) | PopTarget::Partition { queue, .. } => {
                let Some(groups) = self.queues.get_mut(queue.as_str()) else { return };
                let Some(waiters) = groups.get_mut(group) else { return };
                if let PopTarget::Partition { partition, .. } = &pop.target {
                    if let Some(turn) = waiters.pinned.get_mut(partition.as_str())
                        && turn.remove(&arrival)
                    {
                        self.pinned -= 1;
                        if turn.is_empty() {
                            waiters.pinned.remove(partition.as_str());
                        }
                    }
                } else {
                    waiters.any.remove(&arrival);
                }
                if waiters.any.is_empty() && waiters.pinned.is_empty() {
                    groups.remove(group);
                }
                if groups.is_empty() {
                    self.queues.remove(queue.as_str());
                }
            }
            PopTarget::Discovery { namespace, task } => {
                let filter = FilterRef { namespace: namespace.as_deref(), task: task.as_deref() };
                let Some(groups) = self.discovery.get_mut(&filter) else { return };
                if let Some(turn) = groups.get_mut(group) {
                    turn.remove(&arrival);
                    if turn.is_empty() {
                        groups.remove(group);
                    }
                }
                if groups.is_empty() {
                    self.discovery.remove(&filter);
                }
            }
        }
    }

    /// Discovery polls that this queue matches, by group name.
    fn discovering<'a>(&'a self, queue: &'a Queue) -> impl Iterator<Item = &'a HashMap<Arc<str>, Turn>> {
        filters_of(queue).into_iter().filter_map(|filter| self.discovery.get(&filter))
    }

    /// The first poll of each group that waits for something in this queue.
    fn first_by_group(&self, queue: &Queue, first: &mut HashMap<Arc<str>, Arrival>) {
        let mut note = |group: &Arc<str>, arrival: Option<Arrival>| {
            let Some(arrival) = arrival else { return };
            let known = first.entry_ref(&**group).or_insert(arrival);
            *known = arrival.min(*known);
        };
        for (group, waiters) in self.queues.get(&*queue.name).into_iter().flatten() {
            note(group, waiters.first());
        }
        for (group, turn) in self.discovering(queue).flatten() {
            note(group, turn.first().copied());
        }
    }
}

/// The parked polls.
#[derive(Debug, Default)]
pub(super) struct Parked {
    polls: HashMap<Arrival, Poll>,
    tickets: HashMap<PopTicket, Arrival>,
    deadlines: BTreeSet<(LogTime, Arrival)>,
    /// Those that something can be claimed for.
    open: Interests,
    /// Those about to end. They still register their groups.
    closing: Interests,
    last_arrival: u64,
    /// Queues that appeared or changed since parked polls last registered their groups.
    pub(super) unregistered: VecDeque<crate::types::QueueId>,
}

impl Parked {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.polls.is_empty()
    }

    /// Polls that wait.
    pub(super) fn len(&self) -> usize {
        self.polls.len()
    }

    /// Whether any open poll waits for one partition.
    pub(super) fn any_pinned(&self) -> bool {
        self.open.pinned > 0
    }

    /// When the first poll closes or ends.
    pub(super) fn next_due(&self) -> Option<LogTime> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Parks a poll.
    pub(super) fn park(&mut self, caller: Caller, pop: Pop, now: LogTime) {
        self.last_arrival += 1;
        let arrival = Arrival(self.last_arrival);
        let closes = now.plus_us(pop.wait_us - margin_us(pop.wait_us));
        let ends = now.plus_us(pop.wait_us);
        self.open.insert(&pop, arrival);
        self.deadlines.insert((closes, arrival));
        self.tickets.insert(pop.ticket, arrival);
        self.polls.insert(arrival, Poll { caller, pop: Arc::new(pop), closes, ends, open: true });
    }

    /// Takes a poll out.
    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<Caller> {
        let poll = self.polls.remove(&arrival)?;
        self.deadlines.remove(&(poll.due(), arrival));
        self.tickets.remove(&poll.pop.ticket);
        let interests = if poll.open { &mut self.open } else { &mut self.closing };
        interests.remove(&poll.pop, arrival);
        Some(poll.caller)
    }

    fn close(&mut self, arrival: Arrival) {
        let Some(poll) = self.polls.get_mut(&arrival) else { return };
        if !poll.open {
            return;
        }
        self.deadlines.remove(&(poll.due(), arrival));
        poll.open = false;
        self.deadlines.insert((poll.due(), arrival));
        self.open.remove(&poll.pop, arrival);
        self.closing.insert(&poll.pop, arrival);
    }

    /// The open poll that waits for exactly this partition and came first.
    pub(super) fn first_pinned(&self, queue: &Queue, partition: &Partition, group: &str) -> Option<Arrival> {
        let waiters = self.open.queues.get(&*queue.name)?.get(group)?;
        waiters.pinned.get(&*partition.name)?.first().copied()
    }

    /// The open poll that waits for any partition of this queue, or of queues like it, and came first.
    pub(super) fn first_other(&self, queue: &Queue, group: &str) -> Option<Arrival> {
        let any = self.open.queues.get(&*queue.name).and_then(|groups| groups.get(group)?.any.first());
        let discovery = self.open.discovering(queue).filter_map(|groups| groups.get(group)?.first());
        any.into_iter().chain(discovery).min().copied()
    }

    /// Open polls that wait for any partition of this queue.
    pub(super) fn others(&self, queue: &Queue, group: &str) -> usize {
        let any = self.open.queues.get(&*queue.name).and_then(|groups| Some(groups.get(group)?.any.len()));
        any.unwrap_or(0)
            + self.open.discovering(queue).filter_map(|groups| Some(groups.get(group)?.len())).sum::<usize>()
    }

    /// The first poll of each group that waits for something in this queue, in the order of their arrival.
    pub(super) fn first_by_group(&self, queue: &Queue) -> Vec<Arc<Pop>> {
        let mut first = HashMap::new();
        self.open.first_by_group(queue, &mut first);
        self.closing.first_by_group(queue, &mut first);
        let mut first: Vec<Arrival> = first.into_values().collect();
        first.sort_unstable();
        first.iter().filter_map(|arrival| Some(Arc::clone(&self.polls.get(arrival)?.pop))).collect()
    }

    /// The request of an open poll, or `None` if it is too late for it: then it is closed.
    pub(super) fn open_pop(&mut self, arrival: Arrival, now: LogTime) -> Option<Arc<Pop>> {
        let poll = self.polls.get(&arrival)?;
        if poll.closes <= now {
            self.close(arrival);
            return None;
        }
        Some(Arc::clone(&poll.pop))
    }

    /// Entries of every index, polls not counted: for tests of what is kept.
    #[cfg(test)]
    pub(super) fn index_entries(&self) -> usize {
        let interests = [&self.open, &self.closing];
        let filed: usize =
            interests.iter().map(|kept| kept.queues.len() + kept.discovery.len() + kept.pinned).sum();
        filed + self.tickets.len() + self.deadlines.len() + self.unregistered.len()
    }
}

impl<J: Journal> Core<J> {
    /// Takes a poll out and answers it with nothing.
    pub(super) fn answer_empty(&mut self, arrival: Arrival) {
        if let Some(caller) = self.parked.remove(arrival) {
            self.answers.push((caller, Reply::Pop(PopReply::default())));
        }
    }

    /// The client of a poll left. Whoever keeps the other end of its answer learns from an empty one that it can
    /// let go of it; nobody reads it.
    pub(super) fn gone(&mut self, ticket: PopTicket) {
        if let Some(arrival) = self.parked.tickets.get(&ticket) {
            self.answer_empty(*arrival);
        }
    }

    /// Closes and ends polls whose time has come.
    pub(super) fn end_polls(&mut self) {
        while let Some((time, arrival)) = self.parked.deadlines.first().copied() {
            if time > self.now {
                return;
            }
            let ended = self.parked.polls.get(&arrival).is_none_or(|poll| poll.ends <= self.now);
            if ended {
                self.answer_empty(arrival);
            } else {
                self.parked.close(arrival);
            }
        }
    }

    /// Answers every parked poll with nothing, in the order of their arrival: the daemon stops.
    pub fn release_all_parked(&mut self) {
        let mut arrivals: Vec<Arrival> = self.parked.polls.keys().copied().collect();
        arrivals.sort_unstable();
        for arrival in arrivals {
            self.answer_empty(arrival);
        }
    }
}
