//! Reading segments without a descriptor for each of them.
//!
//! Whoever reads a segment holds its `Reader`: a name, not a descriptor. The file is opened where it is read, by the
//! thread that reads it, and stays open in a pool of a fixed size until another segment wants its place. So neither a
//! long log nor many answers in flight, each of them over many segments, take more descriptors than the pool has places,
//! and the storage thread, which only hands readers out, opens nothing and takes no lock. A read that finds its segment
//! closed pays an `open` of some microseconds in front of a read of the medium.
//!
//! Invariants:
//! - There is one reader per segment, and it is never replaced: its `Arc` count says whether anybody else may still read
//!   the file, open or not. Removal goes by that count, so the pool must hold files only, never readers.
//! - Never more than `OPEN_MAX` files are open here. A read that finds all of them being read from waits for one; that
//!   ends, since a read holds one file and waits for nothing else.
//! - A segment that was dropped gets no new holder. Those from before may read on: before removal takes the name away
//!   it has the reader keep the file open for them (`keep`). These files are on top of the pool's, and as few as
//!   answers that are older than the removal of what they read.
//! - A file that cannot be opened is an error of that read, like any other.
//!
//! Must not: be read from by the storage thread.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use hashbrown::HashMap;

use crate::format::file_header::FileKind;
use crate::io::{Fs, FsFile, OpenMode, ReadAt};
use crate::log::files::Layout;
use crate::types::FileNumber;

/// Segments that are open for reads at most. More of them at once than a device has use for; small enough for a limit of
/// 256 descriptors, beside as many index files (`engine::lookup`).
pub(super) const OPEN_MAX: usize = 64;

/// The readers of all segments that were not dropped.
#[derive(Debug)]
pub struct Readers<File> {
    layout: Layout,
    pool: Arc<Pool<File>>,
    segments: HashMap<FileNumber, Arc<Reader<File>>>,
}

impl<File: FsFile> Readers<File> {
    /// None yet.
    #[must_use]
    pub fn new<F: Fs<File = File>>(fs: &F, layout: &Layout) -> Readers<File> {
        let fs = fs.clone();
        Readers::with_places(layout, OPEN_MAX, Box::new(move |path| fs.open(path, OpenMode::Read)))
    }

    fn with_places(layout: &Layout, places: usize, open: Opener<File>) -> Readers<File> {
        let files = Mutex::new(Files { open: Vec::new(), opening: 0 });
        let pool = Arc::new(Pool { open, places, files, freed: Condvar::new() });
        Readers { layout: layout.clone(), pool, segments: HashMap::new() }
    }

    /// Takes in a segment; one that is known stays as it is.
    pub fn add(&mut self, segment: FileNumber) {
        self.segments.entry(segment).or_insert_with(|| {
            Arc::new(Reader {
                segment,
                path: self.layout.path(FileKind::Segment, segment),
                pool: Arc::clone(&self.pool),
                kept: OnceLock::new(),
            })
        });
    }

    /// The reader of a segment.
    #[must_use]
    pub fn get(&self, segment: FileNumber) -> Option<&Arc<Reader<File>>> {
        self.segments.get(&segment)
    }

    /// Lets go of a segment that was dropped: nobody gets its reader any more, except who removes it.
    pub fn remove(&mut self, segment: FileNumber) -> Option<Arc<Reader<File>>> {
        self.segments.remove(&segment)
    }
}

/// Reads one segment, whether it is open or not.
#[derive(Debug)]
pub struct Reader<File> {
    segment: FileNumber,
    path: PathBuf,
    pool: Arc<Pool<File>>,
    /// The file, once its name goes away.
    kept: OnceLock<File>,
}

impl<File: FsFile> Reader<File> {
    /// Opens the file for those who hold this reader, for as long as they do. To be called by whoever is about to take
    /// its name away, and by nobody else.
    ///
    /// # Errors
    /// What the operating system said; the name must stay then.
    pub fn keep(&self) -> io::Result<()> {
        if self.kept.get().is_none() {
            let file = (self.pool.open)(&self.path)?;
            let _ = self.kept.set(file); // one thread removes, so nobody else can have set it
        }
        Ok(())
    }
}

impl<File: FsFile> ReadAt for Reader<File> {
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        if let Some(file) = self.kept.get() {
            return file.read_at(position, bytes);
        }
        match self.pool.borrow(self.segment, &self.path) {
            Ok(borrowed) => match &borrowed.file {
                Some(file) => file.read_at(position, bytes),
                None => unreachable!("it was not given back yet"),
            },
            // The name may have gone between the two looks; the file was kept before that.
            Err(error) => self.kept.get().ok_or(error)?.read_at(position, bytes),
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl<File> Drop for Reader<File> {
    /// Nobody asks for the file any more.
    fn drop(&mut self) {
        self.pool.close_if(|open| open.segment == self.segment);
    }
}

type Opener<File> = Box<dyn Fn(&Path) -> io::Result<File> + Send + Sync>;

struct Pool<File> {
    open: Opener<File>,
    places: usize,
    files: Mutex<Files<File>>,
    /// A file is not read from any more.
    freed: Condvar,
}

struct Files<File> {
    /// The one that was used last at the end. So few that looking through them costs nothing beside a read.
    open: Vec<Open<File>>,
    /// Places of files that are being opened.
    opening: usize,
}

struct Open<File> {
    segment: FileNumber,
    file: Arc<File>,
    /// Reads that are under way. Only a file without any is closed for another one: closing it would free no descriptor
    /// before they end.
    reads: usize,
}

impl<File> fmt::Debug for Pool<File> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("places", &self.places).finish_non_exhaustive()
    }
}

impl<File> Pool<File> {
    /// A panic elsewhere leaves the list valid: nothing in here panics between two changes of it.
    fn files(&self) -> MutexGuard<'_, Files<File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a segment for one read.
    fn borrow(&self, segment: FileNumber, path: &Path) -> io::Result<Borrowed<'_, File>> {
        let mut files = self.files();
        let closed = loop {
            if let Some(at) = files.open.iter().position(|open| open.segment == segment) {
                let mut open = files.open.remove(at);
                open.reads += 1;
                let file = Arc::clone(&open.file);
                files.open.push(open);
                return Ok(Borrowed { pool: self, file: Some(file) });
            }
            if files.open.len() + files.opening < self.places {
                break None;
            }
            if let Some(idle) = files.open.iter().position(|open| open.reads == 0) {
                break Some(files.open.remove(idle));
            }
            files = self.freed.wait(files).unwrap_or_else(PoisonError::into_inner);
        };
        files.opening += 1;
        drop(files);
        drop(closed); // before the next is opened, and while nobody waits for the lock
        let opened = self.open_or_make_room(path);
        let mut files = self.files();
        files.opening -= 1;
        let file = match opened {
            Ok(file) => Arc::new(file),
            Err(error) => {
                drop(files);
                self.freed.notify_one(); // the place is free
                return Err(error);
            }
        };
        // Two reads may open the same segment at a time; each gives its own back, and both files are closed in turn.
        files.open.push(Open { segment, file: Arc::clone(&file), reads: 1 });
        Ok(Borrowed { pool: self, file: Some(file) })
    }

    /// Where a file is there and cannot be opened, the process may have no descriptor left: one more try without the
    /// files that are open here for nobody.
    fn open_or_make_room(&self, path: &Path) -> io::Result<File> {
        match (self.open)(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if !self.close_if(|open| open.reads == 0) {
                    return Err(error);
                }
                self.freed.notify_all();
                (self.open)(path)
            }
            opened => opened,
        }
    }

    /// Closes files that nobody reads from. Whether there were any.
    fn close_if(&self, is_meant: impl Fn(&Open<File>) -> bool) -> bool {
        let mut files = self.files();
        let closed: Vec<Open<File>> = files.open.extract_if(.., |open| is_meant(open)).collect();
        drop(files);
        !closed.is_empty()
    }
}

/// A file of the pool while a read is under way.
struct Borrowed<'a, File> {
    pool: &'a Pool<File>,
    /// Set until it is given back.
    file: Option<Arc<File>>,
}

impl<File> Drop for Borrowed<'_, File> {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let mut files = self.pool.files();
        if let Some(open) = files.open.iter_mut().find(|open| Arc::ptr_eq(&open.file, &file)) {
            open.reads -= 1;
        }
        // Before anybody can close the file for another one and count on its descriptor.
        drop(file);
        drop(files);
        self.pool.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
