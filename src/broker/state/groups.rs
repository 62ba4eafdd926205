//! Consumer groups in the state: registered, changed, retired, forgotten.
//!
//! Must not: decide anything.

use std::sync::Arc;

use super::{Grave, Group, State, Touched, impossible};
use crate::engine::machine::Impossible;
use crate::format::delta::{GroupDef, StartPolicy};
use crate::types::{GroupId, PartitionId};

impl State {
    pub(super) fn apply_group(&mut self, def: &GroupDef<'_>) -> Result<(), Impossible> {
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
        if self.retired.contains_key(&def.group) {
            if def.retired || self.catching_up {
                return Ok(()); // what was deleted stays so
            }
            return Err(impossible(format!("group {} was deleted", def.group)));
        }
        if def.retired {
            let mut group = self.take_group(def.group).unwrap_or_else(|| Group::new(def));
            // The record is absolute: who meets the group in it only must come to the same.
            (group.start, group.conflating) = (def.start, def.conflating);
            self.retired.insert(def.group, group);
            return Ok(());
        }
        let name: Arc<str> = def.name.into();
        if let Some(other) = queue.groups.insert(Arc::clone(&name), def.group)
            && other != def.group
            && !self.catching_up
        {
            return Err(impossible(format!("group {} takes the name of {other}", def.group)));
        }
        match self.groups.get_mut(&def.group) {
            None => {
                self.groups.insert(def.group, Group::new(def));
            }
            Some(group) => {
                if group.start != def.start {
                    group.start = def.start;
                    self.seeds.retain(|(_, known), _| *known != def.group);
                    self.touched.push(Touched::Group(def.queue, def.group));
                }
                group.conflating = def.conflating;
            }
        }
        Ok(())
    }

    /// A group is gone that has no dead letters.
    pub(super) fn apply_group_deleted(&mut self, id: GroupId) -> Result<(), Impossible> {
        let Some(group) = self.retired.swap_remove(&id).or_else(|| self.take_group(id)) else {
            return Ok(());
        };
        if group.letters > 0 && !self.catching_up {
            return Err(impossible(format!("group {id} is deleted, and it has dead letters")));
        }
        if let Some(internal) = group.dead_letter_partition {
            self.partitions.swap_remove(&internal);
        }
        Ok(())
    }

    /// Takes a group out of sight. Its cursors go a bounded number at a time.
    fn take_group(&mut self, id: GroupId) -> Option<Group> {
        let group = self.groups.swap_remove(&id)?;
        if let Some(queue) = self.queues.get_mut(&group.queue) {
            if queue.groups.get(&group.name) == Some(&id) {
                queue.groups.remove(&group.name);
            }
            let partitions: Vec<PartitionId> = queue.partitions.values().collect();
            self.graveyard.push(Grave::of_group(partitions, id));
        }
        self.touched.push(Touched::GroupGone(id));
        // Whoever waits with its name registers it anew.
        self.touched.push(Touched::Queue(group.queue));
        Some(group)
    }

    /// The group that dead letters name: it may be deleted.
    #[must_use]
    pub fn group_of_letters(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id).or_else(|| self.retired.get(&id))
    }

    pub(super) fn group_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(&id).or_else(|| self.retired.get_mut(&id))
    }
}
