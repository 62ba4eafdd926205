//! Staging: what fits the open group, what goes into it, and where bytes are.
//!
//! Must not: submit anything.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::commit::{CURSOR_GROUP_BYTES, Engine, LOAD};
use crate::format::delta::Delta;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::run::{RUN_HEADER_BYTES, RunHeader};
use crate::index::runs::{Place, Run};
use crate::io::{AlignedBuf, BLOCK_BYTES, ReadAt, Ring};
use crate::log::cache::part;
use crate::types::FileNumber;

/// Whether something can be staged now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It fits the open group.
    Now,
    /// Not into the open group; try again when the next one is open.
    Later,
    /// There is no space for messages.
    Full {
        /// Bytes free on the file system.
        free_bytes: u64,
        /// It fits the part of the last segment that is kept for copies of dead letters.
        copies: bool,
    },
    /// Larger than any group may be.
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

/// Bytes of the log, in memory or in a file.
pub enum Bytesource {
    /// In memory.
    Memory(Bytes),
    /// In a file at a position.
    File(Arc<dyn ReadAt>, u64),
}

impl<R: Ring> Engine<R> {
    /// Bytes at the end of the last segment that only dead-letter copies may use while no successor is ready.
    fn copies_reserve(&self) -> u64 {
        if self.segments.has_next() { 0 } else { (self.settings.segment_bytes / 8).min(4 << 20) }
    }

    /// Whether runs of `run_bytes` bytes and records of `delta_bytes` bytes can be staged together now.
    #[must_use]
    pub fn room(&self, run_bytes: u64, delta_bytes: u64) -> Room {
        let cursor_max = self.settings.cursor_frame_bytes_max() - 2 * FRAME_HEADER_BYTES as u64;
        let records = self.open.deltas.len() as u64 + delta_bytes;
        if delta_bytes > cursor_max {
            return Room::TooLarge { limit: cursor_max };
        }
        if records > cursor_max || (!self.open.is_empty() && records > CURSOR_GROUP_BYTES) {
            return Room::Later;
        }
        if run_bytes == 0 {
            return Room::Now;
        }
        let limit = self.settings.message_frame_bytes_max() - FRAME_HEADER_BYTES as u64;
        if run_bytes > limit {
            return Room::TooLarge { limit };
        }
        let header = FRAME_HEADER_BYTES as u64;
        let messages = self.open.message_bytes().max(header) + run_bytes;
        let has_messages = self.open.runs > 0;
        if has_messages && messages - header > self.settings.group_bytes.min(limit) {
            return Room::Later;
        }
        let frame = messages.next_multiple_of(BLOCK_BYTES as u64);
        if self.segments.active.takes(frame) && frame + self.copies_reserve() <= self.segments.active.room() {
            return Room::Now;
        }
        match self.full_free_bytes {
            Some(free_bytes) if !self.segments.has_next() => {
                Room::Full { free_bytes, copies: self.segments.active.takes(frame) }
            }
            _ => {
                self.wanted.set(self.wanted.get().max(run_bytes));
                Room::Later
            }
        }
    }

    /// Moves on to the next segment when `room` said `Later` for want of space in the active one and nothing of the
    /// open group is in it.
    pub(super) fn roll_if_wanted(&mut self) -> bool {
        if self.open.runs > 0 || (self.wanted.get() == 0 && !self.roll_asked) {
            return false;
        }
        let run_bytes = self.wanted.take();
        let frame = (run_bytes + FRAME_HEADER_BYTES as u64).next_multiple_of(BLOCK_BYTES as u64);
        let fits =
            self.segments.active.takes(frame) && frame + self.copies_reserve() <= self.segments.active.room();
        if (!fits || self.roll_asked)
            && let Some(number) = self.segments.roll()
        {
            self.roll_asked = false;
            self.readers.add(number);
            tracing::debug!(segment = number.0, "rolled to the next segment");
            return true;
        }
        false
    }

    /// Stages one record.
    pub fn stage(&mut self, delta: &Delta<'_>) {
        delta.encode(&mut self.open.deltas);
        self.open.records += 1;
    }

    /// Stages one run and says where it will be.
    pub fn stage_run(&mut self, run: &RunHeader, entries: &[&[u8]]) -> Place {
        let data = self.open.messages.get_or_insert_with(|| {
            let mut data = AlignedBuf::with_capacity(16 * BLOCK_BYTES);
            data.resize_zeroed(FRAME_HEADER_BYTES);
            data
        });
        let place = Place {
            segment: self.segments.active.number(),
            position: self.segments.active.position() + data.len() as u64,
        };
        data.extend_from_slice(&run.encode());
        for entry in entries {
            data.extend_from_slice(entry);
        }
        self.open.runs += 1;
        place
    }

    /// Where the entries of a run are.
    #[must_use]
    pub fn source(&self, run: &Run) -> Bytesource {
        let Place { segment, position } = run.place;
        let at = position + RUN_HEADER_BYTES as u64;
        let bytes = run.bytes as usize;
        if segment == self.segments.active.number() && position >= self.segments.active.position() {
            // In the open group: its buffer still grows, so the bytes are copied.
            let from = usize::try_from(at - self.segments.active.position()).unwrap_or(usize::MAX);
            let data = self.open.messages.as_ref().map(AlignedBuf::as_slice).unwrap_or_default();
            let bytes = data.get(from..from.saturating_add(bytes)).unwrap_or_default();
            return Bytesource::Memory(Bytes::copy_from_slice(bytes));
        }
        if let Some(bytes) = self.tail.get(segment, at, bytes).or_else(|| self.in_flight(segment, at, bytes))
        {
            return Bytesource::Memory(bytes);
        }
        match self.readers.get(segment) {
            Some(reader) => Bytesource::File(Arc::clone(reader) as Arc<dyn ReadAt>, at),
            None => unreachable!("the index names segments that are there"),
        }
    }

    /// Bytes that are being written: a rewrite may move a message under a lease, and its holder may have it filed before
    /// the copy is in the file.
    fn in_flight(&self, segment: FileNumber, position: u64, bytes: usize) -> Option<Bytes> {
        let mut frames = self.flights.iter().filter_map(|flight| flight.messages.as_ref());
        frames.find_map(|(file, begin, frame)| match *file == segment {
            true => part(frame, *begin, position, bytes),
            false => None,
        })
    }

    /// Reads a run's entries from its file; the result comes through `take_loaded` under `key`.
    pub fn load(&mut self, run: &Run, key: u64) {
        let at = run.place.position + RUN_HEADER_BYTES as u64;
        let Some(reader) = self.readers.get(run.place.segment) else {
            unreachable!("the index names segments that are there")
        };
        let reader = Arc::clone(reader) as Arc<dyn ReadAt>;
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.loads.insert(ticket, key);
        self.ring.read(&reader, at, run.bytes as usize, ticket << 1 | LOAD);
    }

    /// Finished loads: key and bytes.
    pub fn take_loaded(&mut self) -> Vec<(u64, io::Result<Bytes>)> {
        std::mem::take(&mut self.loaded)
    }
}
