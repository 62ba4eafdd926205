//! Space: segments that hold nothing that counts are dropped, and what counts in those that hold little moves on.
//!
//! Purpose: one segment at a time, in steps that no command notices.
//!
//! Invariants:
//! - What is dropped was looked at run by run, or stretch by stretch: counters only say where to look.
//! - Every message that counts is staged again before the record that drops its segment, so a crash in between finds
//!   both copies and takes the later one.
//! - An id that deduplication or an acknowledgement may still ask for is kept without its message.
//!
//! Must not: decide what expires (`retention`), remove files (`engine`).

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashMap;

use super::ack::live_lease;
use super::journal::{DELTA_BYTES, Fit, Journal};
use super::storage::Storage;
use crate::engine::commit::Engine;
use crate::engine::machine::Machine;
use crate::engine::space::SegmentNews;
use crate::format::delta::Delta;
use crate::format::run::{BARE_BYTES, RUN_HEADER_BYTES, RunForm, RunHeader, RunItem, Runs, put_bare};
use crate::index::runs::Place;
use crate::io::Ring;
use crate::types::{FileNumber, LogTime, Offset, PartitionId};

/// Time between two looks for something to do when the last one found nothing, in microseconds.
const LOOK_US: u64 = 1_000_000;

/// A segment that could not be read is left alone for so long, in microseconds.
const AGAIN_US: u64 = 600_000_000;

/// A segment that is being written is left when nothing in it counts and nothing was appended for so long.
const QUIET_US: u64 = 5_000_000;

/// Bytes that one step moves, about: a fraction of a group commit.
const MOVED_PER_STEP: u64 = 256 << 10;

/// Stretches that one step checks: about 50 µs.
const CHECKED_PER_STEP: usize = 512;

/// A segment is rewritten when what counts in it takes less than one part in so many of its file.
const SPARSE: u64 = 4;

/// A segment is rewritten as well when more than so much of its file is padding: one part in so many is packed. Groups
/// of one small message each fill a block with it.
const PADDED: u64 = 2;

/// That can wait until what is consumed soon is gone: so long after the last append, in microseconds.
const PADDED_US: u64 = 600_000_000;

/// What is being done.
#[derive(Debug, Default)]
enum Task {
    #[default]
    Idle,
    /// Its stretches are being listed.
    Listing(FileNumber),
    /// Its stretches are being checked.
    Checking { segment: FileNumber, spans: std::vec::IntoIter<(PartitionId, Offset, Offset)>, live: u64 },
    /// What counts in it moves on.
    Rewriting(Box<Rewriting>),
}

#[derive(Debug)]
struct Rewriting {
    segment: FileNumber,
    /// Where each body begins in the segment, and the body.
    frames: VecDeque<(u64, Bytes)>,
    /// Bytes of the first frame that are done.
    done: usize,
    /// Frames are on their way.
    asked: bool,
    /// There was no room for the next run: the next group commit, or the next segment, makes some.
    waits: bool,
    more: bool,
    moved: u64,
    bare: u64,
}

/// What becomes of a run whose segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Gone,
    Moved,
    /// Its ids stay.
    Bare,
}

/// The state of all this.
#[derive(Debug, Default)]
pub(super) struct Space {
    task: Task,
    /// Segments that could not be read, and when they are tried again.
    unreadable: HashMap<FileNumber, LogTime>,
    looked: LogTime,
    /// `Index::changes` when it was looked last.
    changes: u64,
    /// When something is known to become free.
    due: Option<LogTime>,
}

impl Space {
    /// When there is something to do, if nothing else happens before.
    pub(super) fn next_due(&self, changes: u64) -> Option<LogTime> {
        match &self.task {
            Task::Checking { spans, .. } if spans.len() > 0 => Some(LogTime(0)),
            Task::Rewriting(rewriting) if !rewriting.frames.is_empty() && !rewriting.waits => {
                Some(LogTime(0))
            }
            Task::Idle if changes != self.changes => Some(self.looked.plus_us(LOOK_US)),
            Task::Idle => self.due,
            // Answers, or a group commit that makes room, come by themselves.
            Task::Listing(_) | Task::Checking { .. } | Task::Rewriting(_) => None,
        }
    }
}

impl<R: Ring> Storage<R> {
    /// One step.
    pub(super) fn tend_space(&mut self) {
        for news in self.core.journal.take_segment_news() {
            self.take_news(news);
        }
        match std::mem::take(&mut self.space.task) {
            Task::Idle => self.look_for_work(),
            Task::Checking { segment, spans, live } => self.check(segment, spans, live),
            Task::Rewriting(rewriting) => self.rewrite(rewriting),
            task @ Task::Listing(_) => self.space.task = task,
        }
        if self.core.journal.hurry_removal() && self.core.journal.fits(0, DELTA_BYTES) == Fit::Now {
            // Two checkpoints have to be taken at two groups; nobody else brings one now.
            let state = &self.core.state;
            let (queue, partition, group) = (state.next_queue, state.next_partition, state.next_group);
            self.core.stage(&Delta::NextIds { queue, partition, group });
        }
    }

    fn take_news(&mut self, news: SegmentNews) {
        match (news, &mut self.space.task) {
            (SegmentNews::Listed { segment, spans }, Task::Listing(asked)) if *asked == segment => {
                self.space.task = match spans {
                    Ok(spans) => Task::Checking { segment, spans: spans.into_iter(), live: 0 },
                    Err(error) => self.give_up(segment, &error),
                };
            }
            (SegmentNews::Collected { segment, frames, more }, Task::Rewriting(rewriting))
                if rewriting.segment == segment =>
            {
                rewriting.asked = false;
                rewriting.more = more;
                match frames {
                    Ok(frames) => rewriting.frames.extend(frames),
                    Err(error) => self.space.task = self.give_up(segment, &error),
                }
            }
            _ => {} // of a task that was given up
        }
    }

    fn give_up(&mut self, segment: FileNumber, error: &str) -> Task {
        tracing::error!("segment {segment} cannot be freed, it is tried again in ten minutes: {error}");
        self.space.unreadable.insert(segment, self.core.now.plus_us(AGAIN_US));
        Task::Idle
    }

    fn look_for_work(&mut self) {
        let now = self.core.now;
        let changes = self.core.state.index.changes();
        let is_due = self.space.due.is_some_and(|due| due <= now)
            || (changes != self.space.changes && self.space.looked.plus_us(LOOK_US) <= now);
        if !is_due {
            return;
        }
        self.space.unreadable.retain(|_, until| *until > now);
        let engine = &mut self.core.journal;
        let horizons = self.core.state.queues.values().map(|queue| queue.options.id_horizon_seconds());
        let horizon = horizons.max().unwrap_or(0);
        let mut due: Option<LogTime> = None;
        let mut wait = |time: LogTime| due = Some(due.map_or(time, |due| due.min(time)));
        for (number, segment) in self.core.state.index.segments() {
            let is_empty = segment.live() == 0 && segment.messages() > 0;
            if number == engine.active_segment() {
                let quiet = segment.last_logged().plus_us(QUIET_US);
                match is_empty {
                    true if quiet <= now => engine.roll_soon(),
                    true => wait(quiet),
                    false => {}
                }
                continue;
            }
            if !segment.is_indexed() {
                continue;
            }
            if let Some(until) = self.space.unreadable.get(&number) {
                wait(*until);
                continue;
            }
            if segment.live() == 0 {
                let free = segment.last_logged().plus_seconds(horizon).plus_us(1);
                if free <= now {
                    engine.list(number);
                    self.space.task = Task::Listing(number);
                    return;
                }
                wait(free);
            }
            let is_sparse = segment.useful_bytes() * SPARSE < engine.segment_bytes();
            let is_padded = segment.packed_bytes() * PADDED < engine.segment_bytes();
            let settles = segment.last_logged().plus_us(PADDED_US);
            if is_padded && settles > now {
                wait(settles);
            }
            if (is_sparse || (is_padded && settles <= now)) && !engine.is_full() {
                engine.collect(number, true);
                self.space.task = Task::Rewriting(Box::new(Rewriting {
                    segment: number,
                    frames: VecDeque::new(),
                    done: 0,
                    asked: true,
                    waits: false,
                    more: true,
                    moved: 0,
                    bare: 0,
                }));
                return;
            }
        }
        self.space.looked = now;
        self.space.changes = changes;
        self.space.due = due;
    }

    /// Whether something counts in a stretch of a segment whose ids are all beyond every horizon.
    fn counts(&self, segment: FileNumber, partition: PartitionId, base: Offset, end: Offset) -> u64 {
        let state = &self.core.state;
        let Some(partition) = state.partitions.get(&partition) else { return 0 };
        if !state.queues.contains_key(&partition.queue) {
            return 0;
        }
        let here = partition.spans.overlap(segment, base.max(partition.start), end);
        if partition.dead_letters_of.is_some() {
            let copies = state.copies.range((partition.id, base)..(partition.id, end));
            return if here == 0 { 0 } else { copies.count() as u64 };
        }
        here + u64::from(self.is_leased(partition.id, base, end))
    }

    /// Whether a live lease is over offsets that are gone.
    fn is_leased(&self, partition: PartitionId, base: Offset, end: Offset) -> bool {
        let state = &self.core.state;
        let Some(known) = state.partitions.get(&partition) else { return false };
        let Some(queue) = state.queues.get(&known.queue) else { return false };
        queue.groups.values().any(|group| {
            let cursor = state.cursors.get(&(partition, *group));
            let lease =
                cursor.and_then(|cursor| live_lease(&cursor, self.core.now).map(|lease| (cursor, lease)));
            lease.is_some_and(|(cursor, lease)| cursor.next < end && lease.end >= base)
        })
    }

    fn check(
        &mut self,
        segment: FileNumber,
        mut spans: std::vec::IntoIter<(PartitionId, Offset, Offset)>,
        mut live: u64,
    ) {
        for (partition, base, end) in spans.by_ref().take(CHECKED_PER_STEP) {
            live += self.counts(segment, partition, base, end);
        }
        self.space.looked = LogTime(0); // there may be more to do right away
        if spans.len() > 0 {
            self.space.task = Task::Checking { segment, spans, live };
        } else if live > 0 {
            self.core.state.index.set_live(segment, live);
        } else if !self.drop_segment(segment) {
            self.space.task = Task::Checking { segment, spans, live };
        }
    }

    /// Drops a segment in which nothing counts. `false`: there is no room for the record now.
    fn drop_segment(&mut self, segment: FileNumber) -> bool {
        if self.core.journal.fits(0, DELTA_BYTES) == Fit::Later {
            return false;
        }
        self.core.stage(&Delta::SegmentsDropped { first: segment, last: segment });
        self.core.journal.drop_segment(segment);
        true
    }

    fn rewrite(&mut self, mut rewriting: Box<Rewriting>) {
        rewriting.waits = false;
        let mut moved = 0;
        while moved < MOVED_PER_STEP
            && let Some((_, body)) = rewriting.frames.front()
        {
            let rest = body.slice(rewriting.done..);
            let Some(item) = Runs::new(&rest).next() else {
                rewriting.frames.pop_front();
                rewriting.done = 0;
                continue;
            };
            let item = match item {
                Ok(item) => item,
                Err(error) => {
                    self.space.task = self.give_up(rewriting.segment, &error.to_string());
                    return;
                }
            };
            match self.move_run(rewriting.segment, &item) {
                Ok(Some((fate, bytes))) => {
                    moved += bytes;
                    rewriting.moved += if fate == Fate::Moved { bytes } else { 0 };
                    rewriting.bare += if fate == Fate::Bare { bytes } else { 0 };
                }
                Ok(None) => {
                    rewriting.waits = true;
                    break;
                }
                Err(error) => {
                    self.space.task = self.give_up(rewriting.segment, &error);
                    return;
                }
            }
            rewriting.done += RUN_HEADER_BYTES + item.entries.len();
        }
        let segment = rewriting.segment;
        if rewriting.more && !rewriting.asked && rewriting.frames.len() < 2 {
            rewriting.asked = true;
            self.core.journal.collect(segment, false);
        }
        let is_done = rewriting.frames.is_empty() && !rewriting.more && !rewriting.asked;
        if is_done && self.drop_segment(segment) {
            self.space.looked = LogTime(0); // there may be more to do right away
            let Rewriting { moved, bare, .. } = *rewriting;
            tracing::info!(%segment, moved, bare, "what counts in a segment moved on");
            return;
        }
        self.space.task = Task::Rewriting(rewriting);
    }

    fn fate(&self, segment: FileNumber, run: &RunHeader) -> Fate {
        let state = &self.core.state;
        let Some(partition) = state.partitions.get(&run.partition) else { return Fate::Gone };
        let Some(queue) = state.queues.get(&partition.queue) else { return Fate::Gone };
        // Elsewhere is a later copy.
        let is_here = partition.spans.overlap(segment, run.base, run.end()) > 0;
        if partition.dead_letters_of.is_some() {
            let mut copies = state.copies.range((run.partition, run.base)..(run.partition, run.end()));
            return if is_here && copies.next().is_some() { Fate::Moved } else { Fate::Gone };
        }
        if run.form != RunForm::Bare && run.end() > partition.start {
            return if is_here { Fate::Moved } else { Fate::Gone };
        }
        let horizon = queue.options.id_horizon_seconds();
        let is_known = run.logged >= self.core.now.minus_seconds(horizon)
            || self.is_leased(run.partition, run.base, run.end());
        if is_known { Fate::Bare } else { Fate::Gone }
    }

    /// Stages a run again, or its ids, if they count. Nothing if there is no room now.
    fn move_run(&mut self, segment: FileNumber, item: &RunItem<'_>) -> Result<Option<(Fate, u64)>, String> {
        let fate = self.fate(segment, &item.header);
        let mut ids = Vec::new();
        item.ids(&mut ids).map_err(|error| error.to_string())?;
        let bare = bare_entries(&ids);
        let (form, entries) = match fate {
            Fate::Gone => return Ok(Some((fate, 0))),
            Fate::Moved => (RunForm::Moved, item.entries),
            Fate::Bare => (RunForm::Bare, bare.as_slice()),
        };
        let bytes = (RUN_HEADER_BYTES + entries.len()) as u64;
        match self.core.journal.fits(bytes, 0) {
            Fit::Now => {}
            Fit::Later => return Ok(None),
            Fit::Full { free_bytes, .. } => {
                return Err(format!("there is no space to move it: {free_bytes} bytes are free"));
            }
            Fit::TooLarge { limit } => {
                return Err(format!("a run of {bytes} bytes is larger than any group may be ({limit})"));
            }
        }
        let length = u32::try_from(entries.len()).expect("a run in memory is below 4 GiB");
        let run = RunHeader { form, bytes: length, ..item.header };
        let place: Place = Engine::stage_run(&mut self.core.journal, &run, &[entries]);
        if let Err(error) = self.core.state.apply_run(&run, &ids, place) {
            unreachable!("a run that was there must apply again: {error}: {run:?}");
        }
        Ok(Some((fate, bytes)))
    }
}

fn bare_entries(ids: &[(crate::types::IdHash, crate::types::MessageId)]) -> Vec<u8> {
    let mut entries = Vec::with_capacity(ids.len() * BARE_BYTES);
    for (hash, id) in ids {
        put_bare(*hash, *id, &mut entries);
    }
    entries
}
