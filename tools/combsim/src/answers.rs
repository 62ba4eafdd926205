//! What an answer means: handed to the oracle, and to the clients that go on from it.

use comb::broker::command::{
    BrokerError, Claim, DeadLetterPage, Piece, PopReply, Reply, Source, TransactionReply,
};
use comb::broker::handle::DeliveryGuard;
use comb::format::entry::Entries;

use crate::failure::{Failure, Invariant, check};
use crate::oracle::claims::Claimed;
use crate::oracle::model::{CommandId, Lane};
use crate::payload;
use crate::profile::{Options, Weather};
use crate::world::{Asked, Holding, Outstanding, World};

/// The entries of a piece, if they could be read.
pub(crate) fn read(piece: &Piece) -> Result<bytes::Bytes, String> {
    match &piece.source {
        Source::Memory(bytes) => Ok(bytes.clone()),
        Source::File { file, position, bytes } => {
            let bytes = usize::try_from(*bytes).map_err(|error| error.to_string())?;
            file.read_at(*position, bytes).map_err(|error| error.to_string())
        }
    }
}

impl World {
    /// A command was never handed to storage.
    pub(crate) fn not_sent(&mut self, id: CommandId, asked: &Asked) -> Result<(), Failure> {
        match asked {
            Asked::Push(groups) => self.oracle.push_refused(groups)?,
            Asked::Ack(acks) => self.oracle.acks_refused(id, acks),
            Asked::Transaction(acks, groups) => {
                self.oracle.acks_refused(id, acks);
                self.oracle.bundle_answered(id);
                self.oracle.push_refused(groups)?;
            }
            Asked::Pop { auto: true, .. } => self.oracle.blind_answered(id),
            // A deletion is asked again until it is answered.
            Asked::Pop { .. }
            | Asked::Extend { .. }
            | Asked::Configure(..)
            | Asked::Delete(_)
            | Asked::DeadLetters => {}
        }
        Ok(())
    }

    /// Judges an answer.
    pub(crate) fn answered(
        &mut self,
        outstanding: &Outstanding,
        reply: Reply,
        guard: DeliveryGuard,
    ) -> Result<(), Failure> {
        let (id, sent, now) = (outstanding.id, outstanding.sent, self.now());
        if !matches!(reply, Reply::Pop(_) | Reply::DeadLetters(_)) {
            self.note(format_args!("{id} answered {reply:?}"));
        }
        let unreadable = self.profile.weather == Weather::Stormy || self.disk.crashed();
        match (&outstanding.asked, reply) {
            (_, Reply::Failed(BrokerError::OutcomeUnknown(_))) => {
                self.oracle.abandoned(id);
                Ok(())
            }
            // What was stored before the room was lost stays.
            (Asked::Push(groups), Reply::Failed(BrokerError::StorageFull { .. })) if groups.len() > 1 => {
                self.oracle.abandoned(id);
                Ok(())
            }
            (asked, Reply::Failed(_)) => self.not_sent(id, asked),
            (Asked::Push(groups), Reply::Push(verdicts)) => self.oracle.push_answered(groups, &verdicts, now),
            (Asked::Pop { .. }, Reply::Pop(reply)) => self.popped(outstanding, &reply, guard),
            (Asked::Ack(acks), Reply::Ack(verdicts)) => {
                self.oracle.acks_answered(id, acks, &verdicts, now, unreadable)
            }
            (Asked::Extend { lease, seconds }, Reply::Extend(reply)) => {
                self.oracle.extended(*lease, reply.renewed, sent, now, *seconds)
            }
            (Asked::Transaction(acks, groups), Reply::Transaction(reply)) => match reply {
                TransactionReply::Committed { acks: verdicts, pushes } => {
                    self.oracle.bundle_answered(id);
                    check(verdicts.iter().all(|verdict| verdict.success()), Invariant::Transaction, || {
                        format!("transaction {id} was committed with {verdicts:?}")
                    })?;
                    self.oracle.acks_answered(id, acks, &verdicts, now, unreadable)?;
                    self.oracle.push_answered(groups, &pushes, now)
                }
                TransactionReply::RolledBack { .. } => self.not_sent(id, &outstanding.asked),
            },
            (Asked::Configure(queue, options), Reply::Configure(_)) => {
                self.configured(*queue, options);
                Ok(())
            }
            (Asked::Delete(queue), Reply::DeleteQueue(_)) => {
                self.oracle.model.forget_queue(*queue);
                let model = &self.oracle.model;
                self.holdings.retain(|holding| !model.facts(holding.lane).gone);
                self.old_holdings.retain(|holding| !model.facts(holding.lane).gone);
                Ok(())
            }
            (Asked::DeadLetters, Reply::DeadLetters(page)) => self.listed(id, &page),
            (asked, reply) => {
                Err(Failure::new(Invariant::Durable, format!("{asked:?} was answered {reply:?}")))
            }
        }
    }

    fn configured(&mut self, index: usize, options: &Options) {
        let model = &mut self.oracle.model;
        let Some(queue) = model.queues.get(index) else { return };
        let fresh = queue.lanes.iter().all(|lane| model.facts(*lane).by_transaction.is_empty());
        let Some(queue) = model.queues.get_mut(index) else { return };
        queue.configuring -= 1;
        queue.options = (queue.configuring == 0).then_some(*options);
        // Nothing was pushed under other options, and no others are on their way.
        if fresh && queue.configuring == 0 {
            queue.dedup = (options.dedup_seconds, options.dedup_seconds);
        }
    }

    fn listed(&mut self, id: CommandId, page: &DeadLetterPage) -> Result<(), Failure> {
        self.note(format_args!("{id} answered {} of {} dead letters", page.rows.len(), page.total));
        check(page.rows.len() as u64 <= page.total, Invariant::DeadLetter, || {
            format!("{} rows of {}", page.rows.len(), page.total)
        })
    }

    fn popped(
        &mut self,
        outstanding: &Outstanding,
        reply: &PopReply,
        guard: DeliveryGuard,
    ) -> Result<(), Failure> {
        let Asked::Pop { queue, group, auto, seconds, .. } = &outstanding.asked else { return Ok(()) };
        let spans: Vec<_> = reply.claims.iter().map(|claim| (claim.partition.0, span(claim))).collect();
        self.note(format_args!("{} answered lease {:?} {spans:?}", outstanding.id, reply.lease));
        let Some(group) = *group else { return Ok(()) };
        let mut placed = true;
        let mut taken = Vec::new();
        for claim in &reply.claims {
            let Some(lane) = self.claim_lane(claim, *queue)? else {
                // Nothing of it can be read and its partition is unknown.
                placed = false;
                continue;
            };
            let messages = self.claimed(outstanding, claim, lane, group, reply.lease, *seconds)?;
            if let (Some(lease), Some(messages)) = (reply.lease, messages) {
                taken.push(Holding { lane, group, lease, partition: claim.partition, messages });
            }
        }
        if *auto && placed {
            self.oracle.blind_answered(outstanding.id);
        }
        // One in twelve answers does not reach its client; neither does one that cannot be read.
        let whole = taken.len() == reply.claims.len() || (*auto && placed);
        if whole && !self.chance.one_in(12) {
            guard.delivered();
            self.holdings.extend(taken);
        } else {
            if let Some(lease) = reply.lease {
                self.oracle.may_be_returned(lease);
            }
            drop(guard);
        }
        Ok(())
    }

    /// The lane of a claim. A discovery does not say the queue: the first message does.
    fn claim_lane(&mut self, claim: &Claim, queue: Option<usize>) -> Result<Option<Lane>, Failure> {
        let queue = match queue {
            Some(queue) => Some(queue),
            None => match self.oracle.model.by_partition.get(&claim.partition) {
                Some(lane) => Some(self.oracle.model.facts(*lane).queue),
                None => claim.pieces.first().and_then(|piece| {
                    let bytes = read(piece).ok()?;
                    let entry = Entries::new(&bytes).next()?.ok()?;
                    let number = payload::item(entry.payload).ok()?;
                    let item = self.oracle.model.items.get(usize::try_from(number).ok()?)?;
                    Some(self.oracle.model.facts(item.lane).queue)
                }),
            },
        };
        match queue {
            Some(queue) => self.oracle.lane_of(claim.partition, queue, &claim.partition_name).map(Some),
            None => Ok(None),
        }
    }

    /// Judges a claim and its messages; `None` if they could not be read.
    fn claimed(
        &mut self,
        outstanding: &Outstanding,
        claim: &Claim,
        lane: Lane,
        group: usize,
        lease: Option<comb::types::LeaseId>,
        seconds: u32,
    ) -> Result<Option<Vec<(u64, String)>>, Failure> {
        let Some((first, last)) = span(claim) else {
            return Err(Failure::new(Invariant::CursorOrder, format!("an empty claim: {claim:?}")));
        };
        let (command, sent, now) = (outstanding.id, outstanding.sent, self.now());
        self.oracle.claimed(&Claimed { command, lane, group, lease, first, last, sent, now, seconds })?;
        self.read_claim(claim, lane)
    }

    /// Reads and judges the messages of a claim; `None` if they could not be read.
    pub(crate) fn read_claim(
        &mut self,
        claim: &Claim,
        lane: Lane,
    ) -> Result<Option<Vec<(u64, String)>>, Failure> {
        let mut messages = Vec::new();
        let mut expected = claim.pieces.first().map(|piece| piece.first.0);
        for piece in &claim.pieces {
            check(
                expected == Some(piece.first.0) && piece.first <= piece.last,
                Invariant::CursorOrder,
                || format!("a claim has a gap: {:?}", claim.pieces),
            )?;
            expected = Some(piece.last.0 + 1);
            let bytes = match read(piece) {
                Ok(bytes) => bytes,
                Err(_) if self.damaged => {
                    self.isolated += 1;
                    continue;
                }
                Err(error) => {
                    let excused = self.disk.crashed() || self.profile.weather == Weather::Stormy;
                    check(excused, Invariant::AcknowledgedPush, || {
                        format!("{} to {} cannot be read: {error}", piece.first, piece.last)
                    })?;
                    return Ok(None);
                }
            };
            for (offset, entry) in (piece.run.base.0..).zip(Entries::new(&bytes)) {
                if offset < piece.first.0 || offset > piece.last.0 {
                    continue;
                }
                if self.damaged && entry.is_err() {
                    self.isolated += 1;
                    break;
                }
                let entry = entry.map_err(|error| {
                    Failure::new(
                        Invariant::AcknowledgedPush,
                        format!("the message at {offset} of {}: {error}", self.oracle.model.name(lane)),
                    )
                })?;
                self.oracle.delivered(lane, offset, &entry)?;
                self.stats.delivered += 1;
                messages.push((offset, entry.transaction_id.into_owned()));
            }
        }
        let wanted = span(claim).map_or(0, |(first, last)| last + 1 - first);
        check(self.damaged || messages.len() as u64 == wanted, Invariant::AcknowledgedPush, || {
            format!(
                "a claim of {wanted} messages of {} holds {}",
                self.oracle.model.name(lane),
                messages.len()
            )
        })?;
        Ok(Some(messages))
    }
}

/// First and last offset of a claim.
pub(crate) fn span(claim: &Claim) -> Option<(u64, u64)> {
    Some((claim.pieces.first()?.first.0, claim.pieces.last()?.last.0))
}
