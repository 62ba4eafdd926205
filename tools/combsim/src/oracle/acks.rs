//! Acknowledgements: how far they move a cursor, and what they do to leases and dead letters.

use comb::broker::command::{AckRefusal, AckVerdict};

use super::model::{CommandId, Fate, Lane, Letter, Pending};
use super::{Bundle, Named, Oracle, SentAck, Word};
use crate::failure::{Failure, Invariant, check};

/// Where a transaction id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// Nowhere.
    Nowhere,
    /// At this offset only.
    At(u64),
    /// At one of several offsets, the last of them this; `None`: nobody knows.
    Among(Option<u64>),
}

impl Oracle {
    fn find(&self, lane: Lane, transaction: &str) -> Where {
        let all = self.model.facts(lane).by_transaction.get(transaction);
        let mut found = Where::Nowhere;
        for number in all.into_iter().flatten() {
            let item = self.model.item(*number);
            let offset = match (item.fate, item.offset) {
                (Fate::Duplicate | Fate::Refused, _) => continue,
                (_, offset) => offset,
            };
            found = match (found, offset) {
                (Where::Nowhere, Some(offset)) => Where::At(offset),
                (Where::At(other) | Where::Among(Some(other)), Some(offset)) => {
                    Where::Among(Some(offset.max(other)))
                }
                (_, None) | (Where::Among(None), _) => Where::Among(None),
            };
        }
        found
    }

    /// The cursor is there at most after these acknowledgements.
    fn top(&self, ack: &SentAck) -> Option<u64> {
        ack.items.iter().try_fold(0, |top, (transaction, _)| match self.find(ack.lane, transaction) {
            Where::Nowhere => Some(top),
            Where::At(offset) | Where::Among(Some(offset)) => Some(top.max(offset + 1)),
            Where::Among(None) => None,
        })
    }

    /// Acknowledgements were sent, alone or in a transaction.
    pub fn acks_sent(&mut self, command: CommandId, acks: &[SentAck]) {
        let life = self.model.life;
        for ack in acks {
            let top = self.top(ack);
            for (transaction, word) in &ack.items {
                if matches!(word, Word::Failed | Word::DeadLetter) {
                    self.model.given_up.insert((ack.lane, ack.group, transaction.clone()));
                    for offset in self.offsets(ack.lane, transaction) {
                        self.model.letters.entry((ack.lane, ack.group, offset)).or_insert(Letter::Perhaps);
                    }
                }
            }
            let cursor = self.model.cursor(ack.lane, ack.group);
            cursor.pending.push(Pending { command, life, top });
            if let Some(hold) = &mut cursor.hold
                && (ack.lease == Named::Nothing || ack.lease == Named::Known(hold.lease))
            {
                hold.doubts.insert(command);
            }
        }
    }

    fn offsets(&self, lane: Lane, transaction: &str) -> Vec<u64> {
        let all = self.model.facts(lane).by_transaction.get(transaction);
        all.into_iter().flatten().filter_map(|number| self.model.item(*number).offset).collect()
    }

    /// A group that comes late may find messages whose transaction ids are forgotten; they are kept for this long.
    fn may_be_forgotten(&self, ack: &SentAck, place: Where) -> bool {
        const KEPT_US: u64 = 900_000_000;
        let Where::At(offset) = place else { return false };
        let facts = self.model.facts(ack.lane);
        let Some(item) = facts.places.get(&offset).map(|number| self.model.item(*number)) else {
            return false;
        };
        let queue = self.model.queues.get(facts.queue);
        let registered = queue.and_then(|queue| queue.registered.get(&ack.group)).copied();
        registered.is_none_or(|registered| registered > item.sent + KEPT_US)
    }

    fn settle(&mut self, command: CommandId, ack: &SentAck) {
        let cursor = self.model.cursor(ack.lane, ack.group);
        cursor.pending.retain(|pending| pending.command != command);
        if let Some(hold) = &mut cursor.hold {
            hold.doubts.remove(&command);
        }
    }

    /// Acknowledgements were not carried out.
    pub fn acks_refused(&mut self, command: CommandId, acks: &[SentAck]) {
        for ack in acks {
            if !self.model.facts(ack.lane).gone {
                self.settle(command, ack);
            }
        }
    }

    /// A transaction will never be answered; what its acknowledgements do is known once a message of it is seen.
    pub fn bundle_sent(&mut self, command: CommandId, acks: &[SentAck]) {
        let cursors = acks.iter().filter_map(|ack| {
            let all =
                ack.items.iter().map(|(transaction, word)| match (word, self.find(ack.lane, transaction)) {
                    (Word::Completed, Where::At(offset)) => Some(offset + 1),
                    _ => None,
                });
            let low = all.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
            Some((ack.lane, ack.group, low))
        });
        let bundle = Bundle { cursors: cursors.collect() };
        self.bundles.insert(command, bundle);
    }

    /// Whether it was answered does not matter any more.
    pub fn bundle_answered(&mut self, command: CommandId) {
        self.bundles.remove(&command);
    }

    /// Acknowledgements were answered; one verdict per item of all of them in order. `unreadable`: reads may fail.
    ///
    /// # Errors
    /// A verdict contradicts what is known.
    pub fn acks_answered(
        &mut self,
        command: CommandId,
        acks: &[SentAck],
        verdicts: &[AckVerdict],
        now: u64,
        unreadable: bool,
    ) -> Result<(), Failure> {
        let items: usize = acks.iter().map(|ack| ack.items.len()).sum();
        check(items == verdicts.len(), Invariant::Durable, || {
            format!("{items} acknowledgements were sent and {} answered", verdicts.len())
        })?;
        let mut rest = verdicts;
        for ack in acks {
            let (own, behind) = rest.split_at_checked(ack.items.len()).unwrap_or((rest, &[]));
            rest = behind;
            if !self.model.facts(ack.lane).gone {
                // Between two groups a call may wait, and others go on: its answer tells the state at its end only.
                self.ack_answered(command, ack, own, now, unreadable, acks.len() == 1)?;
            }
        }
        Ok(())
    }

    fn ack_answered(
        &mut self,
        command: CommandId,
        ack: &SentAck,
        verdicts: &[AckVerdict],
        now: u64,
        unreadable: bool,
        single: bool,
    ) -> Result<(), Failure> {
        let places: Vec<Where> =
            ack.items.iter().map(|(transaction, _)| self.find(ack.lane, transaction)).collect();
        let top = self.top(ack);
        let forgotten: Vec<bool> = places.iter().map(|place| self.may_be_forgotten(ack, *place)).collect();
        self.settle(command, ack);
        let name = self.model.name(ack.lane);
        let about = |index: usize| {
            format!(
                "ack {command} of {:?} in {name}, group {} under {:?}, was answered {:?}",
                ack.items.get(index),
                ack.group,
                ack.lease,
                verdicts.get(index)
            )
        };
        let gone =
            |place: &Where| matches!(place, Where::At(offset) if self.may_be_gone(ack.lane, *offset, now));
        let gone: Vec<bool> = places.iter().map(gone).collect();
        let any_gone = gone.contains(&true);
        let cursor = self.model.cursor(ack.lane, ack.group);
        let certain = cursor.hold.as_ref().filter(|hold| hold.doubts.is_empty() && hold.until >= now);
        let holder =
            certain.filter(|hold| ack.lease == Named::Known(hold.lease)).map(|hold| (hold.last, hold.until));
        let (low, limit) = (cursor.low, cursor.limit());
        let exact = limit == Some(low);
        let mut head: Option<u64> = None;
        let mut any = false;
        for (index, (((_, word), place), verdict)) in ack.items.iter().zip(&places).zip(verdicts).enumerate()
        {
            let gone = gone.get(index).is_some_and(|gone| *gone);
            let success = verdict.refusal.is_none();
            any |= success;
            check(!(success && ack.lease == Named::Foreign), Invariant::Lease, || about(index))?;
            check(!(success && *place == Where::Nowhere), Invariant::CursorOrder, || about(index))?;
            if let Some((last, until)) = holder {
                check(verdict.refusal != Some(AckRefusal::Lease), Invariant::Lease, || {
                    format!("{}, though it lives until {until}", about(index))
                })?;
                if let Where::At(offset) = place
                    && exact
                    && (low..=last).contains(offset)
                {
                    let excused = match verdict.refusal {
                        Some(AckRefusal::PayloadUnreadable) => unreadable,
                        Some(AckRefusal::Unresolvable) => {
                            forgotten.get(index).is_some_and(|forgotten| *forgotten)
                        }
                        Some(AckRefusal::CopyWithoutSpace | AckRefusal::CopyTooLarge) => true,
                        // Nothing is left that could be kept.
                        Some(AckRefusal::PayloadExpired) => any_gone,
                        _ => false,
                    };
                    check(success || excused, Invariant::Lease, || {
                        format!("{}, though {offset} is in its span {low}..={last}", about(index))
                    })?;
                }
            }
            check(
                unreadable || verdict.refusal != Some(AckRefusal::PayloadUnreadable),
                Invariant::AcknowledgedPush,
                || about(index),
            )?;
            if let Where::At(offset) = place {
                if success && *word == Word::Completed && !verdict.noop && single {
                    check(*offset >= low, Invariant::CursorOrder, || {
                        format!("{}: it was below the cursor, which was at {low}", about(index))
                    })?;
                }
                if verdict.noop || verdict.refusal == Some(AckRefusal::AlreadyCommitted) {
                    check(gone || limit.is_none_or(|limit| *offset < limit), Invariant::CursorOrder, || {
                        format!("{}: the cursor can be at {limit:?} at most", about(index))
                    })?;
                }
                if success && *word != Word::Completed {
                    head = Some(head.map_or(*offset, |head| head.min(*offset)));
                }
                if verdict.dead_lettered {
                    self.model.letters.insert((ack.lane, ack.group, *offset), Letter::Filed);
                }
            }
        }
        let ambiguous = places.iter().any(|place| matches!(place, Where::Among(_)));
        let cursor = self.model.cursor(ack.lane, ack.group);
        for (((_, word), place), verdict) in ack.items.iter().zip(&places).zip(verdicts) {
            let Where::At(offset) = *place else { continue };
            let counts = match word {
                // Behind an ambiguous signal nothing is certain.
                Word::Completed => {
                    verdict.refusal.is_none() && !ambiguous && head.is_none_or(|head| offset < head)
                }
                _ => verdict.dead_lettered,
            };
            if counts {
                cursor.low = cursor.low.max(offset + 1);
            }
        }
        if any {
            cursor.high = match (cursor.high, top) {
                (Some(high), Some(top)) => Some(high.max(top)),
                _ => None,
            };
            let released = verdicts.iter().any(|verdict| verdict.refusal.is_none() && verdict.lease_released);
            if released {
                cursor
                    .hold
                    .take_if(|hold| ack.lease == Named::Nothing || ack.lease == Named::Known(hold.lease));
            }
        }
        if let Some(high) = cursor.high {
            cursor.high = Some(high.max(cursor.low));
        }
        Ok(())
    }
}
