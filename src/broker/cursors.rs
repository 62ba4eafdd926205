//! Cursors of every partition and group, most of which are a number.
//!
//! A cursor that only says where its group goes on takes 20 bytes and its share of a table; whatever else it knows (a
//! lease, a charge, an attempt, the lease that was settled last) makes it a full one for as long as it knows that.
//!
//! Invariants:
//! - A pair is in one of the two tables, or in none.
//! - Both have positions as `state::Table` has: a walk downwards over first one, then the other meets every cursor
//!   that did not change meanwhile.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use xxhash_rust::xxh3::xxh3_64;

use super::state::Table;
use crate::format::delta::CursorState;
use crate::types::{GroupId, Offset, PartitionId};

/// A cursor's name.
pub type CursorKey = (PartitionId, GroupId);

/// Partition and offset in halves, group. No padding.
type Idle = [u32; 5];

/// The cursors.
#[derive(Debug, Default)]
pub struct Cursors {
    idle: Vec<Idle>,
    /// Positions in `idle`.
    index: HashTable<u32>,
    full: Table<CursorKey, CursorState>,
}

fn halves(number: u64) -> (u32, u32) {
    ((number & u64::from(u32::MAX)) as u32, (number >> 32) as u32)
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn pack((partition, group): CursorKey, next: Offset) -> Option<Idle> {
    let group = u32::try_from(group.0).ok()?;
    let ((a, b), (c, d)) = (halves(partition.0), halves(next.0));
    Some([a, b, group, c, d])
}

fn key_of(&[a, b, group, ..]: &Idle) -> CursorKey {
    (PartitionId(whole(a, b)), GroupId(u64::from(group)))
}

fn next_of(&[.., c, d]: &Idle) -> Offset {
    Offset(whole(c, d))
}

fn hash_of((partition, group): CursorKey) -> u64 {
    let mut bytes = [0; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&partition.0.to_le_bytes());
    right.copy_from_slice(&group.0.to_le_bytes());
    xxh3_64(&bytes)
}

impl Cursors {
    fn position(&self, key: CursorKey) -> Option<u32> {
        let same = |at: &u32| self.idle.get(*at as usize).is_some_and(|row| key_of(row) == key);
        self.index.find(hash_of(key), same).copied()
    }

    /// A cursor.
    #[must_use]
    pub fn get(&self, key: &CursorKey) -> Option<CursorState> {
        if let Some(full) = self.full.get(key) {
            return Some(*full);
        }
        let row = self.idle.get(self.position(*key)? as usize)?;
        Some(CursorState { next: next_of(row), ..CursorState::default() })
    }

    /// Whether there is one.
    #[must_use]
    pub fn contains_key(&self, key: &CursorKey) -> bool {
        self.full.contains_key(key) || self.position(*key).is_some()
    }

    /// Sets a cursor; the one before.
    pub fn insert(&mut self, key: CursorKey, state: CursorState) -> Option<CursorState> {
        let is_idle = state == CursorState { next: state.next, ..CursorState::default() };
        let Some(row) = pack(key, state.next).filter(|_| is_idle) else {
            let old = self.remove_idle(key);
            return self.full.insert(key, state).or(old);
        };
        let old = self.full.swap_remove(&key);
        let rows = &mut self.idle;
        let entry = self.index.entry(
            hash_of(key),
            |at| rows.get(*at as usize).is_some_and(|row| key_of(row) == key),
            |at| rows.get(*at as usize).map_or(0, |row| hash_of(key_of(row))),
        );
        match entry {
            Entry::Occupied(entry) => {
                let place = self.idle.get_mut(*entry.get() as usize)?;
                let before = std::mem::replace(place, row);
                Some(CursorState { next: next_of(&before), ..CursorState::default() })
            }
            Entry::Vacant(entry) => {
                let at = u32::try_from(self.idle.len()).expect("idle cursors are counted in 32 bits");
                entry.insert(at);
                self.idle.push(row);
                old
            }
        }
    }

    /// Removes a cursor; the one that was there.
    pub fn swap_remove(&mut self, key: &CursorKey) -> Option<CursorState> {
        self.full.swap_remove(key).or_else(|| self.remove_idle(*key))
    }

    fn remove_idle(&mut self, key: CursorKey) -> Option<CursorState> {
        let rows = &self.idle;
        let same = |at: &u32| rows.get(*at as usize).is_some_and(|row| key_of(row) == key);
        let Ok(entry) = self.index.find_entry(hash_of(key), same) else { return None };
        let (at, _) = entry.remove();
        let last = u32::try_from(self.idle.len() - 1).ok()?;
        let row = self.idle.swap_remove(at as usize);
        if let Some(moved) = self.idle.get(at as usize) {
            // The topmost one has come down.
            if let Some(place) = self.index.find_mut(hash_of(key_of(moved)), |place| *place == last) {
                *place = at;
            }
        }
        Some(CursorState { next: next_of(&row), ..CursorState::default() })
    }

    /// Cursors that are numbers.
    #[must_use]
    pub fn idle_len(&self) -> usize {
        self.idle.len()
    }

    /// Cursors that know more.
    #[must_use]
    pub fn full_len(&self) -> usize {
        self.full.len()
    }

    /// All of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.idle.len() + self.full.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cursor at a position among those that are numbers.
    #[must_use]
    pub fn idle_at(&self, position: usize) -> Option<(CursorKey, CursorState)> {
        let row = self.idle.get(position)?;
        Some((key_of(row), CursorState { next: next_of(row), ..CursorState::default() }))
    }

    /// The cursor at a position among those that know more.
    #[must_use]
    pub fn full_at(&self, position: usize) -> Option<(CursorKey, CursorState)> {
        self.full.get_index(position).map(|(key, state)| (*key, *state))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::delta::Lease;
    use crate::types::{LeaseId, LogTime};

    fn state(next: u64, leased: bool) -> CursorState {
        let lease = leased.then_some(Lease { id: LeaseId(7), end: Offset(next), expires: LogTime(9) });
        CursorState { next: Offset(next), lease, ..CursorState::default() }
    }

    proptest! {
        /// The two tables together behave as one map would.
        #[test]
        fn both_tables_are_one_map(
            steps in proptest::collection::vec((0..6_u64, 0..4_u64, 0..50_u64, any::<bool>(), 0..4_u8), 1..300),
        ) {
            let mut cursors = Cursors::default();
            let mut model = hashbrown::HashMap::new();
            for (partition, group, next, leased, what) in steps {
                // One group whose number does not fit the small form.
                let group = if group == 3 { u64::MAX - 1 } else { group };
                let key = (PartitionId(partition << 40), GroupId(group));
                if what == 0 {
                    prop_assert_eq!(cursors.swap_remove(&key), model.remove(&key));
                } else {
                    prop_assert_eq!(cursors.insert(key, state(next, leased)), model.insert(key, state(next, leased)));
                }
                prop_assert_eq!(cursors.len(), model.len());
                for (key, state) in &model {
                    prop_assert_eq!(cursors.get(key), Some(*state));
                    prop_assert!(cursors.contains_key(key));
                }
                let walked = (0..cursors.idle_len()).map(|at| cursors.idle_at(at).unwrap());
                let walked = walked.chain((0..cursors.full_len()).map(|at| cursors.full_at(at).unwrap()));
                prop_assert_eq!(walked.filter(|(key, state)| model.get(key) == Some(state)).count(), model.len());
            }
        }
    }
}
