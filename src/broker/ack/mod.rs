//! Acknowledgements: resolve ids, decide per group, file dead letters, move cursors.
//!
//! Purpose: carry out an ack call group by group; a group is the items of one partition and one lease.
//!
//! Invariants:
//! - One cursor record per group, however many items it has, and none when nothing changes.
//! - A dead letter's copy, its row and the cursor that passes it are one unit.
//! - Acks are never refused for want of space.
//!
//! Must not: keep anything per message.

mod decide;

use bytes::Bytes;
use hashbrown::HashMap;

use super::command::{AckCall, AckItem, AckRefusal, AckVerdict, Reference, Reply, Source};
use super::core::{Block, Core, Step};
use super::journal::{DELTA_BYTES, Fit, Journal};
use super::state::Partition;
use crate::format::delta::{CursorDelta, CursorState, DeadLetterDef, Delta, PartitionDef};
use crate::format::entry::{self, Entry};
use crate::format::run::RUN_HEADER_BYTES;
use crate::index::{Ids, Lookup};
use crate::types::{
    DeadLetterId, GroupId, IdHash, LeaseId, LogTime, MessageId, Offset, PartitionId, WallTime,
};

use decide::{Decision, Fate, Found, Item, Rules, Span};

pub(super) use decide::live_lease;

/// A cursor's name.
pub(super) type CursorKey = (PartitionId, GroupId);

/// Items of one call that are decided together.
#[derive(Debug)]
pub(super) struct AckGroup {
    /// The partition.
    pub(super) partition: PartitionId,
    /// The lease that its items name.
    pub(super) lease: Reference<LeaseId>,
    /// Indexes of its items in the call, ascending.
    pub(super) items: Vec<usize>,
}

/// Partition and transaction id of an item, if both were sent and can be ours.
///
/// # Errors
/// What is missing.
pub(super) fn address(item: &AckItem) -> Result<(PartitionId, IdHash), AckRefusal> {
    let hash = item.hash.ok_or(AckRefusal::NoTransactionId)?;
    match item.partition {
        Reference::Absent => Err(AckRefusal::NoPartitionId),
        Reference::Malformed => Err(AckRefusal::MalformedPartitionId),
        Reference::Id(partition) => Ok((partition, hash)),
    }
}

/// An ack call being carried out.
#[derive(Debug)]
pub struct AckWork {
    call: AckCall,
    groups: Vec<AckGroup>,
    /// Groups that are done.
    done: usize,
    verdicts: Vec<AckVerdict>,
}

impl AckWork {
    /// Groups the items of a call in order of first appearance.
    #[must_use]
    pub fn new(call: AckCall) -> AckWork {
        let mut verdicts = vec![AckVerdict::default(); call.items.len()];
        let mut groups: Vec<AckGroup> = Vec::new();
        let mut known: HashMap<(PartitionId, Reference<LeaseId>), usize> = HashMap::new();
        for (index, (item, verdict)) in call.items.iter().zip(&mut verdicts).enumerate() {
            match address(item) {
                Err(refusal) => verdict.refusal = Some(refusal),
                Ok((partition, _)) => {
                    let at = *known.entry((partition, item.lease)).or_insert(groups.len());
                    match groups.get_mut(at) {
                        Some(group) => group.items.push(index),
                        None => groups.push(AckGroup { partition, lease: item.lease, items: vec![index] }),
                    }
                }
            }
        }
        AckWork { call, groups, done: 0, verdicts }
    }
}

/// A message on its way to the dead letters.
#[derive(Debug)]
struct Copy {
    entry: Bytes,
    id: MessageId,
    hash: IdHash,
    created: WallTime,
}

/// A group of acknowledgements, decided, with everything at hand to carry it out.
#[derive(Debug)]
pub(super) struct AckPlan<'a> {
    key: CursorKey,
    before: CursorState,
    decision: Decision<'a>,
    copy: Option<Copy>,
}

impl AckPlan<'_> {
    /// The cursor.
    pub(super) fn key(&self) -> CursorKey {
        self.key
    }

    /// What the cursor becomes.
    pub(super) fn state(&self) -> CursorState {
        self.decision.state
    }

    /// One verdict per item.
    pub(super) fn verdicts(&self) -> &[AckVerdict] {
        &self.decision.verdicts
    }

    /// Whether there is nothing to write.
    fn idle(&self) -> bool {
        self.decision.state == self.before
    }

    /// Bytes of runs and of records that staging it takes.
    pub(super) fn cost(&self) -> (u64, u64) {
        match (&self.copy, self.decision.fate) {
            (Some(copy), Fate::Filed { reason, .. }) => (
                (RUN_HEADER_BYTES + copy.entry.len()) as u64,
                3 * DELTA_BYTES + reason.len() as u64, // copies' partition, dead letter, cursor
            ),
            _ if self.idle() => (0, 0),
            _ => (0, DELTA_BYTES),
        }
    }
}

/// What planning a group comes to.
pub(super) enum AckOutcome<'a> {
    /// Every item is refused.
    Refused(AckRefusal),
    /// It can be carried out.
    Plan(Box<AckPlan<'a>>),
    /// The head's bytes are needed first.
    Load(Block),
}

fn offsets(hits: &Ids) -> impl Iterator<Item = Offset> {
    hits.iter().map(|hit| hit.offset)
}

enum Fetched {
    Copy(Copy),
    Load(Block),
    Expired,
    Unreadable(String),
}

impl<J: Journal> Core<J> {
    pub(super) fn ack(&mut self, work: &mut AckWork) -> Step {
        let AckWork { call, groups, done, verdicts } = work;
        while let Some(group) = groups.get(*done) {
            let items: Vec<&AckItem> =
                group.items.iter().filter_map(|index| call.items.get(*index)).collect();
            match self.plan_ack(&call.group, group, &items, None, true) {
                AckOutcome::Load(block) => return Step::Blocked(block),
                AckOutcome::Refused(refusal) => {
                    for index in &group.items {
                        if let Some(verdict) = verdicts.get_mut(*index) {
                            verdict.refusal = Some(refusal);
                        }
                    }
                }
                AckOutcome::Plan(mut plan) => {
                    let (run_bytes, delta_bytes) = plan.cost();
                    if delta_bytes > 0 {
                        match self.journal.fits(run_bytes, delta_bytes) {
                            // What an ack takes is held in reserve.
                            Fit::Now | Fit::Full { copies: true, .. } => self.stage_ack(&plan),
                            Fit::Full { copies: false, free_bytes } => {
                                tracing::error!(
                                    free_bytes,
                                    run_bytes,
                                    "no space for the copy of a dead letter; the message stays with its lease"
                                );
                                self.take_back(&mut plan, &items, AckRefusal::CopyWithoutSpace);
                            }
                            Fit::Later => return Step::Blocked(Block::Room),
                            Fit::TooLarge { limit } => {
                                let (partition, consumer) = plan.key;
                                tracing::error!(
                                    %partition, group = %consumer, run_bytes, limit,
                                    "a dead letter does not fit a group commit; raise limits.atomic_group_bytes"
                                );
                                self.take_back(&mut plan, &items, AckRefusal::CopyTooLarge);
                            }
                        }
                    }
                    for (index, verdict) in group.items.iter().zip(plan.verdicts()) {
                        if let Some(slot) = verdicts.get_mut(*index) {
                            *slot = *verdict;
                        }
                    }
                }
            }
            *done += 1;
        }
        Step::Done(Reply::Ack(std::mem::take(verdicts)))
    }

    /// Decides a group. `ahead`: cursors as earlier groups of the same unit leave them. `repeats`: the repeat of a
    /// completing ack is a success.
    pub(super) fn plan_ack<'a>(
        &self,
        consumer: &str,
        group: &AckGroup,
        items: &[&'a AckItem],
        ahead: Option<&HashMap<CursorKey, CursorState>>,
        repeats: bool,
    ) -> AckOutcome<'a> {
        let no_partition = AckOutcome::Refused(AckRefusal::NoPartition(group.partition));
        // Copies of dead letters are no messages that anyone popped.
        let Some(partition) = self
            .state
            .partitions
            .get(&group.partition)
            .filter(|partition| partition.dead_letters_of.is_none())
        else {
            return no_partition;
        };
        let Some(queue) = self.state.queues.get(&partition.queue) else {
            return no_partition;
        };
        let Some(consumer) = queue.groups.get(consumer) else {
            return AckOutcome::Refused(AckRefusal::NoCursor);
        };
        let key = (partition.id, *consumer);
        let Some(before) =
            ahead.and_then(|ahead| ahead.get(&key).copied()).or_else(|| self.state.cursors.get(&key))
        else {
            return AckOutcome::Refused(AckRefusal::NoCursor);
        };
        let rules = Rules {
            retry_limit: queue.options.retry_limit,
            dead_letters: queue.options.dead_letters(),
            repeats,
        };
        let mut asked = Vec::new();
        let items = self.resolve(partition, &before, items, &mut asked);
        if !asked.is_empty() {
            return AckOutcome::Load(Block::Index(asked));
        }
        let mut decision = decide::decide(&before, group.lease, &items, rules, self.now);
        let mut copy = None;
        if let Fate::Filed { offset, .. } = decision.fate {
            match self.fetch(partition, offset) {
                Fetched::Copy(fetched) => copy = Some(fetched),
                Fetched::Load(block) => return AckOutcome::Load(block),
                Fetched::Expired => decision.unfiled(&before, &items, AckRefusal::PayloadExpired),
                Fetched::Unreadable(cause) => {
                    tracing::error!(
                        queue = %queue.name, partition = %partition.id, %offset, cause,
                        "a message could not be read, so it was not dead-lettered; check the log with the offline tool"
                    );
                    decision.unfiled(&before, &items, AckRefusal::PayloadUnreadable);
                }
            }
        }
        AckOutcome::Plan(Box::new(AckPlan { key, before, decision, copy }))
    }

    /// Where the items' messages are. Appends to `asked` what has to be looked up before that can be said.
    fn resolve<'a>(
        &self,
        partition: &Partition,
        cursor: &CursorState,
        items: &[&'a AckItem],
        asked: &mut Vec<Lookup>,
    ) -> Vec<Item<'a>> {
        let span = Span::of(cursor, self.now);
        let (from, to) = span.ends();
        // Then whatever is found in memory is all that there is in the span.
        let is_resident = self.state.index.is_resident(&partition.spans, from, to);
        let inside = |hits: &Ids| is_resident && matches!(span.locate(offsets(hits)), Found::In(_));
        // Ids are pushed more than once where deduplication is off or its window is over. Each is walked once.
        let mut walked: HashMap<IdHash, Found> = HashMap::new();
        items
            .iter()
            .map(|item| {
                let found = item.hash.map_or(Found::Nowhere, |hash| {
                    if let Some(found) = walked.get(&hash) {
                        return *found;
                    }
                    let mut hits = self.find_ids(partition.id, hash, LogTime(0), inside, asked);
                    hits.retain(|hit| {
                        hit.offset >= from || self.state.knows_id(partition, hit.offset, hit.logged, self.now)
                    });
                    let found = span.locate(offsets(&hits));
                    if hits.len() > 1 {
                        walked.insert(hash, found);
                    }
                    found
                });
                Item { status: item.status, found, error: item.error.as_deref() }
            })
            .collect()
    }

    /// The stored bytes of one message.
    fn fetch(&self, partition: &Partition, offset: Offset) -> Fetched {
        if offset < partition.start {
            return Fetched::Expired;
        }
        let run = match self.state.runs(partition, offset).next() {
            Some(Ok(run)) if run.base <= offset => run,
            Some(Err(lookup)) => return Fetched::Load(Block::Index(vec![lookup])),
            _ => return Fetched::Unreadable("it is not in the index".to_owned()),
        };
        let entries = match self.journal.source(partition.id, &run) {
            Source::Memory(entries) => entries,
            Source::File { .. } => match self.loaded.get(&(partition.id, run.base)) {
                None => return Fetched::Load(Block::Load { partition: partition.id, offset }),
                Some(Ok(entries)) => entries.clone(),
                Some(Err(cause)) => return Fetched::Unreadable(cause.clone()),
            },
        };
        let mut start = 0;
        for _ in run.base.0..offset.0 {
            match entry::skip(entries.get(start..).unwrap_or_default()) {
                Ok(bytes) => start += bytes,
                Err(error) => return Fetched::Unreadable(error.to_string()),
            }
        }
        match Entry::decode(entries.get(start..).unwrap_or_default()) {
            Err(error) => Fetched::Unreadable(error.to_string()),
            Ok((entry, bytes)) => Fetched::Copy(Copy {
                id: entry.id,
                hash: entry.hash,
                created: run.created,
                entry: entries.slice(start..start + bytes),
            }),
        }
    }

    fn take_back(&self, plan: &mut AckPlan<'_>, items: &[&AckItem], why: AckRefusal) {
        if let Some(partition) = self.state.partitions.get(&plan.key.0) {
            // Whatever had to be looked up was, when the plan was made.
            let items = self.resolve(partition, &plan.before, items, &mut Vec::new());
            plan.decision.unfiled(&plan.before, &items, why);
        }
        plan.copy = None;
    }

    /// Stages what a plan changes; it must have been made in this step.
    pub(super) fn stage_ack(&mut self, plan: &AckPlan<'_>) {
        let (partition, group) = plan.key;
        match (plan.decision.fate, &plan.copy) {
            (Fate::Filed { offset, retries_used, reason }, Some(copy)) => {
                let copy_partition = self.dead_letter_partition(plan.key);
                let copy_offset = self.stage_run(copy_partition, &[&copy.entry], &[(copy.hash, copy.id)]);
                let failed = self.stamp();
                let id = DeadLetterId(self.ids.message_id().0);
                self.stage(&Delta::DeadLetter(DeadLetterDef {
                    id,
                    partition,
                    group,
                    offset,
                    copy_partition,
                    copy_offset,
                    retries_used,
                    error: reason,
                    created: copy.created,
                    failed,
                }));
            }
            (Fate::Dropped { offset, retries_used }, _) => tracing::warn!(
                %partition, %group, %offset, retries_used,
                "a message was dropped: its retries are exhausted and the queue keeps no dead letters"
            ),
            _ => {}
        }
        if !plan.idle() {
            let delta =
                CursorDelta { partition, group, cause: plan.decision.cause, state: plan.decision.state };
            self.stage(&Delta::Cursor(delta));
        }
    }

    /// The internal partition of a group's dead letters, created on first use.
    fn dead_letter_partition(&mut self, (partition, group): CursorKey) -> PartitionId {
        if let Some(known) = self.state.groups.get(&group).and_then(|group| group.dead_letter_partition) {
            return known;
        }
        let queue = self.state.partitions.get(&partition).expect("a planned partition exists").queue;
        let created = self.stamp();
        let partition = self.state.next_partition;
        self.stage(&Delta::Partition(PartitionDef {
            partition,
            queue,
            name: "",
            dead_letters_of: Some(group),
            next: Offset(0),
            start: Offset(0),
            last_created: WallTime(0),
            last_logged: LogTime(0),
            created,
        }));
        partition
    }
}
