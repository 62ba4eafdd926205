//! Transaction ids: which offsets of a partition carry an id.
//!
//! Each partition keeps a row per message, in offset order, so rows expire from the front. One table over all
//! partitions finds the newest row of an id; rows of the same id are linked downwards. A table entry may outlive
//! its row (expired, or its partition is gone): an entry counts only when the row it names still says so.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::types::{IdHash, LogTime, MessageId, Offset, PartitionId};

/// What is kept of one message. 48 bytes.
#[derive(Clone, Copy, Debug)]
struct Row {
    hash: [u64; 2],
    id: [u64; 2],
    logged: LogTime,
    /// Distance down to the previous row with the same hash; 0 for none.
    previous: u32,
}

fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn whole([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// The rows of one partition.
#[derive(Clone, Debug, Default)]
pub struct IdRows {
    base: Offset,
    rows: VecDeque<Row>,
}

/// One message's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRow {
    /// Its offset.
    pub offset: Offset,
    /// Hash of its transaction id.
    pub hash: IdHash,
    /// Its message id.
    pub id: MessageId,
    /// Log time of its append.
    pub logged: LogTime,
}

impl IdRows {
    /// The row of an offset, if it is kept.
    #[must_use]
    pub fn get(&self, offset: Offset) -> Option<IdRow> {
        let row = self.raw(offset)?;
        Some(IdRow {
            offset,
            hash: IdHash(whole(row.hash)),
            id: MessageId(whole(row.id)),
            logged: row.logged,
        })
    }

    /// The oldest row that is kept.
    #[must_use]
    pub fn oldest(&self) -> Option<IdRow> {
        self.get(self.base)
    }

    /// First offset whose row is kept: the hash floor.
    #[must_use]
    pub fn floor(&self) -> Offset {
        self.base
    }

    /// Rows kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn raw(&self, offset: Offset) -> Option<&Row> {
        let index = offset.0.checked_sub(self.base.0)?;
        self.rows.get(usize::try_from(index).ok()?)
    }

    fn end(&self) -> Offset {
        Offset(self.base.0 + self.rows.len() as u64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    fingerprint: u64,
    partition: PartitionId,
    offset: Offset,
}

/// The table over all partitions.
#[derive(Debug, Default)]
pub struct Ids {
    table: HashTable<Slot>,
}

fn fingerprint(partition: PartitionId, hash: IdHash) -> u64 {
    (hash.0 as u64) ^ partition.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Ids {
    /// Adds the row of a message. Offsets of one partition come in ascending order; a gap drops what lies below it.
    pub fn insert(
        &mut self,
        partition: PartitionId,
        rows: &mut IdRows,
        offset: Offset,
        hash: IdHash,
        id: MessageId,
        logged: LogTime,
    ) {
        if rows.end() != offset {
            rows.rows.clear();
            rows.base = offset;
        }
        let print = fingerprint(partition, hash);
        let mut previous = 0;
        let known = self.table.find_mut(print, |slot| {
            slot.fingerprint == print
                && slot.partition == partition
                && rows.raw(slot.offset).is_some_and(|row| row.hash == halves(hash.0))
        });
        if let Some(slot) = known {
            previous = u32::try_from(offset.0 - slot.offset.0).unwrap_or(0);
            slot.offset = offset;
        } else {
            let slot = Slot { fingerprint: print, partition, offset };
            self.table.insert_unique(print, slot, |slot| slot.fingerprint);
        }
        rows.rows.push_back(Row { hash: halves(hash.0), id: halves(id.0), logged, previous });
    }

    /// The rows of an id in a partition, newest first.
    pub fn find<'a>(
        &self,
        partition: PartitionId,
        rows: &'a IdRows,
        hash: IdHash,
    ) -> impl Iterator<Item = IdRow> + use<'a> {
        let print = fingerprint(partition, hash);
        let newest = self.table.find(print, |slot| {
            slot.fingerprint == print
                && slot.partition == partition
                && rows.raw(slot.offset).is_some_and(|row| row.hash == halves(hash.0))
        });
        let mut next = newest.map(|slot| slot.offset);
        std::iter::from_fn(move || {
            let offset = next?;
            let row = rows.raw(offset)?;
            next = match row.previous {
                0 => None,
                down => offset.0.checked_sub(u64::from(down)).map(Offset),
            };
            rows.get(offset)
        })
    }

    /// Drops the oldest row of a partition.
    pub fn drop_oldest(&mut self, partition: PartitionId, rows: &mut IdRows) {
        let Some(row) = rows.rows.front() else { return };
        let print = fingerprint(partition, IdHash(whole(row.hash)));
        let base = rows.base;
        let entry = self.table.find_entry(print, |slot| {
            slot.fingerprint == print && slot.partition == partition && slot.offset == base
        });
        if let Ok(entry) = entry {
            entry.remove();
        }
        rows.rows.pop_front();
        rows.base = base.next();
    }

    /// Drops every row of a partition.
    pub fn drop_all(&mut self, partition: PartitionId, rows: &mut IdRows) {
        while !rows.is_empty() {
            self.drop_oldest(partition, rows);
        }
    }
}
