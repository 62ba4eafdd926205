//! Where messages are, and which transaction ids were seen.
//!
//! Purpose: find the run that holds an offset, the first message at or after a time, and the offsets of a
//! transaction id, in memory that does not grow with what is stored.
//!
//! Rows of a segment are resident while it is written and for as long as there is room; then only its file knows
//! them. A partition keeps one span per segment that holds messages of it. What a question needs that is not in memory
//! is named as a `Lookup`, which is answered outside the storage thread, and the question is asked again.
//!
//! Invariants:
//! - Derived from the log alone; losing an index never moves a cursor.
//! - Whether rows are resident changes when an answer comes, never what it says.
//! - Of two copies of an offset the later one in the log wins.
//!
//! Must not: do I/O, know queues or groups.

pub mod cold;
pub mod rows;
pub mod runs;
pub mod spans;
pub mod tiers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::index::IndexInfo;
use crate::format::run::{BARE_BYTES, RUN_HEADER_BYTES, RunForm, RunHeader};
use crate::types::{FileNumber, IdHash, LogTime, MessageId, Offset, PartitionId, WallTime};
use cold::ColdRows;
use rows::SegmentRows;
use runs::{Place, Run};
use spans::{Span, Spans};
use tiers::{Candidates, Keys, Tiers};

/// A question that the index file of a segment answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lookup {
    /// Runs of a partition, from the one that holds this offset on, as many as come at once.
    Runs {
        /// The segment.
        segment: FileNumber,
        /// The partition.
        partition: PartitionId,
        /// The offset.
        from: Offset,
    },
    /// The first message of a partition between two offsets that was created at or after a time.
    Created {
        /// The segment.
        segment: FileNumber,
        /// The partition.
        partition: PartitionId,
        /// First offset.
        base: Offset,
        /// Offset behind the last; also the answer when there is none.
        end: Offset,
        /// The time.
        time: WallTime,
    },
    /// The messages of a partition with this transaction id.
    Find {
        /// The segment.
        segment: FileNumber,
        /// The partition.
        partition: PartitionId,
        /// Hash of the id.
        hash: IdHash,
    },
}

impl Lookup {
    /// The segment whose index answers.
    #[must_use]
    pub fn segment(&self) -> FileNumber {
        match self {
            Lookup::Runs { segment, .. } | Lookup::Created { segment, .. } | Lookup::Find { segment, .. } => {
                *segment
            }
        }
    }

    /// The partition that it is about.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        match self {
            Lookup::Runs { partition, .. }
            | Lookup::Created { partition, .. }
            | Lookup::Find { partition, .. } => *partition,
        }
    }
}

/// The answer to a `Lookup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Runs in offset order, without a gap.
    Runs(Vec<Run>),
    /// An offset.
    Created(Offset),
    /// Messages, newest first.
    Ids(Ids),
}

/// Messages that carry an id; almost always one.
pub type Ids = SmallVec<[IdHit; 1]>;

/// A message that carries an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdHit {
    /// Its offset.
    pub offset: Offset,
    /// Its message id.
    pub id: MessageId,
    /// Log time of its append.
    pub logged: LogTime,
}

/// What is known of one segment that holds messages.
#[derive(Debug, Default)]
pub struct Segment {
    rows: Option<Arc<SegmentRows>>,
    /// Its index file is there and answers.
    indexed: bool,
    /// Newest append in it.
    last_logged: LogTime,
    /// Messages with payloads in it, as they were appended.
    messages: u64,
    /// Bytes of their entries.
    entry_bytes: u64,
    /// Runs, of both kinds.
    runs: u64,
    /// Messages without payloads in it.
    bare: u64,
    /// Messages in it that a span names and that were not removed.
    live: u64,
}

impl Segment {
    /// Whether its index file is there.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.indexed
    }

    /// Log time of the newest append in it.
    #[must_use]
    pub fn last_logged(&self) -> LogTime {
        self.last_logged
    }

    /// Messages that count.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Messages with payloads, whether they count or not.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Bytes of the messages that count, about, and of ids without messages.
    #[must_use]
    pub fn useful_bytes(&self) -> u64 {
        let live = u128::from(self.entry_bytes) * u128::from(self.live) / u128::from(self.messages.max(1));
        u64::try_from(live).unwrap_or(u64::MAX) + self.bare * BARE_BYTES as u64
    }

    /// Bytes of everything in it, whether it counts or not: the rest of the file is padding.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.entry_bytes + self.runs * RUN_HEADER_BYTES as u64 + self.bare * BARE_BYTES as u64
    }
}

/// The index over all segments.
#[derive(Debug, Default)]
pub struct Index {
    segments: BTreeMap<FileNumber, Segment>,
    /// Segments whose rows are in memory.
    with_rows: BTreeSet<FileNumber>,
    /// Filters of segments that have an index file.
    tiers: Arc<Tiers>,
    /// Segments whose rows are not in memory and that have no filter, as after a start: they may hold anything.
    unknown: BTreeSet<FileNumber>,
    /// Rows that were looked up lately.
    pub cold: ColdRows,
    /// Ids in the last segment that was begun: how many the next one is prepared for.
    expected_ids: usize,
    resident_bytes: u64,
    /// Raised whenever a segment may have become worth a look.
    changes: u64,
    /// The segment whose rows are being dropped, and how many of its partitions were seen to.
    evicting: Option<(FileNumber, usize)>,
}

/// Partitions seen to in one step of an eviction: some ten microseconds.
const EVICTED_PER_STEP: usize = 256;

impl Index {
    /// Adds a run that was appended to a segment. Its ids count in any case; a span names its messages if `readable`.
    pub fn add(
        &mut self,
        spans: &mut Spans,
        run: &RunHeader,
        ids: &[(IdHash, MessageId)],
        place: Place,
        readable: bool,
    ) {
        let expected = self.expected_ids;
        let with_rows = &mut self.with_rows;
        let segment = self.segments.entry(place.segment).or_insert_with(|| {
            with_rows.insert(place.segment);
            Segment { rows: Some(Arc::new(SegmentRows::with_capacity(expected))), ..Segment::default() }
        });
        segment.last_logged = segment.last_logged.max(run.logged);
        let Some(rows) = segment.rows.as_mut().and_then(Arc::get_mut) else {
            unreachable!("only the segment that is written takes runs, and nobody else holds its rows")
        };
        segment.runs += 1;
        let before = rows.bytes();
        let row = rows.push(run, ids, place.position);
        self.resident_bytes += rows.bytes() - before;
        self.expected_ids = rows.ids();
        if run.form == RunForm::Bare {
            segment.bare += u64::from(run.count);
            return;
        }
        segment.messages += u64::from(run.count);
        segment.entry_bytes += u64::from(run.bytes);
        if readable {
            segment.live += u64::from(run.count);
            let at = Run {
                base: run.base,
                count: run.count,
                bytes: run.bytes,
                created: run.created,
                logged: run.logged,
                place,
            };
            if let Some(covered) = spans.place(&at, row) {
                rows.note_partition(run.partition);
                for (segment, messages) in covered {
                    self.died(segment, messages);
                }
            }
        }
    }

    /// Adds what the index file of a segment says about a partition.
    pub fn attach(&mut self, spans: &mut Spans, span: Span) {
        self.known(span.segment()).live += span.messages();
        for (segment, messages) in spans.attach(span) {
            self.died(segment, messages);
        }
    }

    /// Adds a segment that only its index file knows.
    pub fn attach_segment(&mut self, info: &IndexInfo) {
        self.changes += 1;
        let segment = self.known(info.segment);
        segment.indexed = true;
        segment.last_logged = segment.last_logged.max(info.last_logged);
        segment.messages = u64::from(info.messages - info.bare);
        segment.entry_bytes = info.entry_bytes;
        segment.runs = u64::from(info.runs);
        segment.bare = u64::from(info.bare);
    }

    /// Forgets segments that no span names any more, from the first to the last.
    pub fn drop_segments(&mut self, first: FileNumber, last: FileNumber) {
        let numbers: Vec<FileNumber> = self.segments.range(first..=last).map(|(number, _)| *number).collect();
        for number in numbers {
            self.unknown.remove(&number);
            let known = self.segments.remove(&number);
            let rows = known.and_then(|known| known.rows);
            self.resident_bytes -= rows.map_or(0, |rows| rows.bytes()).min(self.resident_bytes);
            if self.evicting.is_some_and(|(evicting, _)| evicting == number) {
                self.evicting = None;
            }
        }
    }

    /// Every segment that is known, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = (FileNumber, &Segment)> {
        self.segments.iter().map(|(number, segment)| (*number, segment))
    }

    /// Corrects how many messages of a segment are live, after they were counted.
    pub fn set_live(&mut self, segment: FileNumber, live: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.live = live;
        }
    }

    /// The index file of a segment is durable and answers from now on.
    pub fn set_indexed(&mut self, segment: FileNumber) {
        self.known(segment).indexed = true;
        self.changes += 1;
    }

    /// Changes whenever a segment may hold less that counts than before, or can be freed only now.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A segment; one that is new here has no rows in memory.
    fn known(&mut self, segment: FileNumber) -> &mut Segment {
        let (unknown, tiers) = (&mut self.unknown, &self.tiers);
        self.segments.entry(segment).or_insert_with(|| {
            if !tiers.knows(segment) {
                unknown.insert(segment);
            }
            Segment::default()
        })
    }

    /// Takes new filters in; the ones before, which whoever has the time should drop.
    pub fn set_tiers(&mut self, tiers: Arc<Tiers>) -> Arc<Tiers> {
        // Only a segment that was removed loses its filter.
        self.unknown.retain(|segment| !tiers.knows(*segment) && self.segments.contains_key(segment));
        std::mem::replace(&mut self.tiers, tiers)
    }

    /// Segments that have no filter and whose rows are not in memory.
    pub fn unknown(&self) -> impl Iterator<Item = FileNumber> {
        self.unknown.iter().copied()
    }

    /// Messages of a segment ceased to be live.
    pub fn died(&mut self, segment: FileNumber, messages: u64) {
        self.changes += 1;
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.live = segment.live.saturating_sub(messages);
        }
    }

    /// The rows of a segment, while they are in memory.
    #[must_use]
    pub fn rows(&self, segment: FileNumber) -> Option<Arc<SegmentRows>> {
        self.segments.get(&segment)?.rows.clone()
    }

    fn resident(&self, segment: FileNumber) -> Option<&SegmentRows> {
        self.segments.get(&segment)?.rows.as_deref()
    }

    /// Live messages of a segment.
    #[must_use]
    pub fn live(&self, segment: FileNumber) -> u64 {
        self.segments.get(&segment).map_or(0, |segment| segment.live)
    }

    /// Bytes of resident rows, about.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Drops rows of the oldest segments that their files know, a little in each call, until the rows take no more than
    /// `most` bytes. `spans_of` gives a partition's spans. Whether there is more to do.
    pub fn evict(
        &mut self,
        most: u64,
        mut spans_of: impl FnMut(PartitionId, &mut dyn FnMut(&mut Spans)),
    ) -> bool {
        if self.evicting.is_none() && self.resident_bytes > most {
            let is_indexed = |number: &&FileNumber| self.segments.get(*number).is_some_and(|it| it.indexed);
            self.evicting = self.with_rows.iter().find(is_indexed).map(|number| (*number, 0));
        }
        let Some((number, done)) = self.evicting else { return false };
        let Some(rows) = self.rows(number) else {
            self.evicting = None;
            self.with_rows.remove(&number);
            return true;
        };
        let partitions = rows.partitions();
        let to = (done + EVICTED_PER_STEP).min(partitions.len());
        for partition in partitions.get(done..to).unwrap_or_default() {
            spans_of(*partition, &mut |spans| spans.forget_rows(number));
        }
        if to < partitions.len() {
            self.evicting = Some((number, to));
            return true;
        }
        self.evicting = None;
        self.resident_bytes = self.resident_bytes.saturating_sub(rows.bytes());
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.rows = None;
            self.with_rows.remove(&number);
            if !self.tiers.knows(number) {
                self.unknown.insert(number);
            }
        }
        true
    }

    /// What has to be looked up before so many messages from `from` on can be handed out. Empty: they are at hand.
    pub fn missing(
        &self,
        partition: PartitionId,
        spans: &Spans,
        from: Offset,
        messages: u64,
        asked: &mut Vec<Lookup>,
    ) {
        let (mut offset, mut left) = (from, messages);
        for span in spans.from(from) {
            offset = offset.max(span.base);
            let is_resident = self.resident(span.segment()).is_some() && span.resident().is_some();
            while offset < span.end() && left > 0 {
                let end = if is_resident {
                    span.end()
                } else if let Some(run) = self.cold.get(span.segment(), partition, offset) {
                    run.end().min(span.end())
                } else {
                    asked.push(Lookup::Runs { segment: span.segment(), partition, from: offset });
                    span.end()
                };
                left = left.saturating_sub(end.0 - offset.0);
                offset = end;
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Mean bytes of a message in a segment; 0 if nothing is known of it.
    #[must_use]
    pub fn mean_bytes(&self, segment: FileNumber) -> u64 {
        self.segments.get(&segment).map_or(0, |known| known.entry_bytes / known.messages.max(1))
    }

    /// The runs of a partition from the one that holds `offset`, or the first one behind it. Ends with a lookup where
    /// the rows are not in memory.
    pub fn runs<'a>(&'a self, partition: PartitionId, spans: &'a Spans, offset: Offset) -> RunsFrom<'a> {
        RunsFrom { index: self, partition, spans: spans.from(offset), offset, reading: None, over: false }
    }

    /// Offset of the first message created at or after `time`; the end if there is none.
    ///
    /// # Errors
    /// What has to be looked up first.
    pub fn first_created_from(
        &self,
        partition: PartitionId,
        spans: &Spans,
        time: WallTime,
        end: Offset,
    ) -> Result<Offset, Lookup> {
        let Some((before, after)) = spans.around(time) else { return Ok(end) };
        let Some(span) = before else { return Ok(after.unwrap_or(end)) };
        let (Some(rows), Some(numbers)) = (self.resident(span.segment()), span.resident()) else {
            return Err(Lookup::Created {
                segment: span.segment(),
                partition,
                base: span.base,
                end: span.end(),
                time,
            });
        };
        let run = |row: &u32| rows.run(*row, span.segment());
        let at = numbers.partition_point(|row| run(row).is_none_or(|run| run.created < time));
        Ok(numbers.get(at).and_then(run).map_or(span.end(), |run| run.base))
    }

    /// Appends the messages of a partition with this id that are in resident rows of segments that were written to at
    /// or after `not_before`, segment by segment.
    pub fn find_resident(&self, partition: PartitionId, hash: IdHash, not_before: LogTime, hits: &mut Ids) {
        for number in self.with_rows.iter().rev() {
            if let Some(segment) = self.segments.get(number)
                && segment.last_logged >= not_before
                && let Some(rows) = &segment.rows
            {
                rows.find(partition, hash, hits);
            }
        }
    }

    /// The other segments that may hold such messages, newest first. Those without a filter may.
    #[must_use]
    pub fn elsewhere(&self, partition: PartitionId, hash: IdHash, not_before: LogTime) -> Candidates {
        let mut candidates = self.tiers.candidates(Keys::of(partition, hash), not_before);
        candidates.extend(self.unknown.iter().copied());
        candidates.retain(|number| {
            let segment = self.segments.get(number);
            segment.is_some_and(|segment| segment.rows.is_none() && segment.last_logged >= not_before)
        });
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        candidates
    }

    /// Whether the rows of all messages from `from` to `to` are in memory.
    #[must_use]
    pub fn is_resident(&self, spans: &Spans, from: Offset, to: Option<Offset>) -> bool {
        spans
            .from(from)
            .take_while(|span| to.is_none_or(|to| span.base <= to))
            .all(|span| self.resident(span.segment()).is_some())
    }
}

/// See `Index::runs`.
pub struct RunsFrom<'a> {
    index: &'a Index,
    partition: PartitionId,
    spans: std::slice::Iter<'a, Span>,
    offset: Offset,
    reading: Option<Reading<'a>>,
    over: bool,
}

/// A span that is being read.
struct Reading<'a> {
    span: &'a Span,
    /// Its rows and the numbers of those that come next, where they are in memory.
    resident: Option<(&'a SegmentRows, std::slice::Iter<'a, u32>)>,
}

impl<'a> RunsFrom<'a> {
    fn begin(&mut self, span: &'a Span) {
        self.offset = self.offset.max(span.base);
        let resident = self.index.resident(span.segment()).zip(span.resident()).map(|(rows, numbers)| {
            let run = |row: &u32| rows.run(*row, span.segment());
            let at = numbers.partition_point(|row| run(row).is_none_or(|run| run.end() <= self.offset));
            (rows, numbers.get(at..).unwrap_or_default().iter())
        });
        self.reading = Some(Reading { span, resident });
    }
}

impl Iterator for RunsFrom<'_> {
    type Item = Result<Run, Lookup>;

    fn next(&mut self) -> Option<Result<Run, Lookup>> {
        loop {
            if self.over {
                return None;
            }
            let Some(reading) = self.reading.as_mut().filter(|reading| self.offset < reading.span.end())
            else {
                let span = self.spans.next()?;
                self.begin(span);
                continue;
            };
            let segment = reading.span.segment();
            let run = match &mut reading.resident {
                Some((rows, numbers)) => numbers.next().and_then(|row| rows.run(*row, segment)),
                None => self.index.cold.get(segment, self.partition, self.offset),
            };
            match run {
                Some(run) => {
                    self.offset = run.end();
                    return Some(Ok(run));
                }
                // Rows that are here are all there are.
                None if reading.resident.is_some() => self.offset = reading.span.end(),
                None => {
                    self.over = true;
                    let (partition, from) = (self.partition, self.offset);
                    return Some(Err(Lookup::Runs { segment, partition, from }));
                }
            }
        }
    }
}
