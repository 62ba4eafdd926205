//! Filling the tiers, a bounded step at a time.
//!
//! Leaves first, the newest segment first; then what sixteen share, then what 256 share, each from the ids of one
//! segment after the other.
//!
//! Invariant: a shared filter is put in its place once it holds the ids of all segments that it speaks for.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{HIGH, Keys, LOW, Leaf, Members, Tiers};
use crate::format::index::Filter;
use crate::types::FileNumber;

/// What is to be read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The filter of a segment; `Builder::insert` takes it.
    Filter(FileNumber),
    /// The ids of a segment, for a leaf with a second filter; `Builder::insert` takes it.
    Leaf(FileNumber),
    /// The ids of a segment, into what `Builder::sharing` gives; `Builder::read` says that they are there.
    Ids(FileNumber),
}

/// How many segments share a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Low,
    High,
}

impl Tier {
    fn segments(self) -> u64 {
        match self {
            Tier::Low => LOW,
            Tier::High => HIGH,
        }
    }
}

/// A shared filter that is being filled.
#[derive(Debug)]
pub struct Sharing {
    tier: Tier,
    first: FileNumber,
    filter: Filter,
    of: Members,
    /// Segments whose ids are not in it yet, the next one at the end.
    left: Vec<FileNumber>,
}

impl Sharing {
    /// Adds an id.
    pub fn insert(&mut self, keys: Keys) {
        self.filter.insert(match self.tier {
            Tier::Low => keys.second,
            Tier::High => keys.high,
        });
    }
}

/// The tiers and what they lack.
#[derive(Debug, Default)]
pub struct Builder {
    tiers: Tiers,
    /// Segments whose leaf is to be read.
    wanted: BTreeSet<FileNumber>,
    /// Segments that could not be read. Tried again when the next segment is sealed: by then whoever needed one of them
    /// has had its index built anew.
    failed: BTreeSet<FileNumber>,
    /// Newest segment that was ever named here.
    newest: FileNumber,
    sharing: Option<Sharing>,
    /// What may have become complete: tier and first segment.
    to_share: BTreeSet<(Tier, u64)>,
}

impl Builder {
    /// The tiers as they are, to be handed out.
    #[must_use]
    pub fn tiers(&self) -> Arc<Tiers> {
        Arc::new(self.tiers.clone())
    }

    /// Names sealed segments that have an index file and no filter here.
    pub fn want(&mut self, segments: impl IntoIterator<Item = FileNumber>) {
        for segment in segments {
            self.saw(segment);
            if !self.tiers.knows(segment) {
                self.wanted.insert(segment);
            }
        }
    }

    /// Notes that there are segments up to this one: groups before its own take no more of them.
    fn saw(&mut self, segment: FileNumber) {
        self.newest = self.newest.max(segment);
        self.note(segment);
    }

    fn note(&mut self, segment: FileNumber) {
        self.to_share.insert((Tier::Low, segment.0 / LOW * LOW));
        self.to_share.insert((Tier::High, segment.0 / HIGH * HIGH));
    }

    /// Puts a leaf in its place.
    pub fn insert(&mut self, segment: FileNumber, leaf: Leaf) {
        self.saw(segment);
        self.wanted.remove(&segment);
        self.failed.remove(&segment);
        // What is being filled was begun with what was there before.
        self.sharing.take_if(|sharing| sharing.of.holds(segment) && sharing.is_about(segment));
        self.tiers.insert(segment, leaf);
    }

    /// A segment was sealed and has its leaf.
    pub fn insert_sealed(&mut self, segment: FileNumber, leaf: Leaf) {
        self.insert(segment, leaf);
        let failed = std::mem::take(&mut self.failed);
        self.want(failed);
    }

    /// What is due could not be read: the segment goes without, and so does what it would share.
    pub fn fail(&mut self, due: Due) {
        match due {
            Due::Filter(segment) | Due::Leaf(segment) => {
                self.wanted.remove(&segment);
                self.failed.insert(segment);
            }
            Due::Ids(segment) => {
                self.sharing = None;
                self.failed.insert(segment);
            }
        }
    }

    /// Forgets a segment that is gone.
    pub fn remove(&mut self, segment: FileNumber) {
        self.wanted.remove(&segment);
        self.failed.remove(&segment);
        self.tiers.remove(segment);
        if let Some(sharing) = self.sharing.as_mut().filter(|sharing| sharing.is_about(segment)) {
            sharing.of.set(segment, false);
            sharing.left.retain(|other| *other != segment);
        }
    }

    /// What is to be read next, if anything.
    pub fn due(&mut self) -> Option<Due> {
        if let Some(segment) = self.wanted.last() {
            // Where a shared filter comes soon, a second one of its own would be read for nothing.
            let is_open = self.newest.0 / LOW == segment.0 / LOW && !self.is_over(Tier::Low, segment.0);
            return Some(if is_open { Due::Leaf(*segment) } else { Due::Filter(*segment) });
        }
        loop {
            if let Some(sharing) = &self.sharing {
                match sharing.left.last() {
                    Some(segment) => return Some(Due::Ids(*segment)),
                    None => self.finish(),
                }
            }
            self.sharing = Some(self.begin()?);
        }
    }

    /// Whether a group of segments can take no more.
    fn is_over(&self, tier: Tier, segment: u64) -> bool {
        let last = segment / tier.segments() * tier.segments() + tier.segments() - 1;
        self.newest.0 >= last
    }

    /// Begins with the newest of the lower tier that is complete, then those of the upper one.
    fn begin(&mut self) -> Option<Sharing> {
        for tier in [Tier::Low, Tier::High] {
            while let Some(next) = {
                let of_tier = self.to_share.range((tier, 0)..=(tier, u64::MAX));
                of_tier.rev().find(|(tier, first)| self.is_over(*tier, *first)).copied()
            } {
                self.to_share.remove(&next);
                if let Some(sharing) = self.share(tier, FileNumber(next.1)) {
                    return Some(sharing);
                }
            }
        }
        None
    }

    fn share(&self, tier: Tier, first: FileNumber) -> Option<Sharing> {
        let group = self.tiers.0.get(&(first.0 / HIGH))?;
        let (mut of, mut left, mut messages) = (Members::default(), Vec::new(), 0_u32);
        for segment in (first.0..first.0 + tier.segments()).rev().map(FileNumber) {
            if let Some(leaf) = group.leaf(segment) {
                of.set(segment, true);
                left.push(segment);
                // So many messages that their number does not fit are asked segment by segment.
                messages = messages.checked_add(leaf.messages)?;
            }
        }
        let has_it = match tier {
            Tier::Low => group.low.get((first.0 % HIGH / LOW) as usize)?.as_ref(),
            Tier::High => group.high.as_ref(),
        };
        if left.is_empty() || has_it.is_some_and(|shared| covers(shared.of, of)) {
            return None;
        }
        Some(Sharing { tier, first, filter: Filter::for_messages(messages), of, left })
    }

    /// Where the ids that are due go.
    pub fn sharing(&mut self) -> Option<&mut Sharing> {
        self.sharing.as_mut()
    }

    /// The ids that were due are there. Whether the tiers changed.
    pub fn read(&mut self) -> bool {
        if let Some(sharing) = &mut self.sharing {
            sharing.left.pop();
            if sharing.left.is_empty() {
                self.finish();
                return true;
            }
        }
        false
    }

    fn finish(&mut self) {
        let Some(Sharing { tier, first, filter, of, .. }) = self.sharing.take() else { return };
        if of.is_empty() {
            return;
        }
        match tier {
            Tier::Low => self.tiers.share_low(first, filter, of),
            Tier::High => self.tiers.share_high(first, filter, of),
        }
    }
}

impl Sharing {
    fn is_about(&self, segment: FileNumber) -> bool {
        segment.0 / self.tier.segments() == self.first.0 / self.tier.segments()
    }
}

/// Whether all of `some` are among `all`.
fn covers(all: Members, some: Members) -> bool {
    all.0.iter().zip(some.0).all(|(all, some)| some & !all == 0)
}
