//! Pushes: deduplicate, create what is missing, store.
//!
//! Purpose: carry out a push group by group; a group is the messages of one partition.
//!
//! Invariants:
//! - A group is stored as one run or not at all; a group without a new message creates nothing.
//! - Sizes and names of all groups are checked before the first one is stored.
//! - A duplicate answers the id and the offset of the message that was first.
//!
//! Must not: look at entries beyond their lengths.

use super::command::{BrokerError, PushGroup, PushVerdict, Reply};
use super::core::{Block, Core, Step};
use super::journal::{DELTA_BYTES, Fit, Journal};
use crate::format::run::RUN_HEADER_BYTES;
use crate::index::{Ids, Lookup};
use crate::types::{IdHash, MessageId, Offset, name_bytes};

/// A push being carried out.
#[derive(Debug)]
pub struct PushWork {
    groups: Vec<PushGroup>,
    checked: bool,
    /// Of the groups that are done.
    verdicts: Vec<Vec<PushVerdict>>,
}

impl PushWork {
    /// Work for these groups.
    #[must_use]
    pub fn new(groups: Vec<PushGroup>) -> PushWork {
        PushWork { groups, checked: false, verdicts: Vec::new() }
    }
}

/// A group, deduplicated. Offsets hold for the state it was made from.
#[derive(Debug)]
pub(super) struct PushPlan {
    /// One per item; new messages are those that are no duplicates.
    verdicts: Vec<PushVerdict>,
    /// Offset of the first new message.
    base: Offset,
    /// New messages.
    fresh: usize,
    /// Bytes of their entries.
    bytes: u64,
    /// First duplicate of a message that was stored before, as an index of the items.
    pub(super) stored: Option<usize>,
    /// What has to be looked up before the verdicts hold.
    pub(super) asked: Vec<Lookup>,
}

impl PushPlan {
    /// Whether nothing is to be stored.
    pub(super) fn idle(&self) -> bool {
        self.fresh == 0
    }

    /// Verdict of one item.
    pub(super) fn verdict(&self, item: usize) -> Option<PushVerdict> {
        self.verdicts.get(item).copied()
    }

    /// Bytes of runs and of records that staging it takes.
    pub(super) fn cost(&self, group: &PushGroup) -> (u64, u64) {
        if self.idle() { (0, 0) } else { cost(group, self.bytes) }
    }
}

/// Bytes of runs and of records for a group, its queue and partition included.
fn cost(group: &PushGroup, entries: u64) -> (u64, u64) {
    let names = 3 * group.queue.len() + group.partition.len(); // namespace and task are parts of the queue's name
    (RUN_HEADER_BYTES as u64 + entries, 2 * DELTA_BYTES + names as u64)
}

impl<J: Journal> Core<J> {
    pub(super) fn push(&mut self, work: &mut PushWork) -> Step {
        if !work.checked {
            if let Some(error) = self.refuse_push(&work.groups) {
                return Step::Done(Reply::Failed(error));
            }
            if let Some(free_bytes) = self.no_space_for(&work.groups) {
                return Step::Done(Reply::Failed(self.storage_full(free_bytes)));
            }
            work.checked = true;
        }
        while let Some(group) = work.groups.get(work.verdicts.len()) {
            let plan = self.plan_push(group);
            if !plan.asked.is_empty() {
                return Step::Blocked(Block::Index(plan.asked));
            }
            let (run_bytes, delta_bytes) = plan.cost(group);
            if !plan.idle() {
                match self.journal.fits(run_bytes, delta_bytes) {
                    Fit::Now => {}
                    Fit::Later => return Step::Blocked(Block::Room),
                    Fit::Full { free_bytes, .. } => {
                        return Step::Done(Reply::Failed(self.storage_full(free_bytes)));
                    }
                    Fit::TooLarge { limit } => {
                        return Step::Done(Reply::Failed(BrokerError::GroupTooLarge {
                            bytes: run_bytes,
                            limit,
                        }));
                    }
                }
            }
            let verdicts = self.stage_push(group, plan);
            work.verdicts.push(verdicts);
        }
        Step::Done(Reply::Push(std::mem::take(&mut work.verdicts)))
    }

    /// Bytes free, if there is no space for all the groups together: then none is stored, so that the answer is true of
    /// the whole request. Room that is lost while the push waits between two groups can still split it.
    fn no_space_for(&self, groups: &[PushGroup]) -> Option<u64> {
        let full = |run_bytes: u64| {
            let asked = match self.journal.fits(run_bytes, 0) {
                Fit::TooLarge { limit } => self.journal.fits(limit, 0),
                other => other,
            };
            match asked {
                Fit::Full { free_bytes, .. } => Some(free_bytes),
                _ => None,
            }
        };
        let at_most: u64 = groups.iter().map(|group| cost(group, group.entries.len() as u64).0).sum();
        full(at_most)?;
        // Duplicates need no space: look closer only when it is short.
        let run_bytes: u64 = groups.iter().map(|group| self.plan_push(group).cost(group).0).sum();
        if run_bytes == 0 { None } else { full(run_bytes) }
    }

    /// What speaks against a push whatever the state of its partitions.
    fn refuse_push(&self, groups: &[PushGroup]) -> Option<BrokerError> {
        self.refuse_names(groups).or_else(|| {
            groups.iter().find_map(|group| {
                let (bytes, delta_bytes) = cost(group, group.entries.len() as u64);
                match self.journal.fits(bytes, delta_bytes) {
                    Fit::TooLarge { limit } => Some(BrokerError::GroupTooLarge { bytes, limit }),
                    _ => None,
                }
            })
        })
    }

    /// The error for the first group whose names are too long.
    pub(super) fn refuse_names(&self, groups: &[PushGroup]) -> Option<BrokerError> {
        let limit = self.settings.name_bytes;
        groups.iter().find_map(|group| {
            let bytes = name_bytes(&group.queue, &group.partition, "");
            (bytes > limit).then_some(BrokerError::NameTooLong { bytes, limit })
        })
    }

    /// Tells new messages from duplicates.
    pub(super) fn plan_push(&self, group: &PushGroup) -> PushPlan {
        let queue = self.state.queue_named(&group.queue);
        let partition = queue
            .and_then(|queue| queue.partitions.get(&self.state.partitions, &group.partition))
            .and_then(|id| self.state.partitions.get(&id));
        let window = queue.map_or(0, |queue| u64::from(queue.options.dedup_window_seconds));
        let since = self.now.minus_seconds(window);
        let base = partition.map_or(Offset(0), |partition| partition.next);
        let mut plan = PushPlan {
            verdicts: Vec::with_capacity(group.items.len()),
            base,
            fresh: 0,
            bytes: 0,
            stored: None,
            asked: Vec::new(),
        };
        let mut start = 0;
        for (index, item) in group.items.iter().enumerate() {
            let bytes = u64::from(item.end - start);
            start = item.end;
            let first = item
                .repeat_of
                .and_then(|first| plan.verdicts.get(usize::try_from(first).unwrap_or(usize::MAX)));
            let original = match (first, partition) {
                (Some(first), _) => Some((first.id, first.offset)),
                (None, Some(partition)) if window > 0 && !item.minted => {
                    // With the window kept there is one at most; it decides.
                    let one = |hits: &Ids| !hits.is_empty();
                    let hits = self.find_ids(partition.id, item.hash, since, one, &mut plan.asked);
                    let original = hits.first().map(|hit| (hit.id, hit.offset));
                    if original.is_some() && plan.stored.is_none() {
                        plan.stored = Some(index);
                    }
                    original
                }
                _ => None,
            };
            plan.verdicts.push(match original {
                Some((id, offset)) => PushVerdict { id, offset, duplicate: true },
                None => {
                    let offset = Offset(base.0 + plan.fresh as u64);
                    plan.fresh += 1;
                    plan.bytes += bytes;
                    PushVerdict { id: item.id, offset, duplicate: false }
                }
            });
        }
        plan
    }

    /// Stages the new messages of a plan and answers the verdicts.
    pub(super) fn stage_push(&mut self, group: &PushGroup, plan: PushPlan) -> Vec<PushVerdict> {
        let verdicts = plan.verdicts;
        if plan.fresh == 0 {
            return verdicts;
        }
        let mut entries: Vec<&[u8]> = Vec::with_capacity(plan.fresh);
        let mut ids: Vec<(IdHash, MessageId)> = Vec::with_capacity(plan.fresh);
        let mut rest = group.entries.as_slice();
        let mut start = 0;
        for (item, verdict) in group.items.iter().zip(&verdicts) {
            let bytes = usize::try_from(item.end - start).expect("a group is in memory");
            let (entry, behind) = rest.split_at_checked(bytes).expect("ends lie within the entries");
            (rest, start) = (behind, item.end);
            if !verdict.duplicate {
                entries.push(entry);
                ids.push((item.hash, item.id));
            }
        }
        let partition = self.partition_on_use(&group.queue, &group.partition);
        let base = self.stage_run(partition, &entries, &ids);
        debug_assert_eq!(base, plan.base, "a plan is staged in the step that made it, once per partition");
        verdicts
    }
}
