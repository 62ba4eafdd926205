//! One of the two lanes of the log: the active file of a kind, its prepared successors, and files waiting for a seal.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::format::file_header::{FileHeader, FileKind};
use crate::format::frame::chain_after;
use crate::io::{BLOCK_BYTES, Fs, OpenMode};
use crate::log::appender::{Appender, Frame, Resume, Stamp};
use crate::log::files::Layout;
use crate::types::{FileNumber, Seq};

/// A file that is durable under its name and holds no frame yet.
#[derive(Debug)]
pub struct Prepared<File> {
    /// Its number.
    pub number: FileNumber,
    /// An appender at its beginning.
    pub appender: Appender<File>,
}

impl<File> Prepared<File> {
    /// Opens a file that is on disk, with a description per pipeline slot.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn open<F: Fs<File = File>>(
        fs: &F,
        layout: &Layout,
        header: &FileHeader,
        resume: Option<Resume>,
    ) -> io::Result<Prepared<File>> {
        let path = layout.path(header.kind, header.number);
        let mut slots = Vec::new();
        for _ in 0..header.pipeline_depth.max(1) {
            slots.push(Arc::new(fs.open(&path, OpenMode::Write)?));
        }
        let resume = resume.unwrap_or_else(|| Resume {
            position: BLOCK_BYTES as u64,
            chain: chain_after(&header.encode()[..]),
            frames: 0,
            last_seq: Seq(0),
        });
        let appender = Appender::new(header, slots, resume);
        Ok(Prepared { number: header.number, appender })
    }
}

/// A lane.
#[derive(Debug)]
pub struct Lane<File> {
    /// What its files are.
    pub kind: FileKind,
    /// The file that is written.
    pub active: Appender<File>,
    prepared: VecDeque<Prepared<File>>,
    requested: Option<FileNumber>,
    unsealed: VecDeque<Appender<File>>,
}

impl<File> Lane<File> {
    /// A lane.
    #[must_use]
    pub fn new(
        kind: FileKind,
        active: Appender<File>,
        prepared: Vec<Prepared<File>>,
        unsealed: Vec<Appender<File>>,
    ) -> Lane<File> {
        Lane { kind, active, prepared: prepared.into(), requested: None, unsealed: unsealed.into() }
    }

    /// Whether a successor is ready.
    #[must_use]
    pub fn has_next(&self) -> bool {
        !self.prepared.is_empty()
    }

    /// The number that maintenance should prepare now, if any. `ahead`: successors to keep ready.
    pub fn request(&mut self, ahead: usize) -> Option<FileNumber> {
        if self.requested.is_some() || self.prepared.len() >= ahead {
            return None;
        }
        let last = self.prepared.back().map_or(self.active.number(), |prepared| prepared.number);
        self.requested = Some(last.next());
        self.requested
    }

    /// Maintenance prepared a file.
    pub fn supply(&mut self, prepared: Prepared<File>) {
        self.requested = None;
        self.prepared.push_back(prepared);
    }

    /// Maintenance could not prepare a file; `request` asks again.
    pub fn refuse(&mut self) {
        self.requested = None;
    }

    /// Makes the next prepared file the active one; the old one waits for its seal. `None`: none is ready. Gives the
    /// new file's number.
    pub fn roll(&mut self) -> Option<FileNumber> {
        let next = self.prepared.pop_front()?;
        let old = std::mem::replace(&mut self.active, next.appender);
        self.unsealed.push_back(old);
        Some(next.number)
    }

    /// The seal that is due, with the number of the file and the file to write it to: the watermark covers the file's last seq.
    pub fn seal(&mut self, stamp: Stamp) -> Option<(FileNumber, Arc<File>, Frame)> {
        let due = self.unsealed.front().is_some_and(|file| file.last_seq() <= stamp.watermark);
        if !due {
            return None;
        }
        let mut file = self.unsealed.pop_front()?;
        let frame = file.seal(stamp);
        Some((file.number(), Arc::clone(file.slot(0)), frame))
    }
}
