//! The machine behind a simulated disk: names, space, and what goes wrong.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::chance::Chance;
use super::content::{Content, Inode};
use super::{error, lock};
use crate::io::BLOCK_BYTES;

/// How often what fails: once in so many operations; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads.
    pub read_one_in: u64,
    /// Writes.
    pub write_one_in: u64,
    /// Syncs of files and directories.
    pub sync_one_in: u64,
    /// Writes that take a part only, or are interrupted.
    pub short_one_in: u64,
    /// New files whose blocks show what an older file left.
    pub stale_one_in: u64,
    /// Bytes of the disk; 0 is without end.
    pub capacity_bytes: u64,
}

impl Faults {
    /// Nothing fails, and whatever is written is whole.
    #[must_use]
    pub fn none() -> Faults {
        Faults::default()
    }

    /// What any disk does: short writes, interruptions, stale blocks. Nothing of it is an error.
    #[must_use]
    pub fn crashes_only() -> Faults {
        Faults { short_one_in: 20, stale_one_in: 3, ..Faults::default() }
    }

    /// Everything fails now and then.
    #[must_use]
    pub fn storms() -> Faults {
        Faults { read_one_in: 300, write_one_in: 200, sync_one_in: 200, ..Faults::crashes_only() }
    }
}

/// What died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The machine: what was not synced is lost, kept or torn.
    Power,
    /// The process: what was written is there.
    Kill,
}

/// What a disk does to bytes that were durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One bit of some block turns.
    FlipBit,
    /// Some block is zeros.
    ZeroBlock,
    /// Some block holds what belongs to another one: a write went astray.
    Misdirect,
}

/// What was really done, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the fault of that name in the fault model")]
pub struct Seen {
    pub lost_blocks: u64,
    pub kept_blocks: u64,
    pub torn_blocks: u64,
    pub lost_names: u64,
    pub kept_names: u64,
    pub failed_reads: u64,
    pub failed_writes: u64,
    pub failed_syncs: u64,
    pub short_writes: u64,
    pub interrupted_writes: u64,
    pub no_space: u64,
    pub stale_files: u64,
    pub flipped_bits: u64,
    pub zeroed_blocks: u64,
    pub misdirected_writes: u64,
    pub reordered: u64,
    pub partial_in_flight: u64,
    pub crashes: u64,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) chance: Chance,
    pub(super) faults: Faults,
    /// Names as the running system shows them.
    pub(super) names: BTreeMap<PathBuf, Inode>,
    /// Names as a power cut may show them.
    durable: BTreeMap<PathBuf, Inode>,
    /// Number of the process.
    pub(super) life: u64,
    pub(super) operations: u64,
    pub(super) dies_at: Option<u64>,
    pub(super) crashed: bool,
    pub(super) seen: Seen,
    pub(super) violations: Vec<String>,
    /// A block that some file left behind.
    leftover: Option<Arc<[u8]>>,
}

fn injected(what: &str) -> io::Error {
    io::Error::other(format!("{what} failed (simulated)"))
}

impl Machine {
    pub(super) fn new(seed: u64, faults: Faults) -> Machine {
        Machine {
            chance: Chance::new(seed, 3),
            faults,
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            life: 0,
            operations: 0,
            dies_at: None,
            crashed: false,
            seen: Seen::default(),
            violations: Vec::new(),
            leftover: None,
        }
    }

    fn is_alive(&self, life: u64) -> bool {
        !self.crashed && life == self.life
    }

    /// Counts an operation of a process.
    pub(super) fn operate(&mut self, life: u64) -> io::Result<()> {
        self.operations += 1;
        if !self.crashed && self.dies_at.is_some_and(|at| self.operations > at) {
            self.crashed = true;
            self.seen.crashes += 1;
        }
        if self.is_alive(life) { Ok(()) } else { Err(io::Error::other("the machine stopped (simulated)")) }
    }

    pub(super) fn fails_read(&mut self) -> io::Result<()> {
        if self.chance.one_in(self.faults.read_one_in) {
            self.seen.failed_reads += 1;
            return Err(injected("a read"));
        }
        Ok(())
    }

    pub(super) fn fails_sync(&mut self) -> io::Result<()> {
        if self.chance.one_in(self.faults.sync_one_in) {
            self.seen.failed_syncs += 1;
            return Err(injected("a sync"));
        }
        Ok(())
    }

    /// Bytes that can still be written for the first time.
    pub(super) fn free_bytes(&self) -> u64 {
        if self.faults.capacity_bytes == 0 {
            return 1 << 40;
        }
        self.faults.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// Bytes that were ever written in the files that are there.
    pub(super) fn used_bytes(&self) -> u64 {
        let used: usize = self.names.values().map(|inode| lock(inode).written).sum();
        (used * BLOCK_BYTES) as u64
    }

    pub(super) fn create(&mut self, path: &Path) -> Inode {
        let mut content = Content::default();
        if self.leftover.is_some() && self.chance.one_in(self.faults.stale_one_in) {
            self.seen.stale_files += 1;
            content.stale.clone_from(&self.leftover);
        }
        let inode: Inode = Arc::new(std::sync::Mutex::new(content));
        self.names.insert(path.to_owned(), Arc::clone(&inode));
        inode
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if self.names.contains_key(to) {
            return Err(error(io::ErrorKind::AlreadyExists, to));
        }
        let inode = self.names.remove(from).ok_or_else(|| error(io::ErrorKind::NotFound, from))?;
        let whole = lock(&inode).bytes() as u64;
        if !lock(&inode).is_durable(0, whole) {
            self.violations.push(format!("{} got its name before its content was durable", to.display()));
        }
        self.names.insert(to.to_owned(), inode);
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let Machine { names, durable, .. } = self;
        durable.retain(|path, _| path.parent() != Some(dir));
        let inside = names.iter().filter(|(path, _)| path.parent() == Some(dir));
        durable.extend(inside.map(|(path, inode)| (path.clone(), Arc::clone(inode))));
    }

    /// One write as the kernel answers it: bytes taken, or an error.
    pub(super) fn write_once(
        &mut self,
        life: u64,
        inode: &Inode,
        position: u64,
        data: &[u8],
    ) -> Result<usize, Errno> {
        let alive = self.is_alive(life);
        if self.operate(life).is_err() {
            if alive {
                // The machine stops in the middle of it.
                self.take_part(inode, position, data);
            }
            return Err(Errno::IO);
        }
        if self.chance.one_in(self.faults.write_one_in) {
            self.seen.failed_writes += 1;
            self.take_part(inode, position, data);
            return Err(Errno::IO);
        }
        if self.chance.one_in(self.faults.short_one_in) {
            if self.chance.one_in(2) {
                self.seen.interrupted_writes += 1;
                return Err(if self.chance.one_in(2) { Errno::INTR } else { Errno::AGAIN });
            }
            self.seen.short_writes += 1;
            let blocks = self.take_part(inode, position, data);
            // The kernel may say that it took some bytes of the next block; it is written again.
            let more = self.chance.index(BLOCK_BYTES);
            return Ok((blocks * BLOCK_BYTES + more).min(data.len().saturating_sub(1)));
        }
        let fresh = lock(inode).fresh(position, data.len()) * BLOCK_BYTES;
        if fresh as u64 > self.free_bytes() {
            self.seen.no_space += 1;
            return Err(Errno::NOSPC);
        }
        lock(inode).write(position, data);
        Ok(data.len())
    }

    /// Some blocks from the front of a write; how many.
    fn take_part(&mut self, inode: &Inode, position: u64, data: &[u8]) -> usize {
        let blocks = self.chance.index(data.len().div_ceil(BLOCK_BYTES));
        lock(inode).write(position, data.get(..blocks * BLOCK_BYTES).unwrap_or_default());
        blocks
    }

    /// A blocking write, finished as the real one finishes it.
    pub(super) fn write(&mut self, life: u64, inode: &Inode, position: u64, data: &[u8]) -> io::Result<()> {
        let mut from = 0;
        // Far more than the real back ends grant, so that only they give up.
        for _ in 0..10_000 {
            let rest = data.get(from..).unwrap_or_default();
            match self.write_once(life, inode, position + from as u64, rest) {
                Ok(bytes) if from + bytes >= data.len() => return Ok(()),
                Ok(bytes) => from += bytes - bytes % BLOCK_BYTES,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(io::Error::from(errno)),
            }
        }
        Err(injected("a write without progress"))
    }

    pub(super) fn sync(&mut self, life: u64, inode: &Inode) -> io::Result<()> {
        self.operate(life)?;
        if let Err(error) = self.fails_sync() {
            // Marked clean: no later sync writes them.
            let mut content = lock(inode);
            let unsynced = std::mem::take(&mut content.unsynced);
            content.doubtful.extend(unsynced);
            return Err(error);
        }
        lock(inode).sync();
        Ok(())
    }

    pub(super) fn is_durable(&self, path: &Path, position: u64, bytes: u64) -> Result<(), String> {
        let place = || format!("{} bytes {position} to {}", path.display(), position + bytes);
        let inode = self.names.get(path).ok_or_else(|| format!("{}: no such file", path.display()))?;
        let named = self.durable.get(path).is_some_and(|durable| Arc::ptr_eq(durable, inode));
        if !named {
            return Err(format!("{}: its name is not durable", place()));
        }
        if lock(inode).is_durable(position, bytes) { Ok(()) } else { Err(format!("{}: not synced", place())) }
    }

    /// Decides block by block what becomes of what was not synced. If the process alone died, that is what a failed sync
    /// left: files are read from the medium (direct I/O, or pages dropped when they are opened), so the next process
    /// meets what the medium has.
    fn tear(&mut self, inode: &Inode, how: Crash) {
        let mut content = lock(inode);
        let mut pending = std::mem::take(&mut content.doubtful);
        if how == Crash::Power {
            pending.extend(std::mem::take(&mut content.unsynced));
        }
        for (at, block) in pending {
            match self.chance.below(3) {
                0 => {
                    self.seen.lost_blocks += 1;
                    content.lose(at);
                }
                1 => {
                    self.seen.kept_blocks += 1;
                    content.keep(at, &block, block.len());
                }
                _ => {
                    self.seen.torn_blocks += 1;
                    let bytes = self.chance.index(block.len());
                    content.keep(at, &block, bytes);
                }
            }
        }
    }

    pub(super) fn settle(&mut self, how: Crash) {
        if how == Crash::Power {
            let mut names = BTreeMap::new();
            let all: Vec<PathBuf> = self.names.keys().chain(self.durable.keys()).cloned().collect();
            for path in all {
                let (now, before) = (self.names.get(&path), self.durable.get(&path));
                let same = match (now, before) {
                    (Some(now), Some(before)) => Arc::ptr_eq(now, before),
                    (None, None) => true,
                    _ => false,
                };
                let keep = same || self.chance.one_in(2);
                if !same {
                    *(if keep { &mut self.seen.kept_names } else { &mut self.seen.lost_names }) += 1;
                }
                if let Some(inode) = if keep { now } else { before } {
                    names.insert(path, Arc::clone(inode));
                }
            }
            self.durable = names.clone();
            self.names = names;
        }
        let inodes: Vec<Inode> = self.names.values().cloned().collect();
        for inode in &inodes {
            self.tear(inode, how);
        }
        self.leftover =
            self.names.values().find_map(|inode| lock(inode).any_block()).or(self.leftover.take());
        self.life += 1;
        self.crashed = false;
        self.dies_at = None;
    }

    pub(super) fn damage(&mut self, path: &Path, damage: Damage) -> bool {
        let Some(inode) = self.names.get(path).cloned() else { return false };
        let mut content = lock(&inode);
        let blocks = content.durable_blocks();
        let Some(at) = blocks.get(self.chance.index(blocks.len())).copied() else { return false };
        let Some(mut block) = content.durable_block(at) else { return false };
        match damage {
            Damage::FlipBit => {
                self.seen.flipped_bits += 1;
                let (byte, bit) = (self.chance.index(block.len()), self.chance.below(8));
                if let Some(byte) = block.get_mut(byte) {
                    *byte ^= 1 << bit;
                }
            }
            Damage::ZeroBlock => {
                self.seen.zeroed_blocks += 1;
                block.fill(0);
            }
            Damage::Misdirect => {
                let other = blocks.get(self.chance.index(blocks.len())).copied().unwrap_or(at);
                let Some(stranger) = content.durable_block(other).filter(|_| other != at) else {
                    return false;
                };
                self.seen.misdirected_writes += 1;
                block = stranger;
            }
        }
        content.set_durable(at, block);
        true
    }
}
