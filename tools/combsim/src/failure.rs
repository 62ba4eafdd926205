//! What a history is found guilty of.

use std::fmt;

/// The rules that a history is judged by; `docs` of each say what must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// An acknowledged push is readable byte for byte, under its id and offset.
    AcknowledgedPush,
    /// A refused push never appears.
    RefusedPush,
    /// The messages of one push to one partition appear together or not at all, and for ever once they were seen.
    WholeGroup,
    /// What was answered is true after every crash.
    Durable,
    /// Cursors never move back, what was acknowledged is not delivered again, nothing is passed over.
    CursorOrder,
    /// One message per transaction id inside the deduplication window; a duplicate names the original.
    Dedup,
    /// Offsets are contiguous and belong to one message for ever; ids are never used again.
    Identity,
    /// Two live leases never overlap, and a live one is honoured.
    Lease,
    /// A start succeeds after every crash, as often as it is interrupted, and repeats itself.
    Recovery,
    /// A transaction happens as a whole or not at all.
    Transaction,
    /// A dead letter's row, its copy and the cursor that passes it are one.
    DeadLetter,
    /// Nothing expires before its time, what expired stays away, and what is over is gone after a sweep.
    Retention,
    /// Damage is refused or isolated by name, never silent.
    Damage,
    /// The same seed makes the same history.
    Determinism,
    /// Once faults stop, every request ends within a bound.
    Progress,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub invariant: Invariant,
    /// What was seen and what was expected.
    pub text: String,
}

impl Failure {
    /// A broken rule.
    #[must_use]
    pub fn new(invariant: Invariant, text: impl Into<String>) -> Failure {
        Failure { invariant, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.text)
    }
}

impl std::error::Error for Failure {}

/// Fails unless a condition holds.
///
/// # Errors
/// The condition does not hold.
pub fn check(holds: bool, invariant: Invariant, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(invariant, text())) }
}
