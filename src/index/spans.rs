//! Where the messages of one partition are, segment by segment.
//!
//! Invariants: spans are in the order of offsets and do not overlap; what is placed later covers what was there.

use smallvec::SmallVec;

use super::runs::Run;
use crate::types::{FileNumber, LogTime, Offset, WallTime};

/// Consecutive messages of a partition in one segment. 40 bytes: a partition has one at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// First offset.
    pub base: Offset,
    /// Wall time of the first message.
    pub first_created: WallTime,
    /// Log time of the last message.
    pub last_logged: LogTime,
    count: u32,
    segment: u32,
    /// Numbers of its runs among the rows of the segment, while those are resident.
    #[expect(clippy::box_collection, reason = "most spans have none, and a partition has a span always")]
    rows: Option<Box<Vec<u32>>>,
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number)
        .unwrap_or_else(|_| unreachable!("a log has fewer than 2^32 segments, and a segment fewer messages"))
}

impl Span {
    /// A span whose rows are in the index file only.
    #[must_use]
    pub fn cold(segment: FileNumber, base: Offset, end: Offset, created: WallTime, logged: LogTime) -> Span {
        Span {
            base,
            first_created: created,
            last_logged: logged,
            count: narrow(end.0 - base.0),
            segment: narrow(segment.0),
            rows: None,
        }
    }

    /// Offset behind the last.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.count))
    }

    /// The segment.
    #[must_use]
    pub fn segment(&self) -> FileNumber {
        FileNumber(u64::from(self.segment))
    }

    /// Messages in it.
    #[must_use]
    pub fn messages(&self) -> u64 {
        u64::from(self.count)
    }

    /// The part of it from `base` to before `end`. Its first message's time is that of the whole: an earlier one only
    /// makes a search look closer.
    fn part(&self, base: Offset, end: Offset) -> Span {
        Span { base, count: narrow(end.0 - base.0), ..self.clone() }
    }

    pub(super) fn resident(&self) -> Option<&[u32]> {
        self.rows.as_ref().map(|rows| rows.as_slice())
    }
}

/// How many messages of which segments were covered.
pub type Covered = SmallVec<[(FileNumber, u64); 1]>;

/// The spans of a partition.
#[derive(Clone, Debug, Default)]
pub struct Spans(SmallVec<[Span; 1]>);

impl Spans {
    /// Places a run whose row in its segment has this number. Nothing where it continues the last span; otherwise what
    /// its own span covers.
    pub(super) fn place(&mut self, run: &Run, row: u32) -> Option<Covered> {
        if let Some(last) = self.0.last_mut()
            && last.end() == run.base
            && last.segment() == run.place.segment
            && let Some(rows) = &mut last.rows
        {
            rows.push(row);
            last.count = narrow(run.end().0 - last.base.0);
            last.last_logged = run.logged;
            return None;
        }
        let rows = Some(Box::new(vec![row]));
        let cold = Span::cold(run.place.segment, run.base, run.end(), run.created, run.logged);
        Some(self.attach(Span { rows, ..cold }))
    }

    /// Puts a span in its place, over whatever is there.
    pub(super) fn attach(&mut self, span: Span) -> Covered {
        let mut covered = Covered::new();
        let from = self.0.partition_point(|other| other.end() <= span.base);
        let mut to = from;
        let mut keep: SmallVec<[Span; 2]> = SmallVec::new();
        while let Some(other) = self.0.get(to).filter(|other| other.base < span.end()) {
            let (low, high) = (other.base.max(span.base), other.end().min(span.end()));
            covered.push((other.segment(), high.0 - low.0));
            if other.base < low {
                keep.push(other.part(other.base, low));
            }
            if high < other.end() {
                keep.push(other.part(high, other.end()));
            }
            to += 1;
        }
        let at = from + keep.iter().filter(|kept| kept.base < span.base).count();
        self.0.drain(from..to);
        self.0.insert_many(from, keep);
        self.0.insert(at, span);
        covered
    }

    /// The rows of a segment are no longer resident.
    pub(super) fn forget_rows(&mut self, segment: FileNumber) {
        for span in &mut self.0 {
            if span.segment() == segment {
                span.rows = None;
            }
        }
    }

    /// The spans from the one that holds `offset`, or the first one behind it.
    pub(super) fn from(&self, offset: Offset) -> std::slice::Iter<'_, Span> {
        let first = self.0.partition_point(|span| span.end() <= offset);
        self.0.get(first..).unwrap_or_default().iter()
    }

    /// The last span that begins before a time, and the offset at which the next one begins; nothing without spans.
    pub(super) fn around(&self, time: WallTime) -> Option<(Option<&Span>, Option<Offset>)> {
        if self.0.is_empty() {
            return None;
        }
        let at = self.0.partition_point(|span| span.first_created < time);
        let before = at.checked_sub(1).and_then(|at| self.0.get(at));
        Some((before, self.0.get(at).map(|span| span.base)))
    }

    /// The span that holds an offset.
    #[must_use]
    pub fn holding(&self, offset: Offset) -> Option<&Span> {
        self.from(offset).next().filter(|span| span.base <= offset)
    }

    /// How many of the messages from `base` to before `end` are in a segment.
    #[must_use]
    pub fn overlap(&self, segment: FileNumber, base: Offset, end: Offset) -> u64 {
        self.from(base)
            .take_while(|span| span.base < end)
            .filter(|span| span.segment() == segment)
            .map(|span| span.end().min(end).0.saturating_sub(span.base.max(base).0))
            .sum()
    }

    /// Removes what lies below a new first offset. How many messages of which segments died, given the first offset
    /// before.
    pub fn trim(&mut self, old: Offset, new: Offset) -> Covered {
        let mut died = Covered::new();
        let mut gone = 0;
        for span in &self.0 {
            if span.base >= new {
                break;
            }
            let (low, high) = (span.base.max(old), span.end().min(new));
            if low < high {
                died.push((span.segment(), high.0 - low.0));
            }
            gone += usize::from(span.end() <= new);
        }
        self.0.drain(..gone);
        // What is left of a span must not stay behind when a later one covers only what is still there.
        if let Some(first) = self.0.first_mut().filter(|first| first.base < new) {
            *first = first.part(new, first.end());
        }
        died
    }

    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Span> {
        self.0.iter()
    }

    /// First offset that is there.
    #[must_use]
    pub fn start(&self) -> Option<Offset> {
        self.0.first().map(|span| span.base)
    }

    /// Offset behind the last.
    #[must_use]
    pub fn end(&self) -> Option<Offset> {
        self.0.last().map(|span| span.end())
    }

    /// The first gap between its spans at or behind `start`: where it begins.
    #[must_use]
    pub fn gap(&self, start: Offset, end: Offset) -> Option<Offset> {
        let mut expected = start;
        for span in &self.0 {
            if span.base > expected {
                return Some(expected);
            }
            expected = expected.max(span.end());
        }
        (expected < end).then_some(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(segment: u64, base: u64, end: u64) -> Span {
        Span::cold(FileNumber(segment), Offset(base), Offset(end), WallTime(0), LogTime(0))
    }

    /// Retention took the front of a span, and a rewrite moves what is left of it: nothing may name the old segment.
    #[test]
    fn nothing_is_left_of_a_span_whose_kept_part_moved() {
        let mut spans = Spans::default();
        spans.attach(span(2, 4, 13));
        let died = spans.trim(Offset(0), Offset(10));
        assert_eq!(died.as_slice(), [(FileNumber(2), 6)]);
        let covered = spans.attach(span(3, 10, 13));
        assert_eq!(covered.as_slice(), [(FileNumber(2), 3)]);
        let left: Vec<_> = spans.iter().map(|span| (span.segment().0, span.base.0, span.end().0)).collect();
        assert_eq!(left, [(3, 10, 13)]);
        assert_eq!(spans.gap(Offset(10), Offset(13)), None);
    }
}
