//! Counts what there is: queues, partitions, groups, how far each got.
//!
//! Purpose: one walk over the state that answers every list of the admin plane, from offsets alone.
//!
//! Counting. Of a partition, `total` messages are kept. The slowest of its queue's groups has read up to some offset;
//! what is above and in no live lease is `pending`, what is in one is `processing`, the rest is completed. A group that
//! has not met a partition counts with the place where its policy makes it begin. Without any group everything that is
//! kept is pending. So the three are disjoint and their sum is `total`.
//!
//! Invariants:
//! - A walk takes bounded steps and lets other commands go between them: a survey is no snapshot, each partition's
//!   numbers are of one instant.
//! - Payloads are never read. Times come from the index.
//!
//! Must not: change anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use smol_str::SmolStr;

use super::ack::live_lease;
use super::command::Reply;
use super::core::{Block, Core, Step};
use super::journal::Journal;
use super::state::{Partition, Queue};
use crate::format::delta::StartPolicy;
use crate::index::Lookup;
use crate::types::{GroupId, LeaseId, Offset, PartitionId, QueueId, QueueOptions, WallTime};

/// Pairs of partition and group looked at in one step: about 100 ns each.
const PAIRS_PER_STEP: usize = 4096;

/// What to count.
#[derive(Clone, Debug, Default)]
pub struct SurveyQuery {
    /// This queue only.
    pub queue: Option<String>,
    /// Queues of this namespace only.
    pub namespace: Option<String>,
    /// Queues of this task only.
    pub task: Option<String>,
    /// Count pending messages of this group instead of the slowest, and list no other group.
    pub group: Option<String>,
    /// Most rows of partitions, those with most pending messages first; 0 for none.
    pub partitions: usize,
    /// List groups.
    pub groups: bool,
    /// Most rows of pairs of partition and group, those that are furthest behind first; 0 for none.
    pub pairs: usize,
    /// Of those pairs only such as have unread messages.
    pub lagging: bool,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Queues, in the order of their creation.
    pub queues: Vec<QueueRow>,
    /// Partitions, most pending first.
    pub partitions: Vec<PartitionRow>,
    /// Groups by queue.
    pub groups: Vec<GroupRow>,
    /// Stored cursors, furthest behind first.
    pub pairs: Vec<PairRow>,
    /// Rows of partitions or pairs were left out for the limit.
    pub truncated: bool,
    /// Wall time at the end.
    pub now: WallTime,
}

/// Numbers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kept.
    pub total: u64,
    /// Unread by the slowest group, and in no live lease.
    pub pending: u64,
    /// In a live lease of any group.
    pub processing: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

impl Counts {
    /// Read by every group.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.total - self.pending - self.processing
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Counts) {
        self.total += other.total;
        self.pending += other.pending;
        self.processing += other.processing;
        self.dead_letters += other.dead_letters;
    }
}

/// A queue.
#[derive(Clone, Debug)]
pub struct QueueRow {
    /// Identity.
    pub id: QueueId,
    /// Name.
    pub name: Arc<str>,
    /// Namespace.
    pub namespace: String,
    /// Task.
    pub task: String,
    /// When it was created.
    pub created: WallTime,
    /// Options.
    pub options: QueueOptions,
    /// Partitions.
    pub partitions: u64,
    /// Partitions with pending messages.
    pub partitions_pending: u64,
    /// Messages.
    pub counts: Counts,
    /// Parts of segments that hold its messages.
    pub spans: u64,
    /// Bytes of its messages, from the mean size of a message in each segment.
    pub bytes: u64,
    /// Whether the group of the query is registered and gets newest messages only.
    pub conflating: bool,
}

/// A partition.
#[derive(Clone, Debug)]
pub struct PartitionRow {
    /// Identity.
    pub id: PartitionId,
    /// Its queue.
    pub queue: Arc<str>,
    /// Name.
    pub name: SmolStr,
    /// When it was created.
    pub created: WallTime,
    /// Messages.
    pub counts: Counts,
    /// When the oldest kept message was pushed.
    pub oldest: Option<WallTime>,
    /// When the newest was.
    pub newest: Option<WallTime>,
    /// When the oldest was that the slowest group has not read.
    pub unread_since: Option<WallTime>,
    /// The first offset that the slowest group has not read.
    unread_from: Offset,
}

/// A group of a queue.
#[derive(Clone, Debug)]
pub struct GroupRow {
    /// Name.
    pub name: Arc<str>,
    /// Its queue.
    pub queue: Arc<str>,
    /// Partitions in which it has a cursor.
    pub cursors: u64,
    /// Partitions in which it has unread messages.
    pub lagging: u64,
    /// Unread messages.
    pub lag: u64,
    /// When its oldest unread message was pushed, or before: exact to the part of a segment that holds it.
    pub unread_since: Option<WallTime>,
    /// Whether it ever read anything.
    pub consumed: bool,
    /// Where it begins.
    pub start: StartPolicy,
    /// When it was registered.
    pub created: WallTime,
    /// Newest messages only.
    pub conflating: bool,
}

/// A group's cursor in a partition.
#[derive(Clone, Debug)]
pub struct PairRow {
    /// The group.
    pub group: Arc<str>,
    /// The queue.
    pub queue: Arc<str>,
    /// The partition's name.
    pub partition: SmolStr,
    /// The partition.
    pub id: PartitionId,
    /// The first unread offset, which is also how many positions were retired.
    pub next: Offset,
    /// Unread messages.
    pub lag: u64,
    /// When the first of them was pushed.
    pub unread_since: Option<WallTime>,
    /// The live lease.
    pub lease: Option<LeaseId>,
}

/// A survey being taken.
#[derive(Debug)]
pub struct SurveyWork {
    query: SurveyQuery,
    survey: Survey,
    /// Queues that are not counted yet; made at the first step.
    queues: Option<std::vec::IntoIter<QueueId>>,
    open: Option<Open>,
    /// Rows of partitions and pairs whose times are known.
    timed: (usize, usize),
}

/// The queue that is being counted.
#[derive(Debug)]
struct Open {
    row: QueueRow,
    partitions: Vec<PartitionId>,
    groups: BTreeMap<GroupId, GroupRow>,
}

impl SurveyWork {
    /// Work for this query.
    #[must_use]
    pub fn new(query: SurveyQuery) -> SurveyWork {
        SurveyWork { query, survey: Survey::default(), queues: None, open: None, timed: (0, 0) }
    }
}

impl<J: Journal> Core<J> {
    /// Carries a survey on.
    pub(super) fn survey(&mut self, work: &mut SurveyWork) -> Step {
        if work.queues.is_none() {
            work.queues = Some(self.queues_of(&work.query).into_iter());
        }
        let mut left = PAIRS_PER_STEP;
        while left > 0 {
            if let Some(open) = &mut work.open {
                if let Some(partition) = open.partitions.last() {
                    let known = self.state.partitions.get(partition);
                    let pairs =
                        match known.map(|known| self.count(known, &work.query, open, &mut work.survey)) {
                            None => 0,
                            Some(Ok(())) => open.groups.len(),
                            Some(Err(lookup)) => return Step::Blocked(Block::Index(vec![lookup])),
                        };
                    left = left.saturating_sub(1 + pairs);
                    open.partitions.pop();
                    trim(&mut work.survey, &work.query, 2);
                } else if let Some(Open { row, groups, .. }) = work.open.take() {
                    work.survey.queues.push(row);
                    if work.query.groups {
                        work.survey.groups.extend(groups.into_values());
                    }
                }
                continue;
            }
            let Some(queue) = work.queues.as_mut().and_then(Iterator::next) else {
                trim(&mut work.survey, &work.query, 1);
                return self.finish_survey(work);
            };
            left = left.saturating_sub(4);
            work.open = self.state.queues.get(&queue).map(|queue| self.open(queue, &work.query));
        }
        Step::Blocked(Block::Yield)
    }

    fn queues_of(&self, query: &SurveyQuery) -> Vec<QueueId> {
        let fits = |asked: &Option<String>, known: &str| asked.as_deref().is_none_or(|asked| asked == known);
        let mut queues: Vec<QueueId> = match &query.queue {
            Some(name) => self.state.queue_named(name).map(|queue| queue.id).into_iter().collect(),
            None => self.state.queues.keys().copied().collect(),
        };
        queues.retain(|id| {
            let known = self.state.queues.get(id);
            known.is_some_and(|queue| {
                fits(&query.namespace, &queue.namespace) && fits(&query.task, &queue.task)
            })
        });
        queues.sort_unstable();
        queues
    }

    fn open(&self, queue: &Queue, query: &SurveyQuery) -> Open {
        let asked = |name: &str| query.group.as_deref().is_none_or(|group| group == name);
        let groups: BTreeMap<GroupId, GroupRow> = queue
            .groups
            .values()
            .filter_map(|id| self.state.groups.get(id))
            .filter(|group| asked(&group.name))
            .map(|group| {
                let row = GroupRow {
                    name: Arc::clone(&group.name),
                    queue: Arc::clone(&queue.name),
                    cursors: 0,
                    lagging: 0,
                    lag: 0,
                    unread_since: None,
                    consumed: false,
                    start: group.start,
                    created: group.created,
                    conflating: group.conflating,
                };
                (group.id, row)
            })
            .collect();
        let mut partitions: Vec<PartitionId> = queue.partitions.values().collect();
        partitions.sort_unstable_by(|a, b| b.cmp(a)); // taken from the end
        Open {
            row: QueueRow {
                id: queue.id,
                name: Arc::clone(&queue.name),
                namespace: queue.namespace.clone(),
                task: queue.task.clone(),
                created: queue.created,
                options: queue.options.clone(),
                partitions: partitions.len() as u64,
                partitions_pending: 0,
                counts: Counts { dead_letters: queue.letters.len() as u64, ..Counts::default() },
                spans: 0,
                bytes: 0,
                conflating: query.group.is_some() && groups.values().any(|group| group.conflating),
            },
            partitions,
            groups,
        }
    }

    /// Counts one partition. Nothing is counted if something has to be looked up first.
    fn count(
        &self,
        partition: &Partition,
        query: &SurveyQuery,
        open: &mut Open,
        survey: &mut Survey,
    ) -> Result<(), Lookup> {
        let mut cursors = Vec::with_capacity(open.groups.len());
        for id in open.groups.keys() {
            if let Some(group) = self.state.groups.get(id) {
                cursors.push((*id, self.state.cursor_or_seed(partition, group)?));
            }
        }
        let total = partition.next.0.saturating_sub(partition.start.0);
        let slowest = cursors.iter().map(|(_, cursor)| cursor.next).min().unwrap_or(partition.start);
        let unread = partition.next.0.saturating_sub(slowest.0);
        let mut leased: Vec<(u64, u64)> = Vec::new();
        for (id, cursor) in &cursors {
            let lease = live_lease(cursor, self.now);
            let end = lease.map_or(cursor.next, |lease| lease.end.next().min(partition.next));
            leased.push((cursor.next.0, end.0));
            let lag = partition.next.0.saturating_sub(cursor.next.0);
            let stored = self.state.cursors.contains_key(&(partition.id, *id));
            let Some(row) = open.groups.get_mut(id) else { continue };
            row.cursors += u64::from(stored);
            row.consumed |= stored && cursor.next > Offset(0);
            if lag > 0 {
                row.lagging += 1;
                row.lag += lag;
                let since = partition.spans.holding(cursor.next).map(|span| span.first_created);
                row.unread_since = row.unread_since.into_iter().chain(since).min();
            }
            if query.pairs > 0 && stored && (lag > 0 || !query.lagging) {
                survey.pairs.push(PairRow {
                    group: Arc::clone(&row.name),
                    queue: Arc::clone(&row.queue),
                    partition: partition.name.clone(),
                    id: partition.id,
                    next: cursor.next,
                    lag,
                    unread_since: None,
                    lease: lease.map(|lease| lease.id),
                });
            }
        }
        let processing = union(leased);
        let dead_letters = self.state.letters_from.get(&partition.id).copied().unwrap_or_default();
        let counts =
            Counts { total, pending: unread - processing, processing, dead_letters: u64::from(dead_letters) };
        open.row.counts.add(&Counts { dead_letters: 0, ..counts });
        open.row.partitions_pending += u64::from(counts.pending > 0);
        for span in partition.spans.iter() {
            open.row.spans += 1;
            open.row.bytes += self.state.index.mean_bytes(span.segment()).saturating_mul(span.messages());
        }
        if query.partitions > 0 {
            survey.partitions.push(PartitionRow {
                id: partition.id,
                queue: Arc::clone(&open.row.name),
                name: partition.name.clone(),
                created: partition.created,
                counts,
                oldest: None,
                newest: (total > 0).then_some(partition.last_created),
                unread_since: None,
                unread_from: slowest,
            });
        }
        Ok(())
    }

    /// Looks up the times of the rows that are shown.
    fn finish_survey(&mut self, work: &mut SurveyWork) -> Step {
        let mut left = PAIRS_PER_STEP;
        let created = |id: PartitionId, offset: Offset| -> Result<Option<WallTime>, Lookup> {
            let Some(partition) = self.state.partitions.get(&id) else { return Ok(None) };
            if offset >= partition.next {
                return Ok(None);
            }
            self.state.runs(partition, offset).next().map(|run| run.map(|run| run.created)).transpose()
        };
        while let Some(row) = work.survey.partitions.get_mut(work.timed.0) {
            let times =
                created(row.id, Offset(0)).and_then(|oldest| Ok((oldest, created(row.id, row.unread_from)?)));
            match times {
                Ok((oldest, unread)) => (row.oldest, row.unread_since) = (oldest, unread),
                Err(lookup) => return Step::Blocked(Block::Index(vec![lookup])),
            }
            work.timed.0 += 1;
            left -= 1;
            if left == 0 {
                return Step::Blocked(Block::Yield);
            }
        }
        while let Some(row) = work.survey.pairs.get_mut(work.timed.1) {
            match created(row.id, row.next) {
                Ok(since) => row.unread_since = since,
                Err(lookup) => return Step::Blocked(Block::Index(vec![lookup])),
            }
            work.timed.1 += 1;
            left -= 1;
            if left == 0 {
                return Step::Blocked(Block::Yield);
            }
        }
        work.survey.now = self.wall_of(self.now);
        Step::Done(Reply::Survey(Box::new(std::mem::take(&mut work.survey))))
    }
}

/// Offsets covered by any of the spans.
fn union(mut spans: Vec<(u64, u64)>) -> u64 {
    spans.sort_unstable();
    let (mut covered, mut upto) = (0, 0);
    for (from, to) in spans {
        let from = from.max(upto);
        if to > from {
            covered += to - from;
            upto = to;
        }
    }
    covered
}

/// Sorts rows and leaves out what is beyond the limits, once there are `slack` times as many.
fn trim(survey: &mut Survey, query: &SurveyQuery, slack: usize) {
    if slack == 1 || survey.partitions.len() >= query.partitions.saturating_mul(slack).max(1) {
        survey.partitions.sort_by_key(|row| (std::cmp::Reverse(row.counts.pending), row.id));
        survey.truncated |= survey.partitions.len() > query.partitions;
        survey.partitions.truncate(query.partitions);
    }
    if slack == 1 || survey.pairs.len() >= query.pairs.saturating_mul(slack).max(1) {
        survey.pairs.sort_by_key(|row| (std::cmp::Reverse(row.lag), row.id));
        survey.truncated |= survey.pairs.len() > query.pairs;
        survey.pairs.truncate(query.pairs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_leases_count_once() {
        assert_eq!(union(vec![(5, 8), (0, 3), (2, 6), (9, 9)]), 8);
        assert_eq!(union(vec![(0, 10), (2, 4), (20, 21)]), 11);
        assert_eq!(union(Vec::new()), 0);
    }
}
