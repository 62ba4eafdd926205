//! Consumer groups as an operator handles them: where they begin, moved, deleted.
//!
//! Purpose: change a group over all its queues and partitions, a record at a time, going on where room ran out.
//!
//! Invariants:
//! - A moved cursor forgets its lease, attempts and spent retries: what was delivered before does not count for it.
//! - Deleting forgets every cursor in one record per queue. A group with dead letters is retired: nobody pops with it,
//!   and it is forgotten with its last dead letter.
//! - What was staged before a wait stays; the rest follows. The answer comes when all of it is durable.
//!
//! Must not: touch dead letters or messages.

use super::command::{GroupChange, GroupReply, Reply, SeekTo};
use super::core::{Block, Core, Step};
use super::journal::{DELTA_BYTES, Fit, Journal};
use super::state::{Group, Partition};
use crate::format::delta::{Cause, CursorDelta, CursorState, Delta, GroupDef, StartPolicy};
use crate::index::Lookup;
use crate::types::{GroupId, Offset, PartitionId, QueueId, WallTime};

/// Records staged before others have their turn.
const TARGETS_PER_STEP: usize = 1024;

/// A change being carried out.
#[derive(Debug)]
pub struct GroupWork {
    change: GroupChange,
    /// What is left to do; made at the first step.
    left: Option<Vec<Target>>,
    reply: GroupReply,
    /// Where the search for a time goes on in the partition that is next.
    walked: Offset,
}

/// Something that is to be changed.
#[derive(Clone, Copy, Debug)]
enum Target {
    Group(GroupId),
    Cursor(PartitionId, GroupId),
}

impl GroupWork {
    /// Work for this change.
    #[must_use]
    pub fn new(change: GroupChange) -> GroupWork {
        GroupWork { change, left: None, reply: GroupReply::default(), walked: Offset(0) }
    }
}

impl<J: Journal> Core<J> {
    /// Carries a change on.
    pub(super) fn change_groups(&mut self, work: &mut GroupWork) -> Step {
        if work.left.is_none() {
            match self.group_targets(&work.change, &mut work.reply) {
                Ok(targets) => work.left = Some(targets),
                Err(block) => return Step::Blocked(block),
            }
        }
        for _ in 0..TARGETS_PER_STEP {
            let Some(target) = work.left.as_ref().and_then(|left| left.last().copied()) else {
                return Step::Done(Reply::Group(work.reply));
            };
            if let Err(block) = self.change_target(work, target) {
                return Step::Blocked(block);
            }
            work.walked = Offset(0);
            work.left.as_mut().map(Vec::pop);
        }
        Step::Blocked(Block::Yield)
    }

    /// What a change is about. A group that is to be moved in a queue where it is not known is registered.
    fn group_targets(&mut self, change: &GroupChange, reply: &mut GroupReply) -> Result<Vec<Target>, Block> {
        let (name, queue) = match change {
            GroupChange::Subscribe { group, .. } => (group, None),
            GroupChange::Delete { group, queue, .. } => (group, queue.as_deref()),
            GroupChange::Seek { group, queue, partition, to } => {
                return self.seek_targets(group, queue, partition.as_deref(), *to, reply);
            }
        };
        let mut groups: Vec<GroupId> = match queue {
            Some(queue) => {
                let known = self.state.queue_named(queue);
                reply.queue_known = known.is_some();
                known.and_then(|queue| queue.groups.get(name.as_str()).copied()).into_iter().collect()
            }
            None => {
                let named = self.state.groups.values().filter(|known| *known.name == **name);
                named.map(|known| known.id).collect()
            }
        };
        groups.sort_unstable();
        Ok(groups.into_iter().map(Target::Group).collect())
    }

    fn seek_targets(
        &mut self,
        name: &str,
        queue: &str,
        partition: Option<&str>,
        to: SeekTo,
        reply: &mut GroupReply,
    ) -> Result<Vec<Target>, Block> {
        let Some(known) = self.state.queue_named(queue) else { return Ok(Vec::new()) };
        reply.queue_known = true;
        let (id, group) = (known.id, known.groups.get(name).copied());
        let mut partitions: Vec<PartitionId> = match partition {
            Some(partition) => known.partitions.get(&self.state.partitions, partition).into_iter().collect(),
            None => known.partitions.values().collect(),
        };
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let group = match group {
            Some(group) => group,
            None => self.register_for_seek(id, name, to)?,
        };
        partitions.sort_unstable();
        Ok(partitions.into_iter().map(|partition| Target::Cursor(partition, group)).collect())
    }

    fn register_for_seek(&mut self, queue: QueueId, name: &str, to: SeekTo) -> Result<GroupId, Block> {
        self.group_room(1, name)?;
        let created = self.stamp();
        let start = match to {
            SeekTo::End => StartPolicy::From(created),
            SeekTo::Time(time) => StartPolicy::From(time),
        };
        let group = self.state.next_group;
        self.stage(&Delta::Group(GroupDef {
            group,
            queue,
            name,
            start,
            conflating: false,
            retired: false,
            created,
        }));
        self.look_at_group(queue, group);
        Ok(group)
    }

    fn group_room(&self, records: u64, name: &str) -> Result<(), Block> {
        match self.journal.fits(0, records * (DELTA_BYTES + name.len() as u64)) {
            Fit::Later => Err(Block::Room),
            Fit::Now | Fit::Full { .. } | Fit::TooLarge { .. } => Ok(()),
        }
    }

    fn change_target(&mut self, work: &mut GroupWork, target: Target) -> Result<(), Block> {
        let (change, reply) = (&work.change, &mut work.reply);
        match (change, target) {
            (GroupChange::Subscribe { start, .. }, Target::Group(id)) => self.subscribe(id, *start, reply),
            (GroupChange::Delete { forget, .. }, Target::Group(id)) => self.delete_group(id, *forget, reply),
            (GroupChange::Seek { to, .. }, Target::Cursor(partition, group)) => {
                let to = *to;
                self.seek(partition, group, to, work)
            }
            (change, target) => unreachable!("{target:?} is no target of {change:?}"),
        }
    }

    /// A group begins elsewhere in partitions that it has not met.
    fn subscribe(&mut self, id: GroupId, time: WallTime, reply: &mut GroupReply) -> Result<(), Block> {
        let Some(group) = self.state.groups.get(&id).cloned() else { return Ok(()) };
        self.group_room(1, &group.name)?;
        self.stage(&Delta::Group(def(&group, id, StartPolicy::From(time), false, group.created)));
        reply.changed += 1;
        Ok(())
    }

    fn delete_group(&mut self, id: GroupId, forget: bool, reply: &mut GroupReply) -> Result<(), Block> {
        let Some(group) = self.state.groups.get(&id).cloned() else { return Ok(()) };
        self.group_room(2, &group.name)?;
        let partitions = self.state.queues.get(&group.queue).map(|queue| queue.partitions.values());
        let met = |partition: &PartitionId| self.state.cursors.contains_key(&(*partition, id));
        let cursors = partitions.into_iter().flatten().filter(met).count();
        reply.changed += u32::try_from(cursors).unwrap_or(u32::MAX);
        if group.letters > 0 {
            self.stage(&Delta::Group(def(&group, id, group.start, true, group.created)));
        } else {
            self.stage(&Delta::GroupDeleted(id));
        }
        if !forget {
            let (fresh, created) = (self.state.next_group, self.stamp());
            self.stage(&Delta::Group(def(&group, fresh, group.start, false, created)));
            self.look_at_group(group.queue, fresh);
        }
        Ok(())
    }

    fn seek(
        &mut self,
        partition: PartitionId,
        group: GroupId,
        to: SeekTo,
        work: &mut GroupWork,
    ) -> Result<(), Block> {
        let Some(known) = self.state.partitions.get(&partition) else { return Ok(()) };
        if !self.state.groups.contains_key(&group) {
            return Ok(()); // deleted while this waited
        }
        let next = match to {
            SeekTo::End => known.next,
            SeekTo::Time(time) => self
                .first_from(known, time, &mut work.walked)
                .map_err(|lookup| Block::Index(vec![lookup]))?
                .max(known.start),
        };
        self.group_room(1, "")?;
        let state = CursorState { next, ..CursorState::default() };
        self.stage(&Delta::Cursor(CursorDelta { partition, group, cause: Cause::Seek, state }));
        work.reply.changed += 1;
        Ok(())
    }

    /// The first message created at or after a time; the end if there is none. `walked`: how far an earlier call got.
    pub(super) fn first_from(
        &self,
        partition: &Partition,
        time: WallTime,
        walked: &mut Offset,
    ) -> Result<Offset, Lookup> {
        if time > partition.last_created {
            return Ok(partition.next);
        }
        let index = &self.state.index;
        let base = match index.first_created_from(partition.id, &partition.spans, time, partition.next) {
            Ok(offset) => return Ok(offset),
            Err(Lookup::Created { base, .. }) => base,
            Err(lookup) => return Err(lookup),
        };
        *walked = base.max(*walked);
        for run in self.state.runs(partition, *walked) {
            let run = run?;
            if run.created >= time {
                return Ok(run.base);
            }
            *walked = run.end();
        }
        Ok(partition.next)
    }
}

fn def(group: &Group, id: GroupId, start: StartPolicy, retired: bool, created: WallTime) -> GroupDef<'_> {
    GroupDef {
        group: id,
        queue: group.queue,
        name: &group.name,
        start,
        conflating: group.conflating,
        retired,
        created,
    }
}
