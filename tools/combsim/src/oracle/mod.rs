//! The oracle: judges every answer by what was asked and answered before.
//!
//! Invariants:
//! - A rule is broken only if no order of the unanswered commands explains what was answered.
//! - What was answered once binds every later answer, whatever died in between.
//!
//! Must not: look into the daemon; it knows answers and delivered bytes only.

pub mod acks;
pub mod claims;
pub mod expiry;
pub mod finish;
pub mod model;
pub mod pushes;

use std::collections::HashMap;

use comb::types::LeaseId;

use crate::oracle::model::{CommandId, Fate, Lane, Model};
use crate::profile::Options;

/// A group of a push, as it was sent.
#[derive(Clone, Debug)]
pub struct SentGroup {
    /// Where it goes.
    pub lane: Lane,
    /// Its items.
    pub items: Vec<SentItem>,
}

/// An item of a push, as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentItem {
    /// Number in the model.
    pub number: u64,
    /// Index of the first item of the group with the same transaction id, if this one repeats it.
    pub repeat_of: Option<usize>,
    /// The transaction id is new for certain, so the broker does not look for it.
    pub minted: bool,
}

/// The lease that an acknowledgement names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// None.
    Nothing,
    /// One that was answered to somebody.
    Known(LeaseId),
    /// One that never existed.
    Foreign,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Done.
    Completed,
    /// A failure.
    Failed,
    /// Give it back.
    Retry,
    /// Dead-letter it.
    DeadLetter,
}

/// Acknowledgements of one lane and group under one lease, as they were sent.
#[derive(Clone, Debug)]
pub struct SentAck {
    /// The lane.
    pub lane: Lane,
    /// Index of the group.
    pub group: usize,
    /// The lease.
    pub lease: Named,
    /// Transaction ids and what is said about them.
    pub items: Vec<(String, Word)>,
}

/// A transaction without an answer, to be judged once one of its messages is seen.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Cursors that are at least there if it happened.
    pub cursors: Vec<(Lane, usize, u64)>,
}

/// The oracle.
#[derive(Debug)]
pub struct Oracle {
    /// What it knows.
    pub model: Model,
    bundles: HashMap<CommandId, Bundle>,
}

impl Oracle {
    /// The oracle of an empty data directory.
    #[must_use]
    pub fn new(options: &[Option<Options>]) -> Oracle {
        Oracle { model: Model::new(options), bundles: HashMap::new() }
    }

    /// The client of a command left: it will never be answered.
    pub fn abandoned(&mut self, command: CommandId) {
        for item in self.model.items.iter_mut().rev().filter(|item| item.command == command) {
            if item.fate == Fate::Open(false) {
                item.fate = Fate::Open(true);
            }
        }
    }

    /// The process died: nothing that is open will be answered.
    pub fn died(&mut self) {
        for item in &mut self.model.items {
            if item.fate == Fate::Open(false) {
                item.fate = Fate::Open(true);
            }
        }
        self.model.life += 1;
    }
}
