//! Cursors that remember a settled batch: most of them can become a number again.
//!
//! A completing acknowledgement leaves the lease in the cursor, so that its repeat is answered with success. The repeat
//! is found by its transaction ids; once nobody knows those, nothing asks for the lease any more, and a cursor takes a
//! fifth of the memory without it.
//!
//! Invariants:
//! - No answer changes by it.
//! - It is a record, like every change of a cursor: a checkpoint that is being taken in slices may be past the place
//!   where the cursor is then.
//! - One step looks at a bounded number of cursors; where none remembers anything, nothing is done.

use super::core::Core;
use super::journal::{DELTA_BYTES, Fit, Journal};
use super::retention::NoRoom;
use crate::format::delta::{Cause, CursorDelta, CursorState, Delta};
use crate::types::{LogTime, Offset};

/// Time between two walks, in seconds: short against the least time for which ids are known.
const EVERY_SECONDS: u64 = 300;

/// Where the walk is.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Positions below this are to be looked at.
    below: Option<usize>,
    due: LogTime,
}

impl Settled {
    /// The first walk comes as late as any other.
    pub(super) fn new(now: LogTime) -> Settled {
        Settled { below: None, due: now.plus_seconds(EVERY_SECONDS) }
    }
}

impl<J: Journal> Core<J> {
    /// When `forget_settled` has something to do, if nothing happens before.
    pub(super) fn forget_due(&self) -> Option<LogTime> {
        match self.settled.below {
            Some(_) => Some(self.now),
            None => (self.state.cursors.full_len() > 0).then_some(self.settled.due),
        }
    }

    /// Walks on over the cursors that know more than a number.
    pub(super) fn forget_settled(&mut self, units: &mut usize) -> Result<(), NoRoom> {
        let mut at = match self.settled.below {
            Some(below) => below,
            None if self.settled.due > self.now => return Ok(()),
            None => usize::MAX,
        };
        // Downwards, as `state::Table` says: what is moved into a place was looked at.
        at = at.min(self.state.cursors.full_len());
        while at > 0 && *units > 0 {
            self.settled.below = Some(at);
            if let Some(delta) = self.forgotten(at - 1, units) {
                if self.journal.fits(0, DELTA_BYTES) == Fit::Later {
                    return Err(NoRoom);
                }
                self.stage(&Delta::Cursor(delta));
            }
            at -= 1;
        }
        self.settled.below = (at > 0).then_some(at);
        if at == 0 {
            self.settled.due = self.now.plus_seconds(EVERY_SECONDS);
        }
        Ok(())
    }

    /// The cursor at this position without what nobody asks for, if there is nothing else to it.
    fn forgotten(&self, position: usize, units: &mut usize) -> Option<CursorDelta> {
        *units -= 1;
        let ((partition, group), cursor) = self.state.cursors.full_at(position)?;
        let state = CursorState { next: cursor.next, ..CursorState::default() };
        let rest = CursorState { settled: None, attempt_first: Offset(0), ..cursor };
        if rest != state || cursor == state {
            return None;
        }
        let known = self.state.partitions.get(&partition)?;
        if let Some(last) = cursor.next.0.checked_sub(1).map(Offset) {
            *units = units.saturating_sub(self.state.queues.get(&known.queue)?.groups.len());
            if self.state.knows_id(known, last, known.last_logged, self.now) {
                return None;
            }
        }
        Some(CursorDelta { partition, group, cause: Cause::Forget, state })
    }
}
