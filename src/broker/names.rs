//! The partitions of a queue by name.
//!
//! A million names would be a million strings more: the table holds a hash of each name and who has it, 12 bytes, and
//! asks the partition itself for its name.
//!
//! Must not: hold names.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::state::{Partition, Table};
use crate::types::PartitionId;

/// Hash of the name; the partition's number in halves. No padding.
type Row = [u32; 3];

/// The table.
#[derive(Debug, Default)]
pub struct Names {
    rows: HashTable<Row>,
    /// What clients do not know, so that they cannot choose names that collide.
    seed: u64,
}

fn id_of(&[_, low, high]: &Row) -> PartitionId {
    PartitionId(u64::from(high) << 32 | u64::from(low))
}

/// The partitions of a table that goes, one by one.
#[derive(Debug)]
pub(super) struct IntoValues(hashbrown::hash_table::IntoIter<Row>);

impl Iterator for IntoValues {
    type Item = PartitionId;

    fn next(&mut self) -> Option<PartitionId> {
        self.0.next().map(|row| id_of(&row))
    }
}

/// The table places rows by the high bits of 64 as well: the 32 that are kept are spread over them.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Names {
    /// No partitions yet.
    #[must_use]
    pub fn new(seed: u64) -> Names {
        Names { rows: HashTable::new(), seed }
    }

    fn hash(&self, name: &str) -> u32 {
        (xxh3_64_with_seed(name.as_bytes(), self.seed) >> 32) as u32
    }

    /// The partition of that name.
    #[must_use]
    pub fn get(&self, partitions: &Table<PartitionId, Partition>, name: &str) -> Option<PartitionId> {
        let hash = self.hash(name);
        let same = |row: &Row| {
            let [known, ..] = row;
            *known == hash && partitions.get(&id_of(row)).is_some_and(|partition| partition.name == name)
        };
        self.rows.find(spread(hash), same).map(id_of)
    }

    /// Adds a partition under a name that no other one has.
    pub fn insert(&mut self, name: &str, id: PartitionId) {
        let hash = self.hash(name);
        let (low, high) = ((id.0 & u64::from(u32::MAX)) as u32, (id.0 >> 32) as u32);
        self.rows.insert_unique(spread(hash), [hash, low, high], |[hash, ..]| spread(*hash));
    }

    /// Removes a partition.
    pub fn remove(&mut self, name: &str, id: PartitionId) {
        if let Ok(entry) = self.rows.find_entry(spread(self.hash(name)), |row| id_of(row) == id) {
            entry.remove();
        }
    }

    /// All partitions, in no order, one by one; the table goes.
    pub(super) fn into_values(self) -> IntoValues {
        IntoValues(self.rows.into_iter())
    }

    /// All partitions, in no order.
    pub fn values(&self) -> impl Iterator<Item = PartitionId> {
        self.rows.iter().map(id_of)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}
