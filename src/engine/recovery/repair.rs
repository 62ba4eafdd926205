//! The end of recovery: the tail rule, what it cuts, and the lanes that go on.
//!
//! Invariant: nothing is zeroed before its copy in quarantine is durable.

use std::io;
use std::path::{Path, PathBuf};

use super::marks::{Mark, hit};
use super::{Listed, Recovered, Recovery, RecoveryError};
use crate::engine::commit::Parts;
use crate::engine::lane::{Lane, Prepared};
use crate::engine::machine::Machine;
use crate::engine::readers::Readers;
use crate::engine::superblock;
use crate::format::file_header::{FileHeader, FileKind};
use crate::format::frame::FrameKind;
use crate::io::{AlignedBuf, BLOCK_BYTES, Fs, FsFile, OpenMode, ReadAt};
use crate::log::files::{prepare, scrub};
use crate::log::tail::{Findings, Verdict, decide};
use crate::types::{Epoch, FileNumber, Seq, WallTime};

impl<M: Machine + Default, F: Fs> Recovery<'_, M, F> {
    /// Collects what stands behind the last whole group in both lanes, decides, and repairs.
    pub(super) fn judge_tail(&mut self) -> Result<(), RecoveryError> {
        let stop = self.last_seq.next();
        // A group that was not whole moved the segment's walk past it: go back to the end of the last whole one.
        let (segment_at, segment_from) = self.lane_end(FileKind::Segment)?;
        let (cursor_at, cursor_from) = self.lane_end(FileKind::Cursor)?;
        let clean = self.superblock.0.clean_seq == self.last_seq && self.last_seq > Seq(0);
        if clean {
            hit(Mark::CleanMark);
            return Ok(()); // the last process left nothing to look for
        }
        let mut found = Findings { vouched: self.vouched, ..Findings::default() };
        let mut depth = self.settings.pipeline_depth;
        let mut dirty = Vec::new();
        for (kind, at, from) in
            [(FileKind::Segment, segment_at, segment_from), (FileKind::Cursor, cursor_at, cursor_from)]
        {
            let files = match kind {
                FileKind::Segment => &mut self.segments,
                FileKind::Cursor | FileKind::Checkpoint => &mut self.cursors,
            };
            for (index, open) in files.iter_mut().enumerate().skip(at) {
                let from = if index == at { from } else { BLOCK_BYTES as u64 };
                let header = open.header;
                depth = depth.max(header.pipeline_depth);
                let later = open.walk(self.fs)?.later_frames(from)?;
                open.close()?;
                found.vouched = found.vouched.max(later.watermark);
                found.highest_seq = found.highest_seq.max(later.highest_seq.filter(|seq| *seq >= stop));
                let window = header.max_frame_bytes * u64::from(header.pipeline_depth + 1);
                found.too_wide |= later.count > 0 && later.last_position > from + window;
                found.damage |= later.dirty_end > from;
                if later.dirty_end > from {
                    dirty.push((kind, index, from, later.dirty_end));
                }
            }
        }
        let verdict = decide(stop, depth, &found);
        hit(match verdict {
            Verdict::Corruption => Mark::Corruption,
            Verdict::Impossible => Mark::Impossible,
            Verdict::NotATornWrite => Mark::NotATornWrite,
            Verdict::CutInFlight => Mark::CutInFlight,
            Verdict::TornTail => Mark::TornTail,
            Verdict::CleanEnd => Mark::CleanEnd,
        });
        let cursor = self.cursors.get(cursor_at).map(|open| open.path.clone()).unwrap_or_default();
        match verdict {
            Verdict::Corruption | Verdict::Impossible | Verdict::NotATornWrite => {
                let (path, position, or) = self.first_damage()?;
                return Err(RecoveryError::Refused {
                    path,
                    position,
                    seq: stop,
                    verdict,
                    detail: format!(
                        "frames vouch for everything up to seq {}, highest seq found behind it: {}{or}",
                        found.vouched,
                        found.highest_seq.map_or_else(|| "none".to_owned(), |seq| seq.to_string()),
                    ),
                });
            }
            Verdict::CutInFlight => {
                tracing::warn!(
                    "cutting seq {stop} and what was in flight with it at {} byte {cursor_from}: none of it was acknowledged; copies go to {}",
                    cursor.display(),
                    self.layout.quarantine_dir().display()
                );
                self.report.cut = Some(stop);
            }
            Verdict::TornTail => {
                tracing::warn!(
                    "cutting a torn tail at seq {stop}, {} byte {cursor_from}: it was never acknowledged",
                    cursor.display()
                );
                self.report.cut = Some(stop);
            }
            Verdict::CleanEnd => {}
        }
        for (kind, index, from, to) in dirty {
            self.cut(kind, index, from, to)?;
        }
        Ok(())
    }

    /// Index of the file in which a lane ends and the byte where its next frame goes: behind the last whole group,
    /// and behind the noops that follow it.
    ///
    /// The roll to the last segment may be lost although a record that came behind it, and that dropped the segment
    /// before, is not: nothing may ever be appended to a segment that is dropped.
    fn lane_end(&mut self, kind: FileKind) -> Result<(usize, u64), RecoveryError> {
        if kind == FileKind::Segment {
            let is_dropped = |open: &Listed<F::File>| self.machine.is_dropped(open.number);
            while self.segments.get(self.segment_at).is_some_and(is_dropped) {
                hit(Mark::DroppedEnd);
                self.segment_at += 1;
            }
            if let Some(last) = self.segments.last().filter(|_| self.segment_at == self.segments.len()) {
                return Err(RecoveryError::MissingFile {
                    path: self.layout.path(kind, last.number.next()),
                    why: "all that are there were dropped, so there was another one".to_owned(),
                });
            }
        }
        let (files, at, end) = match kind {
            FileKind::Segment => (&mut self.segments, self.segment_at, &mut self.segment_end),
            FileKind::Cursor | FileKind::Checkpoint => {
                (&mut self.cursors, self.cursor_at, &mut self.cursor_end)
            }
        };
        let Some(open) = files.get_mut(at) else { return Ok((at, BLOCK_BYTES as u64)) };
        // Where the lane has moved on to a file without a whole group, it goes on at that file's beginning.
        let mut resume = match *end {
            Some((index, resume)) if index == at => resume,
            _ => open.walk(self.fs)?.beginning(),
        };
        let walk = open.walk(self.fs)?;
        walk.rewind(resume);
        while let Some(found) = walk.next_frame()? {
            match found.header.kind {
                FrameKind::Noop => resume = walk.resume(),
                FrameKind::Commit | FrameKind::Seal | FrameKind::Rewrite => break,
            }
        }
        *end = Some((at, resume));
        Ok((at, resume.position))
    }

    /// File and byte of the first thing that is not whole, for a refusal; and what it may be instead, as words.
    pub(super) fn first_damage(&mut self) -> Result<(PathBuf, u64, String), RecoveryError> {
        if let Some((path, position)) = self.torn_messages.take() {
            return Ok((path, position, String::new()));
        }
        let (at, from) = self.lane_end(FileKind::Cursor)?;
        let Some(open) = self.cursors.get_mut(at) else {
            return Ok((self.layout.dir(FileKind::Cursor), 0, String::new()));
        };
        let path = open.path.clone();
        let walk = open.walk(self.fs)?;
        if let Some((_, resume)) = self.cursor_end {
            walk.rewind(resume);
        }
        // A file that was left for its successor ends in its seal, in nothing, or in a torn seal.
        let is_left = match walk.next_frame()? {
            Some(found) => found.header.kind == FrameKind::Seal,
            None => walk.ends_here()?,
        };
        let is_clean =
            is_left && (walk.resume().position > from || walk.later_frames(from)?.dirty_end == from);
        if let Some(next) = self.cursors.get_mut(at + 1).filter(|_| is_left) {
            let walk = next.walk(self.fs)?;
            let first = walk.beginning().position;
            if walk.later_frames(first)?.dirty_end > first {
                return Ok(match is_clean {
                    true => (next.path.clone(), first, String::new()),
                    false => (path, from, format!(", or at the beginning of {}", next.path.display())),
                });
            }
        }
        Ok((path, from, String::new()))
    }

    /// Copies a stretch to quarantine, durably, then zeroes it. A start needs no free space: where there is none for
    /// the copy, the stretch, which was never acknowledged, goes without one.
    fn cut(&mut self, kind: FileKind, index: usize, from: u64, to: u64) -> Result<(), RecoveryError> {
        let files = match kind {
            FileKind::Segment => &self.segments,
            FileKind::Cursor | FileKind::Checkpoint => &self.cursors,
        };
        let Some(open) = files.get(index) else { return Ok(()) };
        let name = open.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // Starts that were killed before they were through have the same epoch, and their copy is the better one: the
        // stretch may be half zeroed by now.
        let epoch = self.superblock.0.epoch;
        let copy = self
            .layout
            .quarantine_dir()
            .join(format!("{name}.{from}.seq{}.epoch{epoch}", self.last_seq.next()));
        let file = self.fs.open(&open.path, OpenMode::Write)?;
        let copied = match copy_of(self.fs, &copy, to - from)? {
            true => {
                hit(Mark::QuarantinedBefore);
                Ok(())
            }
            false => {
                hit(Mark::Quarantined);
                remove_if_there(self.fs, &copy)?;
                copy_out(self.fs, &file, from, to, &copy)
            }
        };
        match copied {
            Ok(()) => self.report.quarantined_bytes += to - from,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                hit(Mark::QuarantineFull);
                tracing::warn!(
                    "no space for {}: bytes {from} to {to} of {name} are cut without a copy",
                    copy.display()
                );
                remove_if_there(self.fs, &copy)?;
            }
            Err(error) => return Err(error.into()),
        }
        self.fs.sync_dir(&self.layout.quarantine_dir())?;
        scrub(&file, from, to)?;
        Ok(())
    }

    /// Makes what was read durable, raises the epoch, and opens the lanes.
    pub(super) fn finish(mut self) -> Result<Recovered<M, F::File>, RecoveryError> {
        let log = self.superblock.0.log;
        for kind in [FileKind::Segment, FileKind::Cursor] {
            let empty = match kind {
                FileKind::Segment => self.segments.is_empty(),
                FileKind::Cursor | FileKind::Checkpoint => self.cursors.is_empty(),
            };
            if empty {
                hit(Mark::FirstFiles);
                let header = self.settings.header(kind, log, FileNumber(1), Epoch(0), Seq(0));
                prepare(self.fs, self.layout, &header)?;
            }
        }
        self.drop_outdated_spares()?;
        self.drop_leftovers()?;
        // Nothing is served before everything that was read is synced; the other files were when they were closed.
        for open in self.segments.iter_mut().chain(&mut self.cursors) {
            open.close()?;
        }
        for kind in [FileKind::Segment, FileKind::Cursor] {
            self.fs.sync_dir(&self.layout.dir(kind))?;
        }
        let epoch = Epoch(self.epoch.0 + 1);
        superblock::write(self.fs, self.layout, &mut self.superblock, |block| {
            block.epoch = epoch;
            block.clean_seq = Seq(0);
        })?;
        let segments = self.open_lane(FileKind::Segment)?;
        let cursors = self.open_lane(FileKind::Cursor)?;
        let mut readers = Readers::new(self.fs, self.layout);
        readers.add(segments.active.number());
        self.segments.iter().for_each(|open| readers.add(open.number));
        let mut unindexed = self.unindexed;
        let active = segments.active.number();
        // What was replayed is in memory; whatever is in front of the active file is not written any more.
        let replayed = self.checkpoint.map_or(FileNumber(1), |info| info.segment);
        let numbers = self.segments.iter().map(|open| open.number);
        unindexed.extend(numbers.filter(|number| *number >= replayed && *number < active));
        let machine = &self.machine;
        let numbers = self.segments.iter().map(|open| open.number);
        let dropped: Vec<FileNumber> = numbers.filter(|number| machine.is_dropped(*number)).collect();
        unindexed.retain(|number| !dropped.contains(number));
        Ok(Recovered {
            machine: self.machine,
            parts: Parts {
                log,
                epoch,
                last_seq: self.last_seq,
                log_time: self.log_time,
                segments,
                cursors,
                readers,
                checkpoint: self.superblock.0.checkpoint,
                checkpoint_bytes: self.checkpoint_bytes,
                cursor_bytes: self.cursor_bytes,
                unindexed,
                dropped,
                message_bytes: self.message_bytes,
            },
            superblock: self.superblock,
            checkpoints: self.checkpoints,
            last_stamp: self.checkpoint.map_or(WallTime(0), |info| info.last_stamp),
            report: self.report,
        })
    }

    /// Removes the empty files behind the end of each lane that were prepared under other settings, last one first:
    /// a frame that the present settings allow must find a file that may hold it.
    fn drop_outdated_spares(&mut self) -> Result<(), RecoveryError> {
        let log = self.superblock.0.log;
        for kind in [FileKind::Segment, FileKind::Cursor] {
            let wanted = self.settings.header(kind, log, FileNumber(1), Epoch(0), Seq(0));
            let (files, at) = match kind {
                FileKind::Segment => (&mut self.segments, self.segment_at),
                FileKind::Cursor | FileKind::Checkpoint => (&mut self.cursors, self.cursor_at),
            };
            let is_outdated = |open: &Listed<F::File>| {
                let header = &open.header;
                (header.file_bytes, header.max_frame_bytes, header.pipeline_depth)
                    != (wanted.file_bytes, wanted.max_frame_bytes, wanted.pipeline_depth)
            };
            // Numbers have no gaps, so everything behind the first outdated one goes.
            let Some(first) = files.iter().skip(at + 1).position(is_outdated) else { continue };
            while files.len() > at + 1 + first {
                let Some(open) = files.pop() else { break };
                hit(Mark::SpareOutdated);
                self.fs.remove(&open.path)?;
            }
            self.fs.sync_dir(&self.layout.dir(kind))?;
        }
        Ok(())
    }

    /// Removes what a process left that died while it prepared a file or wrote a checkpoint: half-made files, and
    /// checkpoints that the superblock does not name.
    fn drop_leftovers(&self) -> Result<(), RecoveryError> {
        for entry in self.fs.list(&self.layout.spare_dir())? {
            if !entry.directory && entry.name.ends_with(".tmp") {
                hit(Mark::LeftoverFile);
                self.fs.remove(&self.layout.spare_dir().join(entry.name))?;
            }
        }
        let (segments, indexes) = (&self.segments, self.layout.indexes(self.fs)?);
        // Of a segment that goes on, an index can only be from a roll that was lost.
        let active = segments.get(self.segment_at).map_or(FileNumber(1), |open| open.number);
        for number in indexes {
            if number >= active || segments.binary_search_by_key(&number, |open| open.number).is_err() {
                self.fs.remove(&self.layout.index(number))?;
            }
        }
        let named = [self.superblock.0.checkpoint, self.superblock.0.previous_checkpoint];
        let (numbers, _) = self.layout.numbers(self.fs, FileKind::Checkpoint)?;
        for number in numbers.into_iter().filter(|number| !named.contains(&Seq(number.0))) {
            hit(Mark::LeftoverCheckpoint);
            self.fs.remove(&self.layout.path(FileKind::Checkpoint, number))?;
        }
        Ok(())
    }

    fn open_lane(&self, kind: FileKind) -> Result<Lane<F::File>, RecoveryError> {
        let (files, at, end) = match kind {
            FileKind::Segment => (&self.segments, self.segment_at, self.segment_end),
            FileKind::Cursor | FileKind::Checkpoint => (&self.cursors, self.cursor_at, self.cursor_end),
        };
        let mut active = None;
        let mut prepared = Vec::new();
        let fresh: FileHeader =
            self.settings.header(kind, self.superblock.0.log, FileNumber(1), Epoch(0), Seq(0));
        let headers: Vec<FileHeader> =
            if files.is_empty() { vec![fresh] } else { files.iter().map(|open| open.header).collect() };
        for (index, header) in headers.iter().enumerate() {
            if index < at {
                continue; // read on demand
            }
            let resume = end.filter(|_| index == at).map(|(_, resume)| resume);
            let file = Prepared::open(self.fs, self.layout, header, resume)?;
            if index == at {
                active = Some(file.appender);
            } else {
                prepared.push(file);
            }
        }
        let active = active.unwrap_or_else(|| unreachable!("a lane has a file at least"));
        Ok(Lane::new(kind, active, prepared, Vec::new()))
    }
}

fn remove_if_there<F: Fs>(fs: &F, path: &Path) -> io::Result<()> {
    match fs.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a whole copy is there already; it is durable then.
fn copy_of<F: Fs>(fs: &F, path: &Path, bytes: u64) -> io::Result<bool> {
    let file = match fs.open(path, OpenMode::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let whole = file.bytes()? >= bytes;
    if whole {
        file.sync_data()?;
    }
    Ok(whole)
}

/// Copies a stretch of a file into a new one, durably but for its name.
fn copy_out<F: Fs>(fs: &F, from_file: &F::File, from: u64, to: u64, copy: &Path) -> io::Result<()> {
    let target = fs.open(copy, OpenMode::Create)?;
    let mut position = from;
    while position < to {
        let bytes = usize::try_from((to - position).min(1 << 20)).unwrap_or(BLOCK_BYTES);
        let mut data = AlignedBuf::with_capacity(bytes);
        data.extend_from_slice(&from_file.read_at(position, bytes)?);
        data.pad_to_block();
        target.write_at(position - from, &data)?;
        position += bytes as u64;
    }
    target.sync_data()
}
