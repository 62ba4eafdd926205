//! Everything the broker knows, changed by `apply` and `apply_run` alone.
//!
//! Invariants:
//! - Absolute records: applying one twice is the same as applying it once.
//! - `touched` names every partition (and group) whose visibility may have changed since it was last drained, so
//!   that no path to visibility can forget to wake a waiter.
//!
//! Must not: decide anything.

mod groups;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{DefaultHashBuilder, HashMap};
use indexmap::IndexMap;
use smallvec::SmallVec;
use smol_str::SmolStr;

use super::cursors::Cursors;
use super::graveyard::{Grave, Letters};
use super::names::Names;
use super::snapshot;
use crate::engine::machine::{Impossible, Machine, SnapshotCursor};
use crate::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, GroupDef, PartitionDef, QueueDef, StartPolicy,
};
use crate::format::index::{IndexInfo, SpanRow};
use crate::format::run::{RunForm, RunHeader};
use crate::index::runs::Place;
use crate::index::spans::{Span, Spans};
use crate::index::{Index, Lookup, RunsFrom};
use crate::types::{
    DeadLetterId, FileNumber, GroupId, IdHash, LeaseId, LogId, LogTime, MessageId, Offset, PartitionId,
    QueueId, QueueOptions, WallTime,
};

/// A table that a checkpoint can be taken of in slices while it changes. Entries have positions: a new one goes on
/// top, and a removed one is replaced by the topmost. A walk downwards therefore meets every entry that was there
/// from its begin to its end, perhaps twice. Removal is `swap_remove`, always.
pub type Table<K, V> = IndexMap<K, V, DefaultHashBuilder>;

/// A queue.
#[derive(Debug)]
pub struct Queue {
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
    /// Its partitions by name; internal ones are not here.
    pub partitions: Names,
    /// Its groups by name.
    pub groups: HashMap<Arc<str>, GroupId>,
    /// Keys of the dead letters of its partitions.
    pub(super) letters: Letters,
}

/// A partition.
#[derive(Debug)]
pub struct Partition {
    /// Identity.
    pub id: PartitionId,
    /// Its queue.
    pub queue: QueueId,
    /// Name; empty for an internal one.
    pub name: SmolStr,
    /// Set for the internal partition of a group's dead-letter copies: the group, whose numbers start at 1.
    pub dead_letters_of: Option<NonZeroU64>,
    /// Offset of the next message.
    pub next: Offset,
    /// First kept offset.
    pub start: Offset,
    /// Wall time of the newest append.
    pub last_created: WallTime,
    /// Log time of the newest append.
    pub last_logged: LogTime,
    /// When it was created.
    pub created: WallTime,
    /// Where its messages are.
    pub spans: Spans,
}

/// A consumer group of a queue.
#[derive(Clone, Debug)]
pub struct Group {
    /// Identity.
    pub id: GroupId,
    /// Its queue.
    pub queue: QueueId,
    /// Name.
    pub name: Arc<str>,
    /// Where it begins in a partition that it has not met.
    pub start: StartPolicy,
    /// Whether a pop gets the newest message of a partition only.
    pub conflating: bool,
    /// When it was registered.
    pub created: WallTime,
    /// The internal partition of its dead-letter copies, once there is one.
    pub dead_letter_partition: Option<PartitionId>,
    /// Its dead letters.
    pub letters: u32,
}

impl Group {
    fn new(def: &GroupDef<'_>) -> Group {
        Group {
            id: def.group,
            queue: def.queue,
            name: def.name.into(),
            start: def.start,
            conflating: def.conflating,
            created: def.created,
            dead_letter_partition: None,
            letters: 0,
        }
    }
}

/// A dead letter.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Identity.
    pub id: DeadLetterId,
    /// Where the message was.
    pub partition: PartitionId,
    /// The group that gave it up.
    pub group: GroupId,
    /// The offset it had.
    pub offset: Offset,
    /// The partition of the copy.
    pub copy_partition: PartitionId,
    /// The offset of the copy.
    pub copy_offset: Offset,
    /// Retry budget used at that moment.
    pub retries_used: u32,
    /// Why.
    pub error: Arc<str>,
    /// When the message was created.
    pub created: WallTime,
    /// When it was dead-lettered.
    pub failed: WallTime,
}

/// Whose visibility may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Messages were appended: every group of the queue may see them.
    Partition(PartitionId),
    /// A cursor changed.
    Cursor(PartitionId, GroupId),
    /// A queue was created, deleted or changed.
    Queue(QueueId),
    /// Messages of a queue become visible earlier or later than before.
    Delays(QueueId),
    /// A group begins elsewhere in partitions that it has not met.
    Group(QueueId, GroupId),
    /// A group is gone.
    GroupGone(GroupId),
}

/// The state.
#[derive(Debug)]
pub struct State {
    /// Queues.
    pub queues: Table<QueueId, Queue>,
    /// Queues by name.
    pub queue_names: HashMap<Arc<str>, QueueId>,
    /// Partitions; for a while also those of deleted queues, which `queues` does not know any more.
    pub partitions: Table<PartitionId, Partition>,
    /// Groups.
    pub groups: Table<GroupId, Group>,
    /// Groups that were deleted and still have dead letters. They have no cursors, and their names may be others'.
    pub retired: Table<GroupId, Group>,
    /// Cursors; for a while also those of deleted queues, whose groups are in no table any more.
    pub cursors: Cursors,
    /// Which cursors carry a lease, live or expired.
    pub leases: HashMap<LeaseId, SmallVec<[(PartitionId, GroupId); 1]>>,
    /// Where messages are, and which transaction ids were seen.
    pub index: Index,
    /// Where groups that begin at a time begin, as far as it had to be looked up: it can be looked up again.
    pub seeds: HashMap<(PartitionId, GroupId), Offset>,
    /// Segments that hold nothing that counts any more: ranges that do not touch, from first to last.
    pub dropped: BTreeMap<FileNumber, FileNumber>,
    /// Dead letters by time of failure.
    pub dead_letters: BTreeMap<(WallTime, DeadLetterId), DeadLetter>,
    /// Partitions that dead letters came from, and how many: they are not deleted while there are any.
    pub letters_from: HashMap<PartitionId, u32>,
    /// Where the copies of dead letters are, by partition and offset, and whose they are.
    pub copies: BTreeMap<(PartitionId, Offset), (WallTime, DeadLetterId)>,
    /// Time of failure by id.
    pub dead_letter_times: HashMap<DeadLetterId, WallTime>,
    /// Next queue id.
    pub next_queue: QueueId,
    /// Next partition id.
    pub next_partition: PartitionId,
    /// Next group id.
    pub next_group: GroupId,
    /// Newest wall time in any record; the next stamp is above.
    pub last_stamp: WallTime,
    /// What changed since this was drained. Bounded by the records of one command.
    pub touched: Vec<Touched>,
    /// Whether records of a checkpoint, or groups that its records may know of, are being applied.
    catching_up: bool,
    /// For hashes of names.
    seed: u64,
    /// What deleted queues left.
    pub(super) graveyard: Vec<Grave>,
}

impl Default for State {
    fn default() -> State {
        State {
            queues: Table::default(),
            queue_names: HashMap::new(),
            partitions: Table::default(),
            groups: Table::default(),
            retired: Table::default(),
            cursors: Cursors::default(),
            leases: HashMap::new(),
            index: Index::default(),
            seeds: HashMap::new(),
            dropped: BTreeMap::new(),
            dead_letters: BTreeMap::new(),
            letters_from: HashMap::new(),
            copies: BTreeMap::new(),
            dead_letter_times: HashMap::new(),
            // Ids start at 1: a client that takes 0 for nothing must never meet one.
            next_queue: QueueId(1),
            next_partition: PartitionId(1),
            next_group: GroupId(1),
            last_stamp: WallTime(0),
            touched: Vec::new(),
            catching_up: false,
            seed: 0,
            graveyard: Vec::new(),
        }
    }
}

fn impossible(text: String) -> Impossible {
    Impossible(text)
}

impl State {
    /// A queue by name.
    #[must_use]
    pub fn queue_named(&self, name: &str) -> Option<&Queue> {
        self.queues.get(self.queue_names.get(name)?)
    }

    /// The runs of a partition from the one that holds `offset`, or the first one behind it. Ends with a lookup where
    /// the rows are not in memory.
    #[must_use]
    pub fn runs<'a>(&'a self, partition: &'a Partition, offset: Offset) -> RunsFrom<'a> {
        self.index.runs(partition.id, &partition.spans, offset)
    }

    /// The cursor of a group in a partition: the stored one, or where the group's policy makes it begin.
    ///
    /// # Errors
    /// What has to be looked up first; the answer goes to `seeds`.
    pub fn cursor_or_seed(&self, partition: &Partition, group: &Group) -> Result<CursorState, Lookup> {
        let key = (partition.id, group.id);
        if let Some(cursor) = self.cursors.get(&key) {
            let mut cursor = cursor;
            cursor.next = cursor.next.max(partition.start);
            return Ok(cursor);
        }
        let next = match group.start {
            StartPolicy::All => partition.start,
            // The usual case: a group that begins at new messages, and none came.
            StartPolicy::From(time) if time > partition.last_created => partition.next,
            StartPolicy::From(time) => match self.seeds.get(&key) {
                Some(seed) => *seed,
                None => {
                    self.index.first_created_from(partition.id, &partition.spans, time, partition.next)?
                }
            },
        };
        Ok(CursorState { next: next.max(partition.start), ..CursorState::default() })
    }

    /// Takes in where groups of a partition that begin at this time begin.
    pub fn seed(&mut self, partition: PartitionId, time: WallTime, offset: Offset) {
        let queue = self.partitions.get(&partition).and_then(|partition| self.queues.get(&partition.queue));
        for group in queue.into_iter().flat_map(|queue| queue.groups.values()) {
            let begins = self.groups.get(group).is_some_and(|group| group.start == StartPolicy::From(time));
            if begins && !self.cursors.contains_key(&(partition, *group)) {
                self.seeds.insert((partition, *group), offset);
            }
        }
    }

    /// Whether the id of a message that was appended at `logged` to `offset` is still known to acknowledgements: it is
    /// for the queue's horizon, and beyond that for as long as a cursor or a live lease has yet to pass it.
    ///
    /// A group that has not met the partition counts with the place where it would begin. Without any group, ids are
    /// known as long as their messages are there: whoever comes first must be able to acknowledge them.
    #[must_use]
    pub fn knows_id(&self, partition: &Partition, offset: Offset, logged: LogTime, now: LogTime) -> bool {
        let Some(queue) = self.queues.get(&partition.queue) else { return false };
        if logged >= now.minus_seconds(queue.options.id_horizon_seconds()) {
            return true; // the usual case, before every cursor is looked at
        }
        let wanted = |group: &GroupId| {
            let leased = self
                .cursors
                .get(&(partition.id, *group))
                .filter(|cursor| cursor.lease.is_some_and(|lease| lease.expires >= now));
            match leased {
                Some(cursor) => Some(cursor.next), // also where retention took the messages meanwhile
                // Where it begins is not known in memory: nothing is forgotten until it is.
                None => self
                    .cursor_or_seed(partition, self.groups.get(group)?)
                    .map_or(Some(Offset(0)), |cursor| Some(cursor.next)),
            }
        };
        offset >= queue.groups.values().filter_map(wanted).min().unwrap_or(partition.start)
    }

    fn note_stamp(&mut self, stamp: WallTime) {
        self.last_stamp = self.last_stamp.max(stamp);
    }

    fn apply_queue(&mut self, def: &QueueDef<'_>) -> Result<(), Impossible> {
        self.note_stamp(def.created);
        self.next_queue = self.next_queue.max(QueueId(def.queue.0 + 1));
        if let Some(queue) = self.queues.get_mut(&def.queue) {
            if self.catching_up {
                // A predecessor or successor may have had the name since the checkpoint's record was applied.
                self.queue_names.insert(Arc::clone(&queue.name), def.queue);
            }
            def.namespace.clone_into(&mut queue.namespace);
            def.task.clone_into(&mut queue.task);
            let before = std::mem::replace(&mut queue.options, def.options.clone());
            self.touched.push(Touched::Queue(def.queue));
            let delays =
                |options: &QueueOptions| (options.delayed_processing_seconds, options.window_buffer_seconds);
            if delays(&before) != delays(&def.options) {
                self.touched.push(Touched::Delays(def.queue));
            }
            return Ok(());
        }
        if let Some(other) = self.queue_names.get(def.name)
            && !self.catching_up
        {
            return Err(impossible(format!("queue {} takes the name of queue {other}", def.queue)));
        }
        let name: Arc<str> = def.name.into();
        self.queue_names.insert(Arc::clone(&name), def.queue);
        self.queues.insert(
            def.queue,
            Queue {
                id: def.queue,
                name,
                namespace: def.namespace.to_owned(),
                task: def.task.to_owned(),
                created: def.created,
                options: def.options.clone(),
                partitions: Names::new(self.seed ^ def.queue.0),
                groups: HashMap::new(),
                letters: Letters::new(),
            },
        );
        self.touched.push(Touched::Queue(def.queue));
        Ok(())
    }

    fn apply_queue_deleted(&mut self, id: QueueId) {
        let Some(queue) = self.queues.swap_remove(&id) else { return };
        self.queue_names.remove(&queue.name);
        let mut groups: Vec<GroupId> = queue.groups.into_values().collect();
        groups.sort_unstable(); // the tables keep one order wherever the log is replayed
        let mut internal = Vec::new();
        for group in &groups {
            internal.extend(self.groups.swap_remove(group).and_then(|known| known.dead_letter_partition));
            self.touched.push(Touched::GroupGone(*group));
        }
        self.retired.retain(|_, group| {
            let stays = group.queue != id;
            if !stays {
                internal.extend(group.dead_letter_partition);
            }
            stays
        });
        self.touched.push(Touched::Queue(id));
        self.graveyard.push(Grave::of_queue(queue.partitions.into_values(), internal, groups, queue.letters));
    }

    fn apply_partition(&mut self, def: &PartitionDef<'_>) -> Result<(), Impossible> {
        self.note_stamp(def.created);
        self.note_stamp(def.last_created);
        self.next_partition = self.next_partition.max(PartitionId(def.partition.0 + 1));
        if self.partitions.contains_key(&def.partition) && !self.catching_up {
            return Err(impossible(format!("partition {} is created twice", def.partition)));
        }
        let Some(queue) = self.queues.get_mut(&def.queue) else {
            if self.catching_up {
                return Ok(());
            }
            return Err(impossible(format!("partition {} of unknown queue {}", def.partition, def.queue)));
        };
        if let Some(group) = def.dead_letters_of {
            let Some(group) = self.groups.get_mut(&group).or_else(|| self.retired.get_mut(&group)) else {
                if self.catching_up {
                    return Ok(());
                }
                return Err(impossible(format!("dead letters of unknown group {group}")));
            };
            group.dead_letter_partition = Some(def.partition);
        } else {
            match queue.partitions.get(&self.partitions, def.name) {
                None => queue.partitions.insert(def.name, def.partition),
                Some(other) if self.catching_up => {
                    // Itself, or one that was deleted since the checkpoint's record was taken.
                    queue.partitions.remove(def.name, other);
                    queue.partitions.insert(def.name, def.partition);
                }
                Some(other) => {
                    return Err(impossible(format!("partition {} takes the name of {other}", def.partition)));
                }
            }
        }
        self.partitions.insert(
            def.partition,
            Partition {
                id: def.partition,
                queue: def.queue,
                name: def.name.into(),
                dead_letters_of: def.dead_letters_of.and_then(|group| NonZeroU64::new(group.0)),
                next: def.next,
                start: def.start,
                last_created: def.last_created,
                last_logged: def.last_logged,
                created: def.created,
                spans: Spans::default(),
            },
        );
        Ok(())
    }

    /// Messages below `start` are gone. It may be ahead of `next` for a moment in recovery, which applies the records of
    /// a group before its runs.
    fn apply_partition_start(&mut self, id: PartitionId, start: Offset) -> Result<(), Impossible> {
        let Some(partition) = self.partitions.get_mut(&id) else {
            if self.catching_up {
                return Ok(());
            }
            return Err(impossible(format!("start of unknown partition {id}")));
        };
        if start <= partition.start {
            return Ok(());
        }
        for (segment, messages) in partition.spans.trim(partition.start, start) {
            self.index.died(segment, messages);
        }
        partition.start = start;
        self.touch_cursors(id);
        Ok(())
    }

    fn apply_partition_deleted(&mut self, id: PartitionId) -> Result<(), Impossible> {
        let Some(partition) = self.partitions.get(&id) else { return Ok(()) };
        if partition.start < partition.next
            || self.letters_from.contains_key(&id)
            || partition.dead_letters_of.is_some()
        {
            return Err(impossible(format!("partition {id} is deleted, and it is not empty")));
        }
        let Some(queue) = self.queues.get(&partition.queue) else { return Ok(()) };
        self.touched.extend(queue.groups.values().map(|group| Touched::Cursor(id, *group)));
        let groups: SmallVec<[GroupId; 8]> = queue.groups.values().copied().collect();
        for group in groups {
            self.set_cursor(id, group, None);
        }
        let Some(partition) = self.partitions.swap_remove(&id) else { return Ok(()) };
        if let Some(queue) = self.queues.get_mut(&partition.queue) {
            queue.partitions.remove(&partition.name, id);
        }
        Ok(())
    }

    /// Each group of a partition's queue may see less of it, or nothing: more than `Touched::Partition` says.
    fn touch_cursors(&mut self, partition: PartitionId) {
        let queue = self.partitions.get(&partition).and_then(|partition| self.queues.get(&partition.queue));
        let groups = queue.into_iter().flat_map(|queue| queue.groups.values());
        self.touched.extend(groups.map(|group| Touched::Cursor(partition, *group)));
    }

    pub(super) fn set_cursor(&mut self, partition: PartitionId, group: GroupId, state: Option<CursorState>) {
        let key = (partition, group);
        self.seeds.remove(&key);
        let old = match state {
            Some(state) => self.cursors.insert(key, state),
            None => self.cursors.swap_remove(&key),
        };
        let old_lease = old.and_then(|cursor| cursor.lease).map(|lease| lease.id);
        let new_lease = state.and_then(|cursor| cursor.lease).map(|lease| lease.id);
        if old_lease == new_lease {
            return;
        }
        if let Some(id) = old_lease
            && let Some(holders) = self.leases.get_mut(&id)
        {
            holders.retain(|holder| *holder != key);
            if holders.is_empty() {
                self.leases.remove(&id);
            }
        }
        if let Some(id) = new_lease {
            self.leases.entry(id).or_default().push(key);
        }
    }

    fn apply_cursor(&mut self, delta: &CursorDelta) -> Result<(), Impossible> {
        if !self.partitions.contains_key(&delta.partition) || !self.groups.contains_key(&delta.group) {
            if self.catching_up {
                return Ok(());
            }
            return Err(impossible(format!(
                "cursor of unknown partition {} or group {}",
                delta.partition, delta.group
            )));
        }
        if let Some(old) = self.cursors.get(&(delta.partition, delta.group))
            && delta.state.next < old.next
            && delta.cause != Cause::Seek
            && !self.catching_up
        {
            return Err(impossible(format!(
                "cursor of partition {} and group {} moves back from {} to {}",
                delta.partition, delta.group, old.next, delta.state.next
            )));
        }
        self.set_cursor(delta.partition, delta.group, Some(delta.state));
        self.touched.push(Touched::Cursor(delta.partition, delta.group));
        Ok(())
    }

    /// Segments hold nothing that counts any more.
    fn apply_dropped(&mut self, first: FileNumber, last: FileNumber) {
        self.index.drop_segments(first, last);
        let (mut first, mut last) = (first, last);
        // Ranges that touch become one.
        while let Some((from, to)) =
            self.dropped.range(..=last.next()).next_back().map(|(from, to)| (*from, *to))
            && to.next() >= first
        {
            self.dropped.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.dropped.insert(first, last);
    }

    fn apply_dead_letter(&mut self, def: &DeadLetterDef<'_>) -> Result<(), Impossible> {
        self.note_stamp(def.failed);
        let queue = self
            .partitions
            .get(&def.partition)
            .filter(|_| self.group_of_letters(def.group).is_some())
            .and_then(|partition| self.queues.get_mut(&partition.queue));
        let Some(queue) = queue else {
            if self.catching_up {
                return Ok(());
            }
            return Err(impossible(format!(
                "dead letter of unknown partition {} or group {}",
                def.partition, def.group
            )));
        };
        queue.letters.insert((def.failed, def.id));
        let letter = DeadLetter {
            id: def.id,
            partition: def.partition,
            group: def.group,
            offset: def.offset,
            copy_partition: def.copy_partition,
            copy_offset: def.copy_offset,
            retries_used: def.retries_used,
            error: def.error.into(),
            created: def.created,
            failed: def.failed,
        };
        self.copies.insert((def.copy_partition, def.copy_offset), (def.failed, def.id));
        let known = self.dead_letters.insert((def.failed, def.id), letter);
        self.dead_letter_times.insert(def.id, def.failed);
        if known.is_none() {
            *self.letters_from.entry(def.partition).or_default() += 1;
            if let Some(group) = self.group_mut(def.group) {
                group.letters += 1;
            }
        }
        Ok(())
    }

    /// A dead letter's copy does not count any more.
    pub(super) fn bury_copy(&mut self, partition: PartitionId, offset: Offset) {
        self.copies.remove(&(partition, offset));
        let span = self.partitions.get(&partition).and_then(|known| known.spans.holding(offset));
        if let Some(segment) = span.map(|span| span.segment()) {
            self.index.died(segment, 1);
        }
    }

    fn remove_dead_letter(&mut self, id: DeadLetterId) {
        let Some(time) = self.dead_letter_times.remove(&id) else { return };
        let Some(letter) = self.dead_letters.remove(&(time, id)) else { return };
        self.bury_copy(letter.copy_partition, letter.copy_offset);
        self.letter_gone(letter.partition);
        if let Some(group) = self.group_mut(letter.group) {
            group.letters -= 1;
        }
        let partition = self.partitions.get(&letter.partition);
        if let Some(queue) = partition.and_then(|partition| self.queues.get_mut(&partition.queue)) {
            queue.letters.remove(&(time, id));
        }
    }

    pub(super) fn letter_gone(&mut self, partition: PartitionId) {
        if let Entry::Occupied(mut count) = self.letters_from.entry(partition) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Machine for State {
    fn apply(&mut self, delta: &Delta<'_>) -> Result<(), Impossible> {
        match delta {
            Delta::Queue(def) => self.apply_queue(def)?,
            Delta::QueueDeleted(id) => self.apply_queue_deleted(*id),
            Delta::Partition(def) => self.apply_partition(def)?,
            Delta::Group(def) => self.apply_group(def)?,
            Delta::GroupDeleted(id) => self.apply_group_deleted(*id)?,
            Delta::Cursor(delta) => self.apply_cursor(delta)?,
            Delta::DeadLetter(def) => self.apply_dead_letter(def)?,
            Delta::DeadLetterRemoved(id) => self.remove_dead_letter(*id),
            Delta::SegmentsDropped { first, last } => self.apply_dropped(*first, *last),
            Delta::PartitionStart { partition, start } => self.apply_partition_start(*partition, *start)?,
            Delta::PartitionDeleted(partition) => self.apply_partition_deleted(*partition)?,
            Delta::NextIds { queue, partition, group } => {
                self.next_queue = self.next_queue.max(*queue);
                self.next_partition = self.next_partition.max(*partition);
                self.next_group = self.next_group.max(*group);
            }
        }
        Ok(())
    }

    fn apply_run(
        &mut self,
        run: &RunHeader,
        ids: &[(IdHash, MessageId)],
        place: Place,
    ) -> Result<(), Impossible> {
        self.note_stamp(run.created);
        let Some(partition) = self.partitions.get_mut(&run.partition) else {
            if run.partition < self.next_partition {
                return Ok(()); // deleted since
            }
            return Err(impossible(format!("run of partition {} that was never created", run.partition)));
        };
        let end = Offset(run.base.0 + u64::from(run.count));
        if run.form != RunForm::Pushed {
            if end > partition.next {
                return Err(impossible(format!(
                    "messages of partition {} up to offset {end} were moved, and {} comes next",
                    run.partition, partition.next
                )));
            }
        } else if run.base == partition.next {
            partition.next = end;
            partition.last_created = run.created;
            partition.last_logged = run.logged;
            self.touched.push(Touched::Partition(run.partition));
        } else if end > partition.next || !self.catching_up {
            return Err(impossible(format!(
                "run of partition {} at offset {} where {} comes next",
                run.partition, run.base, partition.next
            )));
        }
        // Ids outlive the messages.
        let readable = run.form != RunForm::Bare && end > partition.start;
        self.index.add(&mut partition.spans, run, ids, place, readable);
        Ok(())
    }

    fn attach_segment(&mut self, info: &IndexInfo) {
        self.index.attach_segment(info);
    }

    fn is_dropped(&self, segment: FileNumber) -> bool {
        let before = self.dropped.range(..=segment).next_back();
        before.is_some_and(|(_, last)| segment <= *last)
    }

    fn attach_span(&mut self, segment: FileNumber, row: &SpanRow) {
        let Some(partition) = self.partitions.get_mut(&row.partition) else { return };
        if row.bare || row.end <= partition.start {
            return;
        }
        let base = row.base.max(partition.start); // retention took what is in front
        let span = Span::cold(segment, base, row.end, row.first_created, row.last_logged);
        self.index.attach(&mut partition.spans, span);
    }

    fn forget_notes(&mut self) {
        self.touched.clear();
        self.free_some(usize::MAX); // recovery has nobody to wait for
    }

    fn verify(&self) -> Result<(), Impossible> {
        // Of internal partitions only the copies of dead letters count.
        for (partition, offset) in self.copies.keys() {
            let known = self.partitions.get(partition);
            if known.is_some_and(|known| known.spans.holding(*offset).is_none()) {
                return Err(impossible(format!(
                    "the copy of a dead letter at offset {offset} of partition {partition} is missing"
                )));
            }
        }
        for partition in self.partitions.values().filter(|known| known.dead_letters_of.is_none()) {
            if partition.start > partition.next {
                return Err(impossible(format!(
                    "partition {} starts at {} and ends at {}",
                    partition.id, partition.start, partition.next
                )));
            }
            if let Some(gap) = partition.spans.gap(partition.start, partition.next) {
                return Err(impossible(format!(
                    "message {gap} of partition {} is missing, and all up to {} were acknowledged: a segment was cut or removed",
                    partition.id, partition.next
                )));
            }
        }
        Ok(())
    }

    fn set_log(&mut self, log: LogId) {
        self.seed = (log.0 >> 64) as u64 ^ log.0 as u64;
    }

    fn set_catching_up(&mut self, catching_up: bool) {
        self.catching_up = catching_up;
    }

    fn snapshot_slice(
        &self,
        cursor: &mut SnapshotCursor,
        budget: usize,
        each: &mut dyn FnMut(&Delta<'_>),
    ) -> bool {
        snapshot::slice(self, cursor, budget, each)
    }
}
