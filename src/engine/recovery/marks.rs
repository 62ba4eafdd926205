//! Marks of the decisions of recovery: which of them a set of tests or simulated histories has reached.
//!
//! Purpose: a row that nothing reaches is a row that nothing tests. Counted per thread in tests and with the feature
//! `sim`; compiled to nothing otherwise.
//!
//! Must not: influence a decision.

/// A decision of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// The directory was empty: a superblock was made.
    FreshDirectory,
    /// The first files were made.
    FirstFiles,
    /// There is no checkpoint yet.
    NoCheckpoint,
    /// The newest checkpoint was restored.
    CheckpointNewest,
    /// The older checkpoint stood in for the newest.
    CheckpointOlder,
    /// A checkpoint could not be used.
    CheckpointDamaged,
    /// A group that the checkpoint covers was passed over.
    GroupCovered,
    /// A segment ended in a seal while it was indexed.
    SegmentSealed,
    /// A segment that was left for its successor had no seal yet.
    SegmentUnsealed,
    /// The messages of a group are in a later segment.
    SegmentLeft,
    /// The last whole frame stands in a segment that was dropped: its successor goes on.
    DroppedEnd,
    /// A noop was passed.
    Noop,
    /// A cursor file ended in a seal.
    CursorSealed,
    /// A cursor file was left for its successor before its seal was written.
    CursorUnsealed,
    /// The cursor frame of a group is whole and its messages are not.
    MessagesTorn,
    /// The last process ended cleanly.
    CleanMark,
    /// `Verdict::Corruption`.
    Corruption,
    /// `Verdict::Impossible`.
    Impossible,
    /// `Verdict::NotATornWrite`.
    NotATornWrite,
    /// `Verdict::CutInFlight`.
    CutInFlight,
    /// `Verdict::TornTail`.
    TornTail,
    /// `Verdict::CleanEnd`.
    CleanEnd,
    /// A stretch was copied to quarantine.
    Quarantined,
    /// The copy of an interrupted start was kept.
    QuarantinedBefore,
    /// There was no space for the copy.
    QuarantineFull,
    /// A file that was prepared under other settings was removed.
    SpareOutdated,
    /// A half-made file was removed.
    LeftoverFile,
    /// A checkpoint that the superblock does not name was removed.
    LeftoverCheckpoint,
}

impl Mark {
    /// All of them.
    pub const ALL: [Mark; 28] = [
        Mark::FreshDirectory,
        Mark::FirstFiles,
        Mark::NoCheckpoint,
        Mark::CheckpointNewest,
        Mark::CheckpointOlder,
        Mark::CheckpointDamaged,
        Mark::GroupCovered,
        Mark::SegmentSealed,
        Mark::SegmentUnsealed,
        Mark::SegmentLeft,
        Mark::DroppedEnd,
        Mark::Noop,
        Mark::CursorSealed,
        Mark::CursorUnsealed,
        Mark::MessagesTorn,
        Mark::CleanMark,
        Mark::Corruption,
        Mark::Impossible,
        Mark::NotATornWrite,
        Mark::CutInFlight,
        Mark::TornTail,
        Mark::CleanEnd,
        Mark::Quarantined,
        Mark::QuarantinedBefore,
        Mark::QuarantineFull,
        Mark::SpareOutdated,
        Mark::LeftoverFile,
        Mark::LeftoverCheckpoint,
    ];
}

#[cfg(any(test, feature = "sim"))]
mod counted {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::Mark;

    thread_local! {
        static HITS: RefCell<BTreeMap<Mark, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Counts a decision.
    pub(in crate::engine::recovery) fn hit(mark: Mark) {
        HITS.with_borrow_mut(|hits| *hits.entry(mark).or_default() += 1);
    }

    /// What this thread counted since the last call.
    #[must_use]
    pub fn take() -> BTreeMap<Mark, u64> {
        HITS.take()
    }
}

#[cfg(any(test, feature = "sim"))]
pub(super) use counted::hit;
#[cfg(any(test, feature = "sim"))]
pub use counted::take;

/// Counts nothing.
#[cfg(not(any(test, feature = "sim")))]
#[inline(always)]
pub(super) fn hit(_: Mark) {}
