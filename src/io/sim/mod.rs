//! A simulated disk: seeded, in memory, one thread.
//!
//! Fault model: what may happen, and what the code above must make of it.
//! - **Unsynced writes.** A write that no sync covered is lost, kept or torn at a power cut, block by block and in any
//!   order; a torn block keeps a prefix of any length in bytes. When only the process dies, every write that finished is
//!   there. The end of the log must be found, and nothing that was answered may be missing.
//! - **Writes in flight** finish in any order, after any time. A crash in the middle leaves some of their blocks.
//! - **Short writes, interruptions.** A write takes a part, or is answered EINTR or EAGAIN; the sync linked behind it is
//!   cancelled. The state machine that both real back ends share (`progress`) has to finish it before it counts.
//! - **Names.** Creating, renaming and removing counts after `sync_dir` only: at a power cut each name of a directory
//!   that was not synced is what it was or what it became. A start must find either.
//! - **Errors.** Reads, writes and syncs fail. A failed write may leave a part. The bytes of a failed sync are marked
//!   clean: the process that wrote them sees them, later syncs succeed without them, and the next process meets what the
//!   medium has of them. Storage must stop at the first failure and claim nothing after it.
//! - **No space.** The disk has a size; what was written once keeps its place. Pushes must be refused, everything else
//!   must go on, and a start must need nothing.
//! - **Stale content.** The blocks of a new file that nobody wrote, and those that a power cut took, show what an older
//!   file left there. Frames of another file, or of an earlier life of this one, must prove nothing.
//! - **Misdirected writes, bit rot.** `Damage` does to durable bytes what a disk does to them on a bad day. It must be
//!   refused or isolated by name, or be harmless; never silent.
//! - **The machine stops at any operation**, one of a start included; that one and all later ones fail.
//!
//! Invariants: the same seed and the same calls give the same bytes. Handles of an earlier process only fail.
//!
//! Must not: use the operating system's files, or the time.

mod chance;
mod content;
mod machine;
mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{AlignedBuf, Entry, Fs, FsFile, ManualClock, OpenMode, ReadAt};
use content::Inode;
use machine::Machine;

pub use chance::Chance;
pub use machine::{Crash, Damage, Faults, Seen};
pub use ring::SimRing;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn error(kind: io::ErrorKind, path: &Path) -> io::Error {
    io::Error::new(kind, path.display().to_string())
}

/// The machine's disk; it survives its processes.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Machine>>);

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(Machine::new(seed, faults))))
    }

    /// The file system as the present process sees it.
    #[must_use]
    pub fn fs(&self) -> SimFs {
        SimFs { life: lock(&self.0).life, machine: Arc::clone(&self.0) }
    }

    /// Completion-style operations of the present process; waiting moves the clock.
    ///
    /// # Panics
    /// No file descriptor is left for its waker.
    #[must_use]
    pub fn ring(&self, clock: ManualClock) -> SimRing {
        let life = lock(&self.0).life;
        SimRing::new(Arc::clone(&self.0), life, clock).expect("a descriptor for the waker")
    }

    /// What fails from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.0).faults = faults;
    }

    /// The machine stops after so many operations; `u64::MAX`: it does not.
    pub fn crash_after(&self, operations: u64) {
        let mut machine = lock(&self.0);
        machine.dies_at = machine.operations.checked_add(operations);
    }

    /// Whether it stopped.
    #[must_use]
    pub fn crashed(&self) -> bool {
        lock(&self.0).crashed
    }

    /// It stops.
    pub fn crash(&self) {
        lock(&self.0).crashed = true;
    }

    /// Decides what was not durable, and lets another process use the disk.
    pub fn settle(&self, how: Crash) {
        lock(&self.0).settle(how);
    }

    /// Does damage to durable bytes. Whether there was anything to damage.
    pub fn damage(&self, path: &Path, damage: Damage) -> bool {
        lock(&self.0).damage(path, damage)
    }

    /// Bytes that the files on it take.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        lock(&self.0).used_bytes()
    }

    /// Operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        lock(&self.0).operations
    }

    /// What was really done to whom, so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        lock(&self.0).seen
    }

    /// Every file, in order.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        lock(&self.0).names.keys().cloned().collect()
    }

    /// The bytes of a file, written ones included.
    #[must_use]
    pub fn contents(&self, path: &Path) -> Option<Bytes> {
        let machine = lock(&self.0);
        let content = lock(machine.names.get(path)?);
        content.read(0, content.bytes())
    }

    /// Whether a stretch of a file, its name and what it holds, survives a power cut at this instant as it is.
    ///
    /// # Errors
    /// Why not.
    pub fn is_durable(&self, path: &Path, position: u64, bytes: u64) -> Result<(), String> {
        lock(&self.0).is_durable(path, position, bytes)
    }

    /// Files that got their final name before their content was durable.
    #[must_use]
    pub fn tracker_violations(&self) -> Vec<String> {
        lock(&self.0).violations.clone()
    }

    /// Hash of names and bytes, written ones included.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let machine = lock(&self.0);
        machine.names.iter().fold(0, |sum, (path, inode)| {
            let content = lock(inode);
            let bytes = content.read(0, content.bytes()).unwrap_or_default();
            xxh3_64_with_seed(path.as_os_str().as_encoded_bytes(), sum ^ xxh3_64(&bytes))
        })
    }
}

/// The file system of one process.
#[derive(Clone, Debug)]
pub struct SimFs {
    machine: Arc<Mutex<Machine>>,
    life: u64,
}

impl SimFs {
    fn operate(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = lock(&self.machine);
        machine.operate(self.life)?;
        Ok(machine)
    }
}

impl Fs for SimFs {
    type File = SimFile;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<SimFile> {
        let mut machine = self.operate()?;
        let inode = match (mode, machine.names.get(path)) {
            (OpenMode::Create, Some(_)) => return Err(error(io::ErrorKind::AlreadyExists, path)),
            (OpenMode::Create, None) => machine.create(path),
            (_, Some(inode)) => Arc::clone(inode),
            (_, None) => return Err(error(io::ErrorKind::NotFound, path)),
        };
        Ok(SimFile { machine: Arc::clone(&self.machine), life: self.life, path: path.to_owned(), inode })
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        self.operate().map(drop)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let machine = self.operate()?;
        let inside = machine.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        let entries = inside.map(|(path, inode)| Entry {
            name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            bytes: lock(inode).bytes() as u64,
            directory: false,
        });
        Ok(entries.collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate()?.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut machine = self.operate()?;
        machine.names.remove(path).map(drop).ok_or_else(|| error(io::ErrorKind::NotFound, path))
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        let machine = self.operate()?;
        if machine.names.contains_key(path) { Ok(1) } else { Err(error(io::ErrorKind::NotFound, path)) }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut machine = self.operate()?;
        machine.fails_sync()?;
        machine.sync_dir(dir);
        Ok(())
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        self.operate().map(|machine| machine.free_bytes())
    }
}

/// An open file of one process.
#[derive(Debug)]
pub struct SimFile {
    machine: Arc<Mutex<Machine>>,
    life: u64,
    path: PathBuf,
    inode: Inode,
}

impl ReadAt for SimFile {
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        let mut machine = lock(&self.machine);
        machine.operate(self.life)?;
        machine.fails_read()?;
        lock(&self.inode).read(position, bytes).ok_or_else(|| error(io::ErrorKind::UnexpectedEof, &self.path))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl FsFile for SimFile {
    fn bytes(&self) -> io::Result<u64> {
        lock(&self.machine).operate(self.life)?;
        Ok(lock(&self.inode).bytes() as u64)
    }

    fn write_at(&self, position: u64, data: &AlignedBuf) -> io::Result<()> {
        lock(&self.machine).write(self.life, &self.inode, position, data.as_slice())
    }

    fn sync_data(&self) -> io::Result<()> {
        lock(&self.machine).sync(self.life, &self.inode)
    }
}
