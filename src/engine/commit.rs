//! The engine while it runs: the open group, groups in flight, the watermark.
//!
//! stage → submit → commit → publish. The storage thread stages into the open group, `submit` hands it to the
//! kernel in one system call as soon as a pipeline slot is free, `poll` collects completions and raises the
//! watermark. Positions in the segment are assigned while a group is open, so a group that has messages stays in the
//! segment it began in.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::cursor;
use crate::engine::EngineSettings;
use crate::engine::checkpoint::Checkpointing;
use crate::engine::lane::Lane;
use crate::engine::lookup::{LookedUp, Lookups};
use crate::engine::maintenance::{Job, Outcome};
use crate::engine::readers::Readers;
use crate::engine::space::SegmentNews;
use crate::format::file_header::FileKind;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameKind, MessageRef, frame_bytes};
use crate::index::Lookup;
use crate::index::rows::SegmentRows;
use crate::index::tiers::Tiers;
use crate::io::{AlignedBuf, Clock, Completion, Ring};
use crate::log::appender::{Frame, Stamp, empty_body};
use crate::log::cache::TailCache;
use crate::types::{Epoch, FileNumber, LogId, LogTime, Seq};

/// A cursor frame takes no more records once its body has so many bytes.
pub(super) const CURSOR_GROUP_BYTES: u64 = 1 << 20;

/// How long to wait before a file that could not be prepared is asked for again.
const PREPARE_AGAIN_US: u64 = 1_000_000;

/// What a completion belongs to.
const WRITE: u64 = 0;
pub(super) const LOAD: u64 = 1;

/// The first failure of storage. Nothing is claimed after it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Poison(pub String);

#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) messages: Option<AlignedBuf>,
    pub(super) runs: u32,
    pub(super) deltas: Vec<u8>,
    pub(super) records: u32,
}

impl Group {
    pub(super) fn is_empty(&self) -> bool {
        self.runs == 0 && self.records == 0
    }

    pub(super) fn message_bytes(&self) -> u64 {
        self.messages.as_ref().map_or(0, |data| data.len() as u64)
    }
}

/// A group, a noop or a seal on its way to the disk.
#[derive(Debug)]
pub(super) struct Flight {
    ticket: u64,
    seq: Seq,
    unfinished: u32,
    /// The segment that this seals.
    seals: Option<FileNumber>,
    /// The message frame, by segment and position: a file does not have it before it is written.
    pub(super) messages: Option<(FileNumber, u64, Arc<AlignedBuf>)>,
}

/// Runtime parts that recovery hands over.
#[derive(Debug)]
pub struct Parts<File> {
    /// The log.
    pub log: LogId,
    /// This process start, durable.
    pub epoch: Epoch,
    /// Last durable seq.
    pub last_seq: Seq,
    /// Log time of the last frame.
    pub log_time: LogTime,
    /// Segments.
    pub segments: Lane<File>,
    /// Cursor files.
    pub cursors: Lane<File>,
    /// Every segment, for reads.
    pub readers: Readers<File>,
    /// The newest checkpoint; 0 for none.
    pub checkpoint: Seq,
    /// Bytes of the checkpoint that recovery began with.
    pub checkpoint_bytes: u64,
    /// Bytes of cursor frames since the newest checkpoint.
    pub cursor_bytes: u64,
    /// Bytes of message frames since the newest checkpoint.
    pub message_bytes: u64,
    /// Segments in front of the active one that have no index file.
    pub unindexed: Vec<FileNumber>,
    /// Segments that a record dropped, and whose files are there.
    pub dropped: Vec<FileNumber>,
}

/// Where an engine's slow work is done.
#[derive(Debug)]
pub struct Channels<File> {
    /// What maintenance is asked for.
    pub jobs: mpsc::Sender<Job<File>>,
    /// What came of it.
    pub outcomes: mpsc::Receiver<Outcome<File>>,
    /// Index lookups.
    pub lookups: Lookups,
}

/// The engine.
pub struct Engine<R: Ring> {
    pub(super) ring: R,
    clock: Clock,
    pub(super) settings: EngineSettings,
    pub(super) log: LogId,
    epoch: Epoch,
    pub(super) segments: Lane<R::File>,
    pub(super) cursors: Lane<R::File>,
    pub(super) readers: Readers<R::File>,
    pub(super) tail: TailCache,
    pub(super) open: Group,
    pub(super) flights: VecDeque<Flight>,
    pub(super) next_ticket: u64,
    submitted: Seq,
    watermark: Seq,
    noop_at: Seq,
    log_time_base: u64,
    boot_base: u64,
    active_at_us: u64,
    pub(super) jobs: mpsc::Sender<Job<R::File>>,
    outcomes: mpsc::Receiver<Outcome<R::File>>,
    prepare_again_at_us: u64,
    pub(super) full_free_bytes: Option<u64>,
    pub(super) checkpointing: Checkpointing,
    close_sent: bool,
    closed: bool,
    pub(super) loads: HashMap<u64, u64>,
    pub(super) loaded: Vec<(u64, io::Result<Bytes>)>,
    pub(super) lookups: Lookups,
    /// Sealed segments that have no index file yet.
    sealed: Vec<FileNumber>,
    /// Segments whose index file is new.
    indexed: Vec<FileNumber>,
    pub(super) segment_news: Vec<SegmentNews>,
    /// Dropped segments whose files are there.
    pub(super) waiting: u64,
    pub(super) dropped: Vec<FileNumber>,
    /// The next submit moves on to the next segment, whatever room there is.
    pub(super) roll_asked: bool,
    /// Filters that are new.
    filters: Option<Arc<Tiers>>,
    /// Steps of work on filters that maintenance has to do.
    filter_steps: usize,
    completions: Vec<Completion>,
    poison: Option<Poison>,
    /// Bytes of runs that did not fit the active segment; the next `submit` rolls for them.
    pub(super) wanted: std::cell::Cell<u64>,
}

impl<R: Ring> Engine<R> {
    /// An engine that goes on where recovery ended.
    pub fn new(
        ring: R,
        clock: Clock,
        settings: EngineSettings,
        parts: Parts<R::File>,
        channels: Channels<R::File>,
    ) -> Engine<R> {
        let boot_base = clock.boot_us();
        let checkpointing = Checkpointing::new(&parts);
        Engine {
            ring,
            clock,
            log: parts.log,
            epoch: parts.epoch,
            segments: parts.segments,
            cursors: parts.cursors,
            readers: parts.readers,
            tail: TailCache::new(settings.tail_cache_bytes),
            settings,
            open: Group::default(),
            flights: VecDeque::new(),
            next_ticket: 0,
            submitted: parts.last_seq,
            watermark: parts.last_seq,
            // Whatever the last life left unvouched is vouched for by a noop of this one, even if nothing else comes: until then
            // damage to its last groups would pass for a torn write.
            noop_at: Seq(0),
            log_time_base: parts.log_time.0,
            boot_base,
            active_at_us: boot_base,
            jobs: channels.jobs,
            outcomes: channels.outcomes,
            prepare_again_at_us: 0,
            full_free_bytes: None,
            checkpointing,
            close_sent: false,
            closed: false,
            loads: HashMap::new(),
            loaded: Vec::new(),
            lookups: channels.lookups,
            sealed: parts.unindexed,
            indexed: Vec::new(),
            segment_news: Vec::new(),
            waiting: 0,
            dropped: parts.dropped,
            roll_asked: false,
            filters: None,
            filter_steps: 0,
            completions: Vec::new(),
            poison: None,
            wanted: std::cell::Cell::new(0),
        }
    }

    /// Log time: resumes from the last frame and advances by elapsed boot time.
    #[must_use]
    pub fn log_time(&self) -> LogTime {
        LogTime(self.log_time_base + self.clock.boot_us().saturating_sub(self.boot_base))
    }

    /// Highest seq such that every group up to it is durable.
    #[must_use]
    pub fn watermark(&self) -> Seq {
        self.watermark
    }

    /// Last seq that anything was staged for: what an answer that is decided now has to wait for.
    #[must_use]
    pub fn staged(&self) -> Seq {
        if self.open.is_empty() { self.submitted } else { self.submitted.next() }
    }

    /// This process start.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The first failure, if there was one.
    #[must_use]
    pub fn poison(&self) -> Option<&Poison> {
        self.poison.as_ref()
    }

    /// Whether pushes are refused for want of space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full_free_bytes.is_some() && !self.segments.has_next()
    }

    /// Whether the open group takes more work, or should go out first.
    #[must_use]
    pub fn takes_more(&self) -> bool {
        self.open.message_bytes() < self.settings.group_bytes
            && (self.open.deltas.len() as u64) < CURSOR_GROUP_BYTES
    }

    /// Whether something is staged that was not submitted.
    #[must_use]
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn stamp(&self) -> Stamp {
        Stamp { log: self.log, epoch: self.epoch, watermark: self.watermark, log_time: self.log_time() }
    }

    fn write(&mut self, file: &Arc<R::File>, frame: &Frame, ticket: u64) {
        self.ring.write_sync(file, frame.position, Arc::clone(&frame.data), ticket << 1 | WRITE);
    }

    fn begin_flight(&mut self, seq: Seq, unfinished: u32) -> u64 {
        self.next_ticket += 1;
        self.flights.push_back(Flight {
            ticket: self.next_ticket,
            seq,
            unfinished,
            seals: None,
            messages: None,
        });
        self.active_at_us = self.clock.boot_us();
        self.next_ticket
    }

    fn slot_is_free(&self) -> bool {
        // A file that is older than the settings was promised fewer groups in flight, perhaps.
        let depth = (self.settings.pipeline_depth as usize)
            .min(self.segments.active.depth())
            .min(self.cursors.active.depth());
        self.flights.len() < depth
    }

    /// Hands the open group to the kernel if a pipeline slot is free and its cursor frame has room; likewise a noop
    /// after idleness, and seals that are due. One system call for all of it. Says whether there is more room than
    /// before, so that work that waited for it should be tried again.
    pub fn submit(&mut self) -> bool {
        if self.poison.is_some() {
            return false;
        }
        self.ask_for_files();
        let mut made_room = false;
        if !self.open.is_empty() && self.slot_is_free() && self.cursor_file_has_room() {
            self.submit_group();
            made_room = true;
        }
        made_room |= self.roll_if_wanted();
        if self.wants_noop() && self.slot_is_free() && self.cursor_file_has_room() {
            self.submit_noop();
        }
        self.submit_seals();
        if let Err(error) = self.ring.submit() {
            self.poisoned(format!("the kernel took no writes: {error}"));
        }
        made_room
    }

    fn cursor_file_has_room(&mut self) -> bool {
        let bytes = frame_bytes(self.open.deltas.len() + FRAME_HEADER_BYTES);
        if self.cursors.active.takes(bytes) {
            return true;
        }
        match self.cursors.roll() {
            Some(number) => {
                tracing::debug!(cursor_file = number.0, "rolled to the next cursor file");
                self.ask_for_files();
                let takes = self.cursors.active.takes(bytes);
                if !takes {
                    // Written all the same, the next start could not read it.
                    self.poisoned(format!("a cursor frame of {bytes} bytes fits no cursor file"));
                }
                takes
            }
            None => false,
        }
    }

    /// Whether a noop finds a place. It does not when no cursor file could be prepared; waiting for it is in vain
    /// then, and maintenance wakes when there is one.
    fn noop_has_room(&self) -> bool {
        self.cursors.active.takes(frame_bytes(FRAME_HEADER_BYTES)) || self.cursors.has_next()
    }

    fn submit_group(&mut self) {
        let mut group = std::mem::take(&mut self.open);
        let seq = self.submitted.next();
        self.submitted = seq;
        let stamp = self.stamp();
        // One slot per flight keeps two syncs in flight off one open file description.
        let slot = usize::try_from(seq.0 % u64::from(self.settings.pipeline_depth.max(1))).unwrap_or(0);
        let files = 1 + u32::from(group.runs > 0);
        let ticket = self.begin_flight(seq, files);
        let messages = group.messages.take().map(|data| {
            let frame = self.segments.active.frame(FrameKind::Commit, seq, group.runs, stamp, data);
            self.checkpointing.message_bytes += frame.data.len() as u64;
            let segment = self.segments.active.number();
            self.tail.insert(segment, frame.position, &frame.data);
            let file = Arc::clone(self.segments.active.slot(slot));
            self.write(&file, &frame, ticket);
            if let Some(flight) = self.flights.back_mut() {
                flight.messages = Some((segment, frame.position, Arc::clone(&frame.data)));
            }
            MessageRef {
                segment,
                position: frame.position,
                body_bytes: frame.body_bytes,
                body_hash: frame.body_hash,
            }
        });
        let mut data = empty_body();
        cursor::write_body(&mut data, messages.as_ref(), &group.deltas);
        let frame = self.cursors.active.frame(FrameKind::Commit, seq, group.records, stamp, data);
        self.checkpointing.cursor_bytes += frame.data.len() as u64;
        let file = Arc::clone(self.cursors.active.slot(slot));
        self.write(&file, &frame, ticket);
        // The buffer of records is used again.
        group.deltas.clear();
        self.open.deltas = group.deltas;
    }

    fn wants_noop(&self) -> bool {
        self.open.is_empty()
            && self.flights.is_empty()
            && self.noop_at < self.submitted
            && self.clock.boot_us() >= self.active_at_us + self.settings.noop_idle_us
    }

    /// Carries the watermark into both files. A noop holds a pipeline slot like a group, so that nothing after it is
    /// published while it may still be torn in front of it.
    fn submit_noop(&mut self) {
        let stamp = self.stamp();
        let seq = self.submitted;
        // The last block of a file is its seal's.
        let in_segment = self.segments.active.room() > 0;
        let ticket = self.begin_flight(seq, 1 + u32::from(in_segment));
        if in_segment {
            let frame = self.segments.active.noop(stamp, seq);
            let file = Arc::clone(self.segments.active.slot(0));
            self.write(&file, &frame, ticket);
        }
        let frame = self.cursors.active.noop(stamp, seq);
        let file = Arc::clone(self.cursors.active.slot(0));
        self.write(&file, &frame, ticket);
        self.noop_at = seq;
    }

    fn submit_seals(&mut self) {
        let stamp = self.stamp();
        for segment in [true, false] {
            let lane = if segment { &mut self.segments } else { &mut self.cursors };
            if let Some((number, file, frame)) = lane.seal(stamp) {
                let ticket = self.begin_flight(self.submitted, 1);
                if let Some(flight) = self.flights.back_mut() {
                    flight.seals = segment.then_some(number);
                }
                self.write(&file, &frame, ticket);
            }
        }
    }

    fn ask_for_files(&mut self) {
        if self.close_sent || self.clock.boot_us() < self.prepare_again_at_us {
            return;
        }
        for lane in [&mut self.segments, &mut self.cursors] {
            if let Some(number) = lane.request(self.settings.prepared_files.max(1)) {
                let job = Job::Prepare { kind: lane.kind, number, after: self.submitted };
                if self.jobs.send(job).is_err() {
                    lane.refuse();
                }
            }
        }
    }

    fn poisoned(&mut self, cause: String) {
        if self.poison.is_none() {
            tracing::error!("storage failed, nothing is acknowledged any more: {cause}");
            self.poison = Some(Poison(cause));
        }
    }

    /// Waits for completions, messages or the waker, at most `timeout`, and takes them in. The watermark may be
    /// higher afterwards.
    pub fn poll(&mut self, timeout: Option<Duration>) {
        let mut completions = std::mem::take(&mut self.completions);
        if let Err(error) = self.ring.wait(timeout, &mut completions) {
            self.poisoned(format!("the ring is unusable: {error}"));
        }
        for completion in completions.drain(..) {
            let ticket = completion.token >> 1;
            if completion.token & 1 == LOAD {
                if let Some(key) = self.loads.remove(&ticket) {
                    self.loaded.push((key, completion.result.map(Option::unwrap_or_default)));
                }
                continue;
            }
            match completion.result {
                Ok(_) => {
                    if let Some(flight) = self.flights.iter_mut().find(|flight| flight.ticket == ticket) {
                        flight.unfinished -= 1;
                    }
                }
                Err(error) => self.poisoned(error.to_string()),
            }
        }
        self.completions = completions;
        while self.poison.is_none() && self.flights.front().is_some_and(|flight| flight.unfinished == 0) {
            if let Some(flight) = self.flights.pop_front() {
                self.watermark = self.watermark.max(flight.seq);
                self.sealed.extend(flight.seals);
            }
        }
        self.take_outcomes();
    }

    fn take_outcomes(&mut self) {
        while let Ok(outcome) = self.outcomes.try_recv() {
            match outcome {
                Outcome::Prepared(kind, prepared) => match kind {
                    FileKind::Segment => {
                        self.full_free_bytes = None;
                        self.segments.supply(*prepared);
                    }
                    FileKind::Cursor | FileKind::Checkpoint => self.cursors.supply(*prepared),
                },
                Outcome::NotPrepared { kind, error, free_bytes } => {
                    let lane = match kind {
                        FileKind::Segment => &mut self.segments,
                        FileKind::Cursor | FileKind::Checkpoint => &mut self.cursors,
                    };
                    lane.refuse();
                    if kind == FileKind::Segment {
                        if self.full_free_bytes.is_none() {
                            tracing::warn!("cannot prepare a segment, pushes will be refused: {error}");
                        }
                        self.full_free_bytes = Some(free_bytes);
                    } else {
                        tracing::error!("cannot prepare a cursor file, commits may stall: {error}");
                    }
                    self.prepare_again_at_us = self.clock.boot_us() + PREPARE_AGAIN_US;
                }
                Outcome::Indexed { segment, filters } => {
                    self.indexed.push(segment);
                    self.new_filters(Some(filters));
                }
                Outcome::Filtered { filters, more } => {
                    self.filter_steps = self.filter_steps.saturating_sub(1);
                    if more {
                        self.step_filters(None);
                    }
                    self.new_filters(filters);
                }
                Outcome::NotIndexed { segment, error } => {
                    tracing::warn!("cannot write the index of segment {segment}, it stays in memory: {error}")
                }
                Outcome::CheckpointBegun(result) => self.checkpointing.begun(result),
                Outcome::ChunkTaken(result) => self.checkpointing.chunk_taken(result),
                Outcome::Collected { segment, frames, more } => {
                    let frames = frames.map_err(|error| error.to_string());
                    self.segment_news.push(SegmentNews::Collected { segment, frames, more });
                }
                Outcome::Listed { segment, spans } => {
                    let spans = spans.map_err(|error| error.to_string());
                    self.segment_news.push(SegmentNews::Listed { segment, spans });
                }
                Outcome::Waiting(segments) => self.waiting = segments as u64,
                Outcome::Checkpointed { seq, waiting } => {
                    tracing::info!(seq = seq.0, "checkpoint written");
                    self.checkpointing.ended(seq);
                    self.waiting = waiting as u64;
                    if self.full_free_bytes.is_some() {
                        self.prepare_again_at_us = 0; // there may be space now
                    }
                }
                Outcome::NotCheckpointed(error) => {
                    self.checkpointing.failed(&error);
                }
                Outcome::SuperblockFailed(error) => self.poisoned(format!("superblock: {error}")),
                Outcome::Closed => self.closed = true,
            }
        }
    }

    /// Whether nothing is open, and what is submitted says where a checkpoint's replay goes on.
    pub(super) fn can_begin_checkpoint(&self) -> bool {
        // A noop of the same seq may still be in flight; the checkpoint would promise its place in the segment.
        self.open.is_empty() && (self.flights.is_empty() || self.submitted > self.watermark)
    }

    /// How long `poll` may wait when nothing else is to be done.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        if self.checkpointing.can_go_on() {
            return Some(Duration::ZERO);
        }
        let now = self.clock.boot_us();
        let noop = (self.flights.is_empty() && self.open.is_empty() && self.noop_at < self.submitted)
            .then_some(())
            .filter(|()| self.noop_has_room())
            .map(|()| self.active_at_us + self.settings.noop_idle_us);
        let prepare = (self.prepare_again_at_us > now).then_some(self.prepare_again_at_us);
        let due = noop.into_iter().chain(prepare).min()?;
        Some(Duration::from_micros(due.saturating_sub(now)))
    }

    /// Whether anything staged, in flight or being loaded is unfinished.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.flights.is_empty() && self.loads.is_empty() && self.lookups.is_idle()
    }

    /// Ends, step by step between calls of `submit` and `poll`: everything staged is made durable, a noop carries the
    /// watermark to both files, and the superblock says that there is nothing to scrub. Whether that is done; storage
    /// may fail before.
    pub fn close(&mut self) -> bool {
        self.active_at_us = 0; // the noop is due now
        // Without room for it the clean mark alone has to do.
        let is_quiet = self.open.is_empty()
            && self.flights.is_empty()
            && (self.noop_at == self.submitted || !self.noop_has_room());
        if is_quiet && !self.close_sent {
            self.close_sent = true;
            // Without maintenance there is nobody to write the mark: the next start scrubs.
            self.closed |= self.jobs.send(Job::Close { seq: self.submitted }).is_err();
        }
        self.closed
    }

    /// Asks the index files; the answers come through `take_looked_up` under `key`.
    pub fn look_up(&mut self, key: u64, lookups: Vec<Lookup>) {
        self.lookups.ask(key, lookups);
    }

    /// Finished lookups: key and answers.
    pub fn take_looked_up(&mut self) -> Vec<LookedUp> {
        self.lookups.take()
    }

    /// Segments that were sealed since, and want an index file.
    pub fn take_sealed(&mut self) -> Vec<FileNumber> {
        std::mem::take(&mut self.sealed)
    }

    /// Has the index file of a segment written.
    pub fn index(&mut self, segment: FileNumber, rows: Arc<SegmentRows>) {
        // Without maintenance the rows stay in memory.
        let _ = self.jobs.send(Job::Index { segment, rows });
    }

    /// Segments whose index file is durable now.
    pub fn take_indexed(&mut self) -> Vec<FileNumber> {
        std::mem::take(&mut self.indexed)
    }

    /// Has the filters of sealed segments loaded, little by little.
    pub fn load_filters(&mut self, segments: Vec<FileNumber>) {
        if self.jobs.send(Job::LoadFilters(segments)).is_ok() {
            self.filter_steps += 1;
        }
    }

    /// Filters that are new.
    pub fn take_filters(&mut self) -> Option<Arc<Tiers>> {
        self.filters.take()
    }

    /// Has filters that were replaced dropped where that disturbs nobody.
    pub fn drop_filters(&mut self, replaced: Arc<Tiers>) {
        self.step_filters(Some(replaced));
    }

    fn new_filters(&mut self, filters: Option<Arc<Tiers>>) {
        if let Some(filters) = filters
            && let Some(unused) = self.filters.replace(filters)
        {
            self.step_filters(Some(unused));
        }
    }

    /// One step at a time is under way, so that other jobs wait for one at most.
    fn step_filters(&mut self, replaced: Option<Arc<Tiers>>) {
        if (replaced.is_some() || self.filter_steps == 0) && self.jobs.send(Job::Filters(replaced)).is_ok() {
            self.filter_steps += 1;
        }
    }

    /// Bytes of rows that may stay in memory once index files know them.
    #[must_use]
    pub fn resident_bytes_max(&self) -> u64 {
        self.settings.resident_index_bytes
    }

    /// Name of the io back end.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.ring.name()
    }
}
