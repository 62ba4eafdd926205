//! Which sealed segments can hold an id, without asking their index files.
//!
//! Each segment has a filter, its leaf. Sixteen segments whose numbers differ in the last four bits only share one more,
//! and so do the 256 that differ in the last eight: an id that is nowhere is denied by one filter per 256 segments. The
//! segments of a group that is not complete have a second filter each instead of the shared one, so that their number
//! does not show in how often an index file is asked in vain.
//!
//! `Tiers` is what the storage thread asks: immutable, shared, cheap to copy. `Builder` is what maintenance changes: it
//! knows what is to be read next and puts what was read in its place.
//!
//! Invariants:
//! - A segment that holds an id is never denied. One without a leaf is not `known`, and whoever asks must count it in.
//! - A shared filter speaks for the segments that it was made from and for no other.
//! - About 4.5 bytes of memory per message: twelve bits in each of three filters.
//!
//! Must not: do I/O.

mod build;
#[cfg(test)]
mod tests;

pub use build::{Builder, Due};

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::index::{Filter, id_key};
use crate::types::{FileNumber, IdHash, LogTime, PartitionId};

/// Segments that share a filter of the lower tier.
const LOW: u64 = 16;
/// Segments that share a filter of the upper tier.
const HIGH: u64 = LOW * LOW;

/// Segments that may hold an id; almost always none or one.
pub type Candidates = SmallVec<[FileNumber; 4]>;

/// What an id is filed under in each tier. The tiers hash it apart, so that what deceives one does not deceive the next.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    leaf: u64,
    second: u64,
    high: u64,
}

fn mix(key: u64, salt: u64) -> u64 {
    let mixed = (key ^ salt).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    (mixed ^ (mixed >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53).rotate_left(29)
}

impl Keys {
    /// The keys of an id.
    #[must_use]
    pub fn of(partition: PartitionId, hash: IdHash) -> Keys {
        Keys::from_leaf(id_key(partition, hash))
    }

    /// The keys that belong to one of the index file.
    #[must_use]
    pub fn from_leaf(leaf: u64) -> Keys {
        Keys { leaf, second: mix(leaf, 0x9E37_79B9_7F4A_7C15), high: mix(leaf, 0xD1B5_4A32_D192_ED03) }
    }
}

/// The filter of one segment.
#[derive(Debug)]
pub struct Leaf {
    /// The one that the index file holds.
    filter: Filter,
    /// Another one, until the segment shares a filter.
    second: Option<Filter>,
    messages: u32,
    last_logged: LogTime,
}

impl Leaf {
    /// A leaf over the filter of an index file.
    #[must_use]
    pub fn new(filter: Filter, messages: u32, last_logged: LogTime) -> Leaf {
        Leaf { filter, second: None, messages, last_logged }
    }

    /// A leaf that is filled with `insert`, with a second filter.
    #[must_use]
    pub fn empty(messages: u32, last_logged: LogTime) -> Leaf {
        let filter = Filter::for_messages(messages);
        Leaf { second: Some(filter.clone()), filter, messages, last_logged }
    }

    /// Adds an id.
    pub fn insert(&mut self, keys: Keys) {
        self.filter.insert(keys.leaf);
        if let Some(second) = &mut self.second {
            second.insert(keys.second);
        }
    }

    fn may_hold(&self, keys: Keys) -> bool {
        self.filter.may_hold(keys.leaf)
            && self.second.as_ref().is_none_or(|second| second.may_hold(keys.second))
    }

    fn bytes(&self) -> usize {
        self.filter.bytes().len() + self.second.as_ref().map_or(0, |second| second.bytes().len())
    }
}

/// Some of the segments of a group: one bit each, sixteen rows of sixteen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Members([u16; LOW as usize]);

/// Where a segment stands in its group: row and bit.
fn place(segment: FileNumber) -> (usize, u32) {
    ((segment.0 % HIGH / LOW) as usize, (segment.0 % LOW) as u32)
}

impl Members {
    fn row(&self, row: usize) -> u16 {
        self.0.get(row).copied().unwrap_or(0)
    }

    fn holds(&self, segment: FileNumber) -> bool {
        let (row, bit) = place(segment);
        self.row(row) & (1 << bit) != 0
    }

    fn set(&mut self, segment: FileNumber, is_in: bool) {
        let (row, bit) = place(segment);
        if let Some(row) = self.0.get_mut(row) {
            *row = if is_in { *row | 1 << bit } else { *row & !(1 << bit) };
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|row| *row == 0)
    }
}

/// A filter that segments share.
#[derive(Debug)]
struct Shared {
    filter: Filter,
    of: Members,
}

/// 256 segments. Rows of sixteen have what they share of the lower tier.
#[derive(Clone, Debug)]
struct Group {
    leaves: Vec<Option<Arc<Leaf>>>,
    present: Members,
    low: [Option<Arc<Shared>>; LOW as usize],
    high: Option<Arc<Shared>>,
    newest: LogTime,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            leaves: vec![None; HIGH as usize],
            present: Members::default(),
            low: Default::default(),
            high: None,
            newest: LogTime(0),
        }
    }
}

impl Group {
    fn leaf(&self, segment: FileNumber) -> Option<&Arc<Leaf>> {
        self.leaves.get((segment.0 % HIGH) as usize)?.as_ref()
    }

    fn ask(&self, number: u64, keys: Keys, not_before: LogTime, candidates: &mut Candidates) {
        let denied = match &self.high {
            Some(high) if !high.filter.may_hold(keys.high) => high.of,
            _ => Members::default(),
        };
        for row in (0..LOW as usize).rev() {
            let mut left = self.present.row(row) & !denied.row(row);
            if left == 0 {
                continue;
            }
            if let Some(Some(low)) = self.low.get(row)
                && !low.filter.may_hold(keys.second)
            {
                left &= !low.of.row(row);
            }
            while left != 0 {
                let bit = left.ilog2();
                left &= !(1 << bit);
                let segment = FileNumber(number * HIGH + row as u64 * LOW + u64::from(bit));
                if self
                    .leaf(segment)
                    .is_some_and(|leaf| leaf.last_logged >= not_before && leaf.may_hold(keys))
                {
                    candidates.push(segment);
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        let leaves = self.leaves.iter().flatten().map(|leaf| leaf.bytes()).sum::<usize>();
        let shared = self.low.iter().chain([&self.high]).flatten();
        leaves + shared.map(|shared| shared.filter.bytes().len()).sum::<usize>()
    }
}

/// The filters of all segments that have one.
#[derive(Clone, Debug, Default)]
pub struct Tiers(BTreeMap<u64, Arc<Group>>);

impl Tiers {
    /// Whether a segment has a filter.
    #[must_use]
    pub fn knows(&self, segment: FileNumber) -> bool {
        self.leaf(segment).is_some()
    }

    /// The segments with a filter that may hold an id and were written to at or after `not_before`, newest first.
    #[must_use]
    pub fn candidates(&self, keys: Keys, not_before: LogTime) -> Candidates {
        let mut candidates = Candidates::new();
        for (number, group) in self.0.iter().rev() {
            if group.newest >= not_before {
                group.ask(*number, keys, not_before, &mut candidates);
            }
        }
        candidates
    }

    /// Bytes of filters.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|group| group.bytes() as u64).sum()
    }

    fn leaf(&self, segment: FileNumber) -> Option<&Arc<Leaf>> {
        self.0.get(&(segment.0 / HIGH))?.leaf(segment)
    }

    fn group_mut(&mut self, segment: FileNumber) -> &mut Group {
        Arc::make_mut(self.0.entry(segment.0 / HIGH).or_default())
    }

    /// Puts a leaf in its place.
    fn insert(&mut self, segment: FileNumber, leaf: Leaf) {
        let group = self.group_mut(segment);
        group.newest = group.newest.max(leaf.last_logged);
        group.present.set(segment, true);
        if let Some(slot) = group.leaves.get_mut((segment.0 % HIGH) as usize) {
            *slot = Some(Arc::new(leaf));
        }
        // What was shared so far was made from another leaf.
        let (row, _) = place(segment);
        if let Some(low) = group.low.get_mut(row) {
            low.take_if(|low| low.of.holds(segment));
        }
        group.high.take_if(|high| high.of.holds(segment));
    }

    /// Puts a filter in its place that a row of segments shares; they need no second one any more.
    fn share_low(&mut self, first: FileNumber, filter: Filter, of: Members) {
        let (row, _) = place(first);
        let group = self.group_mut(first);
        for bit in 0..LOW {
            let segment = FileNumber(first.0 / LOW * LOW + bit);
            let slot = group.leaves.get_mut((segment.0 % HIGH) as usize);
            if of.holds(segment)
                && let Some(Some(slot)) = slot
                && slot.second.is_some()
            {
                *slot = Arc::new(Leaf::new(slot.filter.clone(), slot.messages, slot.last_logged));
            }
        }
        if let Some(low) = group.low.get_mut(row) {
            *low = Some(Arc::new(Shared { filter, of }));
        }
    }

    /// Puts a filter in its place that a whole group shares.
    fn share_high(&mut self, first: FileNumber, filter: Filter, of: Members) {
        self.group_mut(first).high = Some(Arc::new(Shared { filter, of }));
    }

    /// Forgets a segment that is gone. What it shared goes with the last segment that shares it.
    fn remove(&mut self, segment: FileNumber) {
        if !self.knows(segment) {
            return;
        }
        let (row, _) = place(segment);
        let group = self.group_mut(segment);
        group.present.set(segment, false);
        if let Some(leaf) = group.leaves.get_mut((segment.0 % HIGH) as usize) {
            *leaf = None;
        }
        if group.present.row(row) == 0
            && let Some(low) = group.low.get_mut(row)
        {
            *low = None;
        }
        if group.present.is_empty() {
            self.0.remove(&(segment.0 / HIGH));
        }
    }
}
