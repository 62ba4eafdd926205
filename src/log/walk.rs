//! The reading end of a segment or cursor file: frames in order, by length and chain.

use std::io;

use bytes::Bytes;

use crate::format::file_header::{FileHeader, FileKind};
use crate::format::frame::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, body_hash, chain_after, frame_bytes, mark,
};
use crate::io::{BLOCK_BYTES, FsFile};
use crate::log::appender::Resume;
use crate::log::files::is_blank;
use crate::types::{FileNumber, LogId, Seq};

/// Bytes read ahead at a time.
const WINDOW_BYTES: usize = 2 << 20;

/// A file read through a sliding window.
#[derive(Debug)]
pub struct Window<File> {
    file: File,
    file_bytes: u64,
    start: u64,
    data: Bytes,
}

impl<File: FsFile> Window<File> {
    /// A window over an open file.
    ///
    /// # Errors
    /// Its length cannot be had.
    pub fn new(file: File) -> io::Result<Window<File>> {
        let file_bytes = file.bytes()?;
        Ok(Window { file, file_bytes, start: 0, data: Bytes::new() })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Exactly `bytes` bytes at `position`, or `None` when the file ends before.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn get(&mut self, position: u64, bytes: usize) -> io::Result<Option<Bytes>> {
        let Some(end) = position.checked_add(bytes as u64).filter(|end| *end <= self.file_bytes) else {
            return Ok(None);
        };
        if position < self.start || end > self.start + self.data.len() as u64 {
            let ahead = (self.file_bytes - position).min(WINDOW_BYTES.max(bytes) as u64);
            self.data = self.file.read_at(position, usize::try_from(ahead).unwrap_or(bytes))?;
            self.start = position;
        }
        let from = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        Ok(Some(self.data.slice(from..from + bytes)))
    }
}

/// A frame that was read and whose header, chain and body are right.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its header.
    pub header: FrameHeader,
    /// Byte of its header.
    pub position: u64,
    /// Its body.
    pub body: Bytes,
}

/// Walks the frames of one file.
#[derive(Debug)]
pub struct Walk<File> {
    window: Window<File>,
    log: LogId,
    header: FileHeader,
    resume: Resume,
}

/// Why a walk cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file header is wrong.
    #[error("file header at byte 0: {0}")]
    Header(#[from] crate::format::DecodeError),
    /// The file ends inside its header.
    #[error("the file has {got} bytes, fewer than its header of {BLOCK_BYTES}")]
    Short {
        /// Bytes there.
        got: u64,
    },
    /// The file belongs to another log.
    #[error("the file belongs to log {got}, this data directory is log {want}")]
    Foreign {
        /// Log in the header.
        got: LogId,
        /// Log of the superblock.
        want: LogId,
    },
    /// The file is shorter or longer than its header says.
    #[error("the file has {got} bytes, its header says {want}")]
    Size {
        /// Bytes there.
        got: u64,
        /// Bytes in the header.
        want: u64,
    },
}

impl<File: FsFile> Walk<File> {
    /// Reads and checks the file header.
    ///
    /// # Errors
    /// The header is not that of this file.
    pub fn open(file: File, log: LogId, kind: FileKind, number: FileNumber) -> Result<Walk<File>, OpenError> {
        let window = Window::new(file)?;
        if window.file_bytes() < BLOCK_BYTES as u64 {
            return Err(OpenError::Short { got: window.file_bytes() });
        }
        // Not through the window: most files are only opened to be checked.
        let block = window.file().read_at(0, BLOCK_BYTES)?;
        let header = FileHeader::decode(&block, kind, number)?;
        if header.log != log {
            return Err(OpenError::Foreign { got: header.log, want: log });
        }
        if header.file_bytes != window.file_bytes() {
            return Err(OpenError::Size { got: window.file_bytes(), want: header.file_bytes });
        }
        let resume = Resume { position: BLOCK_BYTES as u64, chain: 0, frames: 0, last_seq: Seq(0) };
        let mut walk = Walk { window, log, header, resume };
        walk.resume = walk.beginning();
        Ok(walk)
    }

    /// The file's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Where the next frame begins, and what chains to it.
    pub fn resume(&self) -> Resume {
        self.resume
    }

    /// Where the first frame begins.
    pub fn beginning(&self) -> Resume {
        let chain = chain_after(&self.header.encode());
        Resume { position: BLOCK_BYTES as u64, chain, frames: 0, last_seq: Seq(0) }
    }

    /// Goes back to where it was.
    pub fn rewind(&mut self, resume: Resume) {
        self.resume = resume;
    }

    /// The file.
    pub fn file(&self) -> &File {
        self.window.file()
    }

    /// A header of this file's life that begins these bytes.
    fn header_in(&self, bytes: &[u8]) -> Option<FrameHeader> {
        let header = FrameHeader::decode(bytes, self.header.number).ok()?;
        (header.mark == mark(self.log, self.header.number)).then_some(header)
    }

    /// The next frame; `None` where no valid frame begins.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_frame(&mut self) -> io::Result<Option<Found>> {
        let position = self.resume.position;
        let Some(bytes) = self.window.get(position, FRAME_HEADER_BYTES)? else { return Ok(None) };
        let Some(header) = self.header_in(&bytes) else { return Ok(None) };
        let frame = frame_bytes(header.body_bytes as usize);
        if header.chain != self.resume.chain || frame > self.header.max_frame_bytes {
            return Ok(None);
        }
        let chain = chain_after(&bytes);
        let body_at = position + FRAME_HEADER_BYTES as u64;
        let Some(body) = self.window.get(body_at, header.body_bytes as usize)? else { return Ok(None) };
        if body_hash(self.log, self.header.number, header.seq, &body) != header.body_hash {
            return Ok(None);
        }
        self.resume = Resume {
            position: position + frame,
            chain,
            frames: self.resume.frames + 1,
            last_seq: self.resume.last_seq.max(header.seq),
        };
        Ok(Some(Found { header, position, body }))
    }

    /// Whether a file that was left for its successor may end where no frame was found: in zeros, or in what a crash
    /// left of its seal, which is one block.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ends_here(&mut self) -> io::Result<bool> {
        let end = self.resume.position;
        let later = self.later_frames(end)?;
        let seal = end + BLOCK_BYTES as u64;
        Ok(later.highest_seq.is_none() && later.last_position <= end && later.dirty_end <= seal)
    }

    /// Headers of this file's life at any block from `from` to the end of the file, and where the last byte that
    /// is not zero stands.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn later_frames(&mut self, from: u64) -> io::Result<Later> {
        let mut later = Later { end: from, dirty_end: from, ..Later::default() };
        let mut position = from;
        while let Some(block) = self.window.get(position, BLOCK_BYTES)? {
            let next = position + BLOCK_BYTES as u64;
            if !is_blank(&block) {
                later.dirty_end = next;
                if let Some(header) = self.header_in(&block) {
                    later.count += 1;
                    later.watermark = later.watermark.max(header.watermark);
                    if header.kind == FrameKind::Commit {
                        later.highest_seq = later.highest_seq.max(Some(header.seq));
                    }
                    later.last_position = position;
                    later.end = position + frame_bytes(header.body_bytes as usize);
                }
            }
            position = next;
        }
        Ok(later)
    }
}

/// What stands behind the end of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Later {
    /// Valid headers found.
    pub count: u64,
    /// Highest watermark in them.
    pub watermark: Seq,
    /// Highest seq of a commit among them.
    pub highest_seq: Option<Seq>,
    /// Byte of the last one.
    pub last_position: u64,
    /// Byte after the frame of the last one.
    pub end: u64,
    /// Byte after the last block that is not all zeros; the beginning if there is none.
    pub dirty_end: u64,
}
