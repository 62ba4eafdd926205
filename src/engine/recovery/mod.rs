//! Bringing the state back at start.
//!
//! lock → superblock → newest checkpoint → segments up to it → cursor frames after it, each with the message frame
//! that it names → the tail rule (`log::tail`) → repair → epoch. The state changes through the same `apply` that runs
//! live. Nothing is destroyed before its copy is in quarantine; every step may be interrupted and begun again.
//!
//! `repair` holds the end of it, `error` why it may refuse.
//!
//! Memory and descriptors: one window and one open file for each file that is being read, besides the state itself and
//! the files that go on.

mod error;
pub mod marks;
mod repair;

use std::io;
use std::path::{Path, PathBuf};

use crate::cursor::read_body;
use crate::engine::EngineSettings;
use crate::engine::commit::Parts;
use crate::engine::index_file::{self, IndexFileError};
use crate::engine::machine::Machine;
use crate::engine::superblock;
use crate::format::checkpoint::{CheckpointInfo, Decoder};
use crate::format::file_header::{FileHeader, FileKind};
use crate::format::frame::{FrameKind, MessageRef, SealBody};
use crate::format::run::Runs;
use crate::format::superblock::Superblock;
use crate::index::runs::Place;
use crate::io::{Fs, FsFile, OpenMode, ReadAt};
use crate::log::appender::Resume;
use crate::log::files::Layout;
use crate::log::sealed::{IndexError, Sealed};
use crate::log::tail::Verdict;
use crate::log::walk::{Found, Walk};
use error::LoadError;
pub use error::RecoveryError;
use marks::{Mark, hit};

use crate::types::{Epoch, FileNumber, IdHash, LogId, LogTime, MessageId, Seq, WallTime};

/// What recovery did, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Checkpoint that it began with; 0 for none.
    pub checkpoint: Seq,
    /// Groups replayed.
    pub groups: u64,
    /// Runs indexed.
    pub runs: u64,
    /// First seq that was cut, if any.
    pub cut: Option<Seq>,
    /// Bytes copied to quarantine.
    pub quarantined_bytes: u64,
}

/// Everything recovery hands over.
pub struct Recovered<M, File> {
    /// The state.
    pub machine: M,
    /// For the engine.
    pub parts: Parts<File>,
    /// The superblock and its slot, with the new epoch.
    pub superblock: (Superblock, usize),
    /// Kept checkpoints and the first cursor file each needs, older first.
    pub checkpoints: Vec<(Seq, FileNumber)>,
    /// Newest wall time in the checkpoint.
    pub last_stamp: WallTime,
    /// What was done.
    pub report: Report,
}

/// Told how many bytes of how many were read.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// Recovers a data directory, or makes a new one when it is empty.
///
/// # Errors
/// The start is refused; the error names file and position.
pub fn recover<M: Machine + Default, F: Fs>(
    fs: &F,
    layout: &Layout,
    settings: &EngineSettings,
    new_log: LogId,
    progress: Progress<'_>,
) -> Result<Recovered<M, F::File>, RecoveryError> {
    layout.create(fs)?;
    let superblock = open_superblock(fs, layout, new_log)?;
    let mut recovery = Recovery::<M, F>::begin(fs, layout, settings, superblock, progress)?;
    recovery.restore_checkpoint()?;
    // Files in front of the checkpoint are on their way out, and a crash may take the later one of two first.
    let first = recovery.checkpoint.map_or(FileNumber(1), |info| FileNumber(info.cursor_file));
    let cursors = recovery.cursors.iter().map(|open| open.number).filter(|number| *number >= first);
    let cursors: Vec<FileNumber> = cursors.collect();
    recovery.check_numbers(FileKind::Cursor, first, &cursors)?;
    let segments: Vec<FileNumber> = recovery.segments.iter().map(|open| open.number).collect();
    recovery.check_numbers(FileKind::Segment, FileNumber(1), &segments)?;
    recovery.index_segments()?;
    recovery.replay()?;
    recovery.check_caught_up()?;
    recovery
        .machine
        .verify()
        .map_err(|error| RecoveryError::Incomplete { dir: layout.root().to_owned(), error })?;
    recovery.judge_tail()?;
    recovery.finish()
}

fn open_superblock<F: Fs>(
    fs: &F,
    layout: &Layout,
    new_log: LogId,
) -> Result<(Superblock, usize), RecoveryError> {
    if let Some(found) = superblock::read(fs, layout)? {
        return Ok(found);
    }
    let mut files = 0;
    for kind in [FileKind::Segment, FileKind::Cursor, FileKind::Checkpoint] {
        files += layout.numbers(fs, kind)?.0.len();
    }
    if files > 0 {
        return Err(RecoveryError::MissingSuperblock { dir: layout.root().to_owned(), files });
    }
    let fresh = Superblock {
        generation: 1,
        log: new_log,
        shard: 0,
        shards: 1,
        epoch: Epoch(0),
        checkpoint: Seq(0),
        previous_checkpoint: Seq(0),
        clean_seq: Seq(0),
    };
    hit(Mark::FreshDirectory);
    superblock::create(fs, layout, &fresh)?;
    Ok((fresh, 0))
}

/// A file of the log whose header was checked. It is open while it is walked and no longer: there may be more files than
/// the process has descriptors, and memory for windows.
struct Listed<File> {
    number: FileNumber,
    path: PathBuf,
    header: FileHeader,
    walk: Option<Walk<File>>,
}

impl<File: FsFile> Listed<File> {
    fn open<F: Fs<File = File>>(
        fs: &F,
        layout: &Layout,
        log: LogId,
        kind: FileKind,
        number: FileNumber,
    ) -> Result<Listed<File>, RecoveryError> {
        let path = layout.path(kind, number);
        let walk = Listed::begin(fs, &path, log, kind, number)?;
        Ok(Listed { number, path, header: *walk.header(), walk: Some(walk) })
    }

    fn begin<F: Fs<File = File>>(
        fs: &F,
        path: &Path,
        log: LogId,
        kind: FileKind,
        number: FileNumber,
    ) -> Result<Walk<File>, RecoveryError> {
        let file = fs.open(path, OpenMode::Write)?;
        Walk::open(file, log, kind, number).map_err(|error| RecoveryError::file(path, error))
    }

    /// Its walk; at the beginning, if the file was closed.
    fn walk<F: Fs<File = File>>(&mut self, fs: &F) -> Result<&mut Walk<File>, RecoveryError> {
        let walk = match self.walk.take() {
            Some(walk) => walk,
            None => Listed::begin(fs, &self.path, self.header.log, self.header.kind, self.number)?,
        };
        Ok(self.walk.insert(walk))
    }

    /// Syncs what was read and closes the file. What was read may be in a device's cache only, or in pages that are yet
    /// to be written: the description that it was read through is sure to hear of it if that fails.
    fn close(&mut self) -> io::Result<()> {
        match self.walk.take() {
            Some(walk) => walk.file().sync_data(),
            None => Ok(()),
        }
    }
}

struct Recovery<'a, M, F: Fs> {
    fs: &'a F,
    layout: &'a Layout,
    settings: &'a EngineSettings,
    superblock: (Superblock, usize),
    progress: Progress<'a>,
    machine: M,
    segments: Vec<Listed<F::File>>,
    cursors: Vec<Listed<F::File>>,
    /// Index of the segment that the next message frame is expected in.
    segment_at: usize,
    /// Index of the cursor file in which replay stopped.
    cursor_at: usize,
    checkpoint: Option<CheckpointInfo>,
    checkpoint_bytes: u64,
    checkpoints: Vec<(Seq, FileNumber)>,
    /// Last seq that is whole.
    last_seq: Seq,
    log_time: LogTime,
    epoch: Epoch,
    vouched: Seq,
    /// Where the lanes go on after the last whole group: index of the file and place in it.
    segment_end: Option<(usize, Resume)>,
    cursor_end: Option<(usize, Resume)>,
    /// Where the messages should be of the group that ended replay, if its cursor frame is whole.
    torn_messages: Option<(PathBuf, u64)>,
    cursor_bytes: u64,
    message_bytes: u64,
    read_bytes: u64,
    all_bytes: u64,
    ids: Vec<(IdHash, MessageId)>,
    /// Segments in front of the checkpoint's that are in memory for want of space for an index file.
    unindexed: Vec<FileNumber>,
    report: Report,
}

impl<'a, M: Machine + Default, F: Fs> Recovery<'a, M, F> {
    fn begin(
        fs: &'a F,
        layout: &'a Layout,
        settings: &'a EngineSettings,
        superblock: (Superblock, usize),
        progress: Progress<'a>,
    ) -> Result<Recovery<'a, M, F>, RecoveryError> {
        let log = superblock.0.log;
        let mut recovery = Recovery {
            fs,
            layout,
            settings,
            superblock,
            progress,
            machine: M::default(),
            segments: Vec::new(),
            cursors: Vec::new(),
            segment_at: 0,
            cursor_at: 0,
            checkpoint: None,
            checkpoint_bytes: 0,
            checkpoints: Vec::new(),
            last_seq: Seq(0),
            log_time: LogTime(0),
            epoch: superblock.0.epoch,
            vouched: superblock.0.clean_seq.max(superblock.0.checkpoint),
            segment_end: None,
            cursor_end: None,
            torn_messages: None,
            cursor_bytes: 0,
            message_bytes: 0,
            read_bytes: 0,
            all_bytes: 0,
            ids: Vec::new(),
            unindexed: Vec::new(),
            report: Report::default(),
        };
        recovery.machine.set_log(log);
        for kind in [FileKind::Segment, FileKind::Cursor] {
            let (numbers, strangers) = layout.numbers(fs, kind)?;
            for name in strangers {
                tracing::warn!(
                    "{} is not a file of this log and is left alone",
                    layout.dir(kind).join(name).display()
                );
            }
            for number in numbers {
                let mut listed = Listed::open(fs, layout, log, kind, number)?;
                listed.close()?;
                recovery.all_bytes += listed.header.file_bytes;
                match kind {
                    FileKind::Segment => recovery.segments.push(listed),
                    FileKind::Cursor | FileKind::Checkpoint => recovery.cursors.push(listed),
                }
            }
        }
        Ok(recovery)
    }

    /// Refuses gaps from the first file that must be there on.
    fn check_numbers(
        &self,
        kind: FileKind,
        first: FileNumber,
        numbers: &[FileNumber],
    ) -> Result<(), RecoveryError> {
        let missing = |number: FileNumber, why: &str| RecoveryError::MissingFile {
            path: self.layout.path(kind, number),
            why: why.to_owned(),
        };
        // The first files are made before the first epoch is durable.
        if numbers.is_empty() && self.superblock.0.epoch > Epoch(0) {
            return Err(missing(first, "the superblock says that the log was written to"));
        }
        let mut expected = first;
        for number in numbers {
            while expected < *number {
                // Dropped segments are gone only when the checkpoint says so, whichever of the kept ones it is.
                if kind != FileKind::Segment {
                    return Err(missing(expected, "replay needs it, and later ones are there"));
                }
                if !self.machine.is_dropped(expected) {
                    let why = "no record says that it was dropped, and later ones are there";
                    return Err(missing(expected, why));
                }
                expected = expected.next();
            }
            expected = number.next();
        }
        Ok(())
    }

    /// Restores the newest checkpoint that is whole; the older one stands in for a damaged newer one.
    fn restore_checkpoint(&mut self) -> Result<(), RecoveryError> {
        let block = self.superblock.0;
        if block.checkpoint == Seq(0) {
            if let Some(first) = self.cursors.first()
                && first.number != FileNumber(1)
            {
                return Err(RecoveryError::MissingFile {
                    path: self.layout.path(FileKind::Cursor, FileNumber(1)),
                    why: "there is no checkpoint, so every cursor file is needed".to_owned(),
                });
            }
            hit(Mark::NoCheckpoint);
            return Ok(());
        }
        let mut failure = None;
        for seq in [block.checkpoint, block.previous_checkpoint] {
            if seq == Seq(0) {
                continue;
            }
            let path = self.layout.checkpoint(seq);
            match self.load_checkpoint(&path, seq) {
                Ok(info) => {
                    if self.checkpoint.is_none() {
                        let newest = seq == block.checkpoint;
                        hit(if newest { Mark::CheckpointNewest } else { Mark::CheckpointOlder });
                        self.last_seq = seq;
                        self.log_time = info.log_time;
                        self.report.checkpoint = seq;
                        self.vouched = self.vouched.max(info.until);
                        self.checkpoint = Some(info);
                    }
                    self.checkpoints.insert(0, (seq, FileNumber(info.cursor_file)));
                }
                Err(error) => {
                    hit(Mark::CheckpointDamaged);
                    tracing::error!("checkpoint {} cannot be used: {error}", path.display());
                    failure.get_or_insert(RecoveryError::Checkpoint { path, error: error.to_string() });
                }
            }
        }
        match (self.checkpoint, failure) {
            (None, Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Verifies a checkpoint as a whole, chunk by chunk; then its records are applied if no other one's were.
    fn load_checkpoint(&mut self, path: &Path, seq: Seq) -> Result<CheckpointInfo, LoadError> {
        let file = self.fs.open(path, OpenMode::Read)?;
        let read = |position, bytes| file.read_at(position, bytes).map_err(LoadError::from);
        let mut decoder = Decoder::new(read, file.bytes()?, self.superblock.0.log, seq)?;
        let info = *decoder.info();
        if self.checkpoint.is_none() {
            let mut machine = M::default();
            machine.set_log(self.superblock.0.log);
            // Its records are of different moments; replay of the groups up to `until` makes them one state.
            machine.set_catching_up(true);
            decoder.for_each(|delta| {
                machine.apply(delta)?;
                machine.forget_notes();
                Ok(())
            })?;
            self.machine = machine;
            self.checkpoint_bytes = decoder.header().file_bytes;
        }
        Ok(info)
    }

    /// The strict checks hold again once every group is in that a checkpoint's records may know of.
    fn end_catching_up(&mut self) {
        if self.checkpoint.is_none_or(|info| self.last_seq >= info.until) {
            self.machine.set_catching_up(false);
        }
    }

    /// A checkpoint is named only when everything in it is durable, so a log that ends before is damaged. Its records
    /// are then of no use: they do not add up to any state.
    fn check_caught_up(&mut self) -> Result<(), RecoveryError> {
        let Some(info) = self.checkpoint.filter(|info| self.last_seq < info.until) else { return Ok(()) };
        let (path, position, or) = self.first_damage()?;
        Err(RecoveryError::Refused {
            path,
            position,
            seq: self.last_seq.next(),
            verdict: Verdict::Corruption,
            detail: format!(
                "the log ends at seq {}, and the checkpoint at seq {} holds what groups up to seq {} changed{or}",
                self.last_seq, info.seq, info.until
            ),
        })
    }

    fn count(&mut self, bytes: u64) {
        self.read_bytes += bytes;
        (self.progress)(self.read_bytes.min(self.all_bytes), self.all_bytes);
    }

    /// Takes in the messages that the checkpoint covers: of sealed segments from their index files, of the segment in
    /// which replay goes on from its frames. All of them are vouched for, so anything that is not whole is corruption.
    fn index_segments(&mut self) -> Result<(), RecoveryError> {
        let Some(info) = self.checkpoint else { return Ok(()) };
        loop {
            let Some(open) = self.segments.get_mut(self.segment_at) else {
                return Err(RecoveryError::MissingFile {
                    path: self.layout.path(FileKind::Segment, info.segment),
                    why: format!("the checkpoint at seq {} names it", info.seq),
                });
            };
            if open.number >= info.segment {
                return self.index_frames(&info);
            }
            let number = open.number;
            if self.machine.is_dropped(number) {
                self.next_segment()?;
                continue;
            }
            if !self.attach_index(number)? {
                self.index_frames(&info)?;
                self.unindexed.push(number);
            }
            self.next_segment()?;
        }
    }

    /// Takes in what the index file of a segment says, built anew if need be. `false`: there is no space for one.
    fn attach_index(&mut self, segment: FileNumber) -> Result<bool, RecoveryError> {
        let log = self.superblock.0.log;
        let path = self.layout.index(segment);
        if let Err(error) = self.attach_spans(&path, segment) {
            tracing::warn!("building {} anew: {error}", path.display());
            match index_file::rebuild(self.fs, self.layout, log, segment) {
                Ok(()) => {}
                Err(IndexFileError::Io(error)) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!("the index of segment {segment} stays in memory: {error}");
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
            self.attach_spans(&path, segment).map_err(|error| RecoveryError::index(path, error))?;
        }
        Ok(true)
    }

    fn attach_spans(&mut self, path: &Path, segment: FileNumber) -> Result<(), IndexError> {
        let file = self.fs.open(path, OpenMode::Read)?;
        let sealed = Sealed::open(file, self.superblock.0.log, segment)?;
        // Checked as a whole before anything of it is taken in.
        sealed.spans(&mut |_| ())?;
        self.machine.attach_segment(sealed.info());
        let machine = &mut self.machine;
        sealed.spans(&mut |span| machine.attach_span(segment, &span))
    }

    /// Takes in the frames of the present segment that the checkpoint covers.
    fn index_frames(&mut self, info: &CheckpointInfo) -> Result<(), RecoveryError> {
        loop {
            let Some(open) = self.segments.get_mut(self.segment_at) else { return Ok(()) };
            let (number, path) = (open.number, open.path.clone());
            let walk = open.walk(self.fs)?;
            let resume = walk.resume();
            if number == info.segment && resume.position >= info.segment_position {
                self.segment_end = Some((self.segment_at, resume));
                return Ok(());
            }
            match walk.next_frame()? {
                Some(found) if found.header.kind == FrameKind::Commit && found.header.seq <= info.seq => {
                    self.count(found.body.len() as u64);
                    self.apply_runs(&path, number, &found)?;
                    self.machine.forget_notes();
                }
                Some(found) if found.header.kind == FrameKind::Seal => {
                    hit(Mark::SegmentSealed);
                    return Ok(());
                }
                Some(_) => {}
                None if number < info.segment && walk.ends_here()? => {
                    hit(Mark::SegmentUnsealed);
                    return Ok(());
                }
                None => return Err(Self::covered(path, resume, info)),
            }
        }
    }

    /// The refusal of damage below a checkpoint.
    fn covered(path: PathBuf, resume: Resume, info: &CheckpointInfo) -> RecoveryError {
        RecoveryError::Refused {
            path,
            position: resume.position,
            seq: resume.last_seq.next(),
            verdict: Verdict::Corruption,
            detail: format!("the checkpoint at seq {} covers it", info.seq),
        }
    }

    fn next_segment(&mut self) -> io::Result<()> {
        if let Some(open) = self.segments.get_mut(self.segment_at) {
            open.close()?;
        }
        self.segment_at += 1;
        Ok(())
    }

    fn next_cursor(&mut self) -> io::Result<()> {
        if let Some(open) = self.cursors.get_mut(self.cursor_at) {
            open.close()?;
        }
        self.cursor_at += 1;
        Ok(())
    }

    fn impossible(path: &Path, found: &Found, error: &impl ToString) -> RecoveryError {
        RecoveryError::Impossible {
            path: path.to_owned(),
            position: found.position,
            seq: found.header.seq,
            error: error.to_string(),
        }
    }

    fn apply_runs(&mut self, path: &Path, segment: FileNumber, found: &Found) -> Result<(), RecoveryError> {
        let mut ids = std::mem::take(&mut self.ids);
        for item in Runs::new(&found.body) {
            let item = item.map_err(|error| Self::impossible(path, found, &error))?;
            ids.clear();
            item.ids(&mut ids).map_err(|error| Self::impossible(path, found, &error))?;
            let position =
                found.position + crate::format::frame::FRAME_HEADER_BYTES as u64 + u64::from(item.position);
            self.machine
                .apply_run(&item.header, &ids, Place { segment, position })
                .map_err(|error| Self::impossible(path, found, &error))?;
            self.report.runs += 1;
        }
        self.ids = ids;
        Ok(())
    }

    /// Replays cursor frames until one group is not whole.
    fn replay(&mut self) -> Result<(), RecoveryError> {
        self.end_catching_up();
        let first = self.checkpoint.map_or(FileNumber(1), |info| FileNumber(info.cursor_file));
        let Some(at) = self.cursors.iter().position(|open| open.number == first) else {
            if self.cursors.is_empty() {
                return Ok(());
            }
            return Err(RecoveryError::MissingFile {
                path: self.layout.path(FileKind::Cursor, first),
                why: "replay begins in it".to_owned(),
            });
        };
        self.cursor_at = at;
        loop {
            let Some(open) = self.cursors.get_mut(self.cursor_at) else { return Ok(()) };
            let path = open.path.clone();
            let walk = open.walk(self.fs)?;
            let before = walk.resume();
            let Some(found) = walk.next_frame()? else {
                self.cursor_end = Some((self.cursor_at, before));
                if !self.continues_in_next_file()? {
                    return Ok(());
                }
                hit(Mark::CursorUnsealed);
                self.next_cursor()?;
                continue;
            };
            self.count(found.body.len() as u64);
            self.vouched = self.vouched.max(found.header.watermark);
            self.epoch = self.epoch.max(found.header.epoch);
            match found.header.kind {
                FrameKind::Commit if found.header.seq <= self.last_seq => hit(Mark::GroupCovered),
                FrameKind::Commit => {
                    if !self.replay_group(&path, &found)? {
                        hit(Mark::MessagesTorn);
                        self.cursor_end = Some((self.cursor_at, before));
                        return Ok(());
                    }
                }
                FrameKind::Noop => hit(Mark::Noop),
                FrameKind::Rewrite => {
                    return Err(Self::impossible(&path, &found, &"a rewrite frame in a cursor file"));
                }
                FrameKind::Seal => {
                    let seal = SealBody::decode(&found.body)
                        .map_err(|error| Self::impossible(&path, &found, &error))?;
                    hit(Mark::CursorSealed);
                    self.cursor_end = Some((self.cursor_at, before));
                    self.next_cursor()?;
                    if self.cursors.get(self.cursor_at).is_none_or(|next| next.number != seal.successor) {
                        return Err(RecoveryError::MissingFile {
                            path: self.layout.path(FileKind::Cursor, seal.successor),
                            why: format!("the seal of {} names it", path.display()),
                        });
                    }
                }
            }
            // Not before: the time of a group that is cut is cut with it, or a start that follows would show another.
            self.log_time = self.log_time.max(found.header.log_time);
        }
    }

    /// Whether the file after the present one begins with the frame that comes next: the seal of the present one is
    /// written later than the first frames of its successor.
    fn continues_in_next_file(&mut self) -> Result<bool, RecoveryError> {
        let next_seq = self.last_seq.next();
        let log = self.superblock.0.log;
        let Some(next) = self.cursors.get(self.cursor_at + 1) else { return Ok(false) };
        let file = self.fs.open(&next.path, OpenMode::Read)?;
        let mut peek = Walk::open(file, log, FileKind::Cursor, next.number)
            .map_err(|error| RecoveryError::file(&next.path, error))?;
        Ok(match peek.next_frame()? {
            Some(found) if found.header.kind == FrameKind::Commit => found.header.seq == next_seq,
            Some(found) => found.header.seq == self.last_seq,
            None => false,
        })
    }

    /// Applies one group; `false` if its messages are not whole.
    fn replay_group(&mut self, path: &Path, found: &Found) -> Result<bool, RecoveryError> {
        let seq = found.header.seq;
        if seq != self.last_seq.next() {
            let error = format!("the group after {} is {seq}", self.last_seq);
            return Err(Self::impossible(path, found, &error));
        }
        let (reference, deltas) =
            read_body(&found.body).map_err(|error| Self::impossible(path, found, &error))?;
        let messages = match &reference {
            None => None,
            Some(reference) => match self.message_frame(seq, reference)? {
                Some(messages) => Some(messages),
                None => {
                    let segment = self.layout.path(FileKind::Segment, reference.segment);
                    self.torn_messages = Some((segment, reference.position));
                    return Ok(false);
                }
            },
        };
        let mut records = 0;
        for delta in deltas {
            let delta = delta.map_err(|error| Self::impossible(path, found, &error))?;
            self.machine.apply(&delta).map_err(|error| Self::impossible(path, found, &error))?;
            records += 1;
        }
        if records != found.header.records {
            let error = format!("{records} records where the header says {}", found.header.records);
            return Err(Self::impossible(path, found, &error));
        }
        if let Some((path, segment, messages)) = messages {
            self.count(messages.body.len() as u64);
            self.message_bytes += messages.header.frame_bytes();
            self.apply_runs(&path, segment, &messages)?;
            if let Some(open) = self.segments.get_mut(self.segment_at) {
                self.segment_end = Some((self.segment_at, open.walk(self.fs)?.resume()));
            }
        }
        self.machine.forget_notes();
        self.last_seq = seq;
        self.end_catching_up();
        self.cursor_bytes += found.header.frame_bytes();
        self.report.groups += 1;
        Ok(true)
    }

    /// The message frame that a cursor frame names, if it is whole.
    fn message_frame(
        &mut self,
        seq: Seq,
        reference: &MessageRef,
    ) -> Result<Option<(PathBuf, FileNumber, Found)>, RecoveryError> {
        loop {
            let Some(open) = self.segments.get_mut(self.segment_at) else { return Ok(None) };
            if open.number < reference.segment {
                // What is left of this file are noops and a seal; they were written before or beside what follows.
                let walk = open.walk(self.fs)?;
                while let Some(found) = walk.next_frame()? {
                    self.vouched = self.vouched.max(found.header.watermark);
                    if found.header.kind == FrameKind::Commit {
                        return Ok(None);
                    }
                }
                hit(Mark::SegmentLeft);
                self.next_segment()?;
                continue;
            }
            if open.number > reference.segment {
                return Ok(None);
            }
            let walk = open.walk(self.fs)?;
            if walk.resume().position > reference.position {
                return Ok(None);
            }
            let Some(found) = walk.next_frame()? else { return Ok(None) };
            self.vouched = self.vouched.max(found.header.watermark);
            self.epoch = self.epoch.max(found.header.epoch);
            if found.position < reference.position && found.header.kind == FrameKind::Noop {
                continue;
            }
            let whole = found.position == reference.position
                && found.header.kind == FrameKind::Commit
                && found.header.seq == seq
                && found.header.body_bytes == reference.body_bytes
                && found.header.body_hash == reference.body_hash;
            return Ok(whole.then(|| (open.path.clone(), open.number, found)));
        }
    }
}
