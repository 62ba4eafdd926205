//! Everything the broker knows, changed by `apply` and `apply_run` alone.
//!
//! Invariants:
//! - Absolute records: applying one twice is the same as applying it once.
//! - `touched` names every partition (and group) whose visibility may have changed since it was last drained, so
//!   that no path to visibility can forget to wake a waiter.
//!
//! Must not: decide anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use indexmap::IndexMap;
use smallvec::SmallVec;

use super::graveyard::{Grave, Letters};
use super::snapshot;
use crate::engine::machine::{Impossible, Machine, SnapshotCursor};
use crate::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, GroupDef, PartitionDef, QueueDef, StartPolicy,
};
use crate::format::run::RunHeader;
use crate::index::ids::{IdRows, Ids};
use crate::index::runs::{Place, Run, Runs};
use crate::types::{
    DeadLetterId, GroupId, IdHash, LeaseId, LogTime, MessageId, Offset, PartitionId, QueueId, QueueOptions,
    WallTime,
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
    pub partitions: HashMap<Arc<str>, PartitionId>,
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
    pub name: Arc<str>,
    /// Set for the internal partition of a group's dead-letter copies.
    pub dead_letters_of: Option<GroupId>,
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
    /// Its runs.
    pub runs: Runs,
    /// Its id rows.
    pub ids: IdRows,
}

/// A consumer group of a queue.
#[derive(Debug)]
pub struct Group {
    /// Identity.
    pub id: GroupId,
    /// Its queue.
    pub queue: QueueId,
    /// Name.
    pub name: Arc<str>,
    /// Where it begins in a partition that it has not met.
    pub start: StartPolicy,
    /// When it was registered.
    pub created: WallTime,
    /// The internal partition of its dead-letter copies, once there is one.
    pub dead_letter_partition: Option<PartitionId>,
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
    /// A queue was created, deleted or changed: everything in it may be visible earlier, later or not at all.
    Queue(QueueId),
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
    /// Cursors; for a while also those of deleted queues, whose groups are in no table any more.
    pub cursors: Table<(PartitionId, GroupId), CursorState>,
    /// Which cursors carry a lease, live or expired.
    pub leases: HashMap<LeaseId, SmallVec<[(PartitionId, GroupId); 1]>>,
    /// The table of transaction ids.
    pub ids: Ids,
    /// Dead letters by time of failure.
    pub dead_letters: BTreeMap<(WallTime, DeadLetterId), DeadLetter>,
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
            cursors: Table::default(),
            leases: HashMap::new(),
            ids: Ids::default(),
            dead_letters: BTreeMap::new(),
            dead_letter_times: HashMap::new(),
            // Ids start at 1: a client that takes 0 for nothing must never meet one.
            next_queue: QueueId(1),
            next_partition: PartitionId(1),
            next_group: GroupId(1),
            last_stamp: WallTime(0),
            touched: Vec::new(),
            catching_up: false,
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

    /// The cursor of a group in a partition: the stored one, or where the group's policy makes it begin.
    #[must_use]
    pub fn cursor_or_seed(&self, partition: &Partition, group: &Group) -> CursorState {
        if let Some(cursor) = self.cursors.get(&(partition.id, group.id)) {
            let mut cursor = *cursor;
            cursor.next = cursor.next.max(partition.start);
            return cursor;
        }
        let next = match group.start {
            StartPolicy::All => partition.start,
            StartPolicy::From(time) => {
                partition.runs.first_created_from(time).unwrap_or(partition.next).max(partition.start)
            }
        };
        CursorState { next, ..CursorState::default() }
    }

    /// Drops the oldest id rows of a partition, at most `most`: those older than the queue's horizon that no
    /// cursor has yet to acknowledge. How many went.
    ///
    /// A group that has not met the partition counts with the place where it would begin. Without any group, rows
    /// stay as long as their messages: whoever comes first must be able to acknowledge them. A group that comes
    /// after others have passed may find messages whose rows are gone.
    pub fn expire_ids(&mut self, partition: PartitionId, now: LogTime, most: usize) -> usize {
        let Some(known) = self.partitions.get(&partition) else { return 0 };
        let Some(queue) = self.queues.get(&known.queue) else { return 0 };
        let kept_since = now.minus_seconds(queue.options.id_horizon_seconds());
        if known.ids.oldest().is_none_or(|row| row.logged >= kept_since) {
            return 0; // the usual case, before every cursor is looked at
        }
        let wanted = |group: &GroupId| {
            let leased = self
                .cursors
                .get(&(partition, *group))
                .filter(|cursor| cursor.lease.is_some_and(|lease| lease.expires >= now));
            match leased {
                Some(cursor) => Some(cursor.next), // also where retention took the messages meanwhile
                None => Some(self.cursor_or_seed(known, self.groups.get(group)?).next),
            }
        };
        let needed_from = queue.groups.values().filter_map(wanted).min().unwrap_or(known.start);
        let Some(known) = self.partitions.get_mut(&partition) else { return 0 };
        let mut gone = 0;
        while gone < most
            && known.ids.oldest().is_some_and(|row| row.logged < kept_since && row.offset < needed_from)
        {
            self.ids.drop_oldest(partition, &mut known.ids);
            gone += 1;
        }
        gone
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
            queue.options = def.options.clone();
            self.touched.push(Touched::Queue(def.queue));
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
                partitions: HashMap::new(),
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
        let groups: Vec<GroupId> = queue.groups.into_values().collect();
        let mut internal = Vec::new();
        for group in &groups {
            internal.extend(self.groups.swap_remove(group).and_then(|known| known.dead_letter_partition));
            self.touched.push(Touched::GroupGone(*group));
        }
        self.touched.push(Touched::Queue(id));
        let (partitions, letters) = (queue.partitions.into_iter(), queue.letters);
        self.graveyard.push(Grave { partitions, internal, groups, letters, open: None });
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
        let name: Arc<str> = def.name.into();
        if let Some(group) = def.dead_letters_of {
            let Some(group) = self.groups.get_mut(&group) else {
                if self.catching_up {
                    return Ok(());
                }
                return Err(impossible(format!("dead letters of unknown group {group}")));
            };
            group.dead_letter_partition = Some(def.partition);
        } else if let Some(other) = queue.partitions.insert(Arc::clone(&name), def.partition)
            && !(self.catching_up && other == def.partition)
        {
            return Err(impossible(format!("partition {} takes the name of {other}", def.partition)));
        }
        self.partitions.insert(
            def.partition,
            Partition {
                id: def.partition,
                queue: def.queue,
                name,
                dead_letters_of: def.dead_letters_of,
                next: def.next,
                start: def.start,
                last_created: def.last_created,
                last_logged: def.last_logged,
                created: def.created,
                runs: Runs::default(),
                ids: IdRows::default(),
            },
        );
        Ok(())
    }

    fn apply_group(&mut self, def: &GroupDef<'_>) -> Result<(), Impossible> {
        self.note_stamp(def.created);
        if let StartPolicy::From(time) = def.start
            && time <= def.created
        {
            self.note_stamp(time);
        }
        self.next_group = self.next_group.max(GroupId(def.group.0 + 1));
        let Some(queue) = self.queues.get_mut(&def.queue) else {
            if self.catching_up {
                return Ok(());
            }
            return Err(impossible(format!("group {} of unknown queue {}", def.group, def.queue)));
        };
        let name: Arc<str> = def.name.into();
        if let Some(other) = queue.groups.insert(Arc::clone(&name), def.group)
            && !(self.catching_up && other == def.group)
        {
            return Err(impossible(format!("group {} takes the name of {other}", def.group)));
        }
        self.groups.insert(
            def.group,
            Group {
                id: def.group,
                queue: def.queue,
                name,
                start: def.start,
                created: def.created,
                dead_letter_partition: None,
            },
        );
        Ok(())
    }

    pub(super) fn set_cursor(&mut self, partition: PartitionId, group: GroupId, state: Option<CursorState>) {
        let key = (partition, group);
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

    fn apply_dead_letter(&mut self, def: &DeadLetterDef<'_>) -> Result<(), Impossible> {
        self.note_stamp(def.failed);
        let queue = self
            .partitions
            .get(&def.partition)
            .filter(|_| self.groups.contains_key(&def.group))
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
        self.dead_letters.insert((def.failed, def.id), letter);
        self.dead_letter_times.insert(def.id, def.failed);
        Ok(())
    }

    fn remove_dead_letter(&mut self, id: DeadLetterId) {
        let Some(time) = self.dead_letter_times.remove(&id) else { return };
        let Some(letter) = self.dead_letters.remove(&(time, id)) else { return };
        let partition = self.partitions.get(&letter.partition);
        if let Some(queue) = partition.and_then(|partition| self.queues.get_mut(&partition.queue)) {
            queue.letters.remove(&(time, id));
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
            Delta::Cursor(delta) => self.apply_cursor(delta)?,
            Delta::DeadLetter(def) => self.apply_dead_letter(def)?,
            Delta::DeadLetterRemoved(id) => {
                self.remove_dead_letter(*id);
            }
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
        if run.base == partition.next {
            partition.next = end;
            partition.last_created = run.created;
            partition.last_logged = run.logged;
            self.touched.push(Touched::Partition(run.partition));
        } else if end > partition.next || partition.runs.end().is_some_and(|known| known > run.base) {
            return Err(impossible(format!(
                "run of partition {} at offset {} where {} comes next",
                run.partition, run.base, partition.next
            )));
        }
        if end <= partition.start {
            return Ok(()); // expired since
        }
        if run.base > partition.runs.end().unwrap_or(partition.start) {
            return Err(impossible(format!(
                "messages of partition {} before offset {} are missing",
                run.partition, run.base
            )));
        }
        partition.runs.push(Run {
            base: run.base,
            count: run.count,
            bytes: run.bytes,
            created: run.created,
            logged: run.logged,
            place,
        });
        if partition.dead_letters_of.is_some() {
            return Ok(()); // copies are addressed by offset, never by transaction id
        }
        for (offset, (hash, id)) in (run.base.0..).zip(ids) {
            self.ids.insert(run.partition, &mut partition.ids, Offset(offset), *hash, *id, run.logged);
        }
        Ok(())
    }

    fn forget_notes(&mut self) {
        self.touched.clear();
        self.free_some(usize::MAX); // recovery has nobody to wait for
    }

    fn verify(&self) -> Result<(), Impossible> {
        for partition in self.partitions.values() {
            let end = partition.runs.end().unwrap_or(partition.start);
            if end != partition.next {
                return Err(impossible(format!(
                    "messages {end} to {} of partition {} are missing: a segment was cut or removed",
                    partition.next, partition.id
                )));
            }
        }
        Ok(())
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
