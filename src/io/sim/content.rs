//! The bytes of one file: what is durable, and what was written since.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::io::BLOCK_BYTES;

/// A file, whatever its names are.
pub(super) type Inode = Arc<Mutex<Content>>;

/// Blocks of zeros are not stored.
#[derive(Debug, Default)]
pub(super) struct Content {
    bytes: usize,
    durable: BTreeMap<u64, Arc<[u8]>>,
    /// Blocks that were written and not synced, by position.
    pub(super) unsynced: BTreeMap<u64, Arc<[u8]>>,
    /// Blocks that a failed sync marked clean: the running system shows them, a power cut may take them.
    pub(super) doubtful: BTreeMap<u64, Arc<[u8]>>,
    /// What blocks show that were never written: what an older file left there.
    pub(super) stale: Option<Arc<[u8]>>,
    /// Blocks that were written at least once.
    pub(super) written: usize,
}

pub(super) fn index(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

impl Content {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many of these blocks were never written: they take new space.
    pub(super) fn fresh(&self, position: u64, bytes: usize) -> usize {
        let end = position + bytes as u64;
        let there = (position..end).step_by(BLOCK_BYTES).filter(|at| self.is_written(*at)).count();
        bytes.div_ceil(BLOCK_BYTES) - there
    }

    fn is_written(&self, at: u64) -> bool {
        self.durable.contains_key(&at) || self.unsynced.contains_key(&at) || self.doubtful.contains_key(&at)
    }

    pub(super) fn write(&mut self, position: u64, data: &[u8]) {
        self.written += self.fresh(position, data.len());
        for (at, block) in (position..).step_by(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES)) {
            self.unsynced.insert(at, block.into());
        }
        self.bytes = self.bytes.max(index(position) + data.len());
    }

    /// Makes the first bytes of a block durable; the rest of it stays what it was.
    pub(super) fn keep(&mut self, at: u64, block: &Arc<[u8]>, bytes: usize) {
        if bytes >= block.len() {
            self.durable.insert(at, Arc::clone(block));
            return;
        }
        let mut torn =
            self.durable.get(&at).map_or_else(|| self.unwritten().to_vec(), |known| known.to_vec());
        torn.resize(block.len().max(torn.len()), 0);
        for (cell, byte) in torn.iter_mut().zip(block.iter().take(bytes)) {
            *cell = *byte;
        }
        self.durable.insert(at, torn.into());
    }

    /// What a block shows that nobody wrote.
    fn unwritten(&self) -> Arc<[u8]> {
        self.stale.clone().unwrap_or_else(|| [0_u8; BLOCK_BYTES].as_slice().into())
    }

    /// A block that a power cut took shows what was there before.
    pub(super) fn lose(&mut self, at: u64) {
        if !self.durable.contains_key(&at) {
            let unwritten = self.unwritten();
            self.durable.insert(at, unwritten);
        }
    }

    pub(super) fn sync(&mut self) {
        for (at, block) in std::mem::take(&mut self.unsynced) {
            self.doubtful.remove(&at);
            self.durable.insert(at, block);
        }
    }

    /// Whether all of a stretch is durable.
    pub(super) fn is_durable(&self, position: u64, bytes: u64) -> bool {
        let first = position - position % BLOCK_BYTES as u64;
        let pending =
            |blocks: &BTreeMap<u64, Arc<[u8]>>| blocks.range(first..position + bytes).next().is_some();
        !pending(&self.unsynced) && !pending(&self.doubtful)
    }

    /// One block as the running system shows it.
    fn block(&self, at: u64) -> Option<&Arc<[u8]>> {
        self.unsynced.get(&at).or_else(|| self.doubtful.get(&at)).or_else(|| self.durable.get(&at))
    }

    pub(super) fn read(&self, position: u64, bytes: usize) -> Option<Bytes> {
        let end = index(position).checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        let mut data = vec![0; bytes];
        let first = position - position % BLOCK_BYTES as u64;
        for at in (first..end as u64).step_by(BLOCK_BYTES) {
            let Some(block) = self.block(at).or(self.stale.as_ref()) else { continue };
            let (from, to) = (index(at).max(index(position)), (index(at) + block.len()).min(end));
            if from < to {
                let source = block.get(from - index(at)..to - index(at))?;
                data.get_mut(from - index(position)..to - index(position))?.copy_from_slice(source);
            }
        }
        Some(Bytes::from(data))
    }

    /// Blocks that hold something durable, in order.
    pub(super) fn durable_blocks(&self) -> Vec<u64> {
        self.durable.keys().copied().collect()
    }

    /// A durable block, to be changed.
    pub(super) fn durable_block(&self, at: u64) -> Option<Vec<u8>> {
        self.durable.get(&at).map(|block| block.to_vec())
    }

    pub(super) fn set_durable(&mut self, at: u64, block: Vec<u8>) {
        self.durable.insert(at, block.into());
    }

    /// Any block, for other files to show later.
    pub(super) fn any_block(&self) -> Option<Arc<[u8]>> {
        self.durable
            .values()
            .find(|block| block.len() == BLOCK_BYTES && block.iter().any(|byte| *byte != 0))
            .cloned()
    }
}
