//! The rows of one segment in memory: its runs and the ids of its messages, in commit order.
//!
//! Must not: be changed once the segment is sealed; whoever builds the index file reads it meanwhile.

use hashbrown::HashTable;

use super::runs::{Place, Run};
use super::{IdHit, Ids};
use crate::format::run::{RunForm, RunHeader};
use crate::types::{FileNumber, IdHash, LogTime, MessageId, Offset, PartitionId, WallTime};

/// One run. 56 bytes.
#[derive(Clone, Copy, Debug)]
struct Row {
    partition: PartitionId,
    base: Offset,
    created: WallTime,
    logged: LogTime,
    count: u32,
    bytes: u32,
    /// Byte of its header in the segment; segments are smaller than 4 GiB.
    position: u32,
    /// Row of its first id.
    first_id: u32,
    /// Whether it has ids only.
    bare: bool,
}

/// One message. 40 bytes.
#[derive(Clone, Copy, Debug)]
struct Id {
    hash: [u64; 2],
    id: [u64; 2],
    run: u32,
    /// Row of the one before it with the same partition and hash, plus 1; 0 for none.
    previous: u32,
}

fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn whole([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

fn fingerprint(partition: PartitionId, hash: [u64; 2]) -> u64 {
    let [low, _] = hash;
    low ^ partition.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Number of a row; rows are messages of one segment, which has fewer than 2³² bytes.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or_else(|_| unreachable!("a segment holds fewer than 2^32 messages"))
}

/// The rows.
#[derive(Debug, Default)]
pub struct SegmentRows {
    runs: Vec<Row>,
    ids: Vec<Id>,
    /// The newest row of each partition and hash.
    table: HashTable<u32>,
    /// Partitions with readable messages here.
    partitions: Vec<PartitionId>,
}

impl SegmentRows {
    /// Rows with room for so many ids, so that growing seldom interrupts whoever appends.
    #[must_use]
    pub fn with_capacity(ids: usize) -> SegmentRows {
        SegmentRows {
            runs: Vec::new(),
            ids: Vec::with_capacity(ids),
            table: HashTable::with_capacity(ids),
            partitions: Vec::new(),
        }
    }

    /// Adds a run with the ids of its messages. The row's number.
    pub(super) fn push(&mut self, run: &RunHeader, ids: &[(IdHash, MessageId)], position: u64) -> u32 {
        let row = number(self.runs.len());
        self.runs.push(Row {
            partition: run.partition,
            base: run.base,
            created: run.created,
            logged: run.logged,
            count: run.count,
            bytes: run.bytes,
            position: u32::try_from(position).unwrap_or_else(|_| unreachable!("a segment is below 4 GiB")),
            first_id: number(self.ids.len()),
            bare: run.form == RunForm::Bare,
        });
        for (hash, id) in ids {
            let hash = halves(hash.0);
            let at = number(self.ids.len());
            self.ids.push(Id { hash, id: halves(id.0), run: row, previous: 0 });
            let print = fingerprint(run.partition, hash);
            let (rows, messages) = (&self.runs, &self.ids);
            let same = |other: &u32| {
                messages.get(*other as usize).is_some_and(|other| {
                    other.hash == hash
                        && rows.get(other.run as usize).is_some_and(|row| row.partition == run.partition)
                })
            };
            let previous = match self.table.find_mut(print, same) {
                Some(newest) => std::mem::replace(newest, at) + 1,
                None => {
                    self.table.insert_unique(print, at, |other| {
                        messages.get(*other as usize).map_or(0, |other| {
                            let row = rows.get(other.run as usize);
                            fingerprint(row.map_or(PartitionId(0), |row| row.partition), other.hash)
                        })
                    });
                    0
                }
            };
            if let Some(id) = self.ids.last_mut() {
                id.previous = previous;
            }
        }
        row
    }

    /// Notes a partition that has a span here; the same one may come often in a row.
    pub(super) fn note_partition(&mut self, partition: PartitionId) {
        if self.partitions.last() != Some(&partition) {
            self.partitions.push(partition);
        }
    }

    /// Partitions with spans here, some more than once.
    #[must_use]
    pub fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    /// A run.
    #[must_use]
    pub fn run(&self, row: u32, segment: FileNumber) -> Option<Run> {
        let row = self.runs.get(row as usize)?;
        Some(Run {
            base: row.base,
            count: row.count,
            bytes: row.bytes,
            created: row.created,
            logged: row.logged,
            place: Place { segment, position: u64::from(row.position) },
        })
    }

    /// Appends the messages of a partition with this id, newest first.
    pub fn find(&self, partition: PartitionId, hash: IdHash, hits: &mut Ids) {
        let hash = halves(hash.0);
        let mut next = self
            .table
            .find(fingerprint(partition, hash), |row| {
                self.ids.get(*row as usize).is_some_and(|id| {
                    id.hash == hash
                        && self.runs.get(id.run as usize).is_some_and(|run| run.partition == partition)
                })
            })
            .copied();
        while let Some(row) = next
            && let Some(id) = self.ids.get(row as usize)
            && let Some(run) = self.runs.get(id.run as usize)
        {
            hits.push(IdHit {
                offset: Offset(run.base.0 + u64::from(row - run.first_id)),
                id: MessageId(whole(id.id)),
                logged: run.logged,
            });
            next = id.previous.checked_sub(1);
        }
    }

    /// Messages, those without a payload included.
    #[must_use]
    pub fn ids(&self) -> usize {
        self.ids.len()
    }

    /// Log time of the newest append.
    #[must_use]
    pub fn last_logged(&self) -> LogTime {
        self.runs.iter().map(|run| run.logged).max().unwrap_or(LogTime(0))
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let runs = self.runs.len() * size_of::<Row>();
        let ids = self.ids.len() * (size_of::<Id>() + 8);
        (runs + ids + self.partitions.len() * 40) as u64
    }

    /// Every run in commit order, with the ids of its messages: what an index file is built from. Each is the
    /// partition, the run, whether it has ids only, and the ids.
    pub fn each(
        &self,
        segment: FileNumber,
        mut take: impl FnMut(PartitionId, Run, bool, &mut dyn Iterator<Item = (IdHash, MessageId)>),
    ) {
        for (index, row) in self.runs.iter().enumerate() {
            let Some(run) = self.run(number(index), segment) else { continue };
            let from = row.first_id as usize;
            let to = self.runs.get(index + 1).map_or(self.ids.len(), |next| next.first_id as usize);
            let ids = self.ids.get(from..to).unwrap_or_default();
            let mut ids = ids.iter().map(|id| (IdHash(whole(id.hash)), MessageId(whole(id.id))));
            take(row.partition, run, row.bare, &mut ids);
        }
    }
}
