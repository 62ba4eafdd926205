//! The only place that touches a file, a clock, randomness or a thread.
//!
//! Purpose: one narrow seam between the daemon and the operating system, so that the code above it runs
//! unchanged on io_uring (`uring`), on plain threads (`threads`) and, later, on a simulated disk (`sim`).
//!
//! Invariants:
//! - Buffers are owned by an operation until its completion was reported; a caller that goes away cannot free one.
//! - `Ring::write_sync` completes successfully only when every byte was written *and* a data sync issued after
//!   the last byte has succeeded. Short writes, EINTR and EAGAIN are finished inside; a failed write or sync is
//!   reported once and never retried.
//! - A file's name is durable only after `Fs::sync_dir` of its directory.
//!
//! Must not: know what the bytes mean.

mod backend;
mod buffer;
mod clock;
#[cfg(test)]
mod conformance;
mod fs;
mod lock;
mod pool;
mod progress;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod spawn;
pub mod threads;
pub mod uring;
mod wake;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use backend::{AnyRing, Backend, SyncMode, UnknownBackend, open_ring};
pub use buffer::{AlignedBuf, shared_bytes};
pub use clock::{Clock, IdSource, ManualClock};
pub use fs::{DirectFile, OsFs};
pub use lock::LockGuard;
pub use spawn::{create_data_dir, raise_file_limit, spawn};
pub use wake::Waker;

pub use crate::types::BLOCK_BYTES;

/// How `Fs::open` opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing file, reads only.
    Read,
    /// Existing file, reads only, through the page cache: for what is read again and again and is not needed to be
    /// right.
    Cached,
    /// Existing file, reads and writes.
    Write,
    /// New file, reads and writes; an existing one is an error (`AlreadyExists`).
    Create,
}

/// One directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name without the directory. Names that are not UTF-8 are reported lossily.
    pub name: String,
    /// Length in bytes; 0 for directories.
    pub bytes: u64,
    /// Whether it is a directory.
    pub directory: bool,
}

/// Something that can be read by position from any thread: what a pop's answer holds while it is being written.
pub trait ReadAt: Send + Sync + 'static {
    /// Reads exactly `bytes` bytes at `position`; `UnexpectedEof` if the file ends before. Any alignment.
    /// Reads the medium where the file system allows it (direct I/O), never a page that a failed sync left behind.
    ///
    /// # Errors
    /// What the operating system said, with the path in the text.
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes>;

    /// The path, for error texts.
    fn path(&self) -> &Path;
}

/// An open file, blocking operations. Used at start and by maintenance, never by a running storage thread.
pub trait FsFile: ReadAt {
    /// Length in bytes.
    ///
    /// # Errors
    /// What the operating system said.
    fn bytes(&self) -> io::Result<u64>;

    /// Writes all of `data` at `position`; both the position and the length are multiples of `BLOCK_BYTES`.
    ///
    /// # Errors
    /// What the operating system said; some bytes may have been written.
    fn write_at(&self, position: u64, data: &AlignedBuf) -> io::Result<()>;

    /// Makes earlier writes durable (data and what is needed to read it back).
    ///
    /// # Errors
    /// What the operating system said. Never retry: earlier writes may be gone.
    fn sync_data(&self) -> io::Result<()>;
}

/// The file system, blocking operations.
pub trait Fs: Clone + Send + Sync + 'static {
    /// An open file.
    type File: FsFile;

    /// Opens a file. Each call makes an open file description of its own.
    ///
    /// # Errors
    /// What the operating system said, with the path in the text.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File>;

    /// Creates a directory and its parents; an existing one is fine.
    ///
    /// # Errors
    /// What the operating system said.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// The entries of a directory, sorted by name.
    ///
    /// # Errors
    /// What the operating system said.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;

    /// Renames a file, replacing nothing: an existing target is an error.
    ///
    /// # Errors
    /// What the operating system said.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the operating system said.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Names that a file has: one, unless somebody linked it.
    ///
    /// # Errors
    /// What the operating system said.
    fn links(&self, path: &Path) -> io::Result<u64>;

    /// Makes created, renamed and removed names of a directory durable.
    ///
    /// # Errors
    /// What the operating system said.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Bytes that an unprivileged writer could still store on the file system of `path`.
    ///
    /// # Errors
    /// What the operating system said.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// The end of one operation of a `Ring`.
#[derive(Debug)]
pub struct Completion {
    /// What the submitter passed.
    pub token: u64,
    /// `Ok(None)`: written in full and synced. `Ok(Some(bytes))`: read. `Err`: the first failure, with the path.
    pub result: io::Result<Option<Bytes>>,
}

/// Completion-style operations of the storage thread. One owner, one thread.
pub trait Ring {
    /// An open file; the same type that the file system hands out.
    type File: FsFile;

    /// Queues: write all of `data` at `position`, then a data sync of the file. Position and length are multiples
    /// of `BLOCK_BYTES`. At most `capacity` operations may be unfinished.
    fn write_sync(&mut self, file: &Arc<Self::File>, position: u64, data: Arc<AlignedBuf>, token: u64);

    /// Queues a read of exactly `bytes` bytes at `position`, any alignment.
    fn read(&mut self, file: &Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64);

    /// Hands everything queued to the kernel in one system call.
    ///
    /// # Errors
    /// Only when the ring itself is unusable; treat it as a failed write of everything queued.
    fn submit(&mut self) -> io::Result<()>;

    /// Appends finished operations to `out`. Waits until one finishes, the waker is called, or `timeout` passes
    /// (`None`: no limit; zero: do not wait). May return with nothing.
    ///
    /// # Errors
    /// Only when the ring itself is unusable.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()>;

    /// Ends a `wait` from any thread, now or the next time it is called.
    fn waker(&self) -> Waker;

    /// Name for logs and `/health`: `uring` or `threads`.
    fn name(&self) -> &'static str;
}

/// Adds the path to an error of the operating system.
#[must_use]
pub fn with_path(error: &io::Error, doing: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

/// The error of an operation beyond the capacity of its ring.
fn ring_is_full(capacity: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        format!("{capacity} operations are unfinished, which is all that this ring was opened for"),
    )
}

/// A path inside a data directory; names come from our own formatters only, never from a client.
#[must_use]
pub fn path_in(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}
