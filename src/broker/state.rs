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

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::engine::machine::{Impossible, Machine};
use crate::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, GroupDef, PartitionDef, QueueDef, StartPolicy,
};
use crate::format::index::SpanRow;
use crate::format::run::RunHeader;
use crate::index::runs::Place;
use crate::index::spans::{Span, Spans};
use crate::index::{Index, Lookup, RunsFrom};
use crate::types::{
    DeadLetterId, FileNumber, GroupId, IdHash, LeaseId, LogTime, MessageId, Offset, PartitionId, QueueId,
    QueueOptions, WallTime,
};

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
    /// Where its messages are.
    pub spans: Spans,
    /// Dead letters that came from it; it is not deleted while there are any.
    pub dead_letters: u32,
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
    pub queues: HashMap<QueueId, Queue>,
    /// Queues by name.
    pub queue_names: HashMap<Arc<str>, QueueId>,
    /// Partitions.
    pub partitions: HashMap<PartitionId, Partition>,
    /// Groups.
    pub groups: HashMap<GroupId, Group>,
    /// Cursors.
    pub cursors: HashMap<(PartitionId, GroupId), CursorState>,
    /// Which cursors carry a lease, live or expired.
    pub leases: HashMap<LeaseId, SmallVec<[(PartitionId, GroupId); 1]>>,
    /// Where messages are, and which transaction ids were seen.
    pub index: Index,
    /// Where groups that begin at a time begin, as far as it had to be looked up: it can be looked up again.
    pub seeds: HashMap<(PartitionId, GroupId), Offset>,
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
}

impl Default for State {
    fn default() -> State {
        State {
            queues: HashMap::new(),
            queue_names: HashMap::new(),
            partitions: HashMap::new(),
            groups: HashMap::new(),
            cursors: HashMap::new(),
            leases: HashMap::new(),
            index: Index::default(),
            seeds: HashMap::new(),
            dead_letters: BTreeMap::new(),
            dead_letter_times: HashMap::new(),
            // Ids start at 1: a client that takes 0 for nothing must never meet one.
            next_queue: QueueId(1),
            next_partition: PartitionId(1),
            next_group: GroupId(1),
            last_stamp: WallTime(0),
            touched: Vec::new(),
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
            let mut cursor = *cursor;
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
            def.namespace.clone_into(&mut queue.namespace);
            def.task.clone_into(&mut queue.task);
            queue.options = def.options.clone();
            self.touched.push(Touched::Queue(def.queue));
            return Ok(());
        }
        if let Some(other) = self.queue_names.get(def.name) {
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
            },
        );
        self.touched.push(Touched::Queue(def.queue));
        Ok(())
    }

    fn apply_queue_deleted(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else { return };
        self.queue_names.remove(&queue.name);
        let internal: Vec<PartitionId> =
            queue.groups.values().filter_map(|group| self.groups.get(group)?.dead_letter_partition).collect();
        for partition in queue.partitions.values().copied().chain(internal) {
            for group in queue.groups.values() {
                self.set_cursor(partition, *group, None);
            }
            if let Some(partition) = self.partitions.remove(&partition) {
                for span in partition.spans.iter() {
                    self.index.died(span.segment, span.end.0 - span.base.max(partition.start).0);
                }
            }
        }
        for group in queue.groups.values() {
            self.groups.remove(group);
            self.touched.push(Touched::GroupGone(*group));
        }
        self.touched.push(Touched::Queue(id));
        let gone: Vec<(WallTime, DeadLetterId)> = self
            .dead_letters
            .iter()
            .filter(|(_, letter)| !self.partitions.contains_key(&letter.partition))
            .map(|(key, _)| *key)
            .collect();
        for key in gone {
            self.dead_letters.remove(&key);
            self.dead_letter_times.remove(&key.1);
        }
    }

    fn apply_partition(&mut self, def: &PartitionDef<'_>) -> Result<(), Impossible> {
        self.note_stamp(def.created);
        self.note_stamp(def.last_created);
        self.next_partition = self.next_partition.max(PartitionId(def.partition.0 + 1));
        if self.partitions.contains_key(&def.partition) {
            return Err(impossible(format!("partition {} is created twice", def.partition)));
        }
        let Some(queue) = self.queues.get_mut(&def.queue) else {
            return Err(impossible(format!("partition {} of unknown queue {}", def.partition, def.queue)));
        };
        let name: Arc<str> = def.name.into();
        if let Some(group) = def.dead_letters_of {
            let Some(group) = self.groups.get_mut(&group) else {
                return Err(impossible(format!("dead letters of unknown group {group}")));
            };
            group.dead_letter_partition = Some(def.partition);
        } else if let Some(other) = queue.partitions.insert(Arc::clone(&name), def.partition) {
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
                spans: Spans::default(),
                dead_letters: 0,
            },
        );
        Ok(())
    }

    /// Messages below `start` are gone. It may be ahead of `next` for a moment in recovery, which applies the records of
    /// a group before its runs.
    fn apply_partition_start(&mut self, id: PartitionId, start: Offset) -> Result<(), Impossible> {
        let Some(partition) = self.partitions.get_mut(&id) else {
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
            || partition.dead_letters > 0
            || partition.dead_letters_of.is_some()
        {
            return Err(impossible(format!("partition {id} is deleted, and it is not empty")));
        }
        let (name, queue) = (Arc::clone(&partition.name), partition.queue);
        self.touch_cursors(id);
        let Some(queue) = self.queues.get_mut(&queue) else { return Ok(()) };
        if queue.partitions.get(&name) == Some(&id) {
            queue.partitions.remove(&name);
        }
        let groups: SmallVec<[GroupId; 8]> = queue.groups.values().copied().collect();
        for group in groups {
            self.set_cursor(id, group, None);
        }
        self.partitions.remove(&id);
        Ok(())
    }

    /// Each group of a partition's queue may see less of it, or nothing: more than `Touched::Partition` says.
    fn touch_cursors(&mut self, partition: PartitionId) {
        let queue = self.partitions.get(&partition).and_then(|partition| self.queues.get(&partition.queue));
        let groups = queue.into_iter().flat_map(|queue| queue.groups.values());
        self.touched.extend(groups.map(|group| Touched::Cursor(partition, *group)));
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
            return Err(impossible(format!("group {} of unknown queue {}", def.group, def.queue)));
        };
        let name: Arc<str> = def.name.into();
        if let Some(other) = queue.groups.insert(Arc::clone(&name), def.group) {
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

    fn set_cursor(&mut self, partition: PartitionId, group: GroupId, state: Option<CursorState>) {
        let key = (partition, group);
        self.seeds.remove(&key);
        let old = match state {
            Some(state) => self.cursors.insert(key, state),
            None => self.cursors.remove(&key),
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
            return Err(impossible(format!(
                "cursor of unknown partition {} or group {}",
                delta.partition, delta.group
            )));
        }
        if let Some(old) = self.cursors.get(&(delta.partition, delta.group))
            && delta.state.next < old.next
            && delta.cause != Cause::Seek
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

    fn apply_dead_letter(&mut self, def: &DeadLetterDef<'_>) {
        self.note_stamp(def.failed);
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
        let known = self.dead_letters.insert((def.failed, def.id), letter);
        self.dead_letter_times.insert(def.id, def.failed);
        if known.is_none()
            && let Some(partition) = self.partitions.get_mut(&def.partition)
        {
            partition.dead_letters += 1;
        }
    }

    fn apply_dead_letter_removed(&mut self, id: DeadLetterId) {
        let Some(time) = self.dead_letter_times.remove(&id) else { return };
        if let Some(letter) = self.dead_letters.remove(&(time, id))
            && let Some(partition) = self.partitions.get_mut(&letter.partition)
        {
            partition.dead_letters = partition.dead_letters.saturating_sub(1);
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
            Delta::DeadLetter(def) => self.apply_dead_letter(def),
            Delta::DeadLetterRemoved(id) => self.apply_dead_letter_removed(*id),
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
        if run.base == partition.next {
            partition.next = end;
            partition.last_created = run.created;
            partition.last_logged = run.logged;
            self.touched.push(Touched::Partition(run.partition));
        } else if end > partition.next {
            return Err(impossible(format!(
                "run of partition {} at offset {} where {} comes next",
                run.partition, run.base, partition.next
            )));
        }
        // Ids outlive the messages.
        let readable = end > partition.start;
        self.index.add(&mut partition.spans, run, ids, place, readable);
        Ok(())
    }

    fn attach_segment(&mut self, segment: FileNumber, last_logged: LogTime) {
        self.index.attach_segment(segment, last_logged);
    }

    fn attach_span(&mut self, segment: FileNumber, row: &SpanRow) {
        let Some(partition) = self.partitions.get_mut(&row.partition) else { return };
        if row.bare || row.end <= partition.start {
            return;
        }
        let span = Span::cold(segment, row.base, row.end, row.first_created, row.last_logged);
        self.index.attach(&mut partition.spans, span);
        // What retention took of it is not live.
        self.index.died(segment, partition.start.0.saturating_sub(row.base.0));
    }

    fn forget_notes(&mut self) {
        self.touched.clear();
    }

    fn verify(&self) -> Result<(), Impossible> {
        for partition in self.partitions.values() {
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

    fn snapshot(&self, each: &mut dyn FnMut(&Delta<'_>)) {
        each(&Delta::NextIds {
            queue: self.next_queue,
            partition: self.next_partition,
            group: self.next_group,
        });
        for queue in self.queues.values() {
            each(&Delta::Queue(QueueDef {
                queue: queue.id,
                name: &queue.name,
                namespace: &queue.namespace,
                task: &queue.task,
                created: queue.created,
                options: queue.options.clone(),
            }));
        }
        for group in self.groups.values() {
            each(&Delta::Group(GroupDef {
                group: group.id,
                queue: group.queue,
                name: &group.name,
                start: group.start,
                conflating: false,
                created: group.created,
            }));
        }
        for partition in self.partitions.values() {
            each(&Delta::Partition(PartitionDef {
                partition: partition.id,
                queue: partition.queue,
                name: &partition.name,
                dead_letters_of: partition.dead_letters_of,
                next: partition.next,
                start: partition.start,
                last_created: partition.last_created,
                last_logged: partition.last_logged,
                created: partition.created,
            }));
        }
        for ((partition, group), state) in &self.cursors {
            each(&Delta::Cursor(CursorDelta {
                partition: *partition,
                group: *group,
                cause: Cause::Checkpoint,
                state: *state,
            }));
        }
        for letter in self.dead_letters.values() {
            each(&Delta::DeadLetter(DeadLetterDef {
                id: letter.id,
                partition: letter.partition,
                group: letter.group,
                offset: letter.offset,
                copy_partition: letter.copy_partition,
                copy_offset: letter.copy_offset,
                retries_used: letter.retries_used,
                error: &letter.error,
                created: letter.created,
                failed: letter.failed,
            }));
        }
    }
}
