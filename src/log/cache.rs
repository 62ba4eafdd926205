//! The tail cache: the newest message frames, in memory, for pops that follow pushes closely.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::io::{AlignedBuf, shared_bytes};
use crate::types::FileNumber;

/// Bytes of a file out of a frame that begins at `begin`, if all of them are in it.
#[must_use]
pub fn part(frame: &Arc<AlignedBuf>, begin: u64, position: u64, bytes: usize) -> Option<Bytes> {
    let from = usize::try_from(position.checked_sub(begin)?).ok()?;
    let to = from.checked_add(bytes)?;
    (to <= frame.len()).then(|| shared_bytes(frame).slice(from..to))
}

/// Frames by segment and position, oldest first out.
#[derive(Debug)]
pub struct TailCache {
    frames: BTreeMap<(FileNumber, u64), Arc<AlignedBuf>>,
    bytes: u64,
    bytes_max: u64,
}

impl TailCache {
    /// A cache that holds at most so many bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> TailCache {
        TailCache { frames: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Adds a frame.
    pub fn insert(&mut self, segment: FileNumber, position: u64, data: &Arc<AlignedBuf>) {
        self.bytes += data.capacity() as u64;
        self.frames.insert((segment, position), Arc::clone(data));
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.frames.pop_first() else { break };
            self.bytes -= oldest.capacity() as u64;
        }
    }

    /// Bytes of a segment, if the frame that holds them is here.
    #[must_use]
    pub fn get(&self, segment: FileNumber, position: u64, bytes: usize) -> Option<Bytes> {
        let (key, frame) = self.frames.range(..=(segment, position)).next_back()?;
        if key.0 != segment {
            return None;
        }
        part(frame, key.1, position, bytes)
    }
}
