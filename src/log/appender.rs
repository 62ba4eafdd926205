//! The writing end of a segment or cursor file.

use std::sync::Arc;

use crate::format::file_header::FileHeader;
use crate::format::frame::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, SealBody, body_hash, chain_after, frame_bytes, mark,
};
use crate::io::{AlignedBuf, BLOCK_BYTES};
use crate::types::{Epoch, FileNumber, LogId, LogTime, Seq};

/// What every frame that is written now has in common.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The log.
    pub log: LogId,
    /// This process start.
    pub epoch: Epoch,
    /// Highest seq known complete.
    pub watermark: Seq,
    /// Log time.
    pub log_time: LogTime,
}

/// A file that frames are appended to.
#[derive(Debug)]
pub struct Appender<File> {
    number: FileNumber,
    /// One open file description per pipeline slot: Linux reports a write-back error once per description, so two
    /// syncs in flight must not share one.
    slots: Vec<Arc<File>>,
    position: u64,
    chain: u64,
    frames: u64,
    last_seq: Seq,
    file_bytes: u64,
    max_frame_bytes: u64,
}

/// A frame that is ready to be written.
#[derive(Debug)]
pub struct Frame {
    /// Where it goes.
    pub position: u64,
    /// Its bytes, padded to blocks.
    pub data: Arc<AlignedBuf>,
    /// Hash of its body.
    pub body_hash: u64,
    /// Bytes of its body.
    pub body_bytes: u32,
}

/// Where an appender goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Byte after the last frame.
    pub position: u64,
    /// `chain_after` of the last header.
    pub chain: u64,
    /// Frames before.
    pub frames: u64,
    /// Last seq before.
    pub last_seq: Seq,
}

impl<File> Appender<File> {
    /// An appender to an open file. Size and largest frame are those of the file's own header: a later start reads
    /// the file by them, whatever the settings are by then.
    #[must_use]
    pub fn new(header: &FileHeader, slots: Vec<Arc<File>>, resume: Resume) -> Appender<File> {
        Appender {
            number: header.number,
            slots,
            position: resume.position,
            chain: resume.chain,
            frames: resume.frames,
            last_seq: resume.last_seq,
            file_bytes: header.file_bytes,
            max_frame_bytes: header.max_frame_bytes,
        }
    }

    /// Number of the file.
    #[must_use]
    pub fn number(&self) -> FileNumber {
        self.number
    }

    /// Byte at which the next frame begins.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Last seq in the file.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// Bytes left for frames; room for the seal and one noop is kept.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.file_bytes.saturating_sub(self.position + 2 * BLOCK_BYTES as u64)
    }

    /// Whether a frame of so many bytes, header and padding included, may be appended.
    #[must_use]
    pub fn takes(&self, frame_bytes: u64) -> bool {
        frame_bytes <= self.room() && frame_bytes <= self.max_frame_bytes
    }

    /// Groups that may be in flight to this file: recovery judges its end by that number.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// The description of a pipeline slot.
    #[must_use]
    pub fn slot(&self, slot: usize) -> &Arc<File> {
        self.slots.get(slot % self.slots.len()).unwrap_or_else(|| unreachable!("there is a slot at least"))
    }

    /// Turns a body into the next frame. `data` starts with `FRAME_HEADER_BYTES` bytes of room for the header.
    pub fn frame(
        &mut self,
        kind: FrameKind,
        seq: Seq,
        records: u32,
        stamp: Stamp,
        mut data: AlignedBuf,
    ) -> Frame {
        let body = data.as_slice().get(FRAME_HEADER_BYTES..).unwrap_or_default();
        let body_bytes = u32::try_from(body.len()).expect("a frame is far below 4 GiB");
        let hash = body_hash(stamp.log, self.number, seq, body);
        let header = FrameHeader {
            kind,
            file: self.number,
            epoch: stamp.epoch,
            seq,
            watermark: stamp.watermark,
            chain: self.chain,
            body_bytes,
            records,
            mark: mark(stamp.log, self.number),
            body_hash: hash,
            log_time: stamp.log_time,
        };
        let room = data
            .as_mut_slice()
            .first_chunk_mut::<FRAME_HEADER_BYTES>()
            .expect("the caller leaves room for the header");
        header.encode(room);
        self.chain = chain_after(room);
        data.pad_to_block();
        debug_assert_eq!(data.len() as u64, frame_bytes(body_bytes as usize));
        let position = self.position;
        self.position += data.len() as u64;
        self.frames += 1;
        self.last_seq = self.last_seq.max(seq);
        Frame { position, data: Arc::new(data), body_hash: hash, body_bytes }
    }

    /// A frame without a body that carries the watermark.
    pub fn noop(&mut self, stamp: Stamp, seq: Seq) -> Frame {
        self.frame(FrameKind::Noop, seq, 0, stamp, empty_body())
    }

    /// The frame that ends this file. Due when the watermark covers its last seq and the successor is durable.
    pub fn seal(&mut self, stamp: Stamp) -> Frame {
        let seal = SealBody { frames: self.frames, last_seq: self.last_seq, successor: self.number.next() };
        let mut data = empty_body();
        let mut body = Vec::new();
        seal.encode(&mut body);
        data.extend_from_slice(&body);
        let seq = self.last_seq;
        self.frame(FrameKind::Seal, seq, 0, stamp, data)
    }
}

/// A frame buffer with room for its header and nothing else.
#[must_use]
pub fn empty_body() -> AlignedBuf {
    let mut data = AlignedBuf::with_capacity(BLOCK_BYTES);
    data.resize_zeroed(FRAME_HEADER_BYTES);
    data
}
