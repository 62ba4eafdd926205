//! Claims: order, leases, and the bytes that are delivered.

use comb::format::entry::Entry;
use comb::types::{LeaseId, PartitionId};

use super::Oracle;
use super::model::{CommandId, Hold, Lane, Pending};
use crate::failure::{Failure, Invariant, check};
use crate::payload::{self, Label};
use crate::profile::{PARTITIONS, QUEUES};

/// A claim as it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// The pop.
    pub command: CommandId,
    /// The lane.
    pub lane: Lane,
    /// Index of the group.
    pub group: usize,
    /// The lease; none when committed at delivery.
    pub lease: Option<LeaseId>,
    /// First offset.
    pub first: u64,
    /// Last offset.
    pub last: u64,
    /// When the pop was sent.
    pub sent: u64,
    /// When it was answered.
    pub now: u64,
    /// Length of the lease in seconds, at least.
    pub seconds: u32,
}

impl Oracle {
    /// A pop that commits at delivery was sent: until it is answered, nobody knows what it passes.
    pub fn blind_sent(&mut self, command: CommandId, queue: Option<usize>, group: usize) {
        let life = self.model.life;
        let lanes = self.present_lanes(queue);
        for lane in lanes {
            self.model.cursor(lane, group).pending.push(Pending { command, life, top: None });
        }
    }

    /// Such a pop was answered.
    pub fn blind_answered(&mut self, command: CommandId) {
        for cursor in self.model.cursors.values_mut() {
            cursor.pending.retain(|pending| pending.command != command);
        }
    }

    fn present_lanes(&self, queue: Option<usize>) -> Vec<Lane> {
        let queues = self.model.queues.iter().enumerate();
        queues
            .filter(|(index, _)| queue.is_none_or(|queue| queue == *index))
            .flat_map(|(_, queue)| queue.lanes.iter().copied())
            .collect()
    }

    /// The lane of a partition id; a new id belongs to the lane of the present incarnation with these names.
    ///
    /// # Errors
    /// The id or the name belongs to another one.
    pub fn lane_of(&mut self, id: PartitionId, queue: usize, partition: &str) -> Result<Lane, Failure> {
        let index = PARTITIONS.iter().position(|name| *name == partition);
        let Some(index) = index else {
            return Err(Failure::new(
                Invariant::Identity,
                format!("a claim of unknown partition {partition:?}"),
            ));
        };
        let lane = self.model.lane(queue, index);
        if let Some(known) = self.model.by_partition.insert(id, lane) {
            check(known == lane, Invariant::Identity, || {
                format!("partition id {id} is {} and was {}", self.model.name(lane), self.model.name(known))
            })?;
        }
        let before = self.model.facts_mut(lane).id.replace(id);
        check(before.is_none_or(|before| before == id), Invariant::Identity, || {
            format!("{} has id {id} and had {before:?}", self.model.name(lane))
        })?;
        Ok(lane)
    }

    /// A claim was answered.
    ///
    /// # Errors
    /// It contradicts what is known of the cursor.
    pub fn claimed(&mut self, claim: &Claimed) -> Result<(), Failure> {
        let Claimed { command, lane, group, lease, first, last, sent, now, seconds } = *claim;
        let name = self.model.name(lane);
        if let Some(lease) = lease {
            let before = self.model.leases.insert(lease, command);
            check(before.is_none_or(|before| before == command), Invariant::Identity, || {
                format!("lease {lease} of pop {command} was answered to pop {before:?} before")
            })?;
        }
        let life = self.model.life;
        let queue = self.model.facts(lane).queue;
        if let Some(queue) = self.model.queues.get_mut(queue) {
            queue.registered.entry(group).or_insert(now);
        }
        self.is_there(lane, first)?;
        let limit = self.model.cursor(lane, group).limit();
        if let Some(limit) = limit.filter(|limit| *limit < first) {
            self.begins_at(lane, limit, first, now)?;
        }
        let cursor = self.model.cursor(lane, group);
        if let Some(hold) = cursor.hold.as_ref().filter(|hold| hold.doubts.is_empty() && hold.until >= now) {
            return Err(Failure::new(
                Invariant::Lease,
                format!(
                    "pop {command} got {first}..={last} of {name} for group {group} at {now} while lease {} lives until {}",
                    hold.lease, hold.until
                ),
            ));
        }
        let low = cursor.low;
        // A pop over several partitions may wait between two of them; then later ones are answered before it.
        let overtaken = lease.is_none() && cursor.pending.iter().any(|pending| pending.command == command);
        check(first >= low || overtaken, Invariant::CursorOrder, || {
            format!(
                "pop {command} got {first}..={last} of {name} for group {group}, which acknowledged everything below {low}"
            )
        })?;
        check(first <= last, Invariant::CursorOrder, || {
            format!("pop {command} got {first}..={last} of {name}")
        })?;
        if lease.is_none() {
            for offset in first..=last {
                check(cursor.taken.insert(offset), Invariant::CursorOrder, || {
                    format!(
                        "pop {command} got {offset} of {name} for group {group}, which another pop got for good"
                    )
                })?;
            }
        }
        if first < low {
            return Ok(()); // decided before what is known
        }
        // The claim shows where the cursor is, so what earlier processes left open is settled.
        cursor.pending.retain(|pending| pending.life == life);
        let next = if lease.is_some() { first } else { last + 1 };
        cursor.low = next;
        cursor.high = Some(next);
        cursor.hold = lease.map(|lease| Hold {
            lease,
            last,
            until: sent + u64::from(seconds) * 1_000_000,
            doubts: cursor.pending.iter().map(|pending| pending.command).collect(),
        });
        Ok(())
    }

    /// A message was delivered.
    ///
    /// # Errors
    /// It is not what was pushed, or not where it was.
    pub fn delivered(&mut self, lane: Lane, offset: u64, entry: &Entry<'_>) -> Result<u64, Failure> {
        let name = self.model.name(lane);
        let at = || format!("the message at {offset} of {name}");
        let number = payload::item(entry.payload)
            .map_err(|error| Failure::new(Invariant::AcknowledgedPush, format!("{}: {error}", at())))?;
        check(number < self.model.items.len() as u64, Invariant::AcknowledgedPush, || {
            format!("{} is item {number}, which nobody pushed", at())
        })?;
        let item = self.model.item(number).clone();
        check(item.lane == lane, Invariant::AcknowledgedPush, || {
            format!("{} is item {number}, which was pushed to {}", at(), self.model.name(item.lane))
        })?;
        let facts = self.model.facts(lane);
        let label = Label {
            queue: QUEUES.get(facts.queue).copied().unwrap_or_default(),
            partition: PARTITIONS.get(facts.partition).copied().unwrap_or_default(),
            transaction: &item.transaction,
            item: number,
        };
        let whole = entry.payload == payload::make(&label, item.bytes)
            && entry.id == item.id
            && entry.transaction_id == item.transaction.as_str();
        check(whole, Invariant::AcknowledgedPush, || format!("{} is not what item {number} was", at()))?;
        self.bind(number, offset)?;
        Ok(number)
    }

    /// A claim may have been handed back because nobody received it.
    pub fn may_be_returned(&mut self, lease: LeaseId) {
        for cursor in self.model.cursors.values_mut() {
            if let Some(hold) = cursor.hold.as_mut().filter(|hold| hold.lease == lease) {
                hold.doubts.insert(CommandId::MAX);
            }
        }
    }

    /// A lease was extended.
    ///
    /// # Errors
    /// It lives for certain and was not renewed.
    pub fn extended(
        &mut self,
        lease: LeaseId,
        renewed: u32,
        sent: u64,
        now: u64,
        seconds: u32,
    ) -> Result<(), Failure> {
        let until = sent + u64::from(seconds) * 1_000_000;
        let mut certain = 0;
        for cursor in self.model.cursors.values_mut() {
            let certain_one =
                |hold: &&mut Hold| hold.lease == lease && hold.doubts.is_empty() && hold.until >= now;
            if let Some(hold) = cursor.hold.as_mut().filter(certain_one) {
                certain += 1;
                hold.until = hold.until.max(until);
            }
        }
        check(certain <= renewed, Invariant::Lease, || {
            format!("lease {lease} lives on {certain} partitions at {now} and was renewed on {renewed}")
        })
    }
}
