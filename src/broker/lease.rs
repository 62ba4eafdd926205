//! Leases after they were taken: extended, handed back.
//!
//! Purpose: what a holder, or the lack of one, does to every claim of one pop.
//!
//! Invariants:
//! - Only a live lease changes anything; one that ended or was settled is as good as unknown.
//! - An extension never shortens. A lease that was handed back costs no attempt and no retry.
//!
//! Must not: move cursors.

use smallvec::SmallVec;

use super::ack::live_lease;
use super::command::{ExtendReply, Reference, Reply};
use super::core::{Block, Core, Step};
use super::journal::{DELTA_BYTES, Fit, Journal};
use crate::format::delta::{Cause, CursorDelta, CursorState, Delta, Lease};
use crate::types::{GroupId, LeaseId, PartitionId};

/// A cursor that holds a live lease.
type Held = ((PartitionId, GroupId), CursorState, Lease);

impl<J: Journal> Core<J> {
    /// The cursors that hold this lease, while it is live.
    fn held(&self, lease: LeaseId) -> SmallVec<[Held; 4]> {
        let Some(holders) = self.state.leases.get(&lease) else { return SmallVec::new() };
        let held = holders.iter().filter_map(|key| {
            self.state.groups.get(&key.1)?; // gone with its queue, where the cursor may still be
            let cursor = self.state.cursors.get(key)?;
            let live = live_lease(&cursor, self.now).filter(|live| live.id == lease)?;
            Some((*key, cursor, live))
        });
        held.collect()
    }

    fn stage_cursor(&mut self, (partition, group): (PartitionId, GroupId), cause: Cause, state: CursorState) {
        self.stage(&Delta::Cursor(CursorDelta { partition, group, cause, state }));
    }

    /// Extends a lease over all its partitions to `seconds` from now, never to less than it has.
    pub(super) fn extend(&mut self, lease: Reference<LeaseId>, seconds: u32) -> Step {
        let held = match lease {
            Reference::Id(lease) => self.held(lease),
            Reference::Absent | Reference::Malformed => SmallVec::new(),
        };
        let until = self.now.plus_seconds(u64::from(seconds));
        let mut earliest = None;
        for (key, mut cursor, mut live) in held.iter().copied() {
            if live.expires < until {
                // One by one, so that any number fits. What was extended before a wait is found extended after it.
                if self.journal.fits(0, DELTA_BYTES) == Fit::Later {
                    return Step::Blocked(Block::Room);
                }
                live.expires = until;
                cursor.lease = Some(live);
                self.stage_cursor(key, Cause::Extend, cursor);
            }
            earliest = Some(earliest.map_or(live.expires, |time| live.expires.min(time)));
        }
        Step::Done(Reply::Extend(ExtendReply {
            renewed: u32::try_from(held.len()).unwrap_or(u32::MAX),
            expires: earliest.map(|time| self.wall_of(time)),
        }))
    }

    /// Hands the claims of a lease back that nobody received. A claim of which something was acknowledged was
    /// received, and stays.
    pub(super) fn return_lease(&mut self, lease: LeaseId) -> Step {
        let mut held = self.held(lease);
        held.retain(|(_, cursor, _)| cursor.attempts > 0 && cursor.attempt_first == cursor.next);
        for (key, mut cursor, _) in held {
            if self.journal.fits(0, DELTA_BYTES) == Fit::Later {
                return Step::Blocked(Block::Room);
            }
            cursor.lease = None;
            cursor.attempts -= 1;
            self.stage_cursor(key, Cause::Return, cursor);
        }
        Step::Silent
    }
}
