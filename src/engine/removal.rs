//! Getting rid of segments that hold nothing that counts any more.
//!
//! Invariants:
//! - A file goes only when the older kept checkpoint is past the record that dropped its segment: no start, not even
//!   one that has to fall back to the older checkpoint, asks for it then.
//! - A file is written over only when nobody else holds it: no reader, open or not, and no other name of it.
//! - A file whose reader somebody holds is open for them before its name goes.
//! - Two dead files are kept to be written over at most; the rest is unlinked.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::index_file::remove_if_there;
use crate::engine::maintenance::Maintenance;
use crate::engine::readers::Reader;
use crate::format::file_header::{FileHeader, FileKind};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::io::{Fs, FsFile, OpenMode};
use crate::log::files::fill;
use crate::log::sealed::{IndexError, Sealed};
use crate::log::walk::Walk;
use crate::types::{FileNumber, Offset, PartitionId, Seq};

use super::index_file::IndexFileError;

/// Dead files that are kept to be written over.
const RECYCLABLE_MAX: usize = 2;

/// Bytes of frames that one job collects, about.
const COLLECTED_BYTES: usize = 1 << 20;

/// A segment that was dropped.
#[derive(Debug)]
pub struct Dropped<File> {
    /// The segment.
    pub segment: FileNumber,
    /// The group whose record dropped it, or a later one.
    pub seq: Seq,
    /// The engine's reader of it. Whoever still reads holds it too.
    pub reader: Arc<Reader<File>>,
}

/// Frames of a segment: where each one's body begins, and the body.
pub type Frames = Vec<(u64, bytes::Bytes)>;

/// What waits to be removed, and what may be written over.
#[derive(Debug)]
pub struct Removal<File> {
    pub(super) dropped: Vec<Dropped<File>>,
    recyclable: Vec<PathBuf>,
    pub(super) collecting: Option<(FileNumber, Walk<File>)>,
}

impl<File> Default for Removal<File> {
    fn default() -> Removal<File> {
        Removal { dropped: Vec::new(), recyclable: Vec::new(), collecting: None }
    }
}

impl<F: Fs> Maintenance<F> {
    /// Removes what both kept checkpoints are past. Whatever fails is tried again at the next occasion.
    pub(super) fn remove_dropped(&mut self) {
        let [(older, _), _] = self.checkpoints.as_slice() else { return };
        let (gone, wait) =
            std::mem::take(&mut self.removal.dropped).into_iter().partition(|dropped| dropped.seq <= *older);
        self.removal.dropped = wait;
        for dropped in gone {
            let segment = dropped.segment;
            self.filters.remove(segment);
            match self.remove(&dropped) {
                Ok(recycled) => tracing::debug!(%segment, recycled, "a segment is gone"),
                Err(error) => {
                    tracing::error!("cannot remove segment {segment}, it is tried again: {error}");
                    self.removal.dropped.push(dropped);
                }
            }
        }
    }

    /// Removes a segment and its index; whether its file was kept to be written over.
    fn remove(&mut self, dropped: &Dropped<F::File>) -> io::Result<bool> {
        let path = self.layout.path(FileKind::Segment, dropped.segment);
        remove_if_there(&self.fs, &self.layout.index(dropped.segment))?;
        // The engine gives nobody this reader any more, so the count only falls.
        let is_ours = Arc::strong_count(&dropped.reader) == 1;
        let there = match self.fs.open(&path, OpenMode::Read) {
            Ok(file) => Some(file.bytes()?),
            // An earlier try took the name away, and what came behind that failed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if !is_ours && there.is_some() {
            dropped.reader.keep()?;
        }
        let recycle = is_ours
            && self.removal.recyclable.len() < RECYCLABLE_MAX
            && there == Some(self.settings.segment_bytes)
            && self.fs.links(&path)? == 1;
        if recycle {
            let dead = self.layout.spare_dir().join(format!("{:016}.dead.tmp", dropped.segment.0));
            remove_if_there(&self.fs, &dead)?;
            self.fs.rename(&path, &dead)?;
            self.removal.recyclable.push(dead);
        } else {
            remove_if_there(&self.fs, &path)?;
        }
        self.fs.sync_dir(&self.layout.dir(FileKind::Segment))?;
        Ok(recycle)
    }

    /// Makes the next segment out of a dead one, if there is one: zeros over its whole size, which takes no space.
    pub(super) fn recycle(&mut self, header: &FileHeader) -> io::Result<bool> {
        if header.kind != FileKind::Segment || header.file_bytes != self.settings.segment_bytes {
            return Ok(false);
        }
        let Some(dead) = self.removal.recyclable.pop() else { return Ok(false) };
        let file = self.fs.open(&dead, OpenMode::Write)?;
        fill(&file, header)?;
        self.fs.rename(&dead, &self.layout.path(header.kind, header.number))?;
        self.fs.sync_dir(&self.layout.dir(header.kind))?;
        self.fs.sync_dir(&self.layout.spare_dir())?;
        Ok(true)
    }

    /// The next frames of a sealed segment.
    pub(super) fn collect(&mut self, segment: FileNumber, begin: bool) -> Result<Frames, IndexFileError> {
        let path = self.layout.path(FileKind::Segment, segment);
        let walk = match self.removal.collecting.take() {
            Some((number, walk)) if number == segment && !begin => Some(walk),
            _ if begin => {
                let file = self.fs.open(&path, OpenMode::Read)?;
                let walk = Walk::open(file, self.log, FileKind::Segment, segment)
                    .map_err(|error| IndexFileError::Segment { path: path.clone(), error })?;
                Some(walk)
            }
            _ => None,
        };
        let mut frames = Frames::new();
        let Some(mut walk) = walk else { return Ok(frames) };
        let mut bytes = 0;
        while bytes < COLLECTED_BYTES {
            let Some(found) = walk.next_message_frame(&path)? else { return Ok(frames) };
            bytes += found.body.len();
            frames.push((found.position + FRAME_HEADER_BYTES as u64, found.body));
        }
        self.removal.collecting = Some((segment, walk));
        Ok(frames)
    }

    /// The stretches of messages that the index of a segment names.
    pub(super) fn list(&self, segment: FileNumber) -> Result<Vec<(PartitionId, Offset, Offset)>, IndexError> {
        let file = self.fs.open(&self.layout.index(segment), OpenMode::Read)?;
        let sealed = Sealed::open(file, self.log, segment)?;
        let mut spans = Vec::new();
        sealed.spans(&mut |span| {
            if !span.bare {
                spans.push((span.partition, span.base, span.end));
            }
        })?;
        Ok(spans)
    }
}
