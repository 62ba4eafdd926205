//! What must hold at the end, when everything that is there was read.

use std::collections::{BTreeMap, BTreeSet};

use super::Oracle;
use super::model::{CommandId, Fate, Lane, Letter};
use crate::failure::{Failure, Invariant, check};

impl Oracle {
    /// A reader that began at the beginning got these messages of each lane, from the first to before the last: all of
    /// them must be known, and all that is known must be among them or too old. `transactions`: commands whose groups stand or fall together. `damaged`: some could
    /// not be read.
    ///
    /// # Errors
    /// Something is missing, or only a part of something is there.
    pub fn judge_contents(
        &mut self,
        read: &BTreeMap<Lane, (u64, u64)>,
        transactions: &BTreeSet<CommandId>,
        damaged: bool,
        now: u64,
    ) -> Result<(), Failure> {
        for (index, facts) in self.model.lanes.iter().enumerate().filter(|(_, facts)| !facts.gone) {
            let lane = Lane(index);
            let (start, end) = read.get(&lane).copied().unwrap_or((0, 0));
            for (offset, item) in facts.places.range(end..) {
                check(self.may_be_gone(lane, *offset, now), Invariant::AcknowledgedPush, || {
                    format!(
                        "item {item} at {offset} of {} is gone: messages end at {end}",
                        self.model.name(lane)
                    )
                })?;
            }
            let known = facts.places.range(start..end).count() as u64;
            check(damaged || known == end - start, Invariant::Identity, || {
                format!(
                    "{known} places of {} are known and messages {start} to before {end} are there",
                    self.model.name(lane)
                )
            })?;
        }
        if damaged {
            return Ok(()); // what cannot be read is there, but nobody knows what it is
        }
        let mut groups: BTreeMap<(CommandId, Option<Lane>), (u64, u64)> = BTreeMap::new();
        for (number, item) in (0_u64..).zip(&self.model.items) {
            let expired = self.may_have_come_and_gone(item.lane, item.sent, now);
            if item.shared || self.model.facts(item.lane).gone || expired {
                continue;
            }
            let whole = transactions.contains(&item.command);
            let key = (item.command, (!whole).then_some(item.lane));
            let counts = groups.entry(key).or_default();
            match item.fate {
                Fate::Stored => {
                    check(item.offset.is_some(), Invariant::AcknowledgedPush, || {
                        format!("item {number} has no place")
                    })?;
                    counts.0 += 1;
                }
                Fate::Open(_) => counts.1 += 1,
                Fate::Duplicate | Fate::Refused => {}
            }
        }
        for ((command, lane), (there, missing)) in groups {
            let invariant = if lane.is_none() { Invariant::Transaction } else { Invariant::WholeGroup };
            check(there == 0 || missing == 0, invariant, || {
                format!("of push {command} to {lane:?}, {there} messages are there and {missing} are not")
            })?;
            // A bundle without its messages did not happen, so its acknowledgements did not either.
            if there == 0 && missing > 0 && lane.is_none() {
                for cursor in self.model.cursors.values_mut() {
                    cursor.pending.retain(|pending| pending.command != command);
                }
            }
        }
        Ok(())
    }

    /// The dead letters that are there, each once, by lane, group and offset.
    ///
    /// # Errors
    /// One is missing, one is there twice, or nobody asked for it.
    pub fn judge_letters(&mut self, rows: &[(Lane, usize, u64)]) -> Result<(), Failure> {
        let mut seen = BTreeSet::new();
        for row in rows {
            let (lane, group, offset) = *row;
            let name = self.model.name(lane);
            check(seen.insert(*row), Invariant::DeadLetter, || {
                format!("the dead letter of {offset} of {name} for group {group} is there twice")
            })?;
            // Where a message is may not have been known yet when its group was asked to give it up.
            let item = self.model.facts(lane).places.get(&offset).map(|number| self.model.item(*number));
            let given_up =
                |transaction: &String| self.model.given_up.contains(&(lane, group, transaction.clone()));
            let asked =
                self.model.letters.contains_key(row) || item.is_some_and(|item| given_up(&item.transaction));
            check(asked, Invariant::DeadLetter, || {
                format!("nobody gave {offset} of {name} up for group {group}, and it is a dead letter")
            })?;
            let cursor = self.model.cursor(lane, group);
            cursor.low = cursor.low.max(offset + 1);
            let low = cursor.low;
            cursor.high = cursor.high.map(|high| high.max(low));
        }
        for ((lane, group, offset), letter) in &self.model.letters {
            check(
                *letter == Letter::Perhaps || seen.contains(&(*lane, *group, *offset)),
                Invariant::DeadLetter,
                || {
                    format!(
                        "the dead letter of {offset} of {} for group {group} was answered and is not there",
                        self.model.name(*lane)
                    )
                },
            )?;
        }
        Ok(())
    }

    /// A group read everything that is left to it: it must have got the end of every lane.
    ///
    /// # Errors
    /// It did not.
    pub fn judge_end(
        &mut self,
        group: usize,
        read: &BTreeMap<Lane, (u64, u64)>,
        now: u64,
    ) -> Result<(), Failure> {
        for (lane, (_, end)) in read {
            let low = self.model.cursor(*lane, group).low;
            if low < *end && (low..*end).all(|offset| self.may_be_gone(*lane, offset, now)) {
                continue; // while others were reading
            }
            let cursor = self.model.cursor(*lane, group);
            let low = cursor.low;
            // Nothing was left where a pop without an answer may have taken the rest.
            let perhaps = cursor.limit().is_none_or(|limit| limit >= *end);
            check(low == *end || (low < *end && perhaps), Invariant::CursorOrder, || {
                format!(
                    "group {group} got everything below {low} of {}, which ends at {end}",
                    self.model.name(*lane)
                )
            })?;
        }
        Ok(())
    }
}
