//! Checkpoints that never stall commits: taken in slices, while groups go on.
//!
//! A checkpoint begins when nothing is open, at the last submitted group K1. From then on every step of the storage
//! thread takes a bounded slice of the state's records, each as it is at that moment, and closed chunks go to
//! maintenance, which appends them to a temporary file. When the last slice is taken, K2 is the last group that was
//! staged. The footer carries both; when the watermark reaches K2 the file gets its end, its header and its name.
//!
//! The records are no picture of any one moment. Since they are absolute, as are those of the cursor frames, replay of
//! all groups from K1 + 1 to K2 over them gives the state as of K2. Until then the machine is *catching up*; what it
//! takes without complaint then is listed in `broker::snapshot`.
//!
//! Invariants:
//! - A step of the storage thread takes one slice at most. `CHUNKS_IN_FLIGHT` times the chunks that one slice closes
//!   (one, but for records with very long texts) and an open chunk are in memory at most, whatever the state.
//! - The superblock names a checkpoint only when K2 is below the watermark, so a log that ends before K2 is damaged.
//! - A checkpoint that fails in the middle leaves the older ones as they are.

use std::io;
use std::path::PathBuf;

use crate::engine::commit::{Engine, Parts};
use crate::engine::machine::{Machine, SnapshotCursor};
use crate::engine::maintenance::Job;
use crate::format::checkpoint::{CheckpointInfo, Encoder, Ending};
use crate::io::{AlignedBuf, BLOCK_BYTES, Fs, FsFile, OpenMode, Ring};
use crate::log::files::Layout;
use crate::types::{FileNumber, Seq, WallTime};

/// Most records that one step of the storage thread takes: encoding one takes 100 to 200 ns, so about 100 µs, which is
/// less than the sync of a commit on the fastest disks.
const SLICE_RECORDS: usize = 512;

/// A slice ends at so many bytes as well: a record with long texts is a copy of them, at some GiB per second.
const SLICE_BYTES: usize = 256 << 10;

/// Records between two looks at the bytes.
const STRIDE: usize = 4;

/// Most chunks that wait for maintenance; no slice is taken while so many do.
const CHUNKS_IN_FLIGHT: usize = 4;

/// The storage thread's side.
#[derive(Debug)]
pub(super) struct Checkpointing {
    /// Bytes of cursor frames since the newest checkpoint began.
    pub(super) cursor_bytes: u64,
    /// Bytes of message frames since then.
    pub(super) message_bytes: u64,
    /// Bytes of the newest checkpoint.
    file_bytes: u64,
    /// The newest checkpoint began here; another of the same seq would say the same.
    newest: Seq,
    requested: bool,
    chunks_in_flight: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Scanning(Box<Scanning>),
    /// All records are taken; waits for the watermark.
    Scanned {
        until: Seq,
        info: CheckpointInfo,
        ending: Box<Ending>,
    },
    /// Maintenance gives it its name.
    Ending,
}

#[derive(Debug)]
struct Scanning {
    info: CheckpointInfo,
    cursor: SnapshotCursor,
    encoder: Encoder,
}

impl Checkpointing {
    pub(super) fn new<File>(parts: &Parts<File>) -> Checkpointing {
        Checkpointing {
            cursor_bytes: parts.cursor_bytes,
            message_bytes: parts.message_bytes,
            file_bytes: parts.checkpoint_bytes,
            newest: parts.checkpoint,
            requested: false,
            chunks_in_flight: 0,
            stage: Stage::Idle,
        }
    }

    /// Maintenance began the file, or could not.
    pub(super) fn begun(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.abandon(&error);
        }
    }

    /// Maintenance took a chunk. It passes over those of a checkpoint that failed.
    pub(super) fn chunk_taken(&mut self, result: io::Result<()>) {
        self.chunks_in_flight = self.chunks_in_flight.saturating_sub(1);
        if let Err(error) = result {
            self.abandon(&error);
        }
    }

    /// Gives up in the middle. If its end is on its way already, that will fail too, and says so.
    fn abandon(&mut self, error: &io::Error) {
        if !matches!(self.stage, Stage::Ending) {
            self.failed(error);
        }
    }

    /// Whether the next step can take a slice right away.
    pub(super) fn can_go_on(&self) -> bool {
        matches!(self.stage, Stage::Scanning(_)) && self.chunks_in_flight < CHUNKS_IN_FLIGHT
    }

    /// The checkpoint has its name.
    pub(super) fn ended(&mut self, seq: Seq) {
        self.newest = seq;
        self.stage = Stage::Idle;
    }

    /// The checkpoint failed; the next one is due when as much was written again.
    pub(super) fn failed(&mut self, error: &io::Error) {
        tracing::error!("cannot write a checkpoint, the older one still counts: {error}");
        self.stage = Stage::Idle;
    }
}

impl<R: Ring> Engine<R> {
    /// Asks for a checkpoint as soon as one can begin, whatever was written since the last.
    pub fn request_checkpoint(&mut self) {
        self.checkpointing.requested = true;
    }

    /// Whether a checkpoint is being taken or written.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        !matches!(self.checkpointing.stage, Stage::Idle)
    }

    /// Bytes of the newest checkpoint.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.checkpointing.file_bytes
    }

    /// Where the newest checkpoint began.
    pub(super) fn newest_checkpoint(&self) -> Seq {
        self.checkpointing.newest
    }

    fn wants_checkpoint(&self) -> bool {
        let this = &self.checkpointing;
        this.requested
            || this.cursor_bytes > self.settings.checkpoint_cursor_bytes.max(4 * this.file_bytes)
            || this.message_bytes > self.settings.checkpoint_message_bytes
    }

    /// Begins a checkpoint if one is due, or takes its next slice, or ends it. A bounded step.
    pub fn checkpoint<M: Machine>(&mut self, machine: &M, last_stamp: WallTime) {
        match std::mem::replace(&mut self.checkpointing.stage, Stage::Idle) {
            Stage::Idle => self.begin_checkpoint(),
            Stage::Scanning(scanning) => {
                self.checkpointing.stage = self.take_slice(scanning, machine, last_stamp);
            }
            stage => self.checkpointing.stage = stage,
        }
        // It is named only when the watermark covers it, and every record in it is durable then.
        if let Stage::Scanned { until, .. } = &self.checkpointing.stage
            && *until <= self.watermark()
            && let Stage::Scanned { info, ending, .. } =
                std::mem::replace(&mut self.checkpointing.stage, Stage::Ending)
        {
            self.checkpointing.file_bytes = ending.file_bytes;
            let cursor_file = FileNumber(info.cursor_file);
            self.send_checkpoint(Job::CheckpointEnd { seq: info.seq, ending, cursor_file });
        }
    }

    fn begin_checkpoint(&mut self) {
        if !self.wants_checkpoint() || !self.can_begin_checkpoint() {
            return;
        }
        self.checkpointing.requested = false;
        let seq = self.staged();
        if seq == self.checkpointing.newest {
            return; // nothing was written since
        }
        let info = CheckpointInfo {
            seq,
            until: seq,
            log_time: self.log_time(),
            last_stamp: WallTime(0),
            cursor_file: self.cursors.active.number().0,
            segment: self.segments.active.number(),
            segment_position: self.segments.active.position(),
            records: 0,
        };
        self.checkpointing.cursor_bytes = 0;
        self.checkpointing.message_bytes = 0;
        let encoder = Encoder::new(self.log, seq);
        let scanning = Scanning { info, cursor: SnapshotCursor::default(), encoder };
        self.checkpointing.stage = Stage::Scanning(Box::new(scanning));
        self.send_checkpoint(Job::CheckpointBegin { seq });
    }

    fn take_slice<M: Machine>(
        &mut self,
        mut scanning: Box<Scanning>,
        machine: &M,
        last_stamp: WallTime,
    ) -> Stage {
        if self.checkpointing.chunks_in_flight >= CHUNKS_IN_FLIGHT {
            return Stage::Scanning(scanning);
        }
        let Scanning { cursor, encoder, .. } = &mut *scanning;
        let full = encoder.bytes() + SLICE_BYTES;
        let mut records = 0;
        let done = loop {
            let done = machine.snapshot_slice(cursor, STRIDE, &mut |delta| encoder.push(delta));
            records += STRIDE;
            if done || records >= SLICE_RECORDS || encoder.bytes() >= full {
                break done;
            }
        };
        if let Some(bytes) = encoder.take_closed() {
            self.checkpointing.chunks_in_flight += 1;
            self.send_checkpoint(Job::CheckpointChunk { seq: scanning.info.seq, bytes });
        }
        if !done {
            return Stage::Scanning(scanning);
        }
        let Scanning { info, encoder, .. } = *scanning;
        let until = self.staged();
        let info = CheckpointInfo { until, last_stamp, ..info };
        let ending = Box::new(encoder.finish(info, self.epoch()));
        Stage::Scanned { until, info, ending }
    }

    /// Without maintenance nothing comes of it, and nothing is removed either.
    fn send_checkpoint(&mut self, job: Job<R::File>) {
        if self.jobs.send(job).is_err() {
            self.checkpointing.stage = Stage::Idle;
        }
    }
}

/// Maintenance's side: a checkpoint file that is being written under a temporary name.
#[derive(Debug)]
pub struct Writing<File> {
    pub(super) seq: Seq,
    file: File,
    temporary: PathBuf,
    /// Where `rest` goes.
    position: u64,
    /// What did not fill a block yet.
    rest: Vec<u8>,
}

impl<File: FsFile> Writing<File> {
    pub(super) fn begin<F: Fs<File = File>>(fs: &F, layout: &Layout, seq: Seq) -> io::Result<Writing<File>> {
        let temporary = layout.spare_dir().join(format!("{:016}.ckpt.tmp", seq.0));
        match fs.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = fs.open(&temporary, OpenMode::Create)?;
        Ok(Writing { seq, file, temporary, position: BLOCK_BYTES as u64, rest: Vec::new() })
    }

    /// Appends bytes; what does not fill a block waits for more.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let whole = (self.rest.len() + bytes.len()) / BLOCK_BYTES * BLOCK_BYTES;
        let (now, later) =
            bytes.split_at_checked(whole.saturating_sub(self.rest.len())).unwrap_or((&[], bytes));
        if whole > 0 {
            let mut data = AlignedBuf::with_capacity(whole);
            data.extend_from_slice(&self.rest);
            data.extend_from_slice(now);
            self.file.write_at(self.position, &data)?;
            self.position += data.len() as u64;
            self.rest.clear();
        }
        self.rest.extend_from_slice(later);
        Ok(())
    }

    /// Writes the end and the header, makes the file durable and gives it its name, durably.
    pub(super) fn end<F: Fs<File = File>>(
        mut self,
        fs: &F,
        layout: &Layout,
        ending: &Ending,
    ) -> io::Result<()> {
        let ended = self.append(&ending.bytes).and_then(|()| {
            let mut header = AlignedBuf::with_capacity(BLOCK_BYTES);
            header.extend_from_slice(&ending.header);
            self.file.write_at(0, &header)?;
            self.file.sync_data()
        });
        if let Err(error) = ended {
            self.abandon(fs);
            return Err(error);
        }
        fs.rename(&self.temporary, &layout.checkpoint(self.seq))?;
        fs.sync_dir(&layout.dir(crate::format::file_header::FileKind::Checkpoint))
    }

    /// Removes what was written: it must not keep its space when the disk is full.
    pub(super) fn abandon<F: Fs<File = File>>(self, fs: &F) {
        if let Err(error) = fs.remove(&self.temporary) {
            tracing::warn!("cannot remove {}: {error}", self.temporary.display());
        }
    }
}
