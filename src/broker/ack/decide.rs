//! The decision about one group of acknowledgements, as a pure function.
//!
//! Purpose: from a cursor and what a call says about messages, what the cursor becomes, which message is given up,
//! and what each item is answered.
//!
//! Invariants:
//! - An explicit signal (failed, retry, dead letter) is never passed by a completed item of the same call.
//! - Without a live lease nothing is charged, filed or dropped, and no batch is completed.
//! - A refused group changes nothing.
//! - Linear in the items, whatever the span.
//!
//! Must not: read the state, stage, know how ids are resolved.

#[cfg(test)]
mod tests;

use crate::broker::command::{AckRefusal, AckStatus, AckVerdict, Reference};
use crate::format::delta::{Cause, CursorState, Lease};
use crate::types::{LeaseId, LogTime, Offset};

/// The lease of a cursor, unless it has ended. It lives through the microsecond named in it.
pub(crate) fn live_lease(cursor: &CursorState, now: LogTime) -> Option<Lease> {
    cursor.lease.filter(|lease| lease.expires >= now)
}

/// Where a transaction id was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// At this offset of the span that can be acknowledged.
    In(Offset),
    /// Below the cursor only.
    Below,
    /// Neither.
    Nowhere,
}

/// The offsets that can be acknowledged: from the cursor to the end of the live lease, or to no end without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    next: Offset,
    end: Option<Offset>,
}

impl Span {
    /// The span of a cursor now.
    pub(crate) fn of(cursor: &CursorState, now: LogTime) -> Span {
        Span { next: cursor.next, end: live_lease(cursor, now).map(|lease| lease.end) }
    }

    /// First offset, and the last one if there is one.
    pub(crate) fn ends(&self) -> (Offset, Option<Offset>) {
        (self.next, self.end)
    }

    /// Resolves an id to the lowest offset in the span among those that carry it, given from the newest down. Only
    /// offsets whose hash is kept can be given, so the hash floor needs no look here.
    pub(crate) fn locate(&self, newest_first: impl Iterator<Item = Offset>) -> Found {
        let mut found = Found::Nowhere;
        for offset in newest_first {
            if offset < self.next {
                return if found == Found::Nowhere { Found::Below } else { found };
            }
            if self.end.is_none_or(|end| offset <= end) {
                found = Found::In(offset);
            }
        }
        found
    }
}

/// One item of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    /// What the client says.
    pub(crate) status: AckStatus,
    /// Where its message is.
    pub(crate) found: Found,
    /// Reason for a dead letter.
    pub(crate) error: Option<&'a str>,
}

/// What the queue and the kind of call decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Redeliveries after a failure before the head is given up.
    pub(crate) retry_limit: u32,
    /// Dead-letter what is given up; drop it otherwise.
    pub(crate) dead_letters: bool,
    /// Answer the repeat of a completing ack with success. Not inside a transaction: its other half would happen
    /// twice.
    pub(crate) repeats: bool,
}

/// What becomes of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate<'a> {
    /// There is none, or it is delivered again.
    Kept,
    /// It is dead-lettered.
    Filed {
        /// The head.
        offset: Offset,
        /// Budget used before this call.
        retries_used: u32,
        /// Why.
        reason: &'a str,
    },
    /// It is dropped.
    Dropped {
        /// The head.
        offset: Offset,
        /// Budget used before this call.
        retries_used: u32,
    },
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision<'a> {
    /// The cursor from now on; equal to the one before if nothing changes.
    pub(crate) state: CursorState,
    /// Why it changes.
    pub(crate) cause: Cause,
    /// What becomes of the head.
    pub(crate) fate: Fate<'a>,
    /// One per item.
    pub(crate) verdicts: Vec<AckVerdict>,
}

impl Decision<'_> {
    /// Takes everything back because the head could not be filed, and says why. What the call would have done did not
    /// happen, so no item may be told that it did.
    pub(crate) fn unfiled(&mut self, cursor: &CursorState, items: &[Item<'_>], why: AckRefusal) {
        self.state = *cursor;
        self.fate = Fate::Kept;
        for (verdict, item) in self.verdicts.iter_mut().zip(items) {
            verdict.lease_released = false;
            verdict.dead_lettered = false;
            if matches!(item.found, Found::In(_)) {
                verdict.refusal = Some(why);
            }
        }
    }
}

/// The reason of a dead letter that nobody gave one.
const NO_REASON: &str = "Retries exhausted";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Signal {
    DeadLetter,
    Failed,
    Retry,
}

fn signal(status: AckStatus) -> Option<Signal> {
    match status {
        AckStatus::Completed => None,
        AckStatus::Failed => Some(Signal::Failed),
        AckStatus::Retry => Some(Signal::Retry),
        AckStatus::DeadLetter => Some(Signal::DeadLetter),
    }
}

/// Decides one group: all items name the same partition, consumer group and lease.
pub(crate) fn decide<'a>(
    cursor: &CursorState,
    lease: Reference<LeaseId>,
    items: &[Item<'a>],
    rules: Rules,
    now: LogTime,
) -> Decision<'a> {
    let live = live_lease(cursor, now);
    let holds = match lease {
        Reference::Absent => true,
        Reference::Malformed => false,
        Reference::Id(id) => live.is_some_and(|live| live.id == id),
    };
    if !holds {
        return refuse(cursor, lease, items, rules);
    }

    let head = items
        .iter()
        .filter_map(|item| match (item.found, signal(item.status)) {
            (Found::In(offset), Some(signal)) => Some((offset, signal)),
            _ => None,
        })
        .min();
    let next = items
        .iter()
        .filter_map(|item| match (item.found, item.status) {
            (Found::In(offset), AckStatus::Completed) => Some(offset),
            _ => None,
        })
        .filter(|offset| head.is_none_or(|(head, _)| *offset < head))
        .max()
        .map_or(cursor.next, Offset::next);

    let mut state = CursorState { next, ..*cursor };
    let mut fate = Fate::Kept;
    let mut cause = Cause::Ack;
    match (live, head) {
        // What is left of an expired lease names a span that is no longer there.
        (None, _) => {
            if next != cursor.next {
                state.lease = None;
            }
        }
        (Some(lease), None) => {
            if next > lease.end {
                state = CursorState {
                    retries_used: 0,
                    attempts: 0,
                    lease: None,
                    settled: Some(lease.id),
                    ..state
                };
            }
        }
        (Some(_), Some((offset, signal))) => {
            cause = Cause::Nack;
            state.lease = None;
            let retries_used = cursor.retries_used;
            match signal {
                Signal::Retry => {}
                Signal::Failed if retries_used < rules.retry_limit => state.retries_used = retries_used + 1,
                Signal::Failed if !rules.dead_letters => fate = Fate::Dropped { offset, retries_used },
                Signal::Failed | Signal::DeadLetter => {
                    fate = Fate::Filed { offset, retries_used, reason: reason(items, offset, signal) };
                }
            }
            if fate != Fate::Kept {
                state.next = offset.next();
                state.retries_used = 0;
            }
        }
    }

    let lease_released = live_lease(&state, now).is_none();
    let verdicts = items
        .iter()
        .map(|item| AckVerdict {
            lease_released,
            dead_lettered: filed(item, fate),
            noop: item.found == Found::Below && item.status == AckStatus::Completed,
            refusal: match (item.found, item.status) {
                (Found::In(_), AckStatus::DeadLetter) if live.is_none() => {
                    Some(AckRefusal::DeadLetterWithoutLease)
                }
                (Found::In(_), _) | (Found::Below, AckStatus::Completed) => None,
                (Found::Below, _) => Some(AckRefusal::AlreadyCommitted),
                (Found::Nowhere, _) => Some(AckRefusal::Unresolvable),
            },
        })
        .collect();
    Decision { state, cause, fate, verdicts }
}

fn filed(item: &Item<'_>, fate: Fate<'_>) -> bool {
    match fate {
        Fate::Filed { offset, .. } => {
            item.found == Found::In(offset)
                && matches!(item.status, AckStatus::Failed | AckStatus::DeadLetter)
        }
        Fate::Kept | Fate::Dropped { .. } => false,
    }
}

/// The text of the head's item, else of the first item that is a signal and has one.
fn reason<'a>(items: &[Item<'a>], head: Offset, kind: Signal) -> &'a str {
    items
        .iter()
        .filter(|item| item.found == Found::In(head) && signal(item.status) == Some(kind))
        .chain(items.iter().filter(|item| item.status != AckStatus::Completed))
        .find_map(|item| item.error)
        .unwrap_or(NO_REASON)
}

/// Someone else's lease. Only the literal repeat of the ack that completed a batch is told again that it is done.
fn refuse<'a>(
    cursor: &CursorState,
    lease: Reference<LeaseId>,
    items: &[Item<'a>],
    rules: Rules,
) -> Decision<'a> {
    let settled = rules.repeats && matches!(lease, Reference::Id(id) if cursor.settled == Some(id));
    let verdicts = items
        .iter()
        .map(|item| {
            if settled && item.status == AckStatus::Completed && item.found == Found::Below {
                AckVerdict { refusal: None, lease_released: true, dead_lettered: false, noop: true }
            } else {
                AckVerdict { refusal: Some(AckRefusal::Lease), ..AckVerdict::default() }
            }
        })
        .collect();
    Decision { state: *cursor, cause: Cause::Ack, fate: Fate::Kept, verdicts }
}
