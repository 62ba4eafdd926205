//! Writing the index file of a sealed segment: from its rows while they are in memory, from the segment otherwise.
//!
//! Invariant: a file under its final name is whole and durable. What it says follows from the segment alone, so it may
//! be removed and written again at any time.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::DecodeError;
use crate::format::file_header::FileKind;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameKind};
use crate::format::index::{Builder, RunRow};
use crate::format::run::{RunForm, Runs};
use crate::index::rows::SegmentRows;

use crate::index::tiers::{self, Due, Keys, Leaf};
use crate::io::{AlignedBuf, Fs, FsFile, OpenMode};
use crate::log::files::Layout;
use crate::log::sealed::{IndexError, Sealed};
use crate::log::walk::{Found, OpenError, Walk};
use crate::types::{FileNumber, IdHash, LogId, MessageId};

/// Bytes written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Why an index file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexFileError {
    /// The operating system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The segment cannot be opened.
    #[error("{}: {error}", path.display())]
    Segment {
        /// The segment's file.
        path: PathBuf,
        /// What is wrong with it.
        error: OpenError,
    },
    /// The segment is damaged.
    #[error("{} is damaged at byte {position}: {detail}", path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// How.
        detail: String,
    },
}

impl<File: FsFile> Walk<File> {
    /// The next frame with messages of a segment that is not written any more; `None` at its end.
    pub(super) fn next_message_frame(&mut self, path: &Path) -> Result<Option<Found>, IndexFileError> {
        while let Some(found) = self.next_frame()? {
            match found.header.kind {
                FrameKind::Commit | FrameKind::Rewrite => return Ok(Some(found)),
                FrameKind::Noop => {}
                FrameKind::Seal => return Ok(None),
            }
        }
        if self.ends_here()? {
            return Ok(None);
        }
        Err(IndexFileError::Damaged {
            path: path.to_owned(),
            position: self.resume().position,
            detail: "no frame follows the one before, and the file goes on".to_owned(),
        })
    }
}

/// Writes the index file of a segment from its rows, and gives its filters.
///
/// # Errors
/// What the operating system said.
pub fn write<F: Fs>(
    fs: &F,
    layout: &Layout,
    log: LogId,
    segment: FileNumber,
    rows: &SegmentRows,
) -> io::Result<Leaf> {
    let mut builder = Builder::new(log, segment);
    let mut ids: Vec<(IdHash, MessageId)> = Vec::new();
    let mut leaf = Leaf::empty(u32::try_from(rows.ids()).unwrap_or(u32::MAX), rows.last_logged());
    rows.each(segment, |partition, run, bare, of_run| {
        ids.clear();
        ids.extend(of_run);
        ids.iter().for_each(|(hash, _)| leaf.insert(Keys::of(partition, *hash)));
        builder.push_run(
            RunRow {
                partition,
                base: run.base,
                count: run.count,
                bytes: run.bytes,
                created: run.created,
                logged: run.logged,
                position: u32::try_from(run.place.position).unwrap_or(u32::MAX),
                first_id: 0,
                bare,
            },
            &ids,
        );
    });
    store(fs, layout, segment, builder)?;
    Ok(leaf)
}

/// Reads what is due for the tiers of filters and puts it there: one segment's worth. Whether the tiers changed; `None`
/// when nothing is due.
///
/// # Errors
/// The index file of the segment does not answer. It is not built anew here: whoever looks an id up in it does that.
pub fn read_due<F: Fs>(
    fs: &F,
    layout: &Layout,
    log: LogId,
    tiers: &mut tiers::Builder,
) -> Result<Option<bool>, (FileNumber, IndexError)> {
    let Some(due) = tiers.due() else { return Ok(None) };
    let (Due::Filter(segment) | Due::Leaf(segment) | Due::Ids(segment)) = due;
    let read = fs
        .open(&layout.index(segment), OpenMode::Cached)
        .map_err(IndexError::from)
        .and_then(|file| Sealed::open(file, log, segment))
        .and_then(|sealed| read_into(&sealed, due, tiers));
    read.map(Some).map_err(|error| {
        tiers.fail(due);
        (segment, error)
    })
}

fn read_into<File: FsFile>(
    sealed: &Sealed<File>,
    due: Due,
    tiers: &mut tiers::Builder,
) -> Result<bool, IndexError> {
    let info = *sealed.info();
    match due {
        Due::Filter(segment) => {
            tiers.insert(segment, Leaf::new(sealed.filter()?, info.messages, info.last_logged));
            Ok(true)
        }
        Due::Leaf(segment) => {
            let mut leaf = Leaf::empty(info.messages, info.last_logged);
            sealed.keys(&mut |key| leaf.insert(Keys::from_leaf(key)))?;
            tiers.insert(segment, leaf);
            Ok(true)
        }
        Due::Ids(_) => {
            if let Some(sharing) = tiers.sharing() {
                sealed.keys(&mut |key| sharing.insert(Keys::from_leaf(key)))?;
            }
            Ok(tiers.read())
        }
    }
}

/// Writes the index file of a segment from the segment. Only frames that chain up to its end count.
///
/// # Errors
/// What the operating system said, or where the segment is damaged.
pub fn rebuild<F: Fs>(
    fs: &F,
    layout: &Layout,
    log: LogId,
    segment: FileNumber,
) -> Result<(), IndexFileError> {
    let path = layout.path(FileKind::Segment, segment);
    let file = fs.open(&path, OpenMode::Read)?;
    let mut walk = Walk::open(file, log, FileKind::Segment, segment)
        .map_err(|error| IndexFileError::Segment { path: path.clone(), error })?;
    let mut builder = Builder::new(log, segment);
    while let Some(found) = walk.next_message_frame(&path)? {
        add_frame(&mut builder, &found).map_err(|error| IndexFileError::Damaged {
            path: path.clone(),
            position: found.position,
            detail: error.to_string(),
        })?;
    }
    store(fs, layout, segment, builder)?;
    Ok(())
}

fn add_frame(builder: &mut Builder, found: &Found) -> Result<(), DecodeError> {
    let mut ids: Vec<(IdHash, MessageId)> = Vec::new();
    for item in Runs::new(&found.body) {
        let item = item?;
        ids.clear();
        item.ids(&mut ids)?;
        let run = item.header;
        let position = found.position + FRAME_HEADER_BYTES as u64 + u64::from(item.position);
        builder.push_run(
            RunRow {
                partition: run.partition,
                base: run.base,
                count: run.count,
                bytes: run.bytes,
                created: run.created,
                logged: run.logged,
                position: u32::try_from(position).unwrap_or(u32::MAX),
                first_id: 0,
                bare: run.form == RunForm::Bare,
            },
            &ids,
        );
    }
    Ok(())
}

/// Writes the file under a temporary name and gives it its own once it is durable.
fn store<F: Fs>(fs: &F, layout: &Layout, segment: FileNumber, builder: Builder) -> io::Result<()> {
    let path = layout.index(segment);
    let temporary = layout.spare_dir().join(format!("{:016}.idx.tmp", segment.0));
    remove_if_there(fs, &temporary)?;
    let written = fs.open(&temporary, OpenMode::Create).and_then(|file| fill(&file, builder));
    let named = written.and_then(|()| {
        remove_if_there(fs, &path)?;
        fs.rename(&temporary, &path)
    });
    if let Err(error) = named {
        // What could not be written must not keep its space: the disk is probably full.
        if let Err(error) = remove_if_there(fs, &temporary) {
            tracing::warn!("cannot remove {}: {error}", temporary.display());
        }
        return Err(error);
    }
    fs.sync_dir(&layout.dir(FileKind::Segment))?;
    fs.sync_dir(&layout.spare_dir())
}

fn fill<File: FsFile>(file: &File, builder: Builder) -> io::Result<()> {
    let mut position = 0;
    let mut data = AlignedBuf::with_capacity(WRITE_BYTES);
    let info = builder.finish(|page| {
        data.extend_from_slice(page);
        if data.len() >= WRITE_BYTES {
            let full = std::mem::replace(&mut data, AlignedBuf::with_capacity(WRITE_BYTES));
            file.write_at(position, &full)?;
            position += full.len() as u64;
        }
        Ok::<(), io::Error>(())
    })?;
    debug_assert_eq!(position + data.len() as u64, info.file_bytes());
    if !data.is_empty() {
        file.write_at(position, &data)?;
    }
    file.sync_data()
}

/// Removes a file that may not be there.
///
/// # Errors
/// What the operating system said.
pub(super) fn remove_if_there<F: Fs>(fs: &F, path: &Path) -> io::Result<()> {
    match fs.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
