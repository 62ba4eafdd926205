//! The maintenance thread: everything slow that must not be on the storage thread. Prepares files, writes
//! checkpoints and the superblock, removes files that nothing needs.
//!
//! It talks to the storage thread by messages and shares no state with it.

use std::io;
use std::sync::{Arc, mpsc};

use crate::engine::EngineSettings;
use crate::engine::checkpoint::Writing;
use crate::engine::index_file::{self, IndexFileError, remove_if_there};
use crate::engine::lane::Prepared;
use crate::engine::removal::{Dropped, Frames, Removal};
use crate::engine::superblock;
use crate::format::checkpoint::Ending;
use crate::format::file_header::FileKind;
use crate::format::superblock::Superblock;
use crate::index::rows::SegmentRows;
use crate::index::tiers::{self, Tiers};
use crate::io::{Fs, Waker};
use crate::log::files::{Layout, prepare};
use crate::log::sealed::IndexError;
use crate::types::{Epoch, FileNumber, LogId, Offset, PartitionId, Seq};

/// Something to do.
#[derive(Debug)]
pub enum Job<File> {
    /// Prepare the next file of a lane.
    Prepare {
        /// Segment or cursor file.
        kind: FileKind,
        /// Its number.
        number: FileNumber,
        /// Highest seq staged.
        after: Seq,
    },
    /// Begin a checkpoint file under a temporary name; one that was not ended is dropped.
    CheckpointBegin {
        /// Replay goes on behind it.
        seq: Seq,
    },
    /// Append to it.
    CheckpointChunk {
        /// Which.
        seq: Seq,
        /// The next bytes.
        bytes: Vec<u8>,
    },
    /// Give it its end and its name, name it in the superblock, drop what the kept ones make superfluous.
    CheckpointEnd {
        /// Which; the watermark covers everything that is in it.
        seq: Seq,
        /// The last bytes.
        ending: Box<Ending>,
        /// First cursor file that replay needs from it on.
        cursor_file: FileNumber,
    },
    /// Write the index file of a sealed segment.
    Index {
        /// The segment.
        segment: FileNumber,
        /// Its rows.
        rows: Arc<SegmentRows>,
    },
    /// Read some frames of a sealed segment, from where the last such job of it ended.
    Collect {
        /// The segment.
        segment: FileNumber,
        /// Begin at its beginning.
        begin: bool,
    },
    /// List the stretches of messages that a segment has.
    List(FileNumber),
    /// Remove a segment that was dropped, once both kept checkpoints are past that.
    Remove(Dropped<File>),
    /// Load the filters of these sealed segments, in steps: each answers with what there is to do next.
    LoadFilters(Vec<FileNumber>),
    /// Go on with filters, one segment's worth, and drop those that were replaced: that may take a while.
    Filters(Option<Arc<Tiers>>),
    /// Write the clean-shutdown mark and end.
    Close {
        /// Last seq.
        seq: Seq,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Outcome<File> {
    /// A file is ready.
    Prepared(FileKind, Box<Prepared<File>>),
    /// A file could not be prepared.
    NotPrepared {
        /// Which kind.
        kind: FileKind,
        /// Why.
        error: io::Error,
        /// Bytes free on the file system.
        free_bytes: u64,
    },
    /// The index file of a segment is there.
    Indexed {
        /// The segment.
        segment: FileNumber,
        /// All filters, with those of the segment.
        filters: Arc<Tiers>,
    },
    /// A step of work on filters was done.
    Filtered {
        /// All filters, if they changed.
        filters: Option<Arc<Tiers>>,
        /// There is more to do.
        more: bool,
    },
    /// The index file could not be written.
    NotIndexed {
        /// Of this segment.
        segment: FileNumber,
        /// Why.
        error: io::Error,
    },
    /// The file of a checkpoint was begun, or it is abandoned.
    CheckpointBegun(io::Result<()>),
    /// A chunk was appended, or the checkpoint is abandoned.
    ChunkTaken(io::Result<()>),
    /// Frames of a segment.
    Collected {
        /// The segment.
        segment: FileNumber,
        /// The frames; or why the segment cannot be read.
        frames: Result<Frames, IndexFileError>,
        /// There are more.
        more: bool,
    },
    /// Stretches of messages: partition, first offset, offset behind the last.
    Listed {
        /// Of this segment.
        segment: FileNumber,
        /// The stretches; or why the index cannot be read.
        spans: Result<Vec<(PartitionId, Offset, Offset)>, IndexError>,
    },
    /// So many dropped segments wait for checkpoints.
    Waiting(usize),
    /// A checkpoint is durable and named.
    Checkpointed {
        /// It began here.
        seq: Seq,
        /// Dropped segments that wait for another one.
        waiting: usize,
    },
    /// A checkpoint could not be written; the older ones still count.
    NotCheckpointed(io::Error),
    /// The superblock could not be written.
    SuperblockFailed(io::Error),
    /// The clean mark is durable.
    Closed,
}

/// The thread's end of the conversation.
pub struct Maintenance<F: Fs> {
    /// The file system.
    pub fs: F,
    /// Where things are.
    pub layout: Layout,
    /// Sizes.
    pub settings: EngineSettings,
    /// The log.
    pub log: LogId,
    /// This process start.
    pub epoch: Epoch,
    /// The superblock and its slot.
    pub superblock: (Superblock, usize),
    /// First cursor file that each kept checkpoint needs: (seq, file), older first.
    pub checkpoints: Vec<(Seq, FileNumber)>,
    /// The checkpoint that is being written; none at first.
    pub writing: Option<Writing<F::File>>,
    /// Segments that go away.
    pub removal: Removal<F::File>,
    /// Filters of sealed segments.
    pub filters: tiers::Builder,
}

impl<F: Fs> Maintenance<F> {
    /// Works until the other end is gone or `Close` was done.
    pub fn run(
        mut self,
        jobs: &mpsc::Receiver<Job<F::File>>,
        outcomes: &mpsc::Sender<Outcome<F::File>>,
        waker: &Waker,
    ) {
        while let Ok(job) = jobs.recv() {
            let closing = matches!(job, Job::Close { .. });
            let outcome = self.work(job);
            if outcomes.send(outcome).is_err() {
                return;
            }
            waker.wake();
            if closing {
                return;
            }
        }
    }

    /// Does one job.
    pub fn work(&mut self, job: Job<F::File>) -> Outcome<F::File> {
        match job {
            Job::Prepare { kind, number, after } => match self.prepare(kind, number, after) {
                Ok(prepared) => Outcome::Prepared(kind, Box::new(prepared)),
                Err(error) => {
                    let free_bytes = self.fs.free_bytes(self.layout.root()).unwrap_or(0);
                    Outcome::NotPrepared { kind, error, free_bytes }
                }
            },
            Job::CheckpointBegin { seq } => Outcome::CheckpointBegun(self.begin_checkpoint(seq)),
            Job::CheckpointChunk { seq, bytes } => Outcome::ChunkTaken(self.append(seq, &bytes)),
            Job::CheckpointEnd { seq, ending, cursor_file } => {
                match self.end_checkpoint(seq, &ending, cursor_file) {
                    Ok(()) => {
                        self.remove_dropped();
                        Outcome::Checkpointed { seq, waiting: self.removal.dropped.len() }
                    }
                    Err(error) => Outcome::NotCheckpointed(error),
                }
            }
            Job::Index { segment, rows } => {
                match index_file::write(&self.fs, &self.layout, self.log, segment, &rows) {
                    Ok(leaf) => {
                        self.filters.insert_sealed(segment, leaf);
                        Outcome::Indexed { segment, filters: self.filters.tiers() }
                    }
                    Err(error) => Outcome::NotIndexed { segment, error },
                }
            }
            Job::Collect { segment, begin } => {
                let frames = self.collect(segment, begin);
                let more = self.removal.collecting.is_some();
                Outcome::Collected { segment, frames, more }
            }
            Job::List(segment) => Outcome::Listed { segment, spans: self.list(segment) },
            Job::Remove(dropped) => {
                self.removal.dropped.push(dropped);
                self.remove_dropped();
                Outcome::Waiting(self.removal.dropped.len())
            }
            Job::LoadFilters(segments) => {
                self.filters.want(segments);
                Outcome::Filtered { filters: None, more: true }
            }
            Job::Filters(replaced) => {
                drop(replaced);
                self.tend_filters()
            }
            Job::Close { seq } => {
                if let Some(unended) = self.writing.take() {
                    unended.abandon(&self.fs);
                }
                let written = superblock::write(&self.fs, &self.layout, &mut self.superblock, |block| {
                    block.clean_seq = seq;
                });
                match written {
                    Ok(()) => Outcome::Closed,
                    Err(error) => Outcome::SuperblockFailed(error),
                }
            }
        }
    }

    fn tend_filters(&mut self) -> Outcome<F::File> {
        match index_file::read_due(&self.fs, &self.layout, self.log, &mut self.filters) {
            Ok(None) => Outcome::Filtered { filters: None, more: false },
            Ok(Some(changed)) => {
                Outcome::Filtered { filters: changed.then(|| self.filters.tiers()), more: true }
            }
            Err((segment, error)) => {
                tracing::warn!("segment {segment} goes without a filter for now: {error}");
                Outcome::Filtered { filters: None, more: true }
            }
        }
    }

    fn prepare(&mut self, kind: FileKind, number: FileNumber, after: Seq) -> io::Result<Prepared<F::File>> {
        let header = self.settings.header(kind, self.log, number, self.epoch, after);
        // What an earlier try left under this name was never handed to the storage thread, so it holds no frame.
        remove_if_there(&self.fs, &self.layout.path(kind, number))?;
        if self.recycle(&header)? {
            return Prepared::open(&self.fs, &self.layout, &header, None);
        }
        let free_bytes = self.fs.free_bytes(self.layout.root())?;
        let reserve = match kind {
            FileKind::Segment => self.settings.reserve_bytes,
            FileKind::Cursor | FileKind::Checkpoint => 0,
        };
        if free_bytes < header.file_bytes + reserve {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "{free_bytes} bytes are free in {}, a new file takes {} and {reserve} are reserved",
                    self.layout.root().display(),
                    header.file_bytes
                ),
            ));
        }
        prepare(&self.fs, &self.layout, &header)?;
        Prepared::open(&self.fs, &self.layout, &header, None)
    }

    fn begin_checkpoint(&mut self, seq: Seq) -> io::Result<()> {
        if let Some(older) = self.writing.take() {
            older.abandon(&self.fs);
        }
        self.writing = Some(Writing::begin(&self.fs, &self.layout, seq)?);
        Ok(())
    }

    /// Chunks of a checkpoint that was abandoned are passed over.
    fn append(&mut self, seq: Seq, bytes: &[u8]) -> io::Result<()> {
        let Some(mut writing) = self.writing.take_if(|writing| writing.seq == seq) else { return Ok(()) };
        match writing.append(bytes) {
            Ok(()) => self.writing = Some(writing),
            Err(error) => {
                writing.abandon(&self.fs);
                return Err(error);
            }
        }
        Ok(())
    }

    fn end_checkpoint(&mut self, seq: Seq, ending: &Ending, cursor_file: FileNumber) -> io::Result<()> {
        let Some(writing) = self.writing.take_if(|writing| writing.seq == seq) else {
            return Err(io::Error::other("it was abandoned before its end"));
        };
        writing.end(&self.fs, &self.layout, ending)?;
        // The one before is the last that is known to be whole: a damaged one is not kept by name.
        let previous = self.checkpoints.last().map_or(Seq(0), |(seq, _)| *seq);
        superblock::write(&self.fs, &self.layout, &mut self.superblock, |block| {
            block.previous_checkpoint = previous;
            block.checkpoint = seq;
        })?;
        self.checkpoints.push((seq, cursor_file));
        // Two checkpoints are kept, and the cursor files from the older one on.
        while self.checkpoints.len() > 2 {
            let (old, _) = self.checkpoints.remove(0);
            self.fs.remove(&self.layout.checkpoint(old))?;
        }
        if let [(_, first_needed), _] = self.checkpoints.as_slice() {
            let (numbers, _) = self.layout.numbers(&self.fs, FileKind::Cursor)?;
            for number in numbers.into_iter().filter(|number| number < first_needed) {
                self.fs.remove(&self.layout.path(FileKind::Cursor, number))?;
            }
            self.fs.sync_dir(&self.layout.dir(FileKind::Cursor))?;
        }
        self.fs.sync_dir(&self.layout.dir(FileKind::Checkpoint))
    }
}
