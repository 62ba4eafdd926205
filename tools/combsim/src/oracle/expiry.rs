//! Retention: which messages may be gone, and which must be.
//!
//! A message may be gone once it is older than the least limit that its queue ever had. The daemon's log time never
//! runs ahead of the clock, so nothing is younger to the oracle than to the daemon.

use super::Oracle;
use super::model::{Fate, Lane};
use crate::failure::{Failure, Invariant, check};
use crate::profile::Options;

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;

/// Limits of age in seconds: the least that may have been in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Whatever is older goes.
    pub all: Option<u32>,
    /// Of what every group passed, whatever is older goes.
    pub completed: Option<u32>,
}

fn least(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

impl Limits {
    /// The limits that options set.
    #[must_use]
    pub fn of(options: &Options) -> Limits {
        let limit = |seconds: u32| (seconds > 0).then_some(seconds);
        let gated = |seconds: u32| limit(seconds).filter(|_| options.retention);
        Limits {
            all: least(gated(options.retention_seconds), limit(options.max_wait_seconds)),
            completed: gated(options.completed_seconds),
        }
    }

    /// These options may be in force as well.
    pub fn allow(&mut self, options: &Options) {
        let more = Limits::of(options);
        self.all = least(self.all, more.all);
        self.completed = least(self.completed, more.completed);
    }
}

impl Oracle {
    fn limits(&self, lane: Lane) -> Limits {
        let queue = self.model.facts(lane).queue;
        self.model.queues.get(queue).map(|queue| queue.limits).unwrap_or_default()
    }

    /// Whether the message at an offset may have expired. Of one that nobody saw, nobody knows its age.
    #[must_use]
    pub fn may_be_gone(&self, lane: Lane, offset: u64, now: u64) -> bool {
        let Limits { all, completed } = self.limits(lane);
        let facts = self.model.facts(lane);
        let sent = facts.places.get(&offset).map_or(0, |number| self.model.item(*number).sent);
        let is_older = |seconds: u32| sent + u64::from(seconds) * SECOND <= now;
        if all.is_some_and(is_older) {
            return true;
        }
        let Some(seconds) = completed.filter(|seconds| is_older(*seconds)) else { return false };
        // Groups that came when it may have been gone already were not asked.
        let first = sent + u64::from(seconds) * SECOND;
        let registered = self.model.queues.get(facts.queue).map(|queue| &queue.registered);
        let mut asked = registered.into_iter().flatten().filter(|(_, since)| **since < first);
        asked.all(|(group, _)| {
            let cursor = self.model.cursors.get(&(lane, *group));
            cursor.is_none_or(|cursor| cursor.limit().is_none_or(|limit| offset < limit))
        })
    }

    /// Whether a message that was sent then to this lane, and that nobody saw since, may have been stored and expired.
    #[must_use]
    pub fn may_have_come_and_gone(&self, lane: Lane, sent: u64, now: u64) -> bool {
        let Limits { all, completed } = self.limits(lane);
        least(all, completed).is_some_and(|seconds| sent + u64::from(seconds) * SECOND <= now)
    }

    /// A lane was seen to begin at `first`: all of `from` to before it may be gone, and stays gone.
    ///
    /// # Errors
    /// One of them is too young.
    pub fn begins_at(&mut self, lane: Lane, from: u64, first: u64, now: u64) -> Result<(), Failure> {
        let invariant = match self.limits(lane) == Limits::default() {
            true => Invariant::CursorOrder,
            false => Invariant::Retention,
        };
        for offset in from..first {
            check(self.may_be_gone(lane, offset, now), invariant, || {
                format!(
                    "{} begins at {first} at {now}, and the message at {offset} is too young to be gone: {:?}, item {:?}",
                    self.model.name(lane),
                    self.limits(lane),
                    self.model.facts(lane).places.get(&offset)
                )
            })?;
        }
        if from < first {
            self.model.facts_mut(lane).start = first;
        }
        Ok(())
    }

    /// Messages from `first` on are there.
    ///
    /// # Errors
    /// They were seen to be gone.
    pub fn is_there(&self, lane: Lane, first: u64) -> Result<(), Failure> {
        let start = self.model.facts(lane).start;
        check(first >= start, Invariant::Retention, || {
            format!("the message at {first} of {} was gone: it began at {start}", self.model.name(lane))
        })
    }

    /// A sweep went over everything, and a message is still there.
    ///
    /// # Errors
    /// It was stored so long ago that it must be gone.
    pub fn judge_kept(&self, lane: Lane, number: u64, now: u64) -> Result<(), Failure> {
        let queue = self.model.queues.get(self.model.facts(lane).queue);
        let Some(options) = queue.filter(|queue| queue.configuring == 0).and_then(|queue| queue.options)
        else {
            return Ok(());
        };
        let item = self.model.item(number);
        let is_over = |seconds: u32| {
            item.fate == Fate::Stored
                && item.answered > 0
                && item.answered + u64::from(seconds) * SECOND < now
        };
        check(!Limits::of(&options).all.is_some_and(is_over), Invariant::Retention, || {
            format!("item {number} of {} is still there at {now}: {options:?}", self.model.name(lane))
        })
    }
}
