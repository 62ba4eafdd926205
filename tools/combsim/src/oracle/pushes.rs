//! Pushes: what may be stored, where, and what a duplicate is.

use comb::broker::command::PushVerdict;
use comb::types::MessageId;

use super::model::{CommandId, Fate, Item, Lane};
use super::{Oracle, SentGroup, SentItem};
use crate::failure::{Failure, Invariant, check};

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;

impl Oracle {
    /// A new item, before it is sent.
    pub fn new_item(
        &mut self,
        command: CommandId,
        lane: Lane,
        transaction: &str,
        id: MessageId,
        bytes: u64,
        now: u64,
    ) -> u64 {
        let number = self.model.items.len() as u64;
        let known = self.model.facts_mut(lane).by_transaction.entry(transaction.to_owned()).or_default();
        known.push(number);
        let all = known.clone();
        self.model.items.push(Item {
            command,
            lane,
            transaction: transaction.to_owned(),
            id,
            bytes,
            fate: Fate::Open(false),
            offset: None,
            sent: now,
            answered: 0,
            life: self.model.life,
            shared: false,
        });
        if all.len() > 1 {
            for other in all {
                self.model.item_mut(other).shared = true;
            }
        }
        self.model.by_id.insert(id, number);
        number
    }

    /// The lane that a message is in is known now; so are others of its push.
    pub(super) fn bind(&mut self, number: u64, offset: u64) -> Result<(), Failure> {
        let item = self.model.item(number).clone();
        let name = self.model.name(item.lane);
        check(item.fate != Fate::Refused, Invariant::RefusedPush, || {
            format!("item {number} was refused and is at {offset} of {name}")
        })?;
        check(item.fate != Fate::Duplicate, Invariant::Dedup, || {
            format!("item {number} was answered as a duplicate and is at {offset} of {name}")
        })?;
        check(item.offset.is_none_or(|known| known == offset), Invariant::Identity, || {
            format!("item {number} is at {offset} of {name} and was at {:?}", item.offset)
        })?;
        let before = self.model.facts_mut(item.lane).places.insert(offset, number);
        check(before.is_none_or(|before| before == number), Invariant::Identity, || {
            format!("offset {offset} of {name} is item {number} and was item {before:?}")
        })?;
        let found = item.fate == Fate::Open(true);
        let item = self.model.item_mut(number);
        item.offset = Some(offset);
        if found {
            item.fate = Fate::Stored;
            let command = item.command;
            self.happened(command);
        }
        Ok(())
    }

    /// A transaction that was never answered did happen: its acknowledgements count.
    fn happened(&mut self, command: CommandId) {
        let Some(bundle) = self.bundles.remove(&command) else { return };
        for (lane, group, low) in bundle.cursors {
            if !self.model.facts(lane).gone {
                let cursor = self.model.cursor(lane, group);
                cursor.low = cursor.low.max(low);
                cursor.high = cursor.high.map(|high| high.max(low));
            }
        }
    }

    /// The items of these groups are refused: none of them is anywhere.
    ///
    /// # Errors
    /// One was seen.
    pub fn push_refused(&mut self, groups: &[SentGroup]) -> Result<(), Failure> {
        for sent in groups.iter().flat_map(|group| &group.items) {
            let item = self.model.item_mut(sent.number);
            check(item.offset.is_none(), Invariant::RefusedPush, || {
                format!("item {} is refused and was seen at {:?}", sent.number, item.offset)
            })?;
            item.fate = Fate::Refused;
        }
        Ok(())
    }

    /// A push was answered.
    ///
    /// # Errors
    /// An answer contradicts what is known.
    pub fn push_answered(
        &mut self,
        groups: &[SentGroup],
        verdicts: &[Vec<PushVerdict>],
        now: u64,
    ) -> Result<(), Failure> {
        check(groups.len() == verdicts.len(), Invariant::AcknowledgedPush, || {
            format!("{} groups were pushed and {} answered", groups.len(), verdicts.len())
        })?;
        for (group, verdicts) in groups.iter().zip(verdicts) {
            check(group.items.len() == verdicts.len(), Invariant::AcknowledgedPush, || {
                format!("{} items were pushed and {} answered", group.items.len(), verdicts.len())
            })?;
            let mut next = None;
            for (sent, verdict) in group.items.iter().zip(verdicts) {
                let first = sent.repeat_of.and_then(|first| verdicts.get(first));
                match (first, verdict.duplicate) {
                    (Some(first), _) => self.repeat(sent, verdict, first)?,
                    (None, true) => self.duplicate(group.lane, sent, verdict)?,
                    (None, false) => {
                        self.stored(group.lane, sent, verdict, now)?;
                        check(
                            next.is_none_or(|next| next == verdict.offset.0),
                            Invariant::WholeGroup,
                            || {
                                format!(
                                    "item {} of one push is at {}, expected {next:?}",
                                    sent.number, verdict.offset
                                )
                            },
                        )?;
                        next = Some(verdict.offset.0 + 1);
                    }
                }
                let life = self.model.life;
                let item = self.model.item_mut(sent.number);
                item.answered = now;
                item.life = life;
            }
        }
        Ok(())
    }

    fn repeat(&mut self, sent: &SentItem, verdict: &PushVerdict, first: &PushVerdict) -> Result<(), Failure> {
        check(
            verdict.duplicate && verdict.id == first.id && verdict.offset == first.offset,
            Invariant::Dedup,
            || {
                format!(
                    "item {} repeats one of its own push and was answered {verdict:?}, not {first:?}",
                    sent.number
                )
            },
        )?;
        self.model.item_mut(sent.number).fate = Fate::Duplicate;
        Ok(())
    }

    fn duplicate(&mut self, lane: Lane, sent: &SentItem, verdict: &PushVerdict) -> Result<(), Failure> {
        let name = self.model.name(lane);
        let item = self.model.item(sent.number).clone();
        let original = self.model.by_id.get(&verdict.id).copied();
        let Some(original) = original.filter(|original| *original != sent.number) else {
            return Err(Failure::new(
                Invariant::Dedup,
                format!(
                    "item {} of {name} is a duplicate of {}, which nobody pushed",
                    sent.number, verdict.id
                ),
            ));
        };
        let first = self.model.item(original).clone();
        check(first.lane == lane && first.transaction == item.transaction, Invariant::Dedup, || {
            format!(
                "item {} ({}) of {name} is a duplicate of item {original} ({}) of {}",
                sent.number,
                item.transaction,
                first.transaction,
                self.model.name(first.lane)
            )
        })?;
        check(!sent.minted, Invariant::Dedup, || {
            format!("item {} was minted and is a duplicate of {original}", sent.number)
        })?;
        let window = self.window(lane).1;
        // Within one process log time passes like the clock.
        let over = first.fate == Fate::Stored
            && first.answered > 0
            && first.life == self.model.life
            && item.life == self.model.life
            && item.sent > first.answered + window;
        check(window > 0 && !over, Invariant::Dedup, || {
            format!("item {} is a duplicate of {original}, whose window of {window} us is over", sent.number)
        })?;
        // The newest that is stored for certain is the one that counts.
        let newest = self.model.facts(lane).by_transaction.get(&item.transaction).and_then(|all| {
            all.iter()
                .filter(|one| self.model.item(**one).fate == Fate::Stored)
                .filter_map(|one| self.model.item(*one).offset)
                .max()
        });
        check(newest.is_none_or(|newest| newest <= verdict.offset.0), Invariant::Dedup, || {
            format!(
                "item {} is a duplicate of {original} at {}, a newer one is at {newest:?}",
                sent.number, verdict.offset
            )
        })?;
        self.bind(original, verdict.offset.0)?;
        self.model.item_mut(sent.number).fate = Fate::Duplicate;
        Ok(())
    }

    fn stored(
        &mut self,
        lane: Lane,
        sent: &SentItem,
        verdict: &PushVerdict,
        now: u64,
    ) -> Result<(), Failure> {
        let item = self.model.item(sent.number).clone();
        let name = self.model.name(lane);
        check(item.id == verdict.id, Invariant::AcknowledgedPush, || {
            format!("item {} of {name} was pushed as {} and answered as {}", sent.number, item.id, verdict.id)
        })?;
        let window = self.window(lane).0;
        if window > 0 && !sent.minted {
            let others = self.model.facts(lane).by_transaction.get(&item.transaction);
            for number in others.into_iter().flatten().filter(|number| **number != sent.number) {
                let other = self.model.item(*number);
                let before = other.fate == Fate::Stored
                    && other.offset.is_some_and(|offset| offset < verdict.offset.0);
                check(!before || now > other.sent + window, Invariant::Dedup, || {
                    format!(
                        "item {} of {name} was stored at {} inside the window of item {number} at {:?}",
                        sent.number, verdict.offset, other.offset
                    )
                })?;
            }
        }
        self.bind(sent.number, verdict.offset.0)?;
        self.model.item_mut(sent.number).fate = Fate::Stored;
        Ok(())
    }

    /// Least and greatest deduplication window in microseconds.
    fn window(&self, lane: Lane) -> (u64, u64) {
        let queue = self.model.facts(lane).queue;
        let (low, high) = self.model.queues.get(queue).map_or((0, 0), |queue| queue.dedup);
        (u64::from(low) * SECOND, u64::from(high) * SECOND)
    }
}
